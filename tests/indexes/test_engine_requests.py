"""Requests to search engines: searches in their language, and every kind of refusal."""

import os
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from conftest import Capture, Patch
from helpers.engine_stub import OPENSEARCH, Answer, Request, opensearch, stub

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines import client, layout
from tweetrerank.indexes.engines.client import (
    Credentials,
    Engine,
    EngineAddress,
    EngineError,
    check_url,
)
from tweetrerank.indexes.engines.engine_index import open_index
from tweetrerank.indexes.engines.engine_search import filled, read_query, search
from tweetrerank.indexes.engines.layout import build
from tweetrerank.indexes.posts import Post

POSTS = [Post(str(n), f"post number {n} " + "x" * 50) for n in range(40)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: Patch) -> None:
    """No waiting, and no user of the environment."""
    monkeypatch.setattr(client, "DELAYS", (0.01,) * 4)
    for name in list(os.environ):
        if name.startswith("TWEETRERANK_ENGINE_"):
            monkeypatch.delenv(name)


def connect(url: str, **fields: Any) -> Engine:
    return Engine(EngineAddress(url, "things", **fields))


@pytest.mark.parametrize(
    "url", ["localhost:9200", "ftp://x", "http://", "http://x:port", ""]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(DataError, match="expected the address of a search engine"):
        check_url(url)


def test_users_of_a_file_or_the_environment(tmp_path: Path, monkeypatch: Patch) -> None:
    assert Credentials.read(None).headers == {}
    ca, path = tmp_path / "ca.pem", tmp_path / "engine.toml"
    ca.touch()
    for name, value in {"USER": "reader", "PASSWORD": "hush", "CA": str(ca)}.items():
        monkeypatch.setenv(f"TWEETRERANK_ENGINE_{name}", value)
    found = Credentials.read(None)
    assert found.headers == {"authorization": "Basic cmVhZGVyOmh1c2g="}
    assert "hush" not in repr(found)
    path.write_text('api_key = "hush"\n')
    found = Credentials.read(path)
    assert (found.headers, found.ca) == ({"authorization": "ApiKey hush"}, str(ca))
    for text in ('pasword = "hush"', "hush", "user = 1"):
        path.write_text(text)
        with pytest.raises(
            DataError, match="expected texts under the keys user, "
        ) as error:
            Credentials.read(path)
        assert "hush" not in str(error.value)
    path.write_text('ca = "nowhere.pem"')
    with pytest.raises(
        DataError, match=r"no file nowhere\.pem with the engine's authority"
    ):
        Credentials.read(path)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        Credentials.read(tmp_path / "none")


def test_engines_are_told_apart() -> None:
    number = {"number": "8.19.3"}
    for content, expected in (
        (OPENSEARCH, ("opensearch", (3, 1))),
        (
            {"version": number, "tagline": "You Know, for Search"},
            ("elasticsearch", (8, 19)),
        ),
    ):
        with stub(lambda request, content=content: (200, content)) as url:  # type: ignore[misc]
            engine = connect(url)
            assert (engine.kind, engine.version) == expected
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
def test_what_is_no_engine(answer: Answer, message: str) -> None:
    with (
        stub(lambda request: answer) as url,
        pytest.raises(EngineError, match=message) as error,
    ):
        connect(url)
    assert "\n" not in str(error.value)


def test_nothing_answers() -> None:
    with pytest.raises(
        EngineError, match=r"no answer \(.*refused.*\); is an engine running"
    ):
        connect("http://127.0.0.1:9")
    with stub(lambda request: (200, OPENSEARCH)) as url:
        # Another node of the cluster does.
        assert connect(f"http://127.0.0.1:9, {url}").kind == "opensearch"
        with pytest.raises(
            EngineError, match="no TLS there; use http:// in place of https://"
        ):
            connect(url.replace("http", "https"))


BLOCKED = {"type": "cluster_block_exception", "reason": "read-only / allow delete"}


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (
            403,
            {"error": {"type": "security_exception", "reason": "no"}},
            "lacks a right .no.",
        ),
        (
            404,
            {"error": {"type": "index_not_found_exception"}},
            "/things: there is no such index",
        ),
        (
            403,
            {"error": BLOCKED},
            r"cannot be written to \(read-only.*read_only_allow_delete",
        ),
        (
            400,
            {"error": {"reason": "a", "caused_by": {"reason": "b\nc"}}},
            "answers 400: b c",
        ),
        (200, "<html>", "not a search engine's"),
        (500, "", "not a search engine's"),
        (200, {"hits": "x" * 10_000}, "found an answer of more than 9,000 bytes"),
    ],
)
def test_refusals(status: int, content: Any, message: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(client, "LARGEST", 9_000)
    engine = opensearch(lambda request: (status, content))
    with engine as url, pytest.raises(EngineError, match=message) as error:
        connect(url).request("POST", "/things/_search", {})
    assert "\n" not in str(error.value)


def test_queries_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "query.json"
    path.write_text(
        '{"bool": {"should": [{"match": {"a": "{{query}}!"}}], "boost": 2}}'
    )
    found = filled(read_query(path), '"}{ {{query}}')
    assert found["query"]["bool"]["should"] == [{"match": {"a": '"}{ {{query}}!'}}]
    for text, problem in (
        ("{", "found no JSON"),
        ("[]", "found no {{query}} in it"),
        ('{"query": {"match": {"a": "x"}}}', "found no {{query}} in it"),
        (
            '{"query": {"match": {"a": "{{query}}"}}, "sort": ["at"]}',
            "found sort beside the query",
        ),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=problem):
            read_query(path)


def hits(*scores: float) -> dict[str, Any]:
    found = [
        {"sort": [score, str(n)], "_score": score} for n, score in enumerate(scores)
    ]
    return {"hits": {"hits": found}, "_shards": {"failed": 0}}


def test_topics_without_an_answer_are_asked_again_and_named() -> None:
    asked: list[list[str]] = []
    fate: dict[str, list[Any]] = {}

    def answer(request: Request) -> Answer:
        bodies = request.body[1::2]
        assert all(
            h["allow_partial_search_results"] is False for h in request.body[::2]
        )
        asked.append([body["query"]["label"] for body in bodies])
        return 200, {
            "responses": [
                (fate.get(label) or [hits(1.0)]).pop(0) for label in asked[-1]
            ]
        }

    bodies = {label: {"query": {"label": label}, "size": 5} for label in "abc"}
    busy = {"error": {"type": "rejected", "reason": "queue full"}, "status": 429}
    partial = {"hits": {"hits": []}, "_shards": {"failed": 1}}
    wrong = {"error": {"type": "parsing", "reason": "no field"}, "status": 400}
    with opensearch(answer) as url:
        engine = connect(url)
        fate.update(b=[busy, partial, hits(2.0)])
        found = search(engine, bodies, 100)
        assert list(found) == ["a", "b", "c"]
        assert asked == [["a", "b", "c"], ["b"], ["b"]]
        assert [hit["_score"] for hit in found["b"]] == [2.0]
        fate.update(b=[busy] * 9, c=[busy] * 9)
        with pytest.raises(
            EngineError, match=r"topics b, c without an answer: .*queue full"
        ):
            search(engine, bodies, 100)
        fate.update(b=[wrong], c=[])
        with pytest.raises(
            EngineError, match=r"topic b without an answer: .*400: no field"
        ):
            search(engine, bodies, 100)


class FakeIndex:
    """As much of an engine as filling an index needs; ``bulk`` may answer in its place."""

    url: str

    def __init__(self) -> None:
        self.posts: dict[str, Any] = {}
        self.description: dict[str, Any] = {}
        self.settings: list[Any] = []
        self.bulks: list[list[str]] = []
        self.bulk: Callable[[list[str]], Answer | None] = lambda ids: None
        self.item: Callable[[str], tuple[int, str] | None] = lambda doc_id: None

    def __call__(self, request: Request) -> Answer:
        method, path, body, _ = request
        match method, path:
            case "GET", "/things":
                missing = {
                    "error": {"type": "index_not_found_exception"},
                    "status": 404,
                }
                return (
                    (200, {"things": self.description})
                    if self.description
                    else (404, missing)
                )
            case "PUT", "/things":
                settings = {**body["settings"], "uuid": "u1"}
                self.description = {
                    "settings": {"index": settings},
                    "mappings": body["mappings"],
                }
            case "PUT", "/things/_settings":
                self.settings.append(body["index"]["refresh_interval"])
                self.description["settings"]["index"] |= body["index"]
            case "PUT", "/things/_mapping":
                self.description["mappings"] |= body
            case "GET", "/things/_count":
                return 200, {"count": len(self.posts)}
            case "POST", "/things/_search":
                found = [{"fields": {"id": [doc_id]}} for doc_id in self.posts]
                return 200, {"hits": {"hits": found}, "_scroll_id": "s"}
            case "POST", "/_search/scroll":
                return 200, {"hits": {"hits": []}, "_scroll_id": "s"}
            case "POST", "/things/_bulk":
                return self._bulk(body)
        return 200, {}

    def _bulk(self, lines: list[Any]) -> Answer:
        ids = [line["create"]["_id"] for line in lines[::2]]
        self.bulks.append(ids)
        if refused := self.bulk(ids):
            return refused
        items = []
        for doc_id, post in zip(ids, lines[1::2], strict=True):
            status, reason = self.item(doc_id) or (201, "")
            if status == 201:
                status = 409 if doc_id in self.posts else 201
                self.posts.setdefault(doc_id, post)
            error = {"error": {"type": "x", "reason": reason}} if reason else {}
            items.append({"create": {"_id": doc_id, "status": status, **error}})
        return 200, {"errors": True, "items": items}


@pytest.fixture
def index(monkeypatch: Patch) -> Iterator[FakeIndex]:
    monkeypatch.setattr(layout, "CHUNK", 1000)
    with opensearch(index := FakeIndex()) as index.url:
        yield index


def fill(index: FakeIndex, folder: Path) -> int:
    return build(
        EngineAddress(index.url, "things"), POSTS, [], folder, "pipeline.index …"
    )[1]


@pytest.mark.parametrize(
    "refusal",
    [(429, {"error": "busy"}), (503, "<html>down</html>"), (413, "too large"), "lost"],
)
def test_refusals_that_pass(index: FakeIndex, tmp_path: Path, refusal: Any) -> None:
    """Also answers that are lost: what has been taken is sent again, and changes nothing."""
    left = [5]

    def bulk(ids: list[str]) -> Any:
        if refusal == (413, "too large"):
            return refusal if len(ids) > 2 else None
        if not len(index.bulks) % 2 or not left[0]:
            return None
        left[0] -= 1
        if refusal == "lost":
            index.posts |= {doc_id: {"contents": "taken"} for doc_id in ids}
            return 503, {"error": "x"}
        return refusal

    index.bulk = bulk
    assert (fill(index, tmp_path), len(index.posts), index.settings) == (
        40,
        40,
        ["-1", None],
    )
    assert (bulks := len(index.bulks)) > 5
    assert (fill(index, tmp_path), len(index.bulks)) == (0, bulks)


def test_busy_posts_are_sent_again(index: FakeIndex, tmp_path: Path) -> None:
    busy, bad = {"3": 2, "17": 1}, {"4", "9", "13", "21"}

    def item(doc_id: str) -> tuple[int, str] | None:
        if busy.get(doc_id):
            busy[doc_id] -= 1
            return 429, "queue full"
        return (400, f"no {doc_id}") if doc_id in bad else None

    index.item = item
    with pytest.raises(
        DataError, match=r"refused 4 of 40 posts: post \d+: no \d+; .* 1"
    ):
        fill(index, tmp_path)
    assert index.posts.keys() == {post.doc_id for post in POSTS} - bad
    assert [ids for ids in index.bulks if len(ids) == 1 and ids != ["0"]].count(
        ["3"]
    ) == 2
    assert index.settings == ["-1", None]
    with pytest.raises(DataError, match=r"not complete; send .*\n  pipeline\.index …"):
        open_index(EngineAddress(index.url, "things"), tmp_path)
    index.item = lambda doc_id: None
    assert fill(index, tmp_path) == 4
    index.posts.clear()
    index.item = lambda doc_id: (429, "queue full") if doc_id == "3" else None
    with pytest.raises(DataError, match=r"too busy to take 1 posts \(such as 3\); try"):
        fill(index, tmp_path)


def test_an_interrupted_run_goes_on(
    index: FakeIndex, tmp_path: Path, monkeypatch: Patch
) -> None:
    chunks = layout._chunks

    def interrupted(*arguments: Any) -> Iterator[Any]:
        yield from islice(chunks(*arguments), 3)
        raise KeyboardInterrupt

    monkeypatch.setattr(layout, "_chunks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill(index, tmp_path)
    monkeypatch.setattr(layout, "_chunks", chunks)
    assert 0 < (there := len(index.posts)) < 26
    assert index.settings == ["-1", None]
    assert not list(tmp_path.iterdir())
    # A killed process leaves the index without refreshes; its user had set another time.
    index.description["settings"]["index"]["refresh_interval"] = "-1"
    assert (fill(index, tmp_path), len(index.posts)) == (40 - there, 40)
    assert index.settings[2:] == ["-1", None]
    index.description["settings"]["index"]["refresh_interval"] = "30s"
    fill(index, tmp_path)
    assert index.settings[4:] == ["-1", "30s"]


def test_an_index_of_other_posts(index: FakeIndex, tmp_path: Path) -> None:
    one, two, kept = tmp_path / "one", tmp_path / "two", tmp_path / "kept"
    for path in (one, two):
        path.write_text(path.name)
    address = EngineAddress(index.url, "things")

    def refused(problem: str, source: Path, opens: bool = False) -> None:
        with pytest.raises(DataError, match=problem):
            if opens:
                open_index(address, kept, [source])
            else:
                build(address, POSTS, [source], kept, "")

    build(address, POSTS, [one], kept, "pipeline.index …")
    refused("an index with posts of one, expected two; choose", two)
    refused(r"built from \['one'\], expected \['two'\]; choose", two, opens=True)
    open_index(address, kept, [one]).close()
    one.write_text("other")
    refused("one, which has changed since; choose", one, opens=True)
    refused("posts of one, expected one of another content", one)
    index.posts["stranger"] = {}
    index.description["mappings"]["_meta"]["tweetrerank"]["complete"] = False
    one.write_text("one")
    refused("found 41 posts after sending all, expected 40", one)
    index.description["mappings"]["_meta"] = {}
    refused("was not made by this program; .* fields: id, ", one)


def test_secrets_go_to_the_engine_and_nowhere_else(
    tmp_path: Path, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    auth = tmp_path / "engine.toml"
    auth.write_text('user = "reader"\npassword = "hush-hush"\n')
    seen: list[str] = []

    def answer(request: Request) -> Answer:
        seen.append(request.headers.get("authorization", ""))
        return (
            (200, OPENSEARCH) if request.path == "/" else (403, {"error": "forbidden"})
        )

    with stub(answer) as url, caplog.at_level("DEBUG"):
        engine = connect(url, auth=auth)
        with pytest.raises(EngineError) as error:
            engine.request("POST", "/x", {})
    assert set(seen) == {"Basic cmVhZGVyOmh1c2gtaHVzaA=="}
    shown = "".join([*capsys.readouterr(), caplog.text, repr(engine), str(error.value)])
    assert not re.search("hush-hush|cmVhZGVyOmh1c2gtaHVzaA", shown)
