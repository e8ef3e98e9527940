"""Connections that break, users without rights, and nodes that die, at real servers."""

import random
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, Patch
from helpers.engine_servers import Server
from helpers.engine_stub import Proxy
from helpers.index_samples import TOPICS, random_posts, refused

from tweetrerank.indexes.engines import client, filling
from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.engines.client import Engine, repeated
from tweetrerank.indexes.engines.engine_error import EngineError
from tweetrerank.indexes.engines.engine_index import open_index
from tweetrerank.indexes.engines.filling import Sender, build
from tweetrerank.indexes.methods import BM25

POSTS = random_posts(2000, seed=5)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: Patch) -> None:
    monkeypatch.setattr(client, "DELAYS", (0.02, 0.05, 0.1, 0.2, 0.4))
    monkeypatch.setattr(filling, "CHUNK", 20_000)


def assert_complete(address: EngineAddress, folder: Path) -> None:
    """Every post exists once, searches have hits, and refreshes go on."""
    with open_index(address, folder / "other") as index:
        assert sorted(index.posts) == sorted(POSTS)
        run = index.search(TOPICS, BM25())
    assert run["all 0"]
    engine = Engine(address)
    stats = engine.request("GET", f"/{address.index}/_stats/docs")
    assert stats["_all"]["primaries"]["docs"]["count"] == len(POSTS)
    description = engine.request("GET", f"/{address.index}")[address.index]
    assert description["settings"]["index"].get("refresh_interval") is None


class Cuts:
    """Cuts some responses before their end, and delays some; counts the cuts."""

    def __init__(self, share: float) -> None:
        self.count = 0
        self._share = share
        self._generator = random.Random(1)

    def __call__(self, size: int, chunk: bytes) -> bytes:
        if self._generator.random() < 0.05:
            time.sleep(0.05)
        if self._generator.random() >= self._share:
            return chunk
        self.count += 1
        return chunk[: self._generator.choice((0, len(chunk) // 2))]


def test_responses_that_are_lost_while_posts_are_sent(
    server: Server, tmp_path: Path
) -> None:
    """The posts may have been stored, or not."""
    address = server.address()
    # A handshake of TLS has several chunks.
    cuts = Cuts(0.3 if server.url.startswith("http:") else 0.08)
    with Proxy(server.url) as proxy:
        through_proxy = EngineAddress(proxy.url, address.index)
        Engine(through_proxy)
        proxy.broken = cuts
        _, sent = repeated(
            lambda: build(through_proxy, POSTS, [], tmp_path / "kept", "again")
        )
        assert cuts.count > 2
    assert 0 <= sent <= len(POSTS)
    assert_complete(address, tmp_path)


@pytest.mark.parametrize(
    "problem", ["no answer", r"the index cannot be written to .*free space"]
)
def test_no_more_posts(
    server: Server, tmp_path: Path, monkeypatch: Patch, problem: str
) -> None:
    """An outage begins before the fifth chunk. The next run sends the missing posts."""
    address = server.address()
    folder = tmp_path / "kept"
    engine = Engine(address)
    settings = f"/{address.index}/_settings"
    send = Sender.send
    numbers = count(1)
    with Proxy(server.url) as proxy:
        through_proxy = EngineAddress(proxy.url, address.index)

        def begin_outage() -> None:
            if problem == "no answer":
                proxy.refuses = True
                proxy.cut()
            else:
                engine.request("PUT", settings, {"index.blocks.write": True})

        def send_four(sender: Sender, chunk: Sequence[Any]) -> int:
            if next(numbers) == 5:
                begin_outage()
            return send(sender, chunk)

        monkeypatch.setattr(Sender, "send", send_four)
        with refused(problem):
            build(through_proxy, POSTS, [], folder, "again")
        with refused("is not complete; send the posts that it lacks"):
            open_index(address, folder)
        proxy.refuses = False
        engine.request("PUT", settings, {"index.blocks.write": None})
        _, sent = build(through_proxy, POSTS, [], folder, "again")
        assert 0 < sent < len(POSTS)
    assert_complete(address, tmp_path)


def test_searches_that_are_cut(server: Server, tmp_path: Path) -> None:
    address = server.address()
    folder = tmp_path / "kept"
    build(address, POSTS, [], folder, "again")
    with open_index(address, folder) as index:
        expected = index.search(TOPICS, BM25(), hits=100)
    cuts = Cuts(0.1)
    with Proxy(server.url) as proxy:
        through_proxy = EngineAddress(proxy.url, address.index)
        with open_index(through_proxy, folder) as index:
            proxy.broken = cuts
            while cuts.count < 3:
                assert index.search(TOPICS, BM25(), hits=100) == expected
            proxy.refuses = True
            proxy.cut()
            with refused(r"topics 1, 2, 3, 4, 5 and \d+ more without an", EngineError):
                index.search(TOPICS, BM25())


def cut_long_response(size: int, chunk: bytes) -> bytes:
    """Whether or not it can be read here, only a response with hits is so long."""
    return b"" if size + len(chunk) > 8_000 else chunk


def test_a_run_is_complete_or_absent(
    server: Server, tmp_path: Path, command: Command, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(client, "DELAYS", (0.01,))
    output = tmp_path / "sample.run"
    with Proxy(server.url) as proxy:
        index = server.address().index
        engine = ("--engine", proxy.url, "--engine-index", index)
        command("index", "--collection", "sample", *engine, code=0)

        def search(code: int, *options: str) -> str:
            result = command(
                "search",
                "--topics",
                "sample",
                *engine,
                "--reranker",
                "none",
                "--output",
                output,
                *options,
                code=code,
            )
            return result.err

        search(0, "--show", "none")
        run = output.read_bytes()
        output.unlink()
        proxy.broken = cut_long_response
        assert "no answer" in search(1)
        assert not output.exists()
        proxy.broken = lambda size, chunk: chunk
        proxy.refuses = False
        search(0)
        assert output.read_bytes() == run


def test_an_unknown_authority(server: Server, monkeypatch: Patch) -> None:
    if "TWEETRERANK_ENGINE_PASSWORD" not in server.credentials:
        pytest.skip("this server asks for no password")
    monkeypatch.delenv("TWEETRERANK_ENGINE_CA")
    with refused(r"not from a known authority .*TWEETRERANK_ENGINE_CA", EngineError):
        Engine(server.address())
    plain = EngineAddress(server.url.replace("https", "http"), "x")
    with refused("https://", EngineError):
        Engine(plain)
