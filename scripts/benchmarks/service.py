"""The rerank service over loopback, beside its scoring in-process."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from rerankers.scoring.cached import CachedScorer

from benchmarks.measuring import Row, printed, threads
from benchmarks.workload import Workload
from rerankers import checkpoint as checkpoints
from rerankers.checkpoint import SHIPPED
from rerankers.pairs import Pairs
from rerankers.reranker import TrainedReranker

SERVED = SHIPPED / "window" / "all"  # The service's default model
SINGLE = 40  # Measured requests of one client, of each size
CLIENTS, LOAD = 16, 100  # Clients at once, and documents of each of their requests
OVERLOAD = 4  # Times as many clients as the service is made for
BEFORE = 4
"""Requests of 1,000 other posts before the measured ones: a service in use knows common words."""
SECONDS, MINUTE = 10, 60
DISTURBED = 20  # Seconds from one process that is stopped, or killed, to the next
RESTARTS = 3
PROCESSES = 2, 4  # That score, where memory is measured
CACHE = 1_000_000_000
KEPT = 100  # Requests of distinct posts, all of which fit the cache, as those of popular queries do

_LOAD = Path(__file__).with_name("service_load.py")


class Request(NamedTuple):
    """A query and its posts as (text, URL)."""

    query: str
    posts: Sequence[tuple[str, str]]

    def body(self) -> bytes:
        """As TEI takes it, but with URLs."""
        texts = [{"text": text, "url": url} if url else text for text, url in self.posts]
        return json.dumps({"query": self.query, "texts": texts, "raw_scores": True}).encode()

    def pairs(self) -> Pairs:
        """For the scorer."""
        rows, texts = np.arange(len(self.posts)), [text for text, _ in self.posts]
        return Pairs([self.query], texts, [url for _, url in self.posts], rows * 0, rows)


class Running(NamedTuple):
    """A service: its process, its port, and the lines of its log until now."""

    process: subprocess.Popen[bytes]
    port: int
    log: list[bytes]

    def post(self, body: bytes, connection: http.client.HTTPConnection) -> Any:
        """The response's JSON; raises RuntimeError for an error."""
        connection.request("POST", "/rerank", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise RuntimeError(f"found the status {response.status}: {content[:200]!r}")
        return json.loads(content)

    def connection(self) -> http.client.HTTPConnection:
        """A new connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    @property
    def memory(self) -> int:
        """Bytes of the process and its children, shared pages counted once."""
        return sum(map(_memory, [self.process.pid, *_children(self.process.pid)]))


def measure(workload: Workload) -> list[Row]:
    """Latency, throughput, overload, memory and restart."""
    few, many = requests(workload, LOAD)[:KEPT], requests(workload, 1000)
    model = checkpoints.load(SERVED)
    in_process = _in_process(model, few)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, serving(SERVED) as service:
        _settle(service)
        connection = service.connection()
        for request in many[SINGLE : SINGLE + BEFORE]:
            service.post(request.body(), connection)
        connection.close()
        bodies = Path(folder) / "bodies"
        bodies.write_bytes(b"\n".join(request.body() for request in few))
        for title, some in (("100", few), ("1,000", many)):
            rows += printed(_single(service, title, some[:SINGLE]))
        loaded = load(service, bodies, CLIENTS, SECONDS)
        rows += printed(_throughput(loaded, in_process))
        rows += printed(_overload(service, bodies, workload.minutes))
    return rows + printed(_restart(few[0])) + printed(_start())


def requests(workload: Workload, documents: int) -> list[Request]:
    """Requests of distinct posts, as far as there are any, in random order: none is cached."""
    candidates = workload.candidates
    posts = [(post.text, post.url) for post in candidates.posts.values()]
    np.random.default_rng(1).shuffle(posts)
    documents = min(documents, len(posts))
    topics, count = candidates.topics, len(posts) // documents
    return [
        Request(topics[n % len(topics)].text, posts[n * documents : (n + 1) * documents])
        for n in range(count)
    ]


@contextmanager
def serving(
    checkpoint: Path | str, port: int = 0, options: Sequence[str] = ()
) -> Iterator[Running]:
    """A service of a checkpoint, in a process of its own."""
    command = [sys.executable, "-m", "pipeline.serve", "--checkpoint", str(checkpoint)]
    command += ["--port", str(port), "--cache", str(CACHE), *options]
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
            address = json.loads(line)["message"]
            yield Running(process, int(address.rpartition(":")[2]), lines)
        finally:
            process.kill()
            process.wait()
            drain.shutdown()


def load(service: Running, bodies: Path, clients: int, seconds: float) -> Any:
    """The output of ``service_load.py``."""
    command = [sys.executable, str(_LOAD), str(service.port), str(bodies)]
    done = subprocess.run([*command, str(clients), str(seconds)], capture_output=True, check=True)
    return json.loads(done.stdout)


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    children = list(map(int, listed))
    return [*children, *(below for child in children for below in _children(child))]


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


def _single(service: Running, title: str, some: Sequence[Request]) -> list[Row]:
    """Milliseconds of one client's requests: of new posts, and of the same again."""
    bodies, connection, rows = [request.body() for request in some], service.connection(), []
    for kind in ("new posts", "posts of an earlier request"):
        seconds = []
        for body in bodies:
            started = time.perf_counter()
            service.post(body, connection)
            seconds.append(time.perf_counter() - started)
        text = f"{1000 * median(seconds):.1f} ms (p95 {1000 * np.quantile(seconds, 0.95):.1f})"
        rows.append((f"service, one request of {title}, {kind}: median", text))
    connection.close()
    return rows


def _in_process(model: TrainedReranker, some: Sequence[Request]) -> dict[str, float]:
    """Pairs/s of the service's scorer on all cores: of new posts, then of known ones."""
    scorer = CachedScorer(model.model, model.encoder, CACHE)
    pairs = [request.pairs() for request in some]
    rates = {}
    scorer.score(pairs[0])
    with threads(len(os.sched_getaffinity(0))):
        for kind in ("new posts", "known posts"):
            started = time.perf_counter()
            for of_request in pairs[1:]:
                scorer.score(of_request)
            rates[kind] = sum(map(len, pairs[1:])) / (time.perf_counter() - started)
    return rates


def _throughput(loaded: Any, in_process: dict[str, float]) -> list[Row]:
    times = dict(loaded["milliseconds"])
    milliseconds = times.pop("200")
    rate, middle = loaded["documents"] / loaded["seconds"], median(milliseconds)
    worst = float(np.quantile(milliseconds, 0.99))
    rates = ", ".join(f"{value:,.0f} with {kind}" for kind, value in in_process.items())
    return [
        ("scoring in-process, pairs/s", rates),
        (
            f"service, {CLIENTS} clients at once, {LOAD} posts each",
            f"{rate:,.0f} pairs/s, {rate / in_process['known posts']:.0%} of in-process; median "
            f"{middle:.1f} ms, p99 {worst:.1f} ms ({worst / middle:.1f} ×), "
            f"{sum(map(len, times.values()))} errors",
        ),
    ]


def _overload(service: Running, bodies: Path, minutes: int) -> list[Row]:
    """More clients than the service is made for, while processes that score are stopped."""
    statuses, memory, wrong, ended = Counter[str](), [], 0, threading.Event()
    with ThreadPoolExecutor(1) as pool:
        disturbing = pool.submit(_disturb, service, ended)
        for _ in range(minutes):
            loaded = load(service, bodies, OVERLOAD * CLIENTS, MINUTE)
            statuses.update({code: len(times) for code, times in loaded["milliseconds"].items()})
            memory.append(service.memory)
            wrong += loaded["wrong"]
        ended.set()
    text = ", ".join(f"{count:,} answers {status}" for status, count in sorted(statuses.items()))
    what = f"{OVERLOAD * CLIENTS} clients for {minutes} minutes"
    done = f"{disturbing.result()} times a process stopped or killed"
    rows = [(f"service, {what}, {done}", f"{text}, {wrong} of them wrong")]
    if minutes > 2:
        growth = memory[-1] / memory[1]
        text = f"{memory[-1] / 2**20:,.0f} MiB, {growth:.3f} times that of the second minute"
        rows.append(("service, memory of the last minute", text))
    return rows


def _disturb(service: Running, ended: threading.Event) -> int:
    """Stop or kill a process that scores, in turn, until the end; how often."""
    times = 0
    while not ended.wait(DISTURBED):
        # The last two score: those that they are forked from came first. One is killed while the
        # other, stopped before, is waited for.
        number, kind = ((-1, signal.SIGSTOP), (-2, signal.SIGKILL))[times % 2]
        os.kill(_children(service.process.pid)[number], kind)
        times += 1
    return times


def _start() -> list[Row]:
    """Seconds until the default service is ready, and its memory by processes that score."""
    (few, many), seconds, memory = PROCESSES, [], {}
    for processes in [few] * RESTARTS + [many]:
        started = time.perf_counter()
        with serving("window", options=("--threads", str(processes))) as service:
            connection = service.connection()
            connection.request("GET", "/ready")
            connection.getresponse().read()
            seconds.append(time.perf_counter() - started)
            _settle(service)
            memory[processes] = service.memory / 2**20
    more = (memory[many] - memory[few]) / (many - few)
    text = f"{memory[few]:,.0f} MiB, {more:,.0f} MiB for each further one"
    return [
        ("service of window, from its start until it is ready", f"{median(seconds):.1f} s"),
        (f"service of window, memory with {few} processes that score", text),
    ]


def _restart(request: Request) -> list[Row]:
    """Seconds from the start of a service, after a kill during a request, to its next scores."""
    seconds = []
    for _ in range(RESTARTS):
        with serving(SERVED) as service:
            connection = service.connection()
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/rerank", request.body(), headers)
            os.kill(service.process.pid, signal.SIGKILL)
        started = time.perf_counter()
        with serving(SERVED, service.port) as again:
            again.post(request.body(), again.connection())
            seconds.append(time.perf_counter() - started)
    return [("service, from its start to the first scores", f"{median(seconds):.1f} s")]
