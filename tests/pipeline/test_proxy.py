"""Searches in front of an engine: pages of reranked hits, and failures."""

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
from helpers.proxy_samples import (
    VENDOR,
    StubEngine,
    line_pair,
    restored,
    search,
    stub_engine,
)
from helpers.reranking_samples import POSTS
from helpers.service_samples import QUERY, GatedScorer, client_of, scored_by
from httpx import Client, Response
from starlette.testclient import TestClient

from tweetrerank.pipeline.service.json_log import LOG, JsonFormatter
from tweetrerank.pipeline.service.limits import Limits
from tweetrerank.pipeline.service.proxy import upstream
from tweetrerank.pipeline.service.proxy.ask import PostFields, SearchDefaults
from tweetrerank.rerankers.text.passages import best_passages

CANDIDATES = 100
EVERYTHING = {"query": {"match_all": {}}}
WRAPPER = {"wrapper": {"query": "e30="}}
SOURCES = {"sources": {}, "no sources": {"_source": False}}
"""Whether hits come with their sources -> members of a search."""


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
    defaults = SearchDefaults(seconds=60)
    with client_of(engine=served.url, defaults=defaults) as opened:
        yield opened


@pytest.fixture
def direct(engine: StubEngine) -> Iterator[Client]:
    with Client(base_url=engine.url) as opened:
        yield opened


def post(client: Client, body: Any, path: str = "/posts/_search") -> Response:
    return client.post(path, json=body)


def hits_of(answer: Response) -> list[dict[str, Any]]:
    hits = answer.json()["hits"]["hits"]
    assert isinstance(hits, list)
    return hits


def scores_of(hits: list[dict[str, Any]]) -> list[float]:
    return [hit["_score"] for hit in hits]


def ids_of(hits: list[dict[str, Any]]) -> list[str]:
    return [hit["_id"] for hit in hits]


# Reranked searches

RERANKED: dict[str, tuple[str, dict[str, Any]]] = {
    "first page": ("/posts/_search", {}),
    "pattern, another page": ("/p*/_search", {"from": 7, "size": 5}),
    "several indexes, a sort by the score": (
        "/a,b*/_search?routing=x",
        {"sort": [{"_score": "desc"}], "size": 30},
    ),
    "page that ends after the candidates, in the path": (
        "/posts/_search?from=90&size=20",
        {"size": 3, "track_total_hits": False},
    ),
    "more hits than candidates": (
        "/posts/_search?preference=_local",
        {"size": 120},
    ),
    "other parts of the response, no sources": (
        "/posts/_search",
        {"_source": False, "aggs": {}, "highlight": {}},
    ),
    "some of the fields": ("/posts/_search", {"fields": ["con*"], "_source": False}),
    "all fields and all candidates": (
        "/posts/_search",
        {"fields": ["*"], "explain": True, "size": 100},
    ),
    "another stored field": ("/posts/_search", {"stored_fields": ["x"]}),
    "some of the stored fields": ("/posts/_search", {"stored_fields": ["con*"]}),
}
"""Reason -> the path and the members of a search that is reranked."""


@pytest.mark.parametrize(("path", "members"), RERANKED.values(), ids=RERANKED)
def test_candidates_are_reranked_and_their_page_shown(
    client: TestClient,
    direct: Client,
    engine: StubEngine,
    path: str,
    members: dict[str, Any],
) -> None:
    before = post(direct, search(**members), path)
    page = {"from": 0, "size": 10} | members | dict(before.request.url.params)
    start = int(page["from"])
    end = start + int(page["size"])
    total = max(CANDIDATES, end)
    body = search(**members | {"size": total, "from": 0})
    all_hits = hits_of(post(direct, body, path.partition("?")[0]))
    engine.requests.clear()
    answer = post(client, search(**members), path)
    assert answer.status_code == 200
    assert answer.headers["x-reranked"] == "true"
    mixed = engine.mixture(all_hits[:CANDIDATES])
    expected_ids = list(mixed)[start:end]
    actual = answer.json()
    hits = actual["hits"].pop("hits")
    reranked = hits[: len(expected_ids)]
    expected_scores = [mixed[doc_id] for doc_id in expected_ids]
    assert scores_of(reranked) == pytest.approx(expected_scores, abs=1e-5)
    hit_of_id = {hit["_id"]: hit for hit in all_hits}
    expected_hits = [hit_of_id[doc_id] for doc_id in expected_ids]
    assert [restored(hit) for hit in reranked] == expected_hits
    # After the candidates the engine's hits as they are.
    assert hits[len(expected_ids) :] == all_hits[max(CANDIDATES, start) : end]
    expected = before.json()
    del expected["hits"]["hits"]
    expected["hits"]["max_score"] = pytest.approx(max(mixed.values()), abs=1e-5)
    assert actual == expected
    [sent] = engine.bodies
    assert (sent["from"], sent["size"]) == (0, total)
    assert sent["query"] == search()["query"]
    assert "from=90" not in str(engine.requests[-1][0].url)


