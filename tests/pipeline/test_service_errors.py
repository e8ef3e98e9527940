"""Requests that get no scores: limits, wrong values, keys, overload, lost clients."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from helpers.processes import run_python
from helpers.reranking_samples import AWKWARD
from helpers.service_samples import (
    QUERY,
    TEXTS,
    WIRES,
    GatedScorer,
    Wire,
    client_of,
    models,
    run_apart,
    scored_by,
)
from httpx import Response
from starlette.testclient import TestClient

from pipeline.service import queue
from pipeline.service.app import Service, build, reloading
from pipeline.service.record import LOG, JsonFormatter
from pipeline.service.requests import Limits

KEY = "correct-horse"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of(Limits.of(50, 100_000)) as client:
        yield client


@pytest.fixture(params=WIRES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


KEYS = {key: {"message", "detail", "id"} for key in WIRES} | {"tei": {"error", "error_type"}}
"""Format -> keys of an error."""


def message_of(name: str, response: Response) -> str:
    """The text of an error, whose shape is that of the format."""
    content = response.json()
    assert response.headers["content-type"] == "application/json"
    assert set(content) == KEYS[name]
    return str(content.get("error", content.get("message", content.get("detail"))))


VALUE = {name: 400 if name in ("infinity", "vllm") else 422 for name in WIRES}
"""Format -> status of a request with a wrong value."""


@pytest.mark.parametrize(
    ("documents", "problem"),
    [
        ([], ": found no documents, expected at least one"),
        (["a"] * 51, ": found 51 documents, expected at most 50"),
        (["a", 5], "[1]: Expected `str | object`, got `int`"),
        (["a", None], "[1]: Expected `str | object`, got `null`"),
        (["a", {"text": 5}], "[1].text: Expected `str`, got `int`"),
        ([{"url": "http://t.co"}], "[0].text: found no value"),
        ([{"text": "a", "url": []}], "[0].url: Expected `str | null`, got `array`"),
        ([["a"]], "[0]: Expected `str | object`, got `array`"),
        (5, ": Expected `array | null`, got `int`"),
    ],
)
def test_wrong_documents_have_a_path(
    client: TestClient, name: str, documents: Any, problem: str
) -> None:
    wire, status = WIRES[name], VALUE[name]
    if "documents" in problem:
        status = 422 if documents and name == "tei" else 400
    answer = client.post(wire.path, json=wire.body(documents))
    assert answer.status_code == status
    assert wire.documents + problem in message_of(name, answer)
    assert client.post(wire.path, json=wire.body(["a"] * 50)).status_code == 200


def test_wrong_numbers_of_results(client: TestClient, name: str) -> None:
    wire = WIRES[name]
    for value in (-1, 1.5, "3.5", True, [1]):
        answer = client.post(wire.path, json=wire.body(**{wire.top: value}))
        assert answer.status_code == VALUE[name]
        assert f"{wire.top}: Expected `int" in message_of(name, answer)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nonsense", b"\xff\xfe", b'{"a":' + b"[" * 10_000, b'{"query": "\xff"}'],
)
@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_body_that_is_no_json(client: TestClient, path: str, body: bytes) -> None:
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    name = {"/rerank": "vllm", "/v1/rerank": "jina", "/v2/rerank": "cohere"}
    assert "body" in message_of(name[path], answer)


def test_a_body_that_is_too_large(client: TestClient, name: str) -> None:
    wire = WIRES[name]
    answer = client.post(wire.path, json=wire.body(["a" * 100_000]))
    assert answer.status_code == 413
    assert "100000 bytes" in answer.text

    def chunks() -> Iterator[bytes]:
        for _ in range(200):
            yield b" " * 1000

    assert client.post(wire.path, content=chunks()).status_code == 413


def test_a_content_type_is_needed_by_one_format(client: TestClient, name: str) -> None:
    wire = WIRES[name]
    body = json.dumps(wire.body()).encode()
    for kind in ({}, {"content-type": "text/plain"}):
        answer = client.post(wire.path, content=body, headers=kind)
        assert answer.status_code == (415 if name == "tei" else 200)
    kind = {"content-type": "application/json; charset=utf-8"}
    assert client.post(wire.path, content=body, headers=kind).status_code == 200


def test_unknown_paths_and_methods(client: TestClient) -> None:
    for path, method, status in (
        ("/nothing", "GET", 404),
        ("/v1/nothing", "POST", 404),
        ("/rerank", "GET", 405),
        ("/health", "DELETE", 405),
        ("/health/", "GET", 404),
        ("/v1/rerank/x/", "POST", 404),
    ):
        answer = client.request(method, path, follow_redirects=False)
        assert answer.status_code == status
        assert answer.json()
    assert client.get("/rerank").headers["allow"] == "POST"


def test_a_slash_at_the_end_of_a_path(client: TestClient, name: str) -> None:
    """As without it; errors have the shape of the format."""
    wire = WIRES[name]
    paths = (wire.path, f"{wire.path}/")
    without, with_slash = (
        wire.results_of(client.post(path, json=wire.body(), follow_redirects=False).json())
        for path in paths
    )
    assert with_slash == without
    assert wire.documents in message_of(name, client.post(paths[1], json=wire.body(5)))


@pytest.mark.parametrize("kind", AWKWARD)
def test_awkward_texts_are_scored(client: TestClient, name: str, kind: str) -> None:
    """Also halves of surrogate pairs, which cut posts have; they come back as U+FFFD."""
    text, wire = AWKWARD[kind], WIRES[name]
    body = json.dumps(wire.body([text, "bbc", text], **wire.echo) | {"query": text})
    headers = {"content-type": "application/json"}
    answer = client.post(wire.path, content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    results = {rank["index"]: rank for rank in wire.results_of(answer.json())}
    assert results[0][wire.score] == results[2][wire.score]
    if "text" in results[0]:
        assert results[0]["text"] == text.encode("utf-16", "surrogatepass").decode(
            "utf-16", "replace"
        )


def test_escaped_backslashes_are_no_surrogates(client: TestClient) -> None:
    body = (
        rb'{"query":"\ud83d","texts":["\\ud83d","\ud83d\ude00","\ude00\ud83d"],"return_text":true}'
    )
    headers = {"content-type": "application/json"}
    ranks = client.post("/rerank", content=body, headers=headers).json()
    texts = {rank["index"]: rank["text"] for rank in ranks}
    assert texts == {0: "\\ud83d", 1: "\U0001f600", 2: "\ufffd\ufffd"}


def test_keys(name: str) -> None:
    wire = WIRES[name]
    with client_of(keys=[KEY, "second"]) as client:
        for header in ("", KEY, f"Basic {KEY}", f"Bearer {KEY}x", "Bearer ", "Bearer é"):
            headers = {"authorization": header.encode("latin-1")} if header else {}
            answer = client.post(wire.path, json=wire.body(), headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert KEY not in answer.text
        for header in (f"Bearer {KEY}", f"bearer {KEY}", "Bearer second"):
            headers = {"authorization": header.encode()}
            assert client.post(wire.path, json=wire.body(), headers=headers).status_code == 200
        for path in ("/", "/health", "/ping", "/metrics", "/openapi.json"):
            assert client.get(path).status_code == 200
        assert client.get("/openapi.json").json()["security"] == [{"key": []}]
        for path in ("/info", "/v1/models", "/api/collection", "/nothing"):
            assert client.get(path).status_code == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("[::1]:8080", 200),
        ("a.example.com", 200),
        ("example.com", 421),
        ("evil.org", 421),
        ("localhost.evil.org:80", 421),
    ],
)
def test_names_of_the_service(host: str, status: int) -> None:
    """A page of another site cannot give its own name to this machine."""
    with client_of(hosts=["localhost", "[::1]", "*.example.com"]) as client:
        assert client.get("/info", headers={"host": host}).status_code == status


def test_pages_of_other_sites_need_leave() -> None:
    headers = {"origin": "https://a.org", "access-control-request-method": "POST"}
    headers["access-control-request-headers"] = "authorization,content-type"
    for origins, status in (((), 401), (("https://a.org",), 200), (("https://b.org",), 400)):
        with client_of(origins=origins, keys=[KEY]) as client:
            asked = client.options("/v1/rerank", headers=headers)
            sent = client.get("/health", headers={"origin": "https://a.org"})
            allowed = {"access-control-allow-origin"} & {*asked.headers} & {*sent.headers}
            assert (asked.status_code, bool(allowed)) == (status, status == 200)


def test_requests_of_a_client_are_bounded_if_wanted() -> None:
    with client_of(rate=3) as client:
        statuses = [client.get("/info").status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        assert client.get("/health").status_code == 200
        time.sleep(0.4)
        assert client.get("/info").status_code == 200


def test_a_body_of_millions_of_values_is_refused_at_once() -> None:
    many = b"[]," * 2_000_000
    with client_of(Limits.of(2000, 8_000_000)) as opened:
        for body, status in (
            (b'{"query": "a", "documents": ["a"], "x": [%b[]]}' % many, 200),
            (b'{"query": "a", "documents": [%b[]]}' % many, 422),
            (b'{"query": "a", "documents": [%b""]}' % (b'"",' * 2_000_000), 400),
            (b'{"query": "a", "documents": ["a"], "x": %b}' % (b"[" * 4_000_000), 400),
        ):
            started = time.perf_counter()
            assert opened.post("/v2/rerank", content=body).status_code == status
            assert time.perf_counter() - started < 2


HANG = """
import asyncio, time, sys
from pipeline.service import app
app.HANGS = 1.0
async def main():
    asyncio.get_running_loop().call_later(0.5, time.sleep, 30)
    await app._watch()
