"""Searches in front of an engine: what is reranked, what passes, and what happens on failures."""

import gzip
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import yaml
from conftest import Patch
from helpers.processes import ROOT
from helpers.proxy_samples import VENDOR, StubEngine, restored, search, stub_engine
from helpers.reranking_samples import POSTS
from helpers.service_samples import QUERY, GatedScorer, client_of, scored_by
from httpx import Client
from starlette.testclient import TestClient

from tweetrerank.pipeline.service.json_log import LOG, JsonFormatter
from tweetrerank.pipeline.service.limits import Limits
from tweetrerank.pipeline.service.proxy import upstream
from tweetrerank.pipeline.service.proxy.allowed import matches
from tweetrerank.pipeline.service.proxy.ask import (
    PostFields,
    SearchDefaults,
    read_search,
)
from tweetrerank.pipeline.service.proxy.query_text import plain_text
from tweetrerank.rerankers.text.passages import best_passages

WINDOW = 100
SEARCHES = json.loads((ROOT / "tests" / "helpers" / "searches.json").read_text("utf-8"))
"""Bodies that pass for the indexes posts-*, and that do not; queries, with their texts in the field
x, and paths that lead to these; query strings, with their words; searches that stay as they are, by
parameters and members beside their query, and that are reranked; headers and paths for posts-* that
do not pass, whatever their search, POST but for some."""
SYNTAX = [*SEARCHES["syntax"], ["a" * 5000, "a" * 2000]]
TEXTS = [
    [{"query_string": {"query": q, "default_field": "x"}}, words, ""]
    for q, words in SYNTAX
]


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


@pytest.fixture(scope="module")
def limited(served: StubEngine) -> Iterator[TestClient]:
    """A client who may read the indexes posts-* alone."""
    with client_of(
        engine=served.url, defaults=SearchDefaults(indexes=("posts-*",))
    ) as opened:
        yield opened


@pytest.fixture
def direct(engine: StubEngine) -> Iterator[Client]:
    with Client(base_url=engine.url) as opened:
        yield opened


@pytest.mark.parametrize(("path", "more"), SEARCHES["reranked"])
def test_the_window_is_reranked_and_its_page_shown(
    client: TestClient,
    direct: Client,
    engine: StubEngine,
    path: str,
    more: dict[str, Any],
) -> None:
    before = direct.post(path, json=search(**more))
    given = {"from": 0, "size": 10} | more | {**before.request.url.params}
    start, size = int(given["from"]), int(given["size"])
    window = max(WINDOW, start + size)
    body = search(**more | {"size": window, "from": 0})
    whole = direct.post(path.partition("?")[0], json=body).json()
    engine.requests.clear()
    answer = client.post(path, json=search(**more))
    assert (answer.status_code, answer.headers["x-reranked"]) == (200, "true")
    actual = answer.json()
    mixed = engine.mixture(whole["hits"]["hits"][:WINDOW])
    page = list(mixed)[start : start + size]
    hits = actual["hits"].pop("hits")
    new, after = hits[: len(page)], hits[len(page) :]
    assert [hit["_score"] for hit in new] == pytest.approx(
        [mixed[i] for i in page], abs=1e-5
    )
    of_engine = {hit["_id"]: hit for hit in whole["hits"]["hits"]}
    assert [*map(restored, new)] == [of_engine[doc_id] for doc_id in page]
    # After the window the engine's hits as they are.
    assert after == whole["hits"]["hits"][max(WINDOW, start) : start + size]
    rest = before.json()
    del rest["hits"]["hits"]
    rest["hits"]["max_score"] = pytest.approx(max(mixed.values()), abs=1e-5)
    assert actual == rest
    [asked] = engine.bodies
    assert (asked["from"], asked["size"]) == (0, window) and asked["query"] == search()[
        "query"
    ]
    assert "from=90" not in str(engine.requests[-1][0].url)


@pytest.mark.parametrize(
    ("depth", "size"), [(100, 7), (20, 20), (30, 9), (13, 50), (500, 30)]
)
def test_pages_show_every_hit_once(engine: StubEngine, depth: int, size: int) -> None:
    """The window, then the engine's hits after it, whatever the size."""
    shown = []
    with client_of(
        engine=engine.url, defaults=SearchDefaults(seconds=60, candidates=depth)
    ) as client:
        for start in range(0, 130, size):
            page = client.post(
                "/posts/_search", json=search(**{"from": start, "size": size})
            )
            assert page.headers["x-reranked"] == str(start < depth).lower()
            shown += [hit["_id"] for hit in page.json()["hits"]["hits"]]
    assert len({*shown}) == len(shown) == 120
    assert [int(name.partition('"')[0]) for name in shown[depth:]] == [
        *range(depth, 120)
    ]


