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
from helpers.index_samples import table
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

from tweetrerank.pipeline.service import scoring_queue as serving
from tweetrerank.pipeline.service.app import Service, build
from tweetrerank.pipeline.service.reloading import Reloader
from tweetrerank.pipeline.service.requests import (
    LOG,
    JsonFormatter,
    Limits,
    RequestError,
)
from tweetrerank.pipeline.service.scoring_queue import Queue
from tweetrerank.rerankers.reranker_error import RerankerError

JSON = {"content-type": "application/json"}
KEY = "correct-horse"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of(Limits(50, 100_000)) as client:
        yield client


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> Wire:
    return WIRES[request.param]


def message_of(wire: Wire, response: Response) -> str:
    """The text of an error, whose shape is that of the format."""
    content = response.json()
    assert (
        response.headers["content-type"] == "application/json"
        and set(content) == wire.error
    )
    return str(content.get("error", content.get("message", content.get("detail"))))


@pytest.mark.parametrize(("documents", "problem"), table("bad_documents.jsonl"))
def test_wrong_documents(
    client: TestClient, wire: Wire, documents: Any, problem: str
) -> None:
    status = wire.wrong
    if "documents" in problem:
        status = 422 if documents and wire is WIRES["tei"] else 400
    answer = client.post(wire.path, json=wire.body(documents))
    assert answer.status_code == status
    assert wire.documents + problem in message_of(wire, answer)
    assert client.post(wire.path, json=wire.body(["a"] * 50)).status_code == 200


def test_wrong_numbers_of_results(client: TestClient, wire: Wire) -> None:
    for value in (-1, 1.5, "3.5", True, [1]):
        answer = client.post(wire.path, json=wire.body(**{wire.top: value}))
        assert answer.status_code == wire.wrong, value
        assert f"{wire.top}: Expected `int" in message_of(wire, answer)


def test_a_body_that_is_no_json_or_too_large(client: TestClient, wire: Wire) -> None:
    """One that calls itself no JSON is refused by TEI alone."""
    deep, good = b'{"a":' + b"[" * 10_000, json.dumps(wire.body()).encode()
    wrong = (b"", b"{", b"nonsense", b"\xff\xfe", deep, b'{"query": "\xff"}')
    for body in wrong if wire is not WIRES["tei"] else ():
        answer = client.post(wire.path, content=body, headers=JSON)
        assert answer.status_code == 400
        assert "body" in message_of(wire, answer)
    answer = client.post(wire.path, json=wire.body(["a" * 100_000]))
    assert answer.status_code == 413 and "100000 bytes" in answer.text
    assert client.post(wire.path, content=iter([b" " * 1000] * 200)).status_code == 413
    for kind in ("", "text/plain", "application/json; charset=utf-8"):
        headers = {"content-type": kind} if kind else {}
        answer = client.post(wire.path, content=good, headers=headers)
        is_refused = wire is WIRES["tei"] and "json" not in kind
        assert answer.status_code == (415 if is_refused else 200)


def test_unknown_paths_and_methods(client: TestClient) -> None:
    unknown = ("GET /nothing", "POST /v1/nothing", "GET /health/", "POST /v1/rerank/x/")
    for request in (*unknown, "GET /rerank", "DELETE /health"):
        answer = client.request(*request.split(), follow_redirects=False)
        assert answer.status_code == (404 if request in unknown else 405), request
        assert answer.json()
    assert client.get("/rerank").headers["allow"] == "POST"


def test_a_slash_at_the_end_of_a_path_changes_nothing(
    client: TestClient, wire: Wire
) -> None:
    paths, body = (wire.path, f"{wire.path}/"), wire.body()
    answers = [
        client.post(path, json=body, follow_redirects=False).json() for path in paths
    ]
    assert wire.results_of(answers[0]) == wire.results_of(answers[1])
    assert wire.documents in message_of(wire, client.post(paths[1], json=wire.body(5)))


@pytest.mark.parametrize("kind", AWKWARD)
def test_awkward_texts_are_scored(client: TestClient, wire: Wire, kind: str) -> None:
    """Also halves of surrogate pairs, which cut posts have; they come back as U+FFFD."""
    text = AWKWARD[kind]
    body = json.dumps(wire.body([text, "bbc", text], **wire.echo) | {"query": text})
    answer = client.post(wire.path, content=body, headers=JSON)
    assert answer.status_code == 200, answer.text
    results = {rank["index"]: rank for rank in wire.results_of(answer.json())}
    assert results[0][wire.score] == results[2][wire.score]
    if "text" in results[0]:
        code = text.encode("utf-16", "surrogatepass")
        assert results[0]["text"] == code.decode("utf-16", "replace")


