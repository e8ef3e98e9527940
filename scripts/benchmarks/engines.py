"""A search engine as first stage, and behind the proxy."""

from __future__ import annotations

import dataclasses
import http.client
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from benchmarks.measuring import Row, alternate, printed
from benchmarks.search import SEARCH, measured
from benchmarks.service import Running, serving
from benchmarks.workload import Workload
from indexes.engines import building, dsl
from indexes.engines.client import Engine, EngineError
from indexes.engines.index import OwnIndex, describe
from indexes.engines.layout import CUT_HERE, NUMBER, Layout, cut_words
from indexes.methods import QueryLikelihood
from pipeline.collections import named
from pipeline.collections.collection import SearchedCollection, engine_directory
from pipeline.collections.topics import Topic

NAME = "tweetrerank-benchmark"  # Of the index
HITS, SEARCHES, CLIENTS = 100, 200, 8  # Posts of a search; searches by one client, and by several
DEEP = 1000  # Posts of a topic in a run


def measure(workload: Workload) -> list[Row]:
    """Filling an index, searching all topics, and single searches."""
    source = named.find(workload.collection, workload.data)
    if not workload.engine or not isinstance(source, SearchedCollection):
        print("found no --engine URL or no collection of posts, so nothing is measured")
        return []
    collection = named.on_engine(source, {"url": workload.engine, "index": NAME})
    assert collection.engine is not None
    engine = Engine.connect(collection.engine)
    try:
        rows = printed(_filling(workload, collection, engine))
        rows += printed(_topics(workload, engine))
        return rows + printed(_searches(workload, engine))
    finally:
        _delete(engine)
        shutil.rmtree(engine_directory(collection.engine), ignore_errors=True)


def _delete(engine: Engine) -> None:
    try:
        engine.request("DELETE", f"/{NAME}")
    except EngineError as error:
        if error.status != 404:
            raise


def _layout(engine: Engine) -> Layout:
    return Layout.read(engine.address, describe(engine))


def _filling(workload: Workload, collection: SearchedCollection, engine: Engine) -> list[Row]:
    """Posts/s of ``pipeline.index``, and of a loop that sends the same bodies."""

    def filled() -> None:
        _delete(engine)
        collection.build_engine_index()

    filled()
    layout, posts = _layout(engine), list(collection.posts())
    chunks = building._chunks(building._lines(layout, posts))
    bodies = [b"".join(line.content for line in chunk) for chunk in chunks]

    def sent() -> None:
        _delete(engine)
        engine.request("PUT", f"/{NAME}", layout.body())
        for body in bodies:
            engine.request("POST", f"/{NAME}/_bulk", body)

    timings = alternate({"plain": sent, "ours": filled}, max(3, workload.rounds))
    plain, ours = timings["plain"], timings["ours"]
    text = f"{len(posts) / ours.median:,.0f} posts/s, {ours.ratio(plain):.0%} of the next row's"
    return [
        (f"filling an engine's index with {len(posts):,} posts", text),
        ("the same bodies, ready-made, in a loop", f"{len(posts) / plain.median:,.0f} posts/s"),
    ]


