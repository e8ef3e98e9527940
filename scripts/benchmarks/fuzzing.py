"""Mutated requests to the rerank service: none may be a mistake of its own, hang, or cost memory.

Request n is always the same: valid in one of the formats, then changed as a value, as bytes of
JSON, and as bytes of HTTP.
"""

from __future__ import annotations

import gzip
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measuring import Row, printed
from benchmarks.service import Running, serving
from pipeline.command.errors import DataError

CLIENTS = 8
"""Requests at once."""
ROUND = 1000
"""Requests between two looks at the service's memory and at its answer to a valid request."""
SLOWEST = 5.0
"""Seconds for an answer; requests of 2,000 documents and of 1 MB are among those at once."""
CACHE = 50_000_000

EXPECTED = frozenset(
    (200, 307, 400, 401, 404, 405, 408, 411, 413, 414, 415, 422, 424, 429, 431, 504)
)
"""Statuses; 504 is that of a deadline, 424 that of TEI for an unknown model."""

TEXTS = [
    *("storm warning", "stay inside", "gale warning for the coast", "", " ", "a" * 5000),
    *("\U0001f329", "\ud800", "x\udfffy", "\0", "\u202e\u05de\u05d5", "\ufeff", "e\u0301" * 300),
    *("<script>", "' OR 1=1", "${jndi:x}", "../../etc", "\r\nX: y", "%00", "\\u12", '"}'),
]
NUMBERS = [0, -1, 1, 2**31, 2**63, 2**64, -(2**200), 10**400, 0.5, -0.0, 1e308, 5e-324, 1e-7]
NUMBERS += [float("nan"), float("inf"), float("-inf")]
RAW = {
    "RAW-DEEP-ARRAY": b"[" * 3000 + b"]" * 3000,
    "RAW-DEEP-OBJECT": b'{"a":' * 3000 + b"1" + b"}" * 3000,
    "RAW-OPEN": b"[" * 100_000,
    "RAW-NUMBER": b"1e999999",
    "RAW-LONG-NUMBER": b"9" * 20_000,
    "RAW-WORD": b"NaNaN",
    "RAW-ESCAPE": b'"\\ud83d\\ud83d\\u0000\\udc00"',
    "RAW-BYTES": b'"\xff\xfe\xc0\xaf"',
}
"""Word in a value -> JSON, or none, that takes its place."""
KEYS = [
    *("query", "queries", "documents", "texts", "text", "text_1", "text_2", "items", "model"),
    *("top_n", "top_k", "raw_scores", "return_documents", "return_text", "truncation", "mix"),
    *("use_activation", "url", "first_stage_score", "truncate", "rank_fields", "", "__class__"),
]
PATHS = ["/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score"]
OTHER_PATHS = [
    *("/", "/info", "/health", "/metrics", "/docs", "/openapi.json", "/models", "/rerank/"),
    *("//rerank", "/%72erank", "/rerank?x=%ff", "/../rerank", "/docs-files/../../x", "/" * 999),
    *("/api/search?q=x", "/docs-files/%2e%2e/app.py", "*", "http://other/rerank", "/\xff"),
]


METHODS = ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "post", "X"]
SMALL = 10_000
"""Bytes of a body that nobody reads: after a large one the answer is lost with the connection."""

_TYPES = ["", "text/plain", "application/json; charset=utf-16", "a/b+json", ";", "é" * 99]
_HEADERS: Mapping[int, tuple[Sequence[str], Sequence[str]]] = {
    3: (["Content-Type"], [*_TYPES, "multipart/form-data"]),
    4: (["Content-Encoding"], ["gzip", "br", "identity", "x"]),
    5: (["X-Request-Timeout-Ms"], ["0", "1", "20", "-1", "1e9", "x", "9" * 50, "²", ""]),
    6: (
        ["Authorization", "X-Request-Id", "Cookie", "Accept", "Expect"],
        ["", "Bearer", "Bearer \x01", "x" * 5000, "Basic eDp4", "é" * 9],
    ),
}
"""Kind of strangeness -> headers and values."""


