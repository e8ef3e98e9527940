"""From topics to a ranking: the file to read first.

::

    candidates = retriever.search(topics, hits=1000)
    scores     = scorer.score(candidates)
    run        = interpolate(candidates.run, scores, weight=0.5)

These three lines are :meth:`Mixture.rank`. A :class:`Ranker` is what every command, the service and
the library hold: :class:`Mixture`, or :class:`pipeline.ranking.fusion.Fusion`, whose candidates
come from several retrievers. :func:`pipeline.ranker` makes either.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.collections.topics import Topic, as_topics
from pipeline.collections.trec import Run, places
from pipeline.defaults import DEFAULT_HITS
from pipeline.errors import UsageError
from pipeline.ranking.interpolation import interpolate

if TYPE_CHECKING:
    from pipeline.collections.collection import Collection
    from pipeline.explanation.topic import ExplainedTopic
    from pipeline.ranking.retrievers import Candidates, Retriever
    from rerankers.reranker import Model


Progress = Callable[[int], None]
"""Called with numbers of pairs that have been scored since the last call."""

ProgressBar = Callable[[int], AbstractContextManager[Progress]]
"""Number of pairs to score -> a progress bar."""


def silent(done: int) -> None:
    """Report nothing."""


def hidden(pairs: int) -> AbstractContextManager[Progress]:
    """Show no progress bar."""
    return nullcontext(silent)


@dataclass(frozen=True)
class ModelScorer:
    """A trained model that scores candidates by their texts and first-stage scores."""

    checkpoint: Model

    @property
    def name(self) -> str:
        """The model's name."""
        return self.checkpoint.name

    def with_needs(self, candidates: Candidates, collection: Collection | None) -> Candidates:
        """Candidates with what the model reads of their collection: its adapted word vectors."""
        from pipeline.ranking.retrievers import with_space
        from rerankers.text.spaces import ADAPTED

        is_read = f"meaning:{ADAPTED}" in self.checkpoint.families
        return with_space(candidates, collection) if is_read else candidates

    def score(self, candidates: Candidates, progress: Progress = silent) -> Run:
        """The score of each candidate, higher is better."""
        return candidates.run_of(self.checkpoint.score(candidates.pairs(), progress))


class Ranking(NamedTuple):
    """Result of a :class:`Ranker`."""

    stages: Mapping[str, Run]  # Name -> run of each stage, in order; the last one is the result
    candidates: Candidates  # The posts that were scored, with their first-stage scores
    seconds: Mapping[str, float]
    """Stage -> seconds of its own work, which another may have shared the cores with."""
    collection: Collection | None = None  # Whose topics these are; None if it is not known

    @property
    def run(self) -> Run:
        """The last stage's run: query_id -> doc_id -> score, as pytrec_eval and ir_measures."""
        return list(self.stages.values())[-1]

    def after(self, *others: Ranking) -> Ranking:
        """This ranking with the stages of others of the same topics before its own."""
        stages: dict[str, Run] = {}
        seconds = dict(self.seconds)
        for other in others:
            stages |= other.stages
            seconds |= other.seconds
        own = {name: run for name, run in self.stages.items() if name not in stages}
        return self._replace(stages=stages | own, seconds=seconds)

    def to_dict(self) -> dict[str, Any]:
        """The ranking for JSON: a topic's posts, best first, with their places in every stage.

        A stage that lacks a post is not among its stages.
        """
        posts = self.candidates.posts
        topics = []
        for topic in self.candidates.topics:
            stages = {
                name: places(run.get(topic.query_id, {})) for name, run in self.stages.items()
            }
            found = [
                {
                    "doc_id": doc_id,
                    "text": posts[doc_id].text if doc_id in posts else "",
                    "url": posts[doc_id].url if doc_id in posts else "",
                    "stages": {
                        name: by_id[doc_id]._asdict()
                        for name, by_id in stages.items()
                        if doc_id in by_id
                    },
                }
                for doc_id in [*stages.values()][-1]
            ]
            topics.append({"query_id": topic.query_id, "query": topic.text, "posts": found})
        name = self.collection.name if self.collection else None
        return {"collection": name, "seconds": dict(self.seconds), "topics": topics}

    def to_dataframe(self) -> Any:
        """The run as a pandas DataFrame with PyTerrier's columns, best first, ranks from 0.

        The columns are qid, query, docno, text, url, score and rank.
        """
        import pandas

        result, rows = [*self.stages][-1], []
        for topic in self.to_dict()["topics"]:
            for rank, post in enumerate(topic["posts"]):
                names, score = ("doc_id", "text", "url"), post["stages"][result]["score"]
                of_post = (post[name] for name in names)
                rows.append((topic["query_id"], topic["query"], *of_post, score, rank))
        return pandas.DataFrame(
            rows, columns=["qid", "query", "docno", "text", "url", "score", "rank"]
        )


