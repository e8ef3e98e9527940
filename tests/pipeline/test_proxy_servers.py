"""Official clients through the service: on a stub engine, and on real servers."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
import requests
from conftest import Capture
from helpers.engine_servers import SERVERS, Server, running
from helpers.processes import ROOT
from helpers.proxy_samples import mixture, post, restored, search, stub_engine
from helpers.search_grammar import Searches
from helpers.service_samples import QUERY, app_of, listening

from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.engines.client import Engine
from tweetrerank.pipeline.service.proxy.ask import SearchDefaults

REQUESTS = int(os.environ.get("TWEETRERANK_SEARCHES", "50"))
"""Mutated searches of each engine.

``TWEETRERANK_SEARCHES=20000 python -m pytest tests/pipeline/test_proxy_servers.py``
sends more.
"""
CANDIDATES = 100
TIES = ["_score", {"n": "desc"}]
EVERYTHING = {"query": {"match_all": {}}}
SESSION = requests.Session()
SESSION.trust_env = False


class Served(NamedTuple):
    """An engine with 120 posts, and the service in front of it."""

    name: str  # Name of the engine
    direct: str  # Address of the engine
    proxy: str  # Address of the service
    index: str
    credentials: dict[str, str]  # User, password and CA file, if there are any

    @property
    def ca(self) -> str | None:
        return self.credentials.get("TWEETRERANK_ENGINE_CA")

    @property
    def login(self) -> tuple[str, str] | None:
        """User and password."""
        user = self.credentials.get("TWEETRERANK_ENGINE_USER")
        if not user:
            return None
        return user, self.credentials.get("TWEETRERANK_ENGINE_PASSWORD", "")

    def options(self) -> dict[str, Any]:
        """Options of a request without a client."""
        options: dict[str, Any] = {
            "headers": {"content-type": "application/json"},
            "timeout": 60,
            "verify": self.ca or True,
        }
        if self.login:
            options["auth"] = self.login
        return options

    def client(self, url: str) -> Any:
        """The official client of the engine, for an address."""
        options: dict[str, Any] = {"max_retries": 0}
        if url.startswith("https") and self.ca:
            options["ca_certs"] = self.ca
        if self.name in ("stub", "elasticsearch"):
            from elasticsearch import Elasticsearch

            if self.login:
                options["basic_auth"] = self.login
            return Elasticsearch(url, **options)
        from opensearchpy import OpenSearch

        if self.login:
            options["http_auth"] = self.login
        return OpenSearch(url, **options)

    def search(self, url: str, body: dict[str, Any]) -> Any:
        """The answer to a search by a client, without its time."""
        return plain(self.client(url).search(index=self.index, body=body))


@pytest.fixture(scope="module", params=["stub", *SERVERS])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    if request.param == "stub":
        defaults = SearchDefaults(seconds=60)
        with (
            stub_engine() as (url, _),
            listening(app_of(engine=url, defaults=defaults)) as proxy,
        ):
            yield Served("stub", url, proxy, "posts", {})
        return
    with running(request.param) as server:
        index = fill(server)
        defaults = SearchDefaults(seconds=60, indexes=(index,))
        ca = server.credentials.get("TWEETRERANK_ENGINE_CA")
        with listening(app_of(engine=server.url, defaults=defaults, ca=ca)) as proxy:
            yield Served(server.name, server.url, proxy, index, server.credentials)


def fill(server: Server) -> str:
    """Write the stub's posts into a new index; returns its name."""
    address: EngineAddress = server.address()
    engine = Engine(address)
    fields = {
        "contents": {"type": "text"},
        "url": {"type": "keyword"},
        "n": {"type": "long"},
    }
    body = {"settings": {"number_of_shards": 1}, "mappings": {"properties": fields}}
    engine.request("PUT", f"/{address.index}", body)
    content = ""
    for row in range(120):
        content += json.dumps({"index": {"_id": str(row)}}) + "\n"
        content += json.dumps(post(row) | {"n": row}) + "\n"
    path = f"/{address.index}/_bulk"
    engine.request("POST", path, content.encode(), {"refresh": True})
    return address.index


