"""Requests within limits: bodies, deadlines, lost clients; requests that get no result."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pipeline.service.record import Record

STATUS = {"json": 400, "empty": 400, "many": 400, "value": 422, "key": 401, "index": 403}
STATUS |= {"refused": 403, "model": 404, "path": 404, "method": 405, "slow_body": 408, "body": 413}
STATUS |= {"media": 415, "host": 421, "overload": 429, "rate": 429, "headers": 431, "gone": 499}
STATUS |= {"internal": 500, "away": 502, "large": 502, "unready": 503, "deadline": 504}
"""Kind of an error -> HTTP status, unless a format has another."""
PASSING = ("overload", "rate", "unready")  # After which a client may try again in a second

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
    """Upper bounds of a request, and of all requests together."""

    documents: int = 2000  # Of a request
    body: int = 8_000_000  # Bytes of a request
    waiting_documents: int = 20_000  # In the queue and in work
    waiting_requests: int = 512
    held: int = 256_000_000  # Bytes of all bodies that are being read or answered
    seconds: float = 30.0  # For the arrival of a body
    answer: float = 60.0  # Seconds for the answer, where the client sets no deadline


class BodyReader:
    """Reads bodies of requests, within limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self._held = limits, 0

    @asynccontextmanager
    async def read(self, request: Request, most: int | None = None) -> AsyncIterator[bytes]:
        """A request's body, unpacked; it counts among those that are held until it is left.

        ``most``: bytes, where they are fewer than the limit of all bodies. Raises RequestError for
        a body that is too large, too slow, cut, packed in another way than by gzip, or too much
        beside those of others.
        """
        body = bytearray()
        try:
            await self._fill(body, request, min(self.limits.body, most or self.limits.body))
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
                        raise RequestError("overload", "too many large requests at once")
        except ClientDisconnect:
            raise RequestError("gone", "the client has gone") from None
        except zlib.error as error:
            raise RequestError("json", f"found a body that is no gzip: {error}") from None
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
            raise RequestError("value", f"{name}: found {text[:100]!r}, expected milliseconds")
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
