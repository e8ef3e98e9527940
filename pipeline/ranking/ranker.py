"""Rank posts for topics: read this file first.

::

    candidates = retriever.search(topics, hits=1000)
    scores     = model.score(candidates.pairs())
    run        = candidates.run_of(scores)

These three lines are what :meth:`Ranker.rank` does. The commands, the service and the
library all rank by a :class:`Ranker`, which :func:`tweetrerank.ranker` builds. A
:class:`tweetrerank.pipeline.ranking.fusion_ranker.Fusion` is a ranker that takes its
candidates from several retrievers. λ, the model's share in a mixture with the first
stage, belongs to the model (:class:`tweetrerank.rerankers.mixed.Mixed`).
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias, TypedDict

from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import Topic, as_topics
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

if TYPE_CHECKING:
    import pandas

ProgressBar = Callable[[int], AbstractContextManager[Progress]]
"""A function that opens a progress bar for a given number of pairs."""

Topics: TypeAlias = (
    "str | Topic | Mapping[str, str] | Mapping[int, str]"
    " | Iterable[str] | Iterable[Topic] | Iterable[Mapping[str, object]]"
    " | pandas.DataFrame | pandas.Series | None"
)
"""Topics to rank, in one of the forms that :func:`as_topics` reads: a text, several
texts, query_id -> text, records, or a data frame. None stands for the collection's
topics."""


def hidden(pairs: int) -> AbstractContextManager[Progress]:
    """Show no progress bar."""
    return nullcontext(silent)


class Hit(NamedTuple):
    """A post in a ranking."""

    doc_id: str
    score: float
    text: str
    url: str


class PlaceRecord(TypedDict):
    """The place of a post in one stage, for JSON."""

    rank: int  # From 1
    score: float


class PostRecord(TypedDict):
    """A ranked post, for JSON."""

    doc_id: str
    text: str
    url: str
    stages: dict[str, PlaceRecord]  # Stages that lack the post are left out


class TopicRecord(TypedDict):
    """A topic with its posts, best first, for JSON."""

    query_id: str
    query: str
    posts: list[PostRecord]


class RankingRecord(TypedDict):
    """A ranking, for JSON."""

    collection: str | None
    seconds: dict[str, float]
    topics: list[TopicRecord]


class Ranking(NamedTuple):
    """The result of a :class:`Ranker`."""

    stages: Mapping[str, Run]  # Name -> run of each stage. The last stage is the result
    candidates: Candidates  # The posts that were scored, with their first-stage scores
    seconds: Mapping[str, float]
    """Stage -> seconds of its work. Another stage may have run on the same cores."""
    # The collection that the topics belong to, if known
    collection: Collection | None = None

    @property
    def run(self) -> Run:
        """Run of the last stage: query_id -> doc_id -> score.

        pytrec_eval and ir_measures can read it without conversion.
        """
        return list(self.stages.values())[-1]

    def after(self, *others: Self) -> Self:
        """Return this ranking with the stages of ``others`` before its own.

        All rankings must have the same topics.
        """
        stages: dict[str, Run] = {}
        seconds = dict(self.seconds)
        for other in others:
            stages |= other.stages
            seconds |= other.seconds
        for name, run in self.stages.items():
            stages.setdefault(name, run)
        return self._replace(stages=stages, seconds=seconds)

    def best(self, count: int | None, query_id: str = "", stage: str = "") -> list[Hit]:
        """Return the best ``count`` posts of a topic in a stage, or all for None.

        The default topic is the first one, and the default stage is the last one. A
        post without a known text gets an empty text.
        """
        run = self.stages[stage] if stage else self.run
        query_id = query_id or self.candidates.topics[0].query_id
        hits = []
        for doc_id, score in ranked(run.get(query_id, {}))[:count]:
            post = self._post(doc_id)
            hits.append(Hit(doc_id, score, post.text, post.url))
        return hits

    def to_dict(self) -> RankingRecord:
        """Return the ranking in a form for JSON.

        Each topic has its posts, best first.
        """
        return {
            "collection": self.collection.name if self.collection else None,
            "seconds": dict(self.seconds),
            "topics": [self._topic_record(topic) for topic in self.candidates.topics],
        }

    def to_dataframe(self) -> "pandas.DataFrame":
        """Return the run with PyTerrier's columns, best first. Ranks start at 0."""
        import pandas

        rows = []
        for topic in self.candidates.topics:
            for rank, hit in enumerate(self.best(None, topic.query_id)):
                doc_id, score, text, url = hit
                row = (topic.query_id, topic.text, doc_id, text, url, score, rank)
                rows.append(row)
        columns = ["qid", "query", "docno", "text", "url", "score", "rank"]
        return pandas.DataFrame(rows, columns=columns)

    def _topic_record(self, topic: Topic) -> TopicRecord:
        """Return a topic with the last stage's posts and their places in all stages."""
        stage_places = {
            name: places(run.get(topic.query_id, {}))
            for name, run in self.stages.items()
        }
        final_places = list(stage_places.values())[-1]
        posts: list[PostRecord] = []
        for doc_id in final_places:
            post = self._post(doc_id)
            stages: dict[str, PlaceRecord] = {}
            for name, of_stage in stage_places.items():
                place = of_stage.get(doc_id)
                if place:
                    stages[name] = {"rank": place.rank, "score": place.score}
            posts.append(
                {"doc_id": doc_id, "text": post.text, "url": post.url, "stages": stages}
            )
        return {"query_id": topic.query_id, "query": topic.text, "posts": posts}

    def _post(self, doc_id: str) -> Post:
        """Return a post by its id. A post that was not scored has an empty text."""
        return self.candidates.posts.get(doc_id, Post(doc_id, ""))


