"""Requests to the engine: one pool of connections that stay open."""

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

from tweetrerank.pipeline.service.proxy.allowed import LISTS, EngineRequest
from tweetrerank.pipeline.service.service_errors import RequestError

CONNECTIONS = 200  # To the engine at a time; more requests wait
CONNECTING = 5.0  # Seconds for a connection
TIMEOUT = 60.0  # Seconds for a response, unless the client says how long it waits
LARGEST = 32_000_000  # Bytes of a response
HELD = 4 * LARGEST  # Bytes of all responses that are read or being answered
_NOT_CONNECTED = aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError
_HEADER = 65_536  # Bytes of a header; answers with many nodes have long ones


class Upstream:
    """A search engine of some nodes; the next one is tried where one does not answer. ``ca``: file
    of the authority that has signed its certificate; None for the known ones."""

    def __init__(self, urls: Sequence[str], ca: str | None = None) -> None:
        self._urls = [url.strip().rstrip("/") for url in urls]
        self._context = ssl.create_default_context(cafile=ca)
        self._session: aiohttp.ClientSession | None = None
        self.held = 0  # Bytes of the responses to requests that are not answered yet

    def is_open(self) -> bool:
        """Whether the engine answers callers without a password; False if it does not answer."""
        try:
            with urlopen(
                f"{self._urls[0]}/", timeout=CONNECTING, context=self._context
            ) as answer:
                return answer.status == 200
        except (OSError, HTTPException, ValueError):
            return False

    async def close(self) -> None:
        """Close the connections."""
        if self._session:
            await self._session.close()

    async def send(self, request: EngineRequest) -> Response:
        """The response to a request; the record counts its time, and the bytes held. Raises
        RequestError if no node responds, or the response is too large, also beside others."""
        started = time.perf_counter()
        end = started + TIMEOUT if request.deadline is None else request.deadline
        try:
            async with asyncio.timeout(end - started):
                return await self._first_response(request)
        except TimeoutError:
            problem = f"{self._urls[0]}: the engine does not answer in time"
            raise RequestError("deadline", problem) from None
        finally:
            request.record.engine += time.perf_counter() - started

    async def _first_response(self, request: EngineRequest) -> Response:
        """The response of the first node that answers."""
        # A connection that was kept open may be closed by now: a search may be sent twice.
        for left_over in range(len(self._urls), -1, -1):
            url = self._urls[0]
            try:
                return await self._exchange(request, url)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                has_begun = not isinstance(error, _NOT_CONNECTED)
                # A page of a scroll that is lost cannot be read again.
                if not left_over or (has_begun and request.kind == "known"):
                    problem = (
                        f"{url}: the engine does not answer: {type(error).__name__}"
                    )
                    raise RequestError("away", problem) from None
                if self._urls[0] == url:  # Unless another search has noticed it before.
                    self._urls = [*self._urls[1:], url]
        raise AssertionError

    async def _exchange(self, request: EngineRequest, url: str) -> Response:
        """The response of a node."""
        if self._session is None:  # Made in the event loop.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=self._context),
                # Cookies of one caller are not for the next.
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("user-agent", "content-type", "accept"),
                max_line_size=_HEADER,
                max_field_size=_HEADER,
            )
        record, content = request.record, bytearray()
        async with self._session.request(
            request.method,
            URL(
                f"{url}{request.path}?{urlencode(request.parameters)}".rstrip("?"),
                encoded=True,
            ),
            headers=[*passed(request.headers), ("accept-encoding", encoding_of(url))],
            data=request.body or None,
            timeout=aiohttp.ClientTimeout(None, sock_connect=CONNECTING),
            allow_redirects=False,
        ) as response:
            async for chunk in response.content.iter_any():
                content += chunk
                record.held, self.held = (
                    record.held + len(chunk),
                    self.held + len(chunk),
                )
                if len(content) > LARGEST:
                    problem = (
                        f"found more than {LARGEST} bytes in the engine's response"
                    )
                    raise RequestError(
                        "large", f"{problem}, expected less; search for fewer hits"
                    )
                if self.held > HELD:
                    raise RequestError("overload", "too many large responses at once")
            answer = Response(bytes(content), response.status)
            if request.method == "HEAD":  # The length of what GET would have.
                answer.headers["content-length"] = response.headers.get(
                    "content-length", "0"
                )
        for name, value in passed(response.headers.items()):
            answer.raw_headers.append(
                (name.encode("latin-1"), value.encode("latin-1", "replace"))
            )
        return answer


def encoding_of(url: str) -> str:
    """Encoding of a node's responses: within a machine, packing takes longer than it saves."""
    host = urlsplit(url).hostname or ""
    return (
        "identity"
        if host in ("localhost", "::1") or host.startswith("127.")
        else "gzip"
    )


def passed(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Headers that pass: neither of one connection or side, nor those that ``Connection`` names."""
    given = [(name.lower(), value) for name, value in headers]
    named = {
        n.strip().lower()
        for key, v in given
        if key == "connection"
        for n in v.split(",")
    }
    left_out = {*LISTS["connection"], *named}
    return [(name, value) for name, value in given if name not in left_out]
