"""Requests that get no scores: limits, wrong values, keys, overload, lost clients."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from conftest import Patch
from helpers import service_samples
from helpers.processes import ROOT, run_program, run_python
from helpers.reranking_samples import AWKWARD, all_pairs
from helpers.service_samples import (
    QUERY,
    TEXTS,
    WIRES,
    GatedScorer,
    Wire,
    client_of,
    scored_by,
)
from httpx import Response
from starlette.testclient import TestClient
from starlette.types import Message

from tweetrerank.pipeline.service import scoring_queue
from tweetrerank.pipeline.service.app import build
from tweetrerank.pipeline.service.json_log import LOG, JsonFormatter
from tweetrerank.pipeline.service.limits import Limits
from tweetrerank.pipeline.service.reloading import Reloader
from tweetrerank.pipeline.service.rerank_service import Service
from tweetrerank.pipeline.service.scoring_queue import Queue
from tweetrerank.pipeline.service.service_errors import RequestError
from tweetrerank.rerankers.reranker_error import RerankerError

JSON = {"content-type": "application/json"}
KEY = "correct-horse"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of(Limits(50, 100_000)) as client:
        yield client


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest, client: TestClient) -> Wire:
    return WIRES[request.param]._replace(client=client)


def message_of(wire: Wire, response: Response) -> str:
    """The text of an error, whose shape is that of the format."""
    content = response.json()
    assert response.headers["content-type"] == "application/json"
    assert set(content) == wire.error
    return str(content.get("error", content.get("message", content.get("detail"))))


# --- Wrong values ---------------------------------------------------------------------

WRONG_DOCUMENTS = [
    # None, and more than the limit
    ([], ": found no documents, expected at least one"),
    (["a"] * 51, ": found 51 documents, expected at most 50"),
    # Elements of another type
    (["a", 5], "[1]: Expected `str | object`, got `int`"),
    (["a", None], "[1]: Expected `str | object`, got `null`"),
    ([["a"]], "[0]: Expected `str | object`, got `array`"),
    # Objects with wrong or missing fields
    (["a", {"text": 5}], "[1].text: Expected `str`, got `int`"),
    ([{"url": "http://t.co"}], "[0].text: found no value"),
    ([{"text": "a", "url": []}], "[0].url: Expected `str | null`, got `array`"),
    # No list
    (5, ": Expected `array | null`, got `int`"),
]


@pytest.mark.parametrize(("documents", "problem"), WRONG_DOCUMENTS)
def test_wrong_documents(wire: Wire, documents: Any, problem: str) -> None:
    status = wire.wrong
    if "documents" in problem:
        status = 422 if documents and wire.is_tei else 400
    response = wire.post(documents)
    assert response.status_code == status
    assert wire.documents + problem in message_of(wire, response)


def test_as_many_documents_as_allowed(wire: Wire) -> None:
    assert wire.post(["a"] * 50).status_code == 200


@pytest.mark.parametrize("value", [-1, 1.5, "3.5", True, [1]], ids=repr)
def test_wrong_numbers_of_results(wire: Wire, value: Any) -> None:
    response = wire.post(**{wire.top: value})
    assert response.status_code == wire.wrong
    assert f"{wire.top}: Expected `int" in message_of(wire, response)


NO_JSON = {
    "nothing": b"",
    "cut": b"{",
    "words": b"nonsense",
    "no UTF-8": b"\xff\xfe",
    "deep": b'{"a":' + b"[" * 10_000,
    "a text without UTF-8": b'{"query": "\xff"}',
}


@pytest.mark.parametrize("name", [name for name in WIRES if name != "tei"])
@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON)
def test_a_body_that_is_no_json(client: TestClient, name: str, body: bytes) -> None:
    wire = WIRES[name]
    response = client.post(wire.path, content=body, headers=JSON)
    assert response.status_code == 400
    assert "body" in message_of(wire, response)


def test_a_body_that_is_too_large(client: TestClient, wire: Wire) -> None:
    response = wire.post(["a" * 100_000])
    assert response.status_code == 413
    assert "100000 bytes" in response.text
    chunks = iter([b" " * 1000] * 200)
    assert client.post(wire.path, content=chunks).status_code == 413


@pytest.mark.parametrize(
    "media_type", ["", "text/plain", "application/json; charset=utf-8"]
)
def test_media_types(client: TestClient, wire: Wire, media_type: str) -> None:
    """Only TEI refuses a body that is not declared as JSON."""
    headers = {"content-type": media_type} if media_type else {}
    body = json.dumps(wire.body()).encode()
    response = client.post(wire.path, content=body, headers=headers)
    is_refused = wire.is_tei and "json" not in media_type
    assert response.status_code == (415 if is_refused else 200)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/health/", 404),
        ("POST", "/v1/rerank/x/", 404),
        ("GET", "/rerank", 405),
        ("DELETE", "/health", 405),
    ],
)
def test_unknown_paths_and_methods(
    client: TestClient, method: str, path: str, status: int
) -> None:
    response = client.request(method, path, follow_redirects=False)
    assert response.status_code == status
    assert response.json()


def test_an_unknown_method_names_the_known_one(client: TestClient) -> None:
    assert client.get("/rerank").headers["allow"] == "POST"


def test_a_slash_at_the_end_of_a_path_changes_nothing(
    client: TestClient, wire: Wire
) -> None:
    post = partial(client.post, f"{wire.path}/", follow_redirects=False)
    expected = wire.post().json()
    content = post(json=wire.body()).json()
    assert wire.results_of(content) == wire.results_of(expected)
    assert wire.documents in message_of(wire, post(json=wire.body(5)))


# --- Texts ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", AWKWARD)
def test_awkward_texts_are_scored(client: TestClient, wire: Wire, kind: str) -> None:
    """Cut posts have halves of surrogate pairs, which come back as U+FFFD."""
    text = AWKWARD[kind]
    body = json.dumps(wire.body([text, "bbc", text], **wire.echo) | {"query": text})
    response = client.post(wire.path, content=body, headers=JSON)
    assert response.status_code == 200, response.text
    results = wire.results_of(response.json())
    scores = wire.scores_of(results)
    assert scores[0] == scores[2]
    texts = [result["text"] for result in results if "text" in result]
    code = text.encode("utf-16", "surrogatepass")
    expected = code.decode("utf-16", "replace")
    assert not texts or sorted(texts) == sorted([expected, expected, "bbc"])


def test_escaped_backslashes_are_no_surrogates(client: TestClient) -> None:
    texts = rb'["\\ud83d","\ud83d\ude00","\ude00\ud83d"]'
    body = rb'{"query":"a","texts":%b,"return_text":true}' % texts
    ranks = client.post("/rerank", content=body, headers=JSON).json()
    assert {rank["index"]: rank["text"] for rank in ranks} == {
        0: "\\ud83d",
        1: "\U0001f600",
        2: "\ufffd\ufffd",
    }


# --- Keys, names and rates ------------------------------------------------------------


@pytest.fixture(scope="module")
def locked() -> Iterator[TestClient]:
    with client_of(keys=[KEY, "second"]) as client:
        yield client


@pytest.mark.parametrize(
    "header",
    [None, KEY, f"Basic {KEY}", f"Bearer {KEY}x", "Bearer ", "Bearer é"],
)
def test_unknown_keys(locked: TestClient, wire: Wire, header: str | None) -> None:
    headers = {"authorization": header.encode("latin-1")} if header else {}
    response = locked.post(wire.path, json=wire.body(), headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert KEY not in response.text


@pytest.mark.parametrize("header", [f"Bearer {KEY}", f"bearer {KEY}", "Bearer second"])
def test_known_keys(locked: TestClient, wire: Wire, header: str) -> None:
    headers = {"authorization": header}
    response = locked.post(wire.path, json=wire.body(), headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/health", 200),
        ("/ping", 200),
        ("/metrics", 200),
        ("/openapi.json", 200),
        ("/info", 401),
        ("/v1/models", 401),
        ("/api/collection", 401),
        ("/nothing", 401),
    ],
)
def test_paths_without_a_key(locked: TestClient, path: str, status: int) -> None:
    assert locked.get(path).status_code == status


def test_the_description_names_the_key(locked: TestClient) -> None:
    assert locked.get("/openapi.json").json()["security"] == [{"key": []}]


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


@pytest.mark.parametrize(
    ("origins", "status"),
    [
        pytest.param((), 401, id="none allowed"),
        pytest.param(("https://a.org",), 200, id="allowed"),
        pytest.param(("https://b.org",), 400, id="another allowed"),
    ],
)
def test_pages_of_other_sites_need_leave(origins: Any, status: int) -> None:
    origin = {"origin": "https://a.org"}
    preflight = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    with client_of(origins=origins, keys=[KEY]) as client:
        asked = client.options("/v1/rerank", headers=origin | preflight)
        sent = client.get("/health", headers=origin)
    assert asked.status_code == status
    name = "access-control-allow-origin"
    is_allowed = name in asked.headers and name in sent.headers
    assert is_allowed == (status == 200)


def test_requests_of_a_client_are_bounded_if_wanted() -> None:
    with client_of(rate=3) as client:
        statuses = [client.get("/info").status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        assert client.get("/health").status_code == 200
        time.sleep(0.4)
        assert client.get("/info").status_code == 200


# --- Bodies of millions of values -----------------------------------------------------

ARRAYS = b"[]," * 2_000_000 + b"[]"
TEXTS_OF_NOTHING = b'"",' * 2_000_000 + b'""'
START = b'{"query": "a", "documents": '


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(START + b'["a"], "x": [%b]}' % ARRAYS, 200, id="unknown field"),
        pytest.param(START + b"[%b]}" % ARRAYS, 422, id="wrong documents"),
        pytest.param(START + b"[%b]}" % TEXTS_OF_NOTHING, 400, id="many documents"),
        pytest.param(
            START + b'["a"], "x": %b}' % (b"[" * 4_000_000), 400, id="deep field"
        ),
        pytest.param(
            START + b'["a"], "rank_fields": [%b""]}' % (b'"a",' * 999),
            422,
            id="many rank_fields",
        ),
    ],
)
def test_a_body_of_millions_of_values_is_answered_at_once(
    body: bytes, status: int
) -> None:
    with client_of(Limits()) as client:
        started = time.perf_counter()
        assert client.post("/v2/rerank", content=body).status_code == status
        assert time.perf_counter() - started < 2


# --- Event loop, reloads and log ------------------------------------------------------

HANG = """
import asyncio, time, sys
from tweetrerank.pipeline.service import app
app.HANGS = 1.0
async def main():
    asyncio.get_running_loop().call_later(0.5, time.sleep, 30)
    await app.watch_event_loop()
