"""Sends requests to the engine, through a pool of connections that stay open."""

import asyncio
import ssl
import time
from collections.abc import Iterable, Sequence
from http.client import HTTPException
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import aiohttp
from starlette.responses import Response
from yarl import URL

from tweetrerank.pipeline.service.proxy.allowed import LISTS
from tweetrerank.pipeline.service.proxy.call import EngineRequest
from tweetrerank.pipeline.service.service_errors import RequestError

CONNECTIONS = 200  # Most connections to the engine at a time; more requests wait
CONNECTING = 5.0  # Seconds in which a connection must be made
TIMEOUT = 60.0  # Seconds for a response if the client sets no deadline
LARGEST = 32_000_000  # Most bytes of a response
HELD = 4 * LARGEST  # Most bytes of all responses in memory
_HEADER = 65_536  # Most bytes of a header; clusters of many nodes send long ones
_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class Upstream:
    """A search engine with one or more nodes, which are tried one after another.

    ``ca`` is a file with the authority that has signed the engine's certificate. With
    None, the authorities known to the system are used.
    """

    def __init__(self, urls: Sequence[str], ca: str | None = None) -> None:
        self._urls = [url.strip().rstrip("/") for url in urls]
        self._context = ssl.create_default_context(cafile=ca)
        self._session: aiohttp.ClientSession | None = None
        self.held = 0  # Bytes of responses to requests that are still in progress

    def is_open(self) -> bool:
        """Whether the engine answers callers without a password.

        Returns False if the engine cannot be reached.
        """
        url = f"{self._urls[0]}/"
        try:
            with urlopen(url, timeout=CONNECTING, context=self._context) as answer:
                return answer.status == 200
        except (OSError, HTTPException, ValueError):
            return False

    async def close(self) -> None:
        """Close all connections."""
        if self._session:
            await self._session.close()

    async def send(self, request: EngineRequest) -> Response:
        """Send a request to the engine, and return the response.

        The time and the bytes of the response are added to the record of the request.
        The caller must subtract these bytes from ``held`` when the response is no
        longer needed. Raises RequestError if no node answers in time, or if the
        response is too large, by itself or together with others.
        """
        started = time.perf_counter()
        deadline = request.deadline
        if deadline is None:
            deadline = started + TIMEOUT
        try:
            async with asyncio.timeout(deadline - started):
                return await self._first_response(request)
        except TimeoutError:
            problem = f"{self._urls[0]}: the engine does not answer in time"
            raise RequestError("deadline", problem) from None
        finally:
            request.record.engine += time.perf_counter() - started

    async def _first_response(self, request: EngineRequest) -> Response:
        """Return the response of the first node that answers."""
        # The engine may just have closed an open connection, so each request may be
        # sent once more than there are nodes.
        for attempts_left in range(len(self._urls), -1, -1):
            url = self._urls[0]
            try:
                return await self._exchange(request, url)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                has_begun = not isinstance(error, _NOT_CONNECTED)
                # A page of a scroll cannot be read again, so it is not requested twice.
                is_final = has_begun and request.kind == "known"
                if not attempts_left or is_final:
                    name = type(error).__name__
                    problem = f"{url}: the engine does not answer: {name}"
                    raise RequestError("away", problem) from None
                # Otherwise another request has moved it already
                if self._urls[0] == url:
                    self._urls = [*self._urls[1:], url]
        raise AssertionError

    def _open_session(self) -> aiohttp.ClientSession:
        """Return the pool of connections, which must be created in the event loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=self._context),
                # Cookies set for one caller must not be sent for the next.
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("user-agent", "content-type", "accept"),
                max_line_size=_HEADER,
                max_field_size=_HEADER,
            )
        return self._session

    async def _exchange(self, request: EngineRequest, url: str) -> Response:
        """Send a request to one node, and return its response."""
        query = urlencode(request.parameters)
        target = f"{url}{request.path}?{query}".rstrip("?")
        headers = passed(request.headers)
        headers.append(("accept-encoding", encoding_of(url)))
        async with self._open_session().request(
            request.method,
            URL(target, encoded=True),
            headers=headers,
            data=request.body or None,
            timeout=aiohttp.ClientTimeout(None, sock_connect=CONNECTING),
            allow_redirects=False,
        ) as response:
            content = await self._read(response, request)
            answer = Response(content, response.status)
            if request.method == "HEAD":  # The length that a GET would have
                length = response.headers.get("content-length", "0")
                answer.headers["content-length"] = length
        for name, value in passed(response.headers.items()):
            header = (name.encode("latin-1"), value.encode("latin-1", "replace"))
            answer.raw_headers.append(header)
        return answer

    async def _read(
        self,
        response: aiohttp.ClientResponse,
        request: EngineRequest,
    ) -> bytes:
        """Return the body of a response.

        Raises RequestError if it exceeds the limit for one response or for all
        together.
        """
        content = bytearray()
        async for chunk in response.content.iter_any():
            content += chunk
            request.record.held += len(chunk)
            self.held += len(chunk)
            if len(content) > LARGEST:
                raise RequestError(
                    "large",
                    f"found more than {LARGEST} bytes in the engine's response, "
                    "expected less; search for fewer hits",
                )
            if self.held > HELD:
                raise RequestError("overload", "too many large responses at once")
        return bytes(content)


def encoding_of(url: str) -> str:
    """Return the encoding in which a node should send its responses.

    Within one machine, compression would take more time than it saves.
    """
    host = urlsplit(url).hostname or ""
    if host in ("localhost", "::1") or host.startswith("127."):
        return "identity"
    return "gzip"


def passed(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers that pass to the other side, with names in lower case.

    Headers that concern a single connection do not pass, nor do those that the header
    ``Connection`` names.
    """
    lower = [(name.lower(), value) for name, value in headers]
    left_out = set(LISTS["connection"])
    for name, value in lower:
        if name == "connection":
            left_out |= {part.strip().lower() for part in value.split(",")}
    return [(name, value) for name, value in lower if name not in left_out]
