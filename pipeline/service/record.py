"""A request as it is told: a line of JSON in the log, headers, and metrics for Prometheus.

Metrics have the names of Text Embeddings Inference where they mean the same.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from logging.handlers import QueueHandler, QueueListener
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.metrics_core import Metric

LOG = logging.getLogger("tweetrerank.service")

MOST_LINES = 2_000  # Lines that wait to be written; further ones are dropped

TIMES = ("total", "queue", "inference", "engine")
LINE = (
    ("request_id", "method", "path", "client", "status", "total"),
    ("trace_id", "parent_span_id"),
    ("format", "model", "documents", "characters", "cache_hits", "queue", "inference"),
    ("unknown_signals",),
    ("engine", "index"),
    ("kind", "error"),
    ("texts",),
)
"""Fields of a line in the log, in groups that are left out where the first one is empty."""

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 256, 500, 1000, 2000, 5000)
ERRORS = {"overload": "overloaded", "many": "batch_size", "model": "model_type"}
ERRORS |= {"deadline": "dropped", "gone": "dropped", "internal": "inference"}
"""Kind of an error -> TEI's word for it, where it is not ``validation``."""

GAUGES = {
    "te_queue_size": "Requests that wait",
    "tweetrerank_model_info": "Served models",
    "tweetrerank_log_lines": "Of the log",
    "tweetrerank_cache_hits": "Documents that were kept from earlier requests",
    "tweetrerank_cache_misses": "Documents that had to be read",
    "tweetrerank_cache_bytes": "Size of the kept documents",
}


@dataclass
class Record:
    """A request, from its arrival on. Times are in seconds."""

    request_id: str  # Of the client, or made here
    method: str
    path: str
    client: str = ""  # Its address
    caller: bytes = b""  # Hash of this and of its key
    started: float = field(default_factory=time.perf_counter)
    trace_id: str = ""  # Of the client, of whose span this one is a part
    parent_span_id: str = ""
    format: str = ""  # Wire format; "" if the request is not for scores
    model: str | None = None
    index: str = ""  # Name or pattern of the served indexes that a search is within
    device: str = "cpu"
    status: int = 0
    documents: int = 0
    characters: int = 0
    truncated: int = 0  # Documents that were cut as the request says
    split: int = 0  # Long documents, of which the best passage is read
    unknown_signals: int = 0  # Numbers that the model reads and documents lack
    cache_hits: int = 0
    words: int = 0
    queue: float = 0.0
    inference: float = 0.0
    engine: float = 0.0  # Of the search engine behind this service
    held: int = 0  # Bytes of that engine's responses
    total: float = 0.0
    kind: str = ""  # Of the error, if there was one
    error: str = ""
    texts: Sequence[str] = ()  # Query and documents, if they may be logged

    def line(self) -> dict[str, Any]:
        """The fields of its line in the log; times in milliseconds."""
        groups = [names for names in LINE if getattr(self, names[0])]
        fields = {name: getattr(self, name) for names in groups for name in names}
        times = {name: fields.pop(name) for name in TIMES if name in fields}
        return fields | {f"{name}_ms": round(1000 * value, 3) for name, value in times.items()}

    def headers(self) -> dict[str, str]:
        """TEI's headers of times and sizes."""
        times = {"total": self.total, "queue": self.queue, "inference": self.inference}
        times["compute"] = self.queue + self.inference
        headers = {f"x-{name}-time": f"{seconds * 1000:.0f}" for name, seconds in times.items()}
        if self.unknown_signals:
            headers["x-unknown-signals"] = str(self.unknown_signals)
        return headers | {
            "x-compute-type": self.device,
            "x-compute-characters": str(self.characters),
            "x-truncated-documents": str(self.truncated),
            "x-split-documents": str(self.split),
            "x-compute-tokens": str(self.words),
        }


class JsonFormatter(logging.Formatter):
    """Requests, and messages of this service and of libraries, as lines of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        content: dict[str, Any] = {"time": moment}
        if isinstance(request := getattr(record, "request", None), Record):
            content |= request.line()
        else:
            content |= {"level": record.levelname, "message": record.getMessage()}
        if record.exc_info:
            content["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        try:
            return orjson.dumps(content).decode()
        except TypeError:  # Half a surrogate pair.
            return json.dumps(content, default=str)


class DroppingHandler(QueueHandler):
    """Queues lines for another thread; drops and counts those that do not fit: nobody waits for a
    terminal or a pipe that takes no more."""

    dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """The record as it is: it stays in this process."""
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a line."""
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1
            return
        if self.dropped:
            count, self.dropped = self.dropped, 0
            LOG.warning("%d lines of the log were dropped: it was not read", count)


