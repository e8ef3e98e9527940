"""Limits of requests: body, media type, deadline, and the client's presence."""

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
"""Bytes that are too many for the event loop; a thread reads them."""

DEADLINES = ("x-request-timeout-ms", "x-envoy-expected-rq-timeout-ms")
"""Headers with the milliseconds that the client, or a proxy before us, will wait."""

GZIP = 31  # zlib's code of the format

Value = TypeVar("Value")


@dataclass(frozen=True)
class Limits:
    """Limits of a request, of all requests together, and of callers."""

    documents: int = 2000  # In a request
    body: int = 8_000_000  # Bytes of a request
    waiting_documents: int = 20_000  # In the queue and in work
    waiting_requests: int = 512
    held: int = 256_000_000  # Bytes of all bodies in memory
    seconds: float = 30.0  # Until a body has arrived
    answer: float = 60.0  # Seconds until the response, if the client sets no deadline
    keys: Sequence[str] = ()
    """Keys of callers, of which each request needs one. Empty: no key is needed. The
    sequence may change while the service runs."""
    hosts: Sequence[str] = ()
    """Names allowed in the header Host, or ``*.example.com``. Empty: any."""
    origins: Sequence[str] = ()  # Sites whose pages may call the service's own paths
    rate: int | None = None  # Requests of a client in a second


class BodyReader:
    """Reader of requests' bodies within limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._held = 0

    @asynccontextmanager
    async def read(
        self, request: Request, most: int | None = None
    ) -> AsyncIterator[bytes]:
        """Read a request's body, and unpack it.

        The body counts as held in memory until the context ends. ``most`` is a limit
        of bytes below that of all bodies. Raises RequestError if the body is too large,
        too slow or incomplete, has an encoding other than gzip, or would exceed the
        memory for all bodies.
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
    """Return an object that unpacks the body, or None; raises RequestError."""
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
    """Return the client's deadline on the clock of ``time.perf_counter``.

    Raises RequestError for a header without milliseconds.
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
    """Return the result of ``work``, or cancel it if the client disconnects.

    Raises RequestError in the second case.
    """

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass  # The rest of the body

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
    """Return the result of work on ``size`` bytes; many bytes are for a thread."""
    if size > LARGE:
        return await asyncio.to_thread(work)
    return work()
