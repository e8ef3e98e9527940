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
from helpers.index_samples import table
from helpers.service_samples import HOSTILE, ServedPage, client_of, models

from tweetrerank.indexes.methods import METHODS, EngineQuery
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.index_place import IndexPlace
from tweetrerank.pipeline.collections.named import SAMPLE, find, open_collection
from tweetrerank.pipeline.collections.topics import read_topics
from tweetrerank.pipeline.collections.trec import read_qrels
from tweetrerank.pipeline.ranking import interpolation
from tweetrerank.pipeline.service.page import page as searching
from tweetrerank.pipeline.service.page.page import (
    SearchPage,
    describe,
    results,
    search_request,
)
from tweetrerank.pipeline.service.requests import RequestError
from tweetrerank.rerankers.explanation import visible

TOPIC = {"q": "Harlow Bay marathon winner", "query_id": "1"}
MP_HCNN = {"model": "mp_hcnn"}
KINDS = {"/": "html", "/page.css": "css", "/page.js": "javascript"}


def get(served: ServedPage, path: str, **parameters: Any) -> requests.Response:
    return requests.get(f"{served.address}{path}", parameters, timeout=60)


def content_of(served: ServedPage, path: str, **parameters: Any) -> Any:
    """The JSON of a response, without NaN."""
    response = get(served, f"/api/{path}", **parameters)
    assert response.status_code == 200, response.text
    return json.loads(response.content, parse_constant=pytest.fail)


def test_what_can_be_chosen(served_page: ServedPage) -> None:
    actual = content_of(served_page, "collection")
    assert (actual["name"], actual["posts"]) == ("pages", 874 + len(HOSTILE))
    assert actual["methods"] == list(METHODS) and actual["clocks"] is True
    assert actual["times"][0] < "2012-02" < actual["times"][1]
    fusion, neural = actual["models"]  # The best one first.
    assert (neural["name"], neural["explains"]) == ("mp_hcnn", "matches")
    assert 0 < neural["weight"] < 1 and "/" not in neural["origin"]
    name = {"name": "fusion", "kind": "fusion", "explains": "contributions"}
    assert fusion == name | {
        "has_method": False,
        "weight": None,
        "origin": "",
        "seen": False,
    }
    first, topic, *_ = actual["topics"]
    assert first["query_id"] == "10"  # Its ranking shows the gain.
    time = "2012-02-12T16:20:05.020Z"
    assert topic == {"query_id": "1", "text": TOPIC["q"], "time": time, "judged": True}


@pytest.mark.parametrize("method", METHODS)
def test_results_have_the_parts_of_the_mixture(
    served_page: ServedPage, method: str
) -> None:
    """For every λ the page's mixture is that of a run, digit for digit."""
    actual = content_of(
        served_page, "search", **TOPIC, **MP_HCNN, method=method, hits=50
    )
    posts = actual["posts"]
    first = {"1": {post["doc_id"]: post["first"] for post in posts}}
    neural = {"1": {post["doc_id"]: post["neural"] for post in posts}}
    units = [
        (post["doc_id"], post["neural_unit"], post["first_unit"]) for post in posts
    ]
    for weight in (0.0, 0.35, 0.99):
        mixed = {
            doc_id: weight * new + (1 - weight) * old for doc_id, new, old in units
        }
        assert mixed == interpolation.interpolate(first, neural, weight)["1"]
    assert 10 < len(posts) <= 50
    assert (actual["first_stage"], actual["query"]["judged"]) == (method, True)
    assert {method, "mp_hcnn"} < actual["milliseconds"].keys()
    run = served_page.page.index.search(
        [served_page.page.topics["1"]], METHODS[method](), hits=50
    )
    assert first == run
    pairs = [(TOPIC["q"], (post["text"], post["url"])) for post in posts]
    expected = models().default.checkpoint.predict(pairs)
    assert [post["neural"] for post in posts] == pytest.approx(
        expected.tolist(), abs=1e-5
    )
    judged = (find("sample").qrels or {})["1"]
    assert all(post["grade"] == judged.get(post["doc_id"]) for post in posts)
    assert all(post["time"] <= actual["query"]["time"] for post in posts)
    again = content_of(
        served_page, "search", **TOPIC, **MP_HCNN, method=method, hits=50
    )
    assert (again["kept"], again["posts"]) == (True, posts)


