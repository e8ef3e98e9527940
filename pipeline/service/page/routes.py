"""The page of the service, and its JSON: searches and explanations.

The page orders posts itself, from the normalised scores of both stages: its λ needs no request.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from indexes.errors import CollectionError
from pipeline.collections.topics import Topic
from pipeline.defaults import DEFAULT_METHOD
from pipeline.errors import DataError, UsageError
from pipeline.explanation.topic import SHARED_STYLE, WORDS, grade_text
from pipeline.ranking.interpolation import normalized_pair
from pipeline.ranking.ranker import Mixture
from pipeline.service.errors import ErrorFormat, RequestError
from pipeline.service.page.grades import own_id
from pipeline.service.page.searching import PageRanker, SearchPage, SearchRequest
from pipeline.text import did_you_mean, listed
from rerankers.errors import RerankerError
from rerankers.explanation import as_dict
from rerankers.features.temporal import milliseconds, newest_doc_id
from rerankers.reranker import Mixed

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
    "found no collection to search; start the service with --collection NAME or --index DIR"
)

ERRORS = ErrorFormat()


def routes(page: SearchPage | None) -> list[Route]:
    """The page and its JSON; without a collection a page that says how to name one."""

    def route(
        name: str, content: Callable[[SearchPage, QueryParams], Any], method: str = "GET"
    ) -> Route:
        """A path below ``/api``, with errors as ``{"error": …}``."""

        async def endpoint(request: Request) -> Response:
            request.state.format = ERRORS
            # Pages of other sites cannot send this type without asking before.
            if method == "POST" and request.headers.get("content-type") != "application/json":
                raise RequestError("value", "Content-Type: expected application/json")
            if page is None:
                raise RequestError("path", NO_COLLECTION)
            try:
                found = await page.run(lambda: content(page, request.query_params))
                return JSONResponse(found, headers=HEADERS)
            except (UsageError, DataError, CollectionError, RerankerError) as error:
                raise RequestError("internal", str(error)) from None

        return Route(f"/api/{name}", endpoint, methods=[method])

    return [
        file_route("/", "text/html", FOLDER / ("index.html" if page else "start.html")),
        file_route("/page.css", "text/css", SHARED_STYLE, FOLDER / "page.css"),
        file_route("/page.js", "text/javascript", FOLDER / "page.js"),
        route("collection", lambda page, _: describe(page)),
        route("search", lambda page, given: results(page, search_request(page, given))),
        route("explain", reasons),
        route("grade", graded, "POST"),
    ]


def file_route(path: str, kind: str, *files: Path) -> Route:
    """Files of a page, one behind the other, as they are."""
    content = b"".join(file.read_bytes() for file in files)

    async def endpoint(request: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return Route(path, endpoint)


# --- Requests -------------------------------------------------------------------------------------


def search_request(page: SearchPage, given: Mapping[str, str]) -> SearchRequest:
    """The search of a request's parameters; raises RequestError, which names each wrong one."""
    problems: list[str] = []
    topic = _topic(page, given, problems)
    methods, rankers = page.collection.methods, page.rankers

    def choice(name: str, default: str, known: Sequence[str]) -> str:
        value = given.get(name, default)
        if value not in known:
            similar = did_you_mean(value, known)
            problems.append(f"{name}: found {value!r}, expected one of {', '.join(known)}{similar}")
        return value

    method = choice("method", DEFAULT_METHOD, methods) if methods else ""
    model = choice("model", next(iter(rankers), ""), list(rankers))
    text = given.get("hits", str(USUAL_HITS))
    hits = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    if not 0 < hits <= MOST_HITS:
        problems.append(f"hits: found {text!r}, expected a whole number from 1 to {MOST_HITS}")
    if problems:
        raise RequestError("value", "; ".join(problems))
    has_method = isinstance(rankers[model], Mixture)
    return SearchRequest(topic, method if has_method else "", model, hits)


