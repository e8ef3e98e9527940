"""Indexes in real OpenSearch and Elasticsearch servers rank as a local Lucene index does."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.engine_servers import Server
from helpers.index_samples import POSTS, TOPICS, random_posts

from tweetrerank.indexes import lucene_index
from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.client import (
    Engine,
    EngineAddress,
    EngineError,
    encoded,
)
from tweetrerank.indexes.engines.engine_index import OwnIndex, open_index
from tweetrerank.indexes.engines.layout import RANKED, build
from tweetrerank.indexes.lucene_index import LuceneIndex
from tweetrerank.indexes.methods import (
    BM25,
    RM3,
    Axiomatic,
    EngineQuery,
    Method,
    QueryLikelihood,
    Topic,
)
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.evaluation.measures import evaluate, mean

METHODS = [pytest.param(method, id=name) for name, method in RANKED.items()]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LuceneIndex]:
    folder = tmp_path_factory.mktemp("local") / "index"
    lucene_index.build(POSTS, folder, [])
    with LuceneIndex.open(folder) as index:
        yield index


@pytest.fixture(scope="module")
def index(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OwnIndex]:
    address, kept = server.address(), tmp_path_factory.mktemp("kept")
    manifest, sent = build(address, POSTS, [], kept, "make it again")
    assert (sent, manifest.posts, manifest.empties) == (402, 402, 1)
    with open_index(address, kept, []) as opened:
        assert isinstance(opened, OwnIndex)
        yield opened


def assert_same(
    found: dict[str, dict[str, float]], expected: dict[str, dict[str, float]]
) -> None:
    """The same topics and scores, and the same order but for equal scores."""
    assert list(found) == list(expected)
    for query_id, scores in expected.items():
        ours = found[query_id]
        assert ours == pytest.approx(scores, abs=1e-4), query_id
        for one, other in zip(ours, scores, strict=True):
            assert scores[one] == pytest.approx(scores[other], abs=1e-5), query_id


@pytest.mark.parametrize("method", METHODS)
def test_rankings_are_those_of_lucene(
    index: OwnIndex, local: LuceneIndex, method: Method
) -> None:
    for hits in (1000, 7):
        found = index.search(TOPICS, method, hits=hits)
        assert_same(found, local.search(TOPICS, method, hits=hits))
    assert index.search([], method) == {}


def test_equal_scores_come_from_new_to_old(index: OwnIndex) -> None:
    assert index.layout.plain_ids
    scores = index.search([Topic("q", "alpha")], BM25())["q"]
    order = [(-score, -int(doc_id)) for doc_id, score in scores.items()]
    assert order == sorted(order)
    assert len({score for score, _ in order}) < len(order)


def test_posts_are_read(index: OwnIndex, local: LuceneIndex) -> None:
    assert (index.size, index.id_range) == (local.size, local.id_range)
    assert sorted(index.posts) == sorted(POSTS)
    wanted = ["1", "unknown", POSTS[7].doc_id]
    assert list(index.posts.get_many(wanted).values()) == [Post("1", ""), POSTS[7]]


def test_callers_search_the_texts(server: Server, tmp_path: Path) -> None:
    """Also in an engine without the analyzer ``english``."""
    address = server.address()
    build(address, POSTS, [], tmp_path, "make it again")
    word = POSTS[7].text.split()[0]
    body = {"query": {"match": {"contents": word}}, "size": 1000}
    found = Engine(address).request("POST", f"/{address.index}/_search", body)
    assert POSTS[7].text in [
        hit["_source"]["contents"] for hit in found["hits"]["hits"]
    ]


@pytest.mark.parametrize("method", METHODS)
def test_deep_searches_are_read_page_by_page(index: OwnIndex, method: Method) -> None:
    whole = index.search(TOPICS, method, hits=400)
    path = f"/{index._address.index}/_settings"
    index._engine.request("PUT", path, {"index.max_result_window": 30})
    try:
        with open_index(index._address, index.posts.path.parent) as small:
            assert small.search(TOPICS, method, hits=400) == whole
            assert small.search(TOPICS[-6:], method, hits=31)["late"] == {}
    finally:
        index._engine.request("PUT", path, {"index.max_result_window": None})


def test_ids_that_are_texts(server: Server, tmp_path: Path) -> None:
    posts = [
        Post(f"p{post.doc_id}", post.text, f"http://x/{post.doc_id}") for post in POSTS
    ]
    lucene_index.build(posts, tmp_path / "1", [])
    address = server.address()
    build(address, posts, [], tmp_path / "kept", "")
    topics = [topic._replace(max_doc_id=None) for topic in TOPICS]
    with (
        LuceneIndex.open(tmp_path / "1") as local,
        open_index(address, tmp_path / "2") as index,
    ):
        for method in (QueryLikelihood(), BM25()):
            assert_same(index.search(topics, method), local.search(topics, method))
        assert index.id_range is None
        assert sorted(index.posts) == sorted(posts)
        with pytest.raises(
            DataError, match=r"topic 1 is limited .* not all whole numbers"
        ):
            index.search(TOPICS, BM25())


def test_methods_that_an_index_does_not_offer(index: OwnIndex) -> None:
    other = r"does not offer \w+; use one of ql, bm25, or a"
    for method, problem in (
        (
            QueryLikelihood(7),
            "ranks ql with mu=100, expected mu=7; search with the former",
        ),
        (BM25(0.9, 0.4), r"bm25 with b=0, k1=0\.15, expected b=0\.4, k1=0\.9"),
        *((method, other) for method in (RM3(), Axiomatic())),
    ):
        with pytest.raises(DataError, match=problem):
            index.search(TOPICS, method)


@pytest.fixture(scope="module")
def shop(server: Server) -> EngineAddress:
    address = server.address(text_field="body")
    engine = Engine(address)
    fields = {"title": "text", "created_at": "date", "number": "long", "sku": "keyword"}
    properties: dict[str, Any] = {name: {"type": kind} for name, kind in fields.items()}
    properties["body"] = {"type": "text", "analyzer": "whitespace"}
    properties["meta"] = {"properties": {"link": {"type": "keyword"}}}
    body = {"settings": {"number_of_shards": 2}, "mappings": {"properties": properties}}
    engine.request("PUT", f"/{address.index}", body)
    lines = b""
    for n, post in enumerate(random_posts(60, seed=3)):
        lines += encoded({"index": {"_id": f"shop{n:02}"}}) + b"\n"
        content: dict[str, Any] = {
            "body": post.text,
            "sku": f"s{n}",
            "title": post.text.split()[0],
        }
        content |= {"created_at": f"2011-02-{1 + n % 28:02}T10:00:00Z", "number": n}
        content |= {"meta": {"link": [f"http://x/{n}"]}} if n % 2 else {}
        lines += encoded(content) + b"\n"
    engine.request("POST", f"/{address.index}/_bulk", lines, {"refresh": True})
    return address


def test_an_index_as_it_is(shop: EngineAddress, tmp_path: Path) -> None:
    address = dataclasses.replace(shop, url_field="meta.link", time_field="created_at")
    with open_index(address, tmp_path) as index:
        topics = [
            Topic("1", "alpha bravo"),
            Topic("2", "alpha", time="2011-02-05T10:00:00Z"),
        ]
        topics += [
            Topic("3", "alpha", time="Sat Feb 05 09:59:59 +0000 2011"),
            Topic("4", "zebra"),
        ]
        run = index.search(topics, EngineQuery())
        assert all(doc_id.startswith("shop") for doc_id in run["1"])
        assert [*run["1"].values()] == sorted(run["1"].values(), reverse=True)
        days = {q: {int(d[4:]) % 28 + 1 for d in run[q]} for q in run}
        assert (max(days["2"]), max(days["3"]), run["4"]) == (5, 4, {})
        posts = index.posts.get_many([*run["1"], "unknown"])
        assert list(posts) == list(run["1"])
        assert all(
            "alpha" in post.text or "bravo" in post.text for post in posts.values()
        )
        for doc_id, post in posts.items():
            number = int(doc_id[4:])
            assert post.url == (f"http://x/{number}" if number % 2 else "")
        assert len(list(index.posts)) == index.size == 60
        assert index.search(topics, EngineQuery(), hits=10_001) == run


def test_an_index_with_ids_and_numbers_of_its_own(
    shop: EngineAddress, tmp_path: Path
) -> None:
    address = dataclasses.replace(shop, time_field="number", id_field="sku")
    with open_index(address, tmp_path) as index:
        run = index.search(
            [Topic("1", "alpha", None, "20"), Topic("2", "alpha")], EngineQuery()
        )
        assert all(int(doc_id[1:]) <= 20 for doc_id in run["1"])
        assert run["1"].keys() < run["2"].keys()
        assert list(index.posts.get_many(run["2"])) == list(run["2"])
        with pytest.raises(
            DataError, match="ranked by its own query, expected no method"
        ):
            index.search([Topic("1", "alpha")], BM25())


def test_a_query_of_ones_own(shop: EngineAddress, tmp_path: Path) -> None:
    path = tmp_path / "query.json"
    clause = {"multi_match": {"query": "{{query}}", "fields": ["body", "title^3"]}}
    text = 'alpha "}]}'
    for content in (clause, {"query": clause, "size": 3, "min_score": 0.001}):
        path.write_text(json.dumps(content))
        with open_index(
            dataclasses.replace(shop, query=path), tmp_path / "kept"
        ) as index:
            run = index.search([Topic("1", text)], EngineQuery())
            posts = index.posts.get_many(run["1"])
            assert next(iter(posts.values())).text.startswith("alpha")
            assert len(run["1"]) > 3


def test_a_search_template(server: Server, shop: EngineAddress, tmp_path: Path) -> None:
    query = "tests-own-query"
    if server.name != "opensearch3":
        pytest.skip("this distribution may lack templates")
    script = {"lang": "mustache", "source": {"query": {"match": {"body": "{{query}}"}}}}
    engine = Engine(shop)
    engine.request("PUT", f"/_scripts/{query}", {"script": script})
    with open_index(dataclasses.replace(shop, query=query), tmp_path) as index:
        found = index.search([Topic("1", "alpha")], EngineQuery())["1"]
    engine.request("DELETE", f"/_scripts/{query}")
    with open_index(shop, tmp_path) as index:
        assert index.search([Topic("1", "alpha")], EngineQuery())["1"] == found


def test_reranking_is_no_first_stage(
    server: Server, shop: EngineAddress, tmp_path: Path
) -> None:
    """OpenSearch fails in it for searches that do not say what to rerank by."""
    if server.name != "opensearch":
        pytest.skip("only this distribution has the processor")
    engine, own = Engine(shop), server.address()
    build(own, random_posts(50), [], tmp_path / "kept", "")
    opened = [(shop, EngineQuery()), (own, QueryLikelihood())]
    before = [search_and_read(address, method, tmp_path) for address, method in opened]
    model = {
        "ml_opensearch": {"model_id": "none"},
        "context": {"document_fields": ["body"]},
    }
    pipeline = {"response_processors": [{"rerank": model}]}
    engine.request("PUT", "/_search/pipeline/tests-rerank", pipeline)
    for index in (shop.index, own.index):
        setting = {"index.search.default_pipeline": "tests-rerank"}
        engine.request("PUT", f"/{index}/_settings", setting)
    with pytest.raises(EngineError):
        engine.request("POST", f"/{shop.index}/_search", {})
    after = [
        search_and_read(address, method, tmp_path / "new") for address, method in opened
    ]
    assert after == before
    for index in (shop.index, own.index):
        engine.request(
            "PUT", f"/{index}/_settings", {"index.search.default_pipeline": None}
        )
    engine.request("DELETE", "/_search/pipeline/tests-rerank")


def search_and_read(address: EngineAddress, method: Method, folder: Path) -> Any:
    with open_index(address, folder) as index:
        run = index.search([Topic("1", "alpha bravo")], method)
        posts = index.posts.get_many(run["1"])
        return run, posts, sorted(index.posts)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"url_field": "link"},
            "found no field `address.url_field` link, expected one of body, ",
        ),
        ({"text_field": "text"}, "found no field `address.text_field` text"),
        (
            {"time_field": "sku"},
            "found the time field sku of type keyword, expected a date or",
        ),
        (
            {"text_field": None},
            "this index was not made by this program; .* `address.text_field`",
        ),
    ],
)
def test_unfit_fields(
    shop: EngineAddress, tmp_path: Path, fields: Any, problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        open_index(dataclasses.replace(shop, **fields), tmp_path)


def test_time_limits_that_an_index_cannot_apply(
    shop: EngineAddress, tmp_path: Path
) -> None:
    limited, noon = Topic("1", "alpha", None, "20"), Topic("1", "alpha", "noon")
    dated = dataclasses.replace(shop, time_field="created_at")
    for address, topic, problem in (
        (shop, limited, r"has a time limit, and .* no field for it; na"),
        (dated, limited, "is a date; give the topic a <querytime>"),
        (dated, noon, "topic 1: found the time 'noon', expected one"),
    ):
        with (
            open_index(address, tmp_path) as index,
            pytest.raises(DataError, match=problem),
        ):
            index.search([topic], EngineQuery())


@pytest.mark.slow
@pytest.mark.usefixtures("pools")
@pytest.mark.parametrize("years", [("mb2011", "mb2012"), ("mb2013", "mb2014")])
def test_rankings_of_tweets_are_those_of_lucene(
    server: Server, years: tuple[str, ...], tmp_path: Path, data_dir: Path
) -> None:
    if "mb2013" in years and server.name != "opensearch3":
        pytest.skip("one server is enough for the second pool")
    collections = [named.find(year, data_dir) for year in years]
    address = server.address()
    build(address, collections[0].posts(), [], tmp_path / "kept", "again")
    local = collections[0].open_index()
    with open_index(address, tmp_path / "kept") as index:
        for collection in collections:
            for method in RANKED.values():
                expected = local.search(collection.topics, method)
                found = index.search(collection.topics, method)
                assert_same(found, expected)
                qrels = collection.qrels or {}
                values = [mean(evaluate(qrels, run)["AP"]) for run in (found, expected)]
                assert values[0] == pytest.approx(values[1], abs=0.0005)