@pytest.mark.parametrize(
    ("depth", "size"), [(100, 7), (20, 20), (30, 9), (13, 50), (500, 30)]
)
def test_pages_show_every_hit_once(engine: StubEngine, depth: int, size: int) -> None:
    """The candidates, then the engine's hits after them, whatever the size."""
    shown: list[str] = []
    defaults = SearchDefaults(seconds=60, candidates=depth)
    with client_of(engine=engine.url, defaults=defaults) as client:
        for start in range(0, 130, size):
            page = post(client, search(**{"from": start, "size": size}))
            assert page.headers["x-reranked"] == str(start < depth).lower()
            shown += ids_of(hits_of(page))
    assert len(set(shown)) == len(shown) == 120
    rows = [int(doc_id.partition('"')[0]) for doc_id in shown[depth:]]
    assert rows == list(range(depth, 120))


def bare_hits(text: str) -> set[str]:
    """The hits in a response as texts, without scores."""
    cut = re.compile(r'"_score":[\d.]+,|,"fields":\{"_first_stage_score":\[[\d.]+\]\}')
    hits = cut.sub("", text).split('{"_index"')[1:]
    return {hit.rstrip(",]}") for hit in hits}


def test_the_bytes_of_a_hit_stay_as_they_are(
    client: TestClient,
    direct: Client,
) -> None:
    """Numbers of any length and form, and a repeated key."""
    plain = post(direct, search(size=100)).text
    answer = post(client, search(size=100)).text
    assert bare_hits(answer) == bare_hits(plain)
    assert '"n":123456789012345678901234567890,"x":1.0E-4,"x":2.50,"y":1e5' in answer
    assert answer.startswith(plain.partition('"max_score"')[0].replace(", ", ","))


UNCHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    "no text": ("", EVERYTHING),
    "text that excludes": (
        "",
        {"query": {"bool": {"must_not": [{"match": {"contents": QUERY}}]}}},
    ),
    "blank text": ("", {"query": {"match": {"contents": " "}}}),
    "text of another field": ("", {"query": {"match": {"lang": "en"}}}),
    "another sort": ("", {"sort": ["n"]}),
    "tie-breaker": ("", {"sort": ["_score", {"n": "desc"}]}),
    "tie-breaker in the path": ("?sort=_score,n", {}),
    "worst first": ("", {"sort": [{"_score": "asc"}]}),
    "sort in the path": ("?sort=n", {}),
    "sort in the body": ("?sort=_score", {"sort": ["n"]}),
    "no number below one in the path": ("?from=3", {"from": "x"}),
    "no hits": ("", {"size": 0}),
    "search after": ("", {"search_after": [1, 2]}),
    "collapse": ("", {"collapse": {"field": "n"}}),
    "scroll": ("?scroll=1m", {}),
    "part of the answer": ("?filter_path=hits.hits._id", {}),
    "pipeline of the engine": ("?search_pipeline=mine", {}),
    "its pipeline, with its ext": (
        "?search_pipeline=mine",
        {"ext": {"rerank": {"x": 1}}},
    ),
    "no stored fields": ("", {"stored_fields": "_none_"}),
    "page after the candidates": ("?from=100", {}),
    "unwanted": ("", {"ext": {"rerank": False}}),
    "negative": ("", {"size": -1}),
}
"""Reason -> parameters and members of a search that passes unchanged."""


@pytest.mark.parametrize(("parameters", "members"), UNCHANGED.values(), ids=UNCHANGED)
def test_other_searches_pass_unchanged(
    client: TestClient,
    direct: Client,
    engine: StubEngine,
    parameters: str,
    members: dict[str, Any],
) -> None:
    path = f"/posts/_search{parameters}"
    body = search() | members
    plain = {key: part for key, part in body.items() if part != {"rerank": False}}
    expected = post(direct, plain, path)
    answer = post(client, body, path)
    assert answer.status_code == expected.status_code
    assert answer.content == expected.content
    before, after = engine.bodies
    after.pop("ext", None)
    assert before.items() >= after.items()
    if expected.is_success:
        assert answer.headers["x-reranked"] == "false"
        assert answer.headers["x-not-reranked"]
    else:
        assert "x-reranked" not in answer.headers
        assert "x-not-reranked" not in answer.headers


