"""Downloads against a local server that truncates, stalls, lies and fails."""

import asyncio
import hashlib
import re
import socket
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from conftest import Capture, Patch
from helpers.service_samples import listening
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import request_response

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import sha256_of
from tweetrerank.pipeline import fetch as script
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.collection import catalogue
from tweetrerank.rerankers.text.vectors import read_vectors

CONTENT = bytes(range(256)) * 2000
PAIRS = ("a.toks", "b.toks", "id.txt", "sim.txt")
# A made archive in the order of frequency: the words that a cut keeps depend on it.
WORDS = (
    "the",
    ",",
    "a",
    "'s",
    "1999",
    "u.s.",
    "storm",
    "café",
    "re-run",
    "b2",
    "lol",
    "rare",
)


class Server:
    """Answers request n by the n-th behaviour; the last one goes on for ever."""

    def __init__(self) -> None:
        self.url, self.behaviours, self.requests = "", ["serve"], 0

    async def answer(self, _: Request) -> Response:
        self.requests += 1
        behaviour = (
            self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
        )
        if behaviour.isdigit():
            return Response(status_code=int(behaviour))
        others = {"wrong bytes": b"x" * len(CONTENT), "too long": CONTENT + b"more"}
        content, is_half = (
            others.get(behaviour, CONTENT),
            behaviour in ("truncate", "stall"),
        )

        async def parts() -> AsyncIterator[bytes]:
            yield content[: len(content) // (1 + is_half)]
            # The connection stays open and silent until the client gives up.
            await asyncio.sleep(5 if behaviour == "stall" else 0)

        return StreamingResponse(parts(), headers={"content-length": str(len(content))})


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: Patch) -> None:
    monkeypatch.setattr(script, "TIMEOUT", (0.3, 0.3))
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    with listening(request_response(server.answer)) as url:
        server.url = f"{url}/x"
        yield server


@pytest.fixture
def entry(server: Server) -> script.Entry:
    checksum = hashlib.sha256(CONTENT).hexdigest()
    return script.Entry(
        "some/file.bin", len(CONTENT), checksum, ("mb2011",), server.url
    )


@pytest.mark.parametrize(
    "behaviour", ["truncate", "stall", "wrong bytes", "too long", "404"]
)
def test_a_bad_download_leaves_nothing_and_begins_anew(
    behaviour: str, entry: script.Entry, server: Server, tmp_path: Path
) -> None:
    server.behaviours, place = [behaviour], tmp_path / "some" / "file.bin"
    with pytest.raises(DataError) as error:
        script.fetch(entry, tmp_path, 2)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert entry.url in str(error.value) and str(place) in str(error.value)
    server.behaviours = [behaviour, "serve"]
    script.fetch(entry, tmp_path)
    assert place.read_bytes() == CONTENT
    assert [path.name for path in place.parent.iterdir()] == ["file.bin"]


def test_present_files_are_checked(
    entry: script.Entry, server: Server, tmp_path: Path
) -> None:
    assert script.state(entry, tmp_path) == "missing"
    (place := tmp_path / "some" / "file.bin").parent.mkdir()
    place.write_bytes(b"y" * len(CONTENT))
    assert "SHA-256" in script.state(entry, tmp_path)
    assert script.fetch_all([entry], tmp_path) == (1, [])
    assert place.read_bytes() == CONTENT
    assert (script.fetch_all([entry], tmp_path), server.requests) == ((0, []), 1)


def test_one_failure_stops_no_other(
    entry: script.Entry, tmp_path: Path, capsys: Capture
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}"
    files = (
        ("local", None),
        ("no_server", f"http://{host}/x"),
        ("nor_here", f"http://{host}/x"),
    )
    entries = [script.Entry(name, 3, "0" * 64, (), address) for name, address in files]
    fetched, (local, absent) = script.fetch_all([*entries, entry], tmp_path)
    assert fetched == 1
    assert "4 of 4: some/file.bin (0.5 MB)\n" in capsys.readouterr().err
    assert str(tmp_path / "local") in local
    assert absent.startswith(
        f"cannot reach {host} ([Errno 111] Connection refused): 2 files"
    )
    assert f"put them into {tmp_path} by hand" in absent


