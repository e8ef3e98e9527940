"""The searches of the page, run one at a time in a thread, and the grades of posts."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from cachetools import LRUCache

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.jvm import detached
from tweetrerank.indexes.methods import METHODS, EngineQuery
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.explanation.topic import ExplainedTopic
from tweetrerank.pipeline.ranking.build import ranker, tuned
from tweetrerank.pipeline.ranking.fusion_ranker import Fusion
from tweetrerank.pipeline.ranking.ranker import Ranker, Ranking
from tweetrerank.pipeline.ranking.retrievers import IndexRetriever
from tweetrerank.pipeline.service.json_log import LOG
from tweetrerank.pipeline.service.page.grades import Grades
from tweetrerank.pipeline.service.scorer import ServedModel
from tweetrerank.pipeline.service.service_errors import RequestError
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers.features.temporal import milliseconds

KEPT_RESULTS = 8  # Number of latest searches that are kept for explanations
MOST_WAITING = 16  # Requests that may wait for the thread; any more are refused

Result = TypeVar("Result")


class SearchRequest(NamedTuple):
    """A search that a user makes on the page."""

    topic: Topic  # Query and time limit. The id of a free query is made from its text
    method: str  # First stage; "" for a fusion, or if the index has a query of its own
    model: str  # Name of a ranker
    hits: int  # Number of posts to rank


@dataclass(frozen=True)
class SearchResult:
    """The ranking for a search, and the ranker that made it."""

    request: SearchRequest
    ranker: Ranker
    ranking: Ranking

    @cached_property
    def model(self) -> Mapping[str, float]:
        """The scores of the model by ``doc_id``."""
        run = self.ranking.stages[self.ranker.name]
        return run.get(self.request.topic.query_id, {})

    @cached_property
    def first(self) -> Mapping[str, float]:
        """The first-stage scores, by ``doc_id``, of the posts scored by the model."""
        scores = self.ranking.candidates.run.get(self.request.topic.query_id, {})
        return {
            doc_id: score for doc_id, score in scores.items() if doc_id in self.model
        }

    @cached_property
    def _of_all_posts(self) -> ExplainedTopic:
        return self.ranker.explain(self.ranking, list(self.first))

    def explain(self, doc_ids: Sequence[str]) -> ExplainedTopic:
        """Return the explanation of these posts' scores.

        Contributions of features are explained for all posts, because these share a
        scale. Raises UsageError if the model cannot explain its scores.
        """
        if getattr(self.ranker.model, "explains", "") == "contributions":
            return self._of_all_posts
        return self.ranker.explain(self.ranking, list(dict.fromkeys(doc_ids)))


class SearchPage:
    """Searches a collection for the page.

    Args:
        collection: the collection to search. Its index is opened, and built first if it
            is missing.
        served: a function that returns the served models by name.
        grades: the file for grades given on the page; with None, the page takes none.
        device: the device on which networks run.

    Raises:
        UsageError: the collection cannot be searched.
        DataError: the index is damaged.
    """

    def __init__(
        self,
        collection: Collection,
        served: Callable[[], Mapping[str, ServedModel]],
        grades: Grades | None = None,
        device: str = "cpu",
    ) -> None:
        self.collection = collection
        self.grades = grades
        self._served = served
        self._device = device
        self._waiting = 0
        self._open()
        self._thread = ThreadPoolExecutor(1, "search")

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do ``work`` in the thread of searches, and return its result.

        Raises RequestError if too many requests wait for the thread.
        """
        if self._waiting >= MOST_WAITING:
            problem = f"found {MOST_WAITING} searches waiting; try again in a moment"
            raise RequestError("overload", problem)
        self._waiting += 1
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, detached, work)
        finally:
            self._waiting -= 1

    def _open(self) -> None:
        """Open the index and the collection's best model, if it has one."""
        best: Any = None
        # Without a best model, the page offers only the served models.
        with suppress(DataError):
            best = ranker(self.collection, device=self._device)
        self.index = best.retriever.index if best else self.collection.open_index()
        self._best = best
        self.kept: LRUCache[SearchRequest, SearchResult] = LRUCache(KEPT_RESULTS)
        ids = self.index.id_range
        self.has_times = ids is not None and None not in map(milliseconds, ids)

    def reload(self) -> None:
        """Open the index again between two searches, and wait until this is done.

        If it cannot be opened, the error is logged and the old index stays.
        """
        self._thread.submit(detached, self._reopen).result()

    def _reopen(self) -> None:
        name = self.collection.name
        old_index = self.index
        try:
            self._open()
        except (DataError, UsageError, OSError) as error:
            LOG.error("%s: the index stays as it was: %s", name, error)
            return
        old_index.close()
        LOG.info("%s: opened again, %d posts", name, self.index.size)

    def close(self) -> None:
        """End the thread after its current search, without waiting for it."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @cached_property
    def topics(self) -> dict[str, Topic]:
        """The topics of the collection by ``query_id``; empty if it has none."""
        if not self.collection.has_topics:
            return {}
        return {topic.query_id: topic for topic in self.collection.topics}

    @property
    def rankers(self) -> dict[str, Ranker]:
        """The rankers by name: the collection's best one, then the served models."""
        best = self._best
        served = self._served()
        rankers: dict[str, Any] = {}
        if best:
            is_served = best.name in served
            name = f"{best.name} of {self.collection.name}" if is_served else best.name
            rankers[name] = best
        for name, model in served.items():
            if not best or model.source.folder != best.model.directory:
                mixture = tuned(model.checkpoint, self.collection)
                rankers[name] = Ranker(None, mixture, self.collection)
        return rankers

    def search(self, request: SearchRequest) -> SearchResult:
        """Return the result of a search, which may be one of the kept results."""
        if request not in self.kept:
            chosen = self.rankers[request.model]
            if not isinstance(chosen, Fusion):
                method = METHODS[request.method]() if request.method else EngineQuery()
                skips_own_id = self.collection.skips_own_id
                retriever = IndexRetriever(self.index, method, skips_own_id)
                chosen = replace(chosen, retriever=retriever)
            ranking = chosen.rank([request.topic], request.hits)
            self.kept[request] = SearchResult(request, chosen, ranking)
        return self.kept[request]

    def grades_of(self, topic: Topic) -> Mapping[str, int]:
        """Return the grades of posts for a topic by ``doc_id``.

        Grades given on the page replace the collection's judgments.
        """
        judgments = (self.collection.qrels or {}).get(topic.query_id, {})
        if self.grades is None:
            return judgments
        grades = self.grades.qrels.get(topic.query_id, {})
        path = self.collection.qrels_path
        if path is not None and path.resolve() == self.grades.path.resolve():
            # The file may have changed since the collection was read.
            return dict(grades)
        return {**judgments, **grades}

    def grade(self, topic: Topic, doc_id: str, grade: int | None) -> None:
        """Write the grade of a post; None deletes the grade.

        Raises RequestError if the page takes no grades or the post is unknown, and
        DataError if the file cannot be written.
        """
        if self.grades is None:
            raise RequestError("path", "found no --grades FILE at the service's start")
        if not self.index.posts.get_many([doc_id]):
            raise RequestError("path", f"doc_id: found no post {doc_id[:100]!r}")
        known_topic = self.topics.get(topic.query_id, topic)
        try:
            self.grades.set(known_topic, doc_id, grade)
        except OSError as error:
            problem = f"{self.grades.path}: cannot be written: {error.strerror}"
            raise DataError(problem) from None
