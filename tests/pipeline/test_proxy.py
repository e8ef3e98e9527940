"""Searches in front of an engine: what is reranked, what passes, and what happens on failures."""

import gzip
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.proxy_samples import VENDOR, StubEngine, search, stub_engine
from helpers.reranking_samples import POSTS
from helpers.service_samples import QUERY, GatedScorer, client_of, scored_by
from starlette.testclient import TestClient

from pipeline.service.proxy import search as searches
from pipeline.service.proxy import upstream
from pipeline.service.proxy.search import PostFields, SearchDefaults, ServedIndex
from pipeline.service.record import LOG, JsonFormatter
from pipeline.service.requests import Limits
from rerankers.text.passages import best_passages

WINDOW = 100


@pytest.fixture(scope="module")
def served() -> Iterator[StubEngine]:
    with stub_engine() as (_, opened):
        yield opened


@pytest.fixture
def engine(served: StubEngine) -> StubEngine:
    served.clear()
    return served


@pytest.fixture(scope="module")
def client(served: StubEngine) -> Iterator[TestClient]:
    with client_of(engine=served.url, defaults=SearchDefaults(seconds=60)) as opened:
        yield opened


@pytest.fixture
def direct(engine: StubEngine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine.url) as opened:
        yield opened


def restored(hit: dict[str, Any]) -> dict[str, Any]:
    """A reranked hit as the engine gave it."""
    actual = dict(hit) | {"_score": hit["fields"]["_first_stage_score"][0]}
    others = {name: v for name, v in hit["fields"].items() if name != "_first_stage_score"}
    del actual["fields"]
    return actual | ({"fields": others} if others else {})


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/posts/_search", {}),
        ("/p*/_search", {"from": 7, "size": 5}),
        ("/a,b*/_search?routing=x", {"sort": [{"_score": "desc"}, "n"], "size": 30}),
        ("/posts/_search?from=90&size=20", {"size": 3, "track_total_hits": False}),
        ("/posts/_search", {"_source": False, "aggs": {}, "highlight": {}}),
        ("/posts/_search", {"fields": ["con*"], "_source": False}),
        ("/posts/_search", {"fields": ["*"], "explain": True, "size": 100}),
        ("/posts/_search", {"stored_fields": ["x"]}),
    ],
)
def test_the_window_is_reranked_and_its_page_shown(
    client: TestClient, direct: httpx.Client, engine: StubEngine, path: str, more: dict[str, Any]
) -> None:
    before = direct.post(path, json=search(**more))
    parameters = before.request.url.params
    start = int(parameters.get("from", more.get("from", 0)))
    size = int(parameters.get("size", more.get("size", 10)))
    window = max(WINDOW, start + size)
    bare = path.partition("?")[0]
    whole = direct.post(bare, json=search(**more | {"size": window, "from": 0})).json()
    engine.requests.clear()
    answer = client.post(path, json=search(**more))
    assert answer.status_code == 200
    assert answer.headers["x-reranked"] == "true"
    actual = answer.json()
    mixed = engine.mixture(whole["hits"]["hits"])
    page = list(mixed)[start : start + size]
    hits = actual["hits"].pop("hits")
    assert [hit["_id"] for hit in hits] == page
    assert [hit["_score"] for hit in hits] == pytest.approx([mixed[i] for i in page], abs=1e-5)
    of_engine = {hit["_id"]: hit for hit in whole["hits"]["hits"]}
    assert [restored(hit) for hit in hits] == [of_engine[doc_id] for doc_id in page]
    rest = before.json()
    del rest["hits"]["hits"]
    assert actual == rest
    [asked] = engine.bodies
    assert (asked["from"], asked["size"]) == (0, window)
    assert asked["query"] == search()["query"]
    assert "from=90" not in str(engine.requests[-1][0].url)


def test_the_bytes_of_a_hit_stay_as_they_are(client: TestClient, direct: httpx.Client) -> None:
    """Numbers of any length, halves of surrogate pairs, and a key that is there twice."""
    plain = direct.post("/posts/_search", json=search(size=100)).text
    answer = client.post("/posts/_search", json=search(size=100)).text
    cut = re.compile(r'"_score":[\d.]+,|,"fields":\{"_first_stage_score":\[[\d.]+\]\}')
    before, after = (
        {item.rstrip(",]}") for item in cut.sub("", text).split('{"_index"')}
        for text in (plain, answer)
    )
    assert before == after
    assert '"n":123456789012345678901234567890,"x":1.0E-4,"x":2.50,"half":"\\ud83d"' in answer


