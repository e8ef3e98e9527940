"""Which candidates a command ranks: searched, those of a run, or those given with the topics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.errors import UsageError

if TYPE_CHECKING:
    from pipeline.collections.sources import Source
    from pipeline.collections.trec import Run, Topic
    from pipeline.reranking import Candidates

METHODS = ("ql", "bm25", "rm3", "axiom")
DEFAULT_METHOD = "ql"
DEFAULT_HITS = 1000
UNTUNED_WEIGHT = 0.5


@dataclass(frozen=True)
class FirstStage:
    """What a command's options say of the candidates.

    Attributes:
        source: whose topics are ranked.
        candidates: a TREC run, or the name of one of the source's; None searches.
        method: of the search; None is the default.
        changes: of its parameters, ``NAME=VALUE``.
        hits: candidates of a topic; None is the default.
    """

    source: "Source"
    candidates: str | None = None
    method: str | None = None
    changes: Sequence[str] = ()
    hits: int | None = None

    @property
    def is_unscored(self) -> bool:
        """Whether the candidates have no scores of a first stage."""
        return self.source.given is not None and self.candidates is None

    @property
    def name(self) -> str:
        """Where the candidates are from, for reports."""
        if self.is_unscored:
            return "given, by id"
        return self.candidates or self.method or DEFAULT_METHOD

    def check(self, flags: Mapping[str, object], idf: str | None) -> None:
        """Refuse what says how to search where the candidates are given.

        Args:
            flags: those of a search -> what was found; those that are not None or empty are told.
            idf: what ``--idf`` has.

        Raises:
            UsageError: naming all of them.
        """
        if self.source.given is None:
            return
        # A run that one names has ranks, and so has best candidates.
        given = {**flags, "--hits": None if self.candidates else self.hits}
        name = self.source.name
        problems = [
            f"{flag}: {name} is not searched, its candidates are given; leave {flag} out"
            for flag, value in given.items()
            if value
        ]
        if idf == "index":
            problems.append(f"--idf index: {name} has no index; use wordfreq or a file")
        if problems:
            raise UsageError(problems)

    def search(self, topics: "Sequence[Topic]") -> "Candidates":
        """The candidates of some of the source's topics.

        Raises:
            UsageError: a parameter is none of the method's, or there is no index.
            DataError: the run has none of the topics, or posts that are not known.
        """
        from indexes.methods import METHODS as KNOWN
        from pipeline.collections.trec import read_run
        from pipeline.command.options import apply_changes
        from pipeline.reranking import Candidates, LuceneRetriever, RunRetriever

        source, hits = self.source, self.hits or DEFAULT_HITS
        if self.candidates:
            path = source.runs.get(self.candidates, Path(self.candidates))
            return RunRetriever(read_run(path), source.find_posts, str(path)).search(topics, hits)
        if source.given is not None:
            run = {topic.query_id: source.given.get(topic.query_id, {}) for topic in topics}
            doc_ids = [doc_id for scores in run.values() for doc_id in scores]
            # Without scores there are no ranks to make priors of.
            return Candidates(topics, run, source.find_posts(doc_ids), priors={})
        method = apply_changes(KNOWN[self.method or DEFAULT_METHOD](), self.changes)
        return LuceneRetriever(source.index(), method).search(topics, hits)

    def weight(
        self, given: float | None, checkpoint: Path, normalization: str
    ) -> tuple[float, str]:
        """λ and where it is from: what the command was given, else the checkpoint's tuned one."""
        from pipeline.checkpoints import tuned_weight

        if given is not None:
            return given, "given"
        if self.is_unscored:
            return 1.0, "nothing to mix: the candidates are given without scores"
        # There is no official run of a training part to tune it on.
        advice = (
            "run scripts/tune_lambda.py for this checkpoint and normalisation"
            if self.source.given is None
            else "choose one by --lambda"
        )
        return tuned_weight(checkpoint, normalization) or (UNTUNED_WEIGHT, f"not tuned: {advice}")

    def mix(
        self, candidates: "Candidates", neural: "Run", weight: float, normalization: str
    ) -> "Run":
        """The neural scores mixed with those of the first stage, as far as there are any."""
        from pipeline.reranking import interpolate

        if weight == 1 and self.is_unscored:
            return neural
        return interpolate(candidates, neural, weight, normalization)
