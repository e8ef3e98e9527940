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
from collections.abc import Callable, Iterator
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
from tweetrerank.pipeline.service import workers as serving
from tweetrerank.pipeline.service.connections import tls_of
from tweetrerank.pipeline.service.requests import LOG, RequestError
from tweetrerank.pipeline.service.workers import Workers
from tweetrerank.rerankers import checkpoint as checkpoints
from tweetrerank.rerankers.pairs import Pairs
from tweetrerank.rerankers.reranker import Model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the shipped checkpoint."""
    folder = tmp_path_factory.mktemp("served") / "mine"
    shutil.copytree(checkpoints.find("mp_hcnn"), folder)
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Running]:
    with running(
        "--checkpoint", folder, "--checkpoint", "mp_hcnn", "--threads", 1
    ) as opened:
        yield opened


def change_weight(folder: Path, weight: float) -> float:
    """Write another λ into a checkpoint; gives the old one."""
    tuning = json.loads((folder / TUNING_FILE).read_text())
    (folder / TUNING_FILE).write_text(json.dumps(tuning | {"weight": weight}))
    checkpoints.write_config(folder, json.loads((folder / "config.json").read_text()))
    return float(tuning["weight"])


def order(response: httpx.Response) -> list[int]:
    return [rank["index"] for rank in response.json()]


@pytest.mark.slow
def test_a_changed_checkpoint_is_swapped_in(service: Running, folder: Path) -> None:
    """No request is lost, and a damaged checkpoint changes nothing."""
    served = httpx.get(f"{service.address}/v1/models").json()["data"]
    assert [model["id"] for model in served] == ["mine", "mp_hcnn"]
    documents = [
        {"text": text, "first_stage_score": float(n)} for n, text in enumerate(TEXTS)
    ]
    body = {"query": QUERY, "texts": documents, "model": "mine"}
    before = service.post(body)
    ended = threading.Event()

    def ask_on() -> set[int]:
        statuses = {service.post(body).status_code}
        while not ended.is_set():
            statuses.add(service.post(body).status_code)
        return statuses

    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        stack.callback(ended.set)
        clients = [pool.submit(ask_on) for _ in range(2)]
        weight = change_weight(folder, 0.0)
        service.reload("mine: loaded again")
        # By λ = 0 the order is that of the first stage.
        expected = list(range(len(TEXTS)))[::-1]
        assert order(service.post(body)) == expected
        (folder / "config.json").write_text("{")
        service.reload("mine: the old model stays")
        assert order(service.post(body)) == expected
        shutil.copyfile(
            checkpoints.find("mp_hcnn") / "config.json", folder / "config.json"
        )
        change_weight(folder, weight)
        service.lines.clear()
        service.reload("mine: loaded again")
        assert order(service.post(body)) == order(before)
    assert [client.result() for client in clients] == [{200}] * 2


def test_keys_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", LOG.name)
    file, keys = tmp_path / "keys", ["old"]
    with client_of(keys=keys) as client:
        for content, told, statuses in (
            (b"old", "1 keys", [200, 401]),
            (b"other\n\n  new \n", "2 keys", [401, 200]),
            (b"", "the old keys stay: .*no key", [401, 200]),
            (None, "the old keys stay: .*No such", [401, 200]),
        ):
            file.unlink() if content is None else file.write_bytes(content)
            read_again(Options(api_key_file=file), keys, lambda: None)
            assert re.search(told, caplog.messages[-1])
            headers = [{"authorization": f"Bearer {key}"} for key in ("old", "new")]
            assert [
                client.get("/info", headers=h).status_code for h in headers
            ] == statuses
            caplog.clear()
    for wrong, problem in (
        *((b"\n \n", "found no key"), (b"\xff\xfe", "found no text")),
        *(
            (text.encode(), "other characters than visible ASCII")
            for text in ("a b", "schlüssel")
        ),
    ):
        file.write_bytes(wrong)
        with pytest.raises(DataError, match=problem):
            read_keys(file)
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_keys(tmp_path)


def issue(by: trustme.CA, folder: Path) -> list[Path]:
    """Write a certificate of this machine and its key; gives both files."""
    made, files = by.issue_cert("127.0.0.1"), [folder / "certificate", folder / "key"]
    files[0].write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
    made.private_key_pem.write_to_path(files[1])
    return files


def status(address: str, trusted: trustme.CA, client: trustme.CA | None = None) -> int:
    """Of a response to a client that trusts an authority, with a certificate of its own by one."""
    context = ssl.create_default_context()
    trusted.configure_trust(context)
    if client:
        client.issue_cert("me@example.org").configure_cert(context)
    return httpx.get(f"{address}/ready", verify=context).status_code


def test_certificates_are_read_again(tmp_path: Path) -> None:
    """Of the service; clients need one of theirs, where authorities are named."""
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority")
    files = issue(authority, tmp_path)
    load_tls = partial(tls_of, *files, tmp_path / "authority")
    options, tls = Options(ssl_certfile=files[0]), load_tls()
    again = partial(load_tls, known=tls)
    with listening(app_of(), tls=tls) as address:
        assert status(address, authority, authority) == 200
        with pytest.raises(httpx.TransportError):
            status(address, authority)
        issue(other, tmp_path)
        read_again(options, [], again)
        assert status(address, other, authority) == 200
        files[0].write_text("nothing")
        read_again(options, [], again)
        assert status(address, other, authority) == 200
        with pytest.raises(httpx.ConnectError):
            status(address, authority, authority)
    with pytest.raises(
        DataError, match="expected a certificate, its key without a password"
    ):
        tls_of(*files, None)


@pytest.mark.slow
def test_an_early_signal_ends_nothing_and_risks_are_told(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, key = issue(authority, tmp_path)
    files = ["--ssl-certfile", certificate, "--ssl-keyfile", key]
    with stub_engine() as (url, _):
        engine = ["--engine", url, "--engine-index", "posts", "--host", "0.0.0.0"]
        with running("--threads", 1, *files, *engine, is_ready=False) as service:
            ignored = Path(f"/proc/{service.process.pid}/status")
            while (
                not int(re.findall(r"SigIgn:\s+(\w+)", ignored.read_text())[0], 16) & 1
            ):
                time.sleep(0.02)
            for _ in range(5):
                service.process.send_signal(signal.SIGHUP)
            port = (
                service.wait_for("serving ")
                .partition("https://0.0.0.0:")[2]
                .partition('"')[0]
            )
            assert status(f"https://127.0.0.1:{port}", authority) == 200
            assert "asks for no password" in service.wait_for(url)


@pytest.mark.slow
def test_changed_keys_and_indexes_are_read_again(tmp_path: Path) -> None:
    """An index for the page; one that is damaged changes nothing."""
    posts, folder = [Post("1", "storm at sea"), Post("2", "lunch")], tmp_path / "index"
    build(posts, folder, [])
    (keys := tmp_path / "keys").write_text("old")
    options = ["--checkpoint", "mp_hcnn", "--index", folder, "--api-key-file", keys]
    with running(*options, "--threads", 1) as service:

        def hits(query: str, key: str = "new") -> list[str]:
            address, headers = (
                f"{service.address}/api/search",
                {"authorization": f"Bearer {key}"},
            )
            asked = {"q": query, "model": "mp_hcnn"}
            response = httpx.get(address, params=asked, headers=headers, timeout=60)
            return [post["doc_id"] for post in response.json()["posts"]]

        assert (hits("storm", "old"), hits("sea", "old")) == (["1"], ["1"])
        build([*posts, Post("3", "storm"), Post("4", "storm")], folder, [])
        keys.write_text("new")
        service.reload("opened again, 4 posts")
        assert sorted(hits("storm")) == ["1", "3", "4"]
        (folder / "manifest.json").write_text("{")
        service.reload("the index stays as it was")
        assert sorted(hits("storm")) == ["1", "3", "4"]


@pytest.mark.slow
def test_a_terminated_service_finishes_its_requests() -> None:
    with running("--threads", 1) as service, ThreadPoolExecutor(4) as pool:
        scorer = descendants(service.process.pid)[-1]
        os.kill(scorer, signal.SIGSTOP)
        asking = [pool.submit(service.post) for _ in range(4)]
        # Until all but the first one wait: connections not accepted yet are lost.
        while "te_queue_size 3.0" not in (
            text := httpx.get(f"{service.address}/metrics").text
        ):
            assert not any(future.done() for future in asking), text
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        os.kill(scorer, signal.SIGCONT)
        answers = [future.result() for future in asking]
        assert [answer.status_code for answer in answers] == [200] * len(asking)
        assert all(map(json.loads, service.lines))
        assert all(len(answer.json()) == len(TEXTS) for answer in answers)
        assert service.process.wait(20) == 0
        with pytest.raises(httpx.ConnectError):
            service.post()


@pytest.mark.slow
def test_processes_that_score_live_and_die_with_the_service() -> None:
    with running(
        "--checkpoint", "mp_hcnn", "--threads", "2", "--cache", "32MB"
    ) as service:
        expected = service.post().json()
        # Both that score; the one that they are forked from came before them.
        for pid in descendants(service.process.pid)[-2:]:
            os.kill(pid, signal.SIGKILL)
        assert service.post().json() == expected
        service.wait_for("has died")
        actual = descendants(service.process.pid)
        service.process.kill()
        service.process.wait()
    end = time.monotonic() + 20
    while (
        any(Path(f"/proc/{pid}").exists() for pid in actual) and time.monotonic() < end
    ):
        time.sleep(0.05)
    assert not [pid for pid in actual if Path(f"/proc/{pid}").exists()]


def test_a_port_in_use(command: Command, service: Running) -> None:
    port = service.address.rpartition(":")[2]
    errors = command("serve", "--port", port, code=1).err
    problem = f"python -m pipeline.serve: error: --host 127.0.0.1 --port {port}:"
    assert errors.startswith(problem) and errors.count("\n") == 1


@pytest.mark.slow
def test_a_log_that_nobody_reads_holds_nobody_up() -> None:
    body = {"query": QUERY, "texts": ["x" * 20_000]}
    with running("--threads", "1", "--log-texts", is_read=False) as service:
        for _ in range(20):  # A pipe holds 64 KiB.
            assert service.post(body).status_code == 200
        service.process.terminate()
        assert service.process.wait(20) == 0


EVERY = [*POSTS, *((text, text) for text in AWKWARD.values()), ("", "")]
PAIRS = all_pairs([*QUERIES, *AWKWARD.values()], EVERY)


@pytest.fixture(scope="module")
def checkpoint() -> Model:
    multiprocessing.set_forkserver_preload(
        ["tweetrerank.pipeline.service.workers"]
    )
    forkserver.ensure_running()
    return checkpoints.load(checkpoints.find("mp_hcnn"))


def scorer_of(
    folder: Path, processes: int = 2
) -> tuple[Workers, Callable[[], list[int]]]:
    """And its processes: one that has loaded the model, and those that score, a free one first."""
    before = {*descendants(os.getpid())}
    scorer = Workers({"m": Source(folder)}, 1 << 28, processes)
    return scorer, lambda: [
        pid for pid in descendants(os.getpid()) if pid not in before
    ]


def ask(scorer: Workers, *requests: Pairs) -> Any:
    async def together() -> Any:
        return await asyncio.gather(*(scorer.ask("m", pairs) for pairs in requests))

    return service_samples.run_apart(together)


def test_requests_get_their_own_answers_until_the_scorer_ends(
    checkpoint: Model,
) -> None:
    (scorer, processes), expected = (
        scorer_of(checkpoint.directory),
        checkpoint.score(PAIRS),
    )
    rng = np.random.default_rng(1)
    parts = [np.sort(rng.choice(len(PAIRS), 30, replace=False)) for _ in range(40)]
    for part, scores in zip(parts, ask(scorer, *map(PAIRS.take, parts)), strict=True):
        np.testing.assert_allclose(scores, expected[part], rtol=1e-6, atol=4e-6)
    assert ask(scorer, PAIRS.take(np.zeros(0, np.int64)))[0].shape == (0,)
    with pytest.raises((TypeError, AttributeError)) as raised:
        ask(scorer, replace(PAIRS, queries=[None] * len(PAIRS.queries)))  # type: ignore[list-item]
    assert any(
        "in score" in note for note in raised.value.__notes__
    )  # Where it happened
    assert len(processes()) == 3
    for process in processes():
        os.kill(process, signal.SIGTERM)  # It is for the service.
    np.testing.assert_allclose(ask(scorer, PAIRS)[0], expected, atol=4e-6)
    del scorer, raised
    gc.collect()  # A task is in a cycle with its error.
    end = time.monotonic() + 10
    while processes() and time.monotonic() < end:
        time.sleep(0.01)
    assert not processes()


def test_a_process_that_hangs_is_replaced(
    checkpoint: Model, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(serving, "ANSWER", 2.0)
    scorer, processes = scorer_of(checkpoint.directory)
    expected = ask(scorer, PAIRS)[0]
    for _ in range(2):
        os.kill(processes()[1], signal.SIGSTOP)
        started = time.monotonic()
        # More than fits into the pipe to it.
        large = replace(PAIRS, texts=[*PAIRS.texts[:-1], "x" * 1_000_000])
        assert len(ask(scorer, large)[0]) == len(PAIRS)
        np.testing.assert_allclose(
            ask(scorer, PAIRS)[0], expected, rtol=1e-6, atol=4e-6
        )
        assert time.monotonic() - started < 10


@pytest.mark.slow
def test_a_process_that_dies_again_is_started_later(
    checkpoint: Model, monkeypatch: Patch
) -> None:
    scorer, processes = scorer_of(checkpoint.directory, 1)
    starts, fork = [], serving.Workers.fork

    def broken(template: Workers) -> object:
        started = fork(template)
        starts.append(started[1])
        os.kill(started[1], signal.SIGKILL)
        return started

    monkeypatch.setattr(serving.Workers, "fork", broken)
    os.kill(processes()[1], signal.SIGKILL)
    end = time.monotonic() + 2
    while time.monotonic() < end:
        with pytest.raises(RequestError) as raised:
            ask(scorer, PAIRS)
        assert raised.value.kind == "unready"
    assert len(starts) <= 4  # after 0, 0.25, 0.75 and 1.75 s
    monkeypatch.undo()
    time.sleep(2.5)
    # An answer ends the pause: there is none before the next starts.
    assert ask(scorer, PAIRS)[0].shape == (len(PAIRS),)
    for _ in range(3):
        os.kill(processes()[1], signal.SIGKILL)
        assert ask(scorer, PAIRS)[0].shape == (len(PAIRS),)


def test_a_changed_folder_is_no_part_of_answers(
    tmp_path: Path, checkpoint: Model
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint.directory, folder)
    scorer, processes = scorer_of(folder)
    expected = ask(scorer, PAIRS)[0]
    config = json.loads((folder / "config.json").read_text())
    checkpoints.write_config(folder, config | {"provenance": "another"})
    os.kill(processes()[1], signal.SIGKILL)
    np.testing.assert_allclose(ask(scorer, PAIRS)[0], expected, rtol=1e-6, atol=4e-6)
    for process in processes():
        os.kill(process, signal.SIGKILL)
    time.sleep(0.3)
    with pytest.raises(RequestError, match="is being replaced"):
        ask(scorer, PAIRS)


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
