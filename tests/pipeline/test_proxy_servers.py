"""The official clients through the service, on an engine in this process and on real servers."""

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
from helpers.engine_servers import SERVERS, running
from helpers.processes import ROOT
from helpers.proxy_samples import mixture, post, restored, search, stub_engine
from helpers.search_grammar import Searches
from helpers.service_samples import QUERY, app_of, listening

from tweetrerank.indexes.engines.client import Engine
from tweetrerank.pipeline.service.proxy.ask import SearchDefaults

REQUESTS = int(os.environ.get("TWEETRERANK_SEARCHES", "50"))
"""Mutated searches of each engine: ``TWEETRERANK_SEARCHES=20000 python -m pytest
tests/pipeline/test_proxy_servers.py`` sends more."""
WINDOW = 100
TIES = ["_score", {"n": "desc"}]
SESSION = requests.Session()
SESSION.trust_env = False


class Served(NamedTuple):
    """An engine with 120 posts, and the service in front of it."""

    name: str  # Of the engine
    direct: str  # Its address
    proxy: str  # That of the service
    index: str
    credentials: dict[str, str]  # User, password and CA file, as far as there are any

    def options(self) -> dict[str, Any]:
        """Options of a request without a client."""
        options: dict[str, Any] = {
            "headers": {"content-type": "application/json"},
            "timeout": 60,
        }
        if user := self.credentials.get("TWEETRERANK_ENGINE_USER"):
            options["auth"] = (
                user,
                self.credentials.get("TWEETRERANK_ENGINE_PASSWORD", ""),
            )
        return options | {"verify": self.credentials.get("TWEETRERANK_ENGINE_CA", True)}

    def client(self, url: str) -> Any:
        given: dict[str, Any] = {"max_retries": 0}
        if url.startswith("https") and "TWEETRERANK_ENGINE_CA" in self.credentials:
            given["ca_certs"] = self.credentials["TWEETRERANK_ENGINE_CA"]
        pair = self.options().get("auth")
        if self.name in ("stub", "elasticsearch"):
            from elasticsearch import Elasticsearch

            return Elasticsearch(url, **given, **({"basic_auth": pair} if pair else {}))
        from opensearchpy import OpenSearch

        return OpenSearch(url, **given, **({"http_auth": pair} if pair else {}))


@pytest.fixture(scope="module", params=["stub", *SERVERS])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    options: dict[str, Any] = {"defaults": SearchDefaults(seconds=60)}
    if request.param == "stub":
        with (
            stub_engine() as (url, _),
            listening(app_of(engine=url, **options)) as proxy,
        ):
            yield Served("stub", url, proxy, "posts", {})
        return
    with running(request.param) as server:
        address = server.address()
        engine = Engine(address)
        fields = {
            "contents": {"type": "text"},
            "url": {"type": "keyword"},
            "n": {"type": "long"},
        }
        body = {"settings": {"number_of_shards": 1}, "mappings": {"properties": fields}}
        engine.request("PUT", f"/{address.index}", body)
        lines = []
        for row in range(120):
            lines += [{"index": {"_id": str(row)}}, {**post(row), "n": row}]
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        engine.request("POST", f"/{address.index}/_bulk", content, {"refresh": True})
        options["defaults"] = SearchDefaults(seconds=60, indexes=(address.index,))
        options["ca"] = server.credentials.get("TWEETRERANK_ENGINE_CA")
        with listening(app_of(engine=server.url, **options)) as proxy:
            yield Served(
                server.name, server.url, proxy, address.index, server.credentials
            )


@pytest.fixture
def real(served: Served) -> Served:
    if served.name == "stub":
        pytest.skip("an engine of few words")
    return served


def plain(answer: Any) -> Any:
    """An answer of a client, without what differs from one to the next."""
    actual = json.loads(json.dumps(getattr(answer, "body", answer)))
    for item in (actual, *actual.get("responses", ())):
        item.pop("took", None)
    return actual


def check(before: Any, actual: Any, window: Any) -> None:
    """``found`` has hits of ``window`` in the order of their scores, and else is ``before``."""
    hits = actual["hits"].pop("hits")
    expected = before["hits"].pop("hits")
    best, _ = actual["hits"].pop("max_score"), before["hits"].pop("max_score")
    assert actual == before and len(hits) == len(expected)
    new = [hit for hit in hits if "_first_stage_score" in hit.get("fields", ())]
    assert hits[len(new) :] == expected[len(new) :]
    scores = [hit["_score"] for hit in new]
    assert [best, *scores] == sorted([best, *scores], reverse=True)
    of_engine = {hit["_id"]: hit for hit in window["hits"]["hits"][:WINDOW]}
    for hit in new:
        assert restored(hit) == of_engine.pop(hit["_id"])


