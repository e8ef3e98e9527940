"""The indexes, searches and other calls that may pass the proxy."""

import gzip
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.proxy_samples import StubEngine, line_pair, search, stub_engine
from helpers.service_samples import client_of
from starlette.testclient import TestClient

from tweetrerank.pipeline.service.proxy.allowed import readable
from tweetrerank.pipeline.service.proxy.ask import SearchDefaults
from tweetrerank.pipeline.service.proxy.routes import SEARCHES
from tweetrerank.pipeline.service.service_errors import RequestError

EVERYTHING = {"query": {"match_all": {}}}
WRAPPER = {"wrapper": {"query": "e30="}}
LOOKUP = {"terms": {"n": {"index": ".keys", "id": "1", "path": "x"}}}


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


@pytest.fixture(scope="module")
def limited(served: StubEngine) -> Iterator[TestClient]:
    """A client who may read the indexes posts-* alone."""
    defaults = SearchDefaults(indexes=("posts-*",))
    with client_of(engine=served.url, defaults=defaults) as opened:
        yield opened


ALLOWED: dict[str, Any] = {
    "look-up in a served index": {
        "query": {"terms": {"n": {"index": "posts-1", "id": "1", "path": "x"}}}
    },
    "terms of a field called index": {"query": {"terms": {"index": ["a"], "boost": 2}}},
    "shape in a served index": {
        "query": {
            "geo_shape": {"place": {"indexed_shape": {"index": "posts-1", "id": "1"}}}
        }
    },
    "documents of a served index, and texts": {
        "query": {"more_like_this": {"like": [{"_index": "posts-1", "_id": "1"}, "a"]}}
    },
    "knn of a field called filter": {
        "query": {
            "knn": {
                "filter": {
                    "vector": [1],
                    "k": 2,
                    "filter": {"term": {"wrapper": "a"}},
                }
            }
        }
    },
    "knn with filters": {
        "knn": {
            "field": "v",
            "query_vector": [1],
            "k": 2,
            "filter": [{"term": {"a": "b"}}],
        }
    },
    "spans": {
        "query": {
            "span_not": {
                "include": {"span_term": {"a": "b"}},
                "exclude": {"span_term": {"a": "c"}},
            }
        }
    },
    "intervals with filters": {
        "query": {
            "intervals": {
                "a": {
                    "any_of": {
                        "intervals": [
                            {
                                "match": {
                                    "query": "b",
                                    "filter": {"after": {"match": {"query": "c"}}},
                                }
                            }
                        ]
                    }
                }
            }
        }
    },
    "functions, with a parameter called wrapper": {
        "query": {
            "function_score": {
                "functions": [
                    {"gauss": {"n": {"origin": 1, "scale": 2}}},
                    {
                        "script_score": {
                            "script": {"source": "1", "params": {"wrapper": 1}}
                        }
                    },
                ]
            }
        }
    },
    "aggregations called wrapper and id": {
        "aggs": {
            "wrapper": {
                "terms": {"field": "n", "order": {"x>y": "asc"}},
                "aggs": {"id": {"max": {"field": "n"}}},
            }
        }
    },
    "a bucket called wrapper, and hits": {
        "aggs": {
            "a": {"filters": {"filters": {"wrapper": {"match_all": {}}}}},
            "b": {"top_hits": {"sort": ["n"]}},
        }
    },
    "a suggester called wrapper": {
        "suggest": {
            "text": "a",
            "wrapper": {"phrase": {"field": "x", "direct_generator": [{"field": "x"}]}},
        }
    },
    "sorts with a filter and by distance": {
        "sort": [
            {
                "n": {
                    "order": "asc",
                    "nested": {"path": "p", "filter": {"term": {"a": 1}}},
                }
            },
            {"_geo_distance": {"place": [1, 2]}},
        ]
    },
    "highlights of a field called wrapper": {
        "highlight": {
            "fields": [{"wrapper": {"highlight_query": {"match": {"a": "b"}}}}]
        }
    },
    "retrievers": {
        "retriever": {
            "rrf": {"retrievers": [{"standard": {"query": {"match": {"a": "b"}}}}]}
        }
    },
    "a second query": {
        "rescore": {
            "window_size": 5,
            "query": {"rescore_query": {"match": {"a": "b"}}},
        }
    },
}
"""Reason -> a body that passes for the indexes posts-*."""


