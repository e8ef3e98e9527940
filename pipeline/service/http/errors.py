"""Reasons why a request gets no scores; each wire format has its own shape for them."""

from __future__ import annotations

from collections.abc import Sequence

STATUS = {
    "json": 400,
    "empty": 400,
    "many": 400,
    "value": 422,
    "key": 401,
    "model": 404,
    "path": 404,
    "method": 405,
    "slow_body": 408,
    "body": 413,
    "media": 415,
    "overload": 429,
    "internal": 500,
    "unready": 503,
    "deadline": 504,
    "gone": 499,
}
"""Kind of a fault -> HTTP status, where a format has no other."""

Place = Sequence[str | int]
"""Keys and positions that lead to a value: ``("documents", 3, "text")``."""


class Fault(Exception):  # noqa: N818
    """A request that cannot be answered.

    Attributes:
        kind: key of :data:`STATUS`.
        message: what was found, what was expected.
        place: of the value in the request's body; empty if the fault is of no one value.
        retry: seconds after which the client may try again; None if that is no use.
    """

    def __init__(
        self, kind: str, message: str, place: Place = (), retry: int | None = None
    ) -> None:
        super().__init__(message)
        self.kind, self.place, self.retry = kind, place, retry
        where = path_of(place)
        self.message = f"{where}: {message}" if where else message


def path_of(place: Place) -> str:
    """``documents[3].text`` for ``("documents", 3, "text")``."""
    parts = [f"[{key}]" if isinstance(key, int) else f".{key}" for key in place]
    return "".join(parts).removeprefix(".")