@pytest.fixture
def real(served: Served) -> Served:
    if served.name == "stub":
        pytest.skip("an engine of few words")
    return served


def plain(answer: Any) -> Any:
    """An answer of a client, without what differs from one to the next."""
    actual = json.loads(json.dumps(getattr(answer, "body", answer)))
    actual.pop("took", None)
    for item in actual.get("responses", ()):
        item.pop("took", None)
    return actual


def check(before: Any, actual: Any, candidates: Any) -> None:
    """``actual`` is ``before`` with candidates in the order of their scores."""
    hits = actual["hits"].pop("hits")
    expected = before["hits"].pop("hits")
    best = actual["hits"].pop("max_score")
    before["hits"].pop("max_score")
    assert actual == before
    assert len(hits) == len(expected)
    reranked = [hit for hit in hits if "_first_stage_score" in hit.get("fields", ())]
    assert hits[len(reranked) :] == expected[len(reranked) :]
    scores = [best] + [hit["_score"] for hit in reranked]
    assert scores == sorted(scores, reverse=True)
    hit_of_id = {hit["_id"]: hit for hit in candidates["hits"]["hits"][:CANDIDATES]}
    for hit in reranked:
        assert restored(hit) == hit_of_id.pop(hit["_id"])


SEARCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "page": {"from": 20, "size": 15},
    "all": {"size": 120},
    "without source": {"_source": False},
    "with fields": {"_source": ["n"], "fields": ["u*"]},
    "excluded": {
        "_source": {"excludes": ["contents"]},
        "docvalue_fields": ["url", "n"],
    },
    "all parts": {
        "sort": [{"_score": "desc"}],
        "track_total_hits": True,
        "explain": True,
        "version": True,
        "aggs": {"most": {"max": {"field": "n"}}},
        "highlight": {"fields": {"contents": {}}},
    },
}
"""Kind of a search -> its further members."""
OF_STUB = ("plain", "page", "all", "without source")


@pytest.mark.parametrize("name", SEARCHES)
def test_an_application_changes_its_address_alone(served: Served, name: str) -> None:
    if served.name == "stub" and name not in OF_STUB:
        pytest.skip("an engine of few words")
    members = SEARCHES[name]
    start = members.get("from", 0)
    total = max(CANDIDATES, members.get("size", 10) + start)
    before = served.search(served.direct, search(**members))
    actual = served.search(served.proxy, search(**members))
    body = search(**members | {"from": 0, "size": total})
    candidates = served.search(served.direct, body)
    with_texts = served.search(served.direct, search(size=total))
    hits_with_texts = with_texts["hits"]["hits"][:CANDIDATES]
    texts = {hit["_id"]: hit["_source"] for hit in hits_with_texts}
    mixed = mixture(texts, candidates["hits"]["hits"][:CANDIDATES])
    hits = actual["hits"]["hits"][:CANDIDATES]
    best = sorted(mixed.values(), reverse=True)[start : start + len(hits)]
    assert [mixed[hit["_id"]] for hit in hits] == pytest.approx(best, abs=2e-5)
    assert [hit["_score"] for hit in hits] == pytest.approx(best, abs=2e-5)
    check(before, actual, candidates)


def test_clients_read_on_in_long_results(real: Served) -> None:
    if real.name == "elasticsearch":
        from elasticsearch.helpers import scan
    else:
        from opensearchpy.helpers import scan
    ids: dict[str, list[str]] = {}
    for url in (real.proxy, real.direct):
        hits = scan(real.client(url), index=real.index, query=search(), size=20)
        ids[url] = [hit["_id"] for hit in hits]
    assert ids[real.proxy] == ids[real.direct]
    assert len(ids[real.proxy]) > 100


