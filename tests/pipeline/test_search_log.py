"""Searches of an engine that are logged, their events, and the comparison of two models."""

import json
import os
import re
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command, Patch
from helpers import service_samples
from helpers.processes import run_python, started
from helpers.proxy_samples import search, stub_engine
from helpers.service_samples import QUERY, running
from starlette.testclient import TestClient

from tweetrerank.pipeline.collections.click_log import CHALLENGER, CHAMPION
from tweetrerank.pipeline.collections.trec import read_qrels
from tweetrerank.pipeline.compare import evidence
from tweetrerank.pipeline.service.app import MOST_EVENTS
from tweetrerank.pipeline.service.log import SearchLog
from tweetrerank.pipeline.service.proxy.ask import SearchDefaults
from tweetrerank.pipeline.service.proxy.interleaving import team_draft
from tweetrerank.pipeline.service.served_models import Models
from tweetrerank.pipeline.service.service_errors import RequestError


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with stub_engine() as (url, _):
        yield url


@contextmanager
def client_of(
    url: str, log: SearchLog, *keys: str, challenger: str = ""
) -> Iterator[TestClient]:
    served = Models(["mp_hcnn"], 10**6, challenger=challenger) if challenger else None
    more = {
        "engine": url,
        "defaults": SearchDefaults(seconds=60, reads_ubi=True),
        "log": log,
    }
    with (
        closing(log),
        service_samples.client_of(keys=keys, models=served, **more) as client,
    ):
        yield client


def click(search_id: str, object_id: Any, **more: Any) -> dict[str, Any]:
    attributes = {"object": {"object_id": object_id}, "position": {"ordinal": 1}}
    event = {
        "action_name": "click",
        "query_id": search_id,
        "event_attributes": attributes,
    }
    return event | {"message": "kept nowhere", **more}


def logged(folder: Path, is_event: bool = False) -> list[dict[str, Any]]:
    lines = [line for path in folder.glob("*.jsonl") for line in path.open()]
    return [
        record
        for record in map(json.loads, lines)
        if ("action_name" in record) is is_event
    ]


def test_from_searches_to_judgments(
    engine: str, tmp_path: Path, command: Command
) -> None:
    """The walk of the README."""
    log = tmp_path / "log"
    more = (
        "--log",
        log,
        "--log-queries",
        "plain",
        "--challenger",
        "mp_hcnn",
        "--share",
        "1",
    )
    more += ("--engine", engine, "--engine-index", "posts", "--threads", "1")
    with running(*more, "--rerank-timeout", "60") as service:
        for number in range(3):
            answer = service.post(
                search(f"{QUERY} {number}", size=10), "/posts/_search"
            )
            shown = [hit["_id"] for hit in answer.json()["hits"]["hits"]]
            events = [
                click(answer.headers["x-search-id"], shown[place])
                for place in (1, 3, 3)
            ]
            assert service.post(events, "/events").json() == {
                "accepted": 3,
                "unknown": 0,
            }
        service.process.send_signal(signal.SIGTERM)
        service.process.wait(30)
    assert stat.S_IMODE(log.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in log.iterdir()} == {0o600}
    done = command("clicks", log, "--output", tmp_path / "qrels.txt", code=0)
    assert "3 impressions, 3 with a click" in done.out
    judged = read_qrels(tmp_path / "qrels.txt")
    assert len(judged) == 3
    assert {grade for grades in judged.values() for grade in grades.values()} <= {0, 1}
    done = command("compare", log, code=0)
    # The served model is its own challenger, so that nobody's posts are clicked.
    numbers = r"^searches +repeated +without a click +wins +losses +ties\n +3 +0 +"
    assert re.search(numbers, done.out, re.M) and "not known to be better" in done.out


