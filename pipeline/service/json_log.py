"""The service's log: JSON lines on stderr, written by a background thread."""

import json
import logging
import queue
import threading
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any

import orjson

from tweetrerank.pipeline.service.request_record import Record

LOG = logging.getLogger("tweetrerank.service")

MOST_LINES = 2_000  # Lines that may wait to be written; any more are dropped


class JsonFormatter(logging.Formatter):
    """Formats the records of requests and all messages, also of libraries, as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON line for a log record."""
        moment = datetime.fromtimestamp(record.created, UTC)
        content: dict[str, Any] = {"time": moment.isoformat(timespec="milliseconds")}
        request = getattr(record, "request", None)
        if isinstance(request, Record):
            content |= request.line()
        else:
            content |= {"level": record.levelname, "message": record.getMessage()}
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(content).decode()
        except TypeError:  # A text contains half of a surrogate pair
            return json.dumps(content, default=str)


class DroppingHandler(QueueHandler):
    """Queues log lines for another thread to write.

    Lines that do not fit into the queue are dropped and counted, so that no request
    has to wait for a terminal or a pipe that does not accept more.
    """

    dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a line, or drop it; a later warning reports the dropped lines."""
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1
            return
        if self.dropped:
            count = self.dropped
            self.dropped = 0
            LOG.warning("%d lines of the log were dropped: it was not read", count)


def log_by(handler: logging.Handler) -> None:
    """Let the handler write all messages and warnings of this process as JSON."""
    handler.setFormatter(JsonFormatter())
    logging.getLogger().handlers = [handler]
    logging.captureWarnings(True)


def log_in_background() -> QueueListener:
    """Write the log to stderr in a thread; uncaught errors of threads are logged too.

    Returns the listener that owns this thread. It has been started, and the caller
    must stop it at the end.
    """
    lines: queue.Queue[logging.LogRecord] = queue.Queue(MOST_LINES)
    log_by(DroppingHandler(lines))
    for name in (LOG.name, "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)

    def log_failure(failure: threading.ExceptHookArgs) -> None:
        LOG.error("a thread failed", exc_info=failure.exc_value)

    threading.excepthook = log_failure
    listener = QueueListener(lines, logging.StreamHandler())
    listener.start()
    return listener
