"""Downloads against a local server that truncates, stalls, lies and fails."""

import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from helpers.data_samples import write_archive

from indexes.files import sha256_of
from pipeline import fetch as script
from pipeline.collections import downloads, named
from pipeline.collections.downloads import Entry, fetch, fetch_all, state
from pipeline.errors import DataError, UsageError
from rerankers.text.vectors import read_vectors

CONTENT = bytes(range(256)) * 2000
PAIRS = ("a.toks", "b.toks", "id.txt", "sim.txt")


class Server(ThreadingHTTPServer):
    """Answers request n by the n-th behaviour; the last one goes on for ever."""

    behaviours: list[str]
    requests: int


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.requests += 1
        behaviours = self.server.behaviours
        behaviour = behaviours.pop(0) if len(behaviours) > 1 else behaviours[0]
        if behaviour.isdigit():
            self.send_error(int(behaviour))
            return
        content = b"x" * len(CONTENT) if behaviour == "wrong bytes" else CONTENT
        content = content + b"more" if behaviour == "too long" else content
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if behaviour in ("truncate", "stall"):
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            if behaviour == "stall":
                # Holds the connection open and silent until the client gives up.
                self.connection.settimeout(5)
                self.rfile.read(1)
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.wfile.write(content)


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "TIMEOUT", (0.3, 0.3))
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.behaviours, server.requests = ["serve"], 0
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def entry(server: Server) -> Entry:
    checksum, url = hashlib.sha256(CONTENT).hexdigest(), f"http://127.0.0.1:{server.server_port}/x"
    return Entry("some/file.bin", len(CONTENT), checksum, ("mb2011",), url)


def place(folder: Path) -> Path:
    return folder / "some" / "file.bin"


@pytest.mark.parametrize("first", ["truncate", "stall", "wrong bytes", "404"])
def test_a_failed_download_begins_anew(
    first: str, entry: Entry, server: Server, tmp_path: Path
) -> None:
    server.behaviours = [first, "serve"]
    fetch(entry, tmp_path)
    assert place(tmp_path).read_bytes() == CONTENT
    assert [path.name for path in place(tmp_path).parent.iterdir()] == ["file.bin"]


@pytest.mark.parametrize("behaviour", ["wrong bytes", "too long", "404", "truncate"])
def test_bad_content_never_gets_the_final_name(
    behaviour: str, entry: Entry, server: Server, tmp_path: Path
) -> None:
    server.behaviours = [behaviour]
    with pytest.raises(DataError) as error:
        fetch(entry._replace(sha256="0" * 64), tmp_path, 2)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert entry.url in str(error.value)
    assert str(place(tmp_path)) in str(error.value)


def test_files_that_are_there_are_checked_before_they_are_trusted(
    entry: Entry, server: Server, tmp_path: Path
) -> None:
    assert state(entry, tmp_path) == "missing"
    place(tmp_path).parent.mkdir()
    place(tmp_path).write_bytes(b"y" * len(CONTENT))
    assert "SHA-256" in state(entry, tmp_path)
    assert fetch_all([entry], tmp_path) == (1, [])
    assert place(tmp_path).read_bytes() == CONTENT
    assert fetch_all([entry], tmp_path) == (0, [])
    assert server.requests == 1