class Request(NamedTuple):
    """Bytes to send.

    Attributes:
        raw: of the whole request.
        is_http: whether an answer is due; else the connection may simply end.
    """

    raw: bytes
    is_http: bool = True


class Outcome(NamedTuple):
    """What came back.

    Attributes:
        number: of the request.
        status: 0 without an answer.
        seconds: until the whole answer was there.
        fault: what was wrong with it, "" if nothing.
    """

    number: int
    status: int
    seconds: float
    fault: str = ""


def request(number: int) -> Request:
    """Request ``number``."""
    chance = random.Random(number)
    path, content = _valid(chance)
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        chance.choice(_CHANGES)(chance, content)
    body = json.dumps(content, ensure_ascii=chance.random() < 0.5)
    whole = body.encode("utf-8", chance.choice(("replace",) * 9 + ("surrogatepass",)))
    for word, raw in RAW.items():
        whole = whole.replace(f'"{word}"'.encode(), raw)
    if chance.random() < 0.25:
        whole = chance.choice(_BYTES)(chance, whole)
    return _sent(chance, path, whole)


def _text(chance: random.Random) -> str:
    words = [chance.choice(TEXTS) for _ in range(chance.randint(1, 4))]
    return " ".join(words)[: chance.choice((20, 200, 10_000))] * chance.choice((1,) * 30 + (100,))


def _document(chance: random.Random) -> Any:
    text = _text(chance)
    if chance.random() < 0.7:
        return text
    document: dict[str, Any] = {"text": text}
    if chance.random() < 0.5:
        document["url"] = f"http://x.org/{chance.randint(0, 99)}"
    return document