def by_field(kind: str, value: Any) -> dict[str, Any]:
    """A query by the value of a field."""
    return {"query": {kind: {"n": value}}}


def aggregation(value: Any) -> dict[str, Any]:
    return {"aggs": {"a": value}}


FORBIDDEN: dict[str, Any] = {
    # Words for a query in another form, in every part that has queries
    "wrapper": {"query": WRAPPER},
    "template": {"query": {"template": {"query": "e30="}}},
    "rule": {"query": {"rule": {"query": "e30="}}},
    "agent": {"query": {"agentic": {"query": "e30="}}},
    "wrapper in a filter after the search": {"post_filter": WRAPPER},
    "wrapper in a nested query": {
        "query": {"bool": {"must": [{"nested": {"path": "p", "query": WRAPPER}}]}}
    },
    "wrapper in a function's query": {"query": {"function_score": {"query": WRAPPER}}},
    "wrapper in a function's filter": {
        "query": {"function_score": {"functions": [{"filter": WRAPPER}]}}
    },
    "wrapper in an aggregation's filter": aggregation({"filter": WRAPPER}),
    "wrapper in a list of buckets": aggregation({"filters": {"filters": [WRAPPER]}}),
    "wrapper in buckets that are called meta": aggregation(
        {
            "global": {},
            "aggs": {"meta": {"filters": {"filters": {"meta": WRAPPER}}}},
        }
    ),
    "wrapper in the highlights of hits": aggregation(
        {"top_hits": {"highlight": {"fields": {"a": {"highlight_query": WRAPPER}}}}}
    ),
    "wrapper in a sort": {
        "sort": [{"n": {"nested": {"path": "p", "filter": WRAPPER}}}]
    },
    "wrapper in inner hits": {
        "collapse": {
            "field": "n",
            "inner_hits": {"highlight": {"highlight_query": WRAPPER}},
        }
    },
    "wrapper in a second query": {"rescore": [{"query": {"rescore_query": WRAPPER}}]},
    "wrapper in retrievers": {
        "retriever": {
            "linear": {"retrievers": [{"retriever": {"standard": {"filter": WRAPPER}}}]}
        }
    },
    "wrapper in knn": {"knn": [{"field": "v", "filter": WRAPPER}]},
    "wrapper in a search inside": {"sub_searches": [{"query": WRAPPER}]},
    # Programs: in the search, stored, or rendered by the engine
    "pipeline in the search": {"search_pipeline": {"request_processors": []}},
    "pipelines in a list": {"search_pipeline": [{"request_processors": []}]},
    "stored script": {"query": {"script": {"script": {"id": "stored"}}}},
    "template of a suggester": {
        "suggest": {
            "s": {"text": "a", "phrase": {"collate": {"query": {"source": "{}"}}}}
        }
    },
    # Other indexes
    "look-up in another index": {"query": LOOKUP},
    "look-up in a pattern": by_field(
        "terms", {"index": "posts-*", "id": "1", "path": "x"}
    ),
    "look-up in a list": by_field(
        "terms", {"index": ["other"], "id": "1", "path": "x"}
    ),
    "look-up in an empty name": by_field(
        "terms", {"index": "", "id": "1", "path": "x"}
    ),
    "look-up in null": by_field("terms", {"index": None, "id": "1", "path": "x"}),
    "look-up without an index": by_field("terms", {"id": "1", "path": "x"}),
    "stored query of another index": {
        "query": {"percolate": {"field": "q", "index": "other", "id": "1"}}
    },
    "shape without an index": {
        "query": {"geo_shape": {"place": {"indexed_shape": {"id": "1"}}}}
    },
    "pinned document of another index": {
        "query": {
            "pinned": {
                "docs": [{"_index": "other", "_id": "1"}],
                "organic": {"match_all": {}},
            }
        }
    },
    "document like one of a list of indexes": {
        "query": {"more_like_this": {"like": {"_index": ["other"], "_id": "1"}}}
    },
    "field of another index": {
        "runtime_mappings": {"x": {"type": "lookup", "target_index": "other"}}
    },
    "vector of a document": {
        "knn": {"field": "v", "query_vector_builder": {"lookup": {"index": "posts-1"}}}
    },
    "weight of another index": {"indices_boost": [{"other": 2}]},
    # Unknown words
    "another extension": {"ext": {"generative_qa_parameters": {"memory_id": "x"}}},
    "unknown key": {"unknown": 1},
}
"""Reason -> a body that does not pass for the indexes posts-*."""


