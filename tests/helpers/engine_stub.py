"""A server with a test's responses, and a connection that fails as a test requires."""

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
    """A request to the stub."""

    method: str
    path: str  # Without parameters
    body: Any  # JSON, or a list of JSON lines
    headers: dict[str, str]


Answer = tuple[int, Any]  # Status, and JSON or text


@contextmanager
def stub(answer: Callable[[Request], Answer]) -> Iterator[str]:
    """A server at the yielded address, which answers one request after the other."""

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
    """A :func:`stub` that identifies itself as OpenSearch."""
    return stub(
        lambda request: (200, OPENSEARCH) if request.path == "/" else answer(request)
    )


def without_delays_and_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting before further attempts, and no user of the environment."""
    monkeypatch.setattr(client, "DELAYS", (0.01,) * 4)
    for name in list(os.environ):
        if name.startswith("TWEETRERANK_ENGINE_"):
            monkeypatch.delenv(name)


class Proxy(AbstractContextManager["Proxy"]):
    """Passes connections on to a server, and breaks them.

    ``broken`` gets the number of bytes of a response so far and its next chunk, and
    returns the chunk to pass on. After a shorter one the connection is cut. New
    connections are cut immediately if it ``refuses``.
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
        # The error of a closed listener ends the loop.
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
