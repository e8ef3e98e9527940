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
        self.registry, self._queued, self._models = CollectorRegistry(), queued, models
        self.log: Mapping[str, int] = {}
        """Outcome -> lines of the log of searches."""

        def counter(name: str, text: str, *labels: str) -> _Counter:
            return _Counter(name, text, labels, registry=self.registry)

        def histogram(name: str, text: str, *labels: str, sizes: bool = False) -> Histogram:
            buckets = _SIZES if sizes else _SECONDS
            return Histogram(name, text, labels, registry=self.registry, buckets=buckets)

        self._requests = counter("te_request_count", "Requests", "method")
        self._successes = counter("te_request_success", "Answered", "method")
        self._failures = counter("te_request_failure", "Refused or failed", "err")
        self._formats = counter("tweetrerank_requests", "By wire format", "format")
        text = "In front of an engine"
        self._searches = counter("tweetrerank_searches", text, "index", "outcome")
        self._total = histogram("te_request_duration", "Seconds")
        self._queue = histogram("te_request_queue_duration", "Seconds in the queue")
        self._inference = histogram("te_request_inference_duration", "Seconds")
        text = "By model, index, stage (queue, inference, engine, total) and outcome"
        labels = ("model", "index", "stage", "outcome")
        self._stages = histogram("tweetrerank_seconds", text, *labels)
        text = "In a request"
        self._documents = histogram("tweetrerank_request_documents", text, sizes=True)
        self.batches = histogram("te_batch_next_size", "Documents scored together", sizes=True)
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
        labels = ["model", "version"]
        info = GaugeMetricFamily("tweetrerank_model_info", "Served models", labels=labels)
        for model in models:
            info.add_metric([model.name, model.version], 1)
        yield info
        lines = GaugeMetricFamily("tweetrerank_log_lines", "Of the log", labels=["outcome"])
        for outcome, count in self.log.items():
            lines.add_metric([outcome], count)
        if self.log:
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
