"""The service as a process: start, signals, wrong options; the processes that score."""

import asyncio
import gc
import json
import multiprocessing
import os
import re
import shutil
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import trustme
from conftest import Command, Patch
from helpers import service_samples
from helpers.processes import descendants, run_python
from helpers.proxy_samples import stub_engine
from helpers.reranking_samples import AWKWARD, POSTS, QUERIES, all_pairs
from helpers.service_samples import (
    QUERY,
    TEXTS,
    Running,
    app_of,
    client_of,
    listening,
    running,
)

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.lucene_index import build
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.ranking.build import Source
from tweetrerank.pipeline.ranking.interpolation import TUNING_FILE
from tweetrerank.pipeline.runtime import read_keys
from tweetrerank.pipeline.serve import Options, read_again
from tweetrerank.pipeline.service import workers
from tweetrerank.pipeline.service.connections import tls_of
from tweetrerank.pipeline.service.json_log import LOG
from tweetrerank.pipeline.service.service_errors import RequestError
from tweetrerank.pipeline.service.workers import Workers
from tweetrerank.rerankers import checkpoint as checkpoints
from tweetrerank.rerankers.model import Model
from tweetrerank.rerankers.pairs import Pairs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the shipped checkpoint."""
    folder = tmp_path_factory.mktemp("served") / "mine"
    shutil.copytree(checkpoints.find("mp_hcnn"), folder)
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Running]:
    names = ("--checkpoint", folder, "--checkpoint", "mp_hcnn")
    with running(*names, "--threads", 1) as service:
        yield service


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def change_weight(folder: Path, weight: float) -> float:
    """Write another λ into a checkpoint; returns the old one."""
    tuning = read_json(folder / TUNING_FILE)
    (folder / TUNING_FILE).write_text(json.dumps(tuning | {"weight": weight}))
    checkpoints.write_config(folder, read_json(folder / "config.json"))
    return float(tuning["weight"])


def order(response: httpx.Response) -> list[int]:
    return [rank["index"] for rank in response.json()]


# --- Reloads --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_changed_checkpoint_is_swapped_in(service: Running, folder: Path) -> None:
    """No request is lost, and a damaged checkpoint changes nothing."""
    models = httpx.get(f"{service.address}/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["mine", "mp_hcnn"]
    documents = [
        {"text": text, "first_stage_score": float(n)} for n, text in enumerate(TEXTS)
    ]
    body = {"query": QUERY, "texts": documents, "model": "mine"}
    before = service.post(body)
    ended = threading.Event()

    def post_until_ended() -> set[int]:
        statuses = {service.post(body).status_code}
        while not ended.is_set():
            statuses.add(service.post(body).status_code)
        return statuses

    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        stack.callback(ended.set)
        clients = [pool.submit(post_until_ended) for _ in range(2)]
        weight = change_weight(folder, 0.0)
        service.reload("mine: loaded again")
        # By λ = 0 the order is that of the first stage.
        expected = list(range(len(TEXTS)))[::-1]
        assert order(service.post(body)) == expected
        config = folder / "config.json"
        config.write_text("{")
        service.reload("mine: the old model stays")
        assert order(service.post(body)) == expected
        shutil.copyfile(checkpoints.find("mp_hcnn") / "config.json", config)
        change_weight(folder, weight)
        service.lines.clear()
        service.reload("mine: loaded again")
        assert order(service.post(body)) == order(before)
    assert [client.result() for client in clients] == [{200}] * 2


@pytest.mark.parametrize(
    ("content", "message", "statuses"),
    [
        pytest.param(b"old", "1 keys", [200, 401], id="unchanged"),
        pytest.param(b"other\n\n  new \n", "2 keys", [401, 200], id="others"),
        pytest.param(b"", "the old keys stay: .*no key", [200, 401], id="empty"),
        pytest.param(None, "the old keys stay: .*No such", [200, 401], id="no file"),
    ],
)
def test_keys_are_read_again(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: bytes | None,
    message: str,
    statuses: list[int],
) -> None:
    caplog.set_level("INFO", LOG.name)
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    keys = ["old"]
    with client_of(keys=keys) as client:
        read_again(Options(api_key_file=file), keys, lambda: None)
        assert re.search(message, caplog.messages[-1])
        headers = [{"authorization": f"Bearer {key}"} for key in ("old", "new")]
        responses = [client.get("/info", headers=header) for header in headers]
    assert [response.status_code for response in responses] == statuses


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\n \n", "found no key"),
        (b"\xff\xfe", "found no text"),
        (b"a b", "other characters than visible ASCII"),
        ("schlüssel".encode(), "other characters than visible ASCII"),
    ],
)
def test_wrong_files_of_keys(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(DataError, match=problem):
        read_keys(file)


def test_a_folder_of_keys(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_keys(tmp_path)


def issue(authority: trustme.CA, folder: Path) -> list[Path]:
    """Write a certificate of this machine and its key; returns both files."""
    issued = authority.issue_cert("127.0.0.1")
    certificate = folder / "certificate"
    key = folder / "key"
    certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(key)
    return [certificate, key]


def status(address: str, trusted: trustme.CA, client: trustme.CA | None = None) -> int:
    """Status for a client that trusts an authority, with a certificate by another."""
    context = ssl.create_default_context()
    trusted.configure_trust(context)
    if client:
        client.issue_cert("me@example.org").configure_cert(context)
    return httpx.get(f"{address}/ready", verify=context).status_code


def test_certificates_are_read_again(tmp_path: Path) -> None:
    """Clients need a certificate, too, because authorities are named."""
    authority = trustme.CA()
    other = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority")
    certificate, key = issue(authority, tmp_path)
    load_tls = partial(tls_of, certificate, key, tmp_path / "authority")
    options = Options(ssl_certfile=certificate)
    tls = load_tls()
    load_again = partial(load_tls, known=tls)
    with listening(app_of(), tls=tls) as address:
        assert status(address, authority, authority) == 200
        with pytest.raises(httpx.TransportError):
            status(address, authority)
        issue(other, tmp_path)
        read_again(options, [], load_again)
        assert status(address, other, authority) == 200
        certificate.write_text("nothing")
        read_again(options, [], load_again)
        assert status(address, other, authority) == 200
        with pytest.raises(httpx.ConnectError):
            status(address, authority, authority)
    problem = "expected a certificate, its key without a password"
    with pytest.raises(DataError, match=problem):
        tls_of(certificate, key, None)


@pytest.mark.slow
def test_changed_keys_and_indexes_are_read_again(tmp_path: Path) -> None:
    """A damaged index changes nothing on the page."""
    posts = [Post("1", "storm at sea"), Post("2", "lunch")]
    folder = tmp_path / "index"
    keys = tmp_path / "keys"
    build(posts, folder, [])
    keys.write_text("old")
    options = ("--checkpoint", "mp_hcnn", "--index", folder, "--api-key-file", keys)
    with running(*options, "--threads", 1) as service:

        def hits(query: str, key: str = "new") -> list[str]:
            response = httpx.get(
                f"{service.address}/api/search",
                params={"q": query, "model": "mp_hcnn"},
                headers={"authorization": f"Bearer {key}"},
                timeout=60,
            )
            return sorted(post["doc_id"] for post in response.json()["posts"])

        assert hits("storm", "old") == ["1"]
        assert hits("sea", "old") == ["1"]
        build([*posts, Post("3", "storm"), Post("4", "storm")], folder, [])
        keys.write_text("new")
        service.reload("opened again, 4 posts")
        assert hits("storm") == ["1", "3", "4"]
        (folder / "manifest.json").write_text("{")
        service.reload("the index stays as it was")
        assert hits("storm") == ["1", "3", "4"]


# --- Start and end --------------------------------------------------------------------


def ignores_sighup(pid: int) -> bool:
    """Whether a process ignores signal 1, by the lowest bit of its mask."""
    text = Path(f"/proc/{pid}/status").read_text()
    (mask,) = re.findall(r"SigIgn:\s+(\w+)", text)
    return int(mask, 16) & 1 == 1


@pytest.mark.slow
def test_an_early_signal_ends_nothing_and_risks_are_logged(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, key = issue(authority, tmp_path)
    files = ("--ssl-certfile", certificate, "--ssl-keyfile", key)
    with stub_engine() as (url, _):
        engine = ("--engine", url, "--engine-index", "posts", "--host", "0.0.0.0")
        with running("--threads", 1, *files, *engine, is_ready=False) as service:
            pid = service.process.pid
            wait_until(lambda: ignores_sighup(pid), 60)
            for _ in range(5):
                service.process.send_signal(signal.SIGHUP)
            line = service.wait_for("serving ")
            (port,) = re.findall(r"https://0\.0\.0\.0:(\d+)", line)
            assert status(f"https://127.0.0.1:{port}", authority) == 200
            assert "asks for no password" in service.wait_for(url)


@pytest.mark.slow
def test_a_terminated_service_finishes_its_requests() -> None:
    with running("--threads", 1) as service, ThreadPoolExecutor(4) as pool:
        scorer = descendants(service.process.pid)[-1]
        os.kill(scorer, signal.SIGSTOP)
        futures = [pool.submit(service.post) for _ in range(4)]
        # Until all but the first one wait: connections not accepted yet are lost.
        metrics = ""
        while "te_queue_size 3.0" not in metrics:
            metrics = httpx.get(f"{service.address}/metrics").text
            assert not any(future.done() for future in futures), metrics
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        os.kill(scorer, signal.SIGCONT)
        responses = [future.result() for future in futures]
        assert [response.status_code for response in responses] == [200] * 4
        assert all(map(json.loads, service.lines))
        assert [len(response.json()) for response in responses] == [len(TEXTS)] * 4
        assert service.process.wait(20) == 0
        with pytest.raises(httpx.ConnectError):
            service.post()


def alive(pids: Sequence[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
def test_processes_that_score_live_and_die_with_the_service() -> None:
    options = ("--checkpoint", "mp_hcnn", "--threads", "2", "--cache", "32MB")
    with running(*options) as service:
        expected = service.post().json()
        # Both that score; the one that they are forked from came before them.
        for pid in descendants(service.process.pid)[-2:]:
            os.kill(pid, signal.SIGKILL)
        assert service.post().json() == expected
        service.wait_for("has died")
        pids = descendants(service.process.pid)
        service.process.kill()
        service.process.wait()
    wait_until(lambda: not alive(pids), 20)
    assert not alive(pids)


def test_a_port_in_use(command: Command, service: Running) -> None:
    port = service.address.rpartition(":")[2]
    errors = command("serve", "--port", port, code=1).err
    problem = f"python -m pipeline.serve: error: --host 127.0.0.1 --port {port}:"
    assert errors.startswith(problem)
    assert errors.count("\n") == 1


@pytest.mark.slow
def test_a_log_that_nobody_reads_holds_nobody_up() -> None:
    body = {"query": QUERY, "texts": ["x" * 20_000]}
    with running("--threads", "1", "--log-texts", is_read=False) as service:
        # A pipe holds 64 KiB.
        statuses = [service.post(body).status_code for _ in range(20)]
        assert statuses == [200] * 20
        service.process.terminate()
        assert service.process.wait(20) == 0


# --- Processes that score -------------------------------------------------------------

AWKWARD_POSTS = [(text, text) for text in AWKWARD.values()] + [("", "")]
PAIRS = all_pairs(QUERIES + list(AWKWARD.values()), POSTS + AWKWARD_POSTS)


@pytest.fixture(scope="module")
def checkpoint() -> Model:
    multiprocessing.set_forkserver_preload(["tweetrerank.pipeline.service.workers"])
    forkserver.ensure_running()
    return checkpoints.load(checkpoints.find("mp_hcnn"))


class ScorerOfTest:
    """Workers with one model, and their processes."""

    def __init__(self, folder: Path, processes: int = 2) -> None:
        self._others = set(descendants(os.getpid()))
        self.workers = Workers({"m": Source(folder)}, 1 << 28, processes)

    def processes(self) -> list[int]:
        """The one with the loaded model, then those that score, a free one first."""
        return [pid for pid in descendants(os.getpid()) if pid not in self._others]

    def ask(self, *requests: Pairs) -> Any:
        async def together() -> Any:
            tasks = [self.workers.ask("m", pairs) for pairs in requests]
            return await asyncio.gather(*tasks)

        return service_samples.run_apart(together)

    def scores(self) -> Any:
        """Scores of all pairs."""
        (scores,) = self.ask(PAIRS)
        return scores


def test_requests_get_their_own_answers(checkpoint: Model) -> None:
    scorer = ScorerOfTest(checkpoint.directory)
    expected = checkpoint.score(PAIRS)
    rng = np.random.default_rng(1)
    samples = [np.sort(rng.choice(len(PAIRS), 30, replace=False)) for _ in range(40)]
    answers = scorer.ask(*map(PAIRS.take, samples))
    for rows, scores in zip(samples, answers, strict=True):
        np.testing.assert_allclose(scores, expected[rows], rtol=1e-6, atol=4e-6)
    (no_scores,) = scorer.ask(PAIRS.take(np.zeros(0, np.int64)))
    assert no_scores.shape == (0,)


def test_processes_end_with_their_scorer(checkpoint: Model) -> None:
    scorer = ScorerOfTest(checkpoint.directory)
    expected = checkpoint.score(PAIRS)
    no_texts: Any = [None] * len(PAIRS.queries)
    with pytest.raises((TypeError, AttributeError)) as raised:
        scorer.ask(replace(PAIRS, queries=no_texts))
    # The notes have the place of the error.
    assert any("in score" in note for note in raised.value.__notes__)
    assert len(scorer.processes()) == 3
    for process in scorer.processes():
        os.kill(process, signal.SIGTERM)  # This signal is for the service.
    np.testing.assert_allclose(scorer.scores(), expected, atol=4e-6)
    processes = scorer.processes
    scorer.workers = None  # type: ignore[assignment]
    del raised
    gc.collect()  # A task is in a cycle with its error.
    wait_until(lambda: not processes(), 10)
    assert not processes()


def test_a_process_that_hangs_is_replaced(
    checkpoint: Model, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(workers, "ANSWER", 2.0)
    scorer = ScorerOfTest(checkpoint.directory)
    expected = scorer.scores()
    # More than fits into the pipe to a process
    large = replace(PAIRS, texts=[*PAIRS.texts[:-1], "x" * 1_000_000])
    for _ in range(2):
        os.kill(scorer.processes()[1], signal.SIGSTOP)
        started = time.monotonic()
        assert len(scorer.ask(large)[0]) == len(PAIRS)
        np.testing.assert_allclose(scorer.scores(), expected, rtol=1e-6, atol=4e-6)
        assert time.monotonic() - started < 10


@pytest.mark.slow
def test_a_process_that_dies_again_is_started_later(
    checkpoint: Model, monkeypatch: Patch
) -> None:
    scorer = ScorerOfTest(checkpoint.directory, 1)
    starts: list[int] = []
    fork = Workers.fork

    def fork_and_kill(template: Workers) -> object:
        connection, pid = fork(template)
        starts.append(pid)
        os.kill(pid, signal.SIGKILL)
        return connection, pid

    monkeypatch.setattr(Workers, "fork", fork_and_kill)
    os.kill(scorer.processes()[1], signal.SIGKILL)
    end = time.monotonic() + 2
    while time.monotonic() < end:
        with pytest.raises(RequestError) as raised:
            scorer.scores()
        assert raised.value.kind == "unready"
    assert len(starts) <= 4, "after 0, 0.25, 0.75 and 1.75 s"
    monkeypatch.undo()
    time.sleep(2.5)
    # An answer ends the pause: there is none before the next starts.
    assert scorer.scores().shape == (len(PAIRS),)
    for _ in range(3):
        os.kill(scorer.processes()[1], signal.SIGKILL)
        assert scorer.scores().shape == (len(PAIRS),)


def test_a_changed_folder_is_no_part_of_answers(
    tmp_path: Path, checkpoint: Model
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint.directory, folder)
    scorer = ScorerOfTest(folder)
    expected = scorer.scores()
    config = read_json(folder / "config.json")
    checkpoints.write_config(folder, config | {"provenance": "another"})
    os.kill(scorer.processes()[1], signal.SIGKILL)
    np.testing.assert_allclose(scorer.scores(), expected, rtol=1e-6, atol=4e-6)
    for process in scorer.processes():
        os.kill(process, signal.SIGKILL)
    time.sleep(0.3)
    with pytest.raises(RequestError, match="is being replaced"):
        scorer.scores()


TREES = """
import sys
import tweetrerank.pipeline.service.app, tweetrerank.pipeline.service.log
from tweetrerank.pipeline.ranking.build import Source
from tweetrerank.pipeline.service.scorer import Scorer
from tweetrerank.rerankers.checkpoint import find
Scorer({"w": Source(find("window"))}, 1000)
print({"torch", "pandas", "sklearn"} & {*sys.modules})
"""


def test_trees_are_served_without_pytorch() -> None:
    assert run_python("-c", TREES).stdout == "set()\n"