@pytest.mark.parametrize("size", [7, 30, 100])
def test_pages_of_any_size_show_every_hit_once(real: Served, size: int) -> None:
    client = real.client(real.proxy)
    shown: list[str] = []
    for start in range(0, 120, size):
        body = search(**{"from": start, "size": size})
        page = client.search(index=real.index, body=body)["hits"]
        shown += [hit["_id"] for hit in page["hits"]]
    assert len(set(shown)) == len(shown) == page["total"]["value"]


def test_a_sort_that_breaks_ties_shows_every_hit_once(real: Served) -> None:
    find = partial(real.client(real.proxy).search, index=real.index)
    every = find(body=search(size=120))["hits"]["hits"]
    shown: list[str] = []
    body = search(size=30, sort=TIES)
    hits = find(body=body)["hits"]["hits"]
    while hits:
        shown += [hit["_id"] for hit in hits]
        further = body | {"search_after": hits[-1]["sort"]}
        hits = find(body=further)["hits"]["hits"]
    assert sorted(shown) == sorted(hit["_id"] for hit in every)


def test_clients_read_served_indexes(real: Served) -> None:
    client = real.client(real.proxy)
    index = real.index
    assert client.indices.exists(index=index)
    assert client.count(index=index, body=EVERYTHING)["count"] == 120
    assert client.get(index=index, id="7")["_source"]["n"] == 7
    assert client.exists(index=index, id="7")
    mapping = client.indices.get_mapping(index=index)[index]["mappings"]
    assert "n" in mapping["properties"]
    assert "n" in client.field_caps(index=index, fields="*")["fields"]
    assert client.indices.validate_query(index=index, body=EVERYTHING)["valid"]


@pytest.mark.parametrize("has_indexes", [False, True], ids=["ids", "documents"])
def test_clients_read_documents(real: Served, has_indexes: bool) -> None:
    body: dict[str, Any] = {"ids": ["7", "8"]}
    if has_indexes:
        body = {"docs": [{"_id": "7"}, {"_index": real.index, "_id": "8"}]}
    documents = real.client(real.proxy).mget(index=real.index, body=body)["docs"]
    assert [document["_source"]["n"] for document in documents] == [7, 8]


OTHER_CALLS: dict[str, Any] = {
    "existence of another index": lambda client, index: client.indices.exists(
        index="other-index"
    ),
    "document of another index": lambda client, index: client.get(
        index="other-index", id="7"
    ),
    "documents of another index": lambda client, index: client.mget(
        index=index, body={"docs": [{"_index": "other-index", "_id": "7"}]}
    ),
    "new document": lambda client, index: client.index(
        index=index, id="x", body={"n": 1}
    ),
    "deletion of a document": lambda client, index: client.delete(index=index, id="7"),
    "deletion of the index": lambda client, index: client.indices.delete(index=index),
    "state of the cluster": lambda client, index: client.cluster.health(),
}
"""Calls of a client that do not pass."""


@pytest.mark.parametrize("call", OTHER_CALLS.values(), ids=OTHER_CALLS)
def test_clients_read_nothing_else(real: Served, call: Any) -> None:
    pattern = "403|forbidden|security_exception|Authorization"
    with pytest.raises(Exception, match=pattern):
        call(real.client(real.proxy), real.index)


def test_templates_of_a_client(real: Served) -> None:
    if real.name != "opensearch3":
        pytest.skip("an engine without its module of templates")
    client = real.client(real.proxy)
    template = {
        "source": '{"query":{"match":{"contents":"{{t}}"}}}',
        "params": {"t": QUERY},
    }
    actual = client.search_template(index=real.index, body=template)
    expected = client.search(index=real.index, body=search())
    assert plain(actual) == plain(expected)


