"""What is written down about a request: one line of JSON, without texts."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

LOG = logging.getLogger("tweetrerank.service")


@dataclass
class Record:
    """A request, from its arrival on. Times are in seconds.

    Attributes:
        request_id: of the client, or made here.
        format: wire format; "" if the request was not for scores.
        kind: of the fault, if there was one.
        engine: of the search engine behind this service.
        texts: query and documents, if they may be logged.
    """

    request_id: str
    method: str
    path: str
    started: float = field(default_factory=time.perf_counter)
    format: str = ""
    model: str | None = None
    status: int = 0
    documents: int = 0
    characters: int = 0
    cache_hits: int = 0
    words: int = 0
    queue: float = 0.0
    inference: float = 0.0
    engine: float = 0.0
    total: float = 0.0
    kind: str = ""
    error: str = ""
    texts: Sequence[str] = ()

    def line(self) -> dict[str, Any]:
        """The fields of its line in the log; those of scoring only where there are scores."""
        found: dict[str, Any] = {
            "time": _now(),
            "request_id": self.request_id,
            "method": self.method,
            "path": self.path[:200],
            "status": self.status,
            "total_ms": _milliseconds(self.total),
        }
        if self.format:
            found |= {
                "format": self.format,
                "model": self.model,
                "documents": self.documents,
                "characters": self.characters,
                "cache_hits": self.cache_hits,
                "queue_ms": _milliseconds(self.queue),
                "inference_ms": _milliseconds(self.inference),
            }
        if self.engine:
            found["engine_ms"] = _milliseconds(self.engine)
        if self.kind:
            found |= {"fault": self.kind, "error": self.error}
        if self.texts:
            found["texts"] = list(self.texts)
        return found

    def headers(self) -> list[tuple[bytes, bytes]]:
        """TEI's headers of times and sizes."""
        times = {"total": self.total, "queue": self.queue, "inference": self.inference}
        found = {f"x-{name}-time": f"{seconds * 1000:.0f}" for name, seconds in times.items()}
        found |= {
            "x-compute-type": "cpu",
            "x-compute-time": f"{(self.queue + self.inference) * 1000:.0f}",
            "x-compute-characters": str(self.characters),
            "x-compute-tokens": str(self.words),
        }
        return [(name.encode(), value.encode()) for name, value in found.items()]


class JsonFormatter(logging.Formatter):
    """Messages of this service and of uvicorn as lines of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        found = {"time": _now(), "level": record.levelname, "message": record.getMessage()}
        if record.exc_info:
            found["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return _json(found)


def log_as_json() -> None:
    """Messages go to stderr, as lines of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in (LOG.name, "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)


def write(record: Record) -> None:
    """Write the line of a request to stderr."""
    sys.stderr.write(_json(record.line()) + "\n")


class Writer:
    """Writes the lines of requests to stderr in a thread of its own.

    Nobody waits for a terminal or a pipe that takes no more: what does not fit into the queue is
    dropped, and the number of such lines is written later.
    """

    def __init__(self, most: int = 2_000) -> None:
        self._records: queue.Queue[Record | None] = queue.Queue(most)
        self._dropped = 0
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    def __call__(self, record: Record) -> None:
        """Write a record's line soon."""
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def close(self, seconds: float = 2.0) -> None:
        """Write what is waiting, as far as it can be written in time."""
        with suppress(queue.Full):
            self._records.put(None, timeout=seconds)
        self._thread.join(seconds)

    def _work(self) -> None:
        while (record := self._records.get()) is not None:
            write(record)
            if dropped := self._dropped:
                self._dropped -= dropped
                LOG.warning("%d lines of the log were dropped: it was not read", dropped)


def _json(content: dict[str, Any]) -> str:
    try:
        return orjson.dumps(content).decode()
    except TypeError:  # Half a surrogate pair.
        return repr(content)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
