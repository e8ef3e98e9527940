"""Metrics for Prometheus, under the names of Text Embeddings Inference where they mean the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric

from pipeline.service.models import ServedModel
from pipeline.service.record import Record

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 256, 500, 1000, 2000, 5000)

_ERRORS = {
    "overload": "overloaded",
    "many": "batch_size",
    "model": "model_type",
    "deadline": "dropped",
    "gone": "dropped",
    "internal": "inference",
}
"""Kind of an error -> TEI's word for it, where it is not ``validation``."""


_CACHE = (
    ("hits", "Documents that were kept from earlier requests"),
    ("misses", "Documents that had to be read"),
    ("bytes", "Size of the kept documents"),
)


class _Counter(Gauge):
    """A counter whose name does not get ``_total`` at its end, as that of prometheus_client."""

    _type = "unknown"


class Metrics:
    """Metrics of one application: its waiting requests, and its models."""

    def __init__(
        self, queued: Callable[[], int], models: Callable[[], Iterable[ServedModel]]
    ) -> None:
        self.registry, self._queued, self._models = CollectorRegistry(), queued, models
        self.log: Mapping[str, int] = {}
        """Outcome -> lines of the log of searches."""
        counter = partial(_Counter, registry=self.registry)
        seconds = partial(Histogram, registry=self.registry, buckets=_SECONDS)
        sizes = partial(Histogram, registry=self.registry, buckets=_SIZES)
        self._requests = counter("te_request_count", "Requests", ["method"])
        self._successes = counter("te_request_success", "Answered", ["method"])
        self._failures = counter("te_request_failure", "Refused or failed", ["err"])
        self._formats = counter("tweetrerank_requests", "By wire format", ["format"])
        text = "Numbers that a model reads and documents lack"
        self._unknown = counter("tweetrerank_unknown_signals", text, ["model"])
        labels = ["index", "outcome"]
        self._searches = counter("tweetrerank_searches", "In front of an engine", labels)
        labels = ["model", "index", "stage", "outcome"]
        text = "By model, index, stage (queue, inference, engine, total) and outcome"
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
        for stage in ("queue", "inference", "engine", "total"):
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
            self._failures.labels(_ERRORS.get(record.kind, "validation")).inc()
            return
        self._successes.labels("batch").inc()
        for name, histogram in self._answered.items():
            histogram.observe(getattr(record, name))

    def collect(self) -> Iterator[Metric]:
        """Gauges, read at the time of the call: the queue, the models, their caches."""
        models = list(self._models())
        versions = [
            (1.0, {"model": model.name, "version": model.loaded.version}) for model in models
        ]
        lines = [(count, {"outcome": outcome}) for outcome, count in self.log.items()]
        yield _gauge("te_queue_size", "Requests that wait", [(self._queued(), {})])
        yield _gauge("tweetrerank_model_info", "Served models", versions)
        if lines:
            yield _gauge("tweetrerank_log_lines", "Of the log", lines)
        for name, text in _CACHE:
            values = [(getattr(model.counts, name), {"model": model.name}) for model in models]
            yield _gauge(f"tweetrerank_cache_{name}", text, values, "unknown")

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


def _gauge(name: str, text: str, values: Iterable[tuple[Any, Any]], kind: str = "gauge") -> Metric:
    metric = Metric(name, text, kind)
    for value, labels in values:
        metric.add_sample(name, labels, value)
    return metric