def test_the_bytes_of_a_hit_stay_as_they_are(
    client: TestClient, direct: Client
) -> None:
    """Numbers of any length and form, and a key that is there twice."""
    plain = direct.post("/posts/_search", json=search(size=100)).text
    answer = client.post("/posts/_search", json=search(size=100)).text
    cut = re.compile(r'"_score":[\d.]+,|,"fields":\{"_first_stage_score":\[[\d.]+\]\}')
    hits = [cut.sub("", text).split('{"_index"')[1:] for text in (plain, answer)]
    before, after = ({hit.rstrip(",]}") for hit in each} for each in hits)
    assert before == after
    assert '"n":123456789012345678901234567890,"x":1.0E-4,"x":2.50,"y":1e5' in answer
    assert answer.startswith(plain.partition('"max_score"')[0].replace(", ", ","))


def test_packed_responses(engine: StubEngine, monkeypatch: Patch) -> None:
    """Their content is bounded as that of others; what is no gzip is no answer."""
    texts = set()
    for encoding in ("identity", "gzip"):
        monkeypatch.setattr(
            upstream, "encoding_of", lambda url, encoding=encoding: encoding
        )
        with client_of(engine=engine.url) as client:
            texts.add((answer := client.post("/posts/_search", json=search())).text)
            assert answer.headers["x-reranked"] == "true"
    assert len(texts) == 1
    assert engine.requests[-1][0].headers["accept-encoding"] == "gzip"
    for content in (gzip.compress(b" " * 40_000_000), b"{}"):
        engine.packed = content
        with client_of(engine=engine.url) as client:
            answer = client.post("/posts/_search", json={})
            assert (answer.status_code, answer.json()["status"]) == (502, 502)


def test_answers_without_a_ranking(client: TestClient, engine: StubEngine) -> None:
    """Marked, if they are objects."""
    for content in (
        *(b"", b"[]", b"\xff{}", b'{"hits":{"hits":[{"_id":"1"', b'{"hits":' * 5000),
        b'{"hits":{"hits":[5,{"_score":"x"},{}]}}',
        b'{"hits":{"hits":[{"_score":-9549511700.0}]}}',
        b'{"hits":{"hits":[{"_score":1.0,"_source":{"contents":"half \\ud83d"}}]}}',
    ):
        engine.packed = gzip.compress(content)
        for path, body in (
            ("_search", json.dumps(search())),
            ("_msearch", line_pair({})),
        ):
            answer = client.post(f"/posts/{path}", content=body)
            assert (answer.status_code, answer.headers["x-reranked"]) == (200, "false")
            assert answer.content.replace(b'"_reranked":false,', b"") == content


@pytest.mark.parametrize("row", SEARCHES["unchanged"], ids=lambda row: row[0])
def test_other_searches(
    client: TestClient, direct: Client, engine: StubEngine, row: Any
) -> None:
    path, body = f"/posts/_search{row[1]}", search() | row[2]
    own = {key: value for key, value in body.items() if value != {"rerank": False}}
    first, second = direct.post(path, json=own), client.post(path, json=body)
    assert (second.status_code, second.content) == (first.status_code, first.content)
    before, after = engine.bodies
    after.pop("ext", None)
    assert before.items() >= after.items()
    assert second.headers.get("x-reranked") == ("false" if first.is_success else None)
    assert bool(second.headers.get("x-not-reranked")) == first.is_success


def test_passages_of_long_texts(
    client: TestClient, direct: Client, engine: StubEngine
) -> None:
    lunch, cuts = "lunch was good today , see you " * 100, POSTS[0][0]
    for row, text in ((50, lunch + cuts), (51, f"{cuts} {lunch}"), (52, lunch)):
        engine.posts[row]["contents"] = text
    whole = direct.post("/posts/_search", json=search(size=100)).json()["hits"]["hits"]
    hits = client.post("/long/_search", json=search(size=100)).json()["hits"]["hits"]
    of_engine = {hit["_id"]: hit for hit in whole}
    assert [*map(restored, hits)] == [of_engine[hit["_id"]] for hit in hits]
    texts = [post["contents"] for post in engine.posts[:100]]
    for post, passage in zip(
        engine.posts, best_passages([QUERY] * 100, texts), strict=False
    ):
        post["contents"] = passage
    mixed = engine.mixture(whole)
    assert {hit["_id"]: hit["_score"] for hit in hits} == pytest.approx(mixed, abs=1e-5)
    ranks = {hit["_id"].partition('"')[0]: rank for rank, hit in enumerate(hits)}
    assert max(ranks["50"], ranks["51"]) < ranks["52"]


