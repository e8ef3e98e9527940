"""Errors of requests: their kinds, statuses and responses."""

from collections.abc import Mapping
from typing import Any, ClassVar

import orjson
from starlette.responses import Response

from tweetrerank.pipeline.service.request_record import Record

STATUS: Mapping[str, int] = {
    "json": 400,
    "empty": 400,
    "many": 400,
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
    "value": 422,
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
"""Kind of an error -> HTTP status. A wire format may change some."""

TRANSIENT = ("overload", "rate", "unready")
"""Kinds after which a client may try again in a second."""

UNREAD_BODY = ("body", "slow_body")
"""Kinds that leave a part of the body unread, so that the connection must close."""


class RequestError(Exception):
    """Failure of a request.

    ``kind`` is a key of :data:`STATUS`. The message of a wrong value begins with the
    path of the value.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return self.message


class ErrorFormat:
    """Shape of error responses: ``{"error": …}``."""

    name: ClassVar[str] = ""
    statuses: ClassVar[Mapping[str, int]] = {}
    """Kind of an error -> HTTP status, where it differs from :data:`STATUS`."""

    def explain(self, error: RequestError, request_id: str) -> Any:
        """Return the response's body as a value for orjson."""
        return {"error": error.message}

    def status(self, error: RequestError) -> int:
        """Return the HTTP status of an error."""
        return self.statuses.get(error.kind, STATUS[error.kind])

    def refuse(self, error: RequestError, record: Record) -> Response:
        """Return the response to a failed request, and note the error in its record."""
        record.kind = error.kind
        record.error = error.message
        response = Response(
            orjson.dumps(self.explain(error, record.request_id)),
            self.status(error),
            media_type="application/json",
        )
        if error.kind in TRANSIENT:
            response.headers["retry-after"] = "1"
        if error.kind == "key":
            response.headers["www-authenticate"] = "Bearer"
        if error.kind in UNREAD_BODY:
            response.headers["connection"] = "close"
        return response