@pytest.mark.parametrize("body", ALLOWED.values(), ids=ALLOWED)
def test_bodies_on_the_allow_list(
    limited: TestClient,
    engine: StubEngine,
    body: Any,
) -> None:
    assert limited.post("/posts-1/_async_search", json=body).status_code == 200
    assert engine.bodies == [body]


@pytest.mark.parametrize("path", ["_search", "_count", "_async_search", "_msearch"])
@pytest.mark.parametrize("body", FORBIDDEN.values(), ids=FORBIDDEN)
def test_bodies_beside_the_allow_list(
    limited: TestClient,
    engine: StubEngine,
    body: Any,
    path: str,
) -> None:
    content = json.dumps(body)
    if path == "_msearch":
        content = line_pair({}, body)
    answer = limited.post(f"/posts-1/{path}", content=content)
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "security_exception"
    assert engine.requests == []


# Calls around searches

READS = [
    "HEAD",
    "GET _doc/7",
    "HEAD _doc/7",
    "GET _source/7",
    "POST _count",
    "GET _count?q=a",
    "POST _field_caps?fields=*",
    "GET _mapping",
    "GET _mapping/field/a*",
    "POST _validate/query",
    "POST _async_search",
    "OPTIONS _search",
    "OPTIONS _doc/1",
]
"""Methods, and paths after the index, of calls that pass."""


@pytest.mark.parametrize("call", READS)
def test_reads_of_served_indexes_pass(
    limited: TestClient,
    engine: StubEngine,
    call: str,
) -> None:
    method, _, path_after_index = call.partition(" ")
    path = f"/posts-1/{path_after_index}".rstrip("/")
    body = EVERYTHING if method == "POST" else None
    assert limited.request(method, path, json=body).status_code == 200
    request, content = engine.requests.pop()
    assert request.method == method
    sent_path = str(request.url).removeprefix(engine.url)
    assert sent_path == path.replace("fields=*", "fields=%2A")
    if body:
        assert content == json.dumps(body, separators=(",", ":")).encode()
    else:
        assert content == b""


@pytest.mark.parametrize("call", READS)
def test_reads_of_other_indexes_do_not_pass(
    limited: TestClient,
    engine: StubEngine,
    call: str,
) -> None:
    method, _, path_after_index = call.partition(" ")
    path = f"/other/{path_after_index}".rstrip("/")
    body = EVERYTHING if method == "POST" else None
    assert limited.request(method, path, json=body).status_code == 403
    assert engine.requests == []


@pytest.mark.parametrize("call", [call for call in READS if call.startswith("POST")])
def test_bodies_of_reads_are_checked(
    limited: TestClient,
    engine: StubEngine,
    call: str,
) -> None:
    path = f"/posts-1/{call.removeprefix('POST ')}"
    answer = limited.post(path, json={"query": {"wrapper": {}}})
    assert answer.status_code == 403
    assert engine.requests == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/posts-1/_mget", {"ids": ["1", "2"]}, id="index in the path"),
        pytest.param(
            "/_mget",
            {
                "docs": [
                    {"_index": "posts-1", "_id": "1"},
                    {"_index": "posts-2", "_id": "2"},
                ]
            },
            id="indexes in the body",
        ),
    ],
)
def test_documents_of_served_indexes(
    limited: TestClient,
    engine: StubEngine,
    path: str,
    body: Any,
) -> None:
    assert limited.post(path, json=body).status_code == 200
    assert engine.bodies == [body]
    assert engine.requests[0][0].url.path == path


# Indexes