PARTS: dict[str, Any] = dict.fromkeys(("track_total_hits", "explain", "version"), True)
PARTS |= {
    "aggs": {"most": {"max": {"field": "n"}}},
    "highlight": {"fields": {"contents": {}}},
}
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
    "all parts": {"sort": [{"_score": "desc"}], **PARTS},
}


@pytest.mark.parametrize("name", SEARCHES)
def test_an_application_changes_its_address_alone(served: Served, name: str) -> None:
    if served.name == "stub" and name not in ("plain", "page", "all", "without source"):
        pytest.skip("an engine of few words")
    more = SEARCHES[name]
    window = max(WINDOW, more.get("size", 10) + more.get("from", 0))
    whole = search(**more | {"from": 0, "size": window})
    direct, client = served.client(served.direct), served.client(served.proxy)
    before, actual, candidates, with_texts = (
        plain(item.search(index=served.index, body=content))
        for item, content in (
            *((direct, search(**more)), (client, search(**more))),
            *((direct, whole), (direct, search(size=window))),
        )
    )
    texts = {hit["_id"]: hit["_source"] for hit in with_texts["hits"]["hits"][:WINDOW]}
    mixed = mixture(texts, candidates["hits"]["hits"][:WINDOW])
    start, hits = more.get("from", 0), actual["hits"]["hits"][:WINDOW]
    best = sorted(mixed.values(), reverse=True)[start : start + len(hits)]
    assert [mixed[hit["_id"]] for hit in hits] == pytest.approx(best, abs=2e-5)
    assert [hit["_score"] for hit in hits] == pytest.approx(best, abs=2e-5)
    check(before, actual, candidates)


def test_clients_read_on_in_long_results(real: Served) -> None:
    if real.name == "elasticsearch":
        from elasticsearch.helpers import scan
    else:
        from opensearchpy.helpers import scan
    actual, before = (
        [hit["_id"] for hit in scan(client, index=real.index, query=search(), size=20)]
        for client in (real.client(real.proxy), real.client(real.direct))
    )
    assert actual == before and len(actual) > 100


def test_every_hit_is_seen_once(real: Served) -> None:
    """By pages of any size, and by the values of a sort that breaks ties."""
    find = partial(real.client(real.proxy).search, index=real.index)
    for size in (7, 30, 100):
        bodies = [
            search(**{"from": start, "size": size}) for start in range(0, 120, size)
        ]
        pages = [find(body=body) for body in bodies]
        shown = [hit["_id"] for page in pages for hit in page["hits"]["hits"]]
        assert len({*shown}) == len(shown) == pages[0]["hits"]["total"]["value"]
    seen, more = list[str](), dict[str, Any]()
    while hits := find(body=search(size=30, sort=TIES, **more))["hits"]["hits"]:
        seen += [hit["_id"] for hit in hits]
        more = {"search_after": hits[-1]["sort"]}
    assert sorted(seen) == sorted(shown)


def test_clients_read_what_is_served_alone(real: Served) -> None:
    client, index, other = real.client(real.proxy), real.index, "other-index"
    every = {"query": {"match_all": {}}}
    assert client.indices.exists(index=index)
    assert client.count(index=index, body=every)["count"] == 120
    assert client.get(index=index, id="7")["_source"]["n"] == 7
    assert client.exists(index=index, id="7")
    for docs in (
        {"ids": ["7", "8"]},
        {"docs": [{"_id": "7"}, {"_index": index, "_id": "8"}]},
    ):
        found = client.mget(index=index, body=docs)["docs"]
        assert [doc["_source"]["n"] for doc in found] == [7, 8]
    assert (
        "n" in client.indices.get_mapping(index=index)[index]["mappings"]["properties"]
    )
    assert "n" in client.field_caps(index=index, fields="*")["fields"]
    assert client.indices.validate_query(index=index, body=every)["valid"]
    for call in (
        lambda: client.indices.exists(index=other),
        lambda: client.get(index=other, id="7"),
        lambda: client.mget(
            index=index, body={"docs": [{"_index": other, "_id": "7"}]}
        ),
        lambda: client.index(index=index, id="x", body={"n": 1}),
        lambda: client.delete(index=index, id="7"),
        lambda: client.indices.delete(index=index),
        lambda: client.cluster.health(),
    ):
        with pytest.raises(
            Exception, match=r"403|forbidden|security_exception|Authorization"
        ):
            call()
    if real.name == "opensearch3":  # With its module of templates.
        template = {
            "source": '{"query":{"match":{"contents":"{{t}}"}}}',
            "params": {"t": QUERY},
        }
        found = client.search_template(index=index, body=template)
        assert plain(found) == plain(client.search(index=index, body=search()))


