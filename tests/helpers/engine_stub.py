"""A server that answers as a test says, and a way to a server that fails as a test says."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Request(NamedTuple):
    """A request to the stub: path without parameters; JSON, or a list of JSON lines."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]


Answer = tuple[int, Any]  # Status, and JSON or text


@contextmanager
def stub(answer: Callable[[Request], Answer]) -> Iterator[str]:
    """A server at the yielded address; it is an OpenSearch by its headers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body in one packet: the second would wait for the first one's receipt.
        wbufsize = -1

        def do(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            lines = [json.loads(line) for line in content.splitlines() if line]
            is_lines = self.headers.get("content-type") == "application/x-ndjson"
            request = Request(
                self.command,
                urlsplit(self.path).path,
                lines if is_lines else next(iter(lines), None),
                {name.lower(): value for name, value in self.headers.items()},
            )
            status, found = answer(request)
            text = found if isinstance(found, str) else json.dumps(found)
            kind = "text/html" if isinstance(found, str) else "application/json"
            self.send_response(status)
            self.send_header("content-type", f"{kind}; charset=UTF-8")
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_PUT = do_DELETE = do  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


OPENSEARCH = {"version": {"number": "3.1.0", "distribution": "opensearch"}}
"""The answer to ``GET /``."""


class Proxy:
    """Passes connections on to a server, and breaks them.

    Attributes:
        url: of the proxy.
        broken: called with the number of bytes that an answer has had so far and its next part;
            gives the part to pass on. If that is shorter, the connection is cut after it.
        refuses: whether new connections are cut at once.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        self._target = (parts.hostname, parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{parts.scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self.broken: Callable[[int, bytes], bytes] = lambda size, part: part
        self.refuses = False
        self.connections = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            if self.refuses:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._open += [client, server]
            threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        size = 0
        try:
            while part := source.recv(1 << 16):
                passed = self.broken(size, part) if is_answer else part
                size += len(part)
                target.sendall(passed)
                if len(passed) < len(part):
                    break
        except OSError:
            pass
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
