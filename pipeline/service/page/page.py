"""The page of the service: searches in a thread of their own, one at a time, grades, and its JSON.

The page orders posts itself, from the normalised scores of both stages: its λ needs no request.
"""

import asyncio
import datetime
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cachetools import LRUCache
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import atomic_file
from tweetrerank.indexes.jvm import detached
from tweetrerank.indexes.methods import METHODS, EngineQuery
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import (
    Topic,
    normalize,
    query_id,
    read_topics,
)
from tweetrerank.pipeline.collections.trec import read_qrels
from tweetrerank.pipeline.defaults import DEFAULT_METHOD
from tweetrerank.pipeline.explanation.topic import (
    SHARED_STYLE,
    WORDS,
    ExplainedTopic,
    grade_text,
)
from tweetrerank.pipeline.ranking.build import ranker, tuned
from tweetrerank.pipeline.ranking.fusion_ranker import Fusion
from tweetrerank.pipeline.ranking.interpolation import normalized_pair
from tweetrerank.pipeline.ranking.ranker import Ranker, Ranking
from tweetrerank.pipeline.ranking.retrievers import IndexRetriever
from tweetrerank.pipeline.service.requests import LOG, ErrorFormat, RequestError
from tweetrerank.pipeline.service.served_models import ServedModel
from tweetrerank.pipeline.text import did_you_mean, listed
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers.explanation import as_dict
from tweetrerank.rerankers.features.temporal import milliseconds, newest_doc_id
from tweetrerank.rerankers.mixed import Mixed
from tweetrerank.rerankers.reranker_error import RerankerError

MOST_EXPLAINED = 50  # Posts of a request for explanations
KEPT = 8  # Latest searches whose results are kept for explanations
MOST_WAITING = (
    16  # Requests that wait for the thread of searches; a further one is refused
)

Result = TypeVar("Result")

FOLDER = Path(__file__).parent

MOST_HITS = 1000
USUAL_HITS = 100
LONGEST_QUERY = 1000  # Characters of a query
GRADES = 3  # Grades that can be given: 0, 1 and 2
MOST_TOPICS = 500  # Topics that the page suggests

HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

NO_COLLECTION = (
    "found no collection to search; start with --collection NAME or --index DIR"
)


