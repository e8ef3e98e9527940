"""The service as a process: start, signals, wrong options."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from conftest import Command
from helpers.service_samples import QUERY, TEXTS, WIRES

from indexes import lucene
from indexes.posts import Post
from pipeline import serve
from pipeline.ranking.checkpoints import TUNING_FILE
from rerankers import checkpoint as checkpoints

ROOT = Path(__file__).resolve().parents[2]
BODY = WIRES["tei"].body(raw_scores=True)


class Running(NamedTuple):
    """A service, its address, and the lines of its log until now."""

    process: "subprocess.Popen[str]"
    address: str
    lines: list[str]

    def ask(self, body: object = BODY, timeout: float = 60) -> httpx.Response:
        return httpx.post(f"{self.address}/rerank", json=body, timeout=timeout)

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """The first line of the log with this text."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := [line for line in self.lines if text in line]:
                return found[0]
            time.sleep(0.02)
        raise AssertionError(f"no {text!r} in {self.lines[-5:]}")


@contextmanager
def running(*arguments: object) -> Iterator[Running]:
    command = [sys.executable, "-m", "pipeline.serve", "--port", "0", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    lines: list[str] = []
    stderr = process.stderr
    assert stderr

    def read() -> None:
        for line in stderr:
            lines.append(line)

    reader = threading.Thread(target=read)
    reader.start()
    found = Running(process, "", lines)
    try:
        address = found.wait_for("serving ").split()[-1]
        yield found._replace(address=address)
    finally:
        process.kill()
        process.wait()
        reader.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the shipped checkpoint."""
    folder = tmp_path_factory.mktemp("served") / "mine"
    shutil.copytree(checkpoints.find("mp_hcnn"), folder)
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Running]:
    with running("--checkpoint", folder, "--checkpoint", "mp_hcnn", "--threads", 1) as found:
        yield found


def change_weight(folder: Path, weight: float) -> float:
    """Write another λ into a checkpoint; gives the old one."""
    tuning = json.loads((folder / TUNING_FILE).read_text())
    (folder / TUNING_FILE).write_text(json.dumps(tuning | {"weight": weight}))
    checkpoints.write_config(folder, json.loads((folder / "config.json").read_text()))
    return float(tuning["weight"])


@pytest.mark.slow
def test_models_are_chosen_by_name(service: Running) -> None:
    models = httpx.get(f"{service.address}/v1/models").json()["data"]
    assert [one["id"] for one in models] == ["mine", "mp_hcnn"]
    for path, name, status in (
        ("/v2/rerank", "mine", 200),
        ("/v2/rerank", "rerank-v3.5", 404),
        ("/v2/rerank", None, 422),
        ("/rerank", "mp_hcnn", 200),
        ("/rerank", "other", 404),
    ):
        body = {"query": QUERY, "documents": TEXTS, "model": name}
        answer = httpx.post(f"{service.address}{path}", json=body)
        assert answer.status_code == status
        if status == 200:
            assert answer.json()["model"] == name
        else:
            assert "expected one of mine, mp_hcnn" in answer.text


@pytest.mark.slow
def test_a_changed_checkpoint_is_swapped_in(service: Running, folder: Path) -> None:
    """No request is lost, and a damaged checkpoint changes nothing."""
    documents = [{"text": text, "first_stage_score": float(n)} for n, text in enumerate(TEXTS)]
    body = {"query": QUERY, "texts": documents, "model": "mine"}
    before = service.ask(body).json()
    statuses: list[int] = []
    ended = threading.Event()

    def ask_on() -> None:
        while not ended.is_set():
            statuses.append(service.ask(body).status_code)

    clients = [threading.Thread(target=ask_on) for _ in range(2)]
    for client in clients:
        client.start()
    try:
        weight = change_weight(folder, 0.0)
        service.process.send_signal(signal.SIGHUP)
        service.wait_for("mine: loaded again")
        # By λ = 0 the order is that of the first stage.
        expected = list(range(len(TEXTS)))[::-1]
        assert [one["index"] for one in service.ask(body).json()] == expected
        (folder / "config.json").write_text("{")
        service.process.send_signal(signal.SIGHUP)
        service.wait_for("mine: the old model stays")
        assert [one["index"] for one in service.ask(body).json()] == expected
        shutil.copyfile(checkpoints.find("mp_hcnn") / "config.json", folder / "config.json")
        change_weight(folder, weight)
        service.lines.clear()
        service.process.send_signal(signal.SIGHUP)
        service.wait_for("mine: loaded again")
        again = service.ask(body).json()
        assert [one["index"] for one in again] == [one["index"] for one in before]
        scores = [one["score"] for one in before]
        assert [one["score"] for one in again] == pytest.approx(scores, abs=1e-6)
    finally:
        ended.set()
        for client in clients:
            client.join()
    assert set(statuses) == {200}


@pytest.mark.slow
def test_a_changed_index_is_opened_again(tmp_path: Path) -> None:
    """For the page and for computed scores; one that is damaged changes nothing."""
    posts, folder = [Post("1", "storm at sea"), Post("2", "lunch")], tmp_path / "index"
    lucene.build(posts, folder, [])
    with running("--index", folder, "--statistics", folder, "--threads", 1) as service:

        def found(query: str) -> list[str]:
            address = f"{service.address}/api/search"
            answer = httpx.get(address, params={"q": query, "model": "mp_hcnn"}, timeout=60)
            return [post["doc_id"] for post in answer.json()["posts"]]

        def lexical() -> list[float]:
            documents = ["storm", "sea"]
            body = {"query": "storm sea", "documents": documents, "mix": "lexical"}
            answer = httpx.post(f"{service.address}/v2/rerank", json=body, timeout=60)
            results = sorted(answer.json()["results"], key=lambda one: one["index"])
            return [one["relevance_score"] for one in results]

        assert (found("storm"), found("sea")) == (["1"], ["1"])
        before = lexical()
        lucene.build([*posts, Post("3", "storm"), Post("4", "storm")], folder, [])
        service.process.send_signal(signal.SIGHUP)
        service.wait_for("opened again, 4 posts")
        service.wait_for("--statistics: opened again")
        assert sorted(found("storm")) == ["1", "3", "4"]
        # The word has become common.
        assert lexical() != before
        (folder / "manifest.json").write_text("{")
        service.process.send_signal(signal.SIGHUP)
        service.wait_for("--statistics: the index stays as it was")
        service.wait_for("the index stays as it was")
        assert sorted(found("storm")) == ["1", "3", "4"]


@pytest.mark.slow
def test_a_terminated_service_finishes_its_requests() -> None:
    texts = [f"{text} word{n}" for n in range(200) for text in TEXTS][:1000]
    with running("--threads", 1) as service:
        answers: list[httpx.Response] = []

        def ask(number: int) -> None:
            # Each has posts of its own, which takes longer.
            body = {"query": QUERY, "texts": [f"{text} {number}" for text in texts]}
            answers.append(service.ask(body))

        asking = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in asking:
            thread.start()
        # Until all wait, of the first one its rest: connections not accepted yet are lost.
        all_wait = f"te_queue_size {len(asking)}.0"
        while all_wait not in (text := httpx.get(f"{service.address}/metrics").text):
            assert not answers, text
        service.process.send_signal(signal.SIGTERM)
        for thread in asking:
            thread.join()
        assert [answer.status_code for answer in answers] == [200] * len(asking)
        assert all(len(answer.json()) == len(texts) for answer in answers)
        assert service.process.wait(20) == 0
        with pytest.raises(httpx.ConnectError):
            service.ask()


def test_processes_that_score_live_and_die_with_the_service() -> None:
    def scoring() -> set[int]:
        """Processes that a process of the service has started."""
        started = [service.process.pid]
        for pid in started:
            children = Path(f"/proc/{pid}/task/{pid}/children")
            started += map(int, children.read_text().split()) if children.exists() else []
        return {*started[1:]}

    with running("--threads", "2", "--cache", "32MB") as service:
        expected = service.ask().json()
        before = scoring()
        # The last ones: a tracker and the process that the others are forked from came first.
        os.kill(max(before), signal.SIGKILL)
        assert service.ask().json() == expected
        service.wait_for("has died")
        found = scoring()
        service.process.kill()
        service.process.wait()
    end = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in found) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in found if Path(f"/proc/{pid}").exists()]


def test_wrong_options(command: Command, tmp_path: Path) -> None:
    result = command("serve", "--port", "70000", "--max-body", "5 bananas", "--threads", 0)
    assert result.code == 2
    for text in (
        "--port: found '70000', expected a port from 0",
        "--max-body: found '5 bananas', expected a size",
        "--threads: found 0, expected a whole number",
    ):
        assert text in result.err
    assert command("serve", "--api-key-file", tmp_path / "none").code == 2


def test_a_port_in_use(command: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = command("serve", "--port", port)
    assert result.code == 1
    assert result.err.startswith(
        f"python -m pipeline.serve: error: --host 127.0.0.1 --port {port}:"
    )
    assert result.err.count("\n") == 1
    assert (
        "error: --host 192.0.2.1 --port 0:"
        in command("serve", "--host", "192.0.2.1", "--port", 0).err
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\n \n", "found no key"),
        (b"a b\n", "other characters than visible ASCII"),
        (b"\xff\xfe", "found no text"),
        ("schlüssel\n".encode(), "other characters than visible ASCII"),
    ],
)
def test_wrong_files_of_keys(
    command: Command, tmp_path: Path, content: bytes, problem: str
) -> None:
    (tmp_path / "keys").write_bytes(content)
    result = command("serve", "--port", 0, "--api-key-file", tmp_path / "keys")
    assert result.code == 1
    assert problem in result.err


def test_keys_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one\n\n  two \n")
    assert serve.read_keys(tmp_path / "keys") == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5", 5), ("500KB", 500_000), ("8mb", 8_000_000), ("2 G", 2_000_000_000), ("1B", 1)],
)
def test_sizes(text: str, expected: int) -> None:
    assert serve.size(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5MB", "MB", "1TB", "9" * 16])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        serve.size(text)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["no_such_model"], "found no model and no folder"),
        (["mp_hcnn", "mp_hcnn"], "found two models of the name mp_hcnn"),
        ([str(checkpoints.SHIPPED / "fusion" / "all")], "expected a model that scores each post"),
    ],
)
def test_models_that_cannot_be_served(command: Command, arguments: list[str], problem: str) -> None:
    options = [word for name in arguments for word in ("--checkpoint", name)]
    result = command("serve", "--port", 0, *options)
    assert result.code in (1, 2)
    assert problem in result.err


@pytest.mark.slow
def test_a_log_that_nobody_reads_holds_nobody_up(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline.serve", "--port", "0", "--threads", "1"]
    command += ["--log-texts"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr
    try:
        address = process.stderr.readline().split()[-1]
        body = {"query": QUERY, "texts": ["x" * 20_000]}
        with httpx.Client() as client:
            for n in range(200):  # A pipe holds 64 KiB.
                for left in range(100, -1, -1):
                    try:
                        status = client.post(f"{address}/rerank", json=body).status_code
                        break
                    except httpx.ConnectError:
                        assert n == 0
                        assert left
                        time.sleep(0.1)
                assert status == 200
    finally:
        process.kill()
        process.wait()