def test_packed_responses(engine: StubEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their content is bounded as that of others; what is no gzip is no answer."""
    texts = set()
    monkeypatch.setattr(upstream, "UNPACKED", 1000)
    for encoding in ("identity", "gzip"):
        monkeypatch.setattr(upstream, "encoding_of", lambda url, encoding=encoding: encoding)
        with client_of(engine=engine.url) as client:
            answer = client.post("/posts/_search", json=search())
            assert answer.headers["x-reranked"] == "true"
            texts.add(answer.text)
    assert len(texts) == 1
    assert engine.requests[-1][0].headers["accept-encoding"] == "gzip"
    for content in (gzip.compress(b" " * 40_000_000), gzip.compress(b"{}")[:-3], b"{}"):
        engine.packed = content
        with client_of(engine=engine.url) as client:
            answer = client.post("/posts/_search", json={})
            assert (answer.status_code, answer.json()["status"]) == (502, 502)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"\xff{}", b'{"hits":{"hits":[{"_id":"1"', b'{"hits":' * 5000),
        b'{"hits":{"hits":[5,{"_score":"x"},{}]}}',
    ],
)
def test_responses_without_a_ranking_pass(
    client: TestClient, engine: StubEngine, content: bytes
) -> None:
    """Marked, if they are objects."""
    engine.packed = gzip.compress(content)
    for path, body in (("_search", json.dumps(search())), ("_msearch", line_pair({}))):
        answer = client.post(f"/posts/{path}", content=body)
        assert (answer.status_code, answer.headers["x-reranked"]) == (200, "false")
        assert answer.content.replace(b'"_reranked":false,', b"") == content


UNCHANGED: dict[str, tuple[str, Any]] = {
    "no text": ("", {"query": {"match_all": {}}}),
    "text that excludes": ("", {"query": {"bool": {"must_not": [search()["query"]]}}}),
    "blank text": ("", search(" ")),
    "another sort": ("", search(sort=["n"])),
    "worst first": ("", search(sort=[{"_score": "asc"}])),
    "sort in the path": ("?sort=n", search()),
    "sort in the body": ("?sort=_score", search(sort=["n"])),
    "no number below one in the path": ("?from=3", search(**{"from": "x"})),
    "no hits": ("", search(size=0)),
    "search after": ("", search(search_after=[1, 2])),
    "point in time": ("", search(pit={"id": "x"})),
    "collapse": ("", search(collapse={"field": "n"})),
    "scroll": ("?scroll=1m", search()),
    "part of the answer": ("?filter_path=hits.hits._id", search()),
    "pipeline of the engine": ("?search_pipeline=mine", search()),
    "its pipeline, with its ext": ("?search_pipeline=mine", search(ext={"rerank": {"x": 1}})),
    "no stored fields": ("", search(stored_fields="_none_")),
    "too many": ("", search(size=5000)),
    "negative": ("", search(size=-1)),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_other_searches_pass_unchanged(
    client: TestClient, direct: httpx.Client, engine: StubEngine, name: str
) -> None:
    parameters, body = UNCHANGED[name]
    content = body if isinstance(body, str) else json.dumps(body)
    headers = {"content-type": "application/json"}
    first, second = (
        item.post(f"/posts/_search{parameters}", content=content, headers=headers)
        for item in (direct, client)
    )
    assert (second.status_code, second.content) == (first.status_code, first.content)
    assert [body.decode() for _, body in engine.requests] == [content, content]
    assert second.headers.get("x-reranked") == ("false" if first.is_success else None)


def test_long_texts_are_read_by_their_best_passages(
    client: TestClient, direct: httpx.Client, engine: StubEngine
) -> None:
    """And come back whole."""
    lunch, cuts = "lunch was good today , see you " * 100, POSTS[0][0]
    for row, text in ((50, lunch + cuts), (51, f"{cuts} {lunch}"), (52, lunch)):
        engine.posts[row]["contents"] = text
    whole = direct.post("/posts/_search", json=search(size=100)).json()["hits"]["hits"]
    hits = client.post("/long/_search", json=search(size=100)).json()["hits"]["hits"]
    assert [restored(hit) for hit in hits] == [
        next(each for each in whole if each["_id"] == hit["_id"]) for hit in hits
    ]
    texts = [post["contents"] for post in engine.posts[:100]]
    for post, passage in zip(engine.posts, best_passages([QUERY] * 100, texts), strict=False):
        post["contents"] = passage
    mixed = engine.mixture(whole)
    assert {hit["_id"]: hit["_score"] for hit in hits} == pytest.approx(mixed, abs=1e-5)
    ranks = {hit["_id"].partition('"')[0]: rank for rank, hit in enumerate(hits)}
    assert max(ranks["50"], ranks["51"]) < ranks["52"]


def rerank(**more: Any) -> dict[str, Any]:
    return {"ext": {"rerank": more}}


MATCH, PATH = {"match": {"x": "s"}}, "query.bool.must"
TEXTS: list[tuple[Any, str | None, str]] = [
    ({"match": {"contents": "a b"}}, "a b", ""),
    ({"match": {"a": None, "a.b": "x"}}, "x", "query.match.a.b"),
    ({"match": {"a": {"query": "a b", "operator": "and"}}}, "a b", ""),
    ({"match": {"n": 12}}, "12", ""),
    ({"multi_match": {"query": "a", "fields": ["x"]}}, "a", ""),
    ({"query_string": {"query": "a AND b"}}, "a AND b", ""),
    ({"simple_query_string": {"query": "a +b"}}, "a +b", ""),
    ({"bool": {"filter": [{"match": {"x": "f"}}], "should": MATCH}}, "s", ""),
    ({"bool": {"filter": [{"term": {"x": 1}}, MATCH]}}, "s", ""),
    ({"bool": {"filter": [{"term": {}}, MATCH]}}, "s", "query.bool.filter.1.match.x"),
    ({"bool": {"must": {"match": {"a": {"query": "x"}}}}}, "x", "query.bool.must.match.a.query"),
    ({"dis_max": {"queries": [{"term": {}}, MATCH]}}, "s", ""),
    ({"function_score": {"query": {"bool": {"must": MATCH}}}}, "s", ""),
    ({"nested": {"path": "p", "query": {"match": {"p.x": "n"}}}}, "n", ""),
    ({"boosting": {"negative": MATCH}}, None, ""),
    ({"bool": {"must_not": MATCH}}, None, ""),
    ({"term": {"match": {"query": "no"}}}, None, ""),
    ({"match": {"x": {"query": True}}}, None, ""),
    ({"match": "odd"}, None, ""),
    ("odd", None, ""),
]
"""Queries, their texts, and paths that lead to these."""


@pytest.mark.parametrize(("query", "text", "path"), TEXTS)
def test_the_text_of_a_query(query: Any, text: str | None, path: str) -> None:
    more = rerank(query_context={"query_text_path": path}) if path else {}
    actual = searches.read_search(
        json.dumps({"query": query, **more}).encode(), [], SearchDefaults()
    )
    assert (actual.window.query if actual.window else None) == text
    assert json.loads(actual.body) == {"query": query}


def test_ext_says_how_to_rerank(client: TestClient, engine: StubEngine) -> None:
    more = rerank(
        query_context={"query_text": QUERY}, rerank_window=20, document_fields=["contents"]
    )
    answer = client.post("/posts/_search", json={"query": {"match_all": {}}, "size": 5, **more})
    hits = answer.json()["hits"]["hits"]
    assert answer.headers["x-reranked"] == "true"
    assert [hit["fields"].keys() for hit in hits] == [{"_first_stage_score"}] * 5
    assert engine.bodies == [{"query": {"match_all": {}}, "size": 20, "from": 0}]
    best = {hit["_score"] for hit in hits}
    with_urls = client.post("/posts/_search", json=search(size=5, **rerank(rerank_window=20)))
    assert best != {hit["_score"] for hit in with_urls.json()["hits"]["hits"]}


@pytest.mark.parametrize("outside", [{"url"}, {"contents", "url"}])
def test_fields_outside_the_source_are_asked_for(
    client: TestClient, engine: StubEngine, outside: set[str]
) -> None:
    """Once after the source has been looked at, then at once."""
    body, path = search(size=20), f"/posts,{','.join(sorted(outside))}/_search"
    expected = client.post("/posts/_search", json=body).json()
    engine.requests.clear()
    engine.outside = outside
    actual = [client.post(path, json=body).json() for _ in range(2)]
    assert [hit["_score"] for hit in actual[1]["hits"]["hits"]] == [
        hit["_score"] for hit in expected["hits"]["hits"]
    ]
    assert [hit["fields"].keys() for hit in actual[0]["hits"]["hits"]] == [
        {"_first_stage_score"}
    ] * 20
    assert actual[0] == actual[1]
    asked = [item.get("fields") for item in engine.bodies]
    assert asked == [None, ["contents", "url"], ["contents", "url"]]


@pytest.mark.parametrize("name", ["posts,notes", "posts*,n*", "notes", "mine"])
@pytest.mark.parametrize("more", [{}, {"_source": False}], ids=["sources", "no sources"])
def test_each_index_has_its_own_fields(engine: StubEngine, more: dict[str, Any], name: str) -> None:
    """Searched together, by a pattern, alone, or behind an alias."""
    own = ServedIndex("mp_hcnn", PostFields(("body",), "link"))
    defaults = SearchDefaults(seconds=60, served={"mine" if name == "mine" else "notes": own})
    lines = line_pair({"index": name.split(",")}, search(**more))
    with client_of(engine=engine.url, defaults=defaults) as client:
        before = client.post("/posts/_search", json=search(**more)).json()["hits"]["hits"]
        for row in range(0, 120, 2 if "posts" in name else 1):
            post = engine.posts[row]
            engine.posts[row] = {"body": post["contents"], "link": post["url"]}
        alone = client.post(f"/{name}/_search", json=search(**more))
        several = client.post("/_msearch", content=lines)
    for found in (alone.json(), several.json()["responses"][0]):
        actual = found["hits"]["hits"]
        assert {hit["_index"] for hit in actual} >= {"notes"}
        assert [hit["_id"] for hit in actual] == [hit["_id"] for hit in before]
        scores = [hit["_score"] for hit in before]
        assert [hit["_score"] for hit in actual] == pytest.approx(scores, abs=1e-5)
        assert all(hit["fields"].keys() == {"_first_stage_score"} for hit in actual)


def test_ext_false_passes(client: TestClient, direct: httpx.Client, engine: StubEngine) -> None:
    actual = client.post("/posts/_search", json=search(ext={"rerank": False}))
    assert actual.content == direct.post("/posts/_search", json=search()).content
    assert actual.headers["x-reranked"] == "false"


WRONG: dict[str, list[Any]] = {
    "query_context": [5, {"query_text": 5}, {"query_text_path": "query.match.other"}],
    "rerank_window": [0, "9"],
    "document_fields": [[], "contents"],
    "model": [5, "unknown"],
}


def test_a_wrong_ext_is_refused(client: TestClient, engine: StubEngine) -> None:
    for wrong in (5, *({name: value} for name, values in WRONG.items() for value in values)):
        answer = client.post("/posts/_search", json=search(ext={"rerank": wrong}))
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "illegal_argument_exception"
        assert re.search("ext.rerank|model", answer.json()["error"]["reason"])
    assert engine.requests == []


def test_several_searches(client: TestClient, direct: httpx.Client, engine: StubEngine) -> None:
    bodies = [search(size=3), {"query": {"match_all": {}}}, search(size=-1), search("cuts", size=2)]
    lines = "".join(f"{{}}\n{json.dumps(body)}\n" for body in bodies)
    headers = {"content-type": "application/x-ndjson"}
    actual, before = (
        item.post("/posts/_msearch", content=lines, headers=headers) for item in (client, direct)
    )
    assert actual.headers["content-type"] == VENDOR
    assert actual.json()["took"] == 4
    answers = actual.json()["responses"]
    assert [item["status"] for item in answers] == [200, 200, 400, 200]
    assert answers[1:3] == before.json()["responses"][1:3]
    for row in (0, 3):
        alone = client.post("/posts/_search", json=bodies[row]).json()
        # The page's sizes differ, and so does the last digit of a score.
        for item in [*answers[row]["hits"]["hits"], *alone["hits"]["hits"]]:
            item["_score"] = round(item["_score"], 4)
        assert answers[row] == alone | {"status": 200}
        assert "_first_stage_score" in answers[row]["hits"]["hits"][0]["fields"]


def test_a_window_that_the_engine_refuses(
    client: TestClient, direct: httpx.Client, engine: StubEngine
) -> None:
    """The caller's own search goes out in its place, one of several too."""
    engine.largest = 50
    expected = direct.post("/posts/_search", json=search()).json()
    assert client.post("/posts/_search", json=search()).json() == {"_reranked": False} | expected
    lines = "".join(f"{{}}\n{json.dumps(item)}\n" for item in (search(), search(size=60)))
    actual = client.post("/posts/_msearch", content=lines).json()["responses"]
    assert actual[0] == {"_reranked": False, "status": 200} | expected
    assert actual[1]["status"] == 400


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_clients_may_ask_who_it_is(client: TestClient, engine: StubEngine, method: str) -> None:
    assert client.request(method, "/").headers["x-elastic-product"] == "Elasticsearch"
    page = client.get("/", headers={"accept": "text/html,*/*"})
    assert page.headers["content-type"].startswith("text/html")
    assert len(engine.requests) == 1


def test_a_get_with_a_body_or_a_text_and_a_packed_body(
    client: TestClient, engine: StubEngine
) -> None:
    content = client.request("GET", "/posts/_search", json=search(size=4)).json()
    assert content == client.post("/posts/_search", json=search(size=4)).json()
    assert [request.method for request, _ in engine.requests] == ["GET", "POST"]
    assert content == client.get("/posts/_search", params={"q": QUERY, "size": "4"}).json()
    packed = gzip.compress(json.dumps(search(size=4)).encode())
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    assert content == client.post("/posts/_search", content=packed, headers=headers).json()
    assert "content-encoding" not in engine.requests[-1][0].headers


OTHERS = "PUT /posts, POST /posts/_doc, DELETE /posts, POST /_bulk, PUT /posts/_search"


@pytest.mark.parametrize(
    "other", [*OTHERS.split(", "), "POST /posts/_doc/_search", "GET /_cluster/health"]
)
def test_nothing_else_passes(client: TestClient, engine: StubEngine, other: str) -> None:
    answer = client.request(*other.split(), json={})
    assert answer.status_code == answer.json()["status"] == 404
    assert answer.json()["error"]["type"] == "resource_not_found_exception"
    assert engine.requests == []


LOOKUP = {"terms": {"n": {"index": ".keys", "id": "1", "path": "x"}}}


def line_pair(header: Any, body: Any = None) -> str:
    return f"{json.dumps(header)}\n{json.dumps(body or search())}\n"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        *((f"/{name}/_search", json.dumps(search())) for name in (".plugins-ml-config", "_all")),
        *((f"/{name}/_search", json.dumps(search())) for name in ("other", "*", "p*", "posts-a,b")),
        *((f"/{name}/_pit", "") for name in ("%2ekeys", "%5fall", "posts-%2c.keys", "r:posts-1")),
        ("/%3Cposts-%7Bnow%7D%3E,posts-1/_search", json.dumps(search())),
        ("/%2e%2e/_search", json.dumps(search())),
        ("/_security/_search", json.dumps(search())),
        ("/_search", json.dumps(search())),
        ("/_search?index=posts-1", json.dumps(search())),
        ("/posts-1/_search", json.dumps({"query": LOOKUP})),
        ("/posts-1/_search?x=1;source=" + json.dumps({"query": LOOKUP}), ""),
        ("/posts-1/_search", '{"query": {}, "query": {}}'),
        ("/posts-1/_search", '{"size": 1} // comment'),
        ("/_msearch", line_pair({})),
        ("/posts-1/_msearch", line_pair({}) + line_pair({"index": ["posts-1", ".keys"]})),
        ("/posts-1/_msearch", line_pair({"index": "posts-1,.keys"})),
        ("/posts-1/_msearch", line_pair({}, {"query": LOOKUP})),
        ("/posts-1/_msearch", line_pair({})[:-1]),
    ],
)
def test_other_indexes_are_refused(engine: StubEngine, path: str, content: str) -> None:
    """Those of the engine itself first; nothing of the request reaches it."""
    with client_of(engine=engine.url, defaults=SearchDefaults(indexes=("posts-*",))) as client:
        answer = client.post(path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 403), answer.text
        if answer.status_code == 403:
            assert answer.json()["error"]["type"] == "security_exception"
            assert "expected one of posts-*" in answer.json()["error"]["reason"]
        assert engine.requests == []
        for good in ("posts-1", "posts-*", "posts-a*,posts-b"):
            assert client.post(f"/{good}/_search", json=search()).status_code == 200
        assert client.post("/_search", json=search(pit={"id": "x"})).status_code == 200


