"""Files, folders and indexes appear complete or not at all, despite other processes."""

import errno
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Command
from helpers.index_samples import random_posts, write_lines
from helpers.processes import started

from tweetrerank.indexes.files import atomic_directory, atomic_file
from tweetrerank.indexes.lucene_index import LuceneIndex, build
from tweetrerank.indexes.posts import Post

ERRORS = [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", ERRORS)
def test_a_failure_leaves_the_old_file(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(type(error)), atomic_file(path) as stream:
        stream.write("new")
        raise error
    if isinstance(error, OSError):
        assert error.filename == str(path)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


@pytest.mark.parametrize("error", ERRORS)
def test_a_failure_leaves_the_old_folder(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(type(error)), atomic_directory(path) as folder:
        (folder / "new").touch()
        raise error
    assert names(path) == ["old"]
    assert names(tmp_path) == ["folder"]


def test_a_file_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "new" / "target"
    with atomic_file(target) as stream:
        stream.write("λ\n")
        assert not target.exists()
    assert target.read_bytes() == "λ\n".encode()
    assert names(target.parent) == ["target"]
    assert stat.S_IMODE(target.stat().st_mode) & 0o600 == 0o600


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("old")
    target.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(target)
    with atomic_file(link) as stream:
        stream.write("new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_folder_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with atomic_directory(path) as folder:
        (folder / "new").touch()
        assert not path.exists()
    assert names(path) == ["new"]


def test_a_folder_is_replaced_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").touch()
    with atomic_directory(path) as folder:
        (folder / "new").touch()
        assert names(path) == ["old"]
    assert names(path) == ["new"]
    assert names(tmp_path) == ["folder"]


WRITER = """
import sys, time
from tweetrerank.indexes.files import atomic_directory, atomic_file
with atomic_directory(sys.argv[1]) as folder, atomic_file(sys.argv[1] + '.txt'):
    (folder / 'half').write_text('half')
    print('begun', flush=True)
    time.sleep(120)
"""


@contextmanager
def writer_of(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has begun to replace a folder and a file, and waits."""
    process = started(sys.executable, "-c", WRITER, path)
    try:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_next_writer_removes_the_remains_of_a_killed_one(tmp_path: Path) -> None:
    path = tmp_path / "index"
    (tmp_path / ".index.backup.1").mkdir()
    elsewhere = tmp_path / ".index.another-host.999999-1.abcdefgh"
    elsewhere.mkdir()
    with writer_of(path) as killed, writer_of(path) as alive:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert len(names(tmp_path)) == 6
        for _ in range(2):
            with atomic_directory(path) as folder, atomic_file(f"{path}.txt"):
                (folder / "new").write_text("new")
            written = {"index", "index.txt", ".index.backup.1"}
            temporary = set(names(tmp_path)) - written
            of_living = [name for name in temporary if f".{alive.pid}-" in name]
            assert elsewhere.name in temporary
            assert len(temporary) == 3
            assert len(of_living) == 2
    assert names(path) == ["new"]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["posts.sqlite", "*.doc"])
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_build_is_undone(
    by: int, stage: str, tmp_path: Path, command: Command
) -> None:
    """The old index stays.

    A terminated build leaves nothing; the next one names the remains of a killed one.
    """
    rows = [{"id": post.doc_id, "text": post.text} for post in random_posts(10_000)]
    index = tmp_path / "index"
    posts = write_lines(tmp_path / "posts.jsonl", rows)
    build([Post("1", "old")], index, [])
    process = started(
        sys.executable, "-m", "pipeline.index", "--posts", posts, "--index", index
    )
    while not list(tmp_path.glob(f".index.*/{stage}")) and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(by)
    _, errors = process.communicate()
    with LuceneIndex.open(index) as opened:
        is_late = len(opened.posts) > 1
    has_remains = bool(list(tmp_path.glob(".index.*")))
    assert is_late or has_remains is (by == signal.SIGKILL)
    if by == signal.SIGTERM and not is_late:
        assert process.returncode == 143
        assert "interrupted; nothing half-written" in errors
    result = command("index", "--posts", posts, "--index", index, code=0)
    assert result.out.startswith("10,000 posts")
    is_noted = "was being written when its process was killed" in result.err
    assert is_noted is has_remains
    with LuceneIndex.open(index, [posts]) as opened:
        assert len(opened.posts) == len(rows)
    assert names(tmp_path) == ["index", "posts.jsonl"]


SEARCHER = """
import sys, time
from tweetrerank.indexes.lucene_index import LuceneIndex
from tweetrerank.indexes.methods import QueryLikelihood, Topic

end, seen = time.time() + float(sys.argv[2]), set()
while time.time() < end or (len(seen) < 2 and time.time() < end + 60):
    with LuceneIndex.open(sys.argv[1]) as index:
        size = len(index.posts)
        time.sleep(0.02)
        scores = index.search([Topic("q", "alpha")], QueryLikelihood())["q"]
        posts = index.posts.get_many(scores).values()
        words = {post.text.split()[1] for post in posts}
    assert scores.keys() == {str(n) for n in range(size)}, size
    assert len(words) == 1, words
    seen |= words
print(*sorted(seen))
"""


@pytest.mark.slow
def test_a_search_sees_one_version_while_others_are_written(tmp_path: Path) -> None:
    even = [Post(str(number), "alpha even") for number in range(40)]
    odd = [Post(str(number), "alpha odd") for number in range(60)]
    index = tmp_path / "index"
    build(even, index, [])
    searchers = [started(sys.executable, "-c", SEARCHER, index, 2) for _ in range(2)]
    while any(searcher.poll() is None for searcher in searchers):
        build(even, index, [])
        build(odd, index, [])
    for searcher in searchers:
        output, errors = searcher.communicate()
        assert output == "even odd\n", errors