@pytest.mark.parametrize(("query", "text", "path"), SEARCHES["texts"] + TEXTS)
def test_the_text_of_a_query(query: Any, text: str | None, path: str) -> None:
    defaults = SearchDefaults(PostFields(("x",), None))
    more = (
        {"ext": {"rerank": {"query_context": {"query_text_path": path}}}}
        if path
        else {}
    )
    contents = [{"query": query}, {"retriever": {"standard": {"query": query}}}]
    for content in contents[:1] if path else contents:
        actual = read_search(content | more, {}, defaults)
        assert (actual.candidates.query if actual.candidates else None) == text
        assert actual.outcome == ("unchanged" if text else "no_text")
        assert json.loads(actual.body) == content


def test_syntax_is_read_in_linear_time() -> None:
    started = time.perf_counter()
    for part in ("((", "[", "/", '"', "a:", "\\", "-"):
        for fields in (None, ["x"]):
            plain_text(part * 9999, fields)
    assert not matches("*a" * 2000 + "b", "a" * 4000)
    assert matches("a*a*b", "aab") and not matches("a*a", "a")
    assert time.perf_counter() - started < 1


def test_ext_says_how_to_rerank(client: TestClient, engine: StubEngine) -> None:
    given, few = {"query_context": {"query_text": QUERY}}, {"rerank_window": 20}
    more = {
        "size": 5,
        "ext": {"rerank": {**few, **given, "document_fields": ["contents"]}},
    }
    answer = client.post("/posts/_search", json={"query": {"match_all": {}}, **more})
    hits = answer.json()["hits"]["hits"]
    assert answer.headers["x-reranked"] == "true"
    assert [hit["fields"].keys() for hit in hits] == [{"_first_stage_score"}] * 5
    assert engine.bodies == [{"query": {"match_all": {}}, "size": 20, "from": 0}]
    with_urls = client.post(
        "/posts/_search", json=search(size=5, ext={"rerank": few})
    ).json()
    assert {hit["_score"] for hit in hits} != {
        hit["_score"] for hit in with_urls["hits"]["hits"]
    }


@pytest.mark.parametrize("outside", [{"url"}, {"contents", "url"}])
def test_fields_outside_sources(
    client: TestClient, engine: StubEngine, outside: set[str]
) -> None:
    """Once after the source has been looked at, then at once."""
    body, path = search(size=20), f"/posts,{','.join(sorted(outside))}/_search"
    expected = client.post("/posts/_search", json=body).json()
    engine.requests.clear()
    engine.outside = outside
    actual = [client.post(path, json=body).json() for _ in range(2)]
    first, second, usual = (found["hits"]["hits"] for found in (*actual, expected))
    assert [hit["_score"] for hit in second] == [hit["_score"] for hit in usual]
    assert [hit["fields"].keys() for hit in first] == [{"_first_stage_score"}] * 20
    assert actual[0] == actual[1]
    asked = [item.get("fields") for item in engine.bodies]
    assert asked == [None, ["contents", "url"], ["contents", "url"]]
    client.post(path, json=body | {"aggs": {"best": {"top_hits": {}}}})
    assert "fields" not in engine.bodies[-1]


@pytest.mark.parametrize(
    "more", [{}, {"_source": False}], ids=["sources", "no sources"]
)
def test_a_shard_without_sources_loses_no_hit(
    engine: StubEngine, more: dict[str, Any]
) -> None:
    """It fails where fields are asked for: the hits are reranked by their sources."""
    engine.outside, engine.lost = {"url"}, 20
    with client_of(engine=engine.url, defaults=SearchDefaults(seconds=60)) as client:
        for _ in range(2):
            answer = client.post("/posts/_search", json=search(size=120) | more)
            assert answer.headers["x-reranked"] == str(not more).lower()
            content = answer.json()
            assert len({hit["_id"] for hit in content["hits"]["hits"]}) == 120
            assert content["_shards"]["failed"] == 0


