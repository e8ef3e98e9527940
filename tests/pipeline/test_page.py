"""The JSON behind the service's page, and the files of the page."""

import json
import math
import re
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import pytest
from helpers.page_samples import HOSTILE, ServedPage, seen_model
from starlette.applications import Starlette
from starlette.routing import Route

from indexes.methods import METHODS, EngineQuery
from pipeline.collections.collection import TopicFileCollection
from pipeline.collections.named import find
from pipeline.command.errors import UsageError
from pipeline.explanation.rank_changes import visible
from pipeline.ranking import interpolation
from pipeline.service.page import searching as search
from pipeline.service.page.searching import KEPT, RequestError, SearchPage, routes, time_of
from rerankers.features.temporal import milliseconds, newest_doc_id

TOPIC = {"q": "Harlow Bay marathon winner", "query_id": "1"}


def get(served: ServedPage, path: str, **parameters: Any) -> tuple[int, HTTPResponse, bytes]:
    """Status, answer and content."""
    connection = HTTPConnection(served.address.removeprefix("http://"))
    query = urlencode(parameters, doseq=True)
    try:
        connection.request("GET", f"{path}?{query}" if query else path)
        answer = connection.getresponse()
        return answer.status, answer, answer.read()
    finally:
        connection.close()


def ask(served: ServedPage, path: str, **parameters: Any) -> Any:
    """The JSON of an answer, without NaN."""
    status, _, content = get(served, f"/api/{path}", **parameters)
    assert status == 200, content

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(content, parse_constant=refuse)


def test_what_can_be_chosen(served_page: ServedPage) -> None:
    found = ask(served_page, "collection")
    assert (found["name"], found["posts"]) == ("pages", 874 + len(HOSTILE))
    assert found["methods"] == list(METHODS)
    assert found["clocks"] is True
    assert found["times"][0] < "2012-02" < found["times"][1]
    neural, fusion = found["models"]
    assert (neural["name"], neural["explains"]) == ("mp_hcnn", "matches")
    assert 0 < neural["weight"] < 1
    assert "/" not in neural["origin"]
    assert fusion == {
        "name": "fusion",
        "weight": None,
        "origin": "",
        "explains": "contributions",
        "seen": False,
    }
    topic = found["topics"][0]
    assert topic == {
        "query_id": "1",
        "text": TOPIC["q"],
        "time": "2012-02-12T16:20:05.020Z",
        "judged": True,
    }


@pytest.mark.parametrize("method", METHODS)
def test_results_have_the_parts_of_the_mixture(served_page: ServedPage, method: str) -> None:
    """For every λ the page's mixture is that of a run, digit for digit."""
    found = ask(served_page, "search", **TOPIC, method=method, hits=50)
    posts = found["posts"]
    first = {"1": {post["doc_id"]: post["first"] for post in posts}}
    neural = {"1": {post["doc_id"]: post["neural"] for post in posts}}
    for weight in (0.0, 0.35, 0.99):
        mixed = {
            post["doc_id"]: weight * post["neural_unit"] + (1 - weight) * post["first_unit"]
            for post in posts
        }
        assert mixed == interpolation.interpolate(first, neural, weight)["1"]
    assert 10 < len(posts) <= 50
    assert (found["first_stage"], found["query"]["judged"]) == (method, True)
    assert {"search", "texts", "scoring"} == found["milliseconds"].keys()
    judged = (find("sample").qrels or {})["1"]
    assert all(post["grade"] == judged.get(post["doc_id"]) for post in posts)
    assert all(post["time"] <= found["query"]["time"] for post in posts)


