"""The store of posts: everything that goes in comes out, and nothing else."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from indexes.errors import CollectionError
from indexes.posts import Post
from indexes.store import PostStore, RepeatedIdError

ROOT = Path(__file__).resolve().parents[2]


def store_of(path: Path, posts: list[Post]) -> PostStore:
    PostStore.build(path, posts)
    return PostStore(path)


def test_more_ids_than_a_statement_takes(tmp_path: Path) -> None:
    posts = [Post(str(n), f"text {n}") for n in range(5000)]
    random.Random(0).shuffle(posts)
    with store_of(tmp_path / "p", posts) as store:
        wanted = [str(n) for n in range(4999, -1, -2)]
        assert list(store.get_many(wanted).items()) == [(n, Post(n, f"text {n}")) for n in wanted]
        assert store.ids_at(range(5000)) == [str(n) for n in range(4999, -1, -1)]
        assert store.ids_at([7, 0, 7]) == ["4992", "4999", "4992"]


def test_numbers_are_ordered_as_numbers_and_other_ids_as_text(tmp_path: Path) -> None:
    numbers = [Post(doc_id, "") for doc_id in ("9", "100", "007", "7", "10")]
    with store_of(tmp_path / "n", numbers) as store:
        assert [post.doc_id for post in store] == ["100", "10", "9", "7", "007"]
    names = [Post(doc_id, "") for doc_id in ("b", "9", "100", "é", "a")]
    with store_of(tmp_path / "t", names) as store:
        assert [post.doc_id for post in store] == ["é", "b", "a", "9", "100"]
    assert not PostStore.build(tmp_path / "t2", names).numeric_ids


def test_equal_ids_are_found_wherever_they_are(tmp_path: Path) -> None:
    for name, ids in (("numbers", ["9", "100", "7", "100", "10"]), ("names", ["b", "100", "b"])):
        with pytest.raises(RepeatedIdError, match="twice, expected every id once") as error:
            PostStore.build(tmp_path / name, [Post(doc_id, "") for doc_id in ids])
        assert ids.count(error.value.doc_id) == 2


def test_memory_does_not_grow_with_the_posts(tmp_path: Path) -> None:
    code = (
        "import random, re, sys\n"
        "from indexes import store\n"
        "from indexes.posts import Post\n"
        "store._SORTED_KIB = 1024\n"
        "drawn = random.Random(0)\n"
        "posts = (\n"
        "    Post(str(drawn.getrandbits(60)), f'{n} ' * 40) for n in range(int(sys.argv[2]))\n"
        ")\n"
        "store.PostStore.build(sys.argv[1], posts)\n"
        "with store.PostStore(sys.argv[1]) as opened: sum(1 for _ in opened)\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
    )
    peaks = []
    for count in (1_000, 50_000):  # 15 MB of text
        command = [sys.executable, "-c", code, str(tmp_path / str(count)), str(count)]
        # The peak since the start of the program; getrusage counts the parent's memory too.
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 8_000  # kilobytes


def test_reading_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "p"
    PostStore.build(path, [Post("1", "x")])
    before = path.read_bytes()
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        with PostStore(path) as store:
            assert len(list(store)) == 1
    finally:
        tmp_path.chmod(0o755)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["p"]


@pytest.mark.parametrize(
    ("post", "message"),
    [
        (Post("a b", "x"), "found the id 'a b', expected a text without spaces"),
        (Post("7", "half \ud800"), "post 7: found .*surrogates not allowed"),
    ],
)
def test_posts_that_are_refused(tmp_path: Path, post: Post, message: str) -> None:
    with pytest.raises(CollectionError, match=message):
        PostStore.build(tmp_path / "p", [post])