@pytest.mark.parametrize("name", ["posts,notes", "posts*,n*", "notes", "mine"])
@pytest.mark.parametrize(
    "more", [{}, {"_source": False}], ids=["sources", "no sources"]
)
def test_each_index_has_its_own_fields(
    engine: StubEngine, more: dict[str, Any], name: str
) -> None:
    """Searched together, by a pattern, alone, or behind an alias."""
    own = PostFields(("body",), "link", model="mp_hcnn")
    defaults = SearchDefaults(
        seconds=60, served={"mine" if name == "mine" else "notes": own}
    )
    query = {"multi_match": {"query": QUERY, "fields": ["contents", "body"]}}
    more = more | {"query": query}
    lines = line_pair({"index": name.split(",")}, search() | more)
    with client_of(engine=engine.url, defaults=defaults) as client:
        before = client.post("/posts/_search", json=search() | more).json()["hits"][
            "hits"
        ]
        for row in range(0, 120, 2 if "posts" in name else 1):
            post = engine.posts[row]
            engine.posts[row] = {"body": post["contents"], "link": post["url"]}
        alone = client.post(f"/{name}/_search", json=search() | more)
        several = client.post("/_msearch", content=lines)
    for found in (alone.json(), several.json()["responses"][0]):
        actual = found["hits"]["hits"]
        assert {hit["_index"] for hit in actual} >= {"notes"}
        assert [hit["_id"] for hit in actual] == [hit["_id"] for hit in before]
        scores = [hit["_score"] for hit in before]
        assert [hit["_score"] for hit in actual] == pytest.approx(scores, abs=1e-5)
        assert all(hit["fields"].keys() == {"_first_stage_score"} for hit in actual)


def test_a_wrong_ext_is_refused(client: TestClient, engine: StubEngine) -> None:
    contexts = (
        5,
        {"query_text": 5},
        {"text": "x"},
        {"query_text_path": "query.match.other"},
    )
    for wrong in (
        5,
        *({"query_context": context} for context in contexts),
        *(
            {"rerank_window": 0},
            {"rerank_window": "9"},
            {"model": 5},
            {"model": "unknown"},
        ),
        *({"document_fields": []}, {"document_fields": "contents"}, {"windw": 9}),
    ):
        answer = client.post("/posts/_search", json=search(ext={"rerank": wrong}))
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "illegal_argument_exception"
        assert re.search("ext.rerank|model", answer.json()["error"]["reason"])
    assert engine.requests == []
    assert (
        client.post("/posts/_search", json=search(ext={"rerank": None})).status_code
        == 200
    )


def test_several_searches(
    client: TestClient, direct: Client, engine: StubEngine
) -> None:
    bodies = [
        search(size=3),
        {"query": {"match_all": {}}},
        search(size=-1),
        search("cuts", size=2),
    ]
    call = {"content": "".join(line_pair({}, body) for body in bodies)}
    call["headers"] = {"content-type": "application/x-ndjson"}
    actual, before = (item.post("/posts/_msearch", **call) for item in (client, direct))
    assert actual.headers["content-type"] == VENDOR and actual.json()["took"] == 4
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


def test_a_window_that_is_refused(
    client: TestClient, direct: Client, engine: StubEngine
) -> None:
    """The caller's own search goes out in its place, one of several too."""
    engine.largest = 50
    expected = direct.post("/posts/_search", json=search()).json()
    assert (
        client.post("/posts/_search", json=search()).json()
        == {"_reranked": False} | expected
    )
    lines = line_pair({}) + line_pair({}, search(size=60))
    actual = client.post("/posts/_msearch", content=lines).json()["responses"]
    assert actual[0] == {"_reranked": False, "status": 200} | expected
    assert actual[1]["status"] == 400


def test_clients_may_ask_who_it_is(client: TestClient, engine: StubEngine) -> None:
    for method in ("GET", "HEAD"):
        assert (
            client.request(method, "/").headers["x-elastic-product"] == "Elasticsearch"
        )
    page = client.get("/", headers={"accept": "text/html,*/*"})
    assert page.headers["content-type"].startswith("text/html")
    assert len(engine.requests) == 2


