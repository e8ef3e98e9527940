"""The page of the service: searches, explanations, and their JSON.

The page orders posts itself, from the normalised scores of both stages: its λ needs no request.
Searches run in a thread of their own, one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from indexes.errors import CollectionError
from indexes.jvm import detach_thread
from indexes.methods import METHODS, EngineQuery
from indexes.search import SearchIndex
from pipeline.collections.collection import Collection
from pipeline.collections.topics import Topic
from pipeline.command.defaults import (
    DEFAULT_FUSION,
    DEFAULT_METHOD,
    DEFAULT_RERANKER,
    UNTUNED_WEIGHT,
)
from pipeline.command.errors import DataError, UsageError
from pipeline.command.options import did_you_mean, listed
from pipeline.explanation import contributions, matches
from pipeline.explanation.rank_changes import RerankedTopic, grade_text, rank_changes
from pipeline.ranking.build import ranker
from pipeline.ranking.checkpoints import best_trained, directory_for, tuned_weight
from pipeline.ranking.fusion import Fusion
from pipeline.ranking.interpolation import normalized_pair
from pipeline.ranking.retrievers import Candidates
from pipeline.ranking.scorers import ModelScorer
from pipeline.service.record import LOG
from rerankers import models
from rerankers.base import Pairs
from rerankers.errors import RerankerError
from rerankers.features.temporal import milliseconds, newest_doc_id
from rerankers.reranker import TrainedReranker

FOLDER = Path(__file__).parent

MOST_HITS = 1000
USUAL_HITS = 100
LONGEST_QUERY = 1000
"""Characters of a query."""
MOST_EXPLAINED = 50
"""Posts of a request for explanations."""
MOST_TOPICS = 500
"""Topics that the page suggests."""
KEPT = 8
"""Latest searches whose results are kept for explanations."""
MOST_WAITING = 16
"""Requests that wait for the thread of searches; a further one is refused."""

FREE = "a query"
"""Key of a query that is no topic of the collection: no topic's, as those are one word."""

HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

NO_COLLECTION = (
    "found no collection to search; start the service with --collection NAME or --index DIR"
)

_FUSIONS = ("fusion", "linear_fusion")

Result = TypeVar("Result")


class RequestError(Exception):
    """A request that cannot be answered, with the HTTP status."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class Scorer(Protocol):
    """A served model."""

    @property
    def checkpoint(self) -> TrainedReranker:
        """The model."""

    def score(self, pairs: Pairs) -> npt.NDArray[np.float32]:
        """Scores [P]."""


Served = Callable[[], Mapping[str, Scorer]]
"""Name -> served model, at the time of the call."""


@dataclass(frozen=True)
class Question:
    """What a search is asked.

    Attributes:
        topic: query and time limit; :data:`FREE` is the key of one that is no topic.
        method: first stage; empty for a fusion and for an index that have their own.
        model: name of the model.
        hits: posts of each ranker.
    """

    topic: Topic
    method: str
    model: str
    hits: int


class PageModel(NamedTuple):
    """A model that the page offers.

    Attributes:
        kind: name in the registry.
        directory: of the checkpoint.
        scorer: of a served model; None for a fusion.
    """

    name: str
    kind: str
    directory: Path
    scorer: Scorer | None


@dataclass(frozen=True)
class Answer:
    """The result of a search.

    Attributes:
        first: doc_id -> score of the first stage.
        neural: doc_id -> score of the model.
        first_stage: name of the first stage.
        milliseconds: of each part of the search.
    """

    question: Question
    model: PageModel
    candidates: Candidates
    first: Mapping[str, float]
    neural: Mapping[str, float]
    reranker: ModelScorer
    first_stage: str
    milliseconds: Mapping[str, float]

    @cached_property
    def contributions(self) -> contributions.FusionExplanation:
        """Contributions to the scores of all posts, by a fusion: one scale for all of them."""
        return contributions.explain(self.ranking([*self.first]), self.reranker.checkpoint)

    def ranking(self, doc_ids: Sequence[str]) -> RerankedTopic:
        """The ranking, with posts to explain."""
        changes = rank_changes({self.first_stage: self.first, self.model.name: self.neural})
        topic, chosen = self.question.topic, {"posts": doc_ids}
        return RerankedTopic("", topic, self.candidates, changes, {}, chosen)


class _Watch:
    """Milliseconds between calls of :meth:`stop`, by name."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.start()

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self, name: str) -> None:
        self.laps[name] = round((time.perf_counter() - self._started) * 1000, 1)
        self.start()


