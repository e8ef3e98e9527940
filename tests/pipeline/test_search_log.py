"""The log of searches and events, and the comparison of two models."""

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

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.click_log import CHALLENGER, CHAMPION
from tweetrerank.pipeline.collections.trec import read_qrels
from tweetrerank.pipeline.compare import evidence
from tweetrerank.pipeline.service.app import MOST_EVENTS
from tweetrerank.pipeline.service.json_log import LOG
from tweetrerank.pipeline.service.log import SearchLog
from tweetrerank.pipeline.service.proxy.ask import SearchDefaults
from tweetrerank.pipeline.service.served_models import Models
from tweetrerank.pipeline.service.service_errors import RequestError

EVERYTHING = {"query": {"match_all": {}}}


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with stub_engine() as (url, _):
        yield url


@contextmanager
def client_of(
    url: str,
    log: SearchLog,
    *keys: str,
    challenger: str = "",
) -> Iterator[TestClient]:
    """A client of a service with a log in front of an engine."""
    served: Models | None = None
    if challenger:
        served = Models(["mp_hcnn"], 10**6, challenger=challenger)
    defaults = SearchDefaults(seconds=60, reads_ubi=True)
    with (
        closing(log),
        service_samples.client_of(
            keys=keys,
            models=served,
            engine=url,
            defaults=defaults,
            log=log,
        ) as client,
    ):
        yield client


def click(search_id: str, object_id: Any, **members: Any) -> dict[str, Any]:
    attributes = {"object": {"object_id": object_id}, "position": {"ordinal": 1}}
    event = {
        "action_name": "click",
        "query_id": search_id,
        "event_attributes": attributes,
        "message": "kept nowhere",
    }
    return event | members


def records_of(folder: Path) -> list[dict[str, Any]]:
    lines: list[str] = []
    for path in folder.glob("*.jsonl"):
        lines += path.read_text().splitlines()
    return [json.loads(line) for line in lines]


def searches_of(folder: Path) -> list[dict[str, Any]]:
    """The searches in a log."""
    return [record for record in records_of(folder) if "action_name" not in record]


def events_of(folder: Path) -> list[dict[str, Any]]:
    """The events in a log."""
    return [record for record in records_of(folder) if "action_name" in record]


# Through the service


def test_from_searches_to_judgments(
    engine: str,
    tmp_path: Path,
    command: Command,
) -> None:
    """The walk of the README."""
    log = tmp_path / "log"
    words = "--log-queries plain --challenger mp_hcnn --share 1 --engine-index posts"
    words += " --threads 1 --rerank-timeout 60"
    with running("--log", log, "--engine", engine, *words.split()) as service:
        for number in range(3):
            body = search(f"{QUERY} {number}", size=10)
            answer = service.post(body, "/posts/_search")
            shown = [hit["_id"] for hit in answer.json()["hits"]["hits"]]
            search_id = answer.headers["x-search-id"]
            events = [click(search_id, shown[place]) for place in (1, 3, 3)]
            counts = service.post(events, "/events").json()
            assert counts == {"accepted": 3, "unknown": 0}
        service.process.send_signal(signal.SIGTERM)
        service.process.wait(30)
    assert stat.S_IMODE(log.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in log.iterdir()} == {0o600}
    result = command("clicks", log, "--output", tmp_path / "qrels.txt", code=0)
    assert "3 impressions, 3 with a click" in result.out
    judgments = read_qrels(tmp_path / "qrels.txt")
    assert len(judgments) == 3
    for grades in judgments.values():
        assert set(grades.values()) <= {0, 1}
    result = command("compare", log, code=0)
    # The served model is its own challenger, so that nobody's posts are clicked.
    numbers = r"^searches +repeated +without a click +wins +losses +ties\n +3 +0 +"
    assert re.search(numbers, result.out, re.M)
    assert "not known to be better" in result.out