def test_passages_of_long_texts(
    client: TestClient,
    direct: Client,
    engine: StubEngine,
) -> None:
    lunch = "lunch was good today , see you " * 100
    cuts = POSTS[0][0]
    engine.posts[50]["contents"] = lunch + cuts
    engine.posts[51]["contents"] = f"{cuts} {lunch}"
    engine.posts[52]["contents"] = lunch
    expected = hits_of(post(direct, search(size=100)))
    hits = hits_of(post(client, search(size=100), "/long/_search"))
    hit_of_id = {hit["_id"]: hit for hit in expected}
    assert [restored(hit) for hit in hits] == [hit_of_id[hit["_id"]] for hit in hits]
    texts = [post["contents"] for post in engine.posts[:100]]
    passages = best_passages([QUERY] * 100, texts)
    for row, passage in enumerate(passages):
        engine.posts[row]["contents"] = passage
    scores = {hit["_id"]: hit["_score"] for hit in hits}
    assert scores == pytest.approx(engine.mixture(expected), abs=1e-5)
    ranks = {hit["_id"].partition('"')[0]: rank for rank, hit in enumerate(hits)}
    assert max(ranks["50"], ranks["51"]) < ranks["52"]


# Options of a search


def test_ext_says_how_to_rerank(client: TestClient, engine: StubEngine) -> None:
    options = {
        "rerank_window": 20,
        "query_context": {"query_text": QUERY},
        "document_fields": ["contents"],
    }
    body = EVERYTHING | {"size": 5, "ext": {"rerank": options}}
    answer = post(client, body)
    hits = hits_of(answer)
    assert answer.headers["x-reranked"] == "true"
    assert [hit["fields"].keys() for hit in hits] == [{"_first_stage_score"}] * 5
    assert engine.bodies == [EVERYTHING | {"size": 20, "from": 0}]
    with_urls = post(client, search(size=5, ext={"rerank": {"rerank_window": 20}}))
    assert set(scores_of(hits)) != set(scores_of(hits_of(with_urls)))


@pytest.mark.parametrize(
    "options",
    [
        5,
        {"query_context": 5},
        {"query_context": {"query_text": 5}},
        {"query_context": {"text": "x"}},
        {"query_context": {"query_text_path": "query.match.other"}},
        {"rerank_window": 0},
        {"rerank_window": "9"},
        {"model": 5},
        {"model": "unknown"},
        {"document_fields": []},
        {"document_fields": "contents"},
        {"windw": 9},
    ],
    ids=json.dumps,
)
def test_a_wrong_ext_is_refused(
    client: TestClient,
    engine: StubEngine,
    options: Any,
) -> None:
    answer = post(client, search(ext={"rerank": options}))
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["type"] == "illegal_argument_exception"
    assert re.search("ext.rerank|model", error["reason"])
    assert engine.requests == []


def test_null_in_ext_counts_as_absent(client: TestClient, engine: StubEngine) -> None:
    answer = post(client, search(ext={"rerank": None}))
    assert answer.status_code == 200
    assert "ext" not in engine.bodies[0]


@pytest.mark.parametrize("weight", [0, 0.3, 1])
def test_a_share_of_the_model(
    engine: StubEngine,
    client: TestClient,
    weight: float,
) -> None:
    """Both scores from 0 to 1 over the candidates; 0 is the engine's order."""
    answer = post(client, search(size=100, ext={"rerank": {"weight": weight}}))
    hits = hits_of(answer)
    expected = engine.mixture([restored(hit) for hit in hits], weight)
    assert ids_of(hits) == list(expected)
    assert scores_of(hits) == pytest.approx(list(expected.values()), abs=1e-4)
    assert answer.json()["hits"]["max_score"] == hits[0]["_score"]


# Fields of posts


@pytest.mark.parametrize("outside", [{"url"}, {"contents", "url"}])
def test_fields_outside_sources(
    client: TestClient,
    engine: StubEngine,
    outside: set[str],
) -> None:
    """They are requested after a look at the sources, then in the first search."""
    body = search(size=20)
    path = f"/posts,{','.join(sorted(outside))}/_search"
    expected = hits_of(post(client, body))
    engine.requests.clear()
    engine.outside = outside
    first = post(client, body, path)
    second = post(client, body, path)
    assert first.json() == second.json()
    hits = hits_of(first)
    assert scores_of(hits) == scores_of(expected)
    assert [hit["fields"].keys() for hit in hits] == [{"_first_stage_score"}] * 20
    requested = [sent.get("fields") for sent in engine.bodies]
    assert requested == [None, ["contents", "url"], ["contents", "url"]]
    post(client, body | {"aggs": {"best": {"top_hits": {}}}}, path)
    assert "fields" not in engine.bodies[-1]