asyncio.run(main())
"""


def test_a_loop_that_hangs_ends_the_service() -> None:
    started = time.monotonic()
    process = run_python("-c", HANG)
    assert process.returncode == 1
    assert "Timeout" in process.stderr
    assert time.monotonic() - started < 25


def test_reloads_are_one_at_a_time_and_one_waits() -> None:
    gate = threading.Event()
    begun: list[int] = []
    ended: list[int] = []

    def work() -> None:
        begun.append(len(ended))
        gate.wait(10)
        ended.append(len(begun))

    reloader = Reloader(work)
    for _ in range(5):
        reloader.request()
    gate.set()
    end = time.monotonic() + 5
    while len(ended) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    assert (begun, ended) == ([0, 1], [1, 2])


@pytest.mark.parametrize("request_id", ["abc-123", "x" * 128])
def test_request_ids_of_clients(client: TestClient, request_id: str) -> None:
    response = client.get("/health", headers={"x-request-id": request_id})
    assert response.headers["x-request-id"] == request_id


@pytest.mark.parametrize("request_id", ["", "a b", "x" * 129])
def test_unfit_request_ids_are_replaced(client: TestClient, request_id: str) -> None:
    response = client.get("/health", headers={"x-request-id": request_id})
    assert response.headers["x-request-id"] not in ("", request_id)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """The lines of requests in the log."""
    formatter = JsonFormatter()
    lines = [json.loads(formatter.format(record)) for record in caplog.records]
    return [line for line in lines if "request_id" in line]


def test_logs_have_no_texts(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", LOG.name)
    body = WIRES["tei"].body()
    client.post("/rerank", json=body, headers={"x-request-id": "find-me"})
    client.post("/rerank", json={"query": "secret", "texts": [5]})
    good, bad = lines_of(caplog)
    expected = {
        "request_id": "find-me",
        "format": "tei",
        "model": "mp_hcnn",
        "status": 200,
        "path": "/rerank",
        "documents": len(TEXTS),
        "characters": len(QUERY) + sum(map(len, TEXTS)),
    }
    assert good.items() >= expected.items()
    assert good["total_ms"] >= good["inference_ms"] >= 0
    assert QUERY not in str(good)
    assert bad["kind"] == "value"
    assert "secret" not in str(bad)


def test_logs_have_texts_if_wanted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", LOG.name)
    with client_of(log_texts=True) as client:
        client.post("/rerank", json=WIRES["tei"].body())
    (line,) = lines_of(caplog)
    assert line["texts"] == [QUERY, *TEXTS]


# --- Overload and deadlines -----------------------------------------------------------


@pytest.mark.parametrize(
    "limits",
    [Limits(waiting_requests=2), Limits(waiting_documents=2 * len(TEXTS))],
    ids=["requests", "documents"],
)
def test_overload(wire: Wire, limits: Limits) -> None:
    scorer = GatedScorer()
    service = client_of(limits, models=scored_by(scorer))
    with service as client, ThreadPoolExecutor(8) as pool:
        post = partial(client.post, wire.path, json=wire.body())
        futures = [pool.submit(post) for _ in range(8)]
        refused = [done.result() for done in islice(as_completed(futures, 20), 6)]
        scorer.gate.set()
        statuses = sorted(future.result().status_code for future in futures)
        assert statuses == [200] * 2 + [429] * 6
        assert {response.headers["retry-after"] for response in refused} == {"1"}
        assert all("waiting" in message_of(wire, response) for response in refused)
        assert post().status_code == 200
        metrics = client.get("/metrics").text
    assert 'te_request_failure{err="overloaded"} 6.0' in metrics


def test_large_bodies_are_bounded_together() -> None:
    scorer = GatedScorer()
    body = {"query": QUERY, "documents": ["a" * 600]}
    service = client_of(Limits(held=1000), models=scored_by(scorer))
    with service as client, ThreadPoolExecutor(1) as pool:
        post = partial(client.post, "/v2/rerank", json=body)
        first = pool.submit(post)
        assert scorer.begun.wait(10)
        assert post().status_code == 429
        scorer.gate.set()
        assert first.result().status_code == 200
        assert post().status_code == 200


DEADLINE_HEADERS = ["X-Request-Timeout-Ms", "X-Envoy-Expected-Rq-Timeout-Ms"]


@pytest.fixture
def slow() -> Iterator[tuple[TestClient, GatedScorer]]:
    """A service with half a second for an answer, and its scorer."""
    scorer = GatedScorer()
    with client_of(Limits(answer=0.5), models=scored_by(scorer)) as client:
        yield client, scorer
        scorer.gate.set()


@pytest.mark.parametrize(
    "headers",
    [
        {DEADLINE_HEADERS[0]: "50"},
        {DEADLINE_HEADERS[1]: "50"},
        {},  # The service has its own deadline.
    ],
)
def test_a_deadline_passes(slow: Any, wire: Wire, headers: Any) -> None:
    client, _ = slow
    response = client.post(wire.path, json=wire.body(), headers=headers)
    assert response.status_code == 504
    assert "deadline" in message_of(wire, response)


@pytest.mark.parametrize("name", DEADLINE_HEADERS)
@pytest.mark.parametrize("value", ["9999", "0"])
def test_a_deadline_is_kept(slow: Any, wire: Wire, name: str, value: str) -> None:
    client, scorer = slow
    scorer.gate.set()
    response = client.post(wire.path, json=wire.body(), headers={name: value})
    assert response.status_code == 200


@pytest.mark.parametrize("name", DEADLINE_HEADERS)
def test_a_wrong_deadline(slow: Any, wire: Wire, name: str) -> None:
    client, _ = slow
    response = client.post(wire.path, json=wire.body(), headers={name: "soon"})
    assert response.status_code == wire.wrong


def test_health_needs_scores_and_ready_needs_room(monkeypatch: Patch) -> None:
    monkeypatch.setattr(scoring_queue, "CHECKED", 0.2)
    scorer = GatedScorer()
    service = client_of(Limits(waiting_requests=1), models=scored_by(scorer))
    with service as client, ThreadPoolExecutor(1) as pool:

        def statuses() -> list[int]:
            paths = ("/health", "/ping", "/ready")
            return [client.get(path).status_code for path in paths]

        time.sleep(0.25)
        assert statuses() == [503, 503, 200]
        waiting = pool.submit(client.post, "/rerank", json=WIRES["tei"].body())
        while client.get("/ready").status_code == 200:
            assert not waiting.done()
        scorer.gate.set()
        assert waiting.result().status_code == 200
        assert statuses() == [200, 200, 200]
        calls = len(scorer.seen)
        probes = [client.get("/health").status_code for _ in range(5)]
        assert probes == [200] * 5
        assert len(scorer.seen) <= calls + 1
        monkeypatch.setattr(scorer, "ask", lambda name, pairs: 1 / 0)
        time.sleep(0.25)
        assert statuses() == [503, 503, 200]


def test_a_mistake_of_ours_has_the_shape(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    scorer = GatedScorer()
    scorer.gate.set()
    with client_of(models=scored_by(scorer)) as client:
        response = client.post(wire.path, json=wire.body(["fail"]))
        assert response.status_code == (424 if wire.is_tei else 500)
        assert "internal error" in message_of(wire, response)
        assert client.post(wire.path, json=wire.body()).status_code == 200
    assert caplog.text.count("RerankerError: found the text fail") == 1


# --- Lost clients ---------------------------------------------------------------------


async def served(
    service: Service, *messages: Message, path: str = "/rerank"
) -> list[Message]:
    """Send a request of these messages; returns those of the response."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [(b"content-type", b"application/json")],
        "query_string": b"",
    }
    waiting = list(messages)
    sent: list[Message] = []

    async def receive() -> Message:
        if not waiting:
            await asyncio.Event().wait()  # For ever
        return waiting.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await asyncio.wait_for(build(service)(scope, receive, send), 10)
    return sent


