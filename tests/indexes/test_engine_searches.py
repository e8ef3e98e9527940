"""Searches in an engine's language, and topics without a response."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Patch
from helpers.engine_stub import Answer, Request, opensearch, without_delays_and_users
from helpers.index_samples import refused

from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.engines.client import Engine
from tweetrerank.indexes.engines.engine_error import EngineError
from tweetrerank.indexes.engines.engine_queries import filled, read_query
from tweetrerank.indexes.engines.engine_search import search


@pytest.fixture(autouse=True)
def _quick(monkeypatch: Patch) -> None:
    without_delays_and_users(monkeypatch)


def test_a_custom_query(tmp_path: Path) -> None:
    path = tmp_path / "query.json"
    path.write_text(
        '{"bool": {"should": [{"match": {"a": "{{query}}!"}}], "boost": 2}}'
    )
    body = filled(read_query(path), '"}{ {{query}}')
    assert body["query"]["bool"]["should"] == [{"match": {"a": '"}{ {{query}}!'}}]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "found no JSON"),
        ("[]", "found no {{query}} in it"),
        ('{"query": {"match": {"a": "x"}}}', "found no {{query}} in it"),
        (
            '{"query": {"match": {"a": "{{query}}"}}, "sort": ["at"]}',
            "found sort beside the query",
        ),
    ],
)
def test_unfit_queries(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "query.json"
    path.write_text(text)
    with refused(problem):
        read_query(path)


def hits(score: float) -> dict[str, Any]:
    hit = {"sort": [score, "0"], "_score": score}
    return {"hits": {"hits": [hit]}, "_shards": {"failed": 0}}


def failure(status: int, kind: str, reason: str) -> dict[str, Any]:
    return {"error": {"type": kind, "reason": reason}, "status": status}


BUSY = failure(429, "rejected", "queue full")
WRONG = failure(400, "parsing", "no field")
PARTIAL = {"hits": {"hits": []}, "_shards": {"failed": 1}}


class SearchEngine:
    """An engine that answers searches, which have labels as their queries."""

    url: str

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        """Labels of each request."""
        self.responses: dict[str, list[Any]] = {}
        """Label -> its next responses; later ones have a hit."""

    def __call__(self, request: Request) -> Answer:
        headers = request.body[::2]
        assert not any(header["allow_partial_search_results"] for header in headers)
        labels = [body["query"]["label"] for body in request.body[1::2]]
        self.requests.append(labels)
        return 200, {"responses": [self._response(label) for label in labels]}

    def _response(self, label: str) -> Any:
        responses = self.responses.get(label)
        return responses.pop(0) if responses else hits(1.0)

    def search(self) -> dict[str, Any]:
        """Three searches in one request."""
        bodies = {label: {"query": {"label": label}, "size": 5} for label in "abc"}
        return search(Engine(EngineAddress(self.url, "things")), bodies, 100)


@pytest.fixture
def engine() -> Iterator[SearchEngine]:
    engine = SearchEngine()
    with opensearch(engine) as engine.url:
        yield engine


def test_searches_that_fail_are_repeated(engine: SearchEngine) -> None:
    engine.responses["b"] = [BUSY, PARTIAL, hits(2.0)]
    results = engine.search()
    assert list(results) == ["a", "b", "c"]
    assert engine.requests == [["a", "b", "c"], ["b"], ["b"]]
    assert [hit["_score"] for hit in results["b"]] == [2.0]


def test_topics_of_a_busy_engine_are_named(engine: SearchEngine) -> None:
    engine.responses["b"] = [BUSY] * 9
    engine.responses["c"] = [BUSY] * 9
    with refused(r"topics b, c without an answer: .*queue full", EngineError):
        engine.search()


def test_topics_of_a_wrong_search_are_named(engine: SearchEngine) -> None:
    engine.responses["b"] = [WRONG]
    with refused(r"topic b without an answer: .*400: no field", EngineError):
        engine.search()
