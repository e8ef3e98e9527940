"""A server whose responses a test decides, and a proxy that breaks connections."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import request_response

from helpers.service_samples import listening
from tweetrerank.indexes.engines import client

OPENSEARCH = {"version": {"number": "3.1.0", "distribution": "opensearch"}}
"""The response to ``GET /``."""


class Request(NamedTuple):
    """A request that the stub has got."""

    method: str
    path: str  # Without the URL's parameters
    body: Any  # The JSON of the body, or a list if it has JSON lines
    headers: dict[str, str]


Answer = tuple[int, Any]  # (status, JSON or text of the body)


@contextmanager
def stub(answer: Callable[[Request], Answer]) -> Iterator[str]:
    """Run a server that responds with ``answer``, and yield its address.

    It answers one request after the other. An answer that is a text is sent as HTML.
    """

    async def endpoint(http_request: HttpRequest) -> Response:
        status, content = answer(_request(http_request, await http_request.body()))
        if isinstance(content, str):
            return Response(content, status, media_type="text/html")
        return Response(json.dumps(content), status, media_type="application/json")

    with listening(request_response(endpoint)) as url:
        yield url


def _request(http_request: HttpRequest, content: bytes) -> Request:
    headers = dict(http_request.headers)
    lines = [json.loads(line) for line in content.splitlines() if line]
    body: Any = lines
    if headers.get("content-type") != "application/x-ndjson":
        body = next(iter(lines), None)
    return Request(http_request.method, http_request.url.path, body, headers)


def opensearch(answer: Callable[[Request], Answer]) -> AbstractContextManager[str]:
    """Return a :func:`stub` that also identifies itself as OpenSearch."""
    return stub(
        lambda request: (200, OPENSEARCH) if request.path == "/" else answer(request)
    )


def without_delays_and_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait before further attempts, nor use credentials of the environment."""
    monkeypatch.setattr(client, "DELAYS", (0.01,) * 4)
    for name in list(os.environ):
        if name.startswith("TWEETRERANK_ENGINE_"):
            monkeypatch.delenv(name)


class Proxy(AbstractContextManager["Proxy"]):
    """Passes connections on to a server, and breaks them.

    The function ``broken`` gets the number of bytes passed of a response, and the next
    chunk. It returns the chunk to pass on. If that is shorter, the connection is cut
    after it. If ``refuses`` is true, new connections are cut at once.
    """

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        assert address.hostname
        self._target = (address.hostname, address.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{address.scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self.broken: Callable[[int, bytes], bytes] = lambda size, chunk: chunk
        self.refuses = False
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        for connection in self._open:
            self._end(connection)
        self._open.clear()

    @staticmethod
    def _end(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    def _accept(self) -> None:
        # The loop ends with the error that a closed listener raises.
        with suppress(OSError):
            while True:
                client_side, _ = self._listener.accept()
                if self.refuses:
                    client_side.close()
                    continue
                server_side = socket.create_connection(self._target)
                self._open += [client_side, server_side]
                self._start(client_side, server_side, is_response=False)
                self._start(server_side, client_side, is_response=True)

    def _start(
        self, source: socket.socket, target: socket.socket, is_response: bool
    ) -> None:
        arguments = (source, target, is_response)
        threading.Thread(target=self._pass, args=arguments, daemon=True).start()

    def _pass(
        self, source: socket.socket, target: socket.socket, is_response: bool
    ) -> None:
        size = 0
        with suppress(OSError):
            while chunk := source.recv(1 << 16):
                passed = self.broken(size, chunk) if is_response else chunk
                size += len(chunk)
                target.sendall(passed)
                if len(passed) < len(chunk):
                    break
        self._end(source)
        self._end(target)
