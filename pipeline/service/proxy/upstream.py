"""Requests to the engine: one pool of connections that stay open."""

from __future__ import annotations

import ssl
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote_plus, urlsplit
from urllib.request import urlopen

import aiohttp
from yarl import URL

from pipeline.service.errors import RequestError
from pipeline.service.record import Record

CONNECTIONS = 200  # To the engine at a time; more requests wait
CONNECTING = 5.0  # Seconds for a connection
TIMEOUT = 60.0  # Seconds for a response, unless the client says how long it waits
LARGEST = 32_000_000  # Bytes of a response
UNPACKED = 1_000_000  # Bytes of a packed response that are unpacked at a time
HELD = 4 * LARGEST  # Bytes of all responses that are read or being answered

_OURS = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
        *("transfer-encoding", "upgrade", "content-length", "content-encoding", "accept-encoding"),
        *("host", "expect", "cookie", "set-cookie", "date", "server", "x-request-id"),
        *("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    )
)
"""Headers of one connection, or of one side; all others pass, ``Authorization`` among them."""

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class EngineRequest:
    """A request as it goes on to the engine."""

    method: str
    target: str  # Path of the engine, in visible ASCII
    indexes: Sequence[str]  # Names and patterns in the path
    query: str  # Parameters of the path, as they came
    headers: Headers
    body: bytes
    record: Record
    deadline: float | None  # On the clock of ``time.perf_counter``; None is never

    @property
    def parameters(self) -> Sequence[tuple[str, str]]:
        """Names and values of the path's parameters."""
        # The engines separate them by semicolons too.
        return parse_qsl(self.query.replace(";", "&"), keep_blank_values=True)

    def path(self, without: Sequence[str] = ()) -> str:
        """Path and parameters, without some of them."""
        parts = [(unquote_plus(p.partition("=")[0]), p) for p in self.query.split("&")]
        query = "&".join(part for name, part in parts if name not in without)
        return f"{self.target}?{query}" if query else self.target


class EngineResponse(NamedTuple):
    """A response of the engine."""

    status: int
    headers: Headers
    content: bytes


class Upstream:
    """A search engine of some nodes; the next one is tried where one does not answer.

    ``ca``: file of the authority that has signed its certificate; None for the known ones.
    """

    def __init__(self, urls: Sequence[str], ca: str | None = None) -> None:
        self._urls = [url.strip().rstrip("/") for url in urls]
        self._context = ssl.create_default_context(cafile=ca)
        self._session: aiohttp.ClientSession | None = None
        self._held = 0

    def is_open(self) -> bool:
        """Whether the engine answers callers without a password; False if it does not answer."""
        try:
            with urlopen(f"{self._urls[0]}/", timeout=CONNECTING, context=self._context) as answer:
                return answer.status == 200
        except (OSError, HTTPException, ValueError):
            return False

    async def close(self) -> None:
        """Close the connections."""
        if self._session:
            await self._session.close()

    def release(self, record: Record) -> None:
        """Forget the responses to a request, which is answered."""
        self._held -= record.held

    async def send(self, request: EngineRequest, path: str, body: bytes) -> EngineResponse:
        """The response to a request with another path, in visible ASCII, and another body.

        Headers of the client's connection are left out; the record counts the bytes to be released.

        Raises RequestError if no node responds, or the response is too large, also beside others.
        """
        sent, now = passed(request.headers), time.perf_counter()
        end = now + TIMEOUT if request.deadline is None else request.deadline
        if end <= now:
            raise RequestError("deadline", "the deadline of the request is past")
        # A connection that was kept open may be closed by now: a search may be sent twice.
        for last in [False] * len(self._urls) + [True]:
            url, left = self._urls[0], max(0.001, end - time.perf_counter())
            try:
                async with self._open().request(
                    request.method,
                    URL(url + path, encoded=True),
                    headers=[*sent, ("accept-encoding", encoding_of(url))],
                    data=body or None,
                    timeout=aiohttp.ClientTimeout(left, sock_connect=CONNECTING),
                    allow_redirects=False,
                ) as response:
                    content = await self._read(response, request.record)
                    return EngineResponse(
                        response.status, passed(response.headers.items()), content
                    )
            except (aiohttp.ClientError, OSError, ValueError) as error:
                # Of a node that takes no connection, another one may do the work.
                is_late = isinstance(error, TimeoutError)
                if is_late and not isinstance(error, aiohttp.ConnectionTimeoutError):
                    problem = f"{url}: the engine does not answer in time"
                    raise RequestError("deadline", problem) from None
                if last:
                    problem = f"{url}: the engine does not answer: {type(error).__name__}"
                    raise RequestError("away", problem) from None
                # Unless another search has noticed it before.
                if self._urls[0] == url:
                    self._urls = [*self._urls[1:], url]
        raise AssertionError

    async def _read(self, response: aiohttp.ClientResponse, record: Record) -> bytes:
        content, encoding = bytearray(), response.headers.get("content-encoding", "identity")
        if encoding not in ("gzip", "identity"):
            raise ValueError(f"found the encoding {encoding}, expected gzip")
        reader = zlib.decompressobj(31) if encoding == "gzip" else None
        async for chunk in response.content.iter_any():
            for part in _unpacked(reader, chunk) if reader else (chunk,):
                content += part
                record.held, self._held = record.held + len(part), self._held + len(part)
                if len(content) > LARGEST:
                    problem = f"found more than {LARGEST} bytes in the engine's response"
                    expected = "expected less; search for fewer hits or fields"
                    raise RequestError("large", f"{problem}, {expected}")
                if self._held > HELD:
                    raise RequestError("overload", "too many large responses at once", retry=1)
        if reader and content and not reader.eof:
            raise ValueError("found no end of a packed response")
        return bytes(content)

    def _open(self) -> aiohttp.ClientSession:
        """The pool, made in the event loop at its first use."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=self._context),
                # What is unpacked is bounded.
                auto_decompress=False,
                # Cookies of one caller are not for the next.
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("user-agent", "content-type", "accept"),
                # Answers with many nodes have long headers.
                max_line_size=65_536,
                max_field_size=65_536,
            )
        return self._session


def encoding_of(url: str) -> str:
    """Of the responses of a node: within a machine, packing takes longer than it saves."""
    host = urlsplit(url).hostname or ""
    return "identity" if host in ("localhost", "::1") or host.startswith("127.") else "gzip"


def _unpacked(reader: zlib._Decompress, chunk: bytes) -> Iterator[bytes]:
    """The content of a part of a gzip body, piece by piece; raises ValueError."""
    while chunk:
        try:
            yield reader.decompress(chunk, UNPACKED)
        except zlib.error as error:
            raise ValueError(f"found a body that is no gzip: {error}") from None
        chunk = reader.unconsumed_tail


def passed(headers: Iterable[tuple[str, str]]) -> Headers:
    """The headers that pass."""
    return [(name, value) for name, value in headers if name.lower() not in _OURS]
