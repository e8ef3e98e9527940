"""Errors that refuse requests: their kinds, HTTP statuses and responses."""

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
"""The HTTP status for each kind of error. A wire format may override some of them."""

TRANSIENT = ("overload", "rate", "unready")
"""Kinds of errors after which a client may try again in a second."""

UNREAD_BODY = ("body", "slow_body")
"""Kinds of errors that leave a part of the body unread, so the connection must close.
"""


class RequestError(Exception):
    """A request is refused or has failed.

    ``kind`` is a key of :data:`STATUS`. If a value in the body is wrong, the message
    begins with the path of that value.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return self.message


class ErrorFormat:
    """The shape of error responses, here ``{"error": …}``."""

    name: ClassVar[str] = ""
    statuses: ClassVar[Mapping[str, int]] = {}
    """HTTP statuses by kind of error, where they differ from :data:`STATUS`."""

    def explain(self, error: RequestError, request_id: str) -> Any:
        """Return the body of the response as a value that orjson can write."""
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