@pytest.mark.parametrize("is_plain", [True, False])
def test_logs_of_searches(
    engine: str, tmp_path: Path, is_plain: bool, command: Command
) -> None:
    with client_of(engine, SearchLog(tmp_path, is_plain)) as client:
        long = f"{QUERY}  {'storm ' * 300}"
        answer = client.post("/posts/_search", json=search(long, size=5))
        search_id = answer.headers["x-search-id"]
        assert answer.json()["ext"] == {"tweetrerank": {"search_id": search_id}}
        shown = [hit["_id"] for hit in answer.json()["hits"]["hits"]]
        events = [click(search_id, shown[1]), click(search_id, 7), click("other", "x")]
        assert client.post("/events", json=events).json() == {
            "accepted": 2,
            "unknown": 1,
        }
        assert (
            client.post("/events", json=click(search_id, shown[2])).status_code == 200
        )
        for forged in ("a.b", search_id[:-1] + "_", search_id.partition(".")[0]):
            assert (
                client.post("/events", json=click(forged, shown[0])).status_code == 422
            )
        metrics = client.get("/metrics").text
        assert 'tweetrerank_log_lines{outcome="unknown"} 4.0' in metrics
        assert 'tweetrerank_log_lines{outcome="dropped"} 0.0' in metrics
    [record] = logged(tmp_path)
    assert record["query_response_hit_ids"] == shown
    assert (record["index"], record["model"], record["start"]) == (
        "posts",
        "mp_hcnn",
        0,
    )
    attributes = [event["event_attributes"] for event in logged(tmp_path, True)]
    assert [of["object"]["object_id"] for of in attributes] == [shown[1], "7", shown[2]]
    text = "".join(path.read_text() for path in tmp_path.glob("*.jsonl"))
    assert "kept nowhere" not in text
    if is_plain:
        assert record["user_query"] == long[:1000]
    else:
        assert QUERY not in text
        told = "found searches without their queries"
        assert told in command("clicks", tmp_path, "--output", "no").err


def test_ubi_is_understood(engine: str, tmp_path: Path) -> None:
    """Its id is that of the search, and the engine, which may lack the plugin, does not see it."""
    ubi = {"query_id": "mine", "client_id": "me"}
    with client_of(engine, SearchLog(tmp_path, True)) as client:
        answer = client.post("/posts/_search", json=search(ext={"ubi": ubi}))
        signed = answer.headers["x-search-id"]
        ext = {"tweetrerank": {"search_id": signed}, "ubi": {"query_id": "mine"}}
        assert answer.json()["ext"] == ext
        for name in ("mine", signed):
            assert client.post("/events", json=click(name, "1")).status_code == 200
        further = search(ext={"ubi": ubi | {"query_id": signed}}, **{"from": 10})
        assert (
            client.post("/posts/_search", json=further).headers["x-search-id"] == signed
        )
        every = {"query": {"match_all": {}}, "ext": {"ubi": ubi}}
        assert (
            client.post("/posts/_search", json=every).headers["x-reranked"] == "false"
        )
        several = "{}\n" + json.dumps(search(ext={"ubi": ubi})) + "\n"
        assert (
            client.post("/posts/_msearch", content=several).json()["responses"][0][
                "ext"
            ]
            == ext
        )
        wrong = client.post("/posts/_search", json=search(ext={"ubi": {"query_id": 3}}))
        assert wrong.status_code == 400 and "ext.ubi.query_id" in wrong.text
    assert {record["query_id"] for record in logged(tmp_path)} == {"mine"}


def test_wrong_events_are_refused(engine: str, tmp_path: Path) -> None:
    wrong = [
        {"action_name": "click"},
        {"query_id": "a"},
        [3],
        click("a", "b"),
        click("a", [2]),
    ]
    wrong += [click("a" * 600, "b"), [click("KNOWN", "b"), click("KNOWN", "b" * 600)]]
    bodies = [(json.dumps(body), 422) for body in wrong]
    bodies += [("{", 400), (json.dumps([click("KNOWN", "b")] * (MOST_EVENTS + 1)), 400)]
    with client_of(engine, SearchLog(tmp_path), "secret") as client:
        assert client.post("/events", json=click("a", "b")).status_code == 401
        search_id = client.post("/posts/_search", json=search()).headers["x-search-id"]
        headers = {"authorization": "Bearer secret"}
        assert client.post("/events", content="{}", headers=headers).status_code == 415
        headers["content-type"] = "application/json; charset=utf-8"
        for body, status in bodies:
            content = body.replace("KNOWN", search_id)
            answer = client.post("/events", content=content, headers=headers)
            assert (answer.status_code, {*answer.json()}) == (status, {"error"}), body[
                :1000
            ]
    assert not logged(tmp_path, True)


