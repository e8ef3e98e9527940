"""The routes of the page: its files, and the JSON that it loads.

The page gets the normalised scores of both stages and orders the posts itself. So it
needs no further request when a user changes λ.
"""

import datetime
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.topics import Topic, normalize, query_id
from tweetrerank.pipeline.defaults import DEFAULT_METHOD
from tweetrerank.pipeline.explanation.topic import SHARED_STYLE, WORDS, grade_text
from tweetrerank.pipeline.ranking.fusion_ranker import Fusion
from tweetrerank.pipeline.ranking.interpolation import normalized_pair
from tweetrerank.pipeline.ranking.ranker import Ranker
from tweetrerank.pipeline.service.page.search_page import (
    SearchPage,
    SearchRequest,
    SearchResult,
)
from tweetrerank.pipeline.service.service_errors import ErrorFormat, RequestError
from tweetrerank.pipeline.text import did_you_mean, listed
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers.explanation import as_dict
from tweetrerank.rerankers.features.temporal import milliseconds, newest_doc_id
from tweetrerank.rerankers.mixed import Mixed
from tweetrerank.rerankers.reranker_error import RerankerError

FOLDER = Path(__file__).parent

MOST_EXPLAINED = 50  # Posts in one request for explanations
MOST_HITS = 1000
USUAL_HITS = 100
LONGEST_QUERY = 1000  # Most characters in a query
GRADES = 3  # Number of grades that can be given: 0, 1 and 2
MOST_TOPICS = 500  # Most topics that the page suggests

SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

NO_COLLECTION = (
    "found no collection to search; start with --collection NAME or --index DIR"
)

Content = Callable[[SearchPage, QueryParams], Any]
"""A function that returns JSON for a page and the parameters of a request."""


def routes(page: SearchPage | None) -> list[Route]:
    """Return the routes of the page.

    If there is no collection to search, the page explains how to name one.
    """
    document = "index.html" if page else "start.html"
    return [
        _file_route("/", "text/html", FOLDER / document),
        _file_route("/page.css", "text/css", SHARED_STYLE, FOLDER / "page.css"),
        _file_route("/page.js", "text/javascript", FOLDER / "page.js"),
        _json_route(page, "collection", lambda page, values: describe(page)),
        _json_route(
            page,
            "search",
            lambda page, values: results(page, search_request(page, values)),
        ),
        _json_route(page, "explain", explanations),
        _json_route(page, "grade", save_grade, "POST"),
    ]


def _file_route(path: str, media_type: str, *files: Path) -> Route:
    content = b"".join(file.read_bytes() for file in files)
    response = Response(content, media_type=media_type, headers=HEADERS)
    return Route(path, response, methods=["GET"])


def _json_route(
    page: SearchPage | None, name: str, content: Content, method: str = "GET"
) -> Route:
    async def endpoint(request: Request) -> Response:
        request.state.format = ErrorFormat()
        # Browsers do not let other sites' pages send this type without a preflight
        # request.
        content_type = request.headers.get("content-type")
        if method == "POST" and content_type != "application/json":
            raise RequestError("value", "Content-Type: expected application/json")
        if page is None:
            raise RequestError("path", NO_COLLECTION)
        try:
            result = await page.run(lambda: content(page, request.query_params))
        except (UsageError, DataError, RerankerError) as error:
            raise RequestError("internal", str(error)) from None
        return JSONResponse(result, headers=HEADERS)

    return Route(f"/api/{name}", endpoint, methods=[method])


# --- Parameters of requests -----------------------------------------------------------