def test_forms_of_a_request(client: TestClient, engine: StubEngine) -> None:
    body = search(size=4)
    content = client.request("GET", "/posts/_search", json=body).json()
    assert engine.requests[-1][0].method == "GET"
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    packed = {"content": gzip.compress(json.dumps(body).encode()), "headers": headers}
    texts = ({"q": QUERY, "size": "4"}, {"source": json.dumps(body)})
    calls: list[tuple[str, Any]] = [("GET", {"params": text}) for text in texts]
    for method, given in (*calls, ("POST", {"json": body}), ("POST", packed)):
        answer = client.request(method, "/posts/_search", **given)
        assert answer.headers["x-reranked"] == "true" and answer.json() == content
        assert engine.requests[-1][0].method == method
    assert "content-encoding" not in engine.requests[-1][0].headers
    # Without a body, its type goes with the response's, of one version of Elasticsearch or none.
    texts, yaml_type = f"{VENDOR},text/plain", VENDOR.replace("+json", "+yaml")
    for accept, kind in (
        (VENDOR, VENDOR),
        (yaml_type, VENDOR),
        (texts, "application/json"),
    ):
        client.get("/posts/_search", headers={"accept": accept, "content-type": VENDOR})
        assert engine.requests[-1][0].headers.getlist("content-type") == [kind]


BOTH = [{"_index": "posts-1", "_id": "1"}, {"_index": "posts-2", "_id": "2"}]
WRAPPER = {"wrapper": {"query": "e30="}}
LOOKUP = {"terms": {"n": {"index": ".keys", "id": "1", "path": "x"}}}


@pytest.mark.parametrize("call", SEARCHES["reads"])
def test_reads_of_served_indexes_pass(
    limited: TestClient, engine: StubEngine, call: str
) -> None:
    method, path = call.split()[0], f"/posts-1/{''.join(call.split()[1:])}".rstrip("/")
    body = {"query": {"match_all": {}}} if method == "POST" else None
    assert limited.request(method, path, json=body).status_code == 200
    request, sent = engine.requests.pop()
    assert request.method == method
    assert str(request.url).removeprefix(engine.url) == path.replace(
        "fields=*", "fields=%2A"
    )
    assert sent == (json.dumps(body, separators=(",", ":")).encode() if body else b"")
    other = limited.request(method, path.replace("posts-1", "other"), json=body)
    assert other.status_code == 403
    if method == "POST":
        assert (
            limited.request(method, path, json={"query": {"wrapper": {}}}).status_code
            == 403
        )
    assert engine.requests == []
    for path, ids in (
        ("/posts-1/_mget", {"ids": ["1", "2"]}),
        ("/_mget", {"docs": BOTH}),
    ):
        assert limited.post(path, json=ids).status_code == 200 and engine.bodies == [
            ids
        ]
        assert engine.requests.pop()[0].url.path == path


def test_an_allow_list_decides(limited: TestClient, engine: StubEngine) -> None:
    for body in SEARCHES["forbidden"]:
        contents = dict.fromkeys(
            ("_search", "_count", "_async_search"), json.dumps(body)
        )
        for path, content in (contents | {"_msearch": line_pair({}, body)}).items():
            answer = limited.post(f"/posts-1/{path}", content=content)
            assert answer.status_code == 403, (path, body)
            assert answer.json()["error"]["type"] == "security_exception"
    assert engine.requests == []
    for body in SEARCHES["allowed"]:
        assert limited.post("/posts-1/_async_search", json=body).status_code == 200, (
            body
        )
        assert engine.bodies[-1] == body


def test_bounds_come_first(engine: StubEngine, client: TestClient) -> None:
    """Of levels, values and searches: nothing is read that is not bounded."""
    deep = b'{"query":' + b'{"bool":{"must":' * 480 + b"{}" + b"}}" * 480 + b"}"
    deeper = b'{"aggs":' * 100_000 + b"{}" + b"}" * 100_000
    wide = json.dumps({"query": {"terms": {"n": [0] * 200_000}}}).encode()
    many = b'{"query":{"terms":{"n":[' + b"[]," * 2_000_000 + b"1]}}}"
    lines = b"{}\n{}\n" * 190_000
    started = time.perf_counter()
    calls = [("_search", body) for body in (deep, deeper, wide, many)]
    calls += [("_count", deep), ("_count", many), ("_msearch", lines)]
    for path, content in calls:
        for body in (content, gzip.compress(content, 1)):
            headers = {"content-encoding": "gzip"} if body is not content else {}
            assert (
                client.post(f"/posts/{path}", content=body, headers=headers).status_code
                == 400
            )
    assert time.perf_counter() - started < 3
    assert engine.requests == []


