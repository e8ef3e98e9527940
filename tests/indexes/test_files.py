"""Files, folders and indexes that appear whole or not at all, whatever other processes do."""

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


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_a_failure_leaves_what_was_there(error: BaseException, tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file.txt"
    folder.mkdir()
    (folder / "old").touch()
    file.write_text("old")
    with pytest.raises(type(error)), atomic_file(file) as stream:
        stream.write("new")
        raise error
    if isinstance(error, OSError):
        assert error.filename == str(file)
    with pytest.raises(type(error)), atomic_directory(folder) as new:
        (new / "new").touch()
        raise error
    assert (file.read_text(), names(folder)) == ("old", ["old"])
    assert names(tmp_path) == ["file.txt", "folder"]


def test_a_file_appears_at_the_end(tmp_path: Path) -> None:
    """Permissions stay, and links."""
    target, link = tmp_path / "new" / "target", tmp_path / "link"
    with atomic_file(target) as stream:
        stream.write("λ\n")
        assert not target.exists()
    assert target.read_bytes() == "λ\n".encode() and names(target.parent) == ["target"]
    assert stat.S_IMODE(target.stat().st_mode) & 0o600 == 0o600
    target.chmod(0o640)
    link.symlink_to(target)
    with atomic_file(link) as stream:
        stream.write("new")
    assert link.is_symlink() and target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_folder_is_replaced_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for _ in range(2):
        with atomic_directory(path) as new:
            (new / "new").touch()
            assert not path.exists() or names(path) == ["old"]
        assert names(path) == ["new"]
        (path / "new").rename(path / "old")
    assert names(tmp_path) == ["folder"]


@contextmanager
def writer_of(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has begun to replace a folder and a file, and waits."""
    code = (
        "import sys, time\n"
        "from tweetrerank.indexes.files import atomic_directory, atomic_file\n"
        "with atomic_directory(sys.argv[1]) as folder, atomic_file(sys.argv[1] + '.txt'):\n"
        "    (folder / 'half').write_text('half')\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(120)\n"
    )
    process = started(sys.executable, "-c", code, path)
    try:
        assert process.stdout and process.stdout.readline() == "begun\n"
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    path = tmp_path / "index"
    (tmp_path / ".index.backup.1").mkdir()
    elsewhere = tmp_path / ".index.another-host.999999-1.abcdefgh"
    elsewhere.mkdir()
    with writer_of(path) as killed, writer_of(path) as alive:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert len(names(tmp_path)) == 6
        for _ in range(2):
            with atomic_directory(path) as new, atomic_file(f"{path}.txt"):
                (new / "new").write_text("new")
            remaining = set(names(tmp_path)) - {"index", "index.txt", ".index.backup.1"}
            assert elsewhere.name in remaining and len(remaining) == 3
            assert sum(f".{alive.pid}-" in name for name in remaining) == 2
    assert names(path) == ["new"]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["posts.sqlite", "*.doc"])
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_build_is_undone(
    by: int, stage: str, tmp_path: Path, command: Command
) -> None:
    """The old index stays. A terminated build leaves nothing; the next one names what it finds."""
    rows = [{"id": post.doc_id, "text": post.text} for post in random_posts(10_000)]
    index, posts = tmp_path / "index", write_lines(tmp_path / "posts.jsonl", rows)
    build([Post("1", "old")], index, [])
    arguments = ("--posts", posts, "--index", index)
    process = started(sys.executable, "-m", "pipeline.index", *arguments)
    while not [*tmp_path.glob(f".index.*/{stage}")] and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(by)
    _, errors = process.communicate()
    with LuceneIndex.open(index) as found:
        is_late, is_left = len(found.posts) > 1, bool([*tmp_path.glob(".index.*")])
    assert is_late or is_left is (by == signal.SIGKILL)
    if by == signal.SIGTERM and not is_late:
        assert (
            process.returncode == 143 and "interrupted; nothing half-written" in errors
        )
    done = command("index", *arguments, code=0)
    assert done.out.startswith("10,000 posts")
    assert ("was being written when its process was killed" in done.err) is is_left
    with LuceneIndex.open(index, [posts]) as found:
        assert len(found.posts) == len(rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "posts.jsonl"]


SEARCHER = """
import sys, time
from tweetrerank.indexes.lucene_index import LuceneIndex
from tweetrerank.indexes.methods import QueryLikelihood, Topic

end, seen = time.time() + float(sys.argv[2]), set()
while time.time() < end or (len(seen) < 2 and time.time() < end + 60):
    with LuceneIndex.open(sys.argv[1]) as index:
        size = len(index.posts)
        time.sleep(0.02)
        found = index.search([Topic("q", "alpha")], QueryLikelihood())["q"]
        texts = {post.text.split()[1] for post in index.posts.get_many(found).values()}
    assert found.keys() == {str(n) for n in range(size)} and len(texts) == 1, (size, texts)
    seen |= texts
print(*sorted(seen))
"""


@pytest.mark.slow
def test_a_search_sees_one_version_whole_while_others_are_written(
    tmp_path: Path,
) -> None:
    even = [Post(str(n), "alpha even") for n in range(40)]
    odd = [Post(str(n), "alpha odd") for n in range(60)]
    index = tmp_path / "index"
    build(even, index, [])
    searchers = [started(sys.executable, "-c", SEARCHER, index, 2) for _ in range(2)]
    while any(searcher.poll() is None for searcher in searchers):
        for posts in (even, odd):
            build(posts, index, [])
    for searcher in searchers:
        output, errors = searcher.communicate()
        assert output == "even odd\n", errors
