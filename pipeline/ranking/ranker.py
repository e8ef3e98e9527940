"""From topics to a ranking: the file to read first.

::

    candidates = retriever.search(topics, hits=1000)
    scores     = model.score(candidates.pairs())
    run        = candidates.run_of(scores)

These three lines are :meth:`Ranker.rank`. Every command, the service and the library hold a
:class:`Ranker`; :class:`tweetrerank.pipeline.ranking.fusion_ranker.Fusion` is one whose candidates come from several
retrievers. :func:`tweetrerank.pipeline.ranker` makes either. λ belongs to the model, which is then a
:class:`tweetrerank.rerankers.mixed.Mixed`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple, Self

from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import as_topics
from tweetrerank.pipeline.collections.trec import Run, best_of, places, ranked
from tweetrerank.pipeline.defaults import DEFAULT_HITS
from tweetrerank.pipeline.explanation.topic import ExplainedTopic, explain
from tweetrerank.pipeline.ranking.retrievers import (
    Candidates,
    Retriever,
    with_resources,
)
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers.model import Model, Progress, silent
from tweetrerank.rerankers.reranker_error import warn
from tweetrerank.rerankers.trees.fusion import ADAPTED_FAMILY

ProgressBar = Callable[[int], AbstractContextManager[Progress]]
"""Number of pairs to score -> a progress bar."""

Topics = Any
"""Topics to rank: all of a collection for None, else what :func:`as_topics` takes: a text, texts,
query_id -> text, records, or a data frame."""


def hidden(pairs: int) -> AbstractContextManager[Progress]:
    """Show no progress bar."""
    return nullcontext(silent)


class Hit(NamedTuple):
    """A post in a ranking."""

    doc_id: str
    score: float
    text: str
    url: str


class Ranking(NamedTuple):
    """Result of a :class:`Ranker`."""

    stages: Mapping[str, Run]  # Name -> run of each stage; the last one is the result
    candidates: Candidates  # The posts that were scored, with their first-stage scores
    seconds: Mapping[str, float]
    """Stage -> seconds of its own work, which another may have shared the cores with."""
    collection: Collection | None = (
        None  # Whose topics these are; None if it is not known
    )

    @property
    def run(self) -> Run:
        """The last stage's run: query_id -> doc_id -> score, as pytrec_eval and ir_measures."""
        return list(self.stages.values())[-1]

    def after(self, *others: Self) -> Self:
        """This ranking with the stages of others of the same topics before its own."""
        stages: dict[str, Run] = {}
        seconds = dict(self.seconds)
        for other in others:
            stages |= other.stages
            seconds |= other.seconds
        own = {name: run for name, run in self.stages.items() if name not in stages}
        return self._replace(stages=stages | own, seconds=seconds)

    def best(self, count: int | None, query_id: str = "", stage: str = "") -> list[Hit]:
        """The best posts, or all, of a topic, else of the first one, in a stage, else in the last
        one; with an empty text where it is not known."""
        run, posts = self.stages[stage] if stage else self.run, self.candidates.posts
        found = ranked(run.get(query_id or self.candidates.topics[0].query_id, {}))[
            :count
        ]
        return [Hit(d, score, *posts.get(d, Post(d, ""))[1:3]) for d, score in found]

    def to_dict(self) -> dict[str, Any]:
        """The ranking for JSON: a topic's posts, best first, with their places in every stage. A
        stage that lacks a post is not among its stages."""
        posts = self.candidates.posts
        topics = []
        for topic in self.candidates.topics:
            query_id, found = topic.query_id, []
            stages = {
                name: places(run.get(query_id, {})) for name, run in self.stages.items()
            }
            for doc_id in [*stages.values()][-1]:
                post = posts.get(doc_id, Post(doc_id, ""))
                known = {"doc_id": doc_id, "text": post.text, "url": post.url}
                of_post = {
                    n: of[doc_id]._asdict() for n, of in stages.items() if doc_id in of
                }
                found.append(known | {"stages": of_post})
            topics.append({"query_id": query_id, "query": topic.text, "posts": found})
        name = self.collection.name if self.collection else None
        return {"collection": name, "seconds": dict(self.seconds), "topics": topics}

    def to_dataframe(self) -> Any:
        """The run as a pandas DataFrame with PyTerrier's columns, best first, ranks from 0."""
        import pandas

        rows = [
            (topic.query_id, topic.text, hit.doc_id, hit.text, hit.url, hit.score, rank)
            for topic in self.candidates.topics
            for rank, hit in enumerate(self.best(None, topic.query_id))
        ]
        columns = ["qid", "query", "docno", "text", "url", "score", "rank"]
        return pandas.DataFrame(rows, columns=columns)