@pytest.mark.parametrize("members", SOURCES.values(), ids=SOURCES)
def test_a_shard_without_sources_loses_no_hit(
    engine: StubEngine,
    members: dict[str, Any],
) -> None:
    """It fails if fields are requested: the hits are reranked by their sources."""
    engine.outside = {"url"}
    engine.lost = 20
    defaults = SearchDefaults(seconds=60)
    with client_of(engine=engine.url, defaults=defaults) as client:
        for _ in range(2):
            answer = post(client, search(size=120) | members)
            assert answer.headers["x-reranked"] == str(not members).lower()
            content = answer.json()
            assert len({hit["_id"] for hit in content["hits"]["hits"]}) == 120
            assert content["_shards"]["failed"] == 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("posts,notes", id="together"),
        pytest.param("posts*,n*", id="by a pattern"),
        pytest.param("notes", id="alone"),
        pytest.param("mine", id="behind an alias"),
    ],
)
@pytest.mark.parametrize("members", SOURCES.values(), ids=SOURCES)
def test_each_index_has_its_own_fields(
    engine: StubEngine,
    members: dict[str, Any],
    name: str,
) -> None:
    notes = PostFields(("body",), "link", model="mp_hcnn")
    served_name = "mine" if name == "mine" else "notes"
    defaults = SearchDefaults(seconds=60, served={served_name: notes})
    query = {"multi_match": {"query": QUERY, "fields": ["contents", "body"]}}
    body = {"query": query} | members
    with client_of(engine=engine.url, defaults=defaults) as client:
        expected = hits_of(post(client, body))
        move_to_notes(engine, 2 if "posts" in name else 1)
        alone = hits_of(post(client, body, f"/{name}/_search"))
        lines = line_pair({"index": name.split(",")}, body)
        several = client.post("/_msearch", content=lines).json()["responses"]
    for hits in (alone, several[0]["hits"]["hits"]):
        assert "notes" in {hit["_index"] for hit in hits}
        assert ids_of(hits) == ids_of(expected)
        assert scores_of(hits) == pytest.approx(scores_of(expected), abs=1e-5)
        for hit in hits:
            assert hit["fields"].keys() == {"_first_stage_score"}


def move_to_notes(engine: StubEngine, step: int) -> None:
    """Move some of the posts to another index, with other names of fields."""
    for row in range(0, 120, step):
        post = engine.posts[row]
        engine.posts[row] = {"body": post["contents"], "link": post["url"]}


# Requests in other forms


def test_several_searches(
    client: TestClient,
    direct: Client,
    engine: StubEngine,
) -> None:
    bodies = [
        search(size=3),
        EVERYTHING,
        search(size=-1),
        search("cuts", size=2),
    ]
    lines = "".join(line_pair({}, body) for body in bodies)
    headers = {"content-type": "application/x-ndjson"}
    actual = client.post("/posts/_msearch", content=lines, headers=headers)
    before = direct.post("/posts/_msearch", content=lines, headers=headers)
    assert actual.headers["content-type"] == VENDOR
    assert actual.json()["took"] == 4
    items = actual.json()["responses"]
    assert [item["status"] for item in items] == [200, 200, 400, 200]
    assert items[1:3] == before.json()["responses"][1:3]
    for row in (0, 3):
        alone = post(client, bodies[row]).json()
        # The sizes of the batches differ, and so does the last digit of a score.
        for hit in items[row]["hits"]["hits"] + alone["hits"]["hits"]:
            hit["_score"] = round(hit["_score"], 4)
        assert items[row] == alone | {"status": 200}
        assert "_first_stage_score" in items[row]["hits"]["hits"][0]["fields"]


def test_several_searches_without_candidates_pass_unchanged(
    client: TestClient,
    direct: Client,
) -> None:
    lines = line_pair({}, EVERYTHING) + line_pair({}, search(size=-1))
    actual = client.post("/posts/_msearch", content=lines)
    expected = direct.post("/posts/_msearch", content=lines)
    assert actual.content == expected.content
    assert actual.headers["x-reranked"] == "false"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_clients_may_ask_who_it_is(
    client: TestClient,
    engine: StubEngine,
    method: str,
) -> None:
    answer = client.request(method, "/")
    assert answer.headers["x-elastic-product"] == "Elasticsearch"
    assert [request.method for request, _ in engine.requests] == [method]


def test_browsers_get_the_page(client: TestClient, engine: StubEngine) -> None:
    page = client.get("/", headers={"accept": "text/html,*/*"})
    assert page.headers["content-type"].startswith("text/html")
    assert engine.requests == []


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"accept": "application/json"}, id="another type"),
        pytest.param({"referer": "text/html"}, id="the type in another header"),
    ],
)
def test_other_callers_get_the_engine(
    client: TestClient,
    engine: StubEngine,
    headers: dict[str, str],
) -> None:
    answer = client.get("/", headers=headers)
    assert answer.headers["x-elastic-product"] == "Elasticsearch"
    assert len(engine.requests) == 1


def test_other_methods_of_the_root_are_the_services(
    client: TestClient,
    engine: StubEngine,
) -> None:
    """Its first wire format has this path."""
    body = {"query": QUERY, "texts": [POSTS[0][0]]}
    assert post(client, body, "/").json()[0]["index"] == 0
    assert engine.requests == []


BODY = search(size=4)
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "text in a parameter": ("GET", {"params": {"q": QUERY, "size": "4"}}),
    "search in a parameter": ("GET", {"params": {"source": json.dumps(BODY)}}),
    "body of a GET": ("GET", {"json": BODY}),
    "body of a POST": ("POST", {"json": BODY}),
    "packed body": (
        "POST",
        {
            "content": gzip.compress(json.dumps(BODY).encode()),
            "headers": {
                "content-encoding": "gzip",
                "content-type": "application/json",
            },
        },
    ),
}
"""Form of a request -> its method and the options of a client for it."""