@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "digests"])
def test_logs_of_searches(
    engine: str,
    tmp_path: Path,
    is_plain: bool,
    command: Command,
) -> None:
    query = f"{QUERY}  {'storm ' * 300}"
    with client_of(engine, SearchLog(tmp_path, is_plain)) as client:
        answer = client.post("/posts/_search", json=search(query, size=5))
        search_id = answer.headers["x-search-id"]
        assert answer.json()["ext"] == {"tweetrerank": {"search_id": search_id}}
        shown = [hit["_id"] for hit in answer.json()["hits"]["hits"]]
        events = [click(search_id, shown[1]), click(search_id, 7), click("other", "x")]
        counts = client.post("/events", json=events).json()
        assert counts == {"accepted": 2, "unknown": 1}
        event = click(search_id, shown[2])
        assert client.post("/events", json=event).status_code == 200
        metrics = client.get("/metrics").text
    assert 'tweetrerank_log_lines{outcome="unknown"} 1.0' in metrics
    assert 'tweetrerank_log_lines{outcome="dropped"} 0.0' in metrics
    [record] = searches_of(tmp_path)
    assert record["query_response_hit_ids"] == shown
    assert record["index"] == "posts"
    assert record["model"] == "mp_hcnn"
    assert record["start"] == 0
    objects = [event["event_attributes"]["object"] for event in events_of(tmp_path)]
    assert [item["object_id"] for item in objects] == [shown[1], "7", shown[2]]
    text = "".join(path.read_text() for path in tmp_path.glob("*.jsonl"))
    assert "kept nowhere" not in text
    if is_plain:
        assert record["user_query"] == query[:1000]
        return
    assert QUERY not in text
    result = command("clicks", tmp_path, "--output", "no")
    assert "found searches without their queries" in result.err


FORGERIES: dict[str, Any] = {
    "another id": lambda search_id: "a.b",
    "another signature": lambda search_id: search_id[:-1] + "_",
    "no signature": lambda search_id: search_id.partition(".")[0],
}
"""Reason -> makes an id of a search that is not accepted."""


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_forged_ids_are_refused(engine: str, tmp_path: Path, forge: Any) -> None:
    with client_of(engine, SearchLog(tmp_path)) as client:
        answer = client.post("/posts/_search", json=search())
        search_id = answer.headers["x-search-id"]
        event = click(forge(search_id), "1")
        assert client.post("/events", json=event).status_code == 422
        metrics = client.get("/metrics").text
    assert 'tweetrerank_log_lines{outcome="unknown"} 1.0' in metrics
    assert not events_of(tmp_path)


def test_ubi_is_understood(engine: str, tmp_path: Path) -> None:
    """Its id is that of the search; the engine, which may lack UBI, does not see it."""
    ubi = {"query_id": "mine", "client_id": "me"}
    body = search(ext={"ubi": ubi})
    with client_of(engine, SearchLog(tmp_path, True)) as client:
        answer = client.post("/posts/_search", json=body)
        signed = answer.headers["x-search-id"]
        ext = {"tweetrerank": {"search_id": signed}, "ubi": {"query_id": "mine"}}
        assert answer.json()["ext"] == ext
        for name in ("mine", signed):
            assert client.post("/events", json=click(name, "1")).status_code == 200
        further = search(ext={"ubi": ubi | {"query_id": signed}}, **{"from": 10})
        answer = client.post("/posts/_search", json=further)
        assert answer.headers["x-search-id"] == signed
        unchanged = EVERYTHING | {"ext": {"ubi": ubi}}
        answer = client.post("/posts/_search", json=unchanged)
        assert answer.headers["x-reranked"] == "false"
        lines = "{}\n" + json.dumps(body) + "\n"
        several = client.post("/posts/_msearch", content=lines).json()
        assert several["responses"][0]["ext"] == ext
        wrong = search(ext={"ubi": {"query_id": 3}})
        answer = client.post("/posts/_search", json=wrong)
        assert answer.status_code == 400
        assert "ext.ubi.query_id" in answer.text
    assert {record["query_id"] for record in searches_of(tmp_path)} == {"mine"}