asyncio.run(main())
"""


def test_a_loop_that_hangs_ends_the_service() -> None:
    started = time.monotonic()
    done = run_python("-c", HANG)
    assert done.returncode == 1
    assert "Timeout" in done.stderr and "in main" not in done.stdout
    assert time.monotonic() - started < 25


def test_reloads_are_one_at_a_time() -> None:
    """And one waits, however many there are meanwhile."""
    gate, running, most = threading.Event(), [], []

    def work() -> None:
        running.append(1)
        most.append(len(running))
        gate.wait(10)
        running.pop()

    soon = reloading(work)
    for _ in range(5):
        soon()
    gate.set()
    end = time.monotonic() + 5
    while (running or len(most) < 2) and time.monotonic() < end:
        time.sleep(0.01)
    assert most == [1, 1]


def test_request_ids(client: TestClient) -> None:
    for given in ("abc-123", "x" * 128):
        answer = client.get("/health", headers={"x-request-id": given})
        assert answer.headers["x-request-id"] == given
    for given in ("", "a b", "x" * 129):
        made = client.get("/health", headers={"x-request-id": given}).headers["x-request-id"]
        assert made not in ("", given)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """The log's lines of requests."""
    written = map(JsonFormatter().format, caplog.records)
    return [line for line in map(json.loads, written) if "request_id" in line]