@pytest.mark.parametrize(("method", "options"), FORMS.values(), ids=FORMS)
def test_forms_of_a_request(
    client: TestClient,
    engine: StubEngine,
    method: str,
    options: dict[str, Any],
) -> None:
    expected = post(client, BODY)
    answer = client.request(method, "/posts/_search", **options)
    assert answer.headers["x-reranked"] == "true"
    assert answer.json() == expected.json()
    request, _ = engine.requests[-1]
    assert request.method == method
    assert "content-encoding" not in request.headers


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        pytest.param(VENDOR, VENDOR, id="the same version"),
        pytest.param(VENDOR.replace("+json", "+yaml"), VENDOR, id="another format"),
        pytest.param(f"{VENDOR},text/plain", "application/json", id="several"),
    ],
)
def test_the_type_of_an_empty_body(
    client: TestClient,
    engine: StubEngine,
    accept: str,
    kind: str,
) -> None:
    """It goes with the response's: one version of Elasticsearch, or none."""
    headers = {"accept": accept, "content-type": VENDOR}
    client.get("/posts/_search", headers=headers)
    assert engine.requests[-1][0].headers.getlist("content-type") == [kind]


RENDERED: dict[str, tuple[Any, int]] = {
    "a search": (search(size=3), 200),
    "a forbidden search": ({"query": WRAPPER}, 403),
    "a list": ([], 400),
}
"""Rendered template -> its JSON, and the status of the answer."""
TEMPLATE = {"source": "{…}", "params": {"a": 1}}


@pytest.fixture(scope="module")
def limited(served: StubEngine) -> Iterator[TestClient]:
    """A client who may read the index posts alone."""
    defaults = SearchDefaults(indexes=("posts",))
    with client_of(engine=served.url, defaults=defaults) as opened:
        yield opened


@pytest.mark.parametrize(("rendered", "status"), RENDERED.values(), ids=RENDERED)
def test_a_template_is_rendered_checked_and_reranked(
    engine: StubEngine,
    limited: TestClient,
    rendered: Any,
    status: int,
) -> None:
    engine.rendered = json.dumps({"template_output": rendered})
    answer = post(limited, TEMPLATE, "/posts/_search/template")
    assert answer.status_code == status
    paths = [request.url.path for request, _ in engine.requests]
    if status != 200:
        assert paths == ["/_render/template"]
        return
    assert paths == ["/_render/template", "/posts/_search"]
    assert "_first_stage_score" in hits_of(answer)[0]["fields"]


@pytest.mark.parametrize(("rendered", "status"), RENDERED.values(), ids=RENDERED)
def test_templates_are_rendered_checked_and_reranked(
    engine: StubEngine,
    limited: TestClient,
    rendered: Any,
    status: int,
) -> None:
    engine.rendered = json.dumps({"template_output": rendered})
    lines = line_pair({}, TEMPLATE) * 2 + line_pair({}, WRAPPER)
    answer = limited.post("/posts/_msearch/template", content=lines)
    assert answer.status_code == status
    paths = [request.url.path for request, _ in engine.requests]
    assert paths[:2] == ["/_render/template"] * 2
    if status != 200:
        assert len(paths) == 2
        return
    assert paths[2:] == ["/posts/_msearch"]
    items = answer.json()["responses"]
    assert items[2]["status"] == 403
    for item in items[:2]:
        assert "_first_stage_score" in item["hits"]["hits"][0]["fields"]


def test_options_of_a_template_are_those_of_its_search(
    engine: StubEngine,
    limited: TestClient,
) -> None:
    engine.rendered = json.dumps({"template_output": search(size=3)})
    template = TEMPLATE | {"explain": True}
    assert post(limited, template, "/posts/_search/template").status_code == 200
    [rendered, sent] = engine.bodies
    assert rendered == TEMPLATE
    assert sent["explain"] is True


def test_templates_are_checked_before_they_are_rendered(
    engine: StubEngine,
    limited: TestClient,
) -> None:
    template = TEMPLATE | {"unknown": 1}
    answer = post(limited, template, "/posts/_search/template")
    assert answer.status_code == 403
    assert engine.requests == []


# Responses in other forms


@pytest.mark.parametrize("parameter", [{"pretty": ""}, {"format": "yaml"}])
def test_pages_in_each_format(
    engine: StubEngine,
    client: TestClient,
    parameter: dict[str, str],
) -> None:
    engine.strange = '"n":1.0E-4'
    expected = client.get("/posts/_search", params={"q": QUERY}).json()
    answer = client.get("/posts/_search", params={"q": QUERY} | parameter)
    assert answer.headers["x-reranked"] == "true"
    assert answer.text.count("\n") > 50
    assert yaml.safe_load(answer.text) == expected
    is_yaml = answer.headers["content-type"] == "application/yaml"
    assert is_yaml == ("format" in parameter)


