"""The service's log: lines of JSON on stderr, written in the background."""

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

MOST_LINES = 2_000  # Lines that wait to be written; further ones are dropped


class JsonFormatter(logging.Formatter):
    """Formatter of requests and messages, libraries' included, as lines of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a log record."""
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
        except TypeError:  # A text with half a surrogate pair
            return json.dumps(content, default=str)


class DroppingHandler(QueueHandler):
    """Handler that queues lines for another thread.

    Lines that do not fit are dropped and counted. Thus no request waits for a terminal
    or a pipe that accepts no more.
    """

    dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a line."""
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
    """Write all messages and warnings of this process as lines of JSON."""
    handler.setFormatter(JsonFormatter())
    logging.getLogger().handlers = [handler]
    logging.captureWarnings(True)


def log_in_background() -> QueueListener:
    """Write the log on stderr by a thread, errors of threads included.

    Returns the started listener, which owns that thread.
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
