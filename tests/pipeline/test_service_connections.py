"""Mutated HTTP over real connections: each request is refused or answered, and none hangs.

``TWEETRERANK_REQUESTS=100000 python -m pytest tests/pipeline/test_service_connections.py`` sends
more. Request n is always the same.
"""

import json
import os
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
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
"""Requests between two looks at memory and at the scores of a valid request."""
SLOWEST = 5.0
"""Seconds for a response; requests of 2,000 documents and of 1 MB are among those at once."""
EXPECTED = {
    200,
    307,
    400,
    401,
    404,
    405,
    408,
    411,
    413,
    414,
    415,
    422,
    424,
    429,
    431,
    503,
    504,
}
# Fields of other types are those of test_service_errors.
SPECIAL = [
    *(b"[" * 3000 + b"]" * 3000, b'{"a":' * 3000 + b"1" + b"}" * 3000, b"[" * 100_000),
    *(
        b"1e999999",
        b"9" * 20_000,
        b"NaNaN",
        b'"\\ud83d\\ud83d\\u0000\\udc00"',
        b'"\xff\xfe\xc0"',
    ),
]
"""JSON, or none, in place of a value."""
PATHS = ["/rerank", "/v1/rerank", "/v2/rerank"]
OTHER_PATHS = [
    *("/", "/info", "/health", "/metrics", "/openapi.json", "/models", "/rerank/"),
    *(
        "//rerank",
        "/%72erank",
        "/rerank?x=%ff",
        "/../rerank",
        "/page.css/../../x",
        "/" * 999,
    ),
    *(
        "/api/search?q=x",
        "/page.css/%2e%2e/app.py",
        "*",
        "http://other/rerank",
        "/\xff",
    ),
]
METHODS = ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "post", "X"]
SMALL = 10_000
"""Bytes of a body that nobody reads: after a large one the response is lost with the connection."""
LENGTHS = ["-1", "x", "", "99999999999", "+3", "0"]
TYPES = [
    "",
    "text/plain",
    "application/json; charset=utf-16",
    "a/b+json",
    ";",
    "é" * 99,
]
HEADERS: dict[str, Sequence[str]] = {
    "Content-Type": [*TYPES, "multipart/form-data"],
    "Content-Encoding": ["gzip", "br", "identity", "x"],
    "X-Request-Timeout-Ms": ["0", "1", "20", "-1", "1e9", "x", "9" * 50, "²", ""],
    **dict.fromkeys(
        ("Authorization", "X-Request-Id", "Cookie", "Accept", "Expect"),
        ("", "Bearer", "Bearer \x01", "x" * 5000, "Basic eDp4", "é" * 9),
    ),
}
HEAD = b"POST /rerank HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"


def body_of(chance: random.Random) -> bytes:
    """The body of a request, its size mostly small; often with changed bytes."""
    count = chance.choice((1, 3, 10, 100) * 20 + (500, 1999, 2000, 2001, 2500))
    documents = [chance.choice([*TEXTS, *DOCUMENTS]) for _ in range(count)]
    if chance.random() < 0.02:
        documents[0] = "long " * chance.choice((50_000, 200_000, 1_700_000))
    content: dict[str, object] = {"query": QUERY, "documents": documents}
    body = json.dumps(content, ensure_ascii=chance.random() < 0.5).encode(
        errors="surrogatepass"
    )
    if chance.random() < 0.2:
        body = body.replace(json.dumps(QUERY).encode(), chance.choice(SPECIAL))
    if chance.random() < 0.3:
        at = chance.randint(0, len(body))
        new, end = chance.randbytes(chance.randint(1, 5)), at + chance.randint(0, 3)
        body = body[:at] + new + body[end:]
    return body