class Parameters:
    """Reads the parameters of a request, and collects the problems with them.

    The methods return some value for a wrong parameter; call :meth:`check` afterwards.
    """

    def __init__(self, page: SearchPage, values: Mapping[str, str]) -> None:
        self._page = page
        self._values = values
        self._problems: list[str] = []

    def check(self) -> None:
        """Raise RequestError listing every problem found so far, if there is one."""
        if self._problems:
            raise RequestError("value", "; ".join(self._problems))

    def choice(self, name: str, default: str, values: Sequence[str]) -> str:
        """Return the value of a parameter, which must be one of ``values``."""
        value = self._values.get(name, default)
        if value not in values:
            similar = did_you_mean(value, values)
            expected = f"expected one of {', '.join(values)}{similar}"
            self._problems.append(f"{name}: found {value!r}, {expected}")
        return value

    def hits(self) -> int:
        """Return the number of posts to rank."""
        text = self._values.get("hits", str(USUAL_HITS))
        is_number = text.isascii() and text.isdigit() and len(text) < 9
        hits = int(text) if is_number else 0
        if not 0 < hits <= MOST_HITS:
            expected = f"expected a whole number from 1 to {MOST_HITS}"
            self._problems.append(f"hits: found {text!r}, {expected}")
        return hits

    def grade(self) -> int | None:
        """Return the grade, or None if it is to be deleted."""
        text = self._values.get("grade", "")
        if not text:
            return None
        if text not in map(str, range(GRADES)):
            problem = f"grade: found {text!r}, expected 0, 1, 2 or nothing"
            self._problems.append(problem)
            return None
        return int(text)

    def topic(self) -> Topic:
        """Return a topic of the collection, or a new topic for a free query.

        With the parameter ``time``, only posts until that time are searched.
        """
        topic = self._topic_without_time()
        time = self._values.get("time")
        if not time:
            return topic
        return topic._replace(time=time, max_doc_id=self._newest_doc_id(time))

    def _topic_without_time(self) -> Topic:
        text = self._values.get("q", "")
        topic = self._topic_of_collection(text)
        if topic is None:
            # The ids in click logs are made in the same way.
            topic = Topic(query_id(normalize(text)), text)
        if not topic.text.strip() and not self._problems:
            self._problems.append("q: found nothing, expected a query")
        if len(topic.text) > LONGEST_QUERY:
            expected = f"expected at most {LONGEST_QUERY}"
            self._problems.append(f"q: found {len(topic.text)} characters, {expected}")
        return topic

    def _topic_of_collection(self, text: str) -> Topic | None:
        """Return the topic that ``query_id`` names, or None without one.

        An unknown topic, or one with a text other than ``text``, is a problem.
        """
        name = self._values.get("query_id", "")
        topics = self._page.topics
        topic = topics.get(name)
        if topic is not None and text in ("", topic.text):
            return topic
        if topic is not None:
            problem = f"the topic {topic.text!r}, with another query"
            remedy = "leave query_id or q out"
            self._problems.append(f"query_id: found {name!r}, {problem}; {remedy}")
        elif name:
            names = listed(list(topics), 8) or "it has none"
            expected = f"expected a topic of {self._page.collection.name}: {names}"
            self._problems.append(f"query_id: found {name!r}, {expected}")
        return None

    def _newest_doc_id(self, time: str) -> str | None:
        """Return the largest id that a post written until ``time`` can have."""
        if not self._page.has_times:
            problem = f"the ids of {self._page.collection.name} have no time in them"
            self._problems.append(f"time: found {time!r}, but {problem}; leave it out")
            return None
        try:
            moment = datetime.datetime.fromisoformat(time)
            if not moment.tzinfo:
                moment = moment.replace(tzinfo=datetime.UTC)
            return newest_doc_id(math.floor(moment.timestamp() * 1000))
        except (ValueError, OverflowError):
            expected = "a time since 2010 in UTC, such as 2012-02-12T16:20:05"
            self._problems.append(f"time: found {time!r}, expected {expected}")
            return None


def search_request(page: SearchPage, values: Mapping[str, str]) -> SearchRequest:
    """Return the search that the parameters of a request describe.

    Raises RequestError listing every wrong parameter.
    """
    parameters = Parameters(page, values)
    topic = parameters.topic()
    methods = page.collection.methods
    method = ""
    if methods:
        method = parameters.choice("method", DEFAULT_METHOD, methods)
    rankers = page.rankers
    model = parameters.choice("model", next(iter(rankers), ""), list(rankers))
    hits = parameters.hits()
    parameters.check()
    if isinstance(rankers[model], Fusion):
        method = ""
    return SearchRequest(topic, method, model, hits)


# --- JSON of responses ----------------------------------------------------------------


