"""Mutated HTTP over real connections: each request is refused or answered in time.

``TWEETRERANK_REQUESTS=100000 python -m pytest
tests/pipeline/test_service_connections.py`` sends more. Request n is always the same.
"""

import json
import os
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from conftest import Patch
from helpers.service_samples import DOCUMENTS, QUERY, TEXTS, app_of, listening

from tweetrerank.pipeline.service.connections import Connection

REQUESTS = int(os.environ.get("TWEETRERANK_REQUESTS", "150"))
ROUND = 1000
"""Requests between two checks of memory and of a valid request's scores."""
SLOWEST = 5.0
"""Seconds for a response, with requests of 2,000 documents and of 1 MB at a time."""
SUCCESSFUL = {200, 307}
REFUSED = {400, 401, 404, 405, 408, 411, 413, 414, 415, 422, 424, 429, 431, 503, 504}

# Fields of other types are those of test_service_errors.
SPECIAL = [
    b"[" * 3000 + b"]" * 3000,
    b'{"a":' * 3000 + b"1" + b"}" * 3000,
    b"[" * 100_000,
    b"1e999999",
    b"9" * 20_000,
    b"NaNaN",
    b'"\\ud83d\\ud83d\\u0000\\udc00"',
    b'"\xff\xfe\xc0"',
]
"""JSON, or none, in place of a value."""
PATHS = ["/rerank", "/v1/rerank", "/v2/rerank"]
OTHER_PATHS = [
    "/",
    "/info",
    "/health",
    "/metrics",
    "/openapi.json",
    "/models",
    "/rerank/",
    "//rerank",
    "/%72erank",
    "/rerank?x=%ff",
    "/../rerank",
    "/page.css/../../x",
    "/" * 999,
    "/api/search?q=x",
    "/page.css/%2e%2e/app.py",
    "*",
    "http://other/rerank",
    "/\xff",
]
METHODS = ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "post", "X"]
SMALL = 10_000
"""Bytes of a body that nobody reads. After a large one the response is lost with the
connection."""
LENGTHS = ["-1", "x", "", "99999999999", "+3", "0"]
OTHER_VALUES = ["", "Bearer", "Bearer \x01", "x" * 5000, "Basic eDp4", "é" * 9]
HEADERS = {
    "Content-Type": [
        "",
        "text/plain",
        "application/json; charset=utf-16",
        "a/b+json",
        ";",
        "é" * 99,
        "multipart/form-data",
    ],
    "Content-Encoding": ["gzip", "br", "identity", "x"],
    "X-Request-Timeout-Ms": ["0", "1", "20", "-1", "1e9", "x", "9" * 50, "²", ""],
    "Authorization": OTHER_VALUES,
    "X-Request-Id": OTHER_VALUES,
    "Cookie": OTHER_VALUES,
    "Accept": OTHER_VALUES,
    "Expect": OTHER_VALUES,
}
HEAD = b"POST /rerank HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"


def body_of(chance: random.Random) -> bytes:
    """The body of a request, its size mostly small; often with changed bytes."""
    count = chance.choice((1, 3, 10, 100) * 20 + (500, 1999, 2000, 2001, 2500))
    documents = [chance.choice([*TEXTS, *DOCUMENTS]) for _ in range(count)]
    if chance.random() < 0.02:
        documents[0] = "long " * chance.choice((50_000, 200_000, 1_700_000))
    content: dict[str, object] = {"query": QUERY, "documents": documents}
    text = json.dumps(content, ensure_ascii=chance.random() < 0.5)
    body = text.encode(errors="surrogatepass")
    if chance.random() < 0.2:
        body = body.replace(json.dumps(QUERY).encode(), chance.choice(SPECIAL))
    if chance.random() < 0.3:
        start = chance.randint(0, len(body))
        new = chance.randbytes(chance.randint(1, 5))
        end = start + chance.randint(0, 3)
        body = body[:start] + new + body[end:]
    return body


