"""Searches of the service's page, in a thread of their own, one at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from cachetools import LRUCache

from indexes.errors import CollectionError
from indexes.jvm import detach_thread
from indexes.methods import METHODS, EngineQuery
from pipeline.collections.collection import Collection
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Run
from pipeline.command.defaults import UNTUNED_WEIGHT
from pipeline.command.errors import DataError, UsageError
from pipeline.command.options import listed
from pipeline.explanation.contributions import FusionExplanation
from pipeline.explanation.matches import MatchExplanation
from pipeline.ranking.build import default_reranker, ranker
from pipeline.ranking.checkpoints import directory_for, tuned_weight
from pipeline.ranking.fusion import Fusion
from pipeline.ranking.ranker import Mixture, Ranker, Ranking
from pipeline.ranking.retrievers import Candidates, IndexRetriever
from pipeline.ranking.scorers import ModelScorer, Progress, silent
from pipeline.service.errors import RequestError
from pipeline.service.http.models import ServedModel
from pipeline.service.record import LOG
from rerankers import models
from rerankers.features.temporal import milliseconds

MOST_EXPLAINED = 50
"""Posts of a request for explanations."""
KEPT = 8
"""Latest searches whose results are kept for explanations."""
MOST_WAITING = 16
"""Requests that wait for the thread of searches; a further one is refused."""

FREE = "a query"
"""Key of a query that is no topic of the collection: no topic's, as those are one word."""

Result = TypeVar("Result")

Served = Callable[[], Mapping[str, ServedModel]]
"""Name -> served model, at the time of the call."""


@dataclass(frozen=True)
class SearchRequest:
    """A search.

    Attributes:
        topic: query and time limit; :data:`FREE` is the key of one that is no topic.
        method: first stage; empty for a fusion and for an index that have their own.
        model: name of the model.
        hits: posts of the ranking.
    """

    topic: Topic
    method: str
    model: str
    hits: int


class PageModel(NamedTuple):
    """A model that the page offers.

    Attributes:
        kind: name of the model class.
        directory: of the checkpoint.
        trained_on: names of collections.
        served: None for the collection's own best model.
    """

    name: str
    kind: str
    directory: Path
    trained_on: Sequence[str]
    served: ServedModel | None = None

    @property
    def reads_rankers(self) -> bool:
        """Whether it finds its candidates by several rankers."""
        return models.reads_rankers(self.kind)

    @property
    def reads_lists(self) -> bool:
        """Whether it ranks a list by features, and has no λ."""
        return models.reads_lists(self.kind)

    @property
    def explains(self) -> str | None:
        """Kind of its explanations; None without any."""
        if self.reads_lists:
            return "contributions"
        return "matches" if models.find(self.kind).has_matches else None

    def weight(self, collection: Collection) -> tuple[float | None, str]:
        """λ, None for a fusion, and its origin."""
        if self.reads_lists:
            return None, ""
        tuned = tuned_weight(self.directory, "minmax", collection.key)
        return tuned or (UNTUNED_WEIGHT, "not tuned")


@dataclass(frozen=True)
class ServedScorer(ModelScorer):
    """Scores candidates by a served model, which keeps the encodings of posts."""

    served: ServedModel | None = None

    def score(self, candidates: Candidates, progress: Progress = silent) -> Run:
        """The score of each candidate, higher is better."""
        assert self.served
        return candidates.run_of(self.served.score(candidates.pairs())) if len(candidates) else {}


@dataclass(frozen=True)
class SearchResult:
    """The ranking of a search, with the ranker that made it."""

    request: SearchRequest
    model: PageModel
    ranker: Ranker
    ranking: Ranking

    @property
    def first_stage(self) -> str:
        """Name of the stage before the model's."""
        return [*self.ranking.stages][-2]

    @cached_property
    def neural(self) -> Mapping[str, float]:
        """doc_id -> score of the model."""
        return self.ranking.run.get(self.request.topic.query_id, {})

    @cached_property
    def first(self) -> Mapping[str, float]:
        """doc_id -> score of the first stage, of the posts that the model has scored."""
        scores = self.ranking.candidates.run.get(self.request.topic.query_id, {})
        return {doc_id: score for doc_id, score in scores.items() if doc_id in self.neural}

    @cached_property
    def of_all_posts(self) -> MatchExplanation | FusionExplanation:
        """The explanation of all posts."""
        return self.ranker.explain(self.ranking, [*self.first])