ELSEWHERE: dict[str, str] = {
    # Other indexes, by names and patterns
    "system index": ".plugins-ml-config/_search",
    "all indexes": "_all/_search",
    "other index": "other/_search",
    "all indexes by a pattern": "*/_search",
    "wider pattern": "p*/_search",
    "second index": "posts-a,b/_search",
    "name computed from a date": "%3Cposts-%7Bnow%7D%3E,posts-1/_search",
    "folder above": "%2e%2e/_search",
    "security": "_security/_search",
    "no index": "_search",
    "index in a parameter": "_search?index=posts-1",
    "another index in a parameter": "posts-1/_search?index=.keys",
    # Other indexes in encoded names, whose search goes on later
    "encoded dot": "%2ekeys/_pit",
    "encoded underscore": "%5fall/_pit",
    "encoded comma": "posts-%2c.keys/_pit",
    "remote cluster": "r:posts-1/_pit",
    # Calls that need an index
    "count": "_count",
    "mapping": "_mapping",
    "document": "_doc/1",
    "fields": "_field_caps",
    "document of a system index": ".k/_doc/1",
    "point in time": "_pit",
    "asynchronous search": "_async_search",
    # Calls that write, and such as an administrator makes
    "new index": "PUT:posts-1",
    "new document": "POST:posts-1/_doc",
    "deletion": "DELETE:posts-1",
    "bulk": "_bulk",
    "another method of a search": "PUT:posts-1/_search",
    "search as a document": "posts-1/_doc/_search",
    "cluster": "GET:_cluster/health",
}
"""Reason -> a path that does not pass for posts-*; its method, if it is not POST."""

HEADERS: list[dict[str, Any]] = [
    # Not any index
    {"index": []},
    {"index": ""},
    {"index": [""]},
    {"index": ","},
    {"index": {}},
    {"indices": []},
    {"indices": ""},
    {"indices": [""]},
    {"indices": ","},
    {"indices": {}},
    # A second index
    {"index": ["posts-1", ".keys"]},
    {"index": "posts-1,.keys"},
]
"""Headers among several searches that do not pass."""


def check_refused(
    client: TestClient,
    engine: StubEngine,
    path: str,
    content: str,
    method: str = "POST",
) -> None:
    answer = client.request(method, f"/{path}", content=content)
    assert answer.status_code in (400, 403), answer.text
    if answer.status_code == 403:
        content = answer.json()
        error = content["error"]
        assert content["status"] == 403
        assert error["type"] == "security_exception"
        assert re.search("expected one of posts|not pass", error["reason"])
    assert engine.requests == []


@pytest.mark.parametrize("call", ELSEWHERE.values(), ids=ELSEWHERE)
def test_other_indexes(limited: TestClient, engine: StubEngine, call: str) -> None:
    method = "POST"
    path = call
    if re.match("[A-Z]+:", call):
        method, _, path = call.partition(":")
    content = ""
    if "_search" in path:
        content = json.dumps(search())
    check_refused(limited, engine, path, content, method)


@pytest.mark.parametrize("header", HEADERS, ids=json.dumps)
def test_other_indexes_in_headers(
    limited: TestClient,
    engine: StubEngine,
    header: Any,
) -> None:
    check_refused(limited, engine, "posts-1/_msearch", line_pair(header))


@pytest.mark.parametrize("name", [".k", "p*"])
def test_documents_of_other_indexes(
    limited: TestClient,
    engine: StubEngine,
    name: str,
) -> None:
    content = json.dumps({"docs": [{"_id": 1, "_index": name}]})
    check_refused(limited, engine, "posts-1/_mget", content)


OTHER_BODIES: dict[str, tuple[str, str]] = {
    "look-up": ("posts-1/_search", json.dumps({"query": LOOKUP})),
    "look-up in a parameter after a semicolon": (
        f"posts-1/_search?pretty=1;source={json.dumps({'query': LOOKUP})}",
        "",
    ),
    "key that is there twice": ("posts-1/_search", '{"query": {}, "query": {}}'),
    "comment": ("posts-1/_search", '{"size": 1} // comment'),
    "index of several searches in a parameter": (
        "_msearch?index=.keys",
        line_pair({}),
    ),
    "several searches without an index": ("_msearch", line_pair({})),
    "look-up among several": ("posts-1/_msearch", line_pair({}, {"query": LOOKUP})),
    "last line without its end": ("posts-1/_msearch", line_pair({})[:-1]),
}
"""Reason -> a path and a body that do not pass."""