def test_no_search_reads_another_index(real: Served) -> None:
    """Searches of the engine's own grammar: refused, or without a word of the secret index."""
    secret = f"{real.index}-secret"
    posts = [
        f'{{"index":{{"_id":"{n}"}}}}\n{{"contents":"xyzzy storm {n}"}}\n'
        for n in range(9)
    ]
    options = real.options()
    bulk = f"{real.direct}/{secret}/_bulk?refresh"
    SESSION.post(bulk, data="".join(posts), **options).raise_for_status()
    made, counts = Searches(7, real.index, secret), Counter[str]()
    for _ in range(6 * REQUESTS):
        method, path, body = made.call()
        answer, plain = (
            SESSION.request(method, url + path, data=body.encode(), **options)
            for url in (real.proxy, real.direct)
        )
        assert "xyzzy" not in answer.text and answer.status_code != 502, (
            method,
            path,
            body,
        )
        counts[str(answer.status_code)] += 1
        counts["leaks"] += "xyzzy" in plain.text
    assert min(counts["200"], counts["403"]) > REQUESTS
    assert counts["leaks"]  # Of the engine itself: the searches reach for it.


def test_reranking_in_an_application(served: Served, capsys: Capture) -> None:
    """The lines of the README, with another address and index."""
    name = (
        "elasticsearch" if served.name in ("stub", "elasticsearch") else "opensearchpy"
    )
    readmes = (ROOT / "README.md", ROOT / "indexes" / "engines" / "README.md")
    text = "".join(path.read_text("utf-8") for path in readmes)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (source,) = [block for block in blocks if f"from {name} import" in block]
    assert source.count("http://localhost:9200") == 1
    lines = source.replace('"posts"', repr(served.index))
    # Who asks is a matter of the server.
    lines = re.sub(r"\w+\(\"http://localhost:9200\"\)", "connect()", lines)
    exec(lines, {"connect": lambda: served.client(served.direct), "query": QUERY})
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 10
    scores = [float(line.split()[0]) for line in shown]
    assert scores == sorted(scores, reverse=True)


def test_mutated_searches_differ_in_order_and_scores_alone(served: Served) -> None:
    made = Searches(1, served.index, served.index)
    for _ in range(REQUESTS):
        body = made.json("$changed search").encode()
        if made.random.random() < 0.15:  # Changed bytes.
            start = made.random.randrange(len(body))
            end = start + made.random.randrange(4)
            body = (
                body[:start]
                + made.random.randbytes(made.random.randrange(4))
                + body[end:]
            )
        compare(
            served,
            made.random.choice(["", "", "?size=7", "?from=3&pretty", "?sort=n"]),
            body,
        )


def compare(served: Served, parameters: str, body: bytes) -> None:
    path, options = f"/{served.index}/_search", served.options()
    before = SESSION.post(served.direct + path + parameters, data=body, **options)
    answer = SESSION.post(served.proxy + path + parameters, data=body, **options)
    if (
        "found no JSON object that can be read" in answer.text
        or answer.status_code == 403
    ):
        assert answer.status_code == (
            403 if "does not pass here" in answer.text else 400
        )
        return
    assert answer.status_code == before.status_code, answer.text
    if before.status_code != 200:
        assert plain_error(answer.json()) == plain_error(before.json())
        return
    actual, expected = plain(answer.json()), plain(before.json())
    if answer.headers.get("x-reranked") != "true":
        actual.pop("_reranked", None)
        assert actual == expected
        return
    content = json.loads(body)
    given = dict(part.split("=") for part in parameters[1:].split("&") if "=" in part)
    given = {"from": 0, "size": 10} | content | given
    start, size = int(given["from"]), int(given["size"])
    content |= {"from": 0, "size": max(WINDOW, start + size)}
    check(
        expected,
        actual,
        SESSION.post(served.direct + path, json=content, **options).json(),
    )


def plain_error(content: Any) -> Any:
    """An error, without what differs from one to the next."""
    error = content.get("error")
    return content.get("status"), error.get("type") if isinstance(
        error, dict
    ) else error
