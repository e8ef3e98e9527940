"""The loop over an engine in this process: the log, events, interleaving, and the page."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.proxy_samples import StubEngine, search, stub_engine
from helpers.service_samples import QUERY, models
from starlette.testclient import TestClient

from pipeline.learn import _is_worse
from pipeline.loop.comparison import Comparison, clicked_of, evidence, read_comparison
from pipeline.loop.interleaving import CHALLENGER, CHAMPION, NONE, credit, team_draft
from pipeline.loop.log import EVENTS, SEARCHES, LogWriter, compact, read
from pipeline.service.app import build
from pipeline.service.http.requests import Limits
from pipeline.service.http.service import Service
from pipeline.service.loop.routes import routes
from pipeline.service.loop.searches import Challenger, Loop
from pipeline.service.proxy.routes import Proxy
from pipeline.service.proxy.search import SearchDefaults
from pipeline.service.proxy.upstream import Upstream
from rerankers import checkpoint as checkpoints


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, StubEngine]]:
    with stub_engine() as opened:
        yield opened


@contextmanager
def client_of(url: str, log: LogWriter, *keys: str, **more: Any) -> Iterator[TestClient]:
    service = Service(models(), Limits(), 2)
    challenger = Challenger(more["folder"], 1.0, 10**6, 1) if "folder" in more else None
    loop = Loop(service, log, challenger)
    proxy = Proxy(service, Upstream([url]), SearchDefaults(seconds=60, reads_ubi=True), loop)
    with TestClient(build(service, keys, routes(loop), proxy)) as client:
        yield client
    log.close()


def click(search_id: str, object_id: str, **more: Any) -> dict[str, Any]:
    attributes = {"object": {"object_id": object_id}, "position": {"ordinal": 1}}
    return {
        "action_name": "click",
        "query_id": search_id,
        "event_attributes": attributes,
        "message": "kept nowhere",
        **more,
    }


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_search_and_its_click_are_logged(
    served: tuple[str, StubEngine], tmp_path: Path, is_plain: bool
) -> None:
    with client_of(served[0], LogWriter(tmp_path, is_plain)) as client:
        answer = client.post("/posts/_search", json=search(size=5))
        actual = answer.json()
        search_id = answer.headers["x-search-id"]
        assert actual["ext"] == {"tweetrerank": {"search_id": search_id}}
        shown = [hit["_id"] for hit in actual["hits"]["hits"]]
        events = [click(search_id, shown[1], client_id="me"), click(search_id, "x")]
        assert client.post("/events", json=events).json() == {"accepted": 2}
        assert client.post("/events", json=click(search_id, shown[2])).status_code == 200
        page = client.get("/api/loop").json()
        assert page["comparison"] is None
        if is_plain:
            assert page["searches"][0]["query"] == QUERY
            assert page["searches"][0]["clicked"] == [2, 3]
        else:
            assert page["searches"] is None
        assert 'tweetrerank_log_lines{outcome="written"}' in client.get("/metrics").text
    [logged] = read(tmp_path, SEARCHES)
    assert logged["shown"] == shown
    assert (logged["index"], logged["model"], logged["start"]) == ("posts", "mp_hcnn", 0)
    assert logged["first_stage"] == sorted(logged["first_stage"], reverse=True)
    ids, ranks = np.array(logged["ids"]), np.array(logged["ranks"])
    assert [*ids[np.argsort(ranks)][:5]] == shown
    assert [*np.argsort(ranks)] == [*np.argsort(-np.array(logged["scores"]), kind="stable")]
    text = "".join(path.read_text() for path in tmp_path.glob("*.jsonl"))
    assert (QUERY in text) is is_plain
    assert ('"me"' in text) is is_plain
    assert "kept nowhere" not in text
    assert [event["object_id"] for event in read(tmp_path, EVENTS)] == [shown[1], "x", shown[2]]
    whole = [*read(tmp_path, SEARCHES)]
    end = time.monotonic() + 30
    while [*tmp_path.glob("*.jsonl")] and time.monotonic() < end:  # The writer's own may be at it.
        compact(tmp_path, 1)
    assert not [*tmp_path.glob("*.jsonl")]
    assert [*read(tmp_path, SEARCHES)] == whole
    compact(tmp_path, -1)
    assert not [*read(tmp_path, SEARCHES)]


def test_ubi_is_understood(served: tuple[str, StubEngine], tmp_path: Path) -> None:
    """Its id is that of the search, and the engine, which may lack the plugin, does not see it."""
    ubi = {"query_id": "mine", "client_id": "me", "object_id_field": "contents"}
    with client_of(served[0], LogWriter(tmp_path, True)) as client:
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
    logged = next(read(tmp_path, SEARCHES))
    assert logged["client_id"] == "me"
    texts = [post["contents"] for post in served[1].posts]
    assert logged["objects"] == texts[: len(logged["ids"])]
    shown = logged["shown"][0]
    assert clicked_of(logged, {texts[logged["ids"].index(shown)]}) == {shown}


@pytest.mark.parametrize(
    ("body", "status"),
    [({"action_name": "click"}, 422), ([3], 422), ("{", 400), (click("a", "b", client_id=2), 422)],
)
def test_wrong_events_are_refused(
    served: tuple[str, StubEngine], tmp_path: Path, body: Any, status: int
) -> None:
    with client_of(served[0], LogWriter(tmp_path), "secret") as client:
        assert client.post("/events", json=click("a", "b")).status_code == 401
        assert client.get("/loop").status_code == 200
        assert client.get("/api/loop").status_code == 401
        content = body if isinstance(body, str) else json.dumps(body)
        headers = {"authorization": "Bearer secret"}
        answer = client.post("/events", content=content, headers=headers)
        assert answer.status_code == status
        assert set(answer.json()) == {"error"}


def test_some_searches_show_both_models(served: tuple[str, StubEngine], tmp_path: Path) -> None:
    """A click on a post of the challenger is a win of it; all pages are one list."""
    folder = checkpoints.find("window")
    ubi = {"query_id": "mine"}
    with client_of(served[0], LogWriter(tmp_path / "log", True), folder=folder) as client:
        pages = [
            client.post("/posts/_search", json=search(ext={"ubi": ubi}, **{"from": start}))
            for start in (0, 10)
        ]
        ids = [hit["_id"] for page in pages for hit in page.json()["hits"]["hits"]]
        assert len({*ids}) == 20
        scores = [hit["_score"] for page in pages for hit in page.json()["hits"]["hits"]]
        assert scores == sorted(scores, reverse=True)
        time.sleep(0.5)
        logged = [*read(tmp_path / "log", SEARCHES)]
        teams = [team for page in logged for team in page["teams"]]
        assert {CHAMPION, CHALLENGER} <= {*teams}
        other = client.post("/posts/_search", json=search(**{"from": 10}))
        client.post("/events", json=click(other.headers["x-search-id"], "1"))
        client.post("/events", json=click("mine", ids[teams.index(CHALLENGER)]))
        assert 'tweetrerank_comparison{outcome="wins"} 1.0' in client.get("/metrics").text
        state = client.get("/api/loop").json()["comparison"]
        assert (state["searches"], state["wins"], state["losses"]) == (1, 1, 0)
    actual = read_comparison(tmp_path / "log")
    assert (actual.searches, actual.wins, actual.losses, actual.ties) == (1, 1, 0, 0)
    # Another service goes on from there.
    with client_of(served[0], LogWriter(tmp_path / "log"), folder=folder) as client:
        assert client.get("/api/loop").json()["comparison"]["wins"] == 1


WRITER = """
import sys, time
from pathlib import Path
from pipeline.loop.log import LogWriter
log = LogWriter(Path(sys.argv[1]))
for number in range(10**6):
    log.write("events", {"search_id": str(number), "time": time.time(), "query": None})
    print(time.time(), flush=True)
    time.sleep(.002)
