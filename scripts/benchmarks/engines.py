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
from pipeline.command.ranking import UNTUNED_WEIGHT
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
"""The scores of the posts that a topic's search finds."""


def measure(workload: Workload) -> list[Row]:
    """Filling an index, searching all topics, and single searches by each way."""
    found = named.find(workload.collection, workload.data)
    if not workload.engine or not isinstance(found, SearchedCollection):
        print("found no --engine URL or no collection of posts, so nothing is measured")
        return []
    collection = named.on_engine(found, {"url": workload.engine, "index": NAME})
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
    rate = len(posts) / timings["ours"].median
    found = f"{rate:,.0f} posts/s, {timings['ours'].ratio(timings['plain']):.0%}"
    return [
        (f"filling an engine's index with {len(posts):,} posts", f"{found} of the next row's"),
        ("the same bodies, ready-made, in a loop", f"{rate * _slower(timings):,.0f} posts/s"),
    ]


def _slower(timings: Mapping[str, Any]) -> float:
    return float(timings["ours"].median / timings["plain"].median)


def _layout(engine: Engine) -> Layout:
    return Layout.read(engine.address, describe(engine))


def _topics(workload: Workload, engine: Engine) -> list[Row]:
    """The searches of all topics against the engine's own time, and whole processes."""
    took: list[float] = []

    def send(method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Any:
        path = path.replace("path=", "path=responses.took%2C", 1)
        answer = engine.send(method, path, body, headers)
        took.extend(one["took"] for one in answer.content.get("responses", ()))
        return answer

    topics, rows = workload.source.topics, []
    directory = engine_directory(engine.address)
    with OwnIndex(
        dataclasses.replace(engine, send=send), _layout(engine), directory, None
    ) as index:
        index.search(topics, QueryLikelihood(), DEEP)
        for threads in (1, 2):
            ratios, seconds = [], []
            for _ in range(max(5, workload.rounds)):
                took.clear()
                started = time.perf_counter()
                index.search(topics, QueryLikelihood(), DEEP, threads)
                seconds.append(time.perf_counter() - started)
                ratios.append(1000 * seconds[-1] / sum(took))
            found = f"{median(seconds):.2f} s, {median(ratios):.2f} times the searches' `took`"
            what = f"{len(topics)} topics × {DEEP:,} posts from the engine"
            rows.append((f"{what}, {threads} at a time", found))
    with tempfile.TemporaryDirectory() as folder:
        search = [*SEARCH, *_arguments(workload), "--reranker=none", f"--output={folder}/run"]
        ways = {"local": search, "engine": [*search, *_place(workload)]}
        for command in ways.values():
            measured(command)
        timings = alternate(
            {name: partial(measured, command) for name, command in ways.items()}, workload.rounds
        )
    local, remote = timings["local"].median, timings["engine"].median
    found = f"{remote:.1f} s; with the local index {local:.1f} s"
    return [*rows, ("from topics to a run file, whole process", found)]


def _arguments(workload: Workload) -> list[str]:
    found = [f"--topics={workload.collection}", "--show=none", "--device=cpu", "--method=ql"]
    return found + ([f"--data={workload.data}"] if workload.data else [])


def _place(workload: Workload) -> list[str]:
    return [f"--engine={workload.engine}", f"--engine-index={NAME}"]


# --- single searches ------------------------------------------------------------------------------


class Server:
    """Posts JSON to an address; each thread keeps a connection."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._place = urlsplit(url).netloc
        self._headers = {"Content-Type": "application/json", **headers}
        self._own = threading.local()

    def post(self, path: str, body: Any) -> Any:
        """The answer; raises RuntimeError for an error."""
        if not hasattr(self._own, "connection"):
            self._own.connection = http.client.HTTPConnection(self._place, timeout=60)
        connection: http.client.HTTPConnection = self._own.connection
        connection.request("POST", path, json.dumps(body), self._headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: found the status {answer.status}: {content[:300]!r}")
        return json.loads(content)


class Found(NamedTuple):
    """What searches by a way took: milliseconds, and the lines of the service's log."""

    one: Sequence[float]
    several: Sequence[float]
    log: Sequence[Mapping[str, Any]]


def _ways(workload: Workload, collection: SearchedCollection, engine: Engine) -> list[Row]:
    """Milliseconds, and quality, of searches by each way."""
    url = str(workload.engine)
    options = [f"--engine={url}", f"--statistics={url}/{NAME}"]
    topics = collection.topics
    with serving(workload.directory, options=options) as service, _installed(url, service):
        ways = _all_ways(workload, engine, service)
        found, runs = {}, {}
        for name, way in ways.items():
            runs[name] = {topic.query_id: way(topic) for topic in topics}
            found[name] = _timed(way, topics, service)
    rows = printed(_times(found))
    return rows + printed(_quality(workload, collection, runs))


@contextmanager
def _installed(url: str, service: Running) -> Iterator[None]:
    """Reranking inside the engine, if it can."""
    command = [sys.executable, "-m", "pipeline.engine", "ACTION", "--engine", url]
    command += ["--pipeline", NAME]
    more = ["--service", f"http://127.0.0.1:{service.port}", "--yes"]
    words = [word.replace("ACTION", "install") for word in command]
    done = subprocess.run([*words, *more], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"no reranking inside this engine: {done.stderr.strip().splitlines()[-1]}")
    try:
        yield
    finally:
        words = [word.replace("ACTION", "remove") for word in command]
        subprocess.run(words, capture_output=True, check=False)


def _all_ways(workload: Workload, engine: Engine, service: Running) -> dict[str, Way]:
    """Name -> way; the processor is left out where the engine has none."""
    url, bodies = str(workload.engine), _bodies(workload.source.topics, _layout(engine))
    # The client's search and its scores are apart: what it may send is the engine's own.
    inner = Server(url, {})
    front = Server(f"http://127.0.0.1:{service.port}", {})
    checkpoint = workload.checkpoint
    tuned = tuned_weight(workload.directory, "minmax")
    weight = tuned[0] if tuned else UNTUNED_WEIGHT

    def search(server: Server, query: str, topic: Topic, more: Mapping[str, Any]) -> Any:
        body = {**bodies[topic.query_id], **more}
        return server.post(f"/{NAME}/_search{query}", body)["hits"]["hits"]

    def told(topic: Topic) -> Mapping[str, Any]:
        return {"ext": {"rerank": {"query_context": {"query_text": topic.text}}}}

    def alone(topic: Topic) -> dict[str, float]:
        return {hit["_id"]: hit["_score"] for hit in search(inner, "", topic, {})}

    def inside(topic: Topic) -> dict[str, float]:
        hits = search(inner, f"?search_pipeline={NAME}", topic, told(topic))
        return {hit["_id"]: hit["_score"] for hit in hits}

    def in_front(topic: Topic) -> dict[str, float]:
        hits = search(front, "", topic, told(topic))
        return {hit["_id"]: hit["_score"] for hit in hits}

    def in_client(topic: Topic) -> dict[str, float]:
        hits = search(inner, "", topic, {})
        posts = [(hit["_source"]["contents"], hit["_source"]["url"]) for hit in hits]
        if not hits:
            return {}
        scores = checkpoint.predict([(topic.text, post) for post in posts])
        neural = {hit["_id"]: float(score) for hit, score in zip(hits, scores, strict=True)}
        first = {hit["_id"]: hit["_score"] for hit in hits}
        return interpolate({"": first}, {"": neural}, weight)[""]

    found: dict[str, Way] = {ALONE: alone, FRONT: in_front, CLIENT: in_client}
    try:
        engine.request("GET", f"/_search/pipeline/{NAME}")
    except EngineError:
        return found
    return {ALONE: alone, INSIDE: inside, FRONT: in_front, CLIENT: in_client}


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


def _timed(way: Way, topics: Sequence[Topic], service: Running) -> Found:
    """Searches of one client, then of several at once."""

    def milliseconds(topic: Topic) -> float:
        started = time.perf_counter()
        way(topic)
        return 1000 * (time.perf_counter() - started)

    searches = list(islice(cycle(topics), SEARCHES))
    time.sleep(0.5)  # The log is written a moment later.
    start = len(service.log)
    one = list(map(milliseconds, searches))
    time.sleep(0.5)
    log = [json.loads(line) for line in service.log[start:]]
    with ThreadPoolExecutor(CLIENTS) as pool:
        several = list(pool.map(milliseconds, searches))
    return Found(one, several, log)


def _times(found: Mapping[str, Found]) -> list[Row]:
    rows = []
    for name, one in found.items():
        what = f"a search of {HITS} posts, {name}: one client, {CLIENTS} clients"
        rows.append((what, ", ".join(map(_middle, (one.one, one.several)))))
    searches = [line for line in found[FRONT].log if line.get("engine_ms")]
    scoring = [line["queue_ms"] + line["inference_ms"] for line in searches]
    engine = [line["engine_ms"] for line in searches]
    totals = [line["total_ms"] for line in searches]
    rest = [t - e - s for t, e, s in zip(totals, engine, scoring, strict=True)]
    outer = median(found[FRONT].one) - median(found[ALONE].one) - median(scoring)
    shown = f"{_middle(rest)}; to the client {outer:.1f} ms"
    rows.append(("proxy, beside the engine and the scoring", shown))
    shown = f"{median(engine):.1f} ms and {median(scoring):.1f} ms"
    rows.append(("engine and scoring of those searches", shown))
    if INSIDE in found:
        inner = median(line["total_ms"] for line in found[INSIDE].log)
        outer = median(found[INSIDE].one) - median(found[ALONE].one) - inner
        shown = f"{outer:.1f} ms; the service {inner:.1f} ms"
        rows.append(("processor, beside the engine and the service", shown))
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
        for name, more in (
            ("`pipeline.search`", []),
            ("`pipeline.search --engine`", _place(workload)),
        ):
            measured([*search, *more])
            runs[name] = read_run(Path(folder) / "run")
    rows = []
    for name, one in runs.items():
        values = evaluate(collection.qrels, one, ["AP", "P@30"])
        shown = ", ".join(f"{mean(values[measure]):.4f}" for measure in values)
        rows.append((f"AP, P@30 of {HITS} posts, {name}", shown))
    return rows
