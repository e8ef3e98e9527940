"""Folders of indexes: builds, changes of their sources, and every kind of damage."""

import json
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from conftest import Command, Patch
from helpers.index_samples import refused, write_lines
from helpers.processes import run_python

from tweetrerank.indexes import lucene_index
from tweetrerank.indexes.lucene_index import LuceneIndex
from tweetrerank.indexes.methods import BM25, Method, QueryLikelihood, Topic
from tweetrerank.indexes.posts import Post

REBUILD = "python -m pipeline.index --again"
SMALL = "tweetrerank.indexes.manifest.SMALL"


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    rows = {
        "one": {"id": "0", "text": "alpha 0"},
        "two words": {"id": "1", "text": "alpha 1"},
    }
    return [
        write_lines(tmp_path / f"{name}.jsonl", [row]) for name, row in rows.items()
    ]


@pytest.fixture
def built(tmp_path: Path, sources: list[Path]) -> Path:
    posts = [Post("1", "alpha"), Post("20", "alpha bravo"), Post("3", "")]
    manifest = lucene_index.build(posts, tmp_path / "index", sources, REBUILD)
    assert manifest.posts == 3
    assert manifest.empties == 1
    assert manifest.numeric_ids
    return tmp_path / "index"


def listing(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def assert_refused(
    problem: str, folder: Path, sources: list[Path] | None = None
) -> None:
    with refused(problem):
        LuceneIndex.open(folder, sources)


def content_of(
    folder: Path, method: Method, sources: list[Path] | None = None
) -> tuple[list[Post], dict[str, float]]:
    """Posts and scores of an index."""
    with LuceneIndex.open(folder, sources) as index:
        run = index.search([Topic("q", "alpha")], method)
        return list(index.posts), run["q"]


def test_builds_are_equal_and_movable(
    tmp_path: Path, built: Path, sources: list[Path]
) -> None:
    posts = [Post("3", ""), Post("20", "alpha bravo"), Post("1", "alpha")]
    again = tmp_path / "again"
    lucene_index.build(posts, again, sources, REBUILD)
    assert listing(again) == listing(built)
    moved = built.rename(tmp_path / "moved #1 %20?")
    expected = content_of(moved, QueryLikelihood(), sources)
    assert content_of(again, QueryLikelihood(), sources) == expected


BUILD_ON_A_FULL_DISK = """
import resource, signal, sys
from tweetrerank.indexes import jvm
from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.lucene_index import build
from tweetrerank.indexes.posts import Post
jvm.start()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
posts = (Post(str(n), f'some text {n} ' * 20) for n in range(5000))
try: build(posts, sys.argv[1], [])
except DataError as error: print('ONE MESSAGE:', error)
"""


def test_a_full_disk(tmp_path: Path, built: Path) -> None:
    """A limit on the size of files stands in for the disk."""
    before = listing(tmp_path)
    result = run_python("-c", BUILD_ON_A_FULL_DISK, built)
    message = "ONE MESSAGE: .*cannot be written"
    assert re.match(message, result.stdout), result.stderr
    assert listing(tmp_path) == before
    LuceneIndex.open(built).close()


def test_sources_of_another_time_or_order(built: Path, sources: list[Path]) -> None:
    LuceneIndex.open(built, sources).close()
    os.utime(sources[0], (1, 1))
    LuceneIndex.open(built, sources).close()
    LuceneIndex.open(built, sources[::-1]).close()


def test_another_number_of_sources(built: Path, sources: list[Path]) -> None:
    problem = r"built from \['one\.jsonl', .*\], expected \['"
    assert_refused(problem, built, sources[1:])
    assert_refused(problem, built, [*sources, built.parent / "new.jsonl"])


def test_sources_that_have_changed(built: Path, sources: list[Path]) -> None:
    path = sources[0]
    size = path.stat().st_size
    path.write_text(path.read_text().replace("alpha", "omega"))
    assert path.stat().st_size == size
    problem = r"built from .*one\.jsonl, which has changed.*\n +"
    assert_refused(f"{problem}{re.escape(REBUILD)}$", built, sources)
    path.unlink()
    assert_refused(r"one\.jsonl, which does not exist any more", built, sources)
    # Without sources nothing is checked.
    LuceneIndex.open(built).close()


def test_other_folders_are_not_opened(tmp_path: Path) -> None:
    problem = "found no such folder, expected an index; build one"
    assert_refused(problem, tmp_path / "none")
    problem = r"found a folder that is not an index.*lucene_index\.build\(posts"
    assert_refused(problem, tmp_path)


@pytest.mark.parametrize(("kind", "name"), [("folder", "."), ("file", "file")])
def test_other_files_are_not_replaced(tmp_path: Path, kind: str, name: str) -> None:
    (tmp_path / "file").write_text("thesis")
    with refused(f"found a {kind}.*; it is left as it is"):
        lucene_index.build([Post("1", "x")], tmp_path / name, [])
    assert listing(tmp_path) == ["file"]


def test_an_index_of_an_earlier_version(built: Path) -> None:
    """It lacks signals and SHA-256, and its analyzer has another name."""
    before = content_of(built, BM25())
    posts, scores = before
    assert len(posts) == 3
    assert len(scores) == 2
    with closing(sqlite3.connect(built / "posts.sqlite")) as connection:
        connection.execute("ALTER TABLE posts DROP COLUMN signals")
        connection.commit()
    path = built / "manifest.json"
    fields = json.loads(path.read_text("utf-8"))
    fields["posts_crc"] = 1
    fields["analyzer"] = "English"
    del fields["sha256"]
    del fields["manifest_sha256"]
    fields["files"]["posts.sqlite"] = (built / "posts.sqlite").stat().st_size
    path.write_text(json.dumps(fields), "utf-8")
    assert content_of(built, BM25()) == before


def files_of(folder: Path) -> list[Path]:
    """Files of an index that its manifest lists."""
    manifest = json.loads((folder / "manifest.json").read_text())
    names = list(manifest["files"])
    assert len(names) >= 10
    return [folder / name for name in names]


@contextmanager
def flipped_bit(path: Path, place: int) -> Iterator[None]:
    """Flip one bit of a file, which gets a new time, too."""
    content = path.read_bytes()
    changed = bytearray(content)
    changed[place] ^= 1
    path.write_bytes(changed)
    yield
    path.write_bytes(content)


def test_every_flipped_bit_is_noticed(
    built: Path, command: Command, monkeypatch: Patch
) -> None:
    """In a large index, opening reads only new files; the full check reads all."""
    for path in files_of(built):
        status = path.stat()
        times = (status.st_atime_ns, status.st_mtime_ns)
        name = re.escape(path.name)
        problem = rf"found another SHA-256 in {name}: damaged; build it again with"
        for place in (status.st_size // 2, status.st_size - 1):
            with flipped_bit(path, place):
                monkeypatch.setattr(SMALL, 0)
                assert_refused(problem, built)
                os.utime(path, ns=times)
                monkeypatch.setattr(SMALL, 10**6)
                assert_refused(problem, built)
                monkeypatch.setattr(SMALL, 0)
                result = command("index", "--index", built, "--check")
                assert result.code == 1
                assert re.search(problem, result.err)
    result = command("index", "--index", built, "--check")
    assert result.code == 0
    assert result.out.startswith("no damage")


def test_every_cut_and_every_missing_file_is_noticed(built: Path) -> None:
    for path in files_of(built):
        content = path.read_bytes()
        name = re.escape(path.name)
        path.write_bytes(content[:-20])
        problem = rf"{name} has \d+ bytes, .*damaged; build it"
        assert_refused(problem, built)
        path.rename(built / "another")
        assert_refused(rf"found another, no file of it; .*{name} is", built)
        (built / "another").unlink()
        path.write_bytes(content)
    LuceneIndex.open(built).close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "of format 2, expected 1; a newer version wrote it"),
        ({"format": 0}, "of format 0, expected 1; build it again"),
        ({"posts": 4}, "found 3 posts in Lucene and 3 in posts.sqlite, expected 4"),
        ({"sources": [[1, 2]]}, "not a readable manifest"),
    ],
)
def test_manifests_that_do_not_fit(
    built: Path, change: dict[str, object], message: str
) -> None:
    path = built / "manifest.json"
    fields = json.loads(path.read_text()) | change
    path.write_text(json.dumps(fields))
    assert_refused(r"manifest\.json: .*another SHA-256 than", built)
    del fields["manifest_sha256"]
    path.write_text(json.dumps(fields))
    assert_refused(message, built)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"format": 1}', b"\xff"])
def test_damaged_manifests(built: Path, content: bytes) -> None:
    (built / "manifest.json").write_bytes(content)
    assert_refused(r"manifest\.json: not a readable manifest", built)
