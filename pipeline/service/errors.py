"""Requests that get no result, and how each part of the service writes that down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson
from starlette.responses import Response

from pipeline.service.record import Record

STATUS = {
    "json": 400,
    "empty": 400,
    "many": 400,
    "value": 422,
    "key": 401,
    "index": 403,
    "refused": 403,
    "model": 404,
    "path": 404,
    "method": 405,
    "slow_body": 408,
    "body": 413,
    "media": 415,
    "host": 421,
    "overload": 429,
    "rate": 429,
    "headers": 431,
    "gone": 499,
    "internal": 500,
    "away": 502,
    "large": 502,
    "unready": 503,
    "deadline": 504,
}
"""Kind of an error -> HTTP status, unless a format has another."""

Location = Sequence[str | int]
"""Keys and positions that lead to a value: ``("documents", 3, "text")``."""


class RequestError(Exception):
    """A request that gets no result: ``kind`` is a key of :data:`STATUS`, ``location`` that of the
    wrong value in the body, ``retry`` the seconds after which the client may try again."""

    def __init__(
        self, kind: str, message: str, location: Location = (), retry: int | None = None
    ) -> None:
        super().__init__(message)
        self.kind, self.location, self.retry = kind, location, retry
        parts = [f"[{key}]" if isinstance(key, int) else f".{key}" for key in location]
        path = "".join(parts).removeprefix(".")
        self.message = f"{path}: {message}" if path else message

    def __reduce__(self) -> tuple[Any, ...]:
        return RequestError, (self.kind, str(self), self.location, self.retry)


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
        if error.retry is not None:
            response.headers["retry-after"] = str(error.retry)
        if error.kind == "key":
            response.headers["www-authenticate"] = "Bearer"
        if error.kind in ("body", "slow_body"):
            # The rest of the body is not read.
            response.headers["connection"] = "close"
        return response
