"""From a request's body to a :class:`ScoreRequest`: limits, JSON, types."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pipeline.service.errors import RequestError

DEADLINES = ("x-request-timeout-ms", "x-envoy-expected-rq-timeout-ms")
"""Headers with the milliseconds that the client, or a proxy before us, will wait."""


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

    @classmethod
    def of(cls, documents: int, body: int) -> Limits:
        """Limits of all requests together that fit these limits of one."""
        return cls(documents, body, 10 * documents, held=32 * body)


class BodyReader:
    """Reads bodies of requests, within limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self._held = limits, 0

    @asynccontextmanager
    async def read(self, request: Request, most: int | None = None) -> AsyncIterator[bytes]:
        """A request's body, unpacked; it counts among those that are held until it is left.

        ``most``: bytes, where they are fewer than the limit of all bodies.

        Raises RequestError for a body that is too large, too slow, cut, packed in another way
        than by gzip, or too much beside those of others.
        """
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("gzip", "identity"):
            problem = f"found the encoding {coding[:100]!r} of the body, expected gzip or none"
            raise RequestError("media", problem)
        body = bytearray()
        try:
            await self._fill(body, request, min(self.limits.body, most or self.limits.body), coding)
            yield bytes(body)
        finally:
            self._held -= len(body)

    async def _fill(self, body: bytearray, request: Request, limit: int, coding: str) -> None:
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
                        raise RequestError("overload", "too many large requests at once", retry=1)
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
        if (text := request.headers.get(name)) is not None:
            if not (text.isascii() and text.isdigit() and len(text) < 12):
                problem = f"{name}: found {text[:100]!r}, expected milliseconds"
                raise RequestError("value", problem)
            if milliseconds := int(text):
                started: float = request.state.record.started
                return started + milliseconds / 1000
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
