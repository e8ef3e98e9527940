"""The log: a line of JSON for each request, without texts, and messages."""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any

import orjson

LOG = logging.getLogger("tweetrerank.service")

MOST_LINES = 2_000  # Lines that wait to be written; further ones are dropped


@dataclass
class Record:
    """A request, from its arrival on. Times are in seconds."""

    request_id: str  # Of the client, or made here
    method: str
    path: str
    client: str = ""  # Its address
    caller: bytes = b""  # Hash of this and of its key
    started: float = field(default_factory=time.perf_counter)
    trace_id: str = ""  # Of the client's span, in which this one is, as span_id
    span_id: str = ""
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
        """The fields of its line in the log; those of scoring only where there are scores."""
        fields: dict[str, Any] = {
            "request_id": self.request_id,
            "method": self.method,
            "path": self.path[:200],
            "client": self.client,
            "status": self.status,
            "total_ms": _milliseconds(self.total),
        }
        if self.trace_id:
            fields |= {"trace_id": self.trace_id, "parent_span_id": self.span_id}
        if self.format:
            names = ("format", "model", "documents", "characters", "cache_hits")
            fields |= {name: getattr(self, name) for name in names}
            fields["queue_ms"] = _milliseconds(self.queue)
            fields["inference_ms"] = _milliseconds(self.inference)
        if self.unknown_signals:
            fields["unknown_signals"] = self.unknown_signals
        if self.engine:
            fields |= {"index": self.index, "engine_ms": _milliseconds(self.engine)}
        if self.kind:
            fields |= {"kind": self.kind, "error": self.error}
        if self.texts:
            fields["texts"] = list(self.texts)
        return fields

    def headers(self) -> dict[str, str]:
        """TEI's headers of times and sizes."""
        times = {"total": self.total, "queue": self.queue, "inference": self.inference}
        headers = {f"x-{name}-time": f"{seconds * 1000:.0f}" for name, seconds in times.items()}
        if self.unknown_signals:
            headers["x-unknown-signals"] = str(self.unknown_signals)
        return headers | {
            "x-compute-type": self.device,
            "x-compute-time": f"{(self.queue + self.inference) * 1000:.0f}",
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
        if isinstance(request := getattr(record, "request", None), Record):
            content = {"time": moment, **request.line()}
        else:
            content = {"time": moment, "level": record.levelname, "message": record.getMessage()}
        if record.exc_info:
            content["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        try:
            return orjson.dumps(content).decode()
        except TypeError:  # Half a surrogate pair.
            return json.dumps(content, default=str)


class DroppingHandler(QueueHandler):
    """Queues lines for another thread; drops those that do not fit, and counts them.

    Nobody waits for a terminal or a pipe that takes no more.
    """

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
    """Lines of JSON, also of warnings and of threads' errors, go to stderr by a thread from now on.

    It is that of this listener.
    """
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


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
