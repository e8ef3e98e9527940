"""Connections that break, users without rights, and nodes that die, at real servers."""

import json
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from conftest import Command
from helpers.engine_servers import SERVERS, Server, running
from helpers.engine_stub import Proxy
from helpers.index_samples import TOPICS, random_posts
from helpers.proxy_samples import post
from helpers.service_samples import QUERY, GatedScorer, app_of, listening, scored_by

from indexes.engines import building, client
from indexes.engines.address import EngineAddress
from indexes.engines.building import build
from indexes.engines.client import Engine, EngineError, repeated
from indexes.engines.index import open_index
from indexes.errors import CollectionError
from indexes.methods import BM25
from pipeline.service.proxy.search import SearchDefaults

POSTS = random_posts(2000, seed=5)


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(request.param) as found:
        yield found


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "DELAYS", (0.02, 0.05, 0.1, 0.2, 0.4))
    monkeypatch.setattr(building, "CHUNK", 20_000)


def through(proxy: Proxy, address: EngineAddress) -> EngineAddress:
    return EngineAddress(proxy.url, address.index)


def assert_complete(address: EngineAddress, folder: Path) -> None:
    """Every post is there once, and searches give what they should."""
    with open_index(address, folder / "other") as index:
        assert sorted(index.posts) == sorted(POSTS)
        found = index.search(TOPICS, BM25())
    engine = Engine.connect(address)
    stats = engine.request("GET", f"/{address.index}/_stats/docs")
    assert stats["_all"]["primaries"]["docs"]["count"] == len(POSTS)
    settings = engine.request("GET", f"/{address.index}")[address.index]["settings"]["index"]
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


def test_answers_that_are_lost_while_posts_are_sent(server: Server, tmp_path: Path) -> None:
    """The posts have been taken, or not."""
    address = server.address()
    with Proxy(server.url) as proxy:
        part = through(proxy, address)
        Engine.connect(part)
        # A handshake of TLS has several parts.
        proxy.broken = Cuts(0.3 if server.url.startswith("http:") else 0.08)
        done = repeated(lambda: build(part, POSTS, [], tmp_path / "kept", "again"))
        assert proxy.broken.count > 2
    assert 0 <= done.sent <= len(POSTS)
    assert_complete(address, tmp_path)