BODY = json.dumps(WIRES["tei"].body([f"{n}" for n in range(2000)])).encode()


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"body": BODY}, id="after the body"),
        pytest.param({"body": BODY[:500], "more_body": True}, id="within the body"),
    ],
)
def test_a_client_that_goes_away_costs_nothing_more(
    caplog: pytest.LogCaptureFixture, message: Any
) -> None:
    caplog.set_level("INFO", LOG.name)
    scorer = GatedScorer()
    service = Service(scored_by(scorer), Limits(), 1)

    async def main() -> None:
        request = {"type": "http.request"} | message
        await served(service, request, {"type": "http.disconnect"})
        assert service.queue.requests == 0
        scorer.gate.set()

    service_samples.run_apart(main)
    assert len(scorer.seen) <= 1
    assert [line["kind"] for line in lines_of(caplog)] == ["gone"]


def test_a_body_that_never_ends() -> None:
    part = {"type": "http.request", "body": b"{", "more_body": True}
    service = Service(service_samples.models(), Limits(seconds=0.05), 1)
    main = partial(served, service, part, path="/v2/rerank")
    messages = service_samples.run_apart(main)
    assert messages[0]["status"] == 408


# --- The queue ------------------------------------------------------------------------


class GatedQueue:
    """A queue for one scorer with a gate."""

    def __init__(self) -> None:
        self.scorer = GatedScorer()
        self.queue = Queue(1, most_pairs=1000, most_requests=10)

    async def score(self, *texts: str, seconds: float = 60) -> list[float]:
        pairs = all_pairs([""], [(text, "") for text in texts])
        ask = partial(self.scorer.ask, "name", pairs)
        deadline = time.perf_counter() + seconds
        scored = await self.queue.run(ask, len(pairs), deadline)
        return list(scored.scores.tolist())

    async def begin(self) -> "asyncio.Task[list[float]]":
        """Begin the work of a request, which waits for the gate."""
        task = asyncio.create_task(self.score("first"))
        await asyncio.to_thread(self.scorer.begun.wait, 10)
        return task


