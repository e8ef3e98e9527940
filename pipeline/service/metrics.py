"""Metrics of the service, in Prometheus' text format.

A metric that Text Embeddings Inference also has keeps the name it has there.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from tweetrerank.pipeline.service.request_record import TIMES, Record

ERRORS = {
    "overload": "overloaded",
    "many": "batch_size",
    "model": "model_type",
    "deadline": "dropped",
    "gone": "dropped",
    "internal": "inference",
}
"""TEI's words for kinds of errors. All other kinds are called ``validation``."""

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 256, 500, 1000, 2000, 5000)


class Counter(Gauge):
    """A counter that keeps its name; prometheus_client's own appends ``_total``."""

    _type = "unknown"


Seconds = partial(Histogram, buckets=SECONDS)
Sizes = partial(Histogram, buckets=SIZES)


class Metric(NamedTuple):
    """Description of a metric. ``labels`` has their names, separated by blanks."""

    kind: Callable[..., Any]
    help: str
    labels: str = ""


METRICS: Mapping[str, Metric] = {
    "te_request_count": Metric(Counter, "Requests", "method"),
    "te_request_success": Metric(Counter, "Answered", "method"),
    "te_request_failure": Metric(Counter, "Refused or failed", "err"),
    "te_request_duration": Metric(Seconds, "Seconds"),
    "te_request_queue_duration": Metric(Seconds, "Seconds in the queue"),
    "te_request_inference_duration": Metric(Seconds, "Seconds"),
    "te_batch_next_size": Metric(Sizes, "Documents scored together"),
    "te_queue_size": Metric(Gauge, "Requests that wait"),
    "tweetrerank_requests": Metric(Counter, "By wire format", "format"),
    "tweetrerank_request_documents": Metric(Sizes, "In a request"),
    "tweetrerank_seconds": Metric(
        Seconds,
        f"By stage: {', '.join(TIMES)}",
        "model index stage outcome",
    ),
    "tweetrerank_searches": Metric(
        Counter,
        "In front of an engine",
        "index outcome",
    ),
    "tweetrerank_unknown_signals": Metric(
        Counter,
        "Numbers that documents lack",
        "model",
    ),
    "tweetrerank_model_info": Metric(Gauge, "Served models", "model version"),
    "tweetrerank_cache_hits": Metric(
        Counter,
        "Documents kept from earlier requests",
        "model",
    ),
    "tweetrerank_cache_misses": Metric(
        Counter,
        "Documents that had to be read",
        "model",
    ),
    "tweetrerank_cache_bytes": Metric(Counter, "Size of the kept documents", "model"),
    "tweetrerank_log_lines": Metric(Gauge, "Of the log of searches", "outcome"),
}


class Metrics:
    """Metrics of one application.

    ``log_lines`` has the number of lines of the search log for each outcome.
    """

    def __init__(self) -> None:
        self.log_lines: Mapping[str, int] = {}
        self._registry = CollectorRegistry()
        self._metrics = {
            name: metric.kind(
                name,
                metric.help,
                metric.labels.split(),
                registry=self._registry,
            )
            for name, metric in METRICS.items()
        }

    def of(self, name: str, *labels: str) -> Any:
        """Return a metric of prometheus_client with these values of its labels."""
        metric = self._metrics[name]
        return metric.labels(*labels) if labels else metric

    def search(self, record: Record, outcome: str) -> None:
        """Count a search sent to the proxy by its outcome, such as ``reranked``."""
        self.of("tweetrerank_searches", record.index, outcome).inc()

    def request(self, record: Record) -> None:
        """Count a finished request, which was for scores or for an engine."""
        model = record.model or ""
        outcome = record.kind or "ok"
        for stage in TIMES:
            seconds = getattr(record, stage)
            if seconds:
                labels = (model, record.index, stage, outcome)
                self.of("tweetrerank_seconds", *labels).observe(seconds)
        if record.unknown_signals:
            self.of("tweetrerank_unknown_signals", model).inc(record.unknown_signals)
        if record.format:
            self._request_for_scores(record)

    def _request_for_scores(self, record: Record) -> None:
        self.of("te_request_count", "batch").inc()
        self.of("tweetrerank_requests", record.format).inc()
        if record.kind:
            error = ERRORS.get(record.kind, "validation")
            self.of("te_request_failure", error).inc()
            return
        self.of("te_request_success", "batch").inc()
        self.of("te_request_duration").observe(record.total)
        self.of("te_request_queue_duration").observe(record.queue)
        self.of("te_request_inference_duration").observe(record.inference)
        self.of("tweetrerank_request_documents").observe(record.documents)

    def text(self, queued: int, models: Iterable[Any]) -> bytes:
        """Return all metrics as text.

        ``queued`` is the number of requests that wait. ``models`` are the served
        models.
        """
        self.of("te_queue_size").set(queued)
        self.of("tweetrerank_model_info").clear()  # Models served before are gone
        for model in models:
            self.of("tweetrerank_model_info", model.name, model.version).set(1)
            counts = model.scorer.counts(model.name)
            for name in ("hits", "misses", "bytes"):
                self.of(f"tweetrerank_cache_{name}", model.name).set(counts[name])
        for outcome, count in self.log_lines.items():
            self.of("tweetrerank_log_lines", outcome).set(count)
        return generate_latest(self._registry)