def _topic(page: SearchPage, given: Mapping[str, str], problems: list[str]) -> Topic:
    text, query_id = given.get("q", ""), given.get("query_id", "")
    topic = Topic(own_id(text), text)
    if query_id:
        known = page.topics.get(query_id)
        if known is None:
            problems.append(
                f"query_id: found {query_id!r}, expected a topic of {page.collection.name}: "
                f"{listed(list(page.topics), 8) or 'it has none'}"
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
        problems.append(f"q: found {len(topic.text)} characters, expected at most {LONGEST_QUERY}")
    if limit := given.get("time"):
        topic = topic._replace(time=limit, max_doc_id=_newest(page, limit, problems))
    return topic


def _newest(page: SearchPage, limit: str, problems: list[str]) -> str | None:
    """The newest id up to a time in UTC; None with a problem."""
    if not page.has_times:
        problems.append(
            f"time: found {limit!r}, but the ids of {page.collection.name} have no time in them; "
            "leave it out"
        )
        return None
    try:
        moment = datetime.datetime.fromisoformat(limit)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return newest_doc_id(math.floor(moment.timestamp() * 1000))
    except (ValueError, OverflowError):
        problems.append(
            f"time: found {limit!r}, expected a time since 2010 in UTC, such as 2012-02-12T16:20:05"
        )
        return None


def time_of(doc_id: str | None) -> str | None:
    """The time in an id, in UTC; None without one."""
    since_1970 = milliseconds(doc_id) if doc_id else None
    if since_1970 is None:
        return None
    moment = datetime.datetime.fromtimestamp(since_1970 // 1000, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{since_1970 % 1000:03}Z"


# --- Responses ------------------------------------------------------------------------------------


def describe(page: SearchPage) -> dict[str, Any]:
    """The collection, and its methods, models and topics."""
    collection, has_times = page.collection, page.has_times
    judged, methods = collection.qrels or {}, list(collection.methods)
    topics = list(page.topics.values())[:MOST_TOPICS]
    return {
        "name": collection.name,
        "posts": page.index.size,
        "methods": methods,
        "method": DEFAULT_METHOD if methods else "",
        "models": [_described(page, name, ranker) for name, ranker in page.rankers.items()],
        "hits": USUAL_HITS,
        "most_hits": MOST_HITS,
        "clocks": has_times,
        "times": [time_of(doc_id) for doc_id in page.index.id_range or ()] if has_times else None,
        "words": WORDS,
        "grades": {str(grade): grade_text(grade) for grade in range(GRADES)},
        "grades_file": str(page.grades.path) if page.grades else None,
        "topics_file": str(page.grades.topics_path) if page.grades else None,
        "topics": [
            {
                "query_id": topic.query_id,
                "text": topic.text,
                "time": time_of(topic.max_doc_id) if has_times else None,
                "judged": topic.query_id in judged,
            }
            for topic in topics
        ],
    }


def _described(page: SearchPage, name: str, ranker: PageRanker) -> dict[str, Any]:
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
        "has_method": isinstance(ranker, Mixture),
        "seen": page.collection.name in model.metrics.get("trained_on", ()),
    }


def results(page: SearchPage, request: SearchRequest) -> dict[str, Any]:
    """A search's results, best first."""
    is_kept, result, topic = request in page.kept, page.search(request), request.topic
    units = normalized_pair(topic.query_id, result.first, {topic.query_id: result.model})
    grades = page.grades_of(topic)
    (record,) = result.ranking.to_dict()["topics"]
    return {
        "query": {
            "q": topic.text,
            "query_id": topic.query_id if topic.query_id in page.topics else None,
            "time": time_of(topic.max_doc_id) if page.has_times else None,
            "judged": bool(grades),
        },
        "first_stage": result.ranker.first_stage_name,
        "model": _described(page, request.model, result.ranker),
        "kept": is_kept,
        "milliseconds": {
            stage: round(seconds * 1000, 1) for stage, seconds in result.ranking.seconds.items()
        },
        "posts": [
            {
                **{name: post[name] for name in ("doc_id", "text", "url")},
                "time": time_of(post["doc_id"]) if page.has_times else None,
                "first": result.first[post["doc_id"]],
                "first_unit": units[0][post["doc_id"]],
                "neural": result.model[post["doc_id"]],
                "neural_unit": units[1][post["doc_id"]],
                "grade": grades.get(post["doc_id"]),
            }
            for post in record["posts"]
            if post["doc_id"] in result.first
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
    page.grade(topic, given.get("doc_id", ""), int(grade) if grade else None)
    return {"grade": int(grade) if grade else None}


def reasons(page: SearchPage, given: QueryParams) -> dict[str, Any]:
    """Reasons for the ranks of a search's posts; raises RequestError."""
    doc_ids = given.getlist("doc_id")
    topic = page.explain(search_request(page, given), doc_ids)
    found = topic.reasons  # Of all posts, perhaps.
    posts = {doc_id: as_dict(found[doc_id]) for doc_id in doc_ids}
    return {**topic.explanation.to_dict(), "posts": posts}