class Stopwatch:
    """Measures the seconds of successive stages with a clock."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._last_stop = clock()

    def stop(self, stage: str) -> None:
        """End a stage.

        Its time is the time since the previous call, or since the start.
        """
        now = self._clock()
        self.seconds[stage] = now - self._last_stop
        self._last_stop = now


@dataclass(frozen=True)
class Ranker:
    """Finds candidates for topics, scores them, and combines the scores."""

    retriever: Retriever | None  # Finds candidates. With None, the caller gives them
    model: Model | None  # Scores candidates. With None, the first stage's order stays
    collection: Collection | None = None  # The collection that is searched, if any

    @property
    def name(self) -> str:
        """Name of the model, or of the first stage if there is no model."""
        return self.model.name if self.model else self.first_stage_name

    @property
    def first_stage_name(self) -> str:
        """Name of the stage before the model."""
        return self.retriever.name if self.retriever else "first stage"

    @property
    def description(self) -> str:
        """How the first-stage scores are used, with λ and its origin.

        It is "" without a model.
        """
        return self.model.description if self.model else ""

    def rank(
        self,
        topics: Topics = None,
        hits: int = DEFAULT_HITS,
        progress: ProgressBar = hidden,
    ) -> Ranking:
        """Find the best ``hits`` candidates of each topic, and rerank them.

        Args:
            topics: topics to search for; None searches for the collection's topics.
            hits: number of candidates to find for each topic.
            progress: opens a progress bar for a number of candidates.

        Raises:
            UsageError: the ranker has no retriever, there are no topics, or ``hits`` is
                below 1.
            DataError: the topics are malformed, or a file or an index is damaged.
            RerankerError: the model cannot score the candidates.
        """
        if self.retriever is None:
            raise UsageError("this ranker has no retriever; give candidates to rerank")
        hits = _require_positive("hits", hits)
        searched_topics = self._topics(topics)
        watch = Stopwatch()
        candidates = self.retriever.search(searched_topics, hits)
        watch.stop(self.first_stage_name)
        return self._ranking(candidates, hits, progress, watch)

    def rerank(self, candidates: Candidates, progress: ProgressBar = hidden) -> Ranking:
        """Rank the candidates of a run, of a request, or of a page of a search engine.

        Raises RerankerError if the model cannot score the candidates.
        """
        return self._ranking(candidates, len(candidates), progress, Stopwatch())

    def explain(
        self,
        ranking: Ranking,
        doc_ids: Sequence[str] = (),
        query_id: str = "",
        show: int = 10,
    ) -> ExplainedTopic:
        """Explain the ranks of a topic's posts.

        Args:
            ranking: a result of this ranker.
            doc_ids: posts to explain. The default is the best posts and those that
                moved most.
            query_id: the topic. It may be "" if there is only one.
            show: number of best posts to explain if ``doc_ids`` is empty.

        Raises:
            UsageError: there is no model, it cannot explain its scores, or a post or
                topic is unknown.
            DataError: the topic has no candidates.
        """
        if self.model is None:
            raise UsageError(f"found {self.name}, expected a model with an explanation")
        return explain(
            self.model, ranking, self.first_stage_name, doc_ids, query_id, show
        )

    def _topics(self, topics: Topics) -> list[Topic]:
        """Return the topics to search for. The default is the collection's topics.

        Raises UsageError if there are neither.
        """
        if topics is not None:
            return as_topics(topics)
        if self.collection is None:
            raise UsageError("`topics`: found none, and this ranker has no collection")
        return self.collection.topics

    def _ranking(
        self, candidates: Candidates, hits: int, progress: ProgressBar, watch: Stopwatch
    ) -> Ranking:
        """Score the candidates and return the ranking with all its stages.

        Several searches together may find more than ``hits`` candidates, so their
        stages are cut to the best ``hits``.
        """
        stages = {self.first_stage_name: candidates.run}
        if self.model:
            if ADAPTED_FAMILY in self.model.families:
                candidates = with_resources(candidates, self.collection)
            stages |= self._scored(self.model, candidates, progress, watch)
        if candidates.signals:
            best = {name: best_of(run, hits) for name, run in stages.items()}
            stages = dict(candidates.signals) | best
        seconds = watch.seconds | dict(candidates.seconds)
        return Ranking(stages, candidates, seconds, self.collection)

    def _scored(
        self,
        model: Model,
        candidates: Candidates,
        progress: ProgressBar,
        watch: Stopwatch,
    ) -> dict[str, Run]:
        """Return name -> run of the model's stages.

        A warning names numbers that the model reads and the posts lack.
        """
        stages: dict[str, Run] = {}
        with progress(len(candidates)) as report:
            pairs = candidates.pairs()
            unknown = model.unknown_numbers(pairs)
            if unknown:
                warn(unknown)
            for name, scores in model.stages(pairs, report, self.first_stage_name):
                stages[name] = candidates.run_of(scores)
                watch.stop(name)
        return stages


def _require_positive(name: str, value: object) -> int:
    """Return ``value`` as an int.

    Raises UsageError if it is not a whole number of at least 1.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise UsageError(
            f"`{name}`: found {value!r}, expected a whole number of at least 1"
        )
    return int(value)
