"""Requests to search engines: addresses, users, searches, every kind of refusal."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Capture, Patch
from helpers.engine_stub import (
    OPENSEARCH,
    Answer,
    Request,
    opensearch,
    stub,
    without_delays_and_users,
)
from helpers.index_samples import refused

from tweetrerank.indexes.engines import client
from tweetrerank.indexes.engines.address import EngineAddress, check_url
from tweetrerank.indexes.engines.client import Credentials, Engine
from tweetrerank.indexes.engines.engine_error import EngineError
from tweetrerank.indexes.engines.engine_queries import filled, read_query
from tweetrerank.indexes.engines.engine_search import search


@pytest.fixture(autouse=True)
def _quick(monkeypatch: Patch) -> None:
    without_delays_and_users(monkeypatch)


def connect(url: str, **fields: Any) -> Engine:
    return Engine(EngineAddress(url, "things", **fields))


@pytest.mark.parametrize(
    "url", ["localhost:9200", "ftp://x", "http://", "http://x:port", ""]
)
def test_invalid_addresses(url: str) -> None:
    with refused("expected the address of a search engine"):
        check_url(url)


def test_no_credentials() -> None:
    assert Credentials.read(None).headers == {}


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A user in the environment, and the file of an authority."""
    path = tmp_path / "ca.pem"
    path.touch()
    monkeypatch.setenv("TWEETRERANK_ENGINE_USER", "reader")
    monkeypatch.setenv("TWEETRERANK_ENGINE_PASSWORD", "hush")
    monkeypatch.setenv("TWEETRERANK_ENGINE_CA", str(path))
    return path


@pytest.mark.usefixtures("authority")
def test_a_user_of_the_environment() -> None:
    credentials = Credentials.read(None)
    assert credentials.headers == {"authorization": "Basic cmVhZGVyOmh1c2g="}
    assert "hush" not in repr(credentials)


def test_a_file_comes_before_the_environment(tmp_path: Path, authority: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text('api_key = "hush"\n')
    credentials = Credentials.read(path)
    assert credentials.headers == {"authorization": "ApiKey hush"}
    assert credentials.ca == str(authority)


@pytest.mark.parametrize(
    "text",
    ['pasword = "hush"', "hush", "user = 1"],
    ids=["an unknown key", "not TOML", "a number"],
)
def test_other_files_of_users(tmp_path: Path, text: str) -> None:
    path = tmp_path / "engine.toml"
    path.write_text(text)
    with refused("expected texts under the keys user, ") as error:
        Credentials.read(path)
    assert "hush" not in str(error.value)


def test_a_missing_authority(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text('ca = "nowhere.pem"')
    with refused(r"no file nowhere\.pem with the engine's authority"):
        Credentials.read(path)


def test_a_missing_file_of_users(tmp_path: Path) -> None:
    with refused("cannot be read: No such file"):
        Credentials.read(tmp_path / "none")


ELASTICSEARCH = {"version": {"number": "8.19.3"}, "tagline": "You Know, for Search"}


@pytest.mark.parametrize(
    ("content", "kind", "version"),
    [
        (OPENSEARCH, "opensearch", (3, 1)),
        (ELASTICSEARCH, "elasticsearch", (8, 19)),
    ],
)
def test_kinds_of_engines(
    content: dict[str, Any], kind: str, version: tuple[int, ...]
) -> None:
    with stub(lambda request: (200, content)) as url:
        engine = connect(url)
        assert engine.kind == kind
        assert engine.version == version
        assert engine.request("GET", "/x") == content


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            (200, "<html>Welcome to nginx</html>"),
            "not a search engine's .*; name the address of",
        ),
        ((404, "<html>no</html>"), r"not a search engine's \(404"),
        ((200, {"hello": "world"}), "not a search engine's"),
        (
            (401, {"error": "x"}),
            "does not accept the user and password, .*`address.auth`",
        ),
        ((401, "Unauthorized"), "does not accept the user and password"),
        ((502, "Bad gateway"), r"not a search engine's \(502"),
    ],
)
def test_servers_that_are_no_engine(answer: Answer, message: str) -> None:
    with (
        stub(lambda request: answer) as url,
        refused(message, EngineError) as error,
    ):
        connect(url)
    assert "\n" not in str(error.value)


def test_nothing_answers() -> None:
    message = r"no answer \(.*refused.*\); is an engine running"
    with refused(message, EngineError):
        connect("http://127.0.0.1:9")


def test_another_node_answers() -> None:
    with stub(lambda request: (200, OPENSEARCH)) as url:
        assert connect(f"http://127.0.0.1:9, {url}").kind == "opensearch"


def test_a_server_without_tls() -> None:
    message = "no TLS there; use http:// in place of https://"
    with (
        stub(lambda request: (200, OPENSEARCH)) as url,
        refused(message, EngineError),
    ):
        connect(url.replace("http", "https"))


def error_of(kind: str, reason: str) -> dict[str, Any]:
    return {"error": {"type": kind, "reason": reason}}


CAUSES = {"error": {"reason": "a", "caused_by": {"reason": "b\nc"}}}


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (403, error_of("security_exception", "no"), "lacks a right .no."),
        (
            404,
            error_of("index_not_found_exception", ""),
            "/things: there is no such index",
        ),
        (
            403,
            error_of("cluster_block_exception", "read-only / allow delete"),
            r"cannot be written to \(read-only.*read_only_allow_delete",
        ),
        (400, CAUSES, "answers 400: b c"),
        (200, "<html>", "not a search engine's"),
        (500, "", "not a search engine's"),
        (200, {"hits": "x" * 10_000}, "found an answer of more than 9,000 bytes"),
    ],
)
def test_refusals(status: int, content: Any, message: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(client, "LARGEST", 9_000)
    with opensearch(lambda request: (status, content)) as url:
        engine = connect(url)
        with refused(message, EngineError) as error:
            engine.request("POST", "/things/_search", {})
    assert "\n" not in str(error.value)


def test_secrets_go_to_the_engine_and_nowhere_else(
    tmp_path: Path, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    auth = tmp_path / "engine.toml"
    auth.write_text('user = "reader"\npassword = "hush-hush"\n')
    authorizations = set()

    def answer(request: Request) -> Answer:
        authorizations.add(request.headers.get("authorization"))
        if request.path == "/":
            return 200, OPENSEARCH
        return 403, {"error": "forbidden"}

    with stub(answer) as url, caplog.at_level("DEBUG"):
        engine = connect(url, auth=auth)
        with pytest.raises(EngineError) as error:
            engine.request("POST", "/x", {})
    assert authorizations == {"Basic cmVhZGVyOmh1c2gtaHVzaA=="}
    output = capsys.readouterr()
    texts = [output.out, output.err, caplog.text, repr(engine), str(error.value)]
    assert not re.search("hush-hush|cmVhZGVyOmh1c2gtaHVzaA", "".join(texts))


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


BUSY = error_of("rejected", "queue full") | {"status": 429}
WRONG = error_of("parsing", "no field") | {"status": 400}
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
        return search(connect(self.url), bodies, 100)


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
