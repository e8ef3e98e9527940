"""Filling of an index in an engine that refuses, is busy, or loses responses."""

import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from conftest import Patch
from helpers.engine_stub import Answer, Request, opensearch, without_delays_and_users
from helpers.index_samples import refused

from tweetrerank.indexes.engines import filling
from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.engines.engine_index import open_index
from tweetrerank.indexes.engines.filling import build
from tweetrerank.indexes.posts import Post

POSTS = [Post(str(number), f"post number {number} " + "x" * 50) for number in range(40)]
REBUILD = "pipeline.index …"

NO_INDEX = {"error": {"type": "index_not_found_exception"}, "status": 404}

Item = tuple[int, str]  # Status of a post, and the reason of a refusal


@pytest.fixture(autouse=True)
def _quick(monkeypatch: Patch) -> None:
    without_delays_and_users(monkeypatch)
    monkeypatch.setattr(filling, "CHUNK", 1000)


class FakeIndex:
    """As much of an engine as filling an index needs."""

    url: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.posts: dict[str, Any] = {}
        self.description: dict[str, Any] = {}
        self.intervals: list[Any] = []
        """Intervals of refreshes, in the order of their settings."""
        self.bulks: list[list[str]] = []
        """Ids of each bulk request."""
        self.bulk: Callable[[list[str]], Answer | None] = lambda ids: None
        """Response to a bulk request, None for the usual one."""
        self.item: Callable[[str], Item | None] = lambda doc_id: None
        """Response to one post, None for the usual one."""

    def __call__(self, request: Request) -> Answer:
        if request.method == "PUT":
            self._put(request.path, request.body)
            return 200, {}
        match request.path:
            case "/things":
                if self.description:
                    return 200, {"things": self.description}
                return 404, NO_INDEX
            case "/things/_count":
                return 200, {"count": len(self.posts)}
            case "/things/_search":
                hits = [{"fields": {"id": [doc_id]}} for doc_id in self.posts]
                return 200, {"hits": {"hits": hits}, "_scroll_id": "s"}
            case "/_search/scroll" if request.method == "POST":
                return 200, {"hits": {"hits": []}, "_scroll_id": "s"}
            case "/things/_bulk":
                return self._bulk_response(request.body)
        return 200, {}

    def _put(self, path: str, body: Any) -> None:
        match path:
            case "/things":
                settings = {**body["settings"], "uuid": "u1"}
                mappings = body["mappings"]
                self.description = {"settings": {"index": settings}}
                self.description["mappings"] = mappings
            case "/things/_settings":
                self.intervals.append(body["index"]["refresh_interval"])
                self.description["settings"]["index"] |= body["index"]
            case "/things/_mapping":
                self.description["mappings"] |= body

    def _bulk_response(self, lines: list[Any]) -> Answer:
        ids = [line["create"]["_id"] for line in lines[::2]]
        self.bulks.append(ids)
        response = self.bulk(ids)
        if response:
            return response
        items = [
            {"create": self._item_response(doc_id, post)}
            for doc_id, post in zip(ids, lines[1::2], strict=True)
        ]
        return 200, {"errors": True, "items": items}

    def _item_response(self, doc_id: str, post: Any) -> dict[str, Any]:
        response = self.item(doc_id)
        if response:
            status, reason = response
            error = {"type": "x", "reason": reason}
            return {"_id": doc_id, "status": status, "error": error}
        status = 409 if doc_id in self.posts else 201
        self.posts.setdefault(doc_id, post)
        return {"_id": doc_id, "status": status}

    def fill(self, *sources: Path) -> int:
        """Fill the index, and return the number of posts that were sent."""
        address = EngineAddress(self.url, "things")
        _, sent = build(address, POSTS, sources, self.folder, REBUILD)
        return sent

    def open(self, *sources: Path) -> None:
        address = EngineAddress(self.url, "things")
        open_index(address, self.folder, sources).close()

    def set_interval(self, interval: str) -> None:
        self.description["settings"]["index"]["refresh_interval"] = interval


@pytest.fixture
def index(tmp_path: Path) -> Iterator[FakeIndex]:
    fake = FakeIndex(tmp_path / "kept")
    with opensearch(fake) as fake.url:
        yield fake


def assert_filled(index: FakeIndex) -> None:
    """All posts are sent once, in several requests; another call sends none."""
    assert index.fill() == 40
    assert len(index.posts) == 40
    assert index.intervals == ["-1", None]
    bulks = len(index.bulks)
    assert bulks > 5
    assert index.fill() == 0
    assert len(index.bulks) == bulks


