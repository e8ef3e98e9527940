"""The JSON behind the service's page, and the files of the page."""

import json
import math
import re
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from conftest import Patch
from helpers.service_samples import HOSTILE, ServedPage, client_of, models

from tweetrerank.indexes.methods import METHODS, EngineQuery
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.index_place import IndexPlace
from tweetrerank.pipeline.collections.named import SAMPLE, find, open_collection
from tweetrerank.pipeline.collections.topics import read_topics
from tweetrerank.pipeline.collections.trec import read_qrels
from tweetrerank.pipeline.ranking import interpolation
from tweetrerank.pipeline.service.page import search_page
from tweetrerank.pipeline.service.page.page_routes import (
    describe,
    results,
    search_request,
)
from tweetrerank.pipeline.service.page.search_page import SearchPage
from tweetrerank.pipeline.service.service_errors import RequestError
from tweetrerank.rerankers.explanation import visible
from tweetrerank.rerankers.reranker import Reranker

TOPIC = {"q": "Harlow Bay marathon winner", "query_id": "1"}
WORDS_OF_TOPIC = ["harlow", "bay", "marathon", "winner"]
MP_HCNN = {"model": "mp_hcnn"}
KINDS = {"/": "html", "/page.css": "css", "/page.js": "javascript"}


def get(served: ServedPage, path: str, **parameters: Any) -> requests.Response:
    return requests.get(f"{served.address}{path}", parameters, timeout=60)


def post_grade(
    served: ServedPage, kind: str = "application/json", **parameters: str
) -> requests.Response:
    url = f"{served.address}/api/grade"
    headers = {"Content-Type": kind}
    return requests.post(url, params=parameters, headers=headers, timeout=60)


def content_of(served: ServedPage, path: str, **parameters: Any) -> Any:
    """The JSON of a response, without NaN."""
    response = get(served, f"/api/{path}", **parameters)
    assert response.status_code == 200, response.text
    return json.loads(response.content, parse_constant=pytest.fail)


# --- The collection -------------------------------------------------------------------


def test_what_can_be_chosen(served_page: ServedPage) -> None:
    content = content_of(served_page, "collection")
    assert content["name"] == "pages"
    assert content["posts"] == 874 + len(HOSTILE)
    assert content["methods"] == list(METHODS)
    assert content["clocks"] is True
    oldest, newest = content["times"]
    assert oldest < "2012-02" < newest
    first, topic = content["topics"][:2]
    assert first["query_id"] == "10", "its ranking shows the gain"
    assert topic == {
        "query_id": "1",
        "text": TOPIC["q"],
        "time": "2012-02-12T16:20:05.020Z",
        "judged": True,
    }


def test_models_that_can_be_chosen(served_page: ServedPage) -> None:
    """The best one comes first."""
    fusion, neural = content_of(served_page, "collection")["models"]
    assert (neural["name"], neural["explains"]) == ("mp_hcnn", "matches")
    assert 0 < neural["weight"] < 1
    assert "/" not in neural["origin"]
    assert fusion == {
        "name": "fusion",
        "kind": "fusion",
        "explains": "contributions",
        "has_method": False,
        "weight": None,
        "origin": "",
        "seen": False,
    }


# --- Searches -------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_results_have_the_scores_of_both_stages(
    served_page: ServedPage, method: str
) -> None:
    fields = {**TOPIC, **MP_HCNN, "method": method, "hits": 50}
    content = content_of(served_page, "search", **fields)
    posts = content["posts"]
    assert 10 < len(posts) <= 50
    assert content["first_stage"] == method
    assert {method, "mp_hcnn"} < content["milliseconds"].keys()
    first = {post["doc_id"]: post["first"] for post in posts}
    topic = served_page.page.topics["1"]
    run = served_page.page.index.search([topic], METHODS[method](), hits=50)
    assert run == {"1": first}
    pairs = [(TOPIC["q"], (post["text"], post["url"])) for post in posts]
    expected = Reranker(models().default.checkpoint).predict(pairs).tolist()
    neural = [post["neural"] for post in posts]
    assert neural == pytest.approx(expected, abs=1e-5)
    again = content_of(served_page, "search", **fields)
    assert (again["kept"], again["posts"]) == (True, posts)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("weight", [0.0, 0.35, 0.99])
