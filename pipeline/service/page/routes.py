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
from pipeline.collections.topics import Topic, normalize, query_id
from pipeline.defaults import DEFAULT_METHOD
from pipeline.errors import DataError, UsageError
from pipeline.explanation.topic import SHARED_STYLE, WORDS, grade_text
from pipeline.ranking.fusion import Fusion
from pipeline.ranking.ranker import Ranker
from pipeline.ranking.tuning import normalized_pair
from pipeline.service.page.searching import SearchPage, SearchRequest
from pipeline.service.requests import ErrorFormat, RequestError
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
        problems.append(f"q: found {len(topic.text)} characters, expected at most {LONGEST_QUERY}")
    if not (limit := given.get("time")):
        return topic
    found, newest = f"time: found {limit!r}", None
    if not page.has_times:
        problems.append(f"{found}, but the ids of {of} have no time in them; leave it out")
        return topic
    try:
        moment = datetime.datetime.fromisoformat(limit)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
        newest = newest_doc_id(math.floor(moment.timestamp() * 1000))
    except (ValueError, OverflowError):
        problems.append(f"{found}, expected a time since 2010 in UTC, such as 2012-02-12T16:20:05")
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
        "models": [_described(page, name, ranker) for name, ranker in page.rankers.items()],
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
        "milliseconds": {stage: round(value * 1000, 1) for stage, value in seconds.items()},
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
    """Reasons for the ranks of a search's posts; raises RequestError."""
    doc_ids = given.getlist("doc_id")
    topic = page.explain(search_request(page, given), doc_ids)
    found = topic.reasons  # Of all posts, perhaps.
    posts = {doc_id: as_dict(found[doc_id]) for doc_id in doc_ids}
    return {**topic.explanation.to_dict(), "posts": posts}