def test_pages_in_one_line(client: TestClient) -> None:
    answer = client.get("/posts/_search", params={"q": QUERY, "pretty": "false"})
    assert "\n" not in answer.text


def test_the_engine_writes_other_pages_itself(
    engine: StubEngine,
    client: TestClient,
    direct: Client,
) -> None:
    expected = post(direct, EVERYTHING)
    answer = post(client, EVERYTHING, "/posts/_search?pretty")
    assert answer.content == expected.content


def test_other_formats_are_the_engines(engine: StubEngine, client: TestClient) -> None:
    client.get("/posts/_search", params={"q": QUERY, "format": "cbor"})
    assert "format=cbor" in str(engine.requests[-1][0].url)


def test_reasons_are_short_and_visible(client: TestClient) -> None:
    """A header has visible ASCII alone."""
    options = {"document_fields": ["é" * 300]}
    answer = post(client, EVERYTHING | {"ext": {"rerank": options}})
    reason = answer.headers["x-not-reranked"]
    assert reason.startswith("no text is searched in ???")
    assert len(reason) == 200


def test_packed_responses(engine: StubEngine, monkeypatch: Patch) -> None:
    texts: set[str] = set()
    for encoding in ("identity", "gzip"):
        monkeypatch.setattr(
            upstream, "encoding_of", lambda url, encoding=encoding: encoding
        )
        with client_of(engine=engine.url) as client:
            answer = post(client, search())
        assert answer.headers["x-reranked"] == "true"
        texts.add(answer.text)
    assert len(texts) == 1
    assert engine.requests[-1][0].headers["accept-encoding"] == "gzip"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(gzip.compress(b" " * 40_000_000), id="too much"),
        pytest.param(b"{}", id="no gzip"),
    ],
)
def test_packed_responses_are_bounded(engine: StubEngine, content: bytes) -> None:
    engine.packed = content
    with client_of(engine=engine.url) as client:
        answer = post(client, {})
    assert answer.status_code == 502
    assert answer.json()["status"] == 502


UNRANKED: dict[str, bytes] = {
    "nothing": b"",
    "list": b"[]",
    "no UTF-8": b"\xff{}",
    "half an object": b'{"hits":{"hits":[{"_id":"1"',
    "many levels": b'{"hits":' * 5000,
    "no hits among the hits": b'{"hits":{"hits":[5,{"_score":"x"},{}]}}',
    "negative score": b'{"hits":{"hits":[{"_score":-9549511700.0}]}}',
    "half a character": (
        b'{"hits":{"hits":[{"_score":1.0,"_source":{"contents":"half \\ud83d"}}]}}'
    ),
}
"""Reason -> a response whose hits cannot be reranked."""


@pytest.mark.parametrize("content", UNRANKED.values(), ids=UNRANKED)
@pytest.mark.parametrize(
    ("path", "body"),
    [("_search", json.dumps(search())), ("_msearch", line_pair({}))],
)
def test_responses_without_a_ranking(
    client: TestClient,
    engine: StubEngine,
    content: bytes,
    path: str,
    body: str,
) -> None:
    """They are marked if they are objects."""
    engine.packed = gzip.compress(content)
    answer = client.post(f"/posts/{path}", content=body)
    assert answer.status_code == 200
    assert answer.headers["x-reranked"] == "false"
    assert answer.content.replace(b'"_reranked":false,', b"") == content


# Headers and keys


def test_headers(
    client: TestClient,
    engine: StubEngine,
    caplog: pytest.LogCaptureFixture,
) -> None:
    passed = {
        "content-type": VENDOR,
        "accept": VENDOR,
        "authorization": "ApiKey x",
        "x-opaque-id": "7",
        "user-agent": "elasticsearch-py/9",
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
    }
    left_out = {"cookie": "a=b", "connection": "X-Foo, close", "x-foo": "a"}
    caplog.set_level("INFO", LOG.name)
    content = json.dumps(search())
    answer = client.post("/posts/_search", content=content, headers=passed | left_out)
    sent = engine.requests[0][0].headers
    assert passed.items() <= dict(sent).items()
    assert left_out.keys().isdisjoint(sent)
    assert sent.getlist("content-type") == [VENDOR]
    expected = {
        "content-type": VENDOR,
        "x-elastic-product": "Elasticsearch",
        "warning": '299 "old"',
    }
    assert expected.items() <= dict(answer.headers).items()
    assert "set-cookie" not in answer.headers
    line = json.loads(JsonFormatter().format(caplog.records[-1]))
    assert line["trace_id"] == "a" * 32
    assert line["parent_span_id"] == "b" * 16
    labels = 'index="*",model="mp_hcnn",outcome="ok",stage="engine"'
    assert f"tweetrerank_seconds_count{{{labels}}}" in client.get("/metrics").text