class Grades:
    """A file of judgments given by hand, in TREC's form, and one of their topics beside it, as
    ``grades.topics.jsonl`` of ``grades.txt``; raises DataError for a malformed file. Both are read
    before each change, so that changes by others stay, and written as a whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.topics_path = path.with_name(f"{path.name.split('.')[0]}.topics.jsonl")
        self.reload()

    def reload(self) -> dict[str, Topic]:
        """Read both files as they are now; query_id -> topic."""
        texts = [
            path.exists() and path.stat().st_size
            for path in (self.path, self.topics_path)
        ]
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
                known = {
                    name: value
                    for name, value in each._asdict().items()
                    if value is not None
                }
                stream.write(f"{json.dumps(known, ensure_ascii=False)}\n")
        with atomic_file(self.path) as stream:
            for name, grades in self.qrels.items():
                stream.writelines(
                    f"{name} 0 {d} {value}\n" for d, value in grades.items()
                )


class SearchRequest(NamedTuple):
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
        return self.ranking.stages[self.ranker.name].get(
            self.request.topic.query_id, {}
        )

    @cached_property
    def first(self) -> Mapping[str, float]:
        """doc_id -> score of the first stage, of the posts that the model has scored."""
        scores = self.ranking.candidates.run.get(self.request.topic.query_id, {})
        return {
            doc_id: score for doc_id, score in scores.items() if doc_id in self.model
        }

    @cached_property
    def _of_all_posts(self) -> ExplainedTopic:
        return self.ranker.explain(self.ranking, [*self.first])

    def explain(self, doc_ids: Sequence[str]) -> ExplainedTopic:
        """The explanation of these posts, or of all, where it has one scale for them; raises
        UsageError."""
        if getattr(self.ranker.model, "explains", "") == "contributions":
            return self._of_all_posts
        return self.ranker.explain(self.ranking, [*dict.fromkeys(doc_ids)])


class SearchPage:
    """Searches of a collection, whose index is opened, or built, at once; raises UsageError for a
    collection that is not searched, DataError for a damaged index."""

    def __init__(
        self,
        collection: Collection,
        served: Callable[
            [], Mapping[str, ServedModel]
        ],  # By name, at the time of the call
        grades: Grades | None = None,  # Given on the page; without it none are taken
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
            raise RequestError("overload", problem)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, detached, work
            )
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
            except (DataError, UsageError, OSError) as error:
                LOG.error(
                    "%s: the index stays as it was: %s", self.collection.name, error
                )
                return
            old.close()
            LOG.info(
                "%s: opened again, %d posts", self.collection.name, self.index.size
            )

        self._thread.submit(detached, work).result()

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
            name = (
                f"{best.name} of {self.collection.name}"
                if best.name in served
                else best.name
            )
            offered[name] = best
        known = [each.model.directory for each in offered.values()]
        for name, model in served.items():
            if model.source.folder not in known:
                mixed = tuned(model.checkpoint, self.collection)
                offered[name] = Ranker(None, mixed, self.collection)
        return offered

    def search(self, request: SearchRequest) -> SearchResult:
        """The result of a search, unless it is one of the latest ones."""
        if request not in self.kept:
            if not isinstance(chosen := self.rankers[request.model], Fusion):
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
            raise DataError(
                f"{self.grades.path}: cannot be written: {error.strerror}"
            ) from None


# --- Its routes, and what they give ---------------------------------------------------------------


def routes(page: SearchPage | None) -> list[Route]:
    """The page and its JSON; without a collection a page that says how to name one."""

    def route(
        name: str,
        content: Callable[[SearchPage, QueryParams], Any],
        method: str = "GET",
    ) -> Route:
        async def endpoint(request: Request) -> Response:
            request.state.format = ErrorFormat()
            # Pages of other sites cannot send this type without asking before.
            if (
                method == "POST"
                and request.headers.get("content-type") != "application/json"
            ):
                raise RequestError("value", "Content-Type: expected application/json")
            if page is None:
                raise RequestError("path", NO_COLLECTION)
            try:
                found = await page.run(lambda: content(page, request.query_params))
                return JSONResponse(found, headers=HEADERS)
            except (UsageError, DataError, RerankerError) as error:
                raise RequestError("internal", str(error)) from None

        return Route(f"/api/{name}", endpoint, methods=[method])

    return [
        _files("/", "text/html", FOLDER / ("index.html" if page else "start.html")),
        _files("/page.css", "text/css", SHARED_STYLE, FOLDER / "page.css"),
        _files("/page.js", "text/javascript", FOLDER / "page.js"),
        route("collection", lambda page, _: describe(page)),
        route("search", lambda page, given: results(page, search_request(page, given))),
        route("explain", reasons),
        route("grade", graded, "POST"),
    ]


def _files(path: str, kind: str, *files: Path) -> Route:
    content = b"".join(file.read_bytes() for file in files)
    return Route(
        path, Response(content, media_type=kind, headers=HEADERS), methods=["GET"]
    )


def search_request(page: SearchPage, given: Mapping[str, str]) -> SearchRequest:
    """The search of a request's parameters; raises RequestError, which names each wrong one."""
    problems: list[str] = []
    topic = _topic(page, given, problems)
    methods, rankers = page.collection.methods, page.rankers

    def choice(name: str, default: str, known: Sequence[str]) -> str:
        if (value := given.get(name, default)) not in known:
            similar = did_you_mean(value, known)
            problems.append(
                f"{name}: found {value!r}, expected one of {', '.join(known)}{similar}"
            )
        return value

    method = choice("method", DEFAULT_METHOD, methods) if methods else ""
    model = choice("model", next(iter(rankers), ""), list(rankers))
    text = given.get("hits", str(USUAL_HITS))
    hits = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    if not 0 < hits <= MOST_HITS:
        problems.append(
            f"hits: found {text!r}, expected a whole number from 1 to {MOST_HITS}"
        )
    if problems:
        raise RequestError("value", "; ".join(problems))
    has_method = not isinstance(rankers[model], Fusion)
    return SearchRequest(topic, method if has_method else "", model, hits)


def _topic(page: SearchPage, given: Mapping[str, str], problems: list[str]) -> Topic:
    text, name, of = given.get("q", ""), given.get("query_id", ""), page.collection.name
    known = page.topics.get(name)
    if name and known is None:
        topics = listed(list(page.topics), 8) or "it has none"
        problems.append(f"query_id: found {name!r}, expected a topic of {of}: {topics}")
    elif known and text not in ("", known.text):
        problems.append(
            f"query_id: found {name!r}, the topic {known.text!r}, with another query; leave "
            "query_id or q out"
        )
    # The id of a text that is no topic is that of click logs.
    topic = known if known and not problems else Topic(query_id(normalize(text)), text)
    if not topic.text.strip() and not problems:
        problems.append("q: found nothing, expected a query")
    if len(topic.text) > LONGEST_QUERY:
        problems.append(
            f"q: found {len(topic.text)} characters, expected at most {LONGEST_QUERY}"
        )
    if not (limit := given.get("time")):
        return topic
    found, newest = f"time: found {limit!r}", None
    if not page.has_times:
        problems.append(
            f"{found}, but the ids of {of} have no time in them; leave it out"
        )
        return topic
    try:
        moment = datetime.datetime.fromisoformat(limit)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
        newest = newest_doc_id(math.floor(moment.timestamp() * 1000))
    except (ValueError, OverflowError):
        problems.append(
            f"{found}, expected a time since 2010 in UTC, such as 2012-02-12T16:20:05"
        )
    return topic._replace(time=limit, max_doc_id=newest)