@pytest.mark.parametrize("weight", [0, 0.3, 1])
def test_a_share_of_the_model(
    engine: StubEngine, client: TestClient, weight: float
) -> None:
    """Both scores from 0 to 1 over the window; 0 is the engine's order."""
    whole = client.post(
        "/posts/_search", json=search(size=100, ext={"rerank": {"weight": weight}})
    )
    hits = whole.json()["hits"]["hits"]
    expected = engine.mixture([*map(restored, hits)], weight)
    assert [hit["_id"] for hit in hits] == [*expected]
    assert [hit["_score"] for hit in hits] == pytest.approx(
        [*expected.values()], abs=1e-4
    )
    assert whole.json()["hits"]["max_score"] == hits[0]["_score"]


@pytest.mark.parametrize("is_several", [False, True])
def test_templates_are_rendered_checked_and_reranked(
    engine: StubEngine, is_several: bool
) -> None:
    with client_of(
        engine=engine.url, defaults=SearchDefaults(indexes=("posts",))
    ) as client:
        path, body = (
            "/posts/_search/template",
            json.dumps({"source": "{…}", "params": {"a": 1}}),
        )
        if is_several:
            path, body = (
                "/posts/_msearch/template",
                f"{{}}\n{body}\n" * 2 + line_pair({}, WRAPPER),
            )
        for rendered, status in (
            (search(size=3), 200),
            ({"query": WRAPPER}, 403),
            ([], 400),
        ):
            engine.rendered = json.dumps({"template_output": rendered})
            answer = client.post(path, content=body)
            assert answer.status_code == status
            if status == 200:
                [*renders, last] = [request.url.path for request, _ in engine.requests]
                assert renders == ["/_render/template"] * (1 + is_several)
                assert last == ("/posts/_msearch" if is_several else "/posts/_search")
                items = answer.json()["responses"] if is_several else [answer.json()]
                assert [item.get("status") for item in items[2:]] == [403] * is_several
                for found in items[:2]:
                    assert "_first_stage_score" in found["hits"]["hits"][0]["fields"]


def test_pages_in_each_format(engine: StubEngine, client: TestClient) -> None:
    engine.strange = '"n":1.0E-4'
    expected = client.get("/posts/_search", params={"q": QUERY}).json()
    for more in ({"pretty": ""}, {"format": "yaml"}):
        answer = client.get("/posts/_search", params={"q": QUERY, **more})
        assert answer.headers["x-reranked"] == "true" and answer.text.count("\n") > 50
        assert yaml.safe_load(answer.text) == expected
        assert (answer.headers["content-type"] == "application/yaml") == (
            "format" in more
        )
    client.get("/posts/_search", params={"q": QUERY, "format": "cbor"})
    assert "format=cbor" in str(engine.requests[-1][0].url)


def line_pair(header: Any, body: Any = None) -> str:
    return f"{json.dumps(header)}\n{json.dumps(body or search())}\n"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        *(
            (path, json.dumps(search()) * ("_search" in path))
            for path in SEARCHES["elsewhere"]
        ),
        *(
            ("posts-1/_mget", json.dumps({"docs": [{"_id": 1, "_index": i}]}))
            for i in (".k", "p*")
        ),
        ("posts-1/_search", json.dumps({"query": LOOKUP})),
        ("posts-1/_search?pretty=1;source=" + json.dumps({"query": LOOKUP}), ""),
        ("posts-1/_search", '{"query": {}, "query": {}}'),
        ("posts-1/_search", '{"size": 1} // comment'),
        *(("posts-1/_msearch", line_pair(header)) for header in SEARCHES["headers"]),
        *((path, line_pair({})) for path in ("_msearch?index=.keys", "_msearch")),
        ("posts-1/_msearch", line_pair({}, {"query": LOOKUP})),
        ("posts-1/_msearch", line_pair({})[:-1]),
    ],
)
def test_other_indexes(
    limited: TestClient, engine: StubEngine, path: str, content: str
) -> None:
    method, _, rest = path.partition(":") if path[:2].isupper() else ("POST", "", path)
    answer = limited.request(method, f"/{rest}", content=content)
    assert answer.status_code in (400, 403), answer.text
    if answer.status_code == 403:
        assert answer.json()["status"] == 403
        assert answer.json()["error"]["type"] == "security_exception"
        assert re.search(
            "expected one of posts|not pass", answer.json()["error"]["reason"]
        )
    assert engine.requests == []
    for good in ("posts-1", "posts-*", "posts-a*,posts-b"):
        assert limited.post(f"/{good}/_search", json=search()).status_code == 200


