"""The store of posts: everything that goes in comes out, and nothing else."""

import gc
import random
import subprocess
import sys
from pathlib import Path

import pytest

from indexes.errors import CollectionError
from indexes.posts import Post
from indexes.store import PostStore, RepeatedIdError, Summary, is_number

ROOT = Path(__file__).resolve().parents[2]

ODD_TEXTS = ["", "nul\0byte", "💥 emoji", "مرحبا", "x" * 10_000, "line\nend", "'; DROP TABLE posts"]


def store_of(path: Path, posts: list[Post]) -> PostStore:
    PostStore.build(path, posts)
    return PostStore(path)


def test_everything_comes_out_as_it_went_in(tmp_path: Path) -> None:
    posts = [Post(str(n), text, f"http://x/{n}?a=1#b") for n, text in enumerate(ODD_TEXTS)]
    assert PostStore.build(tmp_path / "p", posts) == Summary(7, 1, numeric_ids=True)
    with PostStore(tmp_path / "p") as store:
        assert len(store) == 7
        assert sorted(store) == sorted(posts)
        assert list(store.get_many(["3", "0", "99", "3"]).items()) == [
            ("3", posts[3]),
            ("0", posts[0]),
        ]


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
    for count in (1_000, 100_000):  # 30 MB of text
        command = [sys.executable, "-c", code, str(tmp_path / str(count)), str(count)]
        # The peak since the start of the program; getrusage counts the parent's memory too.
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 8_000  # kilobytes


def test_the_first_place_up_to_a_number(tmp_path: Path) -> None:
    drawn = random.Random(1)
    numbers = [*drawn.sample(range(10**6), 300), 2**62, 2**63 - 1]
    with store_of(tmp_path / "p", [Post(str(n), "") for n in numbers]) as store:
        for limit in [0, 2**62 - 1, 2**62, 2**63 - 1, *drawn.sample(range(10**6), 50), *numbers]:
            visible = store.ids_at(range(store.first_up_to(limit), len(store)))
            assert {int(doc_id) for doc_id in visible} == {n for n in numbers if n <= limit}


def test_ids_that_are_numbers() -> None:
    assert all(map(is_number, ["0", "34952194402811904", str(2**63 - 1)]))
    assert not any(map(is_number, [str(2**63), "-1", "1.5", "1e5", "٣", "²", "", "1" * 5000]))


def test_paths_with_odd_characters(tmp_path: Path) -> None:
    folder = tmp_path / "we?ird #1 100% é 'q'"
    folder.mkdir()
    with store_of(folder / "a?b#c%20d", [Post("1", "x")]) as store:
        assert store.get_many(["1"]) == {"1": Post("1", "x")}
    assert [file.name for file in folder.iterdir()] == ["a?b#c%20d"]


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


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_may_end_early(tmp_path: Path) -> None:
    with store_of(tmp_path / "p", [Post(str(n), "x") for n in range(3)]) as store:
        posts = iter(store)
        assert next(posts) == Post("2", "x")
    del posts
    gc.collect()
