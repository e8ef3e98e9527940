"""Candidates of several rankers together, each candidate with what every ranker thinks of it.

A reranker cannot find what the first stage missed; what one ranker misses another may have.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from indexes.methods import METHODS
from indexes.posts import Post
from pipeline.collections.trec import Run, Topic, best_of, read_run
from pipeline.command.errors import DataError
from pipeline.interpolation import normalize
from pipeline.reranking import Candidates

if TYPE_CHECKING:
    from pipeline.collections.sources import Source

T = TypeVar("T")

OFFICIAL = "run_"
"""Before the name of a run that comes with a collection, where it is a ranker."""


@dataclass(frozen=True)
class UnionRetriever:
    """Takes the best candidates of every ranker.

    A post that a collection's official run has and whose text is not here is a candidate too,
    with an empty text: its ranks are all that speaks for it.

    Attributes:
        source: whose topics are ranked.
        rankers: names of methods, or of official runs with ``run_`` before them.
        candidate_rankers: those whose posts are candidates; of these alone the others' scores are kept.
    """

    source: "Source"
    rankers: Sequence[str]
    candidate_rankers: Sequence[str]

    def search(self, topics: Sequence[Topic], hits: int = 1000) -> Candidates:
        """The best ``hits`` candidates of each ranker for each topic.

        The score of a candidate is the mean over all rankers of its min-max score, 0 where a
        ranker does not have it (CombSUM of Fox & Shaw 1994).

        Raises:
            UsageError: there is no index.
            DataError: an official run is malformed.
        """
        signals = {name: run for name in self.rankers if (run := self._rank(name, topics, hits))}
        if missing := [name for name in self.rankers if name not in signals]:
            print(
                f"warning: {self.source.name} has no {', '.join(missing)}; what was trained with "
                "their scores goes on without",
                file=sys.stderr,
            )
        if not any(name in signals for name in self.candidate_rankers):
            raise DataError(
                f"{self.source.name}: found no run of {', '.join(self.candidate_rankers)}, whose posts this "
                "fusion ranks; use a collection that has it, or another fusion"
            )
        found = mean_of_normalized(
            [run for n, run in signals.items() if n in self.candidate_rankers]
        )
        run = only(mean_of_normalized(list(signals.values())), found)
        signals = {name: known_of(run, scores) for name, scores in signals.items()}
        doc_ids = list(dict.fromkeys(doc_id for scores in run.values() for doc_id in scores))
        known = self.source.index().posts.get_many(doc_ids)
        posts = {doc_id: known.get(doc_id) or Post(doc_id, "") for doc_id in doc_ids}
        return Candidates(topics, run, posts, priors={}, signals=signals)

    def _rank(self, name: str, topics: Sequence[Topic], hits: int) -> Run:
        """What one ranker has for the topics; nothing if the source does not have it."""
        if not name.startswith(OFFICIAL):
            return self.source.index().search(topics, METHODS[name](), hits=hits)
        path = self.source.runs.get(name.removeprefix(OFFICIAL))
        if path is None:
            return {}
        wanted = {topic.query_id for topic in topics}
        return best_of({q: run for q, run in read_run(path).items() if q in wanted}, hits)


def mean_of_normalized(runs: Sequence[Run]) -> Run:
    """Over ``runs`` the mean of each candidate's min-max score, 0 in those that lack it."""
    total: Run = {}
    for run in runs:
        for query_id, scores in run.items():
            sums = total.setdefault(query_id, {})
            for doc_id, score in normalize(scores, "minmax").items():
                sums[doc_id] = sums.get(doc_id, 0.0) + score / len(runs)
    return total


def only(run: Run, wanted: Run) -> Run:
    """What ``run`` says of the candidates that are in ``wanted``."""
    return {
        query_id: {d: s for d, s in run.get(query_id, {}).items() if d in scores}
        for query_id, scores in wanted.items()
    }


def known_of(candidates: Run, run: Run) -> Run:
    """What ``run`` says of candidates that it has, by the candidates' own strings.

    A string is found quicker in a dictionary that has this very one, and each is looked up often.
    """
    return {
        query_id: {d: scores[d] for d in wanted if d in scores}
        for query_id, wanted in candidates.items()
        for scores in [run.get(query_id, {})]
    }


def joined(parts: Sequence[Candidates]) -> Candidates:
    """The candidates of several collections, whose topics are all different."""
    signals: dict[str, Run] = {}
    for part in parts:
        for name, run in part.signals.items():
            signals[name] = {**signals.get(name, {}), **run}
    return Candidates(
        [topic for part in parts for topic in part.topics],
        _merged([part.run for part in parts]),
        _merged([part.posts for part in parts]),
        {},
        signals,
    )


def _merged(parts: Sequence[Mapping[str, T]]) -> dict[str, T]:
    return {key: value for part in parts for key, value in part.items()}