def json_handler() -> logging.Handler:
    """Lines of JSON on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    return handler


def log_as_json() -> QueueListener:
    """Write lines of JSON, also of warnings and of threads' errors, by this listener's thread."""
    lines: queue.Queue[logging.LogRecord] = queue.Queue(MOST_LINES)
    logging.getLogger().handlers = [DroppingHandler(lines)]
    for name in (LOG.name, "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.captureWarnings(True)
    threading.excepthook = lambda failed: LOG.error(
        "a thread has failed", exc_info=failed.exc_value
    )
    listener = QueueListener(lines, json_handler())
    listener.start()
    return listener


class _Counter(Gauge):
    """A counter whose name does not get ``_total`` at its end, as that of prometheus_client."""

    _type = "unknown"


class Metrics:
    """Metrics of one application: its requests, and at the time of a call its waiting ones, its
    models, their caches, and ``log``, lines of the log of searches by outcome."""

    def __init__(self, queued: Callable[[], int], models: Callable[[], Iterable[Any]]) -> None:
        self.registry, self._queued, self._models = CollectorRegistry(), queued, models
        self.log: Mapping[str, int] = {}
        counter = partial(_Counter, registry=self.registry)
        seconds = partial(Histogram, registry=self.registry, buckets=SECONDS)
        sizes = partial(Histogram, registry=self.registry, buckets=SIZES)
        self._requests = counter("te_request_count", "Requests", ["method"])
        self._successes = counter("te_request_success", "Answered", ["method"])
        self._failures = counter("te_request_failure", "Refused or failed", ["err"])
        self._formats = counter("tweetrerank_requests", "By wire format", ["format"])
        text = "Numbers that a model reads and documents lack"
        self._unknown = counter("tweetrerank_unknown_signals", text, ["model"])
        labels = ["index", "outcome"]
        self._searches = counter("tweetrerank_searches", "In front of an engine", labels)
        labels = ["model", "index", "stage", "outcome"]
        text = f"By model, index, stage ({', '.join(TIMES)}) and outcome"
        self._stages = seconds("tweetrerank_seconds", text, labels)
        self._answered = {
            "total": seconds("te_request_duration", "Seconds"),
            "queue": seconds("te_request_queue_duration", "Seconds in the queue"),
            "inference": seconds("te_request_inference_duration", "Seconds"),
            "documents": sizes("tweetrerank_request_documents", "In a request"),
        }
        self.batches = sizes("te_batch_next_size", "Documents scored together")
        self.registry.register(self)

    def search(self, record: Record, outcome: str) -> None:
        """Count a search in front of an engine: reranked, unchanged, failed, refused or away."""
        self._searches.labels(record.index, outcome).inc()

    def request(self, record: Record) -> None:
        """Count a finished request for scores, or to an engine."""
        for stage in TIMES:
            if seconds := getattr(record, stage):
                labels = (record.model or "", record.index, stage, record.kind or "ok")
                self._stages.labels(*labels).observe(seconds)
        if record.unknown_signals:
            self._unknown.labels(record.model or "").inc(record.unknown_signals)
        if not record.format:
            return
        self._requests.labels("batch").inc()
        self._formats.labels(record.format).inc()
        if record.kind:
            self._failures.labels(ERRORS.get(record.kind, "validation")).inc()
            return
        self._successes.labels("batch").inc()
        for name, histogram in self._answered.items():
            histogram.observe(getattr(record, name))

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        models = [*self._models()]
        gauges: dict[str, list[tuple[dict[str, str], float]]] = {
            "te_queue_size": [({}, self._queued())],
            "tweetrerank_model_info": [
                ({"model": model.name, "version": model.version}, 1.0) for model in models
            ],
            "tweetrerank_log_lines": [({"outcome": name}, n) for name, n in self.log.items()],
            **{
                f"tweetrerank_cache_{each}": [
                    ({"model": m.name}, m.scorer.counts(m.name)[each]) for m in models
                ]
                for each in ("hits", "misses", "bytes")
            },
        }
        for name, samples in gauges.items():
            metric = Metric(name, GAUGES[name], "unknown" if "cache" in name else "gauge")
            for labels, value in samples:
                metric.add_sample(name, labels, value)
            if samples:
                yield metric