def test_logs_have_no_texts(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", LOG.name)
    wire = WIRES["tei"]
    client.post(wire.path, json=wire.body(), headers={"x-request-id": "find-me"})
    client.post(wire.path, json={"query": "secret", "texts": [5]})
    good, bad = lines_of(caplog)
    assert good["request_id"] == "find-me"
    assert (good["format"], good["model"], good["status"]) == ("tei", "mp_hcnn", 200)
    assert (good["documents"], good["path"]) == (len(TEXTS), "/rerank")
    assert good["characters"] == sum(map(len, [QUERY, *TEXTS]))
    assert good["total_ms"] >= good["inference_ms"] >= 0
    assert QUERY not in str(good)
    assert bad["kind"] == "value"
    assert "secret" not in str(bad)
    with client_of(log_texts=True) as open_client:
        open_client.post(wire.path, json=wire.body())
    assert lines_of(caplog)[-1]["texts"] == [QUERY, *TEXTS]


@pytest.mark.parametrize(
    "limits", [Limits(waiting_requests=2), Limits(waiting_documents=2 * len(TEXTS))]
)
def test_overload(name: str, limits: Limits) -> None:
    scorer, wire = GatedScorer(), WIRES[name]
    with client_of(limits, models=scored_by(scorer)) as client, ThreadPoolExecutor(8) as pool:
        work = [pool.submit(client.post, wire.path, json=wire.body()) for _ in range(8)]
        threading.Timer(0.5, scorer.gate.set).start()
        answers = [future.result() for future in work]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert len(refused) == 6
        assert {answer.status_code for answer in answers} == {200, 429}
        for answer in refused:
            assert answer.headers["retry-after"] == "1"
            assert "waiting" in message_of(name, answer)
        assert client.post(wire.path, json=wire.body()).status_code == 200
        assert 'te_request_failure{err="overloaded"} 6.0' in client.get("/metrics").text


def test_large_bodies_are_bounded_together() -> None:
    scorer = GatedScorer()
    limits = Limits(held=1000)
    body = {"query": QUERY, "documents": ["a" * 600]}
    with client_of(limits, models=scored_by(scorer)) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/v2/rerank", json=body)
        assert scorer.begun.wait(10)
        assert client.post("/v2/rerank", json=body).status_code == 429
        scorer.gate.set()
        assert first.result().status_code == 200
        assert client.post("/v2/rerank", json=body).status_code == 200


@pytest.mark.parametrize("header", ["X-Request-Timeout-Ms", "X-Envoy-Expected-Rq-Timeout-Ms"])
def test_deadlines(name: str, header: str) -> None:
    scorer, wire = GatedScorer(), WIRES[name]
    with client_of(models=scored_by(scorer)) as client:
        answer = client.post(wire.path, json=wire.body(), headers={header: "50"})
        assert answer.status_code == 504
        assert "deadline" in message_of(name, answer)
        scorer.gate.set()
        for value in ("60000", "0"):
            answer = client.post(wire.path, json=wire.body(), headers={header: value})
            assert answer.status_code == 200
        answer = client.post(wire.path, json=wire.body(), headers={header: "soon"})
        assert answer.status_code == VALUE[name]


def test_a_request_without_a_deadline_gets_one() -> None:
    scorer = GatedScorer()
    with client_of(Limits(answer=0.1), models=scored_by(scorer)) as client:
        assert client.post("/v2/rerank", json=WIRES["cohere"].body()).status_code == 504
        scorer.gate.set()  # The end waits for what is begun.


def test_health_needs_scores_and_ready_needs_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "CHECKED", 0.2)
    scorer, body = GatedScorer(), WIRES["tei"].body()
    limits = Limits(waiting_requests=1)
    with client_of(limits, models=scored_by(scorer)) as client, ThreadPoolExecutor(1) as pool:

        def statuses() -> list[int]:
            return [client.get(path).status_code for path in ("/health", "/ping", "/ready")]

        time.sleep(0.25)
        assert statuses() == [503, 503, 200]
        waiting = pool.submit(client.post, "/rerank", json=body)
        while client.get("/ready").status_code == 200:
            assert not waiting.done()
        scorer.gate.set()
        assert waiting.result().status_code == 200
        assert statuses() == [200, 200, 200]
        calls = len(scorer.seen)
        for _ in range(5):
            assert client.get("/health").status_code == 200
        assert len(scorer.seen) <= calls + 1
        monkeypatch.setattr(scorer, "score", lambda number, name, pairs: 1 / 0)
        time.sleep(0.25)
        assert statuses() == [503, 503, 200]


