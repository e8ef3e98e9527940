"""Mutated requests over a real connection: a few of those of ``scripts/fuzz.py``."""

import json
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from benchmarks import fuzzing
from helpers.service_samples import app_of, listening


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with listening(app_of()) as address:
        yield urlsplit(address).port or 0


def test_no_request_is_answered_wrongly(port: int) -> None:
    found = fuzzing.fuzz(port, range(300))
    assert [one for one in found if one.fault] == []
    statuses = Counter(one.status for one in found)
    assert statuses[200] > 60
    assert statuses[400] > 60
    with urlopen(f"http://127.0.0.1:{port}/health") as answer:
        assert json.load(answer)["status"] == "ok"


def test_a_request_is_always_the_same() -> None:
    assert fuzzing.request(7) == fuzzing.request(7)
    assert fuzzing.request(7) != fuzzing.request(8)


@pytest.mark.parametrize(
    ("head", "body", "seconds", "fault"),
    [
        (b"HTTP/1.1 500 X", b"", 0.1, "status 500"),
        (b"HTTP/1.1 424 X", b'{"error":"an internal error"}', 0.1, "status 424"),
        (b"HTTP/1.1 200 OK", b"", 60, "60.0 s"),
        (b"", b"", 0.1, "no answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json", b"[NaN]", 0.1, "no JSON"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json", b'{"a', 0.1, "no JSON"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json", b"[0.5]", 0.1, ""),
    ],
)
def test_wrong_answers_are_found(head: bytes, body: bytes, seconds: float, fault: str) -> None:
    status = int(head[9:12] or 0)
    found = fuzzing.fault_of(fuzzing.Request(b"POST / HTTP/1.1"), head, body, status, seconds)
    assert found.startswith(fault)
    assert bool(found) is bool(fault)