def test_a_time_limits_the_posts(served_page: ServedPage) -> None:
    free = content_of(served_page, "search", **MP_HCNN, q="marathon", hits=1000)
    assert free["query"] == {
        "q": "marathon",
        "query_id": None,
        "time": None,
        "judged": False,
    }
    times = sorted(post["time"] for post in free["posts"])
    limit = times[len(times) // 2]
    for text in (limit, limit.removesuffix("Z")):
        limited = content_of(
            served_page, "search", **MP_HCNN, q="marathon", hits=1000, time=text
        )
        assert limited["query"]["time"] == limit
        actual = sorted(post["time"] for post in limited["posts"])
        assert actual == [time for time in times if time <= limit]
    over = content_of(served_page, "search", **TOPIC, time="2012-02-01T00:00")
    assert over["query"]["query_id"] == "1"
    assert all(post["time"] < "2012-02-01" for post in over["posts"])


@pytest.mark.parametrize(
    "row", table("bad_page_requests.jsonl"), ids=lambda row: row["problem"]
)
def test_refusals_name_their_parameter(
    served_page: ServedPage, row: dict[str, Any]
) -> None:
    if row["path"] == "grade":
        response = post_grade(served_page, **row["parameters"])
    else:
        response = get(served_page, f"/api/{row['path']}", **row["parameters"])
    assert response.status_code == row["status"]
    assert response.headers["Content-Type"] == "application/json"
    assert row["problem"] in response.json()["error"]


def test_matches_of_posts(served_page: ServedPage) -> None:
    posts = content_of(served_page, "search", **TOPIC, **MP_HCNN)["posts"][:20]
    doc_ids = [post["doc_id"] for post in posts]
    actual = content_of(served_page, "explain", **TOPIC, **MP_HCNN, doc_id=doc_ids)
    assert (actual["kind"], [*actual["posts"]]) == ("matches", doc_ids)
    for post in posts:
        reasons = actual["posts"][post["doc_id"]]
        for part in ("text", "url"):
            assert "".join(text for text, _ in reasons[part]) == visible(post[part])
        assert [row["label"] for row in reasons["rows"]] == [
            "harlow",
            "bay",
            "marathon",
            "winner",
        ]
        assert {len(row["cells"]) for row in reasons["rows"]} == {
            len(actual["columns"])
        }
    best = {
        text.lower() for text, step in actual["posts"][doc_ids[0]]["text"] if step == 4
    }
    assert {"harlow", "bay", "marathon"} <= best


def test_contributions_to_the_scores_of_a_fusion(served_page: ServedPage) -> None:
    fusion = {**TOPIC, "model": "fusion", "hits": 10}  # The rankers find more together.
    actual = content_of(served_page, "search", **fusion, method="bm25")
    posts = actual["posts"][:3]
    assert actual["first_stage"] == "mean of min-max scores"
    doc_ids = [post["doc_id"] for post in posts]
    reasons = content_of(served_page, "explain", **fusion, doc_id=doc_ids)
    low, high = reasons["extent"]
    assert reasons["kind"] == "contributions"
    for post in posts:
        of_post = reasons["posts"][post["doc_id"]]
        added = [row["cells"][0]["score"] for row in of_post["rows"]]
        assert sum(added) + reasons["base"] == pytest.approx(post["neural"], abs=1e-3)
        assert low <= min(added) <= max(added) <= high
        assert "".join(part for part, _ in of_post["text"]) == visible(post["text"])
        same = {part.lower() for part, shade in of_post["text"] if shade == 4}
        assert "marathon" in same and same <= {"harlow", "bay", "marathon", "winner"}
    assert content_of(served_page, "search", **fusion)["kept"], (
        "a fusion has its own first stage"
    )


def post_grade(served: ServedPage, kind: str = "application/json", **given: str) -> Any:
    headers = {"Content-Type": kind}
    return requests.post(
        f"{served.address}/api/grade", params=given, headers=headers, timeout=60
    )


def test_grades_are_saved_as_judgments_and_topics(served_page: ServedPage) -> None:
    grades = served_page.page.grades
    assert grades
    assert content_of(served_page, "collection")["grades_file"] == str(grades.path)
    free, *_, last = content_of(served_page, "search", q="Storm  damage")["posts"]
    saved = post_grade(served_page, q="Storm  damage", doc_id=free["doc_id"], grade="2")
    assert saved.json() == {"grade": 2}
    post_grade(served_page, **TOPIC, doc_id=last["doc_id"], grade="1")
    post_grade(served_page, **TOPIC, doc_id=free["doc_id"], grade="0")
    post_grade(served_page, **TOPIC, doc_id=free["doc_id"], grade="")
    topics = {topic.query_id: topic for topic in read_topics(grades.topics_path)}
    free_id, known_id = topics
    assert read_qrels(grades.path) == {
        free_id: {free["doc_id"]: 2},
        "1": {last["doc_id"]: 1},
    }
    assert (topics[free_id].text, known_id) == ("Storm damage", "1")
    assert topics["1"] == served_page.page.topics["1"]
    again = content_of(served_page, "search", q="storm damage")["posts"]
    assert {post["doc_id"]: post["grade"] for post in again}[free["doc_id"]] == 2
    grades.path.unlink()
    grades.topics_path.unlink()
    grades.reload()


def test_a_query_that_finds_nothing(served_page: ServedPage) -> None:
    for model in ("mp_hcnn", "fusion"):
        asked = {"q": "zzzz \U0001f600 '\"\x00", "model": model}
        assert content_of(served_page, "search", **asked)["posts"] == []


def test_too_many_waiting_searches_are_refused(
    served_page: ServedPage, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(searching, "MOST_WAITING", 0)
    response = get(served_page, "/api/collection")
    assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
    assert "try again" in response.json()["error"]


@pytest.mark.parametrize("path", KINDS)
def test_files_of_the_page(path: str, served_page: ServedPage) -> None:
    response = get(served_page, path)
    headers = response.headers
    assert headers["Content-Type"] == f"text/{KINDS[path]}; charset=utf-8"
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy and headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    forbidden = (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
    )
    assert not [word for word in (*forbidden, "https://") if word in response.text]
    assert not re.search(r"<[^>]*\s(style|on\w+)=", response.text)


def test_without_a_collection() -> None:
    with client_of() as client:
        assert "--collection" in client.get("/").text
        response = client.get("/api/search")
        assert (
            response.status_code == 404
            and "found no collection" in response.json()["error"]
        )


def test_an_index_without_topics(served_page: ServedPage) -> None:
    collection = open_collection(index=served_page.page.index.directory)
    with closing(SearchPage(collection, dict)) as page:
        assert describe(page)["topics"] == []
        posts = results(page, search_request(page, {"q": "storm", "model": "fusion"}))[
            "posts"
        ]
        assert posts and not math.isnan(posts[0]["neural"])


class OwnQueryCollection(Collection):
    """Its index has a query of its own, as of a search engine, and ids without times."""

    methods = ()

    def open_index(self) -> Any:
        index = super().open_index()

        def search(topics: Any, method: Any, **options: Any) -> Any:
            assert isinstance(method, EngineQuery)
            return index.search(topics, METHODS["ql"](), **options)

        return SimpleNamespace(
            size=index.size, posts=index.posts, id_range=None, search=search
        )


def test_an_index_with_its_own_query_and_other_ids(served_page: ServedPage) -> None:
    place = IndexPlace(folder=served_page.page.index.directory)
    collection = OwnQueryCollection("topics", [SAMPLE / "topics.txt"], index=place)
    with closing(SearchPage(collection, lambda: models().served)) as page:
        description = describe(page)
        assert (description["methods"], description["method"]) == ([], "")
        assert description["clocks"] is False
        assert [model["name"] for model in description["models"]] == [
            "window",
            "mp_hcnn",
        ]
        assert description["topics"][0]["time"] is description["grades_file"] is None
        with pytest.raises(RequestError, match="--grades FILE"):
            page.grade(page.topics["1"], "1", 1)
        content = results(page, search_request(page, {"q": "storm"}))
        assert content["first_stage"] == "the engine's own query"
        assert content["posts"][0]["time"] is None
        with pytest.raises(RequestError, match="have no time in them"):
            search_request(page, {"q": "storm", "time": "2012-02-01T00:00"})