def test_a_pattern_for_all_indexes_leaves_out_those_of_the_engine(
    client: TestClient, engine: StubEngine
) -> None:
    assert client.post("/*/_search", json=search()).status_code == 200
    lines = line_pair({"index": "*"}) + line_pair({"index": "posts"})
    assert client.post("/_msearch", content=lines).status_code == 200
    assert engine.requests[0][0].url.path == "/*,-.*/_search"
    assert [json.loads(line) for line in engine.requests[1][1].split(b"\n")[:-1:2]] == [
        {"index": ["*", "-.*"]},
        {"index": "posts"},
    ]


@pytest.mark.parametrize("path", ["/_search/scroll", "/posts/_search/point_in_time", "/posts/_pit"])
def test_long_results_are_read_on(client: TestClient, engine: StubEngine, path: str) -> None:
    assert client.post(f"{path}?keep_alive=1m", content=b"{}").status_code == 200
    assert engine.requests[0][0].url.path == path


def test_headers_of_both_sides(
    client: TestClient, engine: StubEngine, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {
        "content-type": VENDOR,
        "accept": VENDOR,
        "authorization": "ApiKey x",
        "cookie": "a=b",
        "x-opaque-id": "7",
        "user-agent": "elasticsearch-py/9",
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
    }
    caplog.set_level("INFO", LOG.name)
    answer = client.post("/posts/_search", content=json.dumps(search()), headers=headers)
    sent = engine.requests[0][0].headers
    assert {name: sent.get(name) for name in headers} == headers | {"cookie": None}
    assert sent.getlist("content-type") == [VENDOR]
    assert answer.headers["content-type"] == VENDOR
    assert answer.headers["x-elastic-product"] == "Elasticsearch"
    assert answer.headers["warning"] == '299 "old"'
    assert "set-cookie" not in answer.headers
    logged = json.loads(JsonFormatter().format(caplog.records[-1]))
    assert (logged["trace_id"], logged["parent_span_id"]) == ("a" * 32, "b" * 16)
    labels = 'index="*",model="mp_hcnn",outcome="ok",stage="engine"'
    assert f"tweetrerank_seconds_count{{{labels}}}" in client.get("/metrics").text


def test_keys_protect_the_scores_alone(engine: StubEngine) -> None:
    with client_of(keys=["secret"], engine=engine.url) as client:
        assert client.post("/posts/_search", json=search()).status_code == 200
        assert client.get("/").status_code == 200
        assert client.put("/posts").status_code == 404
        for path in ("/", "/rerank", "/v2/rerank"):
            assert client.post(path, json={}).status_code == 401
        assert client.get("/info").status_code == 401


def outcomes(client: TestClient) -> dict[str, float]:
    pattern = r'tweetrerank_searches\{index="[^"]*",outcome="(\w+)"\} (\S+)'
    actual = re.findall(pattern, client.get("/metrics").text)
    return {name: float(count) for name, count in actual}


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_errors_of_the_engine_pass(
    client: TestClient, direct: httpx.Client, engine: StubEngine, status: int
) -> None:
    engine.fail = status
    expected = direct.post("/posts/_search", json=search())
    answer = client.post("/posts/_search", json=search())
    assert (answer.status_code, answer.content) == (status, expected.content)
    assert client.post("/posts/_msearch", content=b"{}\n{}\n").status_code == status


def test_large_responses_are_bounded(engine: StubEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a window gives way to the caller's own page; of one by one, and of all together."""
    monkeypatch.setattr(upstream, "LARGEST", 10_000)
    lines = line_pair({}, search(size=2)) + line_pair({}, search(size=3))
    with client_of(engine=engine.url) as client:
        for _ in range(20):  # What was read is released.
            answer = client.post("/posts/_search", json=search())
            assert (answer.status_code, answer.json()["_reranked"]) == (200, False)
            assert len(answer.json()["hits"]["hits"]) == 10
        several = client.post("/posts/_msearch", content=lines)
        assert [len(item["hits"]["hits"]) for item in several.json()["responses"]] == [2, 3]
        whole = client.post("/posts/_search", json=search(size=100))
        assert whole.status_code == 502
        assert "found more than 10000 bytes" in whole.json()["error"]["reason"]
        monkeypatch.setattr(upstream, "HELD", 1_000)
        assert client.post("/posts/_search", json=search(size=3)).status_code == 429


def test_an_engine_that_is_away(engine: StubEngine) -> None:
    with client_of(engine="http://127.0.0.1:9") as client:
        answer = client.post("/posts/_search", json=search())
        assert answer.status_code == 502
        assert answer.json()["error"]["type"] == "proxy_exception"
        assert outcomes(client) == {"away": 1}
    engine.wait = 2
    with client_of(engine=engine.url) as client:
        headers = {"x-request-timeout-ms": "200"}
        answer = client.post("/posts/_search", json=search(), headers=headers)
        assert answer.status_code == 504
        assert answer.json()["status"] == 504


def test_a_node_that_takes_no_connection(
    engine: StubEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is asked, within the time of the request."""
    monkeypatch.setattr(upstream, "CONNECTING", 0.3)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        silent = f"http://127.0.0.1:{full.getsockname()[1]}"
        with client_of(engine=f"{silent},{engine.url}") as client:
            assert client.post("/posts/_search", json=search()).status_code == 200
            assert len(engine.requests) == 1
        with client_of(engine=f"{silent},{silent}") as client:
            headers = {"x-request-timeout-ms": "400"}
            started = time.perf_counter()
            answer = client.post("/posts/_search", json=search(), headers=headers)
            assert answer.status_code in (502, 504)
            assert time.perf_counter() - started < 0.8


def failing(*_: Any) -> np.ndarray[Any, Any]:
    raise ValueError("broken")


@pytest.mark.parametrize("problem", ["broken", "late", "overload", "no text"])
def test_a_reranker_that_fails(direct: httpx.Client, engine: StubEngine, problem: str) -> None:
    """The engine's own ranking goes out, marked and counted, without our fields."""
    scorer = GatedScorer()
    options: dict[str, Any] = {"models": scored_by(scorer), "defaults": SearchDefaults(seconds=0.2)}
    if problem == "broken":
        scorer.score = failing  # type: ignore[method-assign]
    if problem == "no text":
        options = {"defaults": SearchDefaults(PostFields(("other",), None))}
    if problem == "overload":
        options["limits"] = Limits(waiting_requests=0)
    body = search(_source=False, size=7, **{"from": 3})
    plain = direct.post("/posts/_search", json=body).json()
    with client_of(engine=engine.url, **options) as client:
        if problem == "overload":
            client.app.service.queue.requests = 1  # type: ignore[attr-defined]
        started = time.perf_counter()
        answer = client.post("/posts/_search", json=body)
        assert time.perf_counter() - started < 5
        assert answer.json() == {"_reranked": False} | plain
        assert answer.headers["x-reranked"] == "false"
        assert outcomes(client) == {"failed": 1}
        scorer.gate.set()


def test_outcomes_are_counted(engine: StubEngine) -> None:
    with client_of(engine=engine.url) as client:
        client.post("/posts/_search", json=search())
        client.post("/posts/_search", json={})
        client.post("/posts/_search", json=search(size=-1))
        assert outcomes(client) == {"reranked": 1, "unchanged": 1, "refused": 1}
        assert 'tweetrerank_requests{format="search"} 1' in client.get("/metrics").text
