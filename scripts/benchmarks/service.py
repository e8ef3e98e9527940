"""Part 10: the rerank service over loopback, against its engine in-process and a cross-encoder."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measuring import Row, printed, threads
from benchmarks.workload import Workload
from rerankers import checkpoint as checkpoints
from rerankers.base import Pairs
from rerankers.checkpoint import SHIPPED
from rerankers.reranker import TrainedReranker
from rerankers.scoring.cached import CachedScorer

SERVED = SHIPPED / "mp_hcnn" / "all"
"""What a service serves if it is told nothing else."""

SINGLE = 40
"""Requests of one client that are measured, of each size."""
CLIENTS, LOAD = 16, 100
"""Clients at once, and documents of each of their requests."""
OVERLOAD = 4
"""Times as many clients as the service is made for."""
BEFORE = 4
"""Requests of 1,000 other posts that come before what is measured."""
SECONDS, MINUTE = 10, 60
RESTARTS = 3
CROSS_ENCODED = 400
CACHE = 3_000_000_000
KEPT = 100
"""Requests of distinct posts, all of which fit the cache, as those of popular queries do."""

_LOAD = Path(__file__).with_name("service_load.py")


class Ask(NamedTuple):
    """A query and its posts as (text, URL)."""

    query: str
    posts: Sequence[tuple[str, str]]

    def body(self) -> bytes:
        """As TEI takes it, but with URLs."""
        texts = [{"text": text, "url": url} if url else text for text, url in self.posts]
        return json.dumps({"query": self.query, "texts": texts, "raw_scores": True}).encode()

    def pairs(self) -> Pairs:
        """For the engine."""
        rows, texts = np.arange(len(self.posts)), [text for text, _ in self.posts]
        return Pairs([self.query], texts, [url for _, url in self.posts], rows * 0, rows)


class Running(NamedTuple):
    """A service: its process, its port, and the lines of its log until now."""

    process: subprocess.Popen[bytes]
    port: int
    log: list[bytes]

    def ask(self, body: bytes, connection: http.client.HTTPConnection) -> Any:
        """The answer to one request."""
        connection.request("POST", "/rerank", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"found the status {answer.status}: {content[:200]!r}")
        return json.loads(content)

    def connection(self) -> http.client.HTTPConnection:
        """A new connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    @property
    def memory(self) -> int:
        """Bytes of the process and of those that it has started; what they share counts once."""
        return sum(map(_memory, [self.process.pid, *_children(self.process.pid)]))


def measure(workload: Workload) -> list[Row]:
    """Latency, throughput, overload, memory and restart of the service."""
    few, many = asks(workload, LOAD)[:KEPT], asks(workload, 1000)
    rows: list[Row] = []
    model = checkpoints.load(SERVED)
    in_process = _in_process(model, few)
    with tempfile.TemporaryDirectory() as folder, serving(SERVED) as service:
        _settle(service)
        _warm_up(service, many[SINGLE : SINGLE + BEFORE])
        bodies = Path(folder) / "bodies"
        bodies.write_bytes(b"\n".join(ask.body() for ask in few))
        for title, some in (("100", few), ("1,000", many)):
            rows += printed(_single(service, title, some[:SINGLE]))
        loaded = load(service, bodies, CLIENTS, SECONDS)
        rows += printed(_throughput(loaded, in_process))
        rate = loaded["documents"] / loaded["seconds"]
        rows += printed(_cross_encoder(few, rate, Path(folder)))
        rows += printed(_overload(service, bodies, workload.minutes))
        rows += printed(_equality(service, model, few))
    return rows + printed(_restart(few[0]))


def asks(workload: Workload, documents: int) -> list[Ask]:
    """Requests of distinct posts, as far as there are any, in random order: none is cached."""
    candidates = workload.candidates
    posts = [(post.text, post.url) for post in candidates.posts.values()]
    np.random.default_rng(1).shuffle(posts)
    documents = min(documents, len(posts))
    topics, count = candidates.topics, len(posts) // documents
    return [
        Ask(topics[n % len(topics)].text, posts[n * documents : (n + 1) * documents])
        for n in range(count)
    ]


@contextmanager
def serving(
    checkpoint: Path | str, port: int = 0, cache: int | None = None, options: Sequence[str] = ()
) -> Iterator[Running]:
    """A service of a checkpoint, in a process of its own."""
    command = [sys.executable, "-m", "pipeline.serve", "--checkpoint", str(checkpoint)]
    command += ["--port", str(port), "--cache", str(cache or CACHE), *options]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=log)
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        if "serving" not in line:
            raise RuntimeError(f"the service did not start: {line}{process.stderr.read().decode()}")
        # Its log must be read, or the service waits.
        drain, lines = ThreadPoolExecutor(1), list[bytes]()
        drain.submit(lines.extend, process.stderr)
        try:
            yield Running(process, int(line.rpartition(":")[2]), lines)
        finally:
            process.kill()
            process.wait()
            drain.shutdown()


def load(service: Running, bodies: Path, clients: int, seconds: float) -> Any:
    """What the clients of ``service_load.py`` found."""
    command = [sys.executable, str(_LOAD), str(service.port), str(bodies)]
    done = subprocess.run([*command, str(clients), str(seconds)], capture_output=True, check=True)
    return json.loads(done.stdout)


def _children(pid: int) -> list[int]:
    """The processes that a process, or one of these, has started."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    found = list(map(int, listed))
    return [*found, *(one for child in found for one in _children(child))]


def _memory(pid: int) -> int:
    """Proportional set size of a process, in bytes."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    (kilobytes,) = re.findall(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)
    return 1024 * int(kilobytes)


def _settle(service: Running) -> None:
    """Wait until the service has taken the memory of its cache, at its start."""
    before, now = 0, service.memory
    while now > before:
        time.sleep(1)
        before, now = now, service.memory