def _topics(workload: Workload, engine: Engine) -> list[Row]:
    """The searches of all topics against the engine's own time, and whole processes."""
    took: list[float] = []

    def send(method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Any:
        path = path.replace("path=", "path=responses.took%2C", 1)
        response = engine.send(method, path, body, headers)
        took.extend(search["took"] for search in response.content.get("responses", ()))
        return response

    topics, ratios, seconds = workload.source.topics, [], []
    timed = dataclasses.replace(engine, send=send)
    with OwnIndex(timed, _layout(engine), engine_directory(engine.address), None) as index:
        for _ in range(1 + max(5, workload.rounds)):
            took.clear()
            started = time.perf_counter()
            index.search(topics, QueryLikelihood(), DEEP, threads=2)
            seconds.append(time.perf_counter() - started)
            ratios.append(1000 * seconds[-1] / sum(took))
    text = f"{median(seconds[1:]):.2f} s, {median(ratios[1:]):.2f} times the searches' `took`"
    with tempfile.TemporaryDirectory() as folder:
        search = [*SEARCH, *_arguments(workload), "--reranker=none", f"--output={folder}/run"]
        ways = {"local": search, "engine": [*search, *_place(workload)]}
        for command in ways.values():
            measured(command)
        timings = alternate(
            {name: partial(measured, command) for name, command in ways.items()}, workload.rounds
        )
    local, remote = timings["local"].median, timings["engine"].median
    return [
        (f"{len(topics)} topics × {DEEP:,} posts from the engine, 2 at a time", text),
        ("from topics to a run file", f"{remote:.1f} s; with the local index {local:.1f} s"),
    ]


def _arguments(workload: Workload) -> list[str]:
    words = [f"--topics={workload.collection}", "--show=none", "--device=cpu", "--method=ql"]
    return words + ([f"--data={workload.data}"] if workload.data else [])


def _place(workload: Workload) -> list[str]:
    return [f"--engine={workload.engine}", f"--engine-index={NAME}"]


# --- single searches ------------------------------------------------------------------------------


class Server:
    """Posts JSON to an address; each thread keeps a connection."""

    def __init__(self, url: str) -> None:
        self._place, self._own = urlsplit(url).netloc, threading.local()

    def search(self, body: Any) -> bytes:
        """The response to a search of the index; raises RuntimeError for an error."""
        if not hasattr(self._own, "connection"):
            self._own.connection = http.client.HTTPConnection(self._place, timeout=60)
        connection: http.client.HTTPConnection = self._own.connection
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/{NAME}/_search", json.dumps(body), headers)
        response = connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise RuntimeError(f"found the status {response.status}: {content[:300]!r}")
        return content


class Timed(NamedTuple):
    """Milliseconds of searches by one client and by several, and the service's log of the first."""

    single: Sequence[float]
    several: Sequence[float]
    log: Sequence[Mapping[str, Any]]


def _searches(workload: Workload, engine: Engine) -> list[Row]:
    """Milliseconds of searches in the engine, and of reranked ones through the proxy."""
    bodies = _bodies(workload.source.topics, _layout(engine))
    url = str(workload.engine)
    options = [f"--engine={url}", f"--engine-index={NAME}", f"--statistics={url}/{NAME}"]
    with serving(workload.directory, options=options) as service:
        front = Server(f"http://127.0.0.1:{service.port}")
        alone, ours = (_timed(server, bodies, service) for server in (Server(url), front))
    searches = [line for line in ours.log if line.get("engine_ms")]
    scoring = [line["queue_ms"] + line["inference_ms"] for line in searches]
    in_engine = [line["engine_ms"] for line in searches]
    rest = [
        line["total_ms"] - first - second
        for line, first, second in zip(searches, in_engine, scoring, strict=True)
    ]
    outer = median(ours.single) - median(alone.single) - median(scoring)
    return [
        *(
            (
                f"a search of {HITS} posts, {name}: one client, {CLIENTS} clients",
                f"{_middle(timed.single)}, {_middle(timed.several)}",
            )
            for name, timed in (("engine alone", alone), ("proxy in front", ours))
        ),
        (
            "proxy, beside the engine and the scoring",
            f"{_middle(rest)}; to the client {outer:.1f} ms",
        ),
        (
            "engine and scoring of those searches",
            f"{median(in_engine):.1f} ms and {median(scoring):.1f} ms",
        ),
    ]


def _bodies(topics: Sequence[Topic], layout: Layout) -> list[dict[str, Any]]:
    """A search for each topic, limited by its time."""
    texts = [topic.text for topic in topics]
    words = cut_words(texts) if layout.analyzer == CUT_HERE else texts
    bodies = []
    for topic, text in zip(topics, words, strict=True):
        query: dict[str, Any] = {"must": [dsl.match(layout.field, text)]}
        if topic.max_doc_id is not None and layout.manifest.numeric_ids:
            query["filter"] = [dsl.up_to(NUMBER, int(topic.max_doc_id))]
        bodies.append({"size": HITS, "query": {"bool": query}, "sort": layout.sort})
    return bodies


def _timed(server: Server, bodies: Sequence[Any], service: Running) -> Timed:
    """Searches of one client, then of several at once."""

    def milliseconds(body: Any) -> float:
        started = time.perf_counter()
        server.search(body)
        return 1000 * (time.perf_counter() - started)

    searches = list(islice(cycle(bodies), SEARCHES))
    time.sleep(0.5)  # The log is written a moment later.
    start = len(service.log)
    single = list(map(milliseconds, searches))
    time.sleep(0.5)
    log = [json.loads(line) for line in service.log[start:]]
    with ThreadPoolExecutor(CLIENTS) as pool:
        return Timed(single, list(pool.map(milliseconds, searches)), log)


def _middle(times: Sequence[float]) -> str:
    return f"{median(times):.1f} ms (p95 {np.quantile(times, 0.95):.1f})"