def test_all_pages_of_a_search_are_one_list(
    engine: str, tmp_path: Path, command: Command
) -> None:
    """A click on a post of the challenger is a win of it."""
    with client_of(engine, SearchLog(tmp_path, share=1), challenger="window") as client:
        bodies = [
            search(ext={"ubi": {"query_id": "mine"}}, **{"from": n})
            for n in (0, 10, 10)
        ]
        pages = [client.post("/posts/_search", json=body).json() for body in bodies]
        hits = [hit for page in pages[:2] for hit in page["hits"]["hits"]]
        assert len({hit["_id"] for hit in hits}) == 20
        scores = [hit["_score"] for hit in hits]
        assert scores == sorted(scores, reverse=True)
        # Without an id of the client the further page is the champion's.
        client.post("/posts/_search", json=search(**{"from": 10}))
    records = logged(tmp_path)
    assert records[3]["teams"] is None
    assert pages[1] == pages[2]
    teams = [team for page in records[:2] for team in page["teams"]]
    assert {CHAMPION, CHALLENGER} <= {*teams}
    shown = [
        doc_id for page in records[:2] for doc_id in page["query_response_hit_ids"]
    ]
    wanted = shown[teams.index(CHALLENGER)]
    with next(tmp_path.glob("*.jsonl")).open("a") as stream:
        for event in (click("mine", wanted), click("lost", "1")):
            stream.write(json.dumps(event | {"action_name": "product_click"}) + "\n")
    done = command("compare", tmp_path)
    assert re.search(r"\n +1 +0 +0 +1 +0 +0\n", done.out)
    assert "found a page of a search once more" in done.err
    assert "found clicks of 1 unknown searches" in done.err


WRITER = """
import sys, time
from pathlib import Path
from tweetrerank.pipeline.service.log import SearchLog
log = SearchLog(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    log.write([{"query_id": str(number), "time": time.time(), "action_name": "click"}])
    print(time.time(), flush=True)
    time.sleep(.002)
"""
PAGE = {
    "query_response_hit_ids": ["1", "2"],
    "teams": [1, 2],
    "version": "a",
    "challenger": "b",
}
OLD, OLDER, NEW = "2020-03-01", "2020-01-01", "2999-01-01"
DAYS = [([OLDER, OLD, NEW], [OLD, NEW]), ([OLDER], [OLDER]), ([NEW], [NEW])]


def test_a_killed_service_loses_the_last_second_at_most(tmp_path: Path) -> None:
    with started(sys.executable, "-c", WRITER, tmp_path, 1_000_000) as process:
        assert process.stdout
        times = [float(process.stdout.readline()) for _ in range(700)]
        os.kill(process.pid, signal.SIGKILL)
        times += [float(line) for line in process.stdout]
    records = logged(tmp_path, True)
    assert [int(event["query_id"]) for event in records] == [*range(len(records))]
    assert times[-1] - times[len(records) - 1] < 1


def test_a_full_disk_costs_lines(tmp_path: Path) -> None:
    """A limit on the size of files stands for it; whole lines alone are kept, others counted."""
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        + WRITER
    )
    code = (
        limited + "\nlog.close()\nprint(log.counts['written'], log.counts['dropped'])"
    )
    done = run_python("-c", code, tmp_path, 300)
    written, dropped = map(int, done.stdout.splitlines()[-1].split())
    assert dropped and written + dropped == 300
    assert len(logged(tmp_path, True)) == written
    assert re.search(r"lines are lost until now: (\[Errno 27\]|the disk)", done.stderr)


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: Patch) -> None:
    log, can_write = SearchLog(tmp_path), threading.Event()
    append = log._append
    monkeypatch.setattr(
        log, "_append", lambda *lines: (can_write.wait(), append(*lines))
    )
    monkeypatch.setattr("tweetrerank.pipeline.service.log.MOST_WAITING", 50_000)
    for number in range(100):
        log.search({"query_id": f"{number}"}, "storm", "127.0.0.1", is_named=True)
    assert 50 < log.counts["dropped"] < 100
    with pytest.raises(RequestError) as raised:
        log.events([click("1", "x" * 500)] * 100)
    assert raised.value.kind == "overload"
    can_write.set()
    log.close()
    assert log.counts["written"] + log.counts["dropped"] == 200
    assert len(logged(tmp_path)) == log.counts["written"] > 0