@pytest.fixture(scope="module")
def locked(served: StubEngine) -> Iterator[TestClient]:
    """A client without the service's key."""
    with client_of(keys=["secret"], engine=served.url) as opened:
        yield opened


def test_keys_do_not_protect_the_engine(locked: TestClient) -> None:
    assert post(locked, search()).status_code == 200
    assert locked.get("/").status_code == 200
    assert locked.put("/posts").status_code == 403


@pytest.mark.parametrize("path", ["/", "/rerank", "/v2/rerank"])
def test_keys_protect_the_scores(locked: TestClient, path: str) -> None:
    assert post(locked, {}, path).status_code == 401


def test_keys_protect_the_models(locked: TestClient) -> None:
    assert locked.get("/info").status_code == 401


# Failures of the engine


def outcomes(client: TestClient) -> dict[str, float]:
    """Outcome -> number of searches."""
    pattern = r'tweetrerank_searches\{index="[^"]*",outcome="(\w+)"\} (\S+)'
    counts = re.findall(pattern, client.get("/metrics").text)
    return {outcome: float(count) for outcome, count in counts}


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_errors_pass(
    client: TestClient,
    direct: Client,
    engine: StubEngine,
    status: int,
) -> None:
    engine.fail = status
    expected = post(direct, search())
    answer = post(client, search())
    assert answer.status_code == status
    assert answer.content == expected.content
    several = client.post("/posts/_msearch", content=b"{}\n{}\n")
    assert several.status_code == status


@pytest.mark.parametrize(
    ("status", "is_repeated"),
    [
        pytest.param(400, True, id="400: too many hits for the engine"),
        pytest.param(500, True, id="500: its shards fail"),
        pytest.param(401, False, id="401: another search would fail, too"),
        pytest.param(403, False, id="403: another search would fail, too"),
        pytest.param(404, False, id="404: another search would fail, too"),
        pytest.param(429, False, id="429: no more work for a busy engine"),
        pytest.param(503, False, id="503: no more work for a busy engine"),
    ],
)
def test_the_callers_search_is_sent_after_some_errors(
    client: TestClient,
    engine: StubEngine,
    status: int,
    is_repeated: bool,
) -> None:
    engine.fail = status
    post(client, search())
    sizes = [body.get("size") for body in engine.bodies]
    if is_repeated:
        assert sizes == [CANDIDATES, None]
    else:
        assert sizes == [CANDIDATES]


def test_the_callers_search_is_sent_after_an_unreadable_response(
    client: TestClient,
    engine: StubEngine,
) -> None:
    engine.packed = gzip.compress(b"{}")
    answer = post(client, search())
    assert [body.get("size") for body in engine.bodies] == [CANDIDATES, None]
    assert answer.json() == {"_reranked": False}


def test_added_fields_are_given_up_before_the_candidates(engine: StubEngine) -> None:
    engine.outside = {"url"}
    with client_of(engine=engine.url) as client:
        post(client, search())
        engine.requests.clear()
        engine.fail = 400
        post(client, search())
    forms = [(body.get("size"), "fields" in body) for body in engine.bodies]
    assert forms == [(CANDIDATES, True), (CANDIDATES, False), (None, False)]


def test_candidates_that_are_refused(
    client: TestClient,
    direct: Client,
    engine: StubEngine,
) -> None:
    """The caller's own search goes out in their place, one of several too."""
    engine.largest = 50
    expected = post(direct, search()).json()
    assert post(client, search()).json() == {"_reranked": False} | expected
    lines = line_pair({}) + line_pair({}, search(size=60))
    answer = client.post("/posts/_msearch", content=lines)
    items = answer.json()["responses"]
    assert items[0] == {"_reranked": False, "status": 200} | expected
    assert items[1]["status"] == 400


@pytest.fixture
def small_responses(monkeypatch: Patch) -> None:
    monkeypatch.setattr(upstream, "LARGEST", 10_000)
    monkeypatch.setattr(upstream, "HELD", 100_000)


@pytest.mark.usefixtures("small_responses")
def test_too_many_candidates_give_way_to_the_page(engine: StubEngine) -> None:
    with client_of(engine=engine.url) as client:
        for _ in range(20):  # The memory of a response is released.
            answer = post(client, search())
            assert answer.status_code == 200
            assert answer.json()["_reranked"] is False
            assert len(hits_of(answer)) == 10
        lines = line_pair({}, search(size=2)) + line_pair({}, search(size=3))
        several = client.post("/posts/_msearch", content=lines)
    items = several.json()["responses"]
    assert [len(item["hits"]["hits"]) for item in items] == [2, 3]


@pytest.mark.usefixtures("small_responses")
def test_large_responses_are_bounded(engine: StubEngine) -> None:
    with client_of(engine=engine.url) as client:
        answer = post(client, search(size=100))
    assert answer.status_code == 502
    assert "found more than 10000 bytes" in answer.json()["error"]["reason"]


