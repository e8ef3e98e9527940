"""Metrics for Prometheus, under the names of Text Embeddings Inference where they mean the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

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


class _Counter(Gauge):
    """A counter whose name does not get ``_total`` at its end, as that of prometheus_client."""

    _type = "unknown"


class Metrics:
    """Metrics of one application: its waiting requests, and its models."""

    def __init__(
        self, queued: Callable[[], int], models: Callable[[], Iterable[ServedModel]]
    ) -> None:
        self.registry = CollectorRegistry()
        self._queued, self._models = queued, models
        self.log: Mapping[str, int] | None = None
        """Outcome -> lines of the log of searches."""

        def counter(name: str, text: str, *labels: str) -> _Counter:
            return _Counter(name, text, labels, registry=self.registry)

        self._requests = counter("te_request_count", "Requests", "method")
        self._successes = counter("te_request_success", "Answered", "method")
        self._failures = counter("te_request_failure", "Refused or failed", "err")
        self._formats = counter("tweetrerank_requests", "By wire format", "format")
        text = "Numbers that a model reads and documents lack"
        self._unknown = counter("tweetrerank_unknown_signals", text, "model")
        labels = ("index", "outcome")
        self._searches = counter("tweetrerank_searches", "In front of an engine", *labels)

        def histogram(name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
            return Histogram(name, text, labels, registry=self.registry, buckets=[*buckets])

        self._total = histogram("te_request_duration", "Seconds", _SECONDS)
        self._queue = histogram("te_request_queue_duration", "Seconds in the queue", _SECONDS)
        self._inference = histogram("te_request_inference_duration", "Seconds", _SECONDS)
        text = "By model, index, stage (queue, inference, engine, total) and outcome"
        names = ("model", "index", "stage", "outcome")
        self._stages = histogram("tweetrerank_seconds", text, _SECONDS, *names)
        self._documents = histogram("tweetrerank_request_documents", "In a request", _SIZES)
        self.batches = histogram("te_batch_next_size", "Documents scored together", _SIZES)
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
        self._total.observe(record.total)
        self._queue.observe(record.queue)
        self._inference.observe(record.inference)
        self._documents.observe(record.documents)

    def collect(self) -> Iterator[Metric]:
        """Gauges, read at the time of the call: the queue, the models, their caches."""
        yield GaugeMetricFamily("te_queue_size", "Requests that wait", self._queued())
        models = list(self._models())
        info = GaugeMetricFamily(
            "tweetrerank_model_info", "Served models", labels=["model", "version"]
        )
        for model in models:
            info.add_metric([model.name, model.version], 1)
        yield info
        if self.log is not None:
            lines = GaugeMetricFamily("tweetrerank_log_lines", "Of the log", labels=["outcome"])
            for outcome, count in self.log.items():
                lines.add_metric([outcome], count)
            yield lines
        for name, text in (
            ("hits", "Documents that were kept from earlier requests"),
            ("misses", "Documents that had to be read"),
            ("bytes", "Size of the kept documents"),
        ):
            metric = Metric(f"tweetrerank_cache_{name}", text, "unknown")
            for model in models:
                value = getattr(model.counts, name)
                metric.add_sample(metric.name, {"model": model.name}, value)
            yield metric

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