def _warm_up(service: Running, some: Sequence[Ask]) -> None:
    """Let the service read other posts: one that has been up for a while knows common words."""
    connection = service.connection()
    for ask in some:
        service.ask(ask.body(), connection)
    connection.close()


def _single(service: Running, title: str, some: Sequence[Ask]) -> list[Row]:
    """Milliseconds of one client's requests: of new posts, and of the same again."""
    bodies, connection, rows = [ask.body() for ask in some], service.connection(), []
    for kind in ("new posts", "posts of an earlier request"):
        seconds = []
        for body in bodies:
            started = time.perf_counter()
            service.ask(body, connection)
            seconds.append(time.perf_counter() - started)
        found = f"{1000 * median(seconds):.1f} ms (p95 {1000 * np.quantile(seconds, 0.95):.1f})"
        rows.append((f"service, one request of {title}, {kind}: median", found))
    connection.close()
    return rows


def _in_process(model: TrainedReranker, some: Sequence[Ask]) -> dict[str, float]:
    """Pairs/s of the engine on all cores: of new posts, then of known ones."""
    scorer, pairs = CachedScorer(model.model, model.encoder, CACHE), [ask.pairs() for ask in some]
    rates = {}
    scorer.score(pairs[0])
    with threads(len(os.sched_getaffinity(0))):
        for kind in ("new posts", "known posts"):
            started = time.perf_counter()
            for some_pairs in pairs[1:]:
                scorer.score(some_pairs)
            rates[kind] = sum(map(len, pairs[1:])) / (time.perf_counter() - started)
    return rates


def _throughput(loaded: Any, in_process: dict[str, float]) -> list[Row]:
    milliseconds = loaded["milliseconds"]["200"]
    rate, middle = loaded["documents"] / loaded["seconds"], median(milliseconds)
    worst = float(np.quantile(milliseconds, 0.99))
    errors = sum(len(found) for status, found in loaded["milliseconds"].items() if status != "200")
    engine = ", ".join(f"{value:,.0f} with {kind}" for kind, value in in_process.items())
    return [
        ("engine in-process, pairs/s", engine),
        (
            f"service, {CLIENTS} clients at once, {LOAD} posts each",
            f"{rate:,.0f} pairs/s, {rate / in_process['known posts']:.0%} of the engine's; median "
            f"{middle:.1f} ms, p99 {worst:.1f} ms ({worst / middle:.1f} ×), {errors} errors",
        ),
    ]


def _cross_encoder(some: Sequence[Ask], rate: float, folder: Path) -> list[Row]:
    """Pairs/s of a cross-encoder, in single precision and in eight bits, on all cores."""
    from benchmarks.cross_encoder import CrossEncoder

    pairs = [
        (ask.query, f"{text} {url}".strip())
        for ask in some[: -(-CROSS_ENCODED // LOAD)]
        for text, url in ask.posts
    ]
    rows = []
    for title, is_quantized in (("in single precision", False), ("in eight bits", True)):
        model = CrossEncoder(len(os.sched_getaffinity(0)), folder, is_quantized)
        model.score(pairs[:50])
        started = time.perf_counter()
        model.score(pairs)
        other = len(pairs) / (time.perf_counter() - started)
        found = f"{other:,.0f} pairs/s; the service {rate / other:.0f} times as many"
        rows.append((f"cross-encoder of MiniLM-L6's size {title}", found))
    return rows


def _overload(service: Running, bodies: Path, minutes: int) -> list[Row]:
    """More clients than the service is made for, minute after minute."""
    statuses: dict[str, int] = {}
    memory = []
    for _ in range(minutes):
        loaded = load(service, bodies, OVERLOAD * CLIENTS, MINUTE)
        for status, found in loaded["milliseconds"].items():
            statuses[status] = statuses.get(status, 0) + len(found)
        memory.append(service.memory)
    found = ", ".join(f"{count:,} answers {status}" for status, count in sorted(statuses.items()))
    rows = [(f"service, {OVERLOAD * CLIENTS} clients for {minutes} minutes", found)]
    if minutes > 2:
        growth = memory[-1] / memory[1]
        found = f"{memory[-1] / 2**20:,.0f} MiB, {growth:.3f} times that of the second minute"
        rows.append(("service, memory of the last minute", found))
    return rows


def _equality(service: Running, model: TrainedReranker, some: Sequence[Ask]) -> list[Row]:
    """Largest difference between scores over HTTP and of ``predict``, with many clients at once."""

    def difference(ask: Ask) -> float:
        connection = service.connection()
        answer = service.ask(ask.body(), connection)
        connection.close()
        scores = np.zeros(len(ask.posts))
        for one in answer:
            scores[one["index"]] = one["score"]
        expected = model.predict([(ask.query, post) for post in ask.posts])
        return float(np.abs(scores - expected).max())

    with ThreadPoolExecutor(CLIENTS) as pool:
        largest = max(pool.map(difference, some[: 4 * CLIENTS]))
    what = f"service, {CLIENTS} clients: largest difference from `predict`"
    return [(what, f"{largest:.1e}")]


def _restart(ask: Ask) -> list[Row]:
    """Seconds from the start of a service that was killed during a request to its next answer."""
    seconds = []
    for _ in range(RESTARTS):
        with serving(SERVED) as service:
            connection = service.connection()
            connection.request("POST", "/rerank", ask.body(), {"Content-Type": "application/json"})
            os.kill(service.process.pid, signal.SIGKILL)
        started = time.perf_counter()
        with serving(SERVED, service.port) as again:
            again.ask(ask.body(), again.connection())
            seconds.append(time.perf_counter() - started)
    return [("service, from its start to the first scores", f"{median(seconds):.1f} s")]