"""


def test_a_killed_service_loses_the_last_second_at_most(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        times = [float(process.stdout.readline()) for _ in range(700)]
        os.kill(process.pid, signal.SIGKILL)
        times += [float(line) for line in process.stdout]
    logged = [*read(tmp_path, EVENTS)]
    assert [int(event["search_id"]) for event in logged] == [*range(len(logged))]
    assert times[-1] - times[len(logged) - 1] < 1
    compact(tmp_path, 30)
    assert [*read(tmp_path, EVENTS)] == logged


def test_a_full_disk_costs_lines(tmp_path: Path) -> None:
    """A limit on the size of files stands for it; whole lines alone are kept."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n" + (
        WRITER.replace("10**6", "300") + "\nlog.close()\nprint(log.written, log.dropped)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    written, dropped = map(int, done.stdout.splitlines()[-1].split())
    assert written + dropped == 300
    assert dropped
    assert len([*read(tmp_path, EVENTS)]) == written


def test_team_draft() -> None:
    """Both rankings get their best posts; where they agree, clicks are nobody's."""
    champion, challenger = [0, 1, 2, 3, 4, 5], [0, 1, 5, 4, 3, 2]
    drafts = [team_draft(champion, challenger, str(seed)) for seed in range(400)]
    for order, teams in drafts:
        assert sorted(order) == champion
        assert teams[:2] == [NONE, NONE]
        assert {order[2], order[3]} == {2, 5}
        assert teams.count(CHAMPION) == teams.count(CHALLENGER) == 2
    firsts = [order[2] for order, _ in drafts]
    assert 150 < firsts.count(5) < 250
    # Users who click without reading prefer nobody.
    credits_ = [credit([*map(str, o)], t, {str(o[2])}) for o, t in drafts]
    assert abs(sum(credits_)) < 60
    assert team_draft(champion, champion, "x") == (champion, [NONE] * 6)


def test_the_test_may_be_looked_at_any_time() -> None:
    """Equal models: at most 5 % are ever promoted, whenever one looks; better ones mostly."""
    random = np.random.default_rng(1)

    def promoted(share: float) -> float:
        wins = np.cumsum(random.random((200, 1500)) < share, axis=1)
        looks = range(10, 1500, 10)
        return float(
            np.mean([any(evidence(w[n], n + 1 - w[n]) > np.log(20) for n in looks) for w in wins])
        )

    assert promoted(0.5) <= 0.06
    assert promoted(0.47) <= 0.01
    assert promoted(0.57) > 0.95


def test_what_a_comparison_says() -> None:
    state = Comparison("a", "b", 300, 240, 100, 2000)
    low, high = state.interval(0.95)
    assert low < 0.5 < state.share < high
    needed = state.needed(0.95)
    assert needed
    more = (540 + needed * 540 / 640) / 540
    assert Comparison("a", "b", int(300 * more) + 1, int(240 * more)).is_agreed(0.95)
    assert Comparison("a", "b", 240, 300).needed(0.95) is None
    assert Comparison("a", "b", 60, 20).needed(0.95) == 0


def test_only_a_model_that_is_worse_for_sure_is_turned_away() -> None:
    def figures(ap: float, rank: float) -> dict[str, dict[str, float]]:
        return {
            name: {f"{query}": value + query % 2 / 10 for query in range(30)}
            for name, value in (("AP", ap), ("MRR", rank))
        }

    served, noisy = figures(0.5, 0.4), figures(0.5, 0.4)
    noisy["AP"] |= {"0": 0.0, "1": 0.7}
    assert not _is_worse(served, figures(0.6, 0.4))
    assert not _is_worse(served, noisy)
    assert _is_worse(served, figures(0.4, 0.5))
    assert _is_worse(served, figures(0.6, 0.3))
