"""Requests: their records, as the log, headers and metrics tell them, their limits, and errors.

Metrics have the names of Text Embeddings Inference where they mean the same.
"""

import asyncio
import json
import logging
import queue
import threading
import time
import zlib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from logging.handlers import QueueHandler, QueueListener
from typing import Any, ClassVar, TypeVar

import orjson
from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

LOG = logging.getLogger("tweetrerank.service")

Value = TypeVar("Value")

LARGE = 200_000  # Bytes that are not read in the event loop
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

ERRORS = {"overload": "overloaded", "many": "batch_size", "model": "model_type"}
ERRORS |= {"deadline": "dropped", "gone": "dropped", "internal": "inference"}
"""Kind of an error -> TEI's word for it, where it is not ``validation``."""


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
        return fields | {
            f"{name}_ms": round(1000 * value, 3) for name, value in times.items()
        }

    def headers(self) -> dict[str, str]:
        """TEI's headers of times and sizes."""
        times = {"total": self.total, "queue": self.queue, "inference": self.inference}
        times["compute"] = self.queue + self.inference
        counts = {"truncated-documents": self.truncated, "split-documents": self.split}
        counts |= {"compute-characters": self.characters, "compute-tokens": self.words}
        counts |= (
            {"unknown-signals": self.unknown_signals} if self.unknown_signals else {}
        )
        headers = {f"x-{name}": f"{count}" for name, count in counts.items()}
        headers |= {
            f"x-{name}-time": f"{1000 * seconds:.0f}" for name, seconds in times.items()
        }
        return headers | {"x-compute-type": self.device}


class JsonFormatter(logging.Formatter):
    """Requests, and messages of this service and of libraries, as lines of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(
            timespec="milliseconds"
        )
        content: dict[str, Any] = {"time": moment}
        if isinstance(request := getattr(record, "request", None), Record):
            content |= request.line()
        else:
            content |= {"level": record.levelname, "message": record.getMessage()}
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(content).decode()
        except TypeError:  # Half a surrogate pair.
            return json.dumps(content, default=str)


class DroppingHandler(QueueHandler):
    """Queues lines for another thread; drops and counts those that do not fit: nobody waits for a
    terminal or a pipe that takes no more."""

    dropped = 0

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


def log_by(handler: logging.Handler) -> None:
    """Write all messages and warnings of this process as lines of JSON."""
    handler.setFormatter(JsonFormatter())
    logging.getLogger().handlers = [handler]
    logging.captureWarnings(True)


def log_in_background() -> QueueListener:
    """Write lines of JSON on stderr, also of threads' errors, by this listener's thread."""
    lines: queue.Queue[logging.LogRecord] = queue.Queue(MOST_LINES)
    log_by(DroppingHandler(lines))
    for name in (LOG.name, "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)
    threading.excepthook = lambda args: LOG.error(
        "a thread failed", exc_info=args.exc_value
    )
    listener = QueueListener(lines, logging.StreamHandler())
    listener.start()
    return listener


class Counter(Gauge):
    """A counter whose name does not get ``_total`` at its end, as that of prometheus_client."""

    _type = "unknown"


SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
Seconds = partial(Histogram, buckets=SECONDS)
Sizes = partial(
    Histogram, buckets=(1, 2, 5, 10, 20, 50, 100, 200, 256, 500, 1000, 2000, 5000)
)

METRICS: Mapping[str, tuple[Callable[..., Any], str, str]] = {
    "te_request_count": (Counter, "Requests", "method"),
    "te_request_success": (Counter, "Answered", "method"),
    "te_request_failure": (Counter, "Refused or failed", "err"),
    "te_request_duration": (Seconds, "Seconds", ""),
    "te_request_queue_duration": (Seconds, "Seconds in the queue", ""),
    "te_request_inference_duration": (Seconds, "Seconds", ""),
    "te_batch_next_size": (Sizes, "Documents scored together", ""),
    "te_queue_size": (Gauge, "Requests that wait", ""),
    "tweetrerank_requests": (Counter, "By wire format", "format"),
    "tweetrerank_request_documents": (Sizes, "In a request", ""),
    "tweetrerank_seconds": (
        Seconds,
        f"By stage: {', '.join(TIMES)}",
        "model index stage outcome",
    ),
    "tweetrerank_searches": (Counter, "In front of an engine", "index outcome"),
    "tweetrerank_unknown_signals": (Counter, "Numbers that documents lack", "model"),
    "tweetrerank_model_info": (Gauge, "Served models", "model version"),
    "tweetrerank_cache_hits": (
        Counter,
        "Documents kept from earlier requests",
        "model",
    ),
    "tweetrerank_cache_misses": (Counter, "Documents that had to be read", "model"),
    "tweetrerank_cache_bytes": (Counter, "Size of the kept documents", "model"),
    "tweetrerank_log_lines": (Gauge, "Of the log of searches", "outcome"),
}
"""Name -> kind, help and labels."""


class Metrics:
    """Metrics of one application. ``log``: lines of the log of searches by outcome."""

    def __init__(self) -> None:
        self._registry, self.log = CollectorRegistry(), dict[str, int]()
        self._metrics = {
            name: kind(name, text, labels.split(), registry=self._registry)
            for name, (kind, text, labels) in METRICS.items()
        }

    def of(self, name: str, *labels: str) -> Any:
        """A metric with these labels."""
        metric = self._metrics[name]
        return metric.labels(*labels) if labels else metric

    def search(self, record: Record, outcome: str) -> None:
        """Count a search in front of an engine: reranked, unchanged, failed, refused or away."""
        self.of("tweetrerank_searches", record.index, outcome).inc()

    def request(self, record: Record) -> None:
        """Count a finished request for scores, or to an engine."""
        model = record.model or ""
        for stage in TIMES:
            if seconds := getattr(record, stage):
                labels = (model, record.index, stage, record.kind or "ok")
                self.of("tweetrerank_seconds", *labels).observe(seconds)
        if record.unknown_signals:
            self.of("tweetrerank_unknown_signals", model).inc(record.unknown_signals)
        if not record.format:
            return
        self.of("te_request_count", "batch").inc()
        self.of("tweetrerank_requests", record.format).inc()
        if record.kind:
            self.of("te_request_failure", ERRORS.get(record.kind, "validation")).inc()
            return
        self.of("te_request_success", "batch").inc()
        self.of("te_request_duration").observe(record.total)
        self.of("te_request_queue_duration").observe(record.queue)
        self.of("te_request_inference_duration").observe(record.inference)
        self.of("tweetrerank_request_documents").observe(record.documents)

    def text(self, queued: int, models: Iterable[Any]) -> bytes:
        """All metrics in Prometheus' form, with requests that wait and models as they are now."""
        self.of("te_queue_size").set(queued)
        self.of("tweetrerank_model_info").clear()  # Others may have been served.
        for model in models:
            self.of("tweetrerank_model_info", model.name, model.version).set(1)
            counts = model.scorer.counts(model.name)
            for name in ("hits", "misses", "bytes"):
                self.of(f"tweetrerank_cache_{name}", model.name).set(counts[name])
        for outcome, count in self.log.items():
            self.of("tweetrerank_log_lines", outcome).set(count)
        return generate_latest(self._registry)


