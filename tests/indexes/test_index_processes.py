"""Several processes at one index: killed builds, and searches while another one is written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.index_samples import random_posts, write_lines
from helpers.processes import ROOT

import indexes
from indexes.index import LuceneIndex
from indexes.posts import Post

pytestmark = pytest.mark.slow

POSTS = random_posts(10_000)


def started(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)


@pytest.mark.parametrize("stage", ["posts.sqlite", "*.doc"])
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_killed_builds_leave_the_old_index(by: signal.Signals, stage: str, tmp_path: Path) -> None:
    """A terminated one leaves nothing; the next build names what it finds."""
    rows = [{"id": post.doc_id, "text": post.text} for post in POSTS]
    index, posts = tmp_path / "index", write_lines(tmp_path / "posts.jsonl", rows)
    indexes.build([Post("1", "old")], index, [])
    words = ["-m", "pipeline.index", "--posts", posts, "--index", index]
    process = started(*words)
    while not [*tmp_path.glob(f".index.*/{stage}")] and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(by)
    _, errors = process.communicate()
    with LuceneIndex.open(index) as found:
        is_late, is_left = len(found.posts) > 1, bool([*tmp_path.glob(".index.*")])
    assert is_late or is_left is (by == signal.SIGKILL)
    if by == signal.SIGTERM and not is_late:
        assert process.returncode == 143 and "interrupted; nothing half-written" in errors
    done = started(*words)
    output, errors = done.communicate()
    assert done.returncode == 0 and output.startswith("10,000 posts")
    assert ("was being written when its process was killed" in errors) is is_left
    with LuceneIndex.open(index, [posts]) as found:
        assert len(found.posts) == len(POSTS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "posts.jsonl"]


SEARCHER = """
import sys, time
from indexes.index import LuceneIndex
from indexes.methods import QueryLikelihood, Topic

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


def test_a_search_sees_one_version_whole_while_others_are_written(tmp_path: Path) -> None:
    even = [Post(str(n), "alpha even") for n in range(40)]
    odd = [Post(str(n), "alpha odd") for n in range(60)]
    index = tmp_path / "index"
    indexes.build(even, index, [])
    searchers = [started("-c", SEARCHER, index, 2) for _ in range(2)]
    while any(searcher.poll() is None for searcher in searchers):
        for posts in (even, odd):
            indexes.build(posts, index, [])
    for searcher in searchers:
        output, errors = searcher.communicate()
        assert output == "even odd\n", errors