def test_an_answer_that_never_ends(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, waits = server.address(), [1.5, 1.5]
    monkeypatch.setattr(client, "TIMEOUT", 0.7)
    build(address, POSTS[:50], [], tmp_path / "kept", "again")
    with (
        Proxy(server.url) as proxy,
        open_index(through(proxy, address), tmp_path / "kept") as index,
    ):
        expected = index.search(TOPICS, BM25())

        def slow(size: int, part: bytes) -> bytes:
            time.sleep(waits.pop() if waits else 0)
            return part

        proxy.broken = slow
        assert index.search(TOPICS, BM25()) == expected
    assert not waits


def test_an_engine_that_is_gone_while_posts_are_sent(server: Server, tmp_path: Path) -> None:
    """The run fails with a message; the next one sends what is missing."""
    address = server.address()
    with Proxy(server.url) as proxy:
        part = through(proxy, address)

        def posts() -> Any:
            for number, post in enumerate(POSTS):
                yield post
                assert number < len(POSTS)

        send = building._Sender.send
        count = [0]

        def sometimes(self: Any, chunk: Any, report: Any) -> Any:
            count[0] += 1
            if count[0] == 6:
                proxy.refuses = True
                proxy.cut()
            return send(self, chunk, report)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(building._Sender, "send", sometimes)
            with pytest.raises(CollectionError, match="no answer"):
                build(part, posts(), [], tmp_path / "kept", "again")
        with pytest.raises(CollectionError, match="is not complete; send the posts that it lacks"):
            open_index(address, tmp_path / "kept")
        proxy.refuses = False
        done = build(part, POSTS, [], tmp_path / "kept", "again")
        assert 0 < done.sent < len(POSTS)
    assert_complete(address, tmp_path)


def test_searches_that_are_cut(server: Server, tmp_path: Path) -> None:
    address = server.address()
    build(address, POSTS, [], tmp_path / "kept", "again")
    with Proxy(server.url) as proxy, open_index(address, tmp_path / "kept") as whole:
        expected = whole.search(TOPICS, BM25(), hits=100)
        with open_index(through(proxy, address), tmp_path / "kept") as index:
            proxy.broken = cuts = Cuts(0.1)
            while cuts.count < 3:
                assert index.search(TOPICS, BM25(), hits=100) == expected
            proxy.refuses = True
            proxy.cut()
            with pytest.raises(EngineError, match=r"topics 1, 2, 3, 4, 5 and \d+ more without an"):
                index.search(TOPICS, BM25())


def test_a_run_is_whole_or_absent(
    server: Server, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "DELAYS", (0.01,))
    with Proxy(server.url) as proxy:
        index = server.address().index
        options = ["--engine", proxy.url, "--engine-index", index]
        assert command("index", "--collection", "sample", *options).code == 0
        output = tmp_path / "sample.run"
        search = ["--topics", "sample", *options, "--reranker", "none", "--output", output]
        assert command("search", *search, "--show", "none").code == 0
        whole = output.read_bytes()
        output.unlink()
        # Whether or not it can be read here, only an answer with hits is so long.
        proxy.broken = lambda size, part: b"" if size + len(part) > 8_000 else part
        failed = command("search", *search)
        assert failed.code == 1
        assert "no answer" in failed.err
        assert not output.exists()
        proxy.broken, proxy.refuses = lambda size, part: part, False
        assert command("search", *search).code == 0
        assert output.read_bytes() == whole


# --- users and certificates -----------------------------------------------------------------------


@pytest.fixture
def guarded(server: Server) -> Server:
    """A server that asks for a password."""
    if "TWEETRERANK_ENGINE_PASSWORD" not in server.credentials:
        pytest.skip("this server asks for no password")
    return server


def test_a_wrong_password(guarded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWEETRERANK_ENGINE_PASSWORD", "wrong")
    with pytest.raises(EngineError, match="does not accept the user and password") as error:
        Engine.connect(guarded.address())
    assert "wrong" not in str(error.value)


def test_an_unknown_authority(guarded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWEETRERANK_ENGINE_CA")
    with pytest.raises(EngineError, match=r"not from a known authority .*TWEETRERANK_ENGINE_CA"):
        Engine.connect(guarded.address())
    plain = EngineAddress(guarded.url.replace("https", "http"), "x")
    with pytest.raises(EngineError, match="https://"):
        Engine.connect(plain)


def test_an_index_that_becomes_read_only(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As engines make it when their disks are full."""
    address = server.address()
    engine, path = Engine.connect(address), f"/{address.index}/_settings"
    send, calls = building._Sender.send, [0]

    def block(self: Any, chunk: Any, report: Any) -> Any:
        calls[0] += 1
        if calls[0] == 5:
            engine.request("PUT", path, {"index.blocks.write": True})
        return send(self, chunk, report)

    monkeypatch.setattr(building._Sender, "send", block)
    with pytest.raises(CollectionError, match=r"the index cannot be written to .*free space"):
        build(address, POSTS, [], tmp_path / "kept", "again")
    monkeypatch.setattr(building._Sender, "send", send)
    engine.request("PUT", path, {"index.blocks.write": None})
    assert 0 < build(address, POSTS, [], tmp_path / "kept", "again").sent < len(POSTS)
    assert_complete(address, tmp_path)


# --- searches through the service -----------------------------------------------------------------


SEARCH = {"query": {"match": {"contents": QUERY}}, "size": 20}


@pytest.fixture(scope="module")
def articles(server: Server) -> str:
    """The address of an index that people have."""
    address = server.address()
    fill(server.engine(address))
    return f"{server.url}/{address.index}"


def fill(engine: Engine) -> None:
    """Put some posts into an index."""
    lines = [line for row in range(60) for line in ({"index": {"_id": str(row)}}, post(row))]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    engine.patiently("POST", f"/{engine.address.index}/_bulk", content, {"refresh": True})


@contextmanager
def in_front(server: Server, urls: str, **options: Any) -> Iterator[requests.Session]:
    """A client of the service in front of an engine; ``session.url`` is the service's address."""
    options.setdefault("defaults", SearchDefaults(seconds=60))
    ca = server.credentials.get("TWEETRERANK_ENGINE_CA")
    with listening(app_of(engine=urls, ca=ca, **options)) as url, requests.Session() as session:
        user = server.credentials.get("TWEETRERANK_ENGINE_USER")
        if user:
            session.auth = (user, server.credentials["TWEETRERANK_ENGINE_PASSWORD"])
        session.verify, session.trust_env = ca or True, False
        session.url = url  # type: ignore[attr-defined]
        yield session


def searched(session: requests.Session, index: str, **options: Any) -> requests.Response:
    url = session.url  # type: ignore[attr-defined]
    return session.post(f"{url}/{index}/_search", json=SEARCH, timeout=60, **options)


def hits_of(answer: requests.Response) -> list[tuple[str, float]]:
    """Ids and scores; scores are the same to five digits, whatever is scored beside them."""
    return [(hit["_id"], round(hit["_score"], 5)) for hit in answer.json()["hits"]["hits"]]


def test_an_engine_that_is_lost_behind_the_service(server: Server, articles: str) -> None:
    """A cut answer is asked for again; an engine that is away is named; it may come back."""
    index = articles.rpartition("/")[2]
    with Proxy(server.url) as way, in_front(server, way.url) as session:
        expected = hits_of(searched(session, index))
        assert expected
        way.broken = cuts = Cuts(0.1 if server.url.startswith("http:") else 0.03)
        found = []
        while cuts.count < 3:
            found.append(searched(session, index))
        assert {answer.status_code for answer in found} <= {200, 502}
        good = [answer for answer in found if answer.ok]
        assert len(good) >= len(found) - 1
        assert all(hits_of(answer) == expected for answer in good)
        way.refuses = True
        way.cut()
        away = searched(session, index)
        assert (away.status_code, away.json()["error"]["type"]) == (502, "proxy_exception")
        way.broken, way.refuses = lambda size, part: part, False
        back = searched(session, index)
        assert (hits_of(back), back.headers["x-reranked"]) == (expected, "true")

        def slow(size: int, part: bytes) -> bytes:
            time.sleep(1)
            return part

        way.broken = slow
        late = searched(session, index, headers={"x-request-timeout-ms": "300"})
        assert (late.status_code, late.json()["error"]["type"]) == (504, "proxy_exception")


def test_a_node_that_is_lost_behind_the_service(server: Server, articles: str) -> None:
    """Many searches find it out at once, and all are answered by the other node."""
    index = articles.rpartition("/")[2]
    with (
        Proxy(server.url) as first,
        Proxy(server.url) as second,
        in_front(server, f"{first.url},{second.url}") as session,
        ThreadPoolExecutor(8) as pool,
    ):
        expected = hits_of(searched(session, index))
        for lost, other in ((first, second), (second, first)):
            other.refuses = False
            lost.refuses = True
            lost.cut()
            answers = list(pool.map(lambda _: searched(session, index), range(24)))
            assert {answer.status_code for answer in answers} == {200}
            assert all(hits_of(answer) == expected for answer in answers)


@pytest.mark.parametrize("problem", ["late", "broken"])
def test_scores_that_do_not_come(server: Server, articles: str, problem: str) -> None:
    """The engine's own ranking goes out, marked."""
    index, scorer = articles.rpartition("/")[2], GatedScorer()
    if problem == "broken":
        scorer.score = lambda pairs: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    options = {"models": scored_by(scorer), "defaults": SearchDefaults(seconds=0.2)}
    with in_front(server, server.url, **options) as session:
        plain = session.post(f"{articles}/_search", json=SEARCH, timeout=60).json()
        answer = searched(session, index)
        scorer.gate.set()
        found = answer.json()
        assert (answer.status_code, answer.headers["x-reranked"]) == (200, "false")
        assert found.pop("_reranked") is False
        for one in (found, plain):
            one.pop("took")
        assert found == plain


# --- a node that dies -----------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Three nodes, by the program that TWEETRERANK_SERVER_PROGRAM names.

    Gives their addresses, and functions that kill a node and that bring dead ones back.
    """
    program = os.environ.get("TWEETRERANK_SERVER_PROGRAM")
    if not program:
        pytest.skip("no program that starts servers (set TWEETRERANK_SERVER_PROGRAM)")
    port = random.Random().randrange(20_000, 30_000)
    name = "opensearch-3.6.0"

    def run(*words: str) -> None:
        # Not the Java of this environment, which lacks what the engine needs.
        path = os.pathsep.join(p for p in ("/usr/local/bin", "/usr/bin", "/bin"))
        environment = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"} | {"PATH": path}
        done = subprocess.run([program, *words], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def start() -> None:
        run("start", name, str(port), "--nodes", "3", "--heap", "256m")

    assert shutil.which(program)
    try:
        start()
        urls = ",".join(f"http://127.0.0.1:{port + n}" for n in range(3))
        yield urls, lambda node: run("kill", name, str(port), "--node", str(node)), start
    finally:
        run("wipe", name, str(port))


@pytest.mark.cluster
@pytest.mark.slow
def test_a_node_dies(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While posts are sent, and while topics are searched: nothing is lost."""
    monkeypatch.setattr(client, "DELAYS", (0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0))
    urls, kill, _ = cluster
    address = EngineAddress(urls, "things")
    posts = random_posts(20_000, seed=7)
    engine = Engine.connect(address)
    engine.patiently("GET", "/_cluster/health", params={"wait_for_nodes": 3, "timeout": "60s"})
    sends = [0]
    send = building._Sender.send

    def counted(self: Any, chunk: Any, report: Any) -> Any:
        sends[0] += 1
        if sends[0] == 20:
            primary = engine.request("GET", "/_cat/shards/things", params={"format": "json"})
            node = next(one["node"] for one in primary if one["prirep"] == "p")
            threading.Thread(target=kill, args=(node.removeprefix("n"),)).start()
        return send(self, chunk, report)

    monkeypatch.setattr(building._Sender, "send", counted)
    done = build(address, posts, [], tmp_path / "kept", "again")
    assert sends[0] > 30
    assert done.sent == len(posts)
    with open_index(address, tmp_path / "other") as index:
        assert sorted(index.posts) == sorted(posts)
        expected = index.search(TOPICS, BM25())
        shards = engine.patiently("GET", "/_cat/shards/things", params={"format": "json"})
        engine.patiently(
            "GET", "/_cluster/health/things", params={"wait_for_status": "green", "timeout": "60s"}
        )
        node = next(one["node"] for one in shards if one["prirep"] == "p")
        killed = threading.Thread(target=kill, args=(node.removeprefix("n"),))
        killed.start()
        # Of three nodes two are gone: without a majority searches still find what is left, or say
        # which topics they did not find.
        try:
            for _ in range(20):
                assert index.search(TOPICS, BM25()) == expected
        except EngineError as error:
            assert "without an answer" in str(error)
        killed.join()


@pytest.mark.cluster
@pytest.mark.slow
def test_a_node_dies_behind_the_service(cluster: Any) -> None:
    """Searches through the service go on: each is answered, and nearly all as before."""
    urls, kill, start = cluster
    address = EngineAddress(urls, "articles")
    engine = Engine.connect(address)
    engine.patiently("GET", "/_cluster/health", params={"wait_for_nodes": 3, "timeout": "60s"})
    engine.patiently("PUT", "/articles", {"settings": {"number_of_replicas": 2}})
    fill(engine)
    healthy = {"wait_for_status": "green", "timeout": "60s"}
    with in_front(Server("opensearch3", urls, {}), urls) as session:
        # The second time by a node that was dead before.
        for node in ("0", "1"):
            engine.patiently("GET", "/_cluster/health/articles", params=healthy)
            expected = sorted(hits_of(searched(session, "articles")))
            threading.Thread(target=kill, args=(node,)).start()
            end, answers = time.monotonic() + 10, []
            while time.monotonic() < end:
                answers.append(searched(session, "articles"))
            assert {answer.status_code for answer in answers} <= {200, 502, 503, 504}
            good = [answer for answer in answers if answer.ok]
            assert len(good) > 0.9 * len(answers)
            assert all(sorted(hits_of(answer)) == expected for answer in good)
            assert answers[-1].ok
            start()