LATE = "deadline of the request is past"


def test_a_deadline_passes_in_the_queue() -> None:
    gated = GatedQueue()

    async def main() -> None:
        first = await gated.begin()
        with pytest.raises(RequestError, match=LATE):
            await gated.score("late", seconds=0.05)
        gated.scorer.gate.set()
        assert await first == [5]

    service_samples.run_apart(main)
    assert gated.scorer.first_texts == ["first"], "a late request is never scored"


@pytest.mark.parametrize(
    ("texts", "seconds", "problem"),
    [
        pytest.param(["late"], 0, LATE, id="late"),
        pytest.param(["a"], 5, "for longer than the deadline", id="long queue"),
        pytest.param(["x"] * 1000, 60, "more than fit", id="full queue"),
    ],
)
def test_requests_are_refused_at_once(
    texts: list[str], seconds: float, problem: str
) -> None:
    """Others wait, for more than five seconds by the mean time of a pair."""
    gated = GatedQueue()

    async def main() -> None:
        first = await gated.begin()
        gated.queue._pair_seconds = 0.1
        many = asyncio.create_task(gated.score(*["x"] * 100))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match=problem):
            await gated.score(*texts, seconds=seconds)
        gated.scorer.gate.set()
        assert await first == [5]
        assert await many == [1] * 100

    service_samples.run_apart(main)
    assert (gated.queue.pairs, gated.queue.requests) == (0, 0)
    assert gated.scorer.first_texts == ["first", "x"]


