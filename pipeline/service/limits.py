"""Limits of requests: body size and type, deadline, and whether the client waits."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tweetrerank.pipeline.service.service_errors import RequestError

LARGE = 200_000
"""Larger bodies, in bytes, are read by a thread, as they would hold up the event loop.
"""

DEADLINES = ("x-request-timeout-ms", "x-envoy-expected-rq-timeout-ms")
"""Headers that say how many milliseconds the client, or its proxy, will wait."""

GZIP = 31  # zlib's code for the format gzip

Value = TypeVar("Value")


@dataclass(frozen=True)
class Limits:
    """Limits for each request, for all requests together, and for callers."""

    documents: int = 2000  # Most documents in a request
    body: int = 8_000_000  # Most bytes in the body of a request
    waiting_documents: int = 20_000  # Most documents that wait or are being scored
    waiting_requests: int = 512
    held: int = 256_000_000  # Most bytes of all bodies in memory together
    seconds: float = 30.0  # Seconds in which a body must arrive
    answer: float = 60.0  # Seconds until the response, if the client sets no deadline
    keys: Sequence[str] = ()
    """The keys of callers. Each request needs one of them, unless there are none.

    The content of the sequence may change while the service runs.
    """
    hosts: Sequence[str] = ()
    """Names or ``*.example.com`` allowed in the header Host. If empty, all are allowed.
    """
    origins: Sequence[str] = ()  # Sites whose pages may call the service's own paths
    rate: int | None = None  # Most requests of a client in a second, or None for any


class BodyReader:
    """Reads the bodies of requests within limits, and counts the bytes it holds."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._held = 0

    @asynccontextmanager
    async def read(
        self, request: Request, most: int | None = None
    ) -> AsyncIterator[bytes]:
        """Read and unpack the body of a request.

        The body counts as held in memory until the context ends. ``most`` limits the
        bytes of this body further than the limit for every body. Raises RequestError if
        the body is too large, arrives too slowly or not completely, has an encoding
        other than gzip, or does not fit into the memory for all bodies.
        """
        limit = min(self.limits.body, most or self.limits.body)
        body = bytearray()
        try:
            await self._fill(body, request, limit)
            yield bytes(body)
        finally:
            self._held -= len(body)

    async def _fill(self, body: bytearray, request: Request, limit: int) -> None:
        unpacker = _unpacker_of(request)
        _check_declared_length(request, limit)
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for chunk in request.stream():
                    if unpacker:
                        chunk = unpacker.decompress(chunk, limit + 1 - len(body))
                    body += chunk
                    self._held += len(chunk)
                    self._check_size(len(body), limit)
        except ClientDisconnect:
            raise RequestError("gone", "the client has gone") from None
        except zlib.error as error:
            problem = f"found a body that is no gzip: {error}"
            raise RequestError("json", problem) from None
        except TimeoutError:
            problem = f"found no whole body after {self.limits.seconds:g} s"
            raise RequestError("slow_body", problem) from None

    def _check_size(self, size: int, limit: int) -> None:
        if size > limit:
            raise _too_large(limit)
        if self._held > max(self.limits.held, size):
            raise RequestError("overload", "too many large requests at once")


def _unpacker_of(request: Request) -> Any:
    """Return an object that unpacks the body, or None if the body is not packed.

    Raises RequestError if the encoding is unknown.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding == "gzip":
        return zlib.decompressobj(GZIP)
    if encoding == "identity":
        return None
    problem = f"found the encoding {encoding[:100]!r} of the body"
    raise RequestError("media", f"{problem}, expected gzip or none")


def _check_declared_length(request: Request, limit: int) -> None:
    with suppress(ValueError):
        if int(request.headers.get("content-length", 0)) > limit:
            raise _too_large(limit)


def _too_large(limit: int) -> RequestError:
    problem = f"found a body of more than {limit} bytes, expected at most that"
    return RequestError("body", problem)


def check_media_type(request: Request) -> None:
    """Raise RequestError unless the body is declared as JSON."""
    header = request.headers.get("content-type", "")
    media_type = header.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        problem = f"found {media_type[:100] or 'no content type'}"
        raise RequestError("media", f"{problem}, expected application/json")


def deadline_of(request: Request) -> float | None:
    """Return the client's deadline, or None if the client sets none.

    The deadline is in seconds on the clock of ``time.perf_counter``. Raises
    RequestError if a header has no whole number of milliseconds.
    """
    for name in DEADLINES:
        text = request.headers.get(name, "0")
        if not (text.isascii() and text.isdigit() and len(text) < 12):
            problem = f"{name}: found {text[:100]!r}, expected milliseconds"
            raise RequestError("value", problem)
        milliseconds = int(text)
        if milliseconds:
            return float(request.state.record.started + milliseconds / 1000)
    return None


async def unless_gone(work: Awaitable[Response], request: Request) -> Response:
    """Return the result of ``work``, or cancel the work if the client disconnects.

    Raises RequestError if the client has disconnected.
    """

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass  # The rest of the body is ignored

    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise RequestError("gone", "the client has gone")
    finally:
        task.cancel()
        disconnect.cancel()


async def apart(size: int, work: Callable[[], Value]) -> Value:
    """Do work on ``size`` bytes and return its result.

    More than :data:`LARGE` bytes are worked on in a thread, so that the event loop can
    serve other requests.
    """
    if size > LARGE:
        return await asyncio.to_thread(work)
    return work()