def test_results_have_the_parts_of_the_mixture(
    served_page: ServedPage, method: str, weight: float
) -> None:
    """The page's mixture is that of a run, digit for digit."""
    fields = {**TOPIC, **MP_HCNN, "method": method, "hits": 50}
    posts = content_of(served_page, "search", **fields)["posts"]
    first = {"1": {post["doc_id"]: post["first"] for post in posts}}
    neural = {"1": {post["doc_id"]: post["neural"] for post in posts}}
    mixed = {
        post["doc_id"]: weight * post["neural_unit"] + (1 - weight) * post["first_unit"]
        for post in posts
    }
    assert mixed == interpolation.interpolate(first, neural, weight)["1"]


@pytest.mark.parametrize("method", METHODS)
def test_results_have_judgments_and_times(served_page: ServedPage, method: str) -> None:
    fields = {**TOPIC, **MP_HCNN, "method": method, "hits": 50}
    content = content_of(served_page, "search", **fields)
    judged = (find("sample").qrels or {})["1"]
    assert content["query"]["judged"] is True
    for post in content["posts"]:
        assert post["grade"] == judged.get(post["doc_id"])
        assert post["time"] <= content["query"]["time"]


def test_a_time_limits_the_posts(served_page: ServedPage) -> None:
    fields = {**MP_HCNN, "q": "marathon", "hits": 1000}
    content = content_of(served_page, "search", **fields)
    expected = {"q": "marathon", "query_id": None, "time": None, "judged": False}
    assert content["query"] == expected
    times = sorted(post["time"] for post in content["posts"])
    limit = times[len(times) // 2]
    limited = content_of(served_page, "search", **fields, time=limit)
    assert limited["query"]["time"] == limit
    limited_times = sorted(post["time"] for post in limited["posts"])
    assert limited_times == [time for time in times if time <= limit]
    without_zone = limit.removesuffix("Z")
    in_utc = content_of(served_page, "search", **fields, time=without_zone)
    assert in_utc["query"]["time"] == limit
    assert in_utc["posts"] == limited["posts"]


def test_a_time_replaces_that_of_the_topic(served_page: ServedPage) -> None:
    content = content_of(served_page, "search", **TOPIC, time="2012-02-01T00:00")
    assert content["query"]["query_id"] == "1"
    assert all(post["time"] < "2012-02-01" for post in content["posts"])


@pytest.mark.parametrize("model", ["mp_hcnn", "fusion"])
def test_a_query_that_finds_nothing(served_page: ServedPage, model: str) -> None:
    query = "zzzz \U0001f600 '\"\x00"
    assert content_of(served_page, "search", q=query, model=model)["posts"] == []


# --- Refusals -------------------------------------------------------------------------

WRONG_SEARCHES = [
    # Queries and topics
    ({"q": " \t"}, "q: found nothing"),
    ({"q": "a" * 1001}, "q: found 1001 characters, expected at most 1000"),
    ({"query_id": "99"}, "query_id: found '99', expected a topic of pages: 1"),
    ({"q": "other", "query_id": "1"}, "query_id: found '1', the topic"),
    # Choices
    ({"q": "a", "method": "bm52"}, "method: found 'bm52', expected one of ql"),
    ({"q": "a", "model": "<b>"}, "model: found '<b>', expected one of fusion"),
    # Numbers of posts; several problems are one message
    ({"q": "a", "hits": "1001"}, "hits: found '1001', expected a whole number from 1"),
    ({"q": "a", "hits": "-1", "method": "x"}, "; hits: found '-1'"),
    ({"q": "a", "hits": "²"}, "hits: found '²'"),
    # Times: a word, before the first id, after the last time
    ({"q": "a", "time": "yesterday"}, "time: found 'yesterday', expected a ti"),
    ({"q": "a", "time": "1999-01-01T00:00"}, "time: found '1999-01-01T00:00'"),
    ({"q": "a", "time": "9999-12-31T23:59:59-20:00"}, "time: found '9999"),
]


@pytest.mark.parametrize(("parameters", "problem"), WRONG_SEARCHES)
def test_refusals_name_their_parameter(
    served_page: ServedPage, parameters: dict[str, str], problem: str
) -> None:
    response = get(served_page, "/api/search", **parameters)
    assert response.status_code == 422
    assert response.headers["Content-Type"] == "application/json"
    assert problem in response.json()["error"]


@pytest.mark.parametrize(
    ("doc_ids", "status", "problem"),
    [
        pytest.param([], 422, "doc_id: found 0 posts, expected 1 to 50", id="none"),
        pytest.param(["1"] * 51, 422, "doc_id: found 51 posts", id="too many"),
        pytest.param(
            ["1", "2"], 404, "found 1, 2, expected posts of this s", id="unknown"
        ),
    ],
)
def test_refused_explanations(
    served_page: ServedPage, doc_ids: list[str], status: int, problem: str
) -> None:
    response = get(served_page, "/api/explain", **TOPIC, doc_id=doc_ids)
    assert response.status_code == status
    assert problem in response.json()["error"]


WRONG_GRADES = [
    # A grade outside of 0 to 2, an unknown post, no query, a page of another site
    (TOPIC | {"doc_id": "1", "grade": "3"}, 422, "found '3', expected 0, 1, 2"),
    (TOPIC | {"doc_id": "1", "grade": "1"}, 404, "doc_id: found no post '1'"),
    ({"doc_id": "1", "grade": "1"}, 422, "q: found nothing"),
    (TOPIC | {"kind": "text/plain"}, 422, "Content-Type: expected application/json"),
]


@pytest.mark.parametrize(("parameters", "status", "problem"), WRONG_GRADES)
def test_refused_grades(
    served_page: ServedPage, parameters: dict[str, str], status: int, problem: str
) -> None:
    response = post_grade(served_page, **parameters)
    assert response.status_code == status
    assert problem in response.json()["error"]


def test_too_many_waiting_searches_are_refused(
    served_page: ServedPage, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(search_page, "MOST_WAITING", 0)
    response = get(served_page, "/api/collection")
    assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
    assert "try again" in response.json()["error"]


# --- Explanations ---------------------------------------------------------------------


def text_of(spans: list[tuple[str, int]]) -> str:
    """The text of spans with their shades."""
    return "".join(text for text, _ in spans)


def test_matches_of_posts(served_page: ServedPage) -> None:
    posts = content_of(served_page, "search", **TOPIC, **MP_HCNN)["posts"][:20]
    doc_ids = [post["doc_id"] for post in posts]
    content = content_of(served_page, "explain", **TOPIC, **MP_HCNN, doc_id=doc_ids)
    assert (content["kind"], list(content["posts"])) == ("matches", doc_ids)
    for post in posts:
        reasons = content["posts"][post["doc_id"]]
        assert text_of(reasons["text"]) == visible(post["text"])
        assert text_of(reasons["url"]) == visible(post["url"])
        rows = reasons["rows"]
        assert [row["label"] for row in rows] == WORDS_OF_TOPIC
        assert {len(row["cells"]) for row in rows} == {len(content["columns"])}
    spans = content["posts"][doc_ids[0]]["text"]
    best_matches = {text.lower() for text, shade in spans if shade == 4}
    assert {"harlow", "bay", "marathon"} <= best_matches


def test_contributions_to_the_scores_of_a_fusion(served_page: ServedPage) -> None:
    # The rankers find more than ten posts together.
    fusion = TOPIC | {"model": "fusion", "hits": "10"}
    content = content_of(served_page, "search", **fusion, method="bm25")
    assert content["first_stage"] == "mean of min-max scores"
    posts = content["posts"][:3]
    doc_ids = [post["doc_id"] for post in posts]
    explanation = content_of(served_page, "explain", **fusion, doc_id=doc_ids)
    low, high = explanation["extent"]
    assert explanation["kind"] == "contributions"
    for post in posts:
        reasons = explanation["posts"][post["doc_id"]]
        added = [row["cells"][0]["score"] for row in reasons["rows"]]
        score = sum(added) + explanation["base"]
        assert score == pytest.approx(post["neural"], abs=1e-3)
        assert low <= min(added) <= max(added) <= high
        assert text_of(reasons["text"]) == visible(post["text"])
        same = {text.lower() for text, shade in reasons["text"] if shade == 4}
        assert {"marathon"} <= same <= set(WORDS_OF_TOPIC)


def test_a_fusion_has_its_own_first_stage(served_page: ServedPage) -> None:
    fusion = TOPIC | {"model": "fusion", "hits": "10"}
    content_of(served_page, "search", **fusion, method="bm25")
    assert content_of(served_page, "search", **fusion, method="ql")["kept"]


# --- Grades ---------------------------------------------------------------------------


def test_grades_are_saved_as_judgments_and_topics(served_page: ServedPage) -> None:
    grades = served_page.page.grades
    assert grades
    assert content_of(served_page, "collection")["grades_file"] == str(grades.path)
    posts = content_of(served_page, "search", q="Storm  damage")["posts"]
    best = posts[0]["doc_id"]
    last = posts[-1]["doc_id"]
    saved = post_grade(served_page, q="Storm  damage", doc_id=best, grade="2")
    assert saved.json() == {"grade": 2}
    post_grade(served_page, **TOPIC, doc_id=last, grade="1")
    post_grade(served_page, **TOPIC, doc_id=best, grade="0")
    post_grade(served_page, **TOPIC, doc_id=best, grade="")
    free_topic, topic = read_topics(grades.topics_path)
    assert free_topic.text == "Storm damage"
    assert topic == served_page.page.topics["1"]
    expected = {free_topic.query_id: {best: 2}, "1": {last: 1}}
    assert read_qrels(grades.path) == expected
    posts_again = content_of(served_page, "search", q="storm damage")["posts"]
    assert {post["doc_id"]: post["grade"] for post in posts_again}[best] == 2
    grades.path.unlink()
    grades.topics_path.unlink()
    grades.reload()


# --- Files ----------------------------------------------------------------------------

FORBIDDEN = [
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "https://",
]


@pytest.mark.parametrize("path", KINDS)
def test_files_of_the_page(path: str, served_page: ServedPage) -> None:
    response = get(served_page, path)
    headers = response.headers
    assert headers["Content-Type"] == f"text/{KINDS[path]}; charset=utf-8"
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert not [word for word in FORBIDDEN if word in response.text]
    assert not re.search(r"<[^>]*\s(style|on\w+)=", response.text)


def test_without_a_collection() -> None:
    with client_of() as client:
        assert "--collection" in client.get("/").text
        response = client.get("/api/search")
    assert response.status_code == 404
    assert "found no collection" in response.json()["error"]


# --- Other indexes --------------------------------------------------------------------


def test_an_index_without_topics(served_page: ServedPage) -> None:
    collection = open_collection(index=served_page.page.index.directory)
    with closing(SearchPage(collection, dict)) as page:
        assert describe(page)["topics"] == []
        request = search_request(page, {"q": "storm", "model": "fusion"})
        posts = results(page, request)["posts"]
        assert not math.isnan(posts[0]["neural"])


class OwnQueryCollection(Collection):
    """A collection like a search engine's: its own query, and ids without times."""

    methods = ()

    def open_index(self) -> Any:
        index = super().open_index()

        def search(topics: Any, method: Any, **options: Any) -> Any:
            assert isinstance(method, EngineQuery)
            return index.search(topics, METHODS["ql"](), **options)

        return SimpleNamespace(
            size=index.size,
            posts=index.posts,
            id_range=None,
            search=search,
        )


def test_an_index_with_its_own_query_and_other_ids(served_page: ServedPage) -> None:
    place = IndexPlace(folder=served_page.page.index.directory)
    collection = OwnQueryCollection("topics", [SAMPLE / "topics.txt"], index=place)
    with closing(SearchPage(collection, lambda: models().served)) as page:
        description = describe(page)
        assert (description["methods"], description["method"]) == ([], "")
        assert description["clocks"] is False
        names = [model["name"] for model in description["models"]]
        assert names == ["window", "mp_hcnn"]
        assert description["topics"][0]["time"] is None
        assert description["grades_file"] is None
        with pytest.raises(RequestError, match="--grades FILE"):
            page.grade(page.topics["1"], "1", 1)
        content = results(page, search_request(page, {"q": "storm"}))
        assert content["first_stage"] == "the engine's own query"
        assert content["posts"][0]["time"] is None
        with pytest.raises(RequestError, match="have no time in them"):
            search_request(page, {"q": "storm", "time": "2012-02-01T00:00"})