class _Opened:
    """A collection whose index is opened once: a service must not map its files for each search."""

    def __init__(self, collection: Collection, index: SearchIndex, **changes: object) -> None:
        self._collection, self._index = collection, index
        vars(self).update(changes)

    def open_index(self) -> SearchIndex:
        return self._index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collection, name)


class SearchPage:
    """Searches of one collection, for the page.

    Args:
        collection: to be searched; its index is opened, or built, at once.
        served: the service's models.

    Raises:
        UsageError: the collection is not searched.
        CollectionError: the index cannot be opened.
    """

    def __init__(self, collection: Collection, served: Served) -> None:
        self._given, self._served = collection, served
        self._use(collection.open_index())
        self._worker = ThreadPoolExecutor(1, "search")
        self._waiting = 0

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do ``work`` in the thread of searches."""
        if self._waiting >= MOST_WAITING:
            raise RequestError(429, f"found {MOST_WAITING} searches waiting; try again in a moment")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, _detached, work)
        finally:
            self._waiting -= 1

    def _use(self, index: SearchIndex) -> None:
        """Search an index from now on; nothing of another one is kept."""
        self.index = index
        self.collection = cast(Collection, _Opened(self._given, index))
        # Official runs are of the topics alone.
        self._without_runs = cast(Collection, _Opened(self._given, index, runs={}))
        self._answers: dict[Question, Answer] = {}
        self._fusions: dict[Path, Fusion] = {}
        self.__dict__.pop("clocks", None)

    def reload(self) -> None:
        """Open the index again, between two searches; the old one stays if that fails."""

        def work() -> None:
            try:
                index = self._given.open_index()
            except (CollectionError, DataError, UsageError, OSError) as error:
                LOG.error("%s: the index stays as it was: %s", self._given.name, error)
                return
            old = self.index
            self._use(index)
            old.close()
            LOG.info("%s: opened again, %d posts", self._given.name, index.size)

        self._worker.submit(_detached, work).result()

    def close(self) -> None:
        """End the thread of searches, after the one that runs."""
        self._worker.shutdown(cancel_futures=True)

    @cached_property
    def clocks(self) -> bool:
        """Whether the posts' ids have their time in them, as those of tweets."""
        ids = self.index.id_range
        return ids is not None and None not in map(milliseconds, ids)

    @cached_property
    def topics(self) -> dict[str, Topic]:
        """query_id -> topic; none of an index alone, which stands in for its file of topics."""
        if not self.collection.has_topics:
            return {}
        return {topic.query_id: topic for topic in self.collection.topics}

    @property
    def models(self) -> dict[str, PageModel]:
        """Name -> model: the served ones, and a fusion if the collection has one."""
        found = {
            name: PageModel(name, scorer.checkpoint.name, scorer.checkpoint.directory, scorer)
            for name, scorer in self._served().items()
        }
        if not self.collection.methods:
            return found  # A fusion needs the scores of several methods.
        best = (
            best_trained(self.collection.key, models.reads_rankers)
            if self.collection.file
            else None
        )
        name = best[0] if best else DEFAULT_FUSION
        with contextlib.suppress(DataError):  # There is none.
            found[name] = PageModel(name, name, directory_for(name, self.collection), None)
        return found

    def describe(self) -> dict[str, Any]:
        """The collection, and what can be chosen."""
        judged = self.collection.qrels or {}
        topics, methods = list(self.topics.values()), list(self.collection.methods)
        times = [time_of(doc_id) for doc_id in self.index.id_range or ()] if self.clocks else None
        return {
            "name": self.collection.name,
            "posts": self.index.size,
            "methods": methods,
            "method": DEFAULT_METHOD if methods else "",
            "models": [self._describe(model) for model in self.models.values()],
            "hits": USUAL_HITS,
            "most_hits": MOST_HITS,
            "clocks": self.clocks,
            "times": times,
            "grades": {str(grade): grade_text(grade) for grade in range(3)},
            "topics": [
                {
                    "query_id": topic.query_id,
                    "text": topic.text,
                    "time": self._limit(topic.max_doc_id),
                    "judged": topic.query_id in judged,
                }
                for topic in topics[:MOST_TOPICS]
            ],
            "steps": list(matches.STEPS),
        }

    def _describe(self, model: PageModel) -> dict[str, Any]:
        """Name, λ (None for a fusion) with its origin, and kind of explanation of a model.

        ``seen``: it was trained on the collection's judgments.
        """
        if model.scorer:
            metrics = model.scorer.checkpoint.metrics
            tuned = tuned_weight(model.directory, "minmax", self.collection.key)
            weight, origin = tuned or (UNTUNED_WEIGHT, "not tuned")
            explains = "matches" if model.kind == DEFAULT_RERANKER else None
        else:
            metrics = json.loads((model.directory / "metrics.json").read_text(encoding="utf-8"))
            weight, origin, explains = None, "", "contributions"
        return {
            "name": model.name,
            "weight": weight,
            "origin": origin.partition("; ")[0],  # Without the path that follows.
            "explains": explains,
            "seen": self.collection.name in metrics.get("trained_on", []),
        }

    def question(self, given: Mapping[str, str]) -> Question:
        """What the parameters of a request ask.

        Raises:
            RequestError: they cannot be used; the message names each such parameter.
        """
        problems: list[str] = []
        topic = self._topic(given, problems)
        methods, models = self.collection.methods, self.models
        method = given.get("method", DEFAULT_METHOD) if methods else ""
        if methods and method not in methods:
            similar = did_you_mean(method, methods)
            problems.append(
                f"method: found {method!r}, expected one of {', '.join(methods)}{similar}"
            )
        model = given.get("model", next(iter(models), ""))
        if model not in models:
            similar = did_you_mean(model, list(models))
            problems.append(f"model: found {model!r}, expected one of {', '.join(models)}{similar}")
        text = given.get("hits", str(USUAL_HITS))
        hits = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
        if not 0 < hits <= MOST_HITS:
            problems.append(f"hits: found {text!r}, expected a whole number from 1 to {MOST_HITS}")
        if problems or topic is None:
            raise RequestError(422, "; ".join(problems))
        return Question(topic, method if models[model].scorer else "", model, hits)

    def _topic(self, given: Mapping[str, str], problems: list[str]) -> Topic | None:
        """The query with its time limit; None if there is none."""
        text, query_id = given.get("q", ""), given.get("query_id", "")
        topic = Topic(FREE, text)
        if query_id:
            known = self.topics.get(query_id)
            if known is None:
                problems.append(
                    f"query_id: found {query_id!r}, expected a topic of {self.collection.name}: "
                    f"{listed(list(self.topics), 8) or 'it has none'}"
                )
            elif text and text != known.text:
                problems.append(
                    f"query_id: found {query_id!r}, the topic {known.text!r}, with another query; "
                    "leave query_id or q out"
                )
            else:
                topic = known
        if not topic.text.strip() and not problems:
            problems.append("q: found nothing, expected a query")
        if len(topic.text) > LONGEST_QUERY:
            problems.append(
                f"q: found {len(topic.text)} characters, expected at most {LONGEST_QUERY}"
            )
        if limit := given.get("time"):
            topic = topic._replace(time=limit, max_doc_id=self._newest(limit, problems))
        return topic

    def _newest(self, limit: str, problems: list[str]) -> str | None:
        """The newest id up to a time in UTC; None with a problem."""
        if not self.clocks:
            problems.append(
                f"time: found {limit!r}, but the ids of {self.collection.name} have no time in "
                "them; leave it out"
            )
            return None
        try:
            moment = datetime.datetime.fromisoformat(limit)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=datetime.UTC)
            return newest_doc_id(math.floor(moment.timestamp() * 1000))
        except (ValueError, OverflowError):
            problems.append(
                f"time: found {limit!r}, expected a time since 2010 in UTC, such as "
                "2012-02-12T16:20:05"
            )
            return None

    def answer(self, question: Question) -> Answer:
        """Search, unless it is one of the latest searches."""
        found = self._answers.pop(question, None) or self._search(question)
        self._answers[question] = found
        for oldest in [*self._answers][:-KEPT]:
            del self._answers[oldest]
        return found

    def _search(self, question: Question) -> Answer:
        model, topic = self.models[question.model], question.topic
        watch = _Watch()
        if model.scorer is None:
            fusion = self._fusion(model)
            if topic.query_id == FREE:
                retriever = replace(fusion.retriever, collection=self._without_runs)
                fusion = replace(fusion, retriever=retriever)
            watch.start()  # Its first use loads it.
            candidates = fusion.search([topic], question.hits)
            watch.stop("search")
            # The rest are not scored.
            run = fusion.score(replace(candidates, rest={})) if len(candidates) else {}
            reranker, first_stage = fusion.scorer, fusion.retriever.name
        else:
            method = METHODS[question.method]() if question.method else EngineQuery()
            found = self.index.search([topic], method, hits=question.hits, threads=1)
            watch.stop("search")
            posts = self.index.posts.get_many(found[topic.query_id])
            candidates = Candidates([topic], found, posts)
            watch.stop("texts")
            pairs = candidates.pairs()
            run = candidates.run_of(model.scorer.score(pairs)) if len(candidates) else {}
            reranker, first_stage = ModelScorer(model.scorer.checkpoint), method.name
        watch.stop("scoring")
        first, neural = (scores.get(topic.query_id, {}) for scores in (candidates.run, run))
        return Answer(question, model, candidates, first, neural, reranker, first_stage, watch.laps)

    def _fusion(self, model: PageModel) -> Fusion:
        """The fusion, loaded at its first use."""
        if model.directory not in self._fusions:
            found = ranker(self.collection, model.kind, checkpoint=model.directory, device="cpu")
            self._fusions = {model.directory: cast(Fusion, found)}
        return self._fusions[model.directory]

    def results(self, question: Question) -> dict[str, Any]:
        """A search's results as JSON, best first by the first stage."""
        kept, answer, topic = question in self._answers, self.answer(question), question.topic
        neural = {topic.query_id: answer.neural}
        units = normalized_pair(topic.query_id, answer.first, neural, "minmax")
        grades = (self.collection.qrels or {}).get(topic.query_id, {})
        posts = answer.candidates.posts
        return {
            "query": {
                "q": topic.text,
                "query_id": None if topic.query_id == FREE else topic.query_id,
                "time": self._limit(topic.max_doc_id),
                "judged": bool(grades),
            },
            "first_stage": answer.first_stage,
            "model": self._describe(answer.model),
            "kept": kept,
            "milliseconds": answer.milliseconds,
            "posts": [
                {
                    "doc_id": doc_id,
                    "text": posts[doc_id].text,
                    "url": posts[doc_id].url,
                    "time": time_of(doc_id) if self.clocks else None,
                    "first": score,
                    "first_unit": units[0][doc_id],
                    "neural": answer.neural[doc_id],
                    "neural_unit": units[1][doc_id],
                    "grade": grades.get(doc_id),
                }
                for doc_id, score in answer.first.items()
            ],
        }

    def explain(self, question: Question, doc_ids: Sequence[str]) -> dict[str, Any]:
        """Why posts of a search rank where they do, as JSON.

        Raises:
            RequestError: there are too many posts, or some that the search did not find.
        """
        if not 0 < len(doc_ids) <= MOST_EXPLAINED:
            expected = f"expected 1 to {MOST_EXPLAINED}"
            raise RequestError(422, f"doc_id: found {len(doc_ids)} posts, {expected}")
        answer = self.answer(question)
        if unknown := [doc_id for doc_id in doc_ids if doc_id not in answer.first]:
            raise RequestError(
                404,
                f"doc_id: found {listed(unknown)}, expected posts of this search's "
                f"{len(answer.first)}",
            )
        if answer.model.kind in _FUSIONS:
            return _contributions(answer.contributions, doc_ids)
        if answer.model.kind != DEFAULT_RERANKER:
            known = ", ".join([DEFAULT_RERANKER, *_FUSIONS])
            raise RequestError(422, f"model: found {answer.model.name}, expected one of {known}")
        ranking = answer.ranking([*dict.fromkeys(doc_ids)])
        return _matches(
            matches.explain(ranking, answer.reranker.checkpoint, answer.first_stage, "")
        )

    def _limit(self, max_doc_id: str | None) -> str | None:
        """The time of the newest post that a topic finds; None without one."""
        return time_of(max_doc_id) if self.clocks and max_doc_id else None