def test_scores_are_those_of_a_search(served_page: ServedPage) -> None:
    page = served_page.page
    topic = page.topics["2"]
    posts = ask(served_page, "search", query_id="2", method="bm25", hits=20)["posts"]
    run = page.index.search([topic], METHODS["bm25"](), hits=20)["2"]
    assert {post["doc_id"]: post["first"] for post in posts} == run
    checkpoint = page.models["mp_hcnn"].scorer
    assert checkpoint is not None
    pairs = [(topic.text, (post["text"], post["url"])) for post in posts]
    expected = checkpoint.checkpoint.predict(pairs)
    assert [post["neural"] for post in posts] == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_time_limits_the_posts(served_page: ServedPage) -> None:
    free = ask(served_page, "search", q="marathon", hits=1000)
    assert free["query"] == {"q": "marathon", "query_id": None, "time": None, "judged": False}
    times = sorted(post["time"] for post in free["posts"])
    limit = times[len(times) // 2]
    for text in (limit, limit.removesuffix("Z")):
        limited = ask(served_page, "search", q="marathon", hits=1000, time=text)
        assert limited["query"]["time"] == limit
        found = sorted(post["time"] for post in limited["posts"])
        assert found == [time for time in times if time <= limit]
    over = ask(served_page, "search", **TOPIC, time="2012-02-01T00:00")
    assert over["query"]["query_id"] == "1"
    assert all(post["time"] < "2012-02-01" for post in over["posts"])


def test_ids_of_a_time() -> None:
    newest = newest_doc_id(1_328_000_000_123)
    assert milliseconds(newest) == 1_328_000_000_123
    assert milliseconds(str(int(newest) + 1)) == 1_328_000_000_124
    assert time_of(newest) == "2012-01-31T08:53:20.123Z"
    assert time_of("17") is None
    with pytest.raises(ValueError, match="expected a time of tweets"):
        newest_doc_id(0)


@pytest.mark.parametrize(
    ("parameters", "status", "problem"),
    [
        ({}, 422, "q: found nothing"),
        ({"q": " \t"}, 422, "q: found nothing"),
        ({"q": "a" * 1001}, 422, "q: found 1001 characters, expected at most 1000"),
        ({"query_id": "99"}, 422, "query_id: found '99', expected a topic of pages: 1, 2"),
        ({"q": "other", "query_id": "1"}, 422, "query_id: found '1', the topic"),
        ({"q": "a", "method": "bm52"}, 422, "method: found 'bm52', expected one of ql"),
        ({"q": "a", "model": "<b>"}, 422, "model: found '<b>', expected one of mp_hcnn, fusion"),
        ({"q": "a", "hits": "1001"}, 422, "hits: found '1001', expected a whole number from 1"),
        ({"q": "a", "hits": "-1", "method": "x"}, 422, "; hits: found '-1'"),
        ({"q": "a", "hits": "²"}, 422, "hits: found '²'"),
        ({"q": "a", "time": "yesterday"}, 422, "time: found 'yesterday', expected a time"),
        ({"q": "a", "time": "1999-01-01T00:00"}, 422, "time: found '1999-01-01T00:00'"),
        ({"q": "a", "time": "9999-12-31T23:59:59-20:00"}, 422, "time: found '9999"),
    ],
)
def test_bad_parameters_are_named(
    parameters: dict[str, str], status: int, problem: str, served_page: ServedPage
) -> None:
    found, answer, content = get(served_page, "/api/search", **parameters)
    assert (found, answer.headers["Content-Type"]) == (status, "application/json")
    assert problem in json.loads(content)["error"]


def test_posts_that_cannot_be_explained(served_page: ServedPage) -> None:
    for doc_ids, status, problem in [
        ([], 422, "doc_id: found 0 posts, expected 1 to 50"),
        (["1"] * 51, 422, "doc_id: found 51 posts"),
        (["1", "2"], 404, "doc_id: found 1, 2, expected posts of this search's"),
    ]:
        found, _, content = get(served_page, "/api/explain", **TOPIC, doc_id=doc_ids)
        assert (found, problem in json.loads(content)["error"]) == (status, True), content


def test_matches_of_posts(served_page: ServedPage) -> None:
    posts = ask(served_page, "search", **TOPIC)["posts"][:20]
    doc_ids = [post["doc_id"] for post in posts]
    found = ask(served_page, "explain", **TOPIC, doc_id=doc_ids)
    assert found["kind"] == "matches"
    assert list(found["posts"]) == doc_ids
    for post in posts:
        reasons = found["posts"][post["doc_id"]]
        assert "".join(text for text, _ in reasons["text"]) == visible(post["text"])
        assert "".join(text for text, _ in reasons["url"]) == visible(post["url"])
        assert [row["word"] for row in reasons["rows"]] == ["harlow", "bay", "marathon", "winner"]
        assert {len(row["cells"]) for row in reasons["rows"]} == {len(found["columns"])}
    best = {text.lower() for text, step in found["posts"][doc_ids[0]]["text"] if step == 4}
    assert {"harlow", "bay", "marathon"} <= best


def test_contributions_to_the_scores_of_a_fusion(served_page: ServedPage) -> None:
    fusion = {**TOPIC, "model": "fusion"}
    found = ask(served_page, "search", **fusion, method="bm25")
    posts = found["posts"]
    assert found["first_stage"] == "mean of min-max scores"
    doc_ids = [post["doc_id"] for post in posts[:3]]
    reasons = ask(served_page, "explain", **fusion, doc_id=doc_ids)
    assert reasons["kind"] == "contributions"
    low, high = reasons["extent"]
    for post in posts[:3]:
        added = [family["added"] for family in reasons["posts"][post["doc_id"]]["families"]]
        assert sum(added) + reasons["base"] == pytest.approx(post["neural"], abs=1e-3)
        assert low <= min(added) <= max(added) <= high
    assert ask(served_page, "search", **fusion)["kept"], "a fusion has its own first stage"


def test_a_query_that_finds_nothing(served_page: ServedPage) -> None:
    for model in ("mp_hcnn", "fusion"):
        found = ask(served_page, "search", q="zzzz \U0001f600 '\"\x00", model=model)
        assert found["posts"] == []


def test_only_the_latest_searches_are_kept(served_page: ServedPage) -> None:
    assert not ask(served_page, "search", q="storm")["kept"]
    assert ask(served_page, "search", q="storm")["kept"]
    for number in range(KEPT):
        ask(served_page, "search", q="storm", hits=number + 1)
    assert not ask(served_page, "search", q="storm")["kept"]


def test_too_many_waiting_searches_are_refused(
    served_page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MOST_WAITING", 0)
    status, answer, content = get(served_page, "/api/collection")
    assert (status, answer.headers["Retry-After"]) == (429, "1")
    assert "try again" in json.loads(content)["error"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")],
)
def test_files_of_the_page(path: str, kind: str, served_page: ServedPage) -> None:
    status, answer, content = get(served_page, path)
    assert (status, answer.headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    text = content.decode()
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert forbidden not in text
    assert "https://" not in text
    assert not re.search(r"<[^>]*\s(style|on\w+)=", text)


def test_without_a_collection() -> None:
    paths = {route.path for route in routes(None) if isinstance(route, Route)}
    assert paths >= {"/", "/page.css", "/api/collection", "/api/search"}
    assert Starlette(routes=routes(None)).routes
    assert b"--collection" in (search.FOLDER / "start.html").read_bytes()


def test_an_index_without_topics(served_page: ServedPage) -> None:
    directory = served_page.page.index.directory
    page = SearchPage(TopicFileCollection(directory, directory), dict)
    try:
        found = page.describe()
        assert found["topics"] == []
        results = page.results(page.question({"q": "storm", "model": "fusion"}))
        assert results["posts"]
        assert not math.isnan(results["posts"][0]["neural"])
    finally:
        page.close()


def test_a_model_that_has_seen_the_judgments_says_so(served_page: ServedPage) -> None:
    page = served_page.page
    other = SearchPage(page.collection, lambda: {"mine": seen_model(page)})
    try:
        seen = {model["name"]: model["seen"] for model in other.describe()["models"]}
        assert seen == {"mine": True, "fusion": False}
        assert page.describe()["models"][0]["seen"] is False
    finally:
        other.close()


class OwnQuery:
    """An index with a query of its own, as of a search engine."""

    def __init__(self, index: Any) -> None:
        self.size, self.posts, self.id_range, self._index = index.size, index.posts, None, index

    def search(self, topics: Any, method: Any, **options: Any) -> Any:
        assert isinstance(method, EngineQuery)
        return self._index.search(topics, METHODS["ql"](), **options)


def test_an_index_with_its_own_query_and_other_ids(served_page: ServedPage) -> None:
    opened = served_page.page
    collection: Any = search._Opened(
        opened.collection, cast(Any, OwnQuery(opened.index)), methods=()
    )
    scorer = opened.models["mp_hcnn"].scorer
    assert scorer is not None
    page = SearchPage(collection, lambda: {"mp_hcnn": scorer})
    try:
        found = page.describe()
        assert (found["methods"], found["method"], found["clocks"]) == ([], "", False)
        assert [model["name"] for model in found["models"]] == ["mp_hcnn"]
        assert found["topics"][0]["time"] is None
        results = page.results(page.question({"q": "storm"}))
        assert results["first_stage"] == "the engine's own query"
        assert results["posts"][0]["time"] is None
        with pytest.raises(RequestError, match="have no time in them"):
            page.question({"q": "storm", "time": "2012-02-01T00:00"})
    finally:
        page.close()


def test_given_candidates_are_not_searched(data_dir: Path) -> None:
    with pytest.raises(UsageError, match="the candidates of this one are given"):
        SearchPage(find("trecqa-raw", data_dir), dict)