def _valid(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """A path, and a body of one of the formats."""
    count = chance.choice((1, 2, 3, 10, 30, 100))
    documents = [_document(chance) for _ in range(count)]
    if chance.random() < 0.2:
        documents = [
            {"text": one if isinstance(one, str) else one["text"], "first_stage_score": rank * 0.7}
            for rank, one in enumerate(documents)
        ]
    query = _text(chance)
    forms: Sequence[tuple[str, dict[str, Any]]] = [
        ("/rerank", {"texts": documents, "raw_scores": chance.random() < 0.5}),
        ("/rerank", {"documents": documents, "return_documents": True}),
        ("/rerank", {"documents": documents, "top_n": chance.randint(0, 9)}),
        ("/v1/rerank", {"documents": documents, "top_n": 3, "return_documents": True}),
        ("/v1/rerank", {"documents": documents, "top_k": 3, "truncation": True}),
        ("/v2/rerank", {"model": "rerank-v3.5", "documents": documents, "top_n": 5}),
        ("/score", {"queries": query, "documents": documents}),
    ]
    path, content = chance.choice(forms)
    return path, content if path == "/score" else {"query": query, **content}


def _value(chance: random.Random) -> Any:
    """Anything."""
    return chance.choice(
        [
            lambda: chance.choice(TEXTS),
            lambda: chance.choice(NUMBERS),
            lambda: chance.choice([None, True, False, [], {}, [[]], [None], "mp_hcnn", "neural"]),
            lambda: chance.choice(list(RAW)),
            lambda: {chance.choice(KEYS): _value(chance) for _ in range(chance.randint(1, 3))},
            lambda: [_value(chance) for _ in range(chance.randint(1, 3))],
        ]
    )()


def _spots(content: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value inside."""
    keys = content if isinstance(content, dict) else range(len(content))
    spots = [(content, key) for key in keys]
    for key in keys:
        if isinstance(content[key], dict | list):
            spots += _spots(content[key])
    return spots


def _replace(chance: random.Random, content: dict[str, Any]) -> None:
    if spots := _spots(content):
        place, key = chance.choice(spots)
        place[key] = _value(chance)


def _replace_field(chance: random.Random, content: dict[str, Any]) -> None:
    if content:
        content[chance.choice(sorted(content))] = _value(chance)


def _remove(chance: random.Random, content: dict[str, Any]) -> None:
    if spots := _spots(content):
        place, key = chance.choice(spots)
        del place[key]


def _add(chance: random.Random, content: dict[str, Any]) -> None:
    content[chance.choice(KEYS)] = _value(chance)


def _rename(chance: random.Random, content: dict[str, Any]) -> None:
    if content:
        key = chance.choice(sorted(content))
        content[chance.choice([*KEYS, key.upper(), f"{key} ", f"{key}\0"])] = content.pop(key)


def _enlarge(chance: random.Random, content: dict[str, Any]) -> None:
    """Many documents, seldom; one long text, seldom."""
    for key in ("texts", "documents"):
        if isinstance(found := content.get(key), list) and found:
            if chance.random() < 0.05:
                short = [str(one)[:500] for one in found if "RAW-" not in str(one)] or [""]
                content[key] = (short * 2500)[: chance.choice((500, 1999, 2000, 2001, 2500))]
            elif chance.random() < 0.05:
                found.append("long " * chance.choice((50_000, 200_000)))
            elif chance.random() < 0.005:
                found.append("long " * 1_700_000)


_CHANGES = [_replace, _replace, _replace_field, _remove, _add, _rename, _enlarge]


def _cut(chance: random.Random, body: bytes) -> bytes:
    return body[: chance.randint(0, len(body))]


def _insert(chance: random.Random, body: bytes) -> bytes:
    at = chance.randint(0, len(body))
    return body[:at] + chance.randbytes(chance.randint(1, 5)) + body[at + chance.randint(0, 3) :]


def _repeat_keys(chance: random.Random, body: bytes) -> bytes:
    more = json.dumps({key: chance.choice(TEXTS) for key in chance.sample(KEYS, 3)})
    return more.encode()[:-1] + b"," + body[1:]


_BYTES: Sequence[Callable[[random.Random, bytes], bytes]] = [
    *(_cut, _insert, _insert, _repeat_keys),
    lambda chance, body: b"",
    lambda chance, body: b"\xef\xbb\xbf" + body,
    lambda chance, body: body.decode("utf-8", "replace").encode("utf-16"),
    lambda chance, body: gzip.compress(body, 1),
    lambda chance, body: body + chance.choice([b" ", b"\0", b"{}", b",", b"]", b"\n" * 9999]),
    lambda chance, body: chance.randbytes(chance.randint(1, 2000)),
]


def _sent(chance: random.Random, path: str, body: bytes) -> Request:
    """The bytes of a request for ``path``, every fourth one strange as HTTP."""
    method, headers, is_http = "POST", {"Content-Type": "application/json"}, True
    more, length, tail = dict[str, str](), "", b""
    kind = chance.randrange(40)
    if kind == 0:
        path = chance.choice(PATHS)
    elif kind == 1:
        path, body = chance.choice(OTHER_PATHS), body[:SMALL]
        is_http = path.isascii()
    elif kind == 2:
        method, body = chance.choice(METHODS), body[:SMALL]
        is_http = method not in ("post", "X")
    elif kind in _HEADERS:
        more = {chance.choice(_HEADERS[kind][0]): chance.choice(_HEADERS[kind][1])}
    elif kind == 7:
        more, is_http = {f"X-{n}": "y" * chance.choice((1, 500)) for n in range(300)}, False
    elif kind == 8:
        length, is_http = chance.choice(["-1", "x", "", "99999999999", "+3", "0"]), False
    elif kind == 9:
        more, is_http = {"Transfer-Encoding": "chunked"}, False
        size = chance.choice([f"{len(body):x}", "0", "zz", "f" * 20, "-5"])
        body = f"{size}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    elif kind == 10:
        tail = chance.choice([b"\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 50])
    if kind != 9:
        headers["Content-Length"] = length or str(len(body))
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers | more).items()]
    return Request("\r\n".join([*lines, "", ""]).encode() + body + tail, is_http)


def outcome(port: int, number: int) -> Outcome:
    """Send request ``number`` on a connection of its own, and look at the answer."""
    asked = request(number)
    started = time.perf_counter()
    try:
        answer = _answer(port, asked)
    except TimeoutError:
        seconds = time.perf_counter() - started
        return Outcome(number, 0, seconds, "no answer" if asked.is_http else "")
    seconds = time.perf_counter() - started
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head[9:12]) if head.startswith(b"HTTP/1.") else 0
    return Outcome(number, status, seconds, fault_of(asked, head, body, status, seconds))


def _answer(port: int, asked: Request) -> bytes:
    """All bytes until the service ends the connection, or the client leaves."""
    with socket.create_connection(("127.0.0.1", port), timeout=2 * SLOWEST) as connection:
        parts = []
        try:
            connection.sendall(asked.raw)
            if not asked.is_http:
                connection.settimeout(0.05)  # It may wait for more, and the client leaves.
            while part := connection.recv(1 << 16):
                parts.append(part)
        except ConnectionError:
            pass  # The service has refused the rest of a body.
        except TimeoutError:
            if asked.is_http:
                raise
        return b"".join(parts)


def fault_of(asked: Request, head: bytes, body: bytes, status: int, seconds: float) -> str:
    """What is wrong with an answer; "" if nothing is."""
    if not status:
        return "no answer" if asked.is_http and len(asked.raw) < 8_000_000 else ""
    if status not in EXPECTED or b"internal error" in body:
        return f"status {status}"
    if seconds > SLOWEST:
        return f"{seconds:.1f} s"
    if b"application/json" in head and asked.is_http and not asked.raw.startswith(b"HEAD"):
        try:
            json.loads(body, parse_constant=_refuse)
        except ValueError as error:
            return f"no JSON: {error}"
    return ""


def _refuse(constant: str) -> None:
    raise ValueError(f"found {constant}")


def fuzz(port: int, numbers: Iterable[int]) -> list[Outcome]:
    """Outcomes of some requests, :data:`CLIENTS` at once."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(lambda number: outcome(port, number), numbers))


def measure_fuzz(requests: int, first: int = 0) -> list[Row]:
    """Send ``requests`` requests from number ``first`` on to a service of the shipped MP-HCNN.

    Raises:
        DataError: one of them was answered wrongly, or the service is not as it was.
    """
    found: list[Outcome] = []
    faults: list[str] = []
    memory: list[int] = []
    with serving("mp_hcnn", cache=CACHE) as service:
        expected = _probe(service)
        for start in range(first, first + requests, ROUND):
            found += fuzz(service.port, range(start, min(start + ROUND, first + requests)))
            memory.append(service.memory)
            faults = [f"request {one.number}: {one.fault}" for one in found if one.fault]
            print(
                f"{len(found)}: {memory[-1] / 2**20:,.0f} MiB", *faults[-3:], sep="; ", flush=True
            )
            if not np.allclose(_probe(service), expected, rtol=0, atol=1e-6):
                raise DataError(f"requests {start} to {start + ROUND}: then another answer")
    if faults:
        shown = "; ".join(faults[:20])
        raise DataError(f"found {len(faults)} faults in {requests} requests: {shown}")
    return printed(_rows(found, memory))


def _probe(service: Running) -> list[float]:
    """Scores of a valid request, which are the same at all times."""
    body = json.dumps({"query": "storm warning", "texts": ["stay inside", "gale warning"]})
    return [one["score"] for one in service.ask(body.encode(), service.connection())]


def _rows(found: Sequence[Outcome], memory: Sequence[int]) -> list[Row]:
    seconds = sorted(one.seconds for one in found if one.status)
    statuses = Counter(one.status for one in found)
    shown = ", ".join(f"{status or 'none'}: {count:,}" for status, count in statuses.most_common())
    early = memory[len(memory) // 10]
    return [
        (f"{len(found):,} mutated requests", "no 500, no hang, the same answer afterwards"),
        ("– answers by status", shown),
        ("– slowest, and 99.9th percentile", f"{seconds[-1]:.2f} s, {_quantile(seconds):.2f} s"),
        ("– memory after a tenth of them", f"{early / 2**20:,.0f} MiB"),
        ("– at the end", f"{memory[-1] / 2**20:,.0f} MiB ({memory[-1] / early:.2f} ×)"),
    ]


def _quantile(ordered: Sequence[float]) -> float:
    return ordered[int(0.999 * (len(ordered) - 1))]