def test_the_catalogue_is_sound() -> None:
    entries, terms = script.entries(), tuple(catalogue()["terms"])
    assert len({entry.path for entry in entries}) == len(entries)
    for entry in entries:
        assert re.fullmatch("[0-9a-f]{64}", entry.sha256) and entry.size > 0
        assert not Path(entry.path).is_absolute() and ".." not in Path(entry.path).parts
        if entry.url and not entry.cuts:
            assert re.match(r"https://\S+/[0-9a-f]{40}/", entry.url), (
                "pinned to a commit"
            )
        assert entry.groups and all(group.startswith(terms) for group in entry.groups)


def test_selecting() -> None:
    mb2012, whole, raw, clean, larger = (
        {entry.path for entry in script.select([name])}
        for name in ("mb12", "trecqa", "trecqa-raw", "trecqa-clean", "trecqa-all-raw")
    )
    # Both years search the same tweets.
    assert {"microblog/trec-2011/b.toks", "microblog/qrels.microblog2012.txt"} <= mb2012
    assert "microblog/qrels.microblog2013.txt" not in mb2012
    assert (
        raw & clean == {f"trecqa/train/{name}" for name in PAIRS}
        and raw | clean == whole
    )
    assert larger - raw == {f"trecqa/train-all/{name}" for name in PAIRS}


def test_list_and_check_name_missing_files(tmp_path: Path, capsys: Capture) -> None:
    script.main(script.Options(("mb2013",), list=True, data=tmp_path))
    assert "0 of" in capsys.readouterr().out
    with pytest.raises(DataError, match="missing or damaged"):
        script.main(script.Options(("mb2013",), check=True, data=tmp_path))
    assert "microblog/qrels.microblog2013.txt" in capsys.readouterr().out


def test_all_is_what_can_be_fetched(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    unpublished = [entry for entry in script.entries() if entry.url is None]
    monkeypatch.setattr(script, "select", lambda names: unpublished)
    script.main(script.Options((), data=tmp_path))
    told = capsys.readouterr().err
    assert told.startswith(
        "put there by hand (fetch with a collection's name says how): "
    )
    assert (
        "trecqa/train-all" in told
        and told.count("general/") == len(named.general()) == 10
    )
    for name, problem in (
        ("trecqa-all-raw", "sentences"),
        ("jsquad-train", "questions"),
    ):
        with pytest.raises(DataError, match=f"it is not published: {problem} "):
            script.main(script.Options((name,), data=tmp_path))


def test_word_vectors_are_cut(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    folder = tmp_path / "embeddings"
    folder.mkdir()
    with zipfile.ZipFile(archive := folder / "glove.6B.zip", "w") as whole:
        for size in (50, 100):  # The first number is a word's place.
            lines = [
                f"{word} {row}.0{' 0.5' * (size - 1)}\n"
                for row, word in enumerate(WORDS)
            ]
            whole.writestr(f"glove.6B.{size}d.txt", "".join(lines))
    (known,) = script.select(["embeddings"])
    known = known._replace(size=archive.stat().st_size, sha256=sha256_of(archive))
    monkeypatch.setattr(script, "select", lambda names: [known])
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
        found = read_vectors(folder / f"glove.6B.{size}d.bin.gz")
        assert (found.words, found.matrix.shape) == (kept, (5, size))
        # The number of a made word's row is its first number.
        assert found.matrix[:, 0].tolist() == [WORDS.index(word) for word in kept]
    # The archive is not needed once all cuts are there.
    archive.unlink()
    script.main(script.Options(("embeddings",), check=True, data=tmp_path))
    assert script.fetch_all([known], tmp_path) == (0, [])
    (folder / "glove.6B.50d.bin.gz").unlink()
    assert [cut.size for cut in known.missing_cuts(tmp_path)] == [50]
    assert script.state(known, tmp_path) == "missing"