class Ranker(ABC):
    """Ranks posts for topics: finds candidates, scores them, combines the scores."""

    scorer: ModelScorer | None
    """The model; None for the first stage alone."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the model, or of the first stage without one."""

    @property
    @abstractmethod
    def first_stage_name(self) -> str:
        """Name of the stage before the model's."""

    @property
    @abstractmethod
    def weight(self) -> float | None:
        """λ; None for a ranker that has none."""

    @property
    @abstractmethod
    def description(self) -> str:
        """How its scores come about, for reports; "" without a model."""

    @property
    @abstractmethod
    def collection(self) -> Collection | None:
        """What is searched; None if candidates are always given."""

    @abstractmethod
    def rank(
        self, topics: Topics = None, hits: int = DEFAULT_HITS, progress: ProgressBar = hidden
    ) -> Ranking:
        """Find the best ``hits`` candidates of each topic, and rerank them.

        Args:
            topics: query_ids with texts, texts, or None for the collection's topics.
            hits: candidates for each topic.
            progress: number of candidates -> a progress bar.
        """

    @abstractmethod
    def rerank(self, candidates: Candidates, progress: ProgressBar = hidden) -> Ranking:
        """Rank given candidates: of a run, a request, or a page of a search engine."""

    def explain(
        self, ranking: Ranking, doc_ids: Sequence[str] = (), query_id: str = "", show: int = 10
    ) -> ExplainedTopic:
        """Reasons for the ranks of a topic's posts in a ranking by this ranker.

        Args and errors: see :func:`pipeline.explanation.topic.explain`.
        """
        from pipeline.explanation.topic import explain

        if self.scorer is None:
            raise UsageError(f"found {self.name}, expected a model with an explanation")
        given = ranking.candidates, ranking.stages, self.first_stage_name, self.collection
        return explain(self.scorer.checkpoint, *given, doc_ids, query_id, show)


Topics = Any
"""Topics to rank: all of a collection for None, else what :func:`as_topics` takes: a text, texts,
query_id -> text, records, or a data frame."""


class Stopwatch:
    """Seconds of successive stages, by a clock."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock, self._since = clock, clock()

    def stop(self, stage: str) -> None:
        """What was done since the last stop is this stage's."""
        now = self._clock()
        self.seconds[stage], self._since = now - self._since, now


def require_positive(name: str, value: object) -> int:
    """A number of posts; raises UsageError for another value."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise UsageError(f"`{name}`: found {value!r}, expected a whole number of at least 1")
    return int(value)


def topics_of(collection: Collection | None, topics: Topics) -> Sequence[Topic]:
    """Topics as records."""
    if topics is not None:
        return as_topics(topics)
    if collection is None:
        raise UsageError("`topics`: found none, expected some: this ranker has no collection")
    return collection.topics


class Mixing(NamedTuple):
    """The share of the new score."""

    weight: float = 1.0  # λ, the new score's share; 1 leaves it as it is
    origin: str = "given"  # Where λ is from, for reports

    def __str__(self) -> str:
        return f"λ = {self.weight:g} ({self.origin})"

    @property
    def source(self) -> str:
        """The origin without its path."""
        return self.origin.partition("; ")[0]


@dataclass(frozen=True)
class Mixture(Ranker):
    """λ · a model's score + (1 − λ) · the first stage's (Rao et al. 2019, equation 2)."""

    retriever: Retriever | None  # Finds the candidates; None if they are always given
    scorer: ModelScorer | None  # Gives the new scores; None keeps the first stage's ranking
    mixing: Mixing = Mixing()  # λ
    collection: Collection | None = None  # That the retriever searches

    @property
    def name(self) -> str:
        """Name of the model, or of the first stage without one."""
        return self.scorer.name if self.scorer else self.first_stage_name

    @property
    def weight(self) -> float | None:
        """λ; None without a model."""
        return self.mixing.weight if self.scorer else None

    @property
    def description(self) -> str:
        """λ and its origin."""
        return str(self.mixing) if self.scorer else ""

    @property
    def first_stage_name(self) -> str:
        """Name of the stage before the model's."""
        return self.retriever.name if self.retriever else "first stage"

    def explain(
        self, ranking: Ranking, doc_ids: Sequence[str] = (), query_id: str = "", show: int = 10
    ) -> ExplainedTopic:
        """Reasons for the ranks of a topic's posts, with λ; see :class:`Ranker`."""
        explained = super().explain(ranking, doc_ids, query_id, show)
        share = f"{self.mixing.weight:g}, {self.mixing.source}"
        return replace(explained, facts={**explained.facts, "Share of the model (λ)": share})

    def rank(
        self, topics: Topics = None, hits: int = DEFAULT_HITS, progress: ProgressBar = hidden
    ) -> Ranking:
        """Find candidates, score them, mix both scores; see :class:`Ranker`."""
        if self.retriever is None:
            raise UsageError("found no retriever, expected one; give candidates to rerank()")
        watch, hits = Stopwatch(), require_positive("hits", hits)
        candidates = self.retriever.search(topics_of(self.collection, topics), hits)
        watch.stop(self.first_stage_name)
        return self._ranked(candidates, progress, watch)

    def rerank(self, candidates: Candidates, progress: ProgressBar = hidden) -> Ranking:
        """Score candidates and mix both scores; see :class:`Ranker`."""
        return self._ranked(candidates, progress, Stopwatch())

    def _ranked(self, candidates: Candidates, progress: ProgressBar, watch: Stopwatch) -> Ranking:
        stages = {self.first_stage_name: candidates.run}
        if self.scorer:
            candidates = self.scorer.with_needs(candidates, self.collection)
            with progress(len(candidates)) as report:
                scores = self.scorer.score(candidates, report)
            stages[self.scorer.name] = scores
            watch.stop(self.scorer.name)
            weight = self.mixing.weight
            if weight != 1:
                name = f"{self.scorer.name} + {self.first_stage_name} (λ = {weight:g})"
                stages[name] = interpolate(candidates.run, scores, weight)
                watch.stop(name)
        return Ranking(stages, candidates, watch.seconds, self.collection)
