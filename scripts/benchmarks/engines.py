"""A search engine as first stage, and a search by each way of reranking it."""

from __future__ import annotations

import dataclasses
import http.client
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice
from pathlib import Path
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
from indexes.engines.layout import CUT_HERE, NUMBER, RANKED, Layout, cut_words
from indexes.methods import QueryLikelihood
from pipeline.collections import named
from pipeline.collections.collection import SearchedCollection, engine_directory
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Run, read_run
from pipeline.command.defaults import UNTUNED_WEIGHT
from pipeline.evaluation.measures import evaluate, mean
from pipeline.ranking.checkpoints import tuned_weight
from pipeline.ranking.interpolation import interpolate

NAME = "tweetrerank-benchmark"
"""Of the index, and of the search pipeline."""
HITS, SEARCHES, CLIENTS = 100, 200, 8
"""Posts of a search; searches of each way, with one client and with several."""
DEEP = 1000
"""Posts of a topic in a run."""
ALONE, INSIDE, FRONT, CLIENT = (
    "engine alone",
    "processor `rerank` inside",
    "proxy in front",
    "reranked in the client",
)

Way = Callable[[Topic], dict[str, float]]
"""Scores of the posts of a topic's search."""


def measure(workload: Workload) -> list[Row]:
    """Filling an index, searching all topics, and single searches by each way."""
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
        return rows + _ways(workload, collection, engine)
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
        collection.build_engine_index(RANKED)

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

    def post(self, path: str, body: Any) -> Any:
        """The response's JSON; raises RuntimeError for an error."""
        if not hasattr(self._own, "connection"):
            self._own.connection = http.client.HTTPConnection(self._place, timeout=60)
        connection: http.client.HTTPConnection = self._own.connection
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: found the status {response.status}: {content[:300]!r}")
        return json.loads(content)


class Timed(NamedTuple):
    """Milliseconds of searches by one client and by several, and the service's log of the first."""

    single: Sequence[float]
    several: Sequence[float]
    log: Sequence[Mapping[str, Any]]


def _ways(workload: Workload, collection: SearchedCollection, engine: Engine) -> list[Row]:
    """Milliseconds, and quality, of searches by each way."""
    url = str(workload.engine)
    options = [f"--engine={url}", f"--engine-index={NAME}", f"--statistics={url}/{NAME}"]
    topics, timed, runs = collection.topics, {}, {}
    with serving(workload.directory, options=options) as service, _installed(url, service):
        for name, way in _all_ways(workload, engine, service).items():
            runs[name] = {topic.query_id: way(topic) for topic in topics}
            timed[name] = _timed(way, topics, service)
    return printed(_times(timed)) + printed(_quality(workload, collection, runs))


@contextmanager
def _installed(url: str, service: Running) -> Iterator[None]:
    """Reranking inside the engine, if it can."""
    command = [sys.executable, "-m", "pipeline.engine"]
    options = ["--engine", url, "--pipeline", NAME]
    more = ["--service", f"http://127.0.0.1:{service.port}", "--yes"]
    done = subprocess.run([*command, "install", *options, *more], capture_output=True, text=True)
    if done.returncode:
        print(f"no reranking inside this engine: {done.stderr.strip().splitlines()[-1]}")
    try:
        yield
    finally:
        subprocess.run([*command, "remove", *options], capture_output=True, check=False)


def _all_ways(workload: Workload, engine: Engine, service: Running) -> dict[str, Way]:
    """Name -> way; the processor is left out where the engine has none."""
    bodies = _bodies(workload.source.topics, _layout(engine))
    inner, front = Server(str(workload.engine)), Server(f"http://127.0.0.1:{service.port}")
    checkpoint = workload.checkpoint
    tuned = tuned_weight(workload.directory, "minmax")
    weight = tuned[0] if tuned else UNTUNED_WEIGHT

    def search(server: Server, topic: Topic, query: str = "", reranked: bool = True) -> Any:
        more = {"ext": {"rerank": {"query_context": {"query_text": topic.text}}}}
        body = {**bodies[topic.query_id], **(more if reranked else {})}
        return server.post(f"/{NAME}/_search{query}", body)["hits"]["hits"]

    def scores(hits: Any) -> dict[str, float]:
        return {hit["_id"]: hit["_score"] for hit in hits}

    def in_client(topic: Topic) -> dict[str, float]:
        hits = search(inner, topic, reranked=False)
        posts = [(hit["_source"]["contents"], hit["_source"]["url"]) for hit in hits]
        if not posts:
            return {}
        neural = checkpoint.predict([(topic.text, post) for post in posts]).tolist()
        by_id = {hit["_id"]: score for hit, score in zip(hits, neural, strict=True)}
        return interpolate({"": scores(hits)}, {"": by_id}, weight)[""]

    ways: dict[str, Way] = {
        ALONE: lambda topic: scores(search(inner, topic, reranked=False)),
        INSIDE: lambda topic: scores(search(inner, topic, f"?search_pipeline={NAME}")),
        FRONT: lambda topic: scores(search(front, topic)),
        CLIENT: in_client,
    }
    try:
        engine.request("GET", f"/_search/pipeline/{NAME}")
    except EngineError:
        del ways[INSIDE]
    return ways