def test_escaped_backslashes_are_no_surrogates(client: TestClient) -> None:
    body = rb'{"query":"a","texts":["\\ud83d","\ud83d\ude00","\ude00\ud83d"],"return_text":true}'
    ranks = client.post("/rerank", content=body, headers=JSON).json()
    texts = {rank["index"]: rank["text"] for rank in ranks}
    assert texts == {0: "\\ud83d", 1: "\U0001f600", 2: "\ufffd\ufffd"}


def test_keys(wire: Wire) -> None:
    with client_of(keys=[KEY, "second"]) as client:
        for header in (
            "",
            KEY,
            f"Basic {KEY}",
            f"Bearer {KEY}x",
            "Bearer ",
            "Bearer é",
        ):
            headers = {"authorization": header.encode("latin-1")} if header else {}
            answer = client.post(wire.path, json=wire.body(), headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (
                401,
                "Bearer",
            )
            assert KEY not in answer.text
        for header in (f"Bearer {KEY}", f"bearer {KEY}", "Bearer second"):
            headers = {"authorization": header.encode()}
            assert (
                client.post(wire.path, json=wire.body(), headers=headers).status_code
                == 200
            )
        for path in ("/", "/health", "/ping", "/metrics", "/openapi.json"):
            assert client.get(path).status_code == 200
        assert client.get("/openapi.json").json()["security"] == [{"key": []}]
        for path in ("/info", "/v1/models", "/api/collection", "/nothing"):
            assert client.get(path).status_code == 401


def test_names_of_the_service() -> None:
    """A page of another site cannot give its own name to this machine."""
    own = ("localhost", "LOCALHOST:8080", "[::1]:8080", "a.example.com")
    with client_of(hosts=["localhost", "[::1]", "*.example.com"]) as client:
        for host in (*own, "example.com", "evil.org", "localhost.evil.org:80"):
            status = client.get("/info", headers={"host": host}).status_code
            assert status == (200 if host in own else 421)


def test_pages_of_other_sites_need_leave() -> None:
    headers = {"origin": "https://a.org", "access-control-request-method": "POST"}
    headers["access-control-request-headers"] = "authorization,content-type"
    for origins, status in (
        ((), 401),
        (("https://a.org",), 200),
        (("https://b.org",), 400),
    ):
        with client_of(origins=origins, keys=[KEY]) as client:
            asked = client.options("/v1/rerank", headers=headers)
            sent = client.get("/health", headers={"origin": "https://a.org"})
            allowed = (
                {"access-control-allow-origin"} & {*asked.headers} & {*sent.headers}
            )
            assert (asked.status_code, bool(allowed)) == (status, status == 200)


def test_requests_of_a_client_are_bounded_if_wanted() -> None:
    with client_of(rate=3) as client:
        statuses = [client.get("/info").status_code for _ in range(5)]
        assert (
            statuses == [200, 200, 200, 429, 429]
            and client.get("/health").status_code == 200
        )
        time.sleep(0.4)
        assert client.get("/info").status_code == 200


def test_a_body_of_millions_of_values_is_refused_at_once() -> None:
    many = b"[]," * 2_000_000
    with client_of(Limits()) as opened:
        for body, status in (
            (b'{"query": "a", "documents": ["a"], "x": [%b[]]}' % many, 200),
            (b'{"query": "a", "documents": [%b[]]}' % many, 422),
            (b'{"query": "a", "documents": [%b""]}' % (b'"",' * 2_000_000), 400),
            (b'{"query": "a", "documents": ["a"], "x": %b}' % (b"[" * 4_000_000), 400),
            (
                b'{"query": "a", "documents": ["a"], "rank_fields": [%b""]}'
                % (b'"a",' * 999),
                422,
            ),
        ):
            started = time.perf_counter()
            assert opened.post("/v2/rerank", content=body).status_code == status
            assert time.perf_counter() - started < 2


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
    started, done = time.monotonic(), run_python("-c", HANG)
    assert (done.returncode, "Timeout" in done.stderr) == (1, True)
    assert time.monotonic() - started < 25


def test_reloads_are_one_at_a_time_and_one_waits() -> None:
    gate, begun, ended = threading.Event(), list[int](), list[int]()

    def work() -> None:
        begun.append(len(ended))
        gate.wait(10)
        ended.append(len(begun))

    soon = Reloader(work).request
    for _ in range(5):
        soon()
    gate.set()
    end = time.monotonic() + 5
    while len(ended) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    assert (begun, ended) == ([0, 1], [1, 2])


def test_request_ids(client: TestClient) -> None:
    for given in ("abc-123", "x" * 128, "", "a b", "x" * 129):
        made = client.get("/health", headers={"x-request-id": given}).headers[
            "x-request-id"
        ]
        assert made and (made == given) == (given in ("abc-123", "x" * 128)), given


def lines_of(caplog: pytest.LogCaptureFixture) -> list[Any]:
    written = map(JsonFormatter().format, caplog.records)
    return [line for line in map(json.loads, written) if "request_id" in line]


def test_logs_have_no_texts(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", LOG.name)
    wire = WIRES["tei"]
    client.post(wire.path, json=wire.body(), headers={"x-request-id": "find-me"})
    client.post(wire.path, json={"query": "secret", "texts": [5]})
    good, bad = lines_of(caplog)
    expected = {
        "request_id": "find-me",
        "format": "tei",
        "model": "mp_hcnn",
        "status": 200,
    }
    expected |= {"path": "/rerank", "documents": len(TEXTS)}
    assert (
        good.items()
        >= (expected | {"characters": sum(map(len, [QUERY, *TEXTS]))}).items()
    )
    assert good["total_ms"] >= good["inference_ms"] >= 0 and QUERY not in str(good)
    assert bad["kind"] == "value" and "secret" not in str(bad)
    with client_of(log_texts=True) as open_client:
        open_client.post(wire.path, json=wire.body())
    assert lines_of(caplog)[-1]["texts"] == [QUERY, *TEXTS]


@pytest.mark.parametrize(
    "most", [{"waiting_requests": 2}, {"waiting_documents": 2 * len(TEXTS)}]
)
def test_overload(wire: Wire, most: dict[str, int]) -> None:
    scorer, limits = GatedScorer(), Limits(**most)
    with (
        client_of(limits, models=scored_by(scorer)) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        work = [pool.submit(client.post, wire.path, json=wire.body()) for _ in range(8)]
        for refused in islice(as_completed(work, 20), 6):
            answer = refused.result()
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            assert "waiting" in message_of(wire, answer)
        scorer.gate.set()
        assert (
            sorted(future.result().status_code for future in work)
            == [200] * 2 + [429] * 6
        )
        assert client.post(wire.path, json=wire.body()).status_code == 200
        assert 'te_request_failure{err="overloaded"} 6.0' in client.get("/metrics").text


def test_large_bodies_are_bounded_together() -> None:
    scorer, body = GatedScorer(), {"query": QUERY, "documents": ["a" * 600]}
    service = client_of(Limits(held=1000), models=scored_by(scorer))
    with service as client, ThreadPoolExecutor(1) as pool:
        post = partial(client.post, "/v2/rerank", json=body)
        first = pool.submit(post)
        assert scorer.begun.wait(10)
        assert post().status_code == 429
        scorer.gate.set()
        assert [first.result().status_code, post().status_code] == [200, 200]


def test_deadlines(wire: Wire) -> None:
    """A request without one gets that of the service."""
    scorer, names = (
        GatedScorer(),
        ("X-Request-Timeout-Ms", "X-Envoy-Expected-Rq-Timeout-Ms"),
    )
    statuses = {"50": 504, "": 504, "9999": 200, "0": 200, "soon": wire.wrong}
    with client_of(Limits(answer=0.5), models=scored_by(scorer)) as client:
        for value, status in statuses.items():
            if status != 504:
                scorer.gate.set()
            for headers in [{name: value} for name in names] if value else [{}]:
                answer = client.post(wire.path, json=wire.body(), headers=headers)
                assert answer.status_code == status, (headers, answer.text)
                assert status != 504 or "deadline" in message_of(wire, answer)


def test_health_needs_scores_and_ready_needs_room(monkeypatch: Patch) -> None:
    monkeypatch.setattr(serving, "CHECKED", 0.2)
    scorer, body = GatedScorer(), WIRES["tei"].body()
    limits = Limits(waiting_requests=1)
    with (
        client_of(limits, models=scored_by(scorer)) as client,
        ThreadPoolExecutor(1) as pool,
    ):

        def statuses() -> list[int]:
            return [
                client.get(path).status_code for path in ("/health", "/ping", "/ready")
            ]

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
        monkeypatch.setattr(scorer, "ask", lambda name, pairs: 1 / 0)
        time.sleep(0.25)
        assert statuses() == [503, 503, 200]


def test_a_mistake_of_ours_has_the_shape(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    scorer = GatedScorer()
    scorer.gate.set()
    with client_of(models=scored_by(scorer)) as client:
        answer = client.post(wire.path, json=wire.body(["fail"]))
        assert answer.status_code == (424 if wire is WIRES["tei"] else 500)
        assert "internal error" in message_of(wire, answer)
        assert client.post(wire.path, json=wire.body()).status_code == 200
    assert caplog.text.count("RerankerError: found the text fail") == 1


async def served(
    service: Service, *messages: Message, path: str = "/rerank"
) -> list[Message]:
    """Messages sent for a request whose client sends these ones, then nothing more."""
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    waiting, sent = list(messages), list[Message]()

    async def receive() -> Message:
        return waiting.pop(0) if waiting else await asyncio.Event().wait() or {}

    async def send(message: Message) -> None:
        sent.append(message)

    app = build(service)
    await asyncio.wait_for(app(scope | {"query_string": b""}, receive, send), 10)  # type: ignore[arg-type]
    return sent


def test_a_client_that_goes_away_costs_nothing_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", LOG.name)
    scorer = GatedScorer()
    service = Service(scored_by(scorer), Limits(), 1)
    body = json.dumps(WIRES["tei"].body([f"{n}" for n in range(2000)])).encode()

    async def main() -> None:
        for more in ({"body": body}, {"body": body[:500], "more_body": True}):
            await served(
                service, {"type": "http.request", **more}, {"type": "http.disconnect"}
            )
            assert service.queue.requests == 0
        scorer.gate.set()

    service_samples.run_apart(main)
    assert len(scorer.seen) <= 1
    assert [line["kind"] for line in lines_of(caplog)] == ["gone", "gone"]


def test_a_body_that_never_ends() -> None:
    part = {"type": "http.request", "body": b"{", "more_body": True}
    service = Service(service_samples.models(), Limits(seconds=0.05), 1)
    (head, *_) = service_samples.run_apart(
        lambda: served(service, part, path="/v2/rerank")
    )
    assert head["status"] == 408


def test_requests_wait_in_their_order_or_are_refused_at_once() -> None:
    """By the seconds of a pair until now; what is past its deadline is never scored."""
    scorer, waiting = GatedScorer(), Queue(1, most_pairs=1000, most_requests=10)

    async def score(*texts: str, seconds: float = 60) -> list[float]:
        pairs = all_pairs([""], [(text, "") for text in texts])
        work = partial(scorer.ask, "name", pairs)
        found = await waiting.run(work, len(pairs), time.perf_counter() + seconds)
        return list(found[0].tolist())

    async def main() -> None:
        first = asyncio.create_task(score("first"))
        await asyncio.to_thread(scorer.begun.wait, 10)
        with pytest.raises(RequestError, match="deadline of the request is past"):
            await score("late", seconds=0.05)
        waiting._pair_seconds = 0.1
        texts = [["x"] * 100, ["fail", "b"], ["bb", "ccc"]]
        tasks = [asyncio.create_task(score(*each)) for each in texts]
        await asyncio.sleep(0)
        assert waiting.queued == 3
        for late, seconds, problem in (
            (["a"], 5, "for longer than the deadline"),
            (["x"] * 1000, 60, "more than fit"),
            (["late"], 0, "deadline of the request is past"),
        ):
            with pytest.raises(RequestError, match=problem):
                await score(*late, seconds=seconds)
        scorer.gate.set()
        assert await first == [5] and await tasks[0] == [1] * 100
        with pytest.raises(RerankerError, match="fail"):
            await tasks[1]
        assert await tasks[2] == [2, 3]
        waiting._pair_seconds = 1e-9
        assert await score("hung") == [4] and waiting._pair_seconds < 2e-9

    service_samples.run_apart(main)
    assert (waiting.pairs, waiting.requests) == (0, 0)
    assert scorer.first_texts == ["first", "x", "fail", "bb", "hung"]


@pytest.mark.slow
def test_the_service_keeps_to_its_description(tmp_path: Path) -> None:
    """All checks of schemathesis, by valid and invalid requests; a wrong key, too."""
    scorer, hooks = GatedScorer(), {"SCHEMATHESIS_HOOKS": "schemathesis_hooks"}
    hooks["PYTHONPATH"] = str(ROOT / "tests" / "helpers")
    scorer.gate.set()
    options = "--checks all --mode all --max-examples 40 --seed 1 --max-response-time 5 --no-color"
    options += " --generation-database none --continue-on-failure"
    app = service_samples.app_of(keys=[KEY], models=scored_by(scorer))
    with service_samples.listening(app) as address:
        given = (f"{address}/openapi.json", "--header", f"Authorization: Bearer {KEY}")
        done = run_program(
            "schemathesis", "run", *given, *options.split(), cwd=tmp_path, **hooks
        )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    assert "Tested: 13" in done.stdout
    assert "Authentication failed" not in done.stdout