class Stopwatch:
    """Seconds of successive stages, by a clock."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock, self._since = clock, clock()

    def stop(self, stage: str) -> None:
        """End the stage; its time is the time since the last call."""
        now = self._clock()
        self.seconds[stage], self._since = now - self._since, now


@dataclass(frozen=True)
class Ranker:
    """Ranks posts for topics: finds candidates, scores them, combines the scores."""

    retriever: Retriever | None  # Finds the candidates; None if they are always given
    model: Model | None  # Gives the new scores; None keeps the first stage's ranking
    collection: Collection | None = (
        None  # The one searched; None if candidates are always given
    )

    @property
    def name(self) -> str:
        """Name of the model, or of the first stage without one."""
        return self.model.name if self.model else self.first_stage_name

    @property
    def first_stage_name(self) -> str:
        """Name of the stage before the model's."""
        return self.retriever.name if self.retriever else "first stage"

    @property
    def description(self) -> str:
        """Use of the first stage's scores, λ and its origin, for reports; "" without a model."""
        return self.model.description if self.model else ""

    def rank(
        self,
        topics: Topics = None,
        hits: int = DEFAULT_HITS,
        progress: ProgressBar = hidden,
    ) -> Ranking:
        """Find the best ``hits`` candidates of each topic, and rerank them. ``topics`` None are the
        collection's; ``progress``: number of candidates -> a progress bar."""
        if self.retriever is None:
            raise UsageError(
                "found no retriever, expected one; give candidates to rerank()"
            )
        hits = require_positive("hits", hits)
        if topics is not None:
            topics = as_topics(topics)
        elif self.collection is None:
            raise UsageError(
                "`topics`: found none, expected some: this ranker has no collection"
            )
        else:
            topics = self.collection.topics
        watch = Stopwatch()
        candidates = self.retriever.search(topics, hits)
        watch.stop(self.first_stage_name)
        return self._ranked(candidates, hits, progress, watch)

    def rerank(self, candidates: Candidates, progress: ProgressBar = hidden) -> Ranking:
        """Rank given candidates: of a run, a request, or a page of a search engine."""
        return self._ranked(candidates, len(candidates), progress, Stopwatch())

    def _ranked(
        self, candidates: Candidates, hits: int, progress: ProgressBar, watch: Stopwatch
    ) -> Ranking:
        """The stages of candidates; where several searches found them, their best ``hits``."""
        stages = {self.first_stage_name: candidates.run}
        if self.model:
            if ADAPTED_FAMILY in self.model.families:
                candidates = with_resources(candidates, self.collection)
            with progress(len(candidates)) as report:
                pairs, before = candidates.pairs(), self.first_stage_name
                if unknown := self.model.unknown_numbers(pairs):
                    warn(unknown)
                for name, scores in self.model.stages(pairs, report, before):
                    stages[name] = candidates.run_of(scores)
                    watch.stop(name)
        if candidates.signals:
            best = {name: best_of(run, hits) for name, run in stages.items()}
            stages = {**candidates.signals, **best}
        return Ranking(
            stages, candidates, {**watch.seconds, **candidates.seconds}, self.collection
        )

    def explain(
        self,
        ranking: Ranking,
        doc_ids: Sequence[str] = (),
        query_id: str = "",
        show: int = 10,
    ) -> ExplainedTopic:
        """Reasons for the ranks of a topic's posts; see :mod:`tweetrerank.pipeline.explanation.topic`."""
        if self.model is None:
            raise UsageError(f"found {self.name}, expected a model with an explanation")
        return explain(
            self.model, ranking, self.first_stage_name, doc_ids, query_id, show
        )


def require_positive(name: str, value: object) -> int:
    """A number of posts; raises UsageError for another value."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise UsageError(
            f"`{name}`: found {value!r}, expected a whole number of at least 1"
        )
    return int(value)
