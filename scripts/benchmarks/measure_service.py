"""Measures the latency, load and overload of the rerank service."""

import http.client
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

import numpy as np

from benchmarks import Options, workload
from benchmarks.workload import Row, requests, served_model
from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.service.rerank_service import pairs_of
from tweetrerank.pipeline.service.score_request import read_request

CACHED_REQUESTS = 100  # So few requests that all of their posts fit into the cache
CLIENTS = 16  # Clients at the same time
OVERLOAD = 64  # Clients at the same time, more than the service is made for
SECONDS = 10
MINUTE = 60

JSON_HEADERS = {"Content-Type": "application/json"}

Times = dict[int, list[float]]  # Milliseconds of the responses, by status


def measure(options: Options) -> Iterator[Row]:
    """Yield the start, latency, throughput, overload and memory of the service."""
    single, load = workload.SINGLE, workload.LOAD
    small = requests(options, load)[:CACHED_REQUESTS]
    large = requests(options, 1000)
    in_process = in_process_rate(small)
    started = time.perf_counter()
    # Clients run in another process, as the work of this one would delay them.
    with serving() as (pid, port), ProcessPoolExecutor(1, get_context("spawn")) as pool:
        send(port, [b"{}"], 1, 0)
        start = time.perf_counter() - started
        yield "service, from its start to a response", f"{start:.1f} s"
        # These requests fill the cache with common words, as in a service in use.
        send(port, large[single : single + 4], 1, 0)
        yield from single_requests(port, "100", small[:single])
        yield from single_requests(port, "1,000", large[:single])
        yield "scoring in-process, known posts", f"{in_process:,.0f} pairs/s"
        rounds = [(CLIENTS, SECONDS)] + [(OVERLOAD, MINUTE)] * options.minutes
        for clients, seconds in rounds:
            times = pool.submit(
                send,
                port,
                small,
                clients,
                seconds,
            ).result()
            rate = len(times[200]) * load / seconds
            figure = (
                f"{rate:,.0f} pairs/s, {rate / in_process:.0%} of in-process; "
                f"{latency(times)}; memory {memory(pid):,.0f} MiB"
            )
            yield f"service, {clients} clients at once, {load} posts each", figure


def single_requests(
    port: int,
    size: str,
    bodies: Sequence[bytes],
) -> Iterator[Row]:
    """Yield the latency of one client's requests, and then of the same ones again."""
    for posts in ("new posts", "posts of an earlier request"):
        times = send(port, bodies, 1, 0)
        yield f"service, one request of {size}, {posts}: median", latency(times)


def send(
    port: int,
    bodies: Sequence[bytes],
    clients: int,
    seconds: float,
) -> Times:
    """Send requests, and return the times of the responses in milliseconds.

    Each client has one connection. Several clients repeat the bodies for ``seconds``;
    a single client sends each body once.
    """
    times: Times = defaultdict(list)
    repeats = clients > 1
    queue = cycle(bodies) if repeats else iter(bodies)
    end = time.perf_counter() + seconds

    def client(_: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for body in queue:
            started = time.perf_counter()
            connection.request("POST", "/rerank", body, JSON_HEADERS)
            response = connection.getresponse()
            response.read()
            times[response.status].append(1000 * (time.perf_counter() - started))
            if repeats and time.perf_counter() > end:
                break

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return dict(times)


@contextmanager
def serving() -> Iterator[tuple[int, int]]:
    """Run a service in another process, and yield its process id and its port.

    Raises DataError if the service does not start.
    """
    arguments = ["-m", "pipeline.serve", f"--checkpoint={workload.MODEL}"]
    arguments += ["--port=0", f"--cache={workload.CACHE}"]
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout
        process.stdout.readline()
        address = process.stdout.readline().strip()
        if not address:
            command = " ".join(arguments)
            raise DataError(f"the service did not start; try python {command}")
        try:
            yield process.pid, int(address.rpartition(":")[2])
        finally:
            process.kill()


def memory(pid: int) -> float:
    """Return the memory in MiB of a process and its descendants.

    Memory that they share counts once.
    """
    folder = Path(f"/proc/{pid}")
    children = (folder / f"task/{pid}/children").read_text(encoding="ascii").split()
    rollup = (folder / "smaps_rollup").read_text(encoding="ascii")
    (kilobytes,) = re.findall(r"\nPss: +(\d+) kB", rollup)
    return int(kilobytes) / 1024 + sum(memory(int(child)) for child in children)


def latency(times: Times) -> str:
    """Describe the times of responses.

    The text has the median and two high quantiles of the successful responses, and the
    number of errors if there are any.
    """
    milliseconds = times[200]
    p95 = np.quantile(milliseconds, 0.95)
    p99 = np.quantile(milliseconds, 0.99)
    text = f"{median(milliseconds):.1f} ms (p95 {p95:.1f}, p99 {p99:.1f})"
    errors = sum(len(values) for status, values in times.items() if status != 200)
    return f"{text}, {errors} errors" if errors else text


def in_process_rate(bodies: Sequence[bytes]) -> float:
    """Return how many pairs of known posts per second are scored in this process.

    The service's trees score on all cores, without any HTTP.
    """
    model, trees = served_model()
    pairs = []
    for body in bodies:
        of_request, _ = pairs_of(
            read_request(body, workload.LOAD),
            model,
            in_order=True,
        )
        pairs.append(of_request)
    for _ in ("new", "known"):
        started = time.perf_counter()
        for of_request in pairs:
            trees.score(of_request)
    return sum(map(len, pairs)) / (time.perf_counter() - started)