def test_no_search_reads_another_index(real: Served) -> None:
    """Searches of the grammar: refused, or without a word of the secret index."""
    secret = f"{real.index}-secret"
    lines = ""
    for number in range(9):
        lines += json.dumps({"index": {"_id": str(number)}}) + "\n"
        lines += json.dumps({"contents": f"xyzzy storm {number}"}) + "\n"
    options = real.options()
    bulk = f"{real.direct}/{secret}/_bulk?refresh"
    SESSION.post(bulk, data=lines, **options).raise_for_status()
    searches = Searches(7, real.index, secret)
    counts: Counter[str] = Counter()
    for _ in range(6 * REQUESTS):
        call = searches.call()
        content = call.body.encode()
        send = partial(SESSION.request, call.method, data=content, **options)
        answer = send(real.proxy + call.path)
        assert "xyzzy" not in answer.text, call
        assert answer.status_code != 502, call
        counts[str(answer.status_code)] += 1
        counts["leaks"] += "xyzzy" in send(real.direct + call.path).text
    assert min(counts["200"], counts["403"]) > REQUESTS
    assert counts["leaks"]  # The engine itself leaks: the searches reach for it.


def test_reranking_in_an_application(served: Served, capsys: Capture) -> None:
    """The lines of the README, with another address and index."""
    name = "opensearchpy"
    if served.name in ("stub", "elasticsearch"):
        name = "elasticsearch"
    readmes = (ROOT / "README.md", ROOT / "indexes" / "engines" / "README.md")
    text = "".join(path.read_text("utf-8") for path in readmes)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    [source] = [block for block in blocks if f"from {name} import" in block]
    assert source.count("http://localhost:9200") == 1
    lines = source.replace('"posts"', repr(served.index))
    # The server decides on the client's credentials.
    lines = re.sub(r"\w+\(\"http://localhost:9200\"\)", "connect()", lines)
    exec(lines, {"connect": lambda: served.client(served.direct), "query": QUERY})
    output = capsys.readouterr().out.splitlines()
    assert len(output) == 10
    scores = [float(line.split()[0]) for line in output]
    assert scores == sorted(scores, reverse=True)


def test_mutated_searches_differ_in_order_and_scores_alone(served: Served) -> None:
    searches = Searches(1, served.index, served.index)
    random = searches.random
    for _ in range(REQUESTS):
        body = searches.json("$changed search").encode()
        if random.random() < 0.15:  # Changed bytes
            start = random.randrange(len(body))
            end = start + random.randrange(4)
            body = body[:start] + random.randbytes(random.randrange(4)) + body[end:]
        parameters = random.choice(["", "", "?size=7", "?from=3&pretty", "?sort=n"])
        compare(served, parameters, body)


def compare(served: Served, parameters: str, body: bytes) -> None:
    """Compare the answers of the engine and of the proxy to a search."""
    path = f"/{served.index}/_search"
    options = served.options()
    before = SESSION.post(served.direct + path + parameters, data=body, **options)
    answer = SESSION.post(served.proxy + path + parameters, data=body, **options)
    if "found no JSON object that can be read" in answer.text:
        assert answer.status_code == 400
        return
    if answer.status_code == 403:
        assert "does not pass here" in answer.text
        return
    assert answer.status_code == before.status_code, answer.text
    if before.status_code != 200:
        assert plain_error(answer.json()) == plain_error(before.json())
        return
    actual = plain(answer.json())
    expected = plain(before.json())
    if answer.headers.get("x-reranked") != "true":
        actual.pop("_reranked", None)
        assert actual == expected
        return
    content = search_of_candidates(body, parameters)
    candidates = SESSION.post(served.direct + path, json=content, **options)
    check(expected, actual, candidates.json())


def search_of_candidates(body: bytes, parameters: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(body)
    page = {"from": 0, "size": 10} | content
    for parameter in parameters[1:].split("&"):
        name, _, value = parameter.partition("=")
        page[name] = value
    end = int(page["from"]) + int(page["size"])
    return content | {"from": 0, "size": max(CANDIDATES, end)}


def plain_error(content: Any) -> tuple[Any, Any]:
    """Status and type of an error; its message differs from one to the next."""
    error = content.get("error")
    if isinstance(error, dict):
        error = error.get("type")
    return content.get("status"), error