class SearchPage:
    """Searches of a collection.

    Args:
        collection: to be searched; its index is opened, or built, at once.
        served: the service's models.
        device: of the collection's own model.

    Raises:
        UsageError: the collection is not searched.
        CollectionError: the index cannot be opened.
    """

    def __init__(self, collection: Collection, served: Served, device: str = "cpu") -> None:
        self.collection, self._served, self._device = collection, served, device
        self._open()
        self._thread = ThreadPoolExecutor(1, "search")
        self._waiting = 0

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
        """Search the index as it is now; nothing of another one is kept."""
        self.index = self.collection.open_index()
        ids = self.index.id_range
        self.has_times = ids is not None and None not in map(milliseconds, ids)
        self._results: LRUCache[SearchRequest, SearchResult] = LRUCache(KEPT)
        self._rankers: dict[bool, Ranker] = {}
        self._best = self._best_model()

    def reload(self) -> None:
        """Open the index again, between two searches; the old one stays if that fails."""

        def work() -> None:
            old, rankers = self.index, self._rankers.values()
            try:
                self._open()
            except (CollectionError, DataError, UsageError, OSError) as error:
                LOG.error("%s: the index stays as it was: %s", self.collection.name, error)
                return
            old.close()
            for built in rankers:
                if isinstance(built, Fusion | Mixture):
                    cast(Any, built.retriever).index.close()
            LOG.info("%s: opened again, %d posts", self.collection.name, self.index.size)

        self._thread.submit(_detached, work).result()

    def close(self) -> None:
        """End the thread of searches, after the one that runs."""
        self._thread.shutdown(cancel_futures=True)

    @cached_property
    def topics(self) -> dict[str, Topic]:
        """query_id -> topic."""
        if not self.collection.has_topics:
            return {}
        return {topic.query_id: topic for topic in self.collection.topics}

    @property
    def models(self) -> dict[str, PageModel]:
        """Name -> model: the served ones, and the best one for the collection."""
        offered = {
            name: PageModel(
                name,
                served.checkpoint.name,
                served.checkpoint.directory,
                served.checkpoint.metrics.get("trained_on", ()),
                served,
            )
            for name, served in self._served().items()
        }
        best = self._best
        if best and best.directory not in [model.directory for model in offered.values()]:
            name = f"{best.name} of {self.collection.name}" if best.name in offered else best.name
            offered[name] = best._replace(name=name)
        return offered

    def _best_model(self) -> PageModel | None:
        """The model of ``--reranker auto``; None if there is none for this collection."""
        name = default_reranker(self.collection, is_mixed=not self.collection.methods)
        with suppress(DataError):  # There is none.
            folder = directory_for(name, self.collection)
            metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
            return PageModel(name, name, folder, metrics.get("trained_on", ()))
        return None

    def search(self, request: SearchRequest) -> SearchResult:
        """The result of a search, unless it is one of the latest ones."""
        if request not in self._results:
            model = self.models[request.model]
            chosen = self._ranker(request, model)
            ranking = chosen.rank([request.topic], request.hits)
            self._results[request] = SearchResult(request, model, chosen, ranking)
        return self._results[request]

    def is_kept(self, request: SearchRequest) -> bool:
        """Whether a search is one of the latest ones."""
        return request in self._results

    def _ranker(self, request: SearchRequest, model: PageModel) -> Ranker:
        """The ranker of a search; it leaves λ to the page."""
        is_free = request.topic.query_id == FREE
        if model.served:
            scorer: ModelScorer | None = ServedScorer(model.served.checkpoint, served=model.served)
        else:
            best = self._best_ranker(model, is_free and bool(self.collection.runs))
            if isinstance(best, Fusion):
                return best
            scorer = best.scorer
        method = METHODS[request.method]() if request.method else EngineQuery()
        return Mixture(IndexRetriever(self.index, method), scorer, collection=self.collection)

    def _best_ranker(self, model: PageModel, without_runs: bool) -> Ranker:
        """The collection's own ranker, loaded at its first use."""
        if without_runs not in self._rankers:
            where = {"checkpoint": model.directory, "device": self._device}
            best = ranker(self.collection, model.kind, **where)
            if without_runs and isinstance(best, Fusion):  # They are of the topics alone.
                collection = replace(cast(Any, self.collection), runs={})
                best = replace(best, retriever=replace(best.retriever, collection=collection))
            self._rankers[without_runs] = best
        return self._rankers[without_runs]

    def explain(
        self, request: SearchRequest, doc_ids: Sequence[str]
    ) -> MatchExplanation | FusionExplanation:
        """Reasons for the ranks of a search's posts.

        Raises:
            RequestError: there are too many posts, or unknown ones, or no reasons by this model.
        """
        if not 0 < len(doc_ids) <= MOST_EXPLAINED:
            problem = f"found {len(doc_ids)} posts, expected 1 to {MOST_EXPLAINED}"
            raise RequestError("value", problem, ("doc_id",))
        result = self.search(request)
        if unknown := [doc_id for doc_id in doc_ids if doc_id not in result.first]:
            problem = f"found {listed(unknown)}, expected posts of this search's"
            raise RequestError("path", f"{problem} {len(result.first)}", ("doc_id",))
        if result.model.reads_lists:
            return result.of_all_posts  # One scale for all of them.
        try:
            return result.ranker.explain(result.ranking, [*dict.fromkeys(doc_ids)])
        except UsageError as error:
            raise RequestError("value", str(error), ("model",)) from None


def _detached(work: Callable[[], Result]) -> Result:
    """The result of ``work``, after which this thread may end at any time."""
    try:
        return work()
    finally:
        detach_thread()
