"""Requests to search engines: addresses, users, and every kind of refusal."""

import re
from collections.abc import Callable
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
    [
        pytest.param('pasword = "hush"', id="an unknown key"),
        pytest.param("hush", id="not TOML"),
        pytest.param("user = 1", id="a number"),
    ],
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


def recording(authorizations: list[str]) -> Callable[[Request], Answer]:
    """An engine that forbids everything and records the users."""

    def answer(request: Request) -> Answer:
        authorizations.append(request.headers.get("authorization", ""))
        if request.path == "/":
            return 200, OPENSEARCH
        return 403, {"error": "forbidden"}

    return answer


def test_secrets_go_to_the_engine_and_nowhere_else(
    tmp_path: Path, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    auth = tmp_path / "engine.toml"
    auth.write_text('user = "reader"\npassword = "hush-hush"\n')
    authorizations: list[str] = []
    with stub(recording(authorizations)) as url, caplog.at_level("DEBUG"):
        engine = connect(url, auth=auth)
        with pytest.raises(EngineError) as error:
            engine.request("POST", "/x", {})
    assert set(authorizations) == {"Basic cmVhZGVyOmh1c2gtaHVzaA=="}
    output = capsys.readouterr()
    texts = [output.out, output.err, caplog.text, repr(engine), str(error.value)]
    assert not re.search("hush-hush|cmVhZGVyOmh1c2gtaHVzaA", "".join(texts))