@pytest.mark.parametrize(("path", "content"), OTHER_BODIES.values(), ids=OTHER_BODIES)
def test_other_bodies(
    limited: TestClient,
    engine: StubEngine,
    path: str,
    content: str,
) -> None:
    check_refused(limited, engine, path, content)


@pytest.mark.parametrize("names", ["posts-1", "posts-*", "posts-a*,posts-b"])
def test_served_indexes(limited: TestClient, names: str) -> None:
    assert limited.post(f"/{names}/_search", json=search()).status_code == 200


@pytest.mark.parametrize(
    ("served_pattern", "name", "is_served"),
    [
        pytest.param("*", "posts", True, id="every index of this cluster"),
        pytest.param("*", "r:posts", False, id="an index of a remote cluster"),
        pytest.param("*", "*:posts", False, id="an index of all remote clusters"),
        pytest.param("*posts", "r:posts", False, id="a remote index by its end"),
        pytest.param("r*", "r:posts", False, id="a remote cluster by its start"),
        pytest.param("r:*", "r:posts", True, id="a served remote cluster"),
        pytest.param("*:posts", "r:posts", True, id="all remote clusters are served"),
        pytest.param("r:*", "posts", False, id="a remote cluster alone"),
    ],
)
def test_remote_clusters(served_pattern: str, name: str, is_served: bool) -> None:
    if is_served:
        assert readable([name], [served_pattern])[0] == name
        return
    with pytest.raises(RequestError, match="expected one of"):
        readable([name], [served_pattern])


def test_wildcards_do_not_reach_remote_clusters(
    client: TestClient,
    engine: StubEngine,
) -> None:
    assert client.post("/r:posts/_search", json=search()).status_code == 403
    lines = line_pair({"index": "r:posts"})
    assert client.post("/_msearch", content=lines).status_code == 403
    assert engine.requests == []


@pytest.mark.parametrize("count", [1000, 1001])
def test_names_are_bounded(count: int) -> None:
    names = [f"posts-{number}" for number in range(count)]
    if count == 1000:
        assert readable(names, ["*"]) == names
        return
    with pytest.raises(RequestError, match="found 1,001 indexes, expected at most"):
        readable(names, ["*"])


def test_patterns_leave_out_indexes_of_the_engine(
    client: TestClient,
    engine: StubEngine,
) -> None:
    assert client.post("/*/_search", json=search()).status_code == 200
    lines = line_pair({"index": "*"}) + line_pair({"index": "posts"})
    assert client.post("/_msearch", content=lines).status_code == 200
    assert engine.requests[0][0].url.path == "/*,-.*/_search"
    headers = engine.requests[1][1].splitlines()[::2]
    assert [json.loads(line)["index"] for line in headers] == [["*", "-.*"], ["posts"]]


REFUSED = line_pair({"index": ".keys"}) + line_pair({}, {"query": WRAPPER})
"""Two searches that do not pass."""


@pytest.mark.parametrize(
    ("lines", "statuses", "summary"),
    [
        pytest.param(line_pair({}) + REFUSED, [200, 403, 403], "", id="one passes"),
        pytest.param(
            line_pair({}) + REFUSED + line_pair({}, EVERYTHING),
            [200, 403, 403, 200],
            "1 of 2 searches: no text is searched in contents",
            id="two pass, one of them unchanged",
        ),
    ],
)
def test_one_search_of_several_is_refused(
    limited: TestClient,
    engine: StubEngine,
    lines: str,
    statuses: list[int],
    summary: str,
) -> None:
    answer = limited.post("/posts-1/_msearch", content=lines)
    items = answer.json()["responses"]
    assert [item["status"] for item in items] == statuses
    assert items[1]["error"]["type"] == "security_exception"
    assert answer.headers.get("x-not-reranked", "") == summary
    [(_, content)] = engine.requests
    headers = [json.loads(line) for line in content.splitlines()[::2]]
    assert headers == [{"index": ["posts-1"]}] * statuses.count(200)


