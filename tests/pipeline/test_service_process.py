"""The service as a process: start, signals, wrong options."""

import json
import os
import re
import shutil
import signal
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import trustme
from conftest import Command
from helpers.processes import descendants
from helpers.proxy_samples import stub_engine
from helpers.service_process import Running, running
from helpers.service_samples import QUERY, TEXTS

import indexes
from indexes.posts import Post
from pipeline.errors import DataError
from pipeline.ranking.tuning import TUNING_FILE
from pipeline.serve import read_keys
from rerankers import checkpoint as checkpoints


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the shipped checkpoint."""
    folder = tmp_path_factory.mktemp("served") / "mine"
    shutil.copytree(checkpoints.find("mp_hcnn"), folder)
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Running]:
    with running("--checkpoint", folder, "--checkpoint", "mp_hcnn", "--threads", 1) as opened:
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
    documents = [{"text": text, "first_stage_score": float(n)} for n, text in enumerate(TEXTS)]
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
        shutil.copyfile(checkpoints.find("mp_hcnn") / "config.json", folder / "config.json")
        change_weight(folder, weight)
        service.lines.clear()
        service.reload("mine: loaded again")
        assert order(service.post(body)) == order(before)
    assert [client.result() for client in clients] == [{200}] * 2


def test_an_early_signal_ends_nothing() -> None:
    with running("--threads", 1, is_ready=False) as service:
        status = Path(f"/proc/{service.process.pid}/status")
        while not int(re.findall(r"SigIgn:\s+(\w+)", status.read_text())[0], 16) & 1:
            time.sleep(0.02)
        for _ in range(5):
            service.process.send_signal(signal.SIGHUP)
        service.wait_for("serving ")


def test_keys_are_read_again(command: Command, tmp_path: Path) -> None:
    """A file that cannot be used changes nothing, and starts nothing."""
    keys = tmp_path / "keys"
    keys.write_text("old")
    with running("--threads", 1, "--api-key-file", keys) as service:

        def statuses() -> list[int]:
            headers = [{"authorization": f"Bearer {key}"} for key in ("old", "new")]
            return [httpx.get(f"{service.address}/info", headers=h).status_code for h in headers]

        assert statuses() == [200, 401]
        for content, message in (
            (b"other\n\n  new \n", "2 keys"),
            (b"", "no key"),
            (None, "No such"),
        ):
            service.lines.clear()
            keys.unlink() if content is None else keys.write_bytes(content)
            service.reload(message)
            assert ("the old keys stay" in service.wait_for(message)) is (not content)
            assert statuses() == [401, 200]
    for wrong, problem in (
        *((b"\n \n", "found no key"), (b"\xff\xfe", "found no text")),
        *((text.encode(), "other characters than visible ASCII") for text in ("a b", "schlüssel")),
    ):
        keys.write_bytes(wrong)
        assert problem in command("serve", "--port", 0, "--api-key-file", keys, code=1).err
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_keys(tmp_path)


def test_certificates_are_read_again(command: Command, tmp_path: Path) -> None:
    """Of the service; clients need one of theirs, where authorities are named."""
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority")
    certificate, key = tmp_path / "certificate", tmp_path / "key"

    def issue(by: trustme.CA) -> None:
        made = by.issue_cert("127.0.0.1")
        made.private_key_pem.write_to_path(key)
        certificate.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))

    def status(trusted: trustme.CA, client: trustme.CA | None = authority) -> int:
        context = ssl.create_default_context()
        trusted.configure_trust(context)
        if client:
            client.issue_cert("me@example.org").configure_cert(context)
        return httpx.get(f"{service.address}/ready", verify=context).status_code

    issue(authority)
    files = ["--ssl-certfile", certificate, "--ssl-keyfile", key]
    authorities = ["--ssl-ca-certs", tmp_path / "authority"]
    with running("--threads", 1, *files, *authorities) as service:
        assert service.address.startswith("https://")
        assert status(authority) == 200
        with pytest.raises(httpx.TransportError):
            status(authority, None)
        issue(other)
        service.reload("--ssl-certfile: read again")
        assert status(other) == 200
        certificate.write_text("nothing")
        service.reload("the old certificate stays")
        assert status(other) == 200
        with pytest.raises(httpx.ConnectError):
            status(authority)
    damaged = command("serve", "--port", 0, *files, code=1).err
    assert "expected a certificate, its key without a password" in damaged


@pytest.mark.slow
def test_a_changed_index_is_opened_again(tmp_path: Path) -> None:
    """For the page; one that is damaged changes nothing."""
    posts, folder = [Post("1", "storm at sea"), Post("2", "lunch")], tmp_path / "index"
    indexes.build(posts, folder, [])
    with running("--checkpoint", "mp_hcnn", "--index", folder, "--threads", 1) as service:

        def hits(query: str) -> list[str]:
            address = f"{service.address}/api/search"
            response = httpx.get(address, params={"q": query, "model": "mp_hcnn"}, timeout=60)
            return [post["doc_id"] for post in response.json()["posts"]]

        assert (hits("storm"), hits("sea")) == (["1"], ["1"])
        indexes.build([*posts, Post("3", "storm"), Post("4", "storm")], folder, [])
        service.reload("opened again, 4 posts")
        assert sorted(hits("storm")) == ["1", "3", "4"]
        (folder / "manifest.json").write_text("{")
        service.reload("the index stays as it was")
        assert sorted(hits("storm")) == ["1", "3", "4"]


@pytest.mark.slow
def test_a_terminated_service_finishes_its_requests() -> None:
    # No word is in two posts: shared words would be computed once, in too little time.
    texts = [" ".join(f"word{n}x{m}" for m in range(30)) for n in range(2000)]
    bodies = [{"query": QUERY, "texts": [f"{text} {n}" for text in texts]} for n in range(4)]
    more = ("--checkpoint", "mp_hcnn", "--threads", 1)
    with running(*more) as service, ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(service.post, body) for body in bodies]
        # Until all but the first one wait: connections not accepted yet are lost.
        all_wait = f"te_queue_size {len(asking) - 1}.0"
        while all_wait not in (text := httpx.get(f"{service.address}/metrics").text):
            assert not any(future.done() for future in asking), text
        service.process.send_signal(signal.SIGTERM)
        answers = [future.result() for future in asking]
        assert [answer.status_code for answer in answers] == [200] * len(asking)
        assert all(map(json.loads, service.lines))
        assert all(len(answer.json()) == len(texts) for answer in answers)
        assert service.process.wait(20) == 0
        with pytest.raises(httpx.ConnectError):
            service.post()


@pytest.mark.slow
def test_processes_that_score_live_and_die_with_the_service() -> None:
    with running("--checkpoint", "mp_hcnn", "--threads", "2", "--cache", "32MB") as service:
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
    while any(Path(f"/proc/{pid}").exists() for pid in actual) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in actual if Path(f"/proc/{pid}").exists()]


ENGINE, FUSION = ("--engine", "http://localhost:9"), checkpoints.SHIPPED / "fusion" / "all"
WRONG: list[tuple[Sequence[object], int, str]] = [
    (["--port", "70000"], 2, "--port: found '70000', expected a port from 0"),
    (["--threads", 0], 2, "--threads: found 0, expected a whole number"),
    *(
        (["--max-body", size], 2, f"--max-body: found '{size}', expected a size")
        for size in ("5 bananas", "1.5MB", "0", "1TB")
    ),
    (["--api-key-file", "none"], 2, "--api-key-file: "),
    (["--ssl-keyfile", __file__], 2, "--ssl-keyfile: found no --ssl-certfile"),
    (["--log", "log"], 2, "--log: found no --engine"),
    (["--challenger", "mp_hcnn"], 2, "--challenger: found no --log"),
    (ENGINE, 2, "--engine: found no --engine-index"),
    *(
        ([*ENGINE, "--engine-index", name], 2, f"found '{name}', expected the name of an index")
        for name in (".keys", "_all", "a,b")
    ),
    (["--checkpoint", "no_such_model"], 2, "found no model and no folder"),
    (["--checkpoint", "mp_hcnn"] * 2, 2, "found two models of the name mp_hcnn"),
    (["--checkpoint", FUSION], 1, "expected a model of given candidates"),
]


@pytest.mark.parametrize(("arguments", "code", "problem"), WRONG)
def test_wrong_options(
    command: Command, arguments: Sequence[object], code: int, problem: str
) -> None:
    assert problem in command("serve", "--port", 0, *arguments, code=code).err


def test_a_port_in_use(command: Command, service: Running) -> None:
    port = service.address.rpartition(":")[2]
    errors = command("serve", "--port", port, code=1).err
    problem = f"python -m pipeline.serve: error: --host 127.0.0.1 --port {port}:"
    assert errors.startswith(problem) and errors.count("\n") == 1


@pytest.mark.slow
def test_an_engine_that_everybody_reads_is_told() -> None:
    with stub_engine() as (url, _):
        options = ["--engine", url, "--engine-index", "posts", "--host", "0.0.0.0"]
        with running("--threads", 1, *options) as service:
            assert "asks for no password" in service.wait_for(url)


@pytest.mark.slow
def test_a_log_that_nobody_reads_holds_nobody_up() -> None:
    body = {"query": QUERY, "texts": ["x" * 20_000]}
    with running("--threads", "1", "--log-texts", is_read=False) as service:
        for _ in range(200):  # A pipe holds 64 KiB.
            assert service.post(body).status_code == 200
        service.process.terminate()
        assert service.process.wait(20) == 0