@pytest.mark.usefixtures("small_responses")
def test_all_responses_together_are_bounded(
    engine: StubEngine,
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(upstream, "HELD", 1_000)
    with client_of(engine=engine.url) as client:
        assert post(client, search(size=3)).status_code == 429


def test_an_engine_that_is_away() -> None:
    with client_of(engine="http://127.0.0.1:9") as client:
        answer = post(client, search())
        assert answer.status_code == 502
        assert answer.json()["error"]["type"] == "proxy_exception"
        assert outcomes(client) == {"away": 1}


def test_an_engine_that_is_late(engine: StubEngine) -> None:
    engine.wait = 2
    headers = {"x-request-timeout-ms": "200"}
    with client_of(engine=engine.url) as client:
        answer = client.post("/posts/_search", json=search(), headers=headers)
    assert answer.status_code == answer.json()["status"] == 504


@pytest.fixture
def silent(monkeypatch: Patch) -> Iterator[str]:
    """A server that takes no connections, and gives no answer."""
    monkeypatch.setattr(upstream, "CONNECTING", 0.3)
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        yield f"http://127.0.0.1:{full.getsockname()[1]}"


def test_the_next_node_is_tried(engine: StubEngine, silent: str) -> None:
    with client_of(engine=f"{silent},{engine.url}") as client:
        assert post(client, search()).status_code == 200
    assert len(engine.requests) == 1


def test_nodes_are_tried_in_time(silent: str) -> None:
    headers = {"x-request-timeout-ms": "400"}
    with client_of(engine=f"{silent},{silent}") as client:
        started = time.perf_counter()
        answer = client.post("/posts/_search", json=search(), headers=headers)
        assert time.perf_counter() - started < 0.8
    assert answer.status_code in (502, 504)


# Failures of the reranker

PAGE = search(_source=False, size=7, **{"from": 3})


@pytest.fixture
def scorer() -> Iterator[GatedScorer]:
    opened = GatedScorer()
    yield opened
    opened.gate.set()


def check_failure(
    client: TestClient,
    direct: Client,
    body: Any,
    outcome: str,
    reason: str,
    headers: dict[str, str] | None = None,
) -> None:
    """The page is the engine's, marked and counted, without the added fields."""
    expected = post(direct, body).json()
    answer = client.post("/posts/_search", json=body, headers=headers)
    assert answer.json() == {"_reranked": False} | expected
    assert answer.headers["x-reranked"] == "false"
    assert reason in answer.headers["x-not-reranked"]
    assert outcomes(client) == {outcome: 1}


def test_a_broken_reranker(
    direct: Client,
    engine: StubEngine,
    scorer: GatedScorer,
) -> None:
    scorer.ask = None  # type: ignore[assignment, method-assign]
    models = scored_by(scorer)
    with client_of(engine=engine.url, models=models) as client:
        check_failure(client, direct, PAGE, "failed", "TypeError")


def test_a_late_reranker(
    direct: Client,
    engine: StubEngine,
    scorer: GatedScorer,
) -> None:
    models = scored_by(scorer)
    defaults = SearchDefaults(seconds=0.2)
    with client_of(engine=engine.url, models=models, defaults=defaults) as client:
        check_failure(client, direct, PAGE, "late", "")
        scorer.gate.set()


def test_the_callers_deadline_is_the_rerankers(
    direct: Client,
    engine: StubEngine,
    scorer: GatedScorer,
) -> None:
    models = scored_by(scorer)
    defaults = SearchDefaults(seconds=60)
    headers = {"x-request-timeout-ms": "500"}
    with client_of(engine=engine.url, models=models, defaults=defaults) as client:
        check_failure(client, direct, PAGE, "late", "", headers)
        scorer.gate.set()


def test_a_reranker_with_a_full_queue(direct: Client, engine: StubEngine) -> None:
    limits = Limits(waiting_requests=0)
    with client_of(engine=engine.url, limits=limits) as client:
        client.app.service.queue.requests = 1  # type: ignore[attr-defined]
        check_failure(client, direct, PAGE, "late", "")


def test_hits_without_texts(direct: Client, engine: StubEngine) -> None:
    defaults = SearchDefaults(PostFields(("other",), None))
    body = PAGE | {"query": {"match": {"other": QUERY}}}
    with client_of(engine=engine.url, defaults=defaults) as client:
        reason = "found no text in the hits' fields other"
        check_failure(client, direct, body, "failed", reason)


def test_outcomes_are_counted(engine: StubEngine) -> None:
    with client_of(engine=engine.url) as client:
        for body in (search(), {}, search(size=-1), {"size": 0}):
            post(client, body)
        expected = {"reranked": 1, "no_text": 1, "unchanged": 1, "refused": 1}
        assert outcomes(client) == expected
        assert 'tweetrerank_requests{format="search"} 1' in client.get("/metrics").text