def test_one_failure_does_not_stop_the_others(
    entry: Entry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/x"
    files = (("local", None), ("no_server", url), ("nor_here", url))
    entries = [Entry(name, 3, "0" * 64, (), address) for name, address in files]
    fetched, failures = fetch_all([*entries, entry], tmp_path)
    assert fetched == 1
    assert "4 of 4: some/file.bin (0.5 MB)\n" in capsys.readouterr().err
    assert len(failures) == 2
    assert str(tmp_path / "local") in failures[0]
    host = url.split("/")[2]
    assert failures[1].startswith(f"cannot reach {host} ([Errno 111] Connection refused): 2 files")
    assert f"put them into {tmp_path} by hand" in failures[1]


def test_the_catalogue_is_sound() -> None:
    entries = downloads.catalogue()
    assert len({entry.path for entry in entries}) == len(entries)
    for entry in entries:
        assert re.fullmatch("[0-9a-f]{64}", entry.sha256)
        assert entry.size > 0
        assert not Path(entry.path).is_absolute() and ".." not in Path(entry.path).parts
        if entry.url and not entry.cuts:
            assert re.match(r"https://\S+/[0-9a-f]{40}/", entry.url), "pinned to a commit"
        assert entry.groups
        assert all(group.startswith(tuple(downloads.content()["terms"])) for group in entry.groups)


# The command fetch


def test_selecting() -> None:
    paths = {entry.path for entry in downloads.select(["mb12"])}
    # Both years search the same tweets.
    assert {"microblog/trec-2011/b.toks", "microblog/qrels.microblog2012.txt"} <= paths
    assert "microblog/qrels.microblog2013.txt" not in paths
    raw, clean = (
        {entry.path for entry in downloads.select([f"trecqa-{kind}"])} for kind in ("raw", "clean")
    )
    assert raw & clean == {f"trecqa/train/{name}" for name in PAIRS}
    assert raw | clean == {entry.path for entry in downloads.select(["trecqa"])}
    larger = {entry.path for entry in downloads.select(["trecqa-all-raw"])}
    assert larger - raw == {f"trecqa/train-all/{name}" for name in PAIRS}
    with pytest.raises(UsageError) as error:
        downloads.select(["mb2021", "glove"])
    assert len(error.value.problems) == 2
    assert "did you mean 'mb20" in str(error.value)


def test_list_and_check_name_missing_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.main(script.Options(("mb2013",), list=True, data=tmp_path))
    assert "0 of" in capsys.readouterr().out
    with pytest.raises(DataError, match="missing or damaged"):
        script.main(script.Options(("mb2013",), check=True, data=tmp_path))
    assert "microblog/qrels.microblog2013.txt" in capsys.readouterr().out


def test_everything_is_what_can_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unpublished = [entry for entry in downloads.catalogue() if entry.url is None]
    monkeypatch.setattr(downloads, "select", lambda names: unpublished)
    script.main(script.Options((), data=tmp_path))
    told = capsys.readouterr().err
    assert told.startswith("put there by hand (fetch with a collection's name says how): ")
    assert "trecqa/train-all" in told and told.count("general/") == len(named.general()) == 10
    for name, problem in (("trecqa-all-raw", "sentences"), ("jsquad-train", "questions")):
        with pytest.raises(DataError, match=f"it is not published: {problem} "):
            script.main(script.Options((name,), data=tmp_path))


# A made archive in the order of frequency: the words that a cut keeps depend on it.
WORDS = ("the", ",", "a", "'s", "1999", "u.s.", "storm", "café", "re-run", "b2", "lol", "rare")


def test_word_vectors_are_cut_from_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = write_archive(tmp_path / "embeddings" / "glove.6B.zip", WORDS)
    (known,) = downloads.select(["embeddings"])
    known = known._replace(size=archive.stat().st_size, sha256=sha256_of(archive))
    monkeypatch.setattr(downloads, "select", lambda names: [known])
    monkeypatch.setattr(script, "COMMONEST", 3)
    text = tmp_path / "wikiqa" / "dev" / "b.toks"
    text.parent.mkdir(parents=True)
    text.write_text("Who said (LOL) ? 'twas b2/u.s.\n")
    script.main(script.Options(("embeddings",), data=tmp_path))
    told = "of 5 words: the commonest 3 and those of 1 file of texts\n"
    assert capsys.readouterr().out.count(told) == 2
    # The commonest three, and words of the texts as they stand or beside other signs.
    for size, third in ((50, "a"), (100, "storm")):
        kept = ["the", ",", third, "b2", "lol"]
        found = read_vectors(tmp_path / "embeddings" / f"glove.6B.{size}d.bin.gz")
        assert found.words == kept
        # The number of a made word's row is its first number.
        assert found.matrix[:, 0].tolist() == [WORDS.index(word) for word in kept]
        assert found.matrix.shape == (5, size)
    # The archive is not needed once all cuts are there.
    archive.unlink()
    script.main(script.Options(("embeddings",), check=True, data=tmp_path))
    assert fetch_all([known], tmp_path) == (0, [])
    (tmp_path / "embeddings" / "glove.6B.50d.bin.gz").unlink()
    assert [cut.size for cut in known.missing_cuts(tmp_path)] == [50]
    assert state(known, tmp_path) == "missing"
