"""Searches of the service's page, in a thread of their own, one at a time, and their grades."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from cachetools import LRUCache

from indexes.errors import CollectionError
from indexes.files import atomic_file
from indexes.jvm import detach_thread
from indexes.methods import METHODS, EngineQuery
from pipeline.collections.collection import Collection
from pipeline.collections.topics import Topic, read_topics
from pipeline.collections.trec import read_qrels
from pipeline.errors import DataError, UsageError
from pipeline.explanation.topic import ExplainedTopic
from pipeline.ranking.build import ranker, tuned
from pipeline.ranking.fusion import Fusion
from pipeline.ranking.ranker import Ranker, Ranking
from pipeline.ranking.retrievers import IndexRetriever
from pipeline.service.models import ServedModel
from pipeline.service.record import LOG
from pipeline.service.requests import RequestError
from pipeline.text import listed
from rerankers.features.temporal import milliseconds

MOST_EXPLAINED = 50  # Posts of a request for explanations
KEPT = 8  # Latest searches whose results are kept for explanations
MOST_WAITING = 16  # Requests that wait for the thread of searches; a further one is refused

Result = TypeVar("Result")

Served = Callable[[], Mapping[str, ServedModel]]  # Name -> served model, at the time of the call


class Grades:
    """A file of judgments given by hand, in TREC's form, and one of their topics beside it.

    Both are read before each change, so that changes by others stay, and written as a whole.
    The topics of ``grades.txt`` are in ``grades.topics.jsonl``.

    Raises DataError for a malformed file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.topics_path = path.with_name(f"{path.name.split('.')[0]}.topics.jsonl")
        self.reload()

    def reload(self) -> dict[str, Topic]:
        """Read both files as they are now; query_id -> topic."""
        texts = [path.exists() and path.stat().st_size for path in (self.path, self.topics_path)]
        self.qrels = read_qrels(self.path) if texts[0] else {}
        topics = read_topics(self.topics_path) if texts[1] else []
        return {topic.query_id: topic for topic in topics}

    def set(self, topic: Topic, doc_id: str, grade: int | None) -> None:
        """Write a grade; None takes it back. Raises DataError for a malformed file, or OSError."""
        topics = self.reload()
        of_topic = self.qrels.setdefault(topic.query_id, {})
        of_topic.pop(doc_id, None)
        if grade is not None:
            of_topic[doc_id] = grade
            topics[topic.query_id] = topic
        with atomic_file(self.topics_path) as stream:
            for each in topics.values():
                known = {name: value for name, value in each._asdict().items() if value is not None}
                stream.write(f"{json.dumps(known, ensure_ascii=False)}\n")
        with atomic_file(self.path) as stream:
            for name, grades in self.qrels.items():
                stream.writelines(f"{name} 0 {d} {value}\n" for d, value in grades.items())


@dataclass(frozen=True)
class SearchRequest:
    """A search."""

    topic: Topic  # Query and time limit; one that is no topic has the id of its text
    method: str  # First stage; empty for a fusion and for an index that have their own
    model: str  # Its name
    hits: int  # Posts of the ranking


@dataclass(frozen=True)
class SearchResult:
    """The ranking of a search, with the ranker that made it."""

    request: SearchRequest
    ranker: Ranker
    ranking: Ranking

    @cached_property
    def model(self) -> Mapping[str, float]:
        """doc_id -> score of the model."""
        return self.ranking.stages[self.ranker.name].get(self.request.topic.query_id, {})

    @cached_property
    def first(self) -> Mapping[str, float]:
        """doc_id -> score of the first stage, of the posts that the model has scored."""
        scores = self.ranking.candidates.run.get(self.request.topic.query_id, {})
        return {doc_id: score for doc_id, score in scores.items() if doc_id in self.model}

    @cached_property
    def of_all_posts(self) -> ExplainedTopic:
        """The explanation of all posts."""
        return self.ranker.explain(self.ranking, [*self.first])