WRONG_EVENTS: dict[str, tuple[Any, int]] = {
    "no search": ({"action_name": "click"}, 422),
    "no action": ({"query_id": "a"}, 422),
    "no object": ([3], 422),
    "unknown search": (click("a", "b"), 422),
    "post without a text or a number": (click("a", [2]), 422),
    "long id of a search": (click("a" * 600, "b"), 422),
    "long id of a post, after a right event": (
        [click("KNOWN", "b"), click("KNOWN", "b" * 600)],
        422,
    ),
    "too many": ([click("KNOWN", "b")] * (MOST_EVENTS + 1), 400),
}
"""Reason -> events that are refused, and the status; KNOWN is a logged search."""


@pytest.fixture(scope="module")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
def locked(engine: str, log_folder: Path) -> Iterator[TestClient]:
    """A client of a service with a key, which takes events from callers with it."""
    with client_of(engine, SearchLog(log_folder), "secret") as client:
        yield client


JSON_WITH_KEY = {
    "authorization": "Bearer secret",
    "content-type": "application/json; charset=utf-8",
}


@pytest.mark.parametrize(("events", "status"), WRONG_EVENTS.values(), ids=WRONG_EVENTS)
def test_wrong_events_are_refused(
    locked: TestClient,
    log_folder: Path,
    events: Any,
    status: int,
) -> None:
    answer = locked.post("/posts/_search", json=search())
    search_id = answer.headers["x-search-id"]
    content = json.dumps(events).replace("KNOWN", search_id)
    answer = locked.post("/events", content=content, headers=JSON_WITH_KEY)
    assert answer.status_code == status
    assert answer.json().keys() == {"error"}
    assert not events_of(log_folder)


def test_events_that_are_no_json_are_refused(locked: TestClient) -> None:
    answer = locked.post("/events", content="{", headers=JSON_WITH_KEY)
    assert answer.status_code == 400
    assert answer.json().keys() == {"error"}


def test_events_need_a_key(locked: TestClient) -> None:
    assert locked.post("/events", json=click("a", "b")).status_code == 401


def test_events_need_a_type(locked: TestClient) -> None:
    headers = {"authorization": "Bearer secret"}
    assert locked.post("/events", content="{}", headers=headers).status_code == 415