@dataclass
class RawRequest:
    """A request as bytes.

    ``is_http``: it is valid HTTP, so that it has a response. Without, the connection
    may just end.
    """

    body: bytes
    path: str
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    tail: bytes = b""
    is_http: bool = True

    def content(self) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1"]
        lines += ["Host: localhost", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        head = "\r\n".join(lines) + "\r\n\r\n"
        return head.encode() + self.body + self.tail


def request(number: int) -> RawRequest:
    """Request ``number``, every fourth one strange as HTTP."""
    chance = random.Random(number)
    path = chance.choice(PATHS)
    body = body_of(chance)
    kind = chance.randrange(44)
    if kind in (1, 2):
        body = body[:SMALL]
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    made_request = RawRequest(body, path, headers=headers)
    mutate(made_request, kind, chance)
    return made_request


def mutate(request: RawRequest, kind: int, chance: random.Random) -> None:
    """Change a request; most kinds leave it as it is."""
    headers = request.headers
    if kind == 1:
        request.path = chance.choice(OTHER_PATHS)
        request.is_http = request.path.isascii()
    elif kind == 2:
        request.method = chance.choice(METHODS)
        request.is_http = request.method not in ("post", "X")
    elif kind in (3, 4, 5):
        name = chance.choice(list(HEADERS))
        headers[name] = chance.choice(HEADERS[name])
    elif kind == 7:
        headers["Content-Length"] = chance.choice(LENGTHS)
        request.is_http = False
    elif kind == 8:
        del headers["Content-Length"]
        headers["Transfer-Encoding"] = "chunked"
        request.is_http = False
        size = chance.choice([f"{len(request.body):x}", "0", "zz", "f" * 20, "-5"])
        request.body = f"{size}\r\n".encode() + request.body + b"\r\n0\r\n\r\n"
    elif kind == 9:
        tails = [b"\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 50]
        request.tail = chance.choice(tails)


def sent(port: int, number: int) -> tuple[int, str]:
    """Status of the response to request ``number``, or 0; its mistake, or ""."""
    raw = request(number)
    content = raw.content()
    answer = bytearray()
    started = time.perf_counter()
    connection = socket.create_connection(("127.0.0.1", port), timeout=2 * SLOWEST)
    # The service may refuse the rest of a body.
    with connection, suppress(ConnectionError, TimeoutError):
        connection.sendall(content)
        # Without HTTP the service may wait for more, and the client leaves.
        received(connection, 2 * SLOWEST if raw.is_http else 0.05, answer)
    seconds = time.perf_counter() - started
    status = int(answer[9:12]) if answer.startswith(b"HTTP/1.") else 0
    if status:
        mistake = mistake_of(raw, status, bytes(answer), seconds)
    elif raw.is_http and len(content) < 8_000_000:
        mistake = "no response"
    else:
        mistake = ""
    return status, mistake and f"{number}: {mistake}"


def mistake_of(raw: RawRequest, status: int, answer: bytes, seconds: float) -> str:
    """Problem of a response, or ""."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if status not in SUCCESSFUL | REFUSED or b"internal error" in body:
        return f"status {status}"
    if seconds > SLOWEST:
        return f"{seconds:.1f} s"
    if b"application/json" in head and raw.is_http and raw.method != "HEAD":
        try:
            json.loads(body, parse_constant=lambda name: 1 / 0)
        except (ValueError, ZeroDivisionError):
            return f"no JSON: {body[:100]!r}"
    return ""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with listening(app_of()) as address:
        yield urlsplit(address).port or 0


def received(connection: socket.socket, seconds: float, answer: bytearray) -> bytearray:
    """Add to ``answer`` everything until the other end closes."""
    connection.settimeout(seconds)
    with suppress(ConnectionError):
        for block in iter(partial(connection.recv, 1 << 16), b""):
            answer += block
    return answer


@pytest.mark.parametrize(
    ("line", "status"),
    [
        pytest.param(b"X: " + b"y" * 1_000_000 + b"\r\n", b"400", id="large headers"),
        pytest.param(b"y" * 1_000_000, b"400", id="one endless header"),
        pytest.param(b"X: y\r\n", b"431", id="many headers"),
    ],
)
def test_headers_are_bounded(port: int, line: bytes, status: bytes) -> None:
    before = memory()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        with suppress(ConnectionError):
            connection.sendall(HEAD)
            for _ in range(300):
                connection.sendall(line)
            connection.sendall(b"Content-Length: 0\r\n\r\n")
        answer = received(connection, 10, bytearray())
    assert not answer or answer[9:12] == status
    assert memory() - before < 20_000_000


def test_silent_connections_are_closed(port: int, monkeypatch: Patch) -> None:
    """A client may be silent before and within the head of a request.

    If there are too many connections, the one that has been idle longest is closed.
    """
    monkeypatch.setattr(Connection, "head_seconds", 1.0)
    monkeypatch.setattr(Connection, "most", 20)
    monkeypatch.setattr(Connection, "most_of_client", 100)
    with ExitStack() as stack:
        connect = partial(socket.create_connection, ("127.0.0.1", port))
        silent = [stack.enter_context(connect()) for _ in range(40)]
        for number in range(10):  # Slowly, and never to its end
            with suppress(ConnectionError):
                silent[-1].sendall(b"X" if number else HEAD)
            response = httpx.get(f"http://127.0.0.1:{port}/info", timeout=5)
            assert response.status_code == 200
            time.sleep(0.2)
        answers = [received(connection, 0.1, bytearray()) for connection in silent]
    assert answers == [b""] * 40


def test_connections_of_a_client_are_bounded_if_wanted(
    port: int, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(Connection, "most_of_client", 3)
    with ExitStack() as stack:
        opened = []
        for _ in range(5):
            connection = socket.create_connection(("127.0.0.1", port))
            opened.append(stack.enter_context(connection))
            time.sleep(0.05)
        answers = [received(surplus, 5, bytearray()) for surplus in opened[3:]]
        assert answers == [b"", b""]
        request = b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        opened[0].sendall(request)
        answer = received(opened[0], 5, bytearray())
    assert answer.startswith(b"HTTP/1.1 200")


def memory() -> int:
    """Bytes of this process, in which the service runs."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (kilobytes,) = re.findall(r"VmRSS:\s+(\d+)", status)
    return 1024 * int(kilobytes)


def test_no_request_is_a_mistake_of_ours(port: int) -> None:
    def scores() -> object:
        body = {"query": QUERY, "texts": TEXTS[:2]}
        url = f"http://127.0.0.1:{port}/rerank"
        return httpx.post(url, json=body, timeout=60).json()

    before = scores()
    statuses = Counter[int]()
    mistakes: list[str] = []
    used_memory: list[int] = []
    with ThreadPoolExecutor(8) as pool:
        for start in range(0, REQUESTS, ROUND):
            numbers = range(start, min(start + ROUND, REQUESTS))
            for status, mistake in pool.map(partial(sent, port), numbers):
                statuses[status] += 1
                mistakes.append(mistake)
            assert scores() == before
            used_memory.append(memory())
    assert list(filter(None, mistakes)) == []
    assert min(statuses[200], statuses[400]) > REQUESTS // 5
    assert used_memory[-1] < 1.25 * used_memory[len(used_memory) // 10]
