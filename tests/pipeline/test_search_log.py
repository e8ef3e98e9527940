"""Searches of an engine that are logged, their events, and the comparison of two models."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command
from helpers.proxy_samples import StubEngine, search, stub_engine
from helpers.service_process import running
from helpers.service_samples import QUERY, models
from starlette.testclient import TestClient

from pipeline.collections.trec import read_qrels
from pipeline.compare import Comparison, evidence
from pipeline.service.app import build
from pipeline.service.http.models import Models
from pipeline.service.http.requests import Limits
from pipeline.service.http.service import Service
from pipeline.service.interleaving import CHALLENGER, CHAMPION, NONE, team_draft
from pipeline.service.log import MOST_EVENTS, Loop, SearchLog
from pipeline.service.proxy.routes import Proxy
from pipeline.service.proxy.search import SearchDefaults
from pipeline.service.proxy.upstream import Upstream


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, StubEngine]]:
    with stub_engine() as opened:
        yield opened


@contextmanager
def client_of(url: str, log: SearchLog, *keys: str, challenger: str = "") -> Iterator[TestClient]:
    service = Service(models(), Limits(), 2)
    loop = Loop(service, log, Models([challenger], 10**6) if challenger else None, 1.0)
    proxy = Proxy(service, Upstream([url]), SearchDefaults(seconds=60, reads_ubi=True), loop)
    with TestClient(build(service, keys, loop.routes(), proxy)) as client:
        yield client
    log.close()


def click(search_id: str, object_id: Any, **more: Any) -> dict[str, Any]:
    attributes = {"object": {"object_id": object_id}, "position": {"ordinal": 1}}
    event = {"action_name": "click", "query_id": search_id, "event_attributes": attributes}
    return event | {"message": "kept nowhere", **more}


def logged(folder: Path, is_event: bool = False) -> list[dict[str, Any]]:
    lines = [line for path in folder.glob("*.jsonl") for line in path.open()]
    return [record for record in map(json.loads, lines) if ("action" in record) is is_event]


def test_from_searches_to_judgments_and_a_comparison(
    served: tuple[str, StubEngine], tmp_path: Path, command: Command
) -> None:
    """The walk of the README."""
    log = tmp_path / "log"
    more = ("--log", log, "--log-queries", "plain", "--challenger", "mp_hcnn", "--share", "1")
    engine = ("--engine", served[0], "--engine-index", "posts", "--threads", "1")
    with running(*engine, *more, "--rerank-timeout", "60") as service:
        for number in range(3):
            path = "/posts/_search"
            answer = service.post(search(f"{QUERY} {number}", size=10), path)
            shown = [hit["_id"] for hit in answer.json()["hits"]["hits"]]
            events = [click(answer.headers["x-search-id"], shown[place]) for place in (1, 3, 3)]
            assert service.post(events, "/events").json() == {"accepted": 3}
        service.process.send_signal(signal.SIGTERM)
        service.process.wait(30)
    assert stat.S_IMODE(log.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in log.iterdir()} == {0o600}
    done = command("clicks", log, "--output", tmp_path / "qrels.txt")
    assert done.code == 0, done.err
    assert "3 impressions, 3 with a click" in done.out
    judged = read_qrels(tmp_path / "qrels.txt")
    assert len(judged) == 3
    assert {grade for grades in judged.values() for grade in grades.values()} <= {0, 1}
    done = command("compare", log)
    assert done.code == 0, done.err
    assert re.search(r"^searches +wins +losses +ties\n +3 ", done.out, re.M)
    assert "not known to be better" in done.out
    assert "--log: found no --engine" in command("serve", "--log", log).err
    assert "--challenger: found no --log" in command("serve", "--challenger", "mp_hcnn").err


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_search_and_its_click_are_logged(
    served: tuple[str, StubEngine], tmp_path: Path, is_plain: bool, command: Command
) -> None:
    with client_of(served[0], SearchLog(tmp_path, is_plain)) as client:
        long = f"{QUERY}  {'storm ' * 300}"
        answer = client.post("/posts/_search", json=search(long, size=5))
        search_id = answer.headers["x-search-id"]
        assert answer.json()["ext"] == {"tweetrerank": {"search_id": search_id}}
        shown = [hit["_id"] for hit in answer.json()["hits"]["hits"]]
        events = [click(search_id, shown[1]), click(search_id, 7), click("other", "x")]
        assert client.post("/events", json=events).json() == {"accepted": 3}
        assert client.post("/events", json=click(search_id, shown[2])).status_code == 200
        metrics = client.get("/metrics").text
        assert 'tweetrerank_log_lines{outcome="unknown"} 1.0' in metrics
        assert 'tweetrerank_log_lines{outcome="dropped"} 0.0' in metrics
    [record] = logged(tmp_path)
    assert record["shown"] == shown
    assert (record["index"], record["model"], record["start"]) == ("posts", "mp_hcnn", 0)
    assert record["scores"] == sorted(record["scores"], reverse=True)
    assert [event["object_id"] for event in logged(tmp_path, True)] == [
        shown[1],
        "7",
        "x",
        shown[2],
    ]
    text = "".join(path.read_text() for path in tmp_path.glob("*.jsonl"))
    assert "kept nowhere" not in text
    if is_plain:
        assert record["query"] == long[:1000]
    else:
        assert QUERY not in text
        assert "found hashed queries" in command("clicks", tmp_path, "--output", "no").err


def test_ubi_is_understood(served: tuple[str, StubEngine], tmp_path: Path) -> None:
    """Its id is that of the search, and the engine, which may lack the plugin, does not see it."""
    ubi = {"query_id": "mine", "client_id": "me", "object_id_field": "contents"}
    with client_of(served[0], SearchLog(tmp_path, True)) as client:
        answer = client.post("/posts/_search", json=search(ext={"ubi": ubi}))
        assert answer.headers["x-search-id"] == "mine"
        ext = {"tweetrerank": {"search_id": "mine"}, "ubi": {"query_id": "mine"}}
        assert answer.json()["ext"] == ext
        plain = client.post(
            "/posts/_search", json={"query": {"match_all": {}}, "ext": {"ubi": ubi}}
        )
        assert plain.headers["x-reranked"] == "false"
        several = "{}\n" + json.dumps(search(ext={"ubi": ubi})) + "\n"
        found = client.post("/posts/_msearch", content=several).json()["responses"]
        assert found[0]["ext"] == ext
        wrong = client.post("/posts/_search", json=search(ext={"ubi": {"query_id": 3}}))
        assert wrong.status_code == 400
        assert "ext.ubi.query_id" in wrong.text
    texts = [post["contents"] for post in served[1].posts]
    assert {*logged(tmp_path)[0]["objects"]} < {*texts}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"action_name": "click"}, 422),
        ({"query_id": "a"}, 422),
        ([3], 422),
        ("{", 400),
        (click("a", [2]), 422),
        (click("a" * 600, "b"), 422),
        ([click("a", "b")] * (MOST_EVENTS + 1), 400),
    ],
)
def test_wrong_events_are_refused(
    served: tuple[str, StubEngine], tmp_path: Path, body: Any, status: int
) -> None:
    with client_of(served[0], SearchLog(tmp_path), "secret") as client:
        assert client.post("/events", json=click("a", "b")).status_code == 401
        content = body if isinstance(body, str) else json.dumps(body)
        headers = {"authorization": "Bearer secret"}
        assert client.post("/events", content=content, headers=headers).status_code == 415
        headers["content-type"] = "application/json; charset=utf-8"
        answer = client.post("/events", content=content, headers=headers)
        assert answer.status_code == status
        assert set(answer.json()) == {"error"}
    assert not logged(tmp_path, True)


def test_all_pages_of_a_search_are_one_list(
    served: tuple[str, StubEngine], tmp_path: Path, command: Command
) -> None:
    """A click on a post of the challenger is a win of it."""
    ubi = {"query_id": "mine"}
    with client_of(served[0], SearchLog(tmp_path), challenger="window") as client:
        pages = [
            client.post("/posts/_search", json=search(ext={"ubi": ubi}, **{"from": start})).json()
            for start in (0, 10, 10)
        ]
        hits = [hit for page in pages[:2] for hit in page["hits"]["hits"]]
        assert len({hit["_id"] for hit in hits}) == 20
        scores = [hit["_score"] for hit in hits]
        assert scores == sorted(scores, reverse=True)
        # Without an id of the client the further page is the champion's.
        client.post("/posts/_search", json=search(**{"from": 10}))
        client.post("/events", json=click("lost", "1"))
        place = next(p for p, hit in enumerate(hits) if p > 9)
        assert place == 10
    records = logged(tmp_path)
    assert records[3]["teams"] is None
    assert pages[1] == pages[2]
    teams = [team for page in records[:2] for team in page["teams"]]
    assert {CHAMPION, CHALLENGER} <= {*teams}
    shown = [doc_id for page in records[:2] for doc_id in page["shown"]]
    wanted = shown[teams.index(CHALLENGER)]
    with next(tmp_path.glob("*.jsonl")).open("a") as stream:
        event = {"search_id": "mine", "action": "product_click", "object_id": wanted}
        stream.write(json.dumps(event) + "\n")
    done = command("compare", tmp_path)
    assert re.search(r"\n +1 +1 +0 +0\n", done.out)
    assert "found a page of a search once more" in done.err
    assert "found clicks of 1 unknown searches" in done.err


WRITER = """
import sys, time
from pathlib import Path
from pipeline.service.log import SearchLog
log = SearchLog(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    log.write({"search_id": str(number), "time": time.time(), "action": "click"})
    print(time.time(), flush=True)
    time.sleep(.002)
"""


def test_a_killed_service_loses_the_last_second_at_most(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path), "1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        times = [float(process.stdout.readline()) for _ in range(700)]
        os.kill(process.pid, signal.SIGKILL)
        times += [float(line) for line in process.stdout]
    records = logged(tmp_path, True)
    assert [int(event["search_id"]) for event in records] == [*range(len(records))]
    assert times[-1] - times[len(records) - 1] < 1


def test_a_full_disk_costs_lines(tmp_path: Path) -> None:
    """A limit on the size of files stands for it; whole lines alone are kept, others counted."""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n" + WRITER
    code = limited + "\nlog.close()\nprint(log.written, log.dropped)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "300"],
        capture_output=True,
        text=True,
        check=True,
    )
    written, dropped = map(int, done.stdout.splitlines()[-1].split())
    assert written + dropped == 300
    assert dropped
    assert len(logged(tmp_path, True)) == written
    assert "lines are lost until now: [Errno 27]" in done.stderr


def test_what_waits_and_what_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.service.log.FLUSH", 1000)
    monkeypatch.setattr("pipeline.service.log.MOST_WAITING", 1000)
    names = ["searches-2020-01-01-ab.jsonl", "searches-2999-01-01-ab.jsonl", "mine.jsonl"]
    for name in names:
        (tmp_path / name).touch()
    log = SearchLog(tmp_path, days=1)
    for number in range(100):
        log.write({"search_id": str(number), "action": "click", "object_id": "x" * 10})
    log.write({"search_id": "half", "action": "\ud83d"})
    assert log.dropped > 50
    log.close()
    assert log.written + log.dropped == 101
    assert len(logged(tmp_path, True)) == log.written
    assert [name for name in names if (tmp_path / name).exists()] == names[1:]


def test_team_draft() -> None:
    """Both rankings get their best posts; where they agree, clicks are nobody's."""
    champion, challenger = [0, 1, 2, 3, 4, 5], [0, 1, 5, 4, 3, 2]
    drafts = [team_draft(champion, challenger, str(seed)) for seed in range(400)]
    for order, teams in drafts:
        assert sorted(order) == champion
        assert teams[:2] == [NONE, NONE]
        assert {order[2], order[3]} == {2, 5}
        assert teams.count(CHAMPION) == teams.count(CHALLENGER) == 2
    # Users who click without reading prefer nobody.
    assert 150 < [order[2] for order, _ in drafts].count(5) < 250
    assert team_draft(champion, challenger, "x") == team_draft(champion, challenger, "x")
    assert team_draft(champion, champion, "x") == (champion, [NONE] * 6)


def test_the_test_may_be_looked_at_any_time() -> None:
    """Equal models: at most 5 % are ever called better, whenever one looks; better ones mostly."""
    random = np.random.default_rng(1)

    def called_better(share: float) -> float:
        wins = np.cumsum(random.random((200, 1500)) < share, axis=1)
        looks = range(10, 1500, 10)
        return float(
            np.mean([any(evidence(w[n], n + 1 - w[n]) > np.log(20) for n in looks) for w in wins])
        )

    assert called_better(0.5) <= 0.06
    assert called_better(0.47) <= 0.01
    assert called_better(0.57) > 0.95
    low, high = Comparison(("a", "b"), 2000, 300, 240, 100).interval(0.95)
    assert low < 0.5 < 300 / 540 < high