class SearchPage:
    """Searches of a collection, whose index is opened, or built, at once.

    ``grades`` is the file of the grades given on the page; without it none are taken.

    Raises UsageError for a collection that is not searched, CollectionError for a damaged index.
    """

    def __init__(
        self,
        collection: Collection,
        served: Served,
        grades: Grades | None = None,
        device: str = "cpu",
    ) -> None:
        self.collection, self._served, self.grades = collection, served, grades
        self._device, self._waiting = device, 0
        self._open()
        self._thread = ThreadPoolExecutor(1, "search")

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do ``work`` in the thread of searches; raises RequestError if too many wait."""
        if self._waiting >= MOST_WAITING:
            problem = f"found {MOST_WAITING} searches waiting; try again in a moment"
            raise RequestError("overload", problem, retry=1)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, _detached, work)
        finally:
            self._waiting -= 1

    def _open(self) -> None:
        """Search the index as it is now, by the best model there is now."""
        best: Any = None
        with suppress(DataError):  # Without it, those of the served models are offered.
            best = ranker(self.collection, device=self._device)
        self.index = best.retriever.index if best else self.collection.open_index()
        self._best = best
        self.kept: LRUCache[SearchRequest, SearchResult] = LRUCache(KEPT)
        ids = self.index.id_range
        self.has_times = ids is not None and None not in map(milliseconds, ids)

    def reload(self) -> None:
        """Open the index again, between two searches; the old one stays if that fails."""

        def work() -> None:
            old = self.index
            try:
                self._open()
            except (CollectionError, DataError, UsageError, OSError) as error:
                LOG.error("%s: the index stays as it was: %s", self.collection.name, error)
                return
            old.close()
            LOG.info("%s: opened again, %d posts", self.collection.name, self.index.size)

        self._thread.submit(_detached, work).result()

    def close(self) -> None:
        """End the thread of searches, after the one that runs, for which nobody waits."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @cached_property
    def topics(self) -> dict[str, Topic]:
        """query_id -> topic."""
        topics = self.collection.topics if self.collection.has_topics else []
        return {topic.query_id: topic for topic in topics}

    @property
    def rankers(self) -> dict[str, Ranker]:
        """Name -> ranker: the best one for the collection, then those of the served models."""
        best, served, offered = self._best, self._served(), dict[str, Any]()
        if best:
            name = f"{best.name} of {self.collection.name}" if best.name in served else best.name
            offered[name] = best
        known = [each.model.directory for each in offered.values()]
        for name, model in served.items():
            if model.loaded.directory not in known:
                mixed = tuned(model.checkpoint, self.collection)
                offered[name] = Ranker(None, mixed, self.collection)
        return offered

    def search(self, request: SearchRequest) -> SearchResult:
        """The result of a search, unless it is one of the latest ones."""
        if request not in self.kept:
            chosen = self.rankers[request.model]
            if not isinstance(chosen, Fusion):
                method = METHODS[request.method]() if request.method else EngineQuery()
                found = IndexRetriever(self.index, method, self.collection.skips_own_id)
                chosen = replace(chosen, retriever=found)
            ranking = chosen.rank([request.topic], request.hits)
            self.kept[request] = SearchResult(request, chosen, ranking)
        return self.kept[request]

    def grades_of(self, topic: Topic) -> Mapping[str, int]:
        """doc_id -> grade: the collection's judgments, and over them those given here."""
        given, path = self.grades, self.collection.qrels_path
        qrels = (self.collection.qrels or {}).get(topic.query_id, {})
        if given is None:
            return qrels
        is_same = path is not None and given.path.resolve() == path.resolve()
        return {**({} if is_same else qrels), **given.qrels.get(topic.query_id, {})}

    def grade(self, topic: Topic, doc_id: str, grade: int | None) -> None:
        """Write a grade; raises RequestError if none are taken here, or for an unknown post."""
        if self.grades is None:
            raise RequestError("path", "found no --grades FILE at the service's start")
        if not self.index.posts.get_many([doc_id]):
            raise RequestError("path", f"doc_id: found no post {doc_id[:100]!r}")
        try:
            self.grades.set(self.topics.get(topic.query_id, topic), doc_id, grade)
        except OSError as error:
            raise DataError(f"{self.grades.path}: cannot be written: {error.strerror}") from None

    def explain(self, request: SearchRequest, doc_ids: Sequence[str]) -> ExplainedTopic:
        """Reasons for the ranks of posts; raises RequestError for too many or unknown posts."""
        if not 0 < len(doc_ids) <= MOST_EXPLAINED:
            problem = f"doc_id: found {len(doc_ids)} posts, expected 1 to {MOST_EXPLAINED}"
            raise RequestError("value", problem)
        result = self.search(request)
        if unknown := [doc_id for doc_id in doc_ids if doc_id not in result.first]:
            problem = f"doc_id: found {listed(unknown)}, expected posts of this search's"
            raise RequestError("path", f"{problem} {len(result.first)}")
        model = result.ranker.model
        if model and model.explains == "contributions":
            return result.of_all_posts  # One scale for all of them.
        try:
            return result.ranker.explain(result.ranking, [*dict.fromkeys(doc_ids)])
        except UsageError as error:
            raise RequestError("value", f"model: {error}") from None


def _detached(work: Callable[[], Result]) -> Result:
    """The result of ``work``, after which this thread may end at any time."""
    try:
        return work()
    finally:
        detach_thread()