@pytest.mark.parametrize(("days", "kept"), DAYS)
def test_old_days_are_deleted(tmp_path: Path, days: list[str], kept: list[str]) -> None:
    """Whatever the clock says; other files stay."""
    for name in [*(f"searches-{day}-ab.jsonl" for day in days), "mine.jsonl"]:
        (tmp_path / name).touch()
    log = SearchLog(tmp_path, days=30)
    log.write([{}])
    log.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    mine = [name for name in names if name.endswith(("-ab.jsonl", "mine.jsonl"))]
    assert mine == ["mine.jsonl", *(f"searches-{day}-ab.jsonl" for day in kept)]


def test_a_client_has_one_vote_for_a_search(tmp_path: Path, command: Command) -> None:
    """However often it searches and clicks; the numbers of a comparison add up."""
    log = SearchLog(tmp_path)
    for number in range(30):
        search_id, client = f"{number}", f"10.0.0.{max(0, number - 20)}"
        log.search(
            PAGE | {"query_id": search_id},
            " Storm"[number % 2 :],
            client,
            is_named=True,
        )
        if number % 5:
            log.events([click(search_id, "2")] * 3)
    log.close()
    done = command("compare", tmp_path)
    assert (done.code, done.err) == (0, "")
    assert re.search(
        r"^champion a, challenger b\n.*\n +30 +20 +1 +9 +0 +0$", done.out, re.M
    )


@pytest.mark.slow
def test_a_large_log_is_compared_in_little_memory(tmp_path: Path) -> None:
    with (tmp_path / "searches.jsonl").open("w") as stream:
        for number in range(50_000):
            name = f"{number:032x}"
            lines = PAGE | {"query_id": name}, click(name, "2")
            stream.writelines(f"{json.dumps(line)}\n" for line in lines)
    code = (
        "import sys; from pipeline.compare import *; main(Options(Path(sys.argv[1])))"
    )
    code += "; print(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    done = run_python("-c", f"import re; {code}", tmp_path)
    assert re.search(r"\n +50,000 +0 +0 +50,000 ", done.stdout), done.stderr
    assert int(done.stdout.split()[-1]) < 150_000  # kB, most of them of NumPy and SciPy


def test_team_draft() -> None:
    champion, challenger = [0, 1, 2, 3, 4, 5], [0, 1, 5, 4, 3, 2]
    drafts = [team_draft(champion, challenger, str(seed)) for seed in range(400)]
    for order, teams in drafts:
        assert sorted(order) == champion and teams[:2] == [0, 0]
        assert {order[2], order[3]} == {2, 5}
        assert teams.count(CHAMPION) == teams.count(CHALLENGER) == 2
    # Users who click without reading prefer nobody.
    assert 150 < [order[2] for order, _ in drafts].count(5) < 250
    assert team_draft(champion, challenger, "x") == team_draft(
        champion, challenger, "x"
    )
    assert team_draft(champion, champion, "x") == (champion, [0] * 6)


def test_the_test_may_be_looked_at_any_time() -> None:
    """Equal models: at most 5 % are ever called better, whenever one looks; better ones mostly."""
    random = np.random.default_rng(1)
    for share, least, most in ((0.5, 0, 0.06), (0.47, 0, 0.01), (0.57, 0.95, 1)):
        better = 0
        for wins in np.cumsum(random.random((200, 1500)) < share, axis=1):
            looks = ((wins[n], n + 1 - wins[n]) for n in range(10, 1500, 10))
            better += any(evidence(*look) > np.log(20) for look in looks)
        assert least <= better / 200 <= most