class EverySecond:
    """The response to every second request, five times."""

    def __init__(self, index: FakeIndex, response: Answer) -> None:
        self._index = index
        self._response = response
        self._remaining = 5

    def __call__(self, ids: list[str]) -> Answer | None:
        is_second = len(self._index.bulks) % 2 == 1
        if not is_second or not self._remaining:
            return None
        self._remaining -= 1
        return self._response


@pytest.mark.parametrize(
    "response",
    [
        (429, {"error": "busy"}),
        (503, "<html>down</html>"),
    ],
)
def test_refusals_that_pass(index: FakeIndex, response: Answer) -> None:
    index.bulk = EverySecond(index, response)
    assert_filled(index)


def test_requests_that_are_too_large(index: FakeIndex) -> None:
    too_large = (413, "too large")
    index.bulk = lambda ids: too_large if len(ids) > 2 else None
    assert_filled(index)


def test_responses_that_are_lost(index: FakeIndex) -> None:
    """Stored posts are sent again, and change nothing."""
    every_second = EverySecond(index, (503, {"error": "x"}))

    def store_and_lose(ids: list[str]) -> Answer | None:
        response = every_second(ids)
        if response:
            index.posts |= {doc_id: {"contents": "stored"} for doc_id in ids}
        return response

    index.bulk = store_and_lose
    assert_filled(index)


class BusyAndBad:
    """Some posts are accepted after attempts, others are refused."""

    bad = frozenset({"4", "9", "13", "21"})

    def __init__(self) -> None:
        self._attempts = {"3": 2, "17": 1}

    def __call__(self, doc_id: str) -> Item | None:
        if self._attempts.get(doc_id):
            self._attempts[doc_id] -= 1
            return 429, "queue full"
        if doc_id in self.bad:
            return 400, f"no {doc_id}"
        return None


def test_busy_posts_are_sent_again(index: FakeIndex) -> None:
    index.item = BusyAndBad()
    with refused(r"refused 4 of 40 posts: post \d+: no \d+; .* 1"):
        index.fill()
    assert index.posts.keys() == {post.doc_id for post in POSTS} - BusyAndBad.bad
    assert index.bulks.count(["3"]) == 2
    assert index.intervals == ["-1", None]
    message = rf"not complete; send .*\n  {re.escape(REBUILD)}"
    with refused(message):
        index.open()
    index.item = lambda doc_id: None
    assert index.fill() == 4


def test_posts_that_stay_busy_are_named(index: FakeIndex) -> None:
    index.item = lambda doc_id: (429, "queue full") if doc_id == "3" else None
    message = r"too busy to take 1 posts \(such as 3\); try"
    with refused(message):
        index.fill()


def test_an_interrupted_run_goes_on(index: FakeIndex, monkeypatch: Patch) -> None:
    chunks = filling._chunks

    def interrupted(*arguments: Any) -> Iterator[Any]:
        yield from islice(chunks(*arguments), 3)
        raise KeyboardInterrupt

    monkeypatch.setattr(filling, "_chunks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index.fill()
    monkeypatch.setattr(filling, "_chunks", chunks)
    stored = len(index.posts)
    assert 0 < stored < 26
    assert index.intervals == ["-1", None]
    assert not list(index.folder.iterdir())
    # A killed process leaves the index without refreshes.
    index.set_interval("-1")
    assert index.fill() == 40 - stored
    assert len(index.posts) == 40
    assert index.intervals[2:] == ["-1", None]
    # Another interval is restored.
    index.set_interval("30s")
    index.fill()
    assert index.intervals[4:] == ["-1", "30s"]


@pytest.fixture
def source(index: FakeIndex, tmp_path: Path) -> Path:
    """The file of the index's posts."""
    path = tmp_path / "one"
    path.write_text("one")
    index.fill(path)
    return path


def test_an_index_of_another_file(index: FakeIndex, source: Path) -> None:
    other = source.with_name("two")
    other.write_text("two")
    with refused("an index with posts of one, expected two; choose"):
        index.fill(other)
    with refused(r"built from \['one'\], expected \['two'\]; choose"):
        index.open(other)
    index.open(source)


def test_an_index_of_a_file_that_has_changed(index: FakeIndex, source: Path) -> None:
    source.write_text("other")
    with refused("one, which has changed since; choose"):
        index.open(source)
    with refused("posts of one, expected one of another content"):
        index.fill(source)


def test_a_post_of_another_program(index: FakeIndex, source: Path) -> None:
    index.posts["stranger"] = {}
    index.description["mappings"]["_meta"]["tweetrerank"]["complete"] = False
    with refused("found 41 posts after sending all, expected 40"):
        index.fill(source)


def test_an_index_of_another_program(index: FakeIndex, source: Path) -> None:
    index.description["mappings"]["_meta"] = {}
    with refused("was not made by this program; .* fields: id, "):
        index.fill(source)
