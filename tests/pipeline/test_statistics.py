"""First-stage scores that the service computes itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.engine_servers import SERVERS, running
from helpers.index_samples import POSTS, TOPICS
from helpers.service_samples import QUERY, TEXTS, client_of

from indexes import lucene
from indexes.engines.building import build
from indexes.errors import CollectionError
from indexes.lucene import LuceneIndex
from indexes.methods import QueryLikelihood
from pipeline.ranking.interpolation import interpolate
from pipeline.service.formats.base import between_links
from pipeline.service.http import statistics
from pipeline.service.http.statistics import Query, Statistics, Words, stored_length


class FakeSource:
    """Words between blanks; each is twice as often in the index as it has letters."""

    mu, threads = 100.0, 2

    def __init__(self) -> None:
        self.fails = False

    def read(self, queries: Sequence[str], texts: Sequence[str]) -> tuple[list[Query], list[Words]]:
        if self.fails:
            raise CollectionError("no answer")
        words = [Counter(text.split()) for text in (*queries, *texts)]
        read = [Query(one, {w: 2 * len(w) for w in one}, 10_000) for one in words]
        return read[: len(queries)], list(words[len(queries) :])

    def close(self) -> None:
        pass


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LuceneIndex]:
    folder = tmp_path_factory.mktemp("local") / "index"
    lucene.build(POSTS, folder, [])
    with LuceneIndex.open(folder) as index:
        yield index


def assert_scores_of(index: Any, found: Statistics) -> None:
    """The computed scores are those of a search, all of them."""
    topics = [topic for topic in TOPICS if topic.max_doc_id is None]
    run = index.search(topics, QueryLikelihood())
    assert sum(map(len, run.values())) > 500
    for topic in topics:
        posts = index.posts.get_many(run[topic.query_id])
        scores = found.score([topic.text], [post.text for post in posts.values()])
        assert scores == list(run[topic.query_id].values()), topic
    assert found.score(["alpha"], ["zebra", "", "alpha"])[:2] == [0, 0]


def test_scores_are_those_of_lucene(local: LuceneIndex) -> None:
    found = Statistics.open(str(local.directory))
    assert_scores_of(local, found)
    found.close()


@pytest.mark.parametrize("name", SERVERS)
def test_scores_are_those_of_an_engine(name: str, local: LuceneIndex, tmp_path: Path) -> None:
    with running(name) as server:
        address = server.address()
        build(address, POSTS, [], tmp_path, "make it again")
        for field in ("", "/contents"):
            if field and name == "elasticsearch":
                continue  # Its words are in a field of their own there.
            found = Statistics.open(f"{server.url}/{address.index}{field}")
            assert_scores_of(local, found)
            found.close()


def test_lengths_are_those_of_lucenes_norms(local: LuceneIndex) -> None:
    from indexes.jvm import java_class

    small = java_class("org.apache.lucene.util.SmallFloat")
    lengths = [*range(300), 1000, 4097, 10**6, 2**30 + 12345]
    # Java's bytes are signed.
    expected = [small.byte4ToInt(small.intToByte4(length)) for length in lengths]
    assert [stored_length(length) for length in lengths] == expected


def test_what_is_remembered_is_read_anew_in_time(source: FakeSource) -> None:
    now = [0.0]
    found = Statistics(source, lambda: now[0])
    first = found.score(["a b"], ["a c"])
    source.fails = True
    assert found.score(["a b"], ["a c"]) == first
    now[0] = statistics.AGE + 1
    with pytest.raises(CollectionError, match="no answer"):
        found.score(["a b"], ["a c"])


def test_requests_mix_with_computed_scores(source: FakeSource) -> None:
    body = {"query": QUERY, "documents": TEXTS, "mix": "lexical"}
    with client_of(statistics=Statistics(source)) as client:
        answer = client.post("/v2/rerank", json=body).json()
        raw = {"query": QUERY, "documents": TEXTS, "raw_scores": True}
        logits = client.post("/rerank", json=raw).json()["results"]
        (model,) = client.get("/v1/models").json()["data"]
        source.fails = True
        failed = client.post("/v2/rerank", json=body | {"query": "another"})
        assert client.post("/v2/rerank", json=body | {"mix": "neural"}).status_code == 200
    assert answer["mix"] == "lexical"
    assert model["lexical"] is True
    scores = Statistics(FakeSource()).score([QUERY], TEXTS)
    neural = {str(one["index"]): one["relevance_score"] for one in logits}
    first = {str(row): score for row, score in enumerate(scores)}
    expected = interpolate({"": first}, {"": neural}, model["weight"])[""]
    for one in answer["results"]:
        assert one["relevance_score"] == pytest.approx(expected[str(one["index"])], abs=1e-6)
    assert failed.status_code == 503
    assert "no statistics for the lexical score: no answer" in failed.json()["message"]


def test_a_service_without_statistics() -> None:
    with client_of() as client:
        body = {"query": QUERY, "documents": TEXTS, "mix": "lexical"}
        refused = client.post("/v2/rerank", json=body)
        assert client.get("/v1/models").json()["data"][0]["lexical"] is False
    assert refused.status_code >= 400
    assert "started without --statistics" in refused.json()["message"]


@pytest.mark.parametrize("text", ["http://localhost:9200", "http://x/a/b/c", "http://x//b"])
def test_names_of_statistics(text: str) -> None:
    with pytest.raises(CollectionError, match=re.escape("expected URL/INDEX")):
        Statistics.open(text)


@pytest.mark.parametrize(
    "link", ["http://a.b/c", "https://x", "//x/y", "www.x", "http://a b//c", ""]
)
@pytest.mark.parametrize(
    "text", ["", "storm", "http://a.b/c storm", "storm http://a.b/c", "x www.x"]
)
def test_links_around_texts(link: str, text: str) -> None:
    assert between_links(link + text + link) == (text, link)
    long = link and link + "x" * 3000
    assert between_links(long + text + long) == (text, long)


def test_pages_without_texts_are_refused() -> None:
    body = {"query": "gale", "documents": ["", ""], "links": "around", "needs_text": True}
    with client_of() as client:
        refused = client.post("/v2/rerank", json=body)
        assert refused.status_code == 422
        assert "found 2 empty texts" in refused.json()["message"]
        for documents in (["", "gale"], [""]):
            answer = client.post("/v2/rerank", json=body | {"documents": documents})
            assert answer.status_code == 200


def test_documents_with_links_around() -> None:
    link, text = "http://met.example/gale", "gale warning"
    body = {"query": "gale", "documents": [f"{link}{text}{link}", text], "links": "around"}
    apart = {"query": "gale", "documents": [{"text": text, "url": link}, text], "links": "around"}
    with client_of() as client:
        answers = [client.post("/v2/rerank", json=one).json() for one in (body, apart)]
    found, expected = (answer["results"] for answer in answers)
    assert [one["index"] for one in found] == [one["index"] for one in expected]
    scores = [one["relevance_score"] for one in expected]
    assert [one["relevance_score"] for one in found] == pytest.approx(scores, abs=1e-6)