def test_a_mistake_of_ours_is_answered_in_shape(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    scorer, wire = GatedScorer(), WIRES[name]
    scorer.gate.set()
    with client_of(models=scored_by(scorer)) as client:
        answer = client.post(wire.path, json=wire.body(["fail"]))
        assert answer.status_code == (424 if name == "tei" else 500)
        assert "internal error" in message_of(name, answer)
        assert client.post(wire.path, json=wire.body()).status_code == 200
    assert caplog.text.count("RerankerError: found the text fail") == 1


def asgi_request(wire: Wire, *messages: Any) -> tuple[dict[str, Any], Any]:
    """The scope of a request, and a receive that gives these messages, then waits."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": wire.path,
        "headers": [(b"content-type", b"application/json")],
        "query_string": b"",
    }
    waiting = list(messages)

    async def receive() -> Any:
        if waiting:
            return waiting.pop(0)
        return await asyncio.Event().wait()

    return scope, receive


def test_a_client_that_goes_away_costs_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", LOG.name)
    scorer, wire = GatedScorer(), WIRES["tei"]
    service = Service(scored_by(scorer), Limits(), 1)
    body = json.dumps(wire.body([f"{n}" for n in range(2000)])).encode()
    whole = {"type": "http.request", "body": body}
    part = {"type": "http.request", "body": body[:500], "more_body": True}
    gone = {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        """Nobody is there."""

    async def main() -> None:
        app = build(service)
        for messages in ((whole, gone), (part, gone)):
            scope, receive = asgi_request(wire, *messages)
            await asyncio.wait_for(app(scope, receive, send), 10)  # type: ignore[arg-type]
        assert service.queue.requests == 0
        scorer.gate.set()
        await asyncio.to_thread(service.queue.stop)

    run_apart(main)
    assert len(scorer.seen) <= 1
    assert [line["kind"] for line in lines_of(caplog)] == ["gone", "gone"]


def test_a_body_that_never_ends() -> None:
    wire = WIRES["cohere"]
    service = Service(models(), Limits(seconds=0.05), 1)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        part = {"type": "http.request", "body": b"{", "more_body": True}
        scope, receive = asgi_request(wire, part)
        await asyncio.wait_for(build(service)(scope, receive, send), 10)  # type: ignore[arg-type]

    run_apart(main)
    assert sent[0]["status"] == 408