def request(number: int) -> tuple[bytes, bool]:
    """Bytes of request ``number``, every fourth one strange as HTTP; without a response, the
    connection may end if they are no HTTP, False."""
    chance = random.Random(number)
    method, path, body, tail, is_http = (
        "POST",
        chance.choice(PATHS),
        body_of(chance),
        b"",
        True,
    )
    kind = chance.randrange(44)
    body = body[:SMALL] if kind in (1, 2) else body
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    if kind == 1:
        path = chance.choice(OTHER_PATHS)
        is_http = path.isascii()
    elif kind == 2:
        method = chance.choice(METHODS)
        is_http = method not in ("post", "X")
    elif kind in (3, 4, 5):
        name = chance.choice(list(HEADERS))
        headers[name] = chance.choice(HEADERS[name])
    elif kind == 7:
        headers["Content-Length"], is_http = chance.choice(LENGTHS), False
    elif kind == 8:
        del headers["Content-Length"]
        headers["Transfer-Encoding"], is_http = "chunked", False
        size = chance.choice([f"{len(body):x}", "0", "zz", "f" * 20, "-5"])
        body = f"{size}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    elif kind == 9:
        tail = chance.choice([b"\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 50])
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body + tail, is_http


def sent(port: int, number: int) -> tuple[int, str]:
    """Status of the response to request ``number``, 0 without one, and its mistake, if any."""
    (raw, is_http), started, answer = request(number), time.perf_counter(), bytearray()
    connection = socket.create_connection(("127.0.0.1", port), timeout=2 * SLOWEST)
    # The service may refuse the rest of a body.
    with connection, suppress(ConnectionError, TimeoutError):
        connection.sendall(raw)
        # Without HTTP it may wait for more, and the client leaves.
        received(connection, 2 * SLOWEST if is_http else 0.05, answer)
    seconds = time.perf_counter() - started
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    status = int(head[9:12]) if head.startswith(b"HTTP/1.") else 0
    mistake = ""
    if not status:
        mistake = "no response" * (is_http and len(raw) < 8_000_000)
    elif status not in EXPECTED or b"internal error" in body:
        mistake = f"status {status}"
    elif seconds > SLOWEST:
        mistake = f"{seconds:.1f} s"
    elif b"application/json" in head and is_http and not raw.startswith(b"HEAD"):
        try:
            json.loads(body, parse_constant=lambda name: 1 / 0)
        except (ValueError, ZeroDivisionError):
            mistake = f"no JSON: {body[:100]!r}"
    return status, mistake and f"{number}: {mistake}"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with listening(app_of()) as address:
        yield urlsplit(address).port or 0


def received(connection: socket.socket, seconds: float, answer: bytearray) -> bytearray:
    """All until the other end closes, added to what there is."""
    connection.settimeout(seconds)
    with suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            answer += part
    return answer


def test_headers_are_bounded(port: int) -> None:
    large = b"y" * 1_000_000
    lines = {b"X: " + large + b"\r\n": b"400", large: b"400", b"X: y\r\n": b"431"}
    for line, status in lines.items():
        before = memory()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            with suppress(ConnectionError):
                for part in [HEAD, *[line] * 300, b"Content-Length: 0\r\n\r\n"]:
                    connection.sendall(part)
            answer = received(connection, 10, bytearray())
        assert not answer or answer[9:12] == status
        assert memory() - before < 20_000_000


def test_silent_connections_are_closed(port: int, monkeypatch: Patch) -> None:
    """Before and within the head of a request; beyond their number, that which is idle longest."""
    monkeypatch.setattr(Connection, "head_seconds", 1.0)
    monkeypatch.setattr(Connection, "most", 20)
    monkeypatch.setattr(Connection, "most_of_client", 100)
    with ExitStack() as stack:
        connect = partial(socket.create_connection, ("127.0.0.1", port))
        silent = [stack.enter_context(connect()) for _ in range(40)]
        for number in range(10):  # Slowly, and never to its end.
            with suppress(ConnectionError):
                silent[-1].sendall(HEAD if not number else b"X")
            assert (
                httpx.get(f"http://127.0.0.1:{port}/info", timeout=5).status_code == 200
            )
            time.sleep(0.2)
        assert [received(each, 0.1, bytearray()) for each in silent] == [b""] * 40


def test_connections_of_a_client_are_bounded_if_wanted(
    port: int, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(Connection, "most_of_client", 3)
    with ExitStack() as stack:
        opened = []
        for _ in range(5):
            opened.append(
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            )
            time.sleep(0.05)
        for connection in opened[3:]:
            assert received(connection, 5, bytearray()) == b""
        opened[0].sendall(
            b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        assert received(opened[0], 5, bytearray()).startswith(b"HTTP/1.1 200")


def memory() -> int:
    """Bytes of this process, in which the service runs."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


def test_no_request_is_a_mistake_of_ours(port: int) -> None:
    def scores() -> object:
        body = {"query": QUERY, "texts": TEXTS[:2]}
        return httpx.post(
            f"http://127.0.0.1:{port}/rerank", json=body, timeout=60
        ).json()

    before, statuses, mistakes, used = scores(), Counter[int](), [], []
    with ThreadPoolExecutor(8) as pool:
        for start in range(0, REQUESTS, ROUND):
            numbers = range(start, min(start + ROUND, REQUESTS))
            for status, mistake in pool.map(lambda number: sent(port, number), numbers):
                statuses[status] += 1
                mistakes += [mistake] if mistake else []
            assert scores() == before
            used.append(memory())
    assert mistakes == []
    assert min(statuses[200], statuses[400]) > REQUESTS // 5
    assert used[-1] < 1.25 * used[len(used) // 10]
