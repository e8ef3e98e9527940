"""A server that answers as a test says, and a way to a server that fails as a test says."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import request_response

from helpers.service_samples import listening

OPENSEARCH = {"version": {"number": "3.1.0", "distribution": "opensearch"}}
"""The answer to ``GET /``."""


class Request(NamedTuple):
    """A request to the stub: path without parameters; JSON, or a list of JSON lines."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]


Answer = tuple[int, Any]  # Status, and JSON or text


@contextmanager
def stub(answer: Callable[[Request], Answer]) -> Iterator[str]:
    """A server at the yielded address, which answers one request after the other."""

    async def endpoint(request: HttpRequest) -> Response:
        lines = [
            json.loads(line) for line in (await request.body()).splitlines() if line
        ]
        is_lines = request.headers.get("content-type") == "application/x-ndjson"
        body = lines if is_lines else next(iter(lines), None)
        given = Request(request.method, request.url.path, body, dict(request.headers))
        status, found = answer(given)
        if isinstance(found, str):
            return Response(found, status, media_type="text/html")
        return Response(json.dumps(found), status, media_type="application/json")

    with listening(request_response(endpoint)) as url:
        yield url


def opensearch(answer: Callable[[Request], Answer]) -> AbstractContextManager[str]:
    """A :func:`stub` that says to be OpenSearch, which ``answer`` is not asked."""
    return stub(
        lambda request: (200, OPENSEARCH) if request.path == "/" else answer(request)
    )


class Proxy(AbstractContextManager["Proxy"]):
    """Passes connections on to a server, and breaks them.

    ``broken`` is called with the number of bytes that an answer has had so far and its next part,
    and gives the part to pass on: if that is shorter, the connection is cut after it. New
    connections are cut at once if it ``refuses``.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        self._target = (parts.hostname, parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{parts.scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self.broken: Callable[[int, bytes], bytes] = lambda size, part: part
        self.refuses, self._open = False, list[socket.socket]()
        threading.Thread(target=self._accept, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        for one in self._open:
            self._end(one)
        self._open.clear()

    @staticmethod
    def _end(one: socket.socket) -> None:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()

    def _accept(self) -> None:
        with suppress(OSError):  # The listener is closed.
            while True:
                client, _ = self._listener.accept()
                if self.refuses:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._open += [client, server]
                for pair in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(
        self, source: socket.socket, target: socket.socket, is_answer: bool
    ) -> None:
        size = 0
        with suppress(OSError):
            while part := source.recv(1 << 16):
                passed = self.broken(size, part) if is_answer else part
                size += len(part)
                target.sendall(passed)
                if len(passed) < len(part):
                    break
        for one in (source, target):
            self._end(one)
