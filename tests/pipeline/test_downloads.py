"""Downloads from a local server that truncates, stalls, fails, or sends wrong bytes."""

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
from tweetrerank.pipeline.collections.catalogue import catalogue
from tweetrerank.rerankers.text.vectors import read_vectors

CONTENT = bytes(range(256)) * 2000
PAIR_FILES = ("a.toks", "b.toks", "id.txt", "sim.txt")


class Server:
    """Server that answers request n by the n-th behaviour, or by the last one."""

    def __init__(self) -> None:
        self.url = ""
        self.behaviours = ["serve"]
        self.requests = 0

    async def answer(self, _: Request) -> Response:
        self.requests += 1
        behaviour = self.behaviours[0]
        if len(self.behaviours) > 1:
            del self.behaviours[0]
        if behaviour.isdigit():
            return Response(status_code=int(behaviour))
        contents = {"wrong bytes": b"x" * len(CONTENT), "too long": CONTENT + b"more"}
        content = contents.get(behaviour, CONTENT)
        return StreamingResponse(
            self.parts(content, behaviour),
            headers={"content-length": str(len(content))},
        )

    async def parts(self, content: bytes, behaviour: str) -> AsyncIterator[bytes]:
        if behaviour in ("truncate", "stall"):
            content = content[: len(content) // 2]
        yield content
        if behaviour == "stall":
            # The connection stays open and silent until the client gives up.
            await asyncio.sleep(5)


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
def test_a_bad_download_leaves_nothing_and_starts_again(
    behaviour: str, entry: script.Entry, server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "some" / "file.bin"
    server.behaviours = [behaviour]
    with pytest.raises(DataError) as error:
        script.fetch(entry, tmp_path, 2)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert entry.url
    assert entry.url in str(error.value)
    assert str(path) in str(error.value)
    server.behaviours = [behaviour, "serve"]
    script.fetch(entry, tmp_path)
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


def test_present_files_are_checked(
    entry: script.Entry, server: Server, tmp_path: Path
) -> None:
    assert script.state(entry, tmp_path) == "missing"
    path = tmp_path / "some" / "file.bin"
    path.parent.mkdir()
    path.write_bytes(b"y" * len(CONTENT))
    assert "SHA-256" in script.state(entry, tmp_path)
    assert script.fetch_all([entry], tmp_path) == (1, [])
    assert path.read_bytes() == CONTENT
    assert script.fetch_all([entry], tmp_path) == (0, [])
    assert server.requests == 1


def test_a_failure_does_not_stop_the_others(
    entry: script.Entry, tmp_path: Path, capsys: Capture
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}"
    urls = {
        "local": None,
        "no_server": f"http://{host}/x",
        "nor_here": f"http://{host}/x",
    }
    entries = [script.Entry(name, 3, "0" * 64, (), url) for name, url in urls.items()]
    count, (local, absent) = script.fetch_all([*entries, entry], tmp_path)
    assert count == 1
    assert "4 of 4: some/file.bin (0.5 MB)\n" in capsys.readouterr().err
    assert str(tmp_path / "local") in local
    refused = f"cannot reach {host} ([Errno 111] Connection refused): 2 files"
    assert absent.startswith(refused)
    assert f"put them into {tmp_path} by hand" in absent


def test_paths_of_the_catalogue_are_unique() -> None:
    paths = [entry.path for entry in script.entries()]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("entry", script.entries(), ids=lambda entry: entry.path)
def test_entries_of_the_catalogue(entry: script.Entry) -> None:
    assert re.fullmatch("[0-9a-f]{64}", entry.sha256)
    assert entry.size > 0
    assert not Path(entry.path).is_absolute()
    assert ".." not in Path(entry.path).parts
    if entry.url and not entry.cuts:
        # Pinned to a commit
        assert re.match(r"https://\S+/[0-9a-f]{40}/", entry.url)
    terms = tuple(catalogue()["terms"])
    assert entry.groups
    for group in entry.groups:
        assert group.startswith(terms)


def selected(name: str) -> set[str]:
    return {entry.path for entry in script.select([name])}


def test_selecting_a_year() -> None:
    """Both years of a pair search the same tweets."""
    paths = selected("mb12")
    assert paths >= {"microblog/trec-2011/b.toks", "microblog/qrels.microblog2012.txt"}
    assert "microblog/qrels.microblog2013.txt" not in paths


def test_selecting_parts_of_trecqa() -> None:
    raw = selected("trecqa-raw")
    clean = selected("trecqa-clean")
    assert raw & clean == {f"trecqa/train/{name}" for name in PAIR_FILES}
    assert raw | clean == selected("trecqa")
    larger = selected("trecqa-all-raw")
    assert larger - raw == {f"trecqa/train-all/{name}" for name in PAIR_FILES}


def test_list_names_missing_files(tmp_path: Path, capsys: Capture) -> None:
    script.main(script.Options(("mb2013",), list=True, data=tmp_path))
    assert "0 of" in capsys.readouterr().out


def test_check_names_missing_files(tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(DataError, match="missing or damaged"):
        script.main(script.Options(("mb2013",), check=True, data=tmp_path))
    assert "microblog/qrels.microblog2013.txt" in capsys.readouterr().out


def test_all_leaves_out_unpublished_files(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    unpublished = [entry for entry in script.entries() if entry.url is None]
    monkeypatch.setattr(script, "select", lambda names: unpublished)
    script.main(script.Options((), data=tmp_path))
    errors = capsys.readouterr().err
    advice = "put there by hand (fetch with a collection's name says how): "
    assert errors.startswith(advice)
    assert "trecqa/train-all" in errors
    assert len(named.general()) == 10
    assert errors.count("general/") == 10


@pytest.mark.parametrize(
    ("name", "advice"),
    [("trecqa-all-raw", "sentences"), ("jsquad-train", "questions")],
)
def test_unpublished_files_come_with_advice(
    tmp_path: Path, monkeypatch: Patch, name: str, advice: str
) -> None:
    unpublished = [entry for entry in script.entries() if entry.url is None]
    monkeypatch.setattr(script, "select", lambda names: unpublished)
    with pytest.raises(DataError, match=f"it is not published: {advice} "):
        script.main(script.Options((name,), data=tmp_path))


# Words of the archive in the order of frequency, which decides about a cut
WORDS = ["the", ",", "a", "'s", "1999", "u.s.", "storm", "café", "re-run", "b2", "lol"]
WORDS.append("rare")


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: Patch) -> script.Entry:
    """An archive of word vectors that is the single file to fetch."""
    path = tmp_path / "embeddings" / "glove.6B.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as stream:
        for size in (50, 100):
            # The first number of a vector is the word's place.
            lines = [
                f"{word} {row}.0{' 0.5' * (size - 1)}\n"
                for row, word in enumerate(WORDS)
            ]
            stream.writestr(f"glove.6B.{size}d.txt", "".join(lines))
    (entry,) = script.select(["embeddings"])
    entry = entry._replace(size=path.stat().st_size, sha256=sha256_of(path))
    monkeypatch.setattr(script, "select", lambda names: [entry])
    monkeypatch.setattr(script, "COMMONEST", 3)
    text = tmp_path / "wikiqa" / "dev" / "b.toks"
    text.parent.mkdir(parents=True)
    text.write_text("Who said (LOL) ? 'twas b2/u.s.\n")
    return entry


def test_word_vectors_are_cut(
    archive: script.Entry, tmp_path: Path, capsys: Capture
) -> None:
    """To the commonest three, and to words of the texts."""
    script.main(script.Options(("embeddings",), data=tmp_path))
    summary = "of 5 words: the commonest 3 and those of 1 file of texts\n"
    assert capsys.readouterr().out.count(summary) == 2
    # The words of the texts stand alone or next to other signs.
    for size, third in ((50, "a"), (100, "storm")):
        words = ["the", ",", third, "b2", "lol"]
        vectors = read_vectors(tmp_path / f"embeddings/glove.6B.{size}d.bin.gz")
        assert vectors.words == words
        assert vectors.matrix.shape == (5, size)
        rows = [WORDS.index(word) for word in words]
        assert vectors.matrix[:, 0].tolist() == rows


def test_the_archive_is_not_needed_after_the_cuts(
    archive: script.Entry, tmp_path: Path
) -> None:
    script.main(script.Options(("embeddings",), data=tmp_path))
    folder = tmp_path / "embeddings"
    (folder / "glove.6B.zip").unlink()
    script.main(script.Options(("embeddings",), check=True, data=tmp_path))
    assert script.fetch_all([archive], tmp_path) == (0, [])
    (folder / "glove.6B.50d.bin.gz").unlink()
    assert [cut.size for cut in archive.missing_cuts(tmp_path)] == [50]
    assert script.state(archive, tmp_path) == "missing"