def _time_of(page: SearchPage, doc_id: str | None) -> str | None:
    """The time in an id, in UTC; None without one."""
    since_1970 = milliseconds(doc_id) if doc_id and page.has_times else None
    if since_1970 is None:
        return None
    moment = datetime.datetime.fromtimestamp(since_1970 // 1000, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{since_1970 % 1000:03}Z"


def describe(page: SearchPage) -> dict[str, Any]:
    """The collection, and its methods, models and topics."""
    collection, has_times = page.collection, page.has_times
    judged, methods = collection.qrels or {}, list(collection.methods)
    times = [_time_of(page, doc_id) for doc_id in page.index.id_range or ()]
    return {
        "name": collection.name,
        "posts": page.index.size,
        "methods": methods,
        "method": DEFAULT_METHOD if methods else "",
        "models": [
            _described(page, name, ranker) for name, ranker in page.rankers.items()
        ],
        "hits": USUAL_HITS,
        "most_hits": MOST_HITS,
        "clocks": has_times,
        "times": times if has_times else None,
        "words": WORDS,
        "grades": {str(grade): grade_text(grade) for grade in range(GRADES)},
        "grades_file": str(page.grades.path) if page.grades else None,
        "topics_file": str(page.grades.topics_path) if page.grades else None,
        "topics": [
            {
                "query_id": topic.query_id,
                "text": topic.text,
                "time": _time_of(page, topic.max_doc_id),
                "judged": topic.query_id in judged,
            }
            for topic in list(page.topics.values())[:MOST_TOPICS]
        ],
    }


def _described(page: SearchPage, name: str, ranker: Ranker) -> dict[str, Any]:
    """A ranker; ``seen``: it was trained on the collection's judgments."""
    model = ranker.model
    assert model
    mixed = model if isinstance(model, Mixed) else None
    return {
        "name": name,
        "kind": model.name,
        "weight": mixed.weight if mixed else None,
        "origin": mixed.origin.partition("; ")[0] if mixed else "",  # Without its path.
        "explains": model.explains or None,
        "has_method": not isinstance(ranker, Fusion),
        "seen": page.collection.name in model.metrics.get("trained_on", ()),
    }


def results(page: SearchPage, request: SearchRequest) -> dict[str, Any]:
    """A search's results, best first."""
    is_kept, result, topic = request in page.kept, page.search(request), request.topic
    first, neural = result.first, result.model
    units = normalized_pair(topic.query_id, first, {topic.query_id: neural})
    grades, seconds = page.grades_of(topic), result.ranking.seconds
    (record,) = result.ranking.to_dict()["topics"]
    return {
        "query": {
            "q": topic.text,
            "query_id": topic.query_id if topic.query_id in page.topics else None,
            "time": _time_of(page, topic.max_doc_id),
            "judged": bool(grades),
        },
        "first_stage": result.ranker.first_stage_name,
        "model": _described(page, request.model, result.ranker),
        "kept": is_kept,
        "milliseconds": {
            stage: round(value * 1000, 1) for stage, value in seconds.items()
        },
        "posts": [
            {
                **{name: post[name] for name in ("doc_id", "text", "url")},
                "time": _time_of(page, doc_id),
                "first": first[doc_id],
                "first_unit": units[0][doc_id],
                "neural": neural[doc_id],
                "neural_unit": units[1][doc_id],
                "grade": grades.get(doc_id),
            }
            for post in record["posts"]
            if (doc_id := post["doc_id"]) in first
        ],
    }


def graded(page: SearchPage, given: Mapping[str, str]) -> dict[str, Any]:
    """Write the grade of a request's parameters; an empty one takes it back."""
    problems: list[str] = []
    topic, grade = _topic(page, given, problems), given.get("grade", "")
    if grade and grade not in map(str, range(GRADES)):
        problems.append(f"grade: found {grade!r}, expected 0, 1, 2 or nothing")
    if problems:
        raise RequestError("value", "; ".join(problems))
    number = int(grade) if grade else None
    page.grade(topic, given.get("doc_id", ""), number)
    return {"grade": number}


def reasons(page: SearchPage, given: QueryParams) -> dict[str, Any]:
    """Reasons for ranks in a search; raises RequestError for too many or unknown posts."""
    doc_ids, result = given.getlist("doc_id"), page.search(search_request(page, given))
    if not 0 < len(doc_ids) <= MOST_EXPLAINED:
        problem = f"doc_id: found {len(doc_ids)} posts, expected 1 to {MOST_EXPLAINED}"
        raise RequestError("value", problem)
    if unknown := [doc_id for doc_id in doc_ids if doc_id not in result.first]:
        problem = f"doc_id: found {listed(unknown)}, expected posts of this search's"
        raise RequestError("path", f"{problem} {len(result.first)}")
    try:
        topic = result.explain(doc_ids)
    except UsageError as error:
        raise RequestError("value", f"model: {error}") from None
    posts = {doc_id: as_dict(topic.reasons[doc_id]) for doc_id in doc_ids}
    return {**topic.explanation.to_dict(), "posts": posts}