def test_patterns_leave_out_indexes_of_the_engine(
    client: TestClient, engine: StubEngine
) -> None:
    assert client.post("/*/_search", json=search()).status_code == 200
    lines = line_pair({"index": "*"}) + line_pair({"index": "posts"})
    assert client.post("/_msearch", content=lines).status_code == 200
    assert engine.requests[0][0].url.path == "/*,-.*/_search"
    headers = engine.requests[1][1].splitlines()[::2]
    assert [json.loads(line)["index"] for line in headers] == [["*", "-.*"], ["posts"]]


def test_one_search_of_several_is_refused(
    limited: TestClient, engine: StubEngine
) -> None:
    lines = (
        line_pair({})
        + line_pair({"index": ".keys"})
        + line_pair({}, {"query": WRAPPER})
    )
    for more, count in (("", 1), (line_pair({}, {"query": {"match_all": {}}}), 2)):
        answer = limited.post("/posts-1/_msearch", content=lines + more)
        items = answer.json()["responses"]
        told = answer.headers.get("x-not-reranked", "")
        assert told == (
            "1 of 2 searches: no text is searched in contents" if more else ""
        )
        assert [item["status"] for item in items] == [200, 403, 403, 200][: len(items)]
        assert items[1]["error"]["type"] == "security_exception"
        sent = engine.requests.pop()[1].split(b"\n")[:-1:2]
        assert [json.loads(line) for line in sent] == [{"index": ["posts-1"]}] * count
    problem = limited.post(
        "/posts-1/_msearch", content="".join(lines.splitlines(True)[2:])
    )
    assert problem.status_code == 403
    assert re.search("'.keys'.*; .*'wrapper'", problem.json()["error"]["reason"])


def test_only_ids_that_went_out_come_back(
    engine: StubEngine, client: TestClient
) -> None:
    for method, path, body in SEARCHES["unknown ids"]:
        assert client.request(method, path, json=body).status_code in (400, 403), path
    assert engine.requests == []
    engine.packed = gzip.compress(b'{"_scroll_id":"mine","pit_id":"mine"}')
    assert client.post("/posts/_search?scroll=1m", json=search()).status_code == 200
    for path in ("/posts/_search/point_in_time", "/posts/_pit"):
        assert client.post(f"{path}?keep_alive=1m").status_code == 200
        assert engine.requests[-1][0].url.path == path
    for method, path, body in SEARCHES["known ids"]:
        assert client.request(method, path, json=body).status_code == 200, path


def test_headers(
    client: TestClient, engine: StubEngine, caplog: pytest.LogCaptureFixture
) -> None:
    passed = {"content-type": VENDOR, "accept": VENDOR, "authorization": "ApiKey x"}
    passed |= {"x-opaque-id": "7", "user-agent": "elasticsearch-py/9"}
    passed["traceparent"] = f"00-{'a' * 32}-{'b' * 16}-01"
    held = {"cookie": "a=b", "connection": "X-Foo, close", "x-foo": "a"}
    caplog.set_level("INFO", LOG.name)
    answer = client.post(
        "/posts/_search", content=json.dumps(search()), headers=passed | held
    )
    sent = engine.requests[0][0].headers
    assert passed.items() <= {**sent}.items() and not held.keys() & {*sent}
    assert sent.getlist("content-type") == [VENDOR]
    back = {
        "content-type": VENDOR,
        "x-elastic-product": "Elasticsearch",
        "warning": '299 "old"',
    }
    assert (
        back.items() <= {**answer.headers}.items()
        and "set-cookie" not in answer.headers
    )
    logged = json.loads(JsonFormatter().format(caplog.records[-1]))
    assert (logged["trace_id"], logged["parent_span_id"]) == ("a" * 32, "b" * 16)
    labels = 'index="*",model="mp_hcnn",outcome="ok",stage="engine"'
    assert f"tweetrerank_seconds_count{{{labels}}}" in client.get("/metrics").text


def test_keys_protect_the_scores_alone(engine: StubEngine) -> None:
    with client_of(keys=["secret"], engine=engine.url) as client:
        assert client.post("/posts/_search", json=search()).status_code == 200
        assert (
            client.get("/").status_code == 200
            and client.put("/posts").status_code == 403
        )
        for path in ("/", "/rerank", "/v2/rerank"):
            assert client.post(path, json={}).status_code == 401
        assert client.get("/info").status_code == 401