def test_requests_wait_in_their_order() -> None:
    gated = GatedQueue()

    async def main() -> None:
        first = await gated.begin()
        many = asyncio.create_task(gated.score(*["x"] * 100))
        failing = asyncio.create_task(gated.score("fail", "b"))
        last = asyncio.create_task(gated.score("bb", "ccc"))
        await asyncio.sleep(0)
        assert gated.queue.queued == 3
        gated.scorer.gate.set()
        assert await first == [5]
        assert await many == [1] * 100
        with pytest.raises(RerankerError, match="fail"):
            await failing
        assert await last == [2, 3]

    service_samples.run_apart(main)
    assert (gated.queue.pairs, gated.queue.requests) == (0, 0)
    assert gated.scorer.first_texts == ["first", "x", "fail", "bb"]


def test_a_process_that_hung_counts_little_in_the_mean_time() -> None:
    gated = GatedQueue()
    gated.scorer.gate.set()
    gated.queue._pair_seconds = 1e-9
    assert service_samples.run_apart(partial(gated.score, "hung")) == [4]
    assert gated.queue._pair_seconds < 2e-9


# --- The description ------------------------------------------------------------------


@pytest.mark.slow
def test_the_service_keeps_to_its_description(tmp_path: Path) -> None:
    """All checks of schemathesis, by valid and invalid requests; a wrong key, too."""
    scorer = GatedScorer()
    scorer.gate.set()
    options = (
        "--checks all --mode all --max-examples 40 --seed 1 --max-response-time 5 "
        "--no-color --generation-database none --continue-on-failure"
    )
    app = service_samples.app_of(keys=[KEY], models=scored_by(scorer))
    with service_samples.listening(app) as address:
        process = run_program(
            "schemathesis",
            "run",
            f"{address}/openapi.json",
            "--header",
            f"Authorization: Bearer {KEY}",
            *options.split(),
            cwd=tmp_path,
            SCHEMATHESIS_HOOKS="schemathesis_hooks",
            PYTHONPATH=str(ROOT / "tests" / "helpers"),
        )
    assert process.returncode == 0, process.stdout[-8000:] + process.stderr
    assert "Tested: 13" in process.stdout
    assert "Authentication failed" not in process.stdout