def time_of(doc_id: str) -> str | None:
    """The time in an id, in UTC; None if there is none."""
    found = milliseconds(doc_id)
    if found is None:
        return None
    moment = datetime.datetime.fromtimestamp(found // 1000, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{found % 1000:03}Z"


def _matches(explanation: matches.MatchExplanation) -> dict[str, Any]:
    """Texts are lists of [characters, shade]."""
    return {
        "kind": "matches",
        "measure": explanation.measure,
        "bounds": explanation.bounds,
        "groups": explanation.groups,
        "columns": [column.heading for column in explanation.columns],
        "posts": {
            doc_id: {
                "text": post.text,
                "url": post.url,
                "rows": [
                    {**row._asdict(), "cells": [cell._asdict() for cell in row.cells]}
                    for row in post.rows
                ],
                "further": [shading._asdict() for shading in post.further],
            }
            for doc_id, post in explanation.posts.items()
        },
    }


def _contributions(
    explanation: contributions.FusionExplanation, doc_ids: Sequence[str]
) -> dict[str, Any]:
    """Values that are not known are null."""

    def listed_features(parts: Sequence[contributions.Contribution]) -> list[dict[str, Any]]:
        return [
            {**part._asdict(), "value": None if math.isnan(part.value) else part.value}
            for part in parts
        ]

    return {
        "kind": "contributions",
        "meaning": explanation.meaning,
        "base": explanation.base,
        "extent": explanation.extent,
        "posts": {
            doc_id: {
                "families": [
                    {"family": family, "added": added}
                    for family, added in explanation.posts[doc_id].families.items()
                ],
                "most": listed_features(explanation.posts[doc_id].most),
                "least": listed_features(explanation.posts[doc_id].least),
            }
            for doc_id in doc_ids
        },
    }


def _detached(work: Callable[[], Result]) -> Result:
    """The result of ``work``, after which this thread may end at any time."""
    try:
        return work()
    finally:
        detach_thread()


def routes(page: SearchPage | None) -> list[Route]:
    """The page and its JSON; without a collection a page that says how to name one."""

    async def collection(request: Request) -> Any:
        return await _open(page).run(_open(page).describe)

    async def search(request: Request) -> Any:
        found, given = _open(page), request.query_params
        return await found.run(lambda: found.results(found.question(given)))

    async def explain(request: Request) -> Any:
        found, given = _open(page), request.query_params
        doc_ids = given.getlist("doc_id")
        return await found.run(lambda: found.explain(found.question(given), doc_ids))

    files = {
        "/": _file("index.html" if page else "start.html", "text/html"),
        "/page.css": _file("page.css", "text/css"),
        "/page.js": _file("page.js", "text/javascript"),
    }
    answers = {"collection": collection, "search": search, "explain": explain}
    return [
        *(Route(path, content) for path, content in files.items()),
        *(Route(f"/api/{name}", _json(answer)) for name, answer in answers.items()),
    ]


def _open(page: SearchPage | None) -> SearchPage:
    if page is None:
        raise RequestError(404, NO_COLLECTION)
    return page


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of a file."""
    content = (FOLDER / name).read_bytes()

    async def endpoint(request: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return endpoint


def _json(
    answer: Callable[[Request], Awaitable[dict[str, Any]]],
) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of an answer, with errors as ``{"error": …}``."""

    async def endpoint(request: Request) -> Response:
        try:
            return JSONResponse(await answer(request), headers=HEADERS)
        except RequestError as error:
            status, problem = error.status, str(error)
        except (UsageError, DataError, CollectionError, RerankerError) as error:
            status, problem = 500, str(error)
        headers = HEADERS | ({"Retry-After": "1"} if status == 429 else {})
        return JSONResponse({"error": problem}, status, headers)

    return endpoint
