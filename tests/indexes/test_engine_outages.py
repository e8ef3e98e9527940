"""Connections that break, users without rights, and nodes that die, at real servers."""

import random
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, Patch
from helpers.engine_servers import Server
from helpers.engine_stub import Proxy
from helpers.index_samples import TOPICS, random_posts

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines import client, layout
from tweetrerank.indexes.engines.client import (
    Engine,
    EngineAddress,
    EngineError,
    repeated,
)
from tweetrerank.indexes.engines.engine_index import open_index
from tweetrerank.indexes.engines.layout import build
from tweetrerank.indexes.methods import BM25

POSTS = random_posts(2000, seed=5)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: Patch) -> None:
    monkeypatch.setattr(client, "DELAYS", (0.02, 0.05, 0.1, 0.2, 0.4))
    monkeypatch.setattr(layout, "CHUNK", 20_000)


def assert_complete(address: EngineAddress, folder: Path) -> None:
    """Every post is there once, and searches give what they should."""
    with open_index(address, folder / "other") as index:
        assert sorted(index.posts) == sorted(POSTS)
        found = index.search(TOPICS, BM25())
    engine = Engine(address)
    stats = engine.request("GET", f"/{address.index}/_stats/docs")
    assert stats["_all"]["primaries"]["docs"]["count"] == len(POSTS)
    settings = engine.request("GET", f"/{address.index}")[address.index]["settings"][
        "index"
    ]
    assert settings.get("refresh_interval") is None
    assert found["all 0"]


class Cuts:
    """Cuts some answers before their end, and delays some; counts the cuts."""

    def __init__(self, share: float) -> None:
        self._share, self._drawn, self.count = share, random.Random(1), 0

    def __call__(self, size: int, part: bytes) -> bytes:
        if self._drawn.random() < 0.05:
            time.sleep(0.05)
        if self._drawn.random() >= self._share:
            return part
        self.count += 1
        return part[: self._drawn.choice((0, len(part) // 2))]


def test_answers_that_are_lost_while_posts_are_sent(
    server: Server, tmp_path: Path
) -> None:
    """The posts have been taken, or not."""
    address = server.address()
    with Proxy(server.url) as proxy:
        part = EngineAddress(proxy.url, address.index)
        Engine(part)
        # A handshake of TLS has several parts.
        proxy.broken = Cuts(0.3 if server.url.startswith("http:") else 0.08)
        _, sent = repeated(lambda: build(part, POSTS, [], tmp_path / "kept", "again"))
        assert proxy.broken.count > 2
    assert 0 <= sent <= len(POSTS)
    assert_complete(address, tmp_path)


@pytest.mark.parametrize(
    "problem", ["no answer", r"the index cannot be written to .*free space"]
)
def test_no_more_posts(
    server: Server, tmp_path: Path, monkeypatch: Patch, problem: str
) -> None:
    """It is gone at the fifth chunk, or has no space left. The next run sends what is missing."""
    address, send, chunks = server.address(), layout._send, count(1)
    engine, path = Engine(address), f"/{address.index}/_settings"
    with Proxy(server.url) as proxy:
        part = EngineAddress(proxy.url, address.index)

        def fail(*arguments: Any) -> int:
            is_fifth = next(chunks) == 5
            if is_fifth and problem == "no answer":
                proxy.refuses = True
                proxy.cut()
            elif is_fifth:
                engine.request("PUT", path, {"index.blocks.write": True})
            return send(*arguments)

        monkeypatch.setattr(layout, "_send", fail)
        with pytest.raises(DataError, match=problem):
            build(part, POSTS, [], tmp_path / "kept", "again")
        with pytest.raises(
            DataError, match="is not complete; send the posts that it lacks"
        ):
            open_index(address, tmp_path / "kept")
        proxy.refuses = False
        engine.request("PUT", path, {"index.blocks.write": None})
        assert 0 < build(part, POSTS, [], tmp_path / "kept", "again")[1] < len(POSTS)
    assert_complete(address, tmp_path)


def test_searches_that_are_cut(server: Server, tmp_path: Path) -> None:
    address = server.address()
    build(address, POSTS, [], tmp_path / "kept", "again")
    with Proxy(server.url) as proxy, open_index(address, tmp_path / "kept") as whole:
        expected = whole.search(TOPICS, BM25(), hits=100)
        with open_index(
            EngineAddress(proxy.url, address.index), tmp_path / "kept"
        ) as index:
            proxy.broken = cuts = Cuts(0.1)
            while cuts.count < 3:
                assert index.search(TOPICS, BM25(), hits=100) == expected
            proxy.refuses = True
            proxy.cut()
            with pytest.raises(
                EngineError, match=r"topics 1, 2, 3, 4, 5 and \d+ more without an"
            ):
                index.search(TOPICS, BM25())


def test_a_run_is_whole_or_absent(
    server: Server, tmp_path: Path, command: Command, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(client, "DELAYS", (0.01,))
    with Proxy(server.url) as proxy:
        index = server.address().index
        options = ["--engine", proxy.url, "--engine-index", index]
        command("index", "--collection", "sample", *options, code=0)
        output = tmp_path / "sample.run"
        search = [
            "--topics",
            "sample",
            *options,
            "--reranker",
            "none",
            "--output",
            output,
        ]
        command("search", *search, "--show", "none", code=0)
        whole = output.read_bytes()
        output.unlink()
        # Whether or not it can be read here, only an answer with hits is so long.
        proxy.broken = lambda size, part: b"" if size + len(part) > 8_000 else part
        assert "no answer" in command("search", *search, code=1).err
        assert not output.exists()
        proxy.broken, proxy.refuses = lambda size, part: part, False
        command("search", *search, code=0)
        assert output.read_bytes() == whole


def test_an_unknown_authority(server: Server, monkeypatch: Patch) -> None:
    if "TWEETRERANK_ENGINE_PASSWORD" not in server.credentials:
        pytest.skip("this server asks for no password")
    monkeypatch.delenv("TWEETRERANK_ENGINE_CA")
    with pytest.raises(
        EngineError, match=r"not from a known authority .*TWEETRERANK_ENGINE_CA"
    ):
        Engine(server.address())
    plain = EngineAddress(server.url.replace("https", "http"), "x")
    with pytest.raises(EngineError, match="https://"):
        Engine(plain)