def test_all_searches_of_several_are_refused(
    limited: TestClient,
    engine: StubEngine,
) -> None:
    answer = limited.post("/posts-1/_msearch", content=REFUSED)
    assert answer.status_code == 403
    assert re.search("'.keys'.*; .*'wrapper'", answer.json()["error"]["reason"])
    assert engine.requests == []


# Ids by which a search goes on

UNKNOWN_IDS: dict[str, tuple[str, str, Any]] = {
    "scroll": ("POST", "/_search/scroll", {"scroll_id": "mine"}),
    "all scrolls": ("DELETE", "/_search/scroll", {"scroll_id": ["_all"]}),
    "all scrolls, in the path": ("DELETE", "/_search/scroll/_all", {}),
    "no scroll": ("DELETE", "/_search/scroll", {}),
    "a point in time, and all": (
        "DELETE",
        "/_search/point_in_time",
        {"pit_id": ["mine", "_all"]},
    ),
    "all points in time": ("DELETE", "/_search/point_in_time/_all", {}),
    "point in time": ("DELETE", "/_pit", {"id": "mine"}),
    "asynchronous search": ("GET", "/_async_search/mine", {}),
    "search of a point in time": (
        "POST",
        "/_search",
        EVERYTHING | {"pit": {"id": "m"}},
    ),
    "no id": ("POST", "/_search", EVERYTHING | {"pit": {}}),
    "number in place of an object": ("POST", "/_search", EVERYTHING | {"pit": 5}),
    "list in place of an object": (
        "POST",
        "/_search",
        EVERYTHING | {"pit": [{"id": "a"}]},
    ),
}
"""Reason -> a call with an id that the proxy has not seen, or without one."""

KNOWN_IDS: dict[str, tuple[str, str, Any]] = {
    "scroll": ("POST", "/_search/scroll", {"scroll_id": "mine", "scroll": "1m"}),
    "scroll in a parameter": ("GET", "/_search/scroll?scroll_id=mine", {}),
    "scroll in the path": ("DELETE", "/_search/scroll/mine", {}),
    "point in time": ("DELETE", "/_search/point_in_time", {"pit_id": ["mine"]}),
    "search of a point in time": (
        "POST",
        "/_search",
        EVERYTHING | {"pit": {"id": "mine", "keep_alive": "1m"}},
    ),
}
"""Reason -> a call with an id from a response."""

ORIGINS: dict[str, tuple[str, Any]] = {
    "scroll": ("/posts/_search?scroll=1m", search()),
    "point in time": ("/posts/_pit?keep_alive=1m", None),
    "point in time of OpenSearch": (
        "/posts/_search/point_in_time?keep_alive=1m",
        None,
    ),
}
"""Call whose response has an id -> its path and body."""


@pytest.mark.parametrize(
    ("method", "path", "body"), UNKNOWN_IDS.values(), ids=UNKNOWN_IDS
)
def test_unknown_ids_do_not_pass(
    engine: StubEngine,
    client: TestClient,
    method: str,
    path: str,
    body: Any,
) -> None:
    answer = client.request(method, path, json=body)
    assert answer.status_code in (400, 403)
    assert engine.requests == []


@pytest.mark.parametrize(("method", "path", "body"), KNOWN_IDS.values(), ids=KNOWN_IDS)
@pytest.mark.parametrize("origin", ORIGINS.values(), ids=ORIGINS)
def test_ids_of_responses_pass(
    engine: StubEngine,
    origin: tuple[str, Any],
    method: str,
    path: str,
    body: Any,
) -> None:
    engine.packed = gzip.compress(b'{"_scroll_id":"mine","pit_id":"mine"}')
    path_of_origin, body_of_origin = origin
    with client_of(engine=engine.url) as client:
        assert client.request(method, path, json=body).status_code in (400, 403)
        response = client.post(path_of_origin, json=body_of_origin)
        assert response.status_code == 200
        sent_path = engine.requests[-1][0].url.path
        assert sent_path == path_of_origin.partition("?")[0]
        assert client.request(method, path, json=body).status_code == 200


