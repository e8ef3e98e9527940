"""The rerank service over loopback, beside its scoring in-process."""

import http.client
import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks import Options, Row, candidates_of
from pipeline.errors import DataError
from rerankers import checkpoint as checkpoints
from rerankers.pairs import Pairs

MODEL = "window"  # The service's default
SINGLE = 40  # Measured requests of one client, of each size
CLIENTS, LOAD = 16, 100  # Clients at once, and documents of each of their requests
OVERLOAD = 64  # More clients than the service is made for
SECONDS, MINUTE = 10, 60
CACHE, KEPT = 1_000_000_000, 100  # Bytes, and requests whose posts all fit the cache

Times = dict[int, list[float]]  # Status -> milliseconds of responses


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


def requests(options: Options, documents: int) -> list[Request]:
    """Requests of distinct posts, as far as there are any, in random order: none is cached."""
    candidates = candidates_of(options)
    posts = [(post.text, post.url) for post in candidates.posts.values()]
    np.random.default_rng(1).shuffle(posts)
    topics, size = candidates.topics, min(documents, len(posts))
    parts = (posts[n * size : (n + 1) * size] for n in range(len(posts) // size))
    return [Request(topics[n % len(topics)].text, part) for n, part in enumerate(parts)]


def load(port: int, bodies: Sequence[bytes], clients: int, seconds: float) -> Times:
    """Times of several clients, each with a connection, for some seconds; one: each body once."""
    times: Times = defaultdict(list)
    end, left = time.perf_counter() + seconds, cycle(bodies) if clients > 1 else iter(bodies)

    def client(_: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for body in left:
            started = time.perf_counter()
            connection.request("POST", "/rerank", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            times[response.status].append(1000 * (time.perf_counter() - started))
            if clients > 1 and time.perf_counter() > end:
                break

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return dict(times)


@contextmanager
def serving() -> Iterator[tuple[int, int]]:
    """A service in a process of its own: its process and its port."""
    words = ["-m", "pipeline.serve", f"--checkpoint={MODEL}", "--port=0", f"--cache={CACHE}"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, *words], **pipes, text=True) as process:
        assert process.stdout
        _, address = process.stdout.readline(), process.stdout.readline().strip()
        if not address:
            raise DataError(f"the service did not start; try python {' '.join(words)}")
        try:
            yield process.pid, int(address.rpartition(":")[2])
        finally:
            process.kill()


def memory(pid: int) -> float:
    """MiB of a process and those below it, shared pages counted once."""
    folder = Path(f"/proc/{pid}")
    children = (folder / f"task/{pid}/children").read_text(encoding="ascii").split()
    (own,) = re.findall(r"\nPss: +(\d+) kB", (folder / "smaps_rollup").read_text(encoding="ascii"))
    return int(own) / 1024 + sum(memory(int(child)) for child in children)


def measure(options: Options) -> list[Row]:
    """Start, latency, throughput, overload and memory."""
    few, many = requests(options, LOAD)[:KEPT], requests(options, 1000)
    in_process, bodies = _in_process(few), [request.body() for request in few]
    started = time.perf_counter()
    # The clients' work must not be this process's.
    with serving() as (pid, port), ProcessPoolExecutor(1, get_context("spawn")) as pool:
        load(port, [b"{}"], 1, 0)
        rows = [("service, from its start to a response", f"{time.perf_counter() - started:.1f} s")]
        # A service in use knows common words.
        load(port, [request.body() for request in many[SINGLE : SINGLE + 4]], 1, 0)
        for title, some in (("100", few), ("1,000", many)):
            for kind in ("new posts", "posts of an earlier request"):
                times = load(port, [request.body() for request in some[:SINGLE]], 1, 0)
                rows.append((f"service, one request of {title}, {kind}: median", _spread(times)))
        rows.append(("scoring in-process, known posts", f"{in_process:,.0f} pairs/s"))
        for clients, seconds in ((CLIENTS, SECONDS), *[(OVERLOAD, MINUTE)] * options.minutes):
            times = pool.submit(load, port, bodies, clients, seconds).result()
            rate = len(times[200]) * LOAD / seconds
            text = f"{rate:,.0f} pairs/s, {rate / in_process:.0%} of in-process; {_spread(times)}"
            text += f"; memory {memory(pid):,.0f} MiB"
            rows.append((f"service, {clients} clients at once, {LOAD} posts each", text))
    return rows


def _spread(times: Times) -> str:
    ms, errors = times[200], sum(len(of) for status, of in times.items() if status != 200)
    text = f"{median(ms):.1f} ms (p95 {np.quantile(ms, 0.95):.1f}, p99 {np.quantile(ms, 0.99):.1f})"
    return text + f", {errors} errors" * bool(errors)


def _in_process(some: Sequence[Request]) -> float:
    """Pairs/s of the service's scorer on all cores, of known posts."""
    model = checkpoints.load(checkpoints.SHIPPED / MODEL / "all")
    scorer = model.remembering(CACHE)
    pairs = [request.pairs() for request in some]
    for _ in ("new", "known"):
        started = time.perf_counter()
        for of_request in pairs:
            scorer.score(of_request)
    return sum(map(len, pairs)) / (time.perf_counter() - started)
