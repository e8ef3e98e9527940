"""Indexes in real OpenSearch and Elasticsearch servers rank like local ones."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.engine_servers import Server
from helpers.index_samples import POSTS, TOPICS, random_posts, refused

from tweetrerank.indexes import lucene_index
from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.engines.client import Engine, encoded
from tweetrerank.indexes.engines.engine_error import EngineError
from tweetrerank.indexes.engines.engine_index import OwnIndex, open_index
from tweetrerank.indexes.engines.filling import build
from tweetrerank.indexes.engines.layout import RANKED
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

Run = dict[str, dict[str, float]]

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
    address = server.address()
    folder = tmp_path_factory.mktemp("kept")
    manifest, sent = build(address, POSTS, [], folder, "make it again")
    assert sent == 402
    assert manifest.posts == 402
    assert manifest.empties == 1
    with open_index(address, folder, []) as opened:
        assert isinstance(opened, OwnIndex)
        yield opened


def assert_same(run: Run, expected: Run) -> None:
    """The same topics and scores; the order may differ for equal scores."""
    assert list(run) == list(expected)
    for query_id, expected_scores in expected.items():
        scores = run[query_id]
        assert scores == pytest.approx(expected_scores, abs=1e-4), query_id
        in_run_order = [expected_scores[doc_id] for doc_id in scores]
        in_order = list(expected_scores.values())
        assert in_run_order == pytest.approx(in_order, abs=1e-5), query_id


@pytest.mark.parametrize("hits", [1000, 7])
@pytest.mark.parametrize("method", METHODS)
def test_rankings_are_those_of_lucene(
    index: OwnIndex, local: LuceneIndex, method: Method, hits: int
) -> None:
    run = index.search(TOPICS, method, hits=hits)
    assert_same(run, local.search(TOPICS, method, hits=hits))
    assert index.search([], method, hits=hits) == {}


def test_equal_scores_come_from_new_to_old(index: OwnIndex) -> None:
    assert index.layout.plain_ids
    scores = index.search([Topic("q", "alpha")], BM25())["q"]
    order = [(-score, -int(doc_id)) for doc_id, score in scores.items()]
    assert order == sorted(order)
    assert len({score for score, _ in order}) < len(order)


def test_posts_are_read(index: OwnIndex, local: LuceneIndex) -> None:
    assert index.size == local.size
    assert index.id_range == local.id_range
    assert sorted(index.posts) == sorted(POSTS)
    doc_ids = ["1", "unknown", POSTS[7].doc_id]
    assert list(index.posts.get_many(doc_ids).values()) == [Post("1", ""), POSTS[7]]


def test_callers_search_the_texts(server: Server, tmp_path: Path) -> None:
    """Even in an engine without the analyzer ``english``."""
    address = server.address()
    build(address, POSTS, [], tmp_path, "make it again")
    word = POSTS[7].text.split()[0]
    body = {"query": {"match": {"contents": word}}, "size": 1000}
    response = Engine(address).request("POST", f"/{address.index}/_search", body)
    texts = [hit["_source"]["contents"] for hit in response["hits"]["hits"]]
    assert POSTS[7].text in texts


@pytest.mark.parametrize("method", METHODS)
def test_deep_searches_are_read_page_by_page(index: OwnIndex, method: Method) -> None:
    expected = index.search(TOPICS, method, hits=400)
    path = f"/{index._address.index}/_settings"
    index._engine.request("PUT", path, {"index.max_result_window": 30})
    try:
        with open_index(index._address, index.posts.path.parent) as small:
            assert small.search(TOPICS, method, hits=400) == expected
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
        with refused(r"topic 1 is limited .* not all whole numbers"):
            index.search(TOPICS, BM25())


NOT_OFFERED = r"does not offer \w+; use one of ql, bm25, or a"


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (
            QueryLikelihood(7),
            "ranks ql with mu=100, expected mu=7; search with the former",
        ),
        (BM25(0.9, 0.4), r"bm25 with b=0, k1=0\.15, expected b=0\.4, k1=0\.9"),
        (RM3(), NOT_OFFERED),
        (Axiomatic(), NOT_OFFERED),
    ],
)
def test_methods_that_an_index_does_not_offer(
    index: OwnIndex, method: Method, problem: str
) -> None:
    with refused(problem):
        index.search(TOPICS, method)


SHOP_FIELDS = {
    "title": {"type": "text"},
    "created_at": {"type": "date"},
    "number": {"type": "long"},
    "sku": {"type": "keyword"},
    "body": {"type": "text", "analyzer": "whitespace"},
    "meta": {"properties": {"link": {"type": "keyword"}}},
}


def shop_document(number: int, post: Post) -> dict[str, Any]:
    document: dict[str, Any] = {
        "body": post.text,
        "sku": f"s{number}",
        "title": post.text.split()[0],
        "created_at": f"2011-02-{1 + number % 28:02}T10:00:00Z",
        "number": number,
    }
    if number % 2:
        document["meta"] = {"link": [f"http://x/{number}"]}
    return document


@pytest.fixture(scope="module")
def shop(server: Server) -> EngineAddress:
    """An index for other purposes."""
    address = server.address(text_field="body")
    engine = Engine(address)
    settings = {"number_of_shards": 2}
    body = {"settings": settings, "mappings": {"properties": SHOP_FIELDS}}
    engine.request("PUT", f"/{address.index}", body)
    lines = []
    for number, post in enumerate(random_posts(60, seed=3)):
        lines.append(encoded({"index": {"_id": f"shop{number:02}"}}))
        lines.append(encoded(shop_document(number, post)))
    content = b"".join(line + b"\n" for line in lines)
    engine.request("POST", f"/{address.index}/_bulk", content, {"refresh": True})
    return address


def number_of(doc_id: str) -> int:
    return int(doc_id.removeprefix("shop"))


def last_day(scores: dict[str, float]) -> int:
    """The latest day of February among the posts of the shop."""
    return max(number_of(doc_id) % 28 + 1 for doc_id in scores)


def test_searches_of_an_index_as_it_is(shop: EngineAddress, tmp_path: Path) -> None:
    address = dataclasses.replace(shop, time_field="created_at")
    topics = [
        Topic("1", "alpha bravo"),
        Topic("2", "alpha", time="2011-02-05T10:00:00Z"),
        Topic("3", "alpha", time="Sat Feb 05 09:59:59 +0000 2011"),
        Topic("4", "zebra"),
    ]
    with open_index(address, tmp_path) as index:
        run = index.search(topics, EngineQuery())
        assert all(doc_id.startswith("shop") for doc_id in run["1"])
        scores = list(run["1"].values())
        assert scores == sorted(scores, reverse=True)
        assert last_day(run["2"]) == 5
        assert last_day(run["3"]) == 4
        assert run["4"] == {}
        assert index.search(topics, EngineQuery(), hits=10_001) == run


def test_posts_of_an_index_as_it_is(shop: EngineAddress, tmp_path: Path) -> None:
    address = dataclasses.replace(shop, url_field="meta.link")
    with open_index(address, tmp_path) as index:
        run = index.search([Topic("1", "alpha bravo")], EngineQuery())
        posts = index.posts.get_many([*run["1"], "unknown"])
        assert list(posts) == list(run["1"])
        for doc_id, post in posts.items():
            assert "alpha" in post.text or "bravo" in post.text
            number = number_of(doc_id)
            assert post.url == (f"http://x/{number}" if number % 2 else "")
        assert index.size == 60
        assert len(list(index.posts)) == 60


def test_an_index_with_fields_of_ids_and_numbers(
    shop: EngineAddress, tmp_path: Path
) -> None:
    address = dataclasses.replace(shop, time_field="number", id_field="sku")
    topics = [Topic("1", "alpha", None, "20"), Topic("2", "alpha")]
    with open_index(address, tmp_path) as index:
        run = index.search(topics, EngineQuery())
        assert all(int(doc_id[1:]) <= 20 for doc_id in run["1"])
        assert run["1"].keys() < run["2"].keys()
        assert list(index.posts.get_many(run["2"])) == list(run["2"])
        with refused("ranked by its own query, expected no method"):
            index.search([Topic("1", "alpha")], BM25())


CLAUSE = {"multi_match": {"query": "{{query}}", "fields": ["body", "title^3"]}}


@pytest.mark.parametrize(
    "content",
    [
        # A query
        CLAUSE,
        # A search, whose size is ignored
        {"query": CLAUSE, "size": 3, "min_score": 0.001},
    ],
)
def test_a_custom_query(
    shop: EngineAddress, tmp_path: Path, content: dict[str, Any]
) -> None:
    path = tmp_path / "query.json"
    path.write_text(json.dumps(content))
    address = dataclasses.replace(shop, query=path)
    with open_index(address, tmp_path / "kept") as index:
        run = index.search([Topic("1", 'alpha "}]}')], EngineQuery())
        posts = index.posts.get_many(run["1"])
    best = next(iter(posts.values()))
    assert best.text.startswith("alpha")
    assert len(run["1"]) > 3


def test_a_search_template(server: Server, shop: EngineAddress, tmp_path: Path) -> None:
    if server.name != "opensearch3":
        pytest.skip("this distribution may lack templates")
    template = "tests-own-query"
    script = {"lang": "mustache", "source": {"query": {"match": {"body": "{{query}}"}}}}
    topics = [Topic("1", "alpha")]
    engine = Engine(shop)
    engine.request("PUT", f"/_scripts/{template}", {"script": script})
    with open_index(dataclasses.replace(shop, query=template), tmp_path) as index:
        run = index.search(topics, EngineQuery())
    engine.request("DELETE", f"/_scripts/{template}")
    with open_index(shop, tmp_path) as index:
        assert index.search(topics, EngineQuery()) == run


RERANK = {
    "ml_opensearch": {"model_id": "none"},
    "context": {"document_fields": ["body"]},
}


def set_pipeline(engine: Engine, indexes: Sequence[str], name: str | None) -> None:
    for index in indexes:
        setting = {"index.search.default_pipeline": name}
        engine.request("PUT", f"/{index}/_settings", setting)


def test_reranking_is_no_first_stage(
    server: Server, shop: EngineAddress, tmp_path: Path
) -> None:
    """OpenSearch fails in it for searches without a text to rerank by."""
    if server.name != "opensearch":
        pytest.skip("only this distribution has the processor")
    address = server.address()
    build(address, random_posts(50), [], tmp_path / "kept", "")
    in_shop = search_and_read(shop, EngineQuery(), tmp_path)
    in_ours = search_and_read(address, QueryLikelihood(), tmp_path)
    engine = Engine(shop)
    pipeline = {"response_processors": [{"rerank": RERANK}]}
    engine.request("PUT", "/_search/pipeline/tests-rerank", pipeline)
    set_pipeline(engine, [shop.index, address.index], "tests-rerank")
    with pytest.raises(EngineError):
        engine.request("POST", f"/{shop.index}/_search", {})
    folder = tmp_path / "new"
    assert search_and_read(shop, EngineQuery(), folder) == in_shop
    assert search_and_read(address, QueryLikelihood(), folder) == in_ours
    set_pipeline(engine, [shop.index, address.index], None)
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
    with refused(problem):
        open_index(dataclasses.replace(shop, **fields), tmp_path)


@pytest.mark.parametrize(
    ("time_field", "topic", "problem"),
    [
        (
            None,
            Topic("1", "alpha", None, "20"),
            r"has a time limit, and .* no field for it; na",
        ),
        (
            "created_at",
            Topic("1", "alpha", None, "20"),
            "is a date; give the topic a <querytime>",
        ),
        (
            "created_at",
            Topic("1", "alpha", "noon"),
            "topic 1: found the time 'noon', expected one",
        ),
    ],
)
def test_time_limits_that_an_index_cannot_apply(
    shop: EngineAddress,
    tmp_path: Path,
    time_field: str | None,
    topic: Topic,
    problem: str,
) -> None:
    address = dataclasses.replace(shop, time_field=time_field)
    with (
        open_index(address, tmp_path) as index,
        refused(problem),
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
            qrels = collection.qrels or {}
            for method in RANKED.values():
                run = index.search(collection.topics, method)
                expected = local.search(collection.topics, method)
                assert_same(run, expected)
                precision = mean(evaluate(qrels, run)["AP"])
                expected_precision = mean(evaluate(qrels, expected)["AP"])
                assert precision == pytest.approx(expected_precision, abs=0.0005)