# Bounds

BOUNDS: dict[str, tuple[str, bytes]] = {
    "levels": (
        "_search",
        b'{"query":' + b'{"bool":{"must":' * 480 + b"{}" + b"}}" * 480 + b"}",
    ),
    "many levels": ("_search", b'{"aggs":' * 100_000 + b"{}" + b"}" * 100_000),
    "values": (
        "_search",
        json.dumps({"query": {"terms": {"n": [0] * 200_000}}}).encode(),
    ),
    "many values": (
        "_search",
        b'{"query":{"terms":{"n":[' + b"[]," * 2_000_000 + b"1]}}}",
    ),
    "searches": ("_msearch", b"{}\n{}\n" * 190_000),
}
"""Bounded parts -> a path, and a body with too many of them."""
BOUNDS["levels of a count"] = ("_count", BOUNDS["levels"][1])
BOUNDS["values of a count"] = ("_count", BOUNDS["many values"][1])


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize(("path", "content"), BOUNDS.values(), ids=BOUNDS)
def test_bounds_come_first(
    engine: StubEngine,
    client: TestClient,
    path: str,
    content: bytes,
    is_packed: bool,
) -> None:
    """Nothing is read that is not bounded."""
    headers: dict[str, str] = {}
    if is_packed:
        content = gzip.compress(content, 1)
        headers["content-encoding"] = "gzip"
    started = time.perf_counter()
    answer = client.post(f"/posts/{path}", content=content, headers=headers)
    assert time.perf_counter() - started < 1
    assert answer.status_code == 400
    assert engine.requests == []


@pytest.mark.parametrize("count", [SEARCHES, SEARCHES + 1])
def test_searches_of_a_request_are_bounded(
    engine: StubEngine,
    client: TestClient,
    count: int,
) -> None:
    lines = line_pair({}, {"size": 0}) * count
    answer = client.post("/posts/_msearch", content=lines)
    if count == SEARCHES:
        assert len(answer.json()["responses"]) == SEARCHES
        return
    assert answer.status_code == 400
    assert "found 501 searches, expected at most" in answer.json()["error"]["reason"]
    assert engine.requests == []


FIRST_PROBLEMS: dict[str, tuple[str, str, int, str]] = {
    "path before body": ("other/_search", "{", 403, "the index 'other'"),
    "JSON before its keys": (
        "posts-1/_search",
        '{"unknown": 1, "unknown": 1}',
        400,
        "a key is there twice",
    ),
    "search before header": (
        "posts-1/_msearch",
        line_pair({"index": ".keys"}, {"unknown": 1}),
        403,
        "the key 'unknown'",
    ),
    "keys of a header before its indexes": (
        "posts-1/_msearch",
        line_pair({"index": ".keys", "unknown": 1}),
        403,
        "the key 'unknown'",
    ),
    "indexes before options": (
        "posts-1/_msearch",
        line_pair({"index": ".keys"}, search(ext={"rerank": 5})),
        403,
        "the index '.keys'",
    ),
    "options before the model": (
        "posts-1/_search",
        json.dumps(search(ext={"rerank": {"model": "unknown", "weight": 2}})),
        400,
        "ext.rerank.weight",
    ),
    "model before the engine": (
        "posts-1/_search",
        json.dumps(search(ext={"rerank": {"model": "unknown"}})),
        400,
        "unknown",
    ),
}
"""Order of steps -> a path and a body with two problems, the status, and the reason."""


@pytest.mark.parametrize(
    ("path", "content", "status", "reason"),
    FIRST_PROBLEMS.values(),
    ids=FIRST_PROBLEMS,
)
def test_the_first_problem_is_reported(
    limited: TestClient,
    engine: StubEngine,
    path: str,
    content: str,
    status: int,
    reason: str,
) -> None:
    answer = limited.post(f"/{path}", content=content)
    assert answer.status_code == status
    assert reason in answer.json()["error"]["reason"]
    assert engine.requests == []
