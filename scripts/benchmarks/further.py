"""Further hits of the proxy (``serve --expand``): what they gain, and what they cost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from statistics import median
from typing import Any

from benchmarks.engines import NAME, Server, _delete
from benchmarks.measuring import Row, printed
from benchmarks.service import serving
from benchmarks.workload import Workload
from indexes.engines.address import EngineAddress
from indexes.engines.client import Engine
from pipeline.collections.collection import SearchedCollection
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Run
from pipeline.evaluation.measures import evaluate, mean
from pipeline.ranking.checkpoints import default_directory

HITS = 100  # Of a page

WAYS: Mapping[str, list[str]] = {
    "window of 100": [],
    "window of 200": ["--rerank-window=200"],
    "window of 100, and further hits": ["--expand"],
}

_FIELDS = {
    "contents": {"type": "text", "analyzer": "english"},
    "url": {"type": "keyword", "index": False, "doc_values": False},
    "number": {"type": "long"},
}


def measure(workload: Workload) -> list[Row]:
    """AP and P@30 of the training topics, and milliseconds of a search, without and with them."""
    collection = workload.source
    if not workload.engine or not isinstance(collection, SearchedCollection):
        print("found no --engine URL or no collection of posts, so nothing is measured")
        return []
    engine = Engine.connect(EngineAddress(workload.engine, NAME))
    _fill(engine, collection)
    rows = []
    try:
        rows += printed([_row("the engine alone", Server(workload.engine), collection)])
        for name, options in WAYS.items():
            place = [f"--engine={workload.engine}", f"--engine-index={NAME}"]
            folder = default_directory("window", collection.name)
            with serving(folder, options=[*place, *options]) as service:
                front = Server(f"http://127.0.0.1:{service.port}")
                rows += printed([_row(name, front, collection)])
    finally:
        _delete(engine)
    return rows


def _fill(engine: Engine, collection: SearchedCollection) -> None:
    """Index the posts as an application would, with the engine's BM25."""
    _delete(engine)
    settings = {"number_of_shards": 1, "number_of_replicas": 0}
    engine.request("PUT", f"/{NAME}", {"settings": settings, "mappings": {"properties": _FIELDS}})

    def lines() -> Iterator[bytes]:
        for post in collection.posts():
            content: dict[str, Any] = {"contents": post.text, "url": post.url}
            if collection.runs:
                content["number"] = int(post.doc_id)
            yield f"{json.dumps({'index': {'_id': post.doc_id}})}\n{json.dumps(content)}\n".encode()

    left = lines()
    while chunk := b"".join(islice(left, 5000)):
        engine.request("POST", f"/{NAME}/_bulk", chunk, {"refresh": True})


def _row(name: str, server: Server, collection: SearchedCollection) -> Row:
    grades, run, seconds = collection.training_qrels or {}, Run(), []
    for topic in collection.training_topics:
        started = time.perf_counter()
        found = json.loads(server.search(_body(topic)))["hits"]["hits"]
        seconds.append(time.perf_counter() - started)
        run[topic.query_id] = {hit["_id"]: -float(rank) for rank, hit in enumerate(found)}
    qrels = {query_id: grades[query_id] for query_id in run}
    ap, p30 = (mean(each) for each in evaluate(qrels, run, ["AP", "P@30"]).values())
    return f"{name}: AP, P@30, median", f"{ap:.4f}, {p30:.4f}, {1000 * median(seconds):.0f} ms"


def _body(topic: Topic) -> dict[str, Any]:
    """The search of a topic, within its time limit."""
    query: dict[str, Any] = {"must": [{"match": {"contents": topic.text}}]}
    if topic.max_doc_id:
        query["filter"] = [{"range": {"number": {"lte": int(topic.max_doc_id)}}}]
    return {"query": {"bool": query}, "size": HITS}