# --- Limits and errors ----------------------------------------------------------------------------

STATUS = {
    "json": 400,
    "empty": 400,
    "many": 400,
    "value": 422,
    "key": 401,
    "index": 403,
}
STATUS |= {
    "refused": 403,
    "model": 404,
    "path": 404,
    "method": 405,
    "slow_body": 408,
    "body": 413,
}
STATUS |= {
    "media": 415,
    "host": 421,
    "overload": 429,
    "rate": 429,
    "headers": 431,
    "gone": 499,
}
STATUS |= {"internal": 500, "away": 502, "large": 502, "unready": 503, "deadline": 504}
"""Kind of an error -> HTTP status, unless a format has another."""
PASSING = (
    "overload",
    "rate",
    "unready",
)  # After which a client may try again in a second

DEADLINES = ("x-request-timeout-ms", "x-envoy-expected-rq-timeout-ms")
"""Headers with the milliseconds that the client, or a proxy before us, will wait."""


class RequestError(Exception):
    """A request that gets no result: ``kind`` is a key of :data:`STATUS`; the message begins with
    the path of a wrong value."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind, self.message = kind, message

    def __str__(self) -> str:
        return self.message


class ErrorFormat:
    """How errors are written: ``{"error": …}``."""

    name: ClassVar[str] = ""
    statuses: ClassVar[Mapping[str, int]] = {}
    """Kind of an error -> HTTP status, where it is not that of :data:`STATUS`."""

    def explain(self, error: RequestError, request_id: str) -> Any:
        """The body of the response, as orjson writes it."""
        return {"error": error.message}

    def status(self, error: RequestError) -> int:
        """HTTP status of an error."""
        return self.statuses.get(error.kind, STATUS[error.kind])

    def refuse(self, error: RequestError, record: Record) -> Response:
        """The response to a request, noted in its record."""
        record.kind, record.error = error.kind, error.message
        content = orjson.dumps(self.explain(error, record.request_id))
        response = Response(content, self.status(error), media_type="application/json")
        if error.kind in PASSING:
            response.headers["retry-after"] = "1"
        if error.kind == "key":
            response.headers["www-authenticate"] = "Bearer"
        if error.kind in ("body", "slow_body"):
            # The rest of the body is not read.
            response.headers["connection"] = "close"
        return response


@dataclass(frozen=True)
class Limits:
    """Bounds of a request, of all requests together, and of callers."""

    documents: int = 2000  # Of a request
    body: int = 8_000_000  # Bytes of a request
    waiting_documents: int = 20_000  # In the queue and in work
    waiting_requests: int = 512
    held: int = 256_000_000  # Bytes of all bodies that are being read or answered
    seconds: float = 30.0  # For the arrival of a body
    answer: float = 60.0  # Seconds for the answer, where the client sets no deadline
    keys: Sequence[
        str
    ] = ()  # Of which a request needs one, if there are any; they may change
    hosts: Sequence[
        str
    ] = ()  # Names in the header Host, or ``*.example.com``; none is any
    origins: Sequence[str] = ()  # Of pages in browsers, for our own paths
    rate: int | None = None  # Requests of a client in a second


class BodyReader:
    """Reads bodies of requests, within limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self._held = limits, 0

    @asynccontextmanager
    async def read(
        self, request: Request, most: int | None = None
    ) -> AsyncIterator[bytes]:
        """A request's body, unpacked; it counts among those that are held until it is left.

        ``most``: bytes, where they are fewer than the limit of all bodies. Raises RequestError for
        a body that is too large, too slow, cut, packed in another way than by gzip, or too much
        beside those of others.
        """
        body = bytearray()
        try:
            await self._fill(
                body, request, min(self.limits.body, most or self.limits.body)
            )
            yield bytes(body)
        finally:
            self._held -= len(body)

    async def _fill(self, body: bytearray, request: Request, limit: int) -> None:
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("gzip", "identity"):
            problem = f"found the encoding {coding[:100]!r} of the body, expected gzip or none"
            raise RequestError("media", problem)
        problem = f"found a body of more than {limit} bytes, expected at most that"
        with suppress(ValueError):
            if int(request.headers.get("content-length", 0)) > limit:
                raise RequestError("body", problem)
        unpack = zlib.decompressobj(31).decompress if coding == "gzip" else None
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for chunk in request.stream():
                    part = unpack(chunk, limit + 1 - len(body)) if unpack else chunk
                    body += part
                    self._held += len(part)
                    if len(body) > limit:
                        raise RequestError("body", problem)
                    if self._held > self.limits.held and self._held > len(body):
                        raise RequestError(
                            "overload", "too many large requests at once"
                        )
        except ClientDisconnect:
            raise RequestError("gone", "the client has gone") from None
        except zlib.error as error:
            raise RequestError(
                "json", f"found a body that is no gzip: {error}"
            ) from None
        except TimeoutError:
            problem = f"found no whole body after {self.limits.seconds:g} s"
            raise RequestError("slow_body", problem) from None


def check_media_type(request: Request) -> None:
    """Raise RequestError unless a body calls itself JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        problem = f"found {kind[:100] or 'no content type'}, expected application/json"
        raise RequestError("media", problem)


def deadline_of(request: Request) -> float | None:
    """The client's deadline on the clock of ``time.perf_counter``; raises RequestError."""
    for name in DEADLINES:
        text = request.headers.get(name, "0")
        if not (text.isascii() and text.isdigit() and len(text) < 12):
            raise RequestError(
                "value", f"{name}: found {text[:100]!r}, expected milliseconds"
            )
        if int(text):
            return float(request.state.record.started + int(text) / 1000)
    return None


async def unless_gone(work: Awaitable[Response], request: Request) -> Response:
    """The result of ``work``; if the client goes away, it is cancelled and RequestError raised."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(leave())
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise RequestError("gone", "the client has gone")
    finally:
        task.cancel()
        gone.cancel()


async def apart(size: int, work: Callable[[], Value]) -> Value:
    """The result of work on so many bytes, of many in a thread of its own."""
    return await asyncio.to_thread(work) if size > LARGE else work()
