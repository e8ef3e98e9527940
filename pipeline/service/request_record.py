"""The record of a request: the source of its log line, response headers and metrics."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

TIMES = ("total", "queue", "inference", "engine")
"""The fields of a record that are times, in seconds."""

LOG_GROUPS = (
    ("request_id", "method", "path", "client", "status", "total"),
    ("trace_id", "parent_span_id"),
    ("format", "model", "documents", "characters", "cache_hits", "queue", "inference"),
    ("unknown_signals",),
    ("engine", "index"),
    ("kind", "error"),
    ("texts",),
)
"""The fields of a log line in groups. A group is omitted if its first field is empty.
"""


@dataclass
class Record:
    """Facts about a request, kept from its arrival on. Times are in seconds."""

    request_id: str  # Sent by the client, or random
    method: str
    path: str
    client: str = ""  # Address of the client
    caller: bytes = b""  # Hash of the client's address and key
    started: float = field(default_factory=time.perf_counter)
    trace_id: str = ""  # From the client's header traceparent
    parent_span_id: str = ""
    format: str = ""  # Wire format; "" if the request is not for scores
    model: str | None = None
    index: str = ""  # Name or pattern of the searched indexes
    device: str = "cpu"
    status: int = 0
    documents: int = 0
    characters: int = 0
    truncated: int = 0  # Documents cut to the limit that the request sets
    split: int = 0  # Documents so long that their best passage is scored
    unknown_signals: int = 0  # Numbers that the model reads but documents lack
    cache_hits: int = 0
    words: int = 0
    queue: float = 0.0
    inference: float = 0.0
    engine: float = 0.0  # Time that the search engine behind the proxy took
    held: int = 0  # Bytes of the engine's responses in memory
    total: float = 0.0
    kind: str = ""  # Kind of the error, if there was one
    error: str = ""
    texts: Sequence[str] = ()  # Query and documents, if they may be logged

    def line(self) -> dict[str, Any]:
        """Return the fields of the log line, with times in milliseconds."""
        fields: dict[str, Any] = {}
        for group in LOG_GROUPS:
            if getattr(self, group[0]):
                fields |= {name: getattr(self, name) for name in group}
        for name in TIMES:
            if name in fields:
                fields[f"{name}_ms"] = round(1000 * fields.pop(name), 3)
        return fields

    def headers(self) -> dict[str, str]:
        """Return the times and sizes as headers, named as in Text Embeddings Inference.

        Times in headers are in whole milliseconds.
        """
        headers = {
            "x-truncated-documents": f"{self.truncated}",
            "x-split-documents": f"{self.split}",
            "x-compute-characters": f"{self.characters}",
            "x-compute-tokens": f"{self.words}",
        }
        if self.unknown_signals:
            headers["x-unknown-signals"] = f"{self.unknown_signals}"
        return headers | {
            "x-total-time": _milliseconds(self.total),
            "x-queue-time": _milliseconds(self.queue),
            "x-inference-time": _milliseconds(self.inference),
            "x-compute-time": _milliseconds(self.queue + self.inference),
            "x-compute-type": self.device,
        }


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f}"