def test_all_pages_of_a_search_are_one_list(
    engine: str,
    tmp_path: Path,
    command: Command,
) -> None:
    """A click on a post of the challenger is a win of it."""
    log = SearchLog(tmp_path, share=1)
    with client_of(engine, log, challenger="window") as client:
        pages: list[Any] = []
        for start in (0, 10, 10):
            body = search(ext={"ubi": {"query_id": "mine"}}, **{"from": start})
            pages.append(client.post("/posts/_search", json=body).json())
        # Without an id of the client the further page is the champion's.
        client.post("/posts/_search", json=search(**{"from": 10}))
    hits = pages[0]["hits"]["hits"] + pages[1]["hits"]["hits"]
    assert len({hit["_id"] for hit in hits}) == 20
    scores = [hit["_score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert pages[1] == pages[2]
    [first, second, _, of_champion] = searches_of(tmp_path)
    assert of_champion["teams"] is None
    teams = first["teams"] + second["teams"]
    assert {CHAMPION, CHALLENGER} <= set(teams)
    shown = first["query_response_hit_ids"] + second["query_response_hit_ids"]
    doc_id = shown[teams.index(CHALLENGER)]
    with next(tmp_path.glob("*.jsonl")).open("a") as stream:
        for event in (click("mine", doc_id), click("lost", "1")):
            stream.write(json.dumps(event | {"action_name": "product_click"}) + "\n")
    result = command("compare", tmp_path)
    assert re.search(r"\n +1 +0 +0 +1 +0 +0\n", result.out)
    assert "found a page of a search once more" in result.err
    assert "found clicks of 1 unknown searches" in result.err


# The files

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
LIMITED_WRITER = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
{WRITER}
log.close()
print(log.counts['written'], log.counts['dropped'])
"""
"""Writes until a limit on the size of files, which stands for a full disk."""
PAGE = {
    "query_response_hit_ids": ["1", "2"],
    "teams": [1, 2],
    "version": "a",
    "challenger": "b",
}


def test_a_killed_service_loses_the_last_second_at_most(tmp_path: Path) -> None:
    with started(sys.executable, "-c", WRITER, tmp_path, 1_000_000) as process:
        assert process.stdout
        times = [float(process.stdout.readline()) for _ in range(700)]
        os.kill(process.pid, signal.SIGKILL)
        times += [float(line) for line in process.stdout]
    events = events_of(tmp_path)
    assert [int(event["query_id"]) for event in events] == list(range(len(events)))
    assert times[-1] - times[len(events) - 1] < 1


def test_a_full_disk_costs_lines(tmp_path: Path) -> None:
    """Only whole lines are written; others are counted."""
    result = run_python("-c", LIMITED_WRITER, tmp_path, 300)
    written, dropped = map(int, result.stdout.splitlines()[-1].split())
    assert dropped
    assert written + dropped == 300
    assert len(events_of(tmp_path)) == written
    message = r"lines are lost until now: (\[Errno 27\]|the disk)"
    assert re.search(message, result.stderr)


@contextmanager
def waiting_log(folder: Path, patch: Patch) -> Iterator[SearchLog]:
    """A log with a small queue, which writes at its end."""
    log = SearchLog(folder)
    can_write = threading.Event()
    append = log._append

    def append_later(lines: bytes, count: int) -> None:
        can_write.wait()
        append(lines, count)

    patch.setattr(log, "_append", append_later)
    patch.setattr("tweetrerank.pipeline.service.log.MOST_WAITING", 50_000)
    try:
        yield log
    finally:
        can_write.set()
        log.close()


def test_the_queue_is_bounded(tmp_path: Path, monkeypatch: Patch) -> None:
    with waiting_log(tmp_path, monkeypatch) as log:
        for number in range(100):
            log.search({"query_id": f"{number}"}, "storm", "127.0.0.1", is_named=True)
        assert 50 < log.counts["dropped"] < 100
        with pytest.raises(RequestError) as raised:
            log.events([click("1", "x" * 500)] * 100)
        assert raised.value.kind == "overload"
    assert log.counts["written"] + log.counts["dropped"] == 200
    assert len(searches_of(tmp_path)) == log.counts["written"] > 0


def test_losses_are_reported_as_their_number_doubles(
    tmp_path: Path,
    monkeypatch: Patch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(LOG, "propagate", True)
    with waiting_log(tmp_path, monkeypatch) as log:
        monkeypatch.setattr("tweetrerank.pipeline.service.log.MOST_WAITING", 0)
        for _ in range(10):
            assert not log.write([{}])
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        f"--log: {count} lines are lost until now: too many wait" for count in (1, 3, 7)
    ]


OLD = "2020-03-01"
OLDER = "2020-01-01"
NEW = "2999-01-01"


@pytest.mark.parametrize(
    ("days", "remaining"),
    [
        pytest.param([OLDER, OLD, NEW], [OLD, NEW], id="a day before the newest"),
        pytest.param([OLDER], [OLDER], id="the newest day"),
        pytest.param([NEW], [NEW], id="a day of a clock that has jumped"),
    ],
)
def test_old_days_are_deleted(
    tmp_path: Path,
    days: list[str],
    remaining: list[str],
) -> None:
    """Whatever the clock shows; other files stay."""
    (tmp_path / "mine.jsonl").touch()
    for day in days:
        (tmp_path / f"searches-{day}-ab.jsonl").touch()
    log = SearchLog(tmp_path, days=30)
    log.write([{}])
    log.close()
    names = {path.name for path in tmp_path.glob("*ab.jsonl")}
    assert names == {f"searches-{day}-ab.jsonl" for day in remaining}
    assert (tmp_path / "mine.jsonl").exists()


def test_the_key_of_a_log_stays(tmp_path: Path) -> None:
    logs = [SearchLog(tmp_path), SearchLog(tmp_path)]
    digests = {log.digest("storm") for log in logs}
    assert len(digests) == 1
    [digest] = digests
    assert re.fullmatch("[0-9a-f]{32}", digest)
    assert logs[0].known(f"storm.{digest}") == "storm"


def test_a_lost_key_is_reported(
    tmp_path: Path,
    monkeypatch: Patch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(LOG, "propagate", True)
    SearchLog(tmp_path)
    assert not caplog.records
    (tmp_path / "key").unlink()
    (tmp_path / f"searches-{OLD}-ab.jsonl").touch()
    SearchLog(tmp_path)
    [record] = caplog.records
    assert "events of old searches are refused" in record.getMessage()


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(DataError, match="found 5 bytes, expected 32; delete the file"):
        SearchLog(tmp_path)


# Comparison of two models


@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_the_share_of_a_challenger(tmp_path: Path, share: float) -> None:
    log = SearchLog(tmp_path, share=share)
    drawn = [log.is_drawn(f"search {number}") for number in range(1000)]
    assert sum(drawn) == pytest.approx(1000 * share, abs=50)
    further_run = SearchLog(tmp_path, share=share)
    assert drawn == [further_run.is_drawn(f"search {number}") for number in range(1000)]


VOTERS: dict[str, tuple[str, str, bool]] = {
    "the same words in another form": ("  Storm  COAST ", "10.0.0.1", True),
    "other words": ("storm", "10.0.0.1", False),
    "another client": ("storm coast", "10.0.0.2", False),
}
"""Reason -> a query, a client, and whether it is the voter of the first search."""


@pytest.mark.parametrize(("query", "client", "is_same"), VOTERS.values(), ids=VOTERS)
def test_voters(tmp_path: Path, query: str, client: str, is_same: bool) -> None:
    with closing(SearchLog(tmp_path)) as log:
        log.search({"query_id": "a"}, "storm coast", "10.0.0.1", is_named=False)
        log.search({"query_id": "b"}, query, client, is_named=False)
    [first, second] = searches_of(tmp_path)
    assert (first["voter"] == second["voter"]) is is_same


def test_a_client_has_one_vote_for_a_search(tmp_path: Path, command: Command) -> None:
    """However often it searches and clicks; the numbers of a comparison add up."""
    log = SearchLog(tmp_path)
    for number in range(30):
        search_id = str(number)
        client = f"10.0.0.{max(0, number - 20)}"
        query = " Storm"[number % 2 :]
        log.search(PAGE | {"query_id": search_id}, query, client, is_named=True)
        if number % 5:
            log.events([click(search_id, "2")] * 3)
    log.close()
    result = command("compare", tmp_path)
    assert result.code == 0
    assert result.err == ""
    table = r"^champion a, challenger b\n.*\n +30 +20 +1 +9 +0 +0$"
    assert re.search(table, result.out, re.M)


MEMORY_OF_COMPARISON = r"""
import re, sys
from pathlib import Path
from tweetrerank.pipeline.compare import Options, main
main(Options(Path(sys.argv[1])))
print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
def test_a_large_log_is_compared_in_little_memory(tmp_path: Path) -> None:
    with (tmp_path / "searches.jsonl").open("w") as stream:
        for number in range(50_000):
            name = f"{number:032x}"
            for record in (PAGE | {"query_id": name}, click(name, "2")):
                stream.write(f"{json.dumps(record)}\n")
    result = run_python("-c", MEMORY_OF_COMPARISON, tmp_path)
    assert re.search(r"\n +50,000 +0 +0 +50,000 ", result.stdout), result.stderr
    # Kilobytes, most of them of NumPy and SciPy
    assert int(result.stdout.split()[-1]) < 150_000


@pytest.mark.parametrize(
    ("share", "least", "most"),
    [
        pytest.param(0.5, 0, 0.06, id="equal models"),
        pytest.param(0.47, 0, 0.01, id="a worse challenger"),
        pytest.param(0.57, 0.95, 1, id="a better challenger"),
    ],
)
def test_the_test_may_be_looked_at_any_time(
    share: float,
    least: float,
    most: float,
) -> None:
    """The share of experiments that call the challenger better, at any look."""
    random = np.random.default_rng(1)
    better = 0
    for wins in np.cumsum(random.random((200, 1500)) < share, axis=1):
        for look in range(10, 1500, 10):
            losses = look + 1 - wins[look]
            if evidence(wins[look], losses) > np.log(20):
                better += 1
                break
    assert least <= better / 200 <= most