def _time_of(page: SearchPage, doc_id: str | None) -> str | None:
    """Return the UTC time that an id contains, as ISO 8601, or None."""
    if not doc_id or not page.has_times:
        return None
    since_1970 = milliseconds(doc_id)
    if since_1970 is None:
        return None
    moment = datetime.datetime.fromtimestamp(since_1970 // 1000, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{since_1970 % 1000:03}Z"


def describe(page: SearchPage) -> dict[str, Any]:
    """Describe the collection with its methods, models and topics, for the page."""
    collection = page.collection
    methods = list(collection.methods)
    rankers = page.rankers.items()
    times = [_time_of(page, doc_id) for doc_id in page.index.id_range or ()]
    return {
        "name": collection.name,
        "posts": page.index.size,
        "methods": methods,
        "method": DEFAULT_METHOD if methods else "",
        "models": [_ranker_json(page, name, ranker) for name, ranker in rankers],
        "hits": USUAL_HITS,
        "most_hits": MOST_HITS,
        "clocks": page.has_times,
        "times": times if page.has_times else None,
        "words": WORDS,
        "grades": {str(grade): grade_text(grade) for grade in range(GRADES)},
        "grades_file": str(page.grades.path) if page.grades else None,
        "topics_file": str(page.grades.topics_path) if page.grades else None,
        "topics": _topics_json(page),
    }


def _topics_json(page: SearchPage) -> list[dict[str, Any]]:
    judged = page.collection.qrels or {}
    topics = list(page.topics.values())
    return [
        {
            "query_id": topic.query_id,
            "text": topic.text,
            "time": _time_of(page, topic.max_doc_id),
            "judged": topic.query_id in judged,
        }
        for topic in topics[:MOST_TOPICS]
    ]


def _ranker_json(page: SearchPage, name: str, ranker: Ranker) -> dict[str, Any]:
    """Describe a ranker.

    ``seen`` says that its model was trained on the judgments of this collection.
    """
    model = ranker.model
    assert model
    weight = None
    origin = ""
    if isinstance(model, Mixed):
        weight = model.weight
        origin = model.origin.partition("; ")[0]  # Without its path
    return {
        "name": name,
        "kind": model.name,
        "weight": weight,
        "origin": origin,
        "explains": model.explains or None,
        "has_method": not isinstance(ranker, Fusion),
        "seen": page.collection.name in model.metrics.get("trained_on", ()),
    }


def results(page: SearchPage, request: SearchRequest) -> dict[str, Any]:
    """Run a search, and return its results with the best post first."""
    is_kept = request in page.kept
    result = page.search(request)
    topic = request.topic
    grades = page.grades_of(topic)
    return {
        "query": {
            "q": topic.text,
            "query_id": topic.query_id if topic.query_id in page.topics else None,
            "time": _time_of(page, topic.max_doc_id),
            "judged": bool(grades),
        },
        "first_stage": result.ranker.first_stage_name,
        "model": _ranker_json(page, request.model, result.ranker),
        "kept": is_kept,
        "milliseconds": {
            stage: round(seconds * 1000, 1)
            for stage, seconds in result.ranking.seconds.items()
        },
        "posts": list(_posts_json(page, result, grades)),
    }


def _posts_json(
    page: SearchPage, result: SearchResult, grades: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """Yield the posts that both stages have scored, best first."""
    topic_id = result.request.topic.query_id
    first_units, model_units = normalized_pair(
        topic_id, result.first, {topic_id: result.model}
    )
    (record,) = result.ranking.to_dict()["topics"]
    for post in record["posts"]:
        doc_id = post["doc_id"]
        if doc_id in result.first:
            yield {
                "doc_id": doc_id,
                "text": post["text"],
                "url": post["url"],
                "time": _time_of(page, doc_id),
                "first": result.first[doc_id],
                "first_unit": first_units[doc_id],
                "neural": result.model[doc_id],
                "neural_unit": model_units[doc_id],
                "grade": grades.get(doc_id),
            }


def save_grade(page: SearchPage, values: Mapping[str, str]) -> dict[str, Any]:
    """Write the grade that the parameters give; an empty grade deletes it.

    Raises RequestError if a parameter is wrong.
    """
    parameters = Parameters(page, values)
    topic = parameters.topic()
    grade = parameters.grade()
    parameters.check()
    page.grade(topic, values.get("doc_id", ""), grade)
    return {"grade": grade}


def explanations(page: SearchPage, values: QueryParams) -> dict[str, Any]:
    """Return the reasons for the ranks of posts in a search.

    Raises RequestError for no or too many posts, for a post that is not in the ranking,
    or if the model cannot explain its scores.
    """
    doc_ids = values.getlist("doc_id")
    result = page.search(search_request(page, values))
    if not 0 < len(doc_ids) <= MOST_EXPLAINED:
        problem = f"doc_id: found {len(doc_ids)} posts, expected 1 to {MOST_EXPLAINED}"
        raise RequestError("value", problem)
    unknown = [doc_id for doc_id in doc_ids if doc_id not in result.first]
    if unknown:
        problem = f"doc_id: found {listed(unknown)}, expected posts of this search's"
        raise RequestError("path", f"{problem} {len(result.first)}")
    try:
        topic = result.explain(doc_ids)
    except UsageError as error:
        raise RequestError("value", f"model: {error}") from None
    posts = {doc_id: as_dict(topic.reasons[doc_id]) for doc_id in doc_ids}
    return {**topic.explanation.to_dict(), "posts": posts}