def outcomes(client: TestClient) -> dict[str, float]:
    pattern = r'tweetrerank_searches\{index="[^"]*",outcome="(\w+)"\} (\S+)'
    return {
        name: float(n) for name, n in re.findall(pattern, client.get("/metrics").text)
    }


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_errors_pass(
    client: TestClient, direct: Client, engine: StubEngine, status: int
) -> None:
    engine.fail = status
    expected = direct.post("/posts/_search", json=search())
    answer = client.post("/posts/_search", json=search())
    assert (answer.status_code, answer.content) == (status, expected.content)
    assert client.post("/posts/_msearch", content=b"{}\n{}\n").status_code == status


def test_large_responses_are_bounded(engine: StubEngine, monkeypatch: Patch) -> None:
    """That of a window gives way to the caller's own page; of one by one, and of all together."""
    monkeypatch.setattr(upstream, "LARGEST", 10_000)
    lines = line_pair({}, search(size=2)) + line_pair({}, search(size=3))
    with client_of(engine=engine.url) as client:
        for _ in range(20):  # What was read is released.
            answer = client.post("/posts/_search", json=search())
            assert (answer.status_code, answer.json()["_reranked"]) == (200, False)
            assert len(answer.json()["hits"]["hits"]) == 10
        several = client.post("/posts/_msearch", content=lines)
        assert [len(item["hits"]["hits"]) for item in several.json()["responses"]] == [
            2,
            3,
        ]
        whole = client.post("/posts/_search", json=search(size=100))
        assert whole.status_code == 502
        assert "found more than 10000 bytes" in whole.json()["error"]["reason"]
        monkeypatch.setattr(upstream, "HELD", 1_000)
        assert client.post("/posts/_search", json=search(size=3)).status_code == 429


def test_an_engine_that_is_away(engine: StubEngine) -> None:
    with client_of(engine="http://127.0.0.1:9") as client:
        answer = client.post("/posts/_search", json=search())
        assert (answer.status_code, answer.json()["error"]["type"]) == (
            502,
            "proxy_exception",
        )
        assert outcomes(client) == {"away": 1}
    engine.wait, headers = 2, {"x-request-timeout-ms": "200"}
    with client_of(engine=engine.url) as client:
        answer = client.post("/posts/_search", json=search(), headers=headers)
        assert answer.status_code == answer.json()["status"] == 504


def test_the_next_node_is_asked_in_time(engine: StubEngine, monkeypatch: Patch) -> None:
    monkeypatch.setattr(upstream, "CONNECTING", 0.3)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        ExitStack() as stack,
    ):
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


@pytest.mark.parametrize("problem", ["broken", "late", "overload", "no text"])
def test_a_reranker_that_fails(
    direct: Client, engine: StubEngine, problem: str
) -> None:
    """The engine's own ranking goes out, marked and counted, without our fields."""
    scorer, body = GatedScorer(), search(_source=False, size=7, **{"from": 3})
    options: dict[str, Any] = {
        "models": scored_by(scorer),
        "defaults": SearchDefaults(seconds=0.2),
    }
    if problem == "broken":
        scorer.ask = None  # type: ignore[assignment, method-assign]
    if problem == "no text":
        options = {"defaults": SearchDefaults(PostFields(("other",), None))}
        body["query"] = {"match": {"other": QUERY}}
    if problem == "overload":
        options["limits"] = Limits(waiting_requests=0)
    plain = direct.post("/posts/_search", json=body).json()
    with client_of(engine=engine.url, **options) as client:
        if problem == "overload":
            client.app.service.queue.requests = 1  # type: ignore[attr-defined]
        answer = client.post("/posts/_search", json=body)
        assert answer.json() == {"_reranked": False} | plain
        assert answer.headers["x-reranked"] == "false"
        outcome = "late" if problem in ("late", "overload") else "failed"
        assert outcomes(client) == {outcome: 1}
        scorer.gate.set()


def test_outcomes_are_counted(engine: StubEngine) -> None:
    with client_of(engine=engine.url) as client:
        for body in (search(), {}, search(size=-1), {"size": 0}):
            client.post("/posts/_search", json=body)
        assert outcomes(client) == dict.fromkeys(
            ("reranked", "no_text", "unchanged", "refused"), 1
        )
        assert 'tweetrerank_requests{format="search"} 1' in client.get("/metrics").text