def _bodies(topics: Sequence[Topic], layout: Layout) -> dict[str, dict[str, Any]]:
    """Query_id -> search, limited by the topic's time."""
    texts = [topic.text for topic in topics]
    words = cut_words(texts) if layout.analyzer == CUT_HERE else texts
    bodies = {}
    for topic, text in zip(topics, words, strict=True):
        query: dict[str, Any] = {"must": [dsl.match(layout.field, text)]}
        if topic.max_doc_id is not None and layout.manifest.numeric_ids:
            query["filter"] = [dsl.up_to(NUMBER, int(topic.max_doc_id))]
        bodies[topic.query_id] = {"size": HITS, "query": {"bool": query}, "sort": layout.sort}
    return bodies


def _timed(way: Way, topics: Sequence[Topic], service: Running) -> Timed:
    """Searches of one client, then of several at once."""

    def milliseconds(topic: Topic) -> float:
        started = time.perf_counter()
        way(topic)
        return 1000 * (time.perf_counter() - started)

    searches = list(islice(cycle(topics), SEARCHES))
    time.sleep(0.5)  # The log is written a moment later.
    start = len(service.log)
    single = list(map(milliseconds, searches))
    time.sleep(0.5)
    log = [json.loads(line) for line in service.log[start:]]
    with ThreadPoolExecutor(CLIENTS) as pool:
        return Timed(single, list(pool.map(milliseconds, searches)), log)


def _times(timed: Mapping[str, Timed]) -> list[Row]:
    rows = []
    for name, times in timed.items():
        what = f"a search of {HITS} posts, {name}: one client, {CLIENTS} clients"
        rows.append((what, f"{_middle(times.single)}, {_middle(times.several)}"))
    alone = median(timed[ALONE].single)
    searches = [line for line in timed[FRONT].log if line.get("engine_ms")]
    scoring = [line["queue_ms"] + line["inference_ms"] for line in searches]
    engine = [line["engine_ms"] for line in searches]
    rest = [line["total_ms"] - e - s for line, e, s in zip(searches, engine, scoring, strict=True)]
    outer = median(timed[FRONT].single) - alone - median(scoring)
    rows += [
        (
            "proxy, beside the engine and the scoring",
            f"{_middle(rest)}; to the client {outer:.1f} ms",
        ),
        (
            "engine and scoring of those searches",
            f"{median(engine):.1f} ms and {median(scoring):.1f} ms",
        ),
    ]
    if INSIDE in timed:
        inner = median(line["total_ms"] for line in timed[INSIDE].log)
        outer = median(timed[INSIDE].single) - alone - inner
        text = f"{outer:.1f} ms; the service {inner:.1f} ms"
        rows.append(("processor, beside the engine and the service", text))
    return rows


def _middle(times: Sequence[float]) -> str:
    return f"{median(times):.1f} ms (p95 {np.quantile(times, 0.95):.1f})"


def _quality(workload: Workload, collection: SearchedCollection, runs: dict[str, Run]) -> list[Row]:
    """AP and P@30 of 100 candidates by each way, and by ``pipeline.search``."""
    if not collection.qrels:
        return []
    with tempfile.TemporaryDirectory() as folder:
        search = [*SEARCH, *_arguments(workload), f"--hits={HITS}", "--reranker=mp_hcnn"]
        search += [f"--checkpoint={workload.directory}", f"--output={folder}/run"]
        for name, more in {"": [], " --engine": _place(workload)}.items():
            measured([*search, *more])
            runs[f"`pipeline.search{name}`"] = read_run(Path(folder) / "run")
    rows = []
    for name, run in runs.items():
        values = evaluate(collection.qrels, run, ["AP", "P@30"])
        text = ", ".join(f"{mean(values[measure]):.4f}" for measure in values)
        rows.append((f"AP, P@30 of {HITS} posts, {name}", text))
    return rows
