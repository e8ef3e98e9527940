"""Adding and removing posts: the same as an index built from the result, and safe throughout."""

import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest
from conftest import Command
from helpers.index_samples import WORDS, random_posts, write_posts

from indexes import lucene
from indexes.changes import change
from indexes.errors import CollectionError
from indexes.lucene import LuceneIndex
from indexes.manifest import IndexManifest
from indexes.methods import METHODS, Topic
from indexes.posts import Post
from indexes.store import POSTS_FILE, PostStore

POSTS = [*random_posts(300), Post("1", ""), Post("2", "?! ...")]
# New posts before, between and after the old ones, some equal in text to others: ties.
TIES = [
    Post(doc_id, POSTS[n].text)
    for n, doc_id in enumerate(("0", "30001", "999999999", "30003", "007"))
]
assert not {post.doc_id for post in TIES} & {post.doc_id for post in POSTS}
TOPICS = [
    Topic(f"{n} {limit}", " ".join(WORDS[n : n + 3]), None, limit)
    for n in range(len(WORDS) - 2)
    for limit in (None, "30000")
]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """An index of POSTS."""
    lucene.build(POSTS, tmp_path / "index", [])
    return tmp_path / "index"


def stored(index: Path) -> dict[str, Post]:
    with PostStore(index / POSTS_FILE) as store:
        return {post.doc_id: post for post in store}


def content(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def assert_same_runs(left: Path, right: Path, topics: Iterable[Topic] = TOPICS) -> None:
    topics = list(topics)
    with LuceneIndex.open(left) as changed, LuceneIndex.open(right) as fresh:
        for method in METHODS.values():
            found, expected = (opened.search(topics, method()) for opened in (changed, fresh))
            for topic in topics:
                one, other = found[topic.query_id], expected[topic.query_id]
                assert list(one) == list(other) and any(expected.values())
                assert one == pytest.approx(other, abs=1e-6)


def test_the_result_is_that_of_a_fresh_build(index: Path, tmp_path: Path) -> None:
    # Common words of removed posts must leave the statistics.
    gone = [post.doc_id for post in POSTS[:100] if "alpha" in post.text]
    other = [Post(post.doc_id, "tango tango alpha") for post in POSTS[200:220]]
    added = write_posts(tmp_path / "added.jsonl", TIES)
    changed = write_posts(tmp_path / "changed.jsonl", other)
    change(index, "first", [added])
    change(index, "second", [changed], gone, replace=True)
    posts = {post.doc_id: post for post in [*POSTS, *TIES, *other]}
    lucene.build([post for d, post in posts.items() if d not in gone], tmp_path / "fresh", [])
    assert list(stored(index).items()) == list(stored(tmp_path / "fresh").items())
    assert_same_runs(index, tmp_path / "fresh")


def test_ids_need_not_be_numbers(index: Path, tmp_path: Path) -> None:
    added = [*TIES, Post("tweet-1", "alpha bravo")]
    topics = [topic for topic in TOPICS if topic.max_doc_id is None]
    manifest = change(index, "", [write_posts(tmp_path / "added.jsonl", added)])
    assert not manifest.numeric_ids
    lucene.build([*POSTS, *added], tmp_path / "fresh", [])
    assert_same_runs(index, tmp_path / "fresh", topics)
    # The order is by number again once no other id is left.
    assert change(index, "", [], ["tweet-1"]).numeric_ids
    lucene.build([*POSTS, *TIES], tmp_path / "fresh", [])
    assert_same_runs(index, tmp_path / "fresh")


@pytest.mark.parametrize(
    ("added", "removed", "message"),
    [
        (POSTS[:5], [], f"'{POSTS[0].doc_id}'.* and 2 more, expected new ids.*`replace`"),
        ([], ["1", "31", "nobody"], "found no posts with the ids '31', 'nobody', expected ids of"),
        ([TIES[0]], [], r"found the id .* twice \(.*:\d+, .*:\d+\), expected"),
        ([], [post.doc_id for post in POSTS], "expected that at least one is left"),
    ],
)
def test_errors_leave_the_index_as_it_was(
    index: Path, tmp_path: Path, added: list[Post], removed: list[str], message: str
) -> None:
    before, files = content(index), [write_posts(tmp_path / "a.jsonl", added)] if added else []
    if "twice" in message:
        files.append(write_posts(tmp_path / "b.jsonl", added))
    with pytest.raises(CollectionError, match=message):
        change(index, "", files, removed)
    assert content(index) == before


def test_an_interruption_leaves_the_old_index(index: Path, tmp_path: Path) -> None:
    before = content(index)

    def interrupt(folder: Path) -> None:
        assert len(stored(folder)) == len(POSTS) - 1 and content(index) == before
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        change(index, "", remove=["1"], finish=interrupt)
    assert content(index) == before
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_two_changes_at_once_lose_nothing(index: Path) -> None:
    with pytest.raises(CollectionError, match="another process has changed this index"):
        change(
            index, "", remove=["1"], finish=lambda folder: change(index, "", remove=["2"]) and None
        )
    assert stored(index).keys() == {post.doc_id for post in POSTS} - {"2"}


def test_the_command(command: Command, tmp_path: Path) -> None:
    place, first = tmp_path / "my index", write_posts(tmp_path / "first posts.jsonl", POSTS)
    added, ids = write_posts(tmp_path / "added.jsonl", TIES[:3]), tmp_path / "ids.txt"
    more = write_posts(tmp_path / "more.jsonl", TIES[3:])
    ids.write_text(f"1\n\n{POSTS[0].doc_id}\n")
    assert command("index", "--posts", first, "--index", place).code == 0
    done = command("index", "--index", place, "--add", added, more, "--remove", ids)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("5 posts added, 0 replaced, 2 removed in ")
    assert done.out.endswith(f"305 posts (0 empty)\nindex: {place}\n")
    done = command("index", "--index", place, "--remove", "2, 007")
    assert done.code == 0 and "0 posts added, 0 replaced, 2 removed" in done.out
    # Messages name the command's options.
    assert "with --replace the new texts" in command("index", "--index", place, "--add", more).err
    assert "expected ids of its posts" in command("index", "--index", place, "--remove", "2").err
    none = command("index", "--index", tmp_path / "none", "--remove", "2")
    assert f"python -m pipeline.index --posts FILE --index '{tmp_path / 'none'}'" in none.err
    # The commands in the manifest build the same index.
    expected = stored(place)
    for line in IndexManifest.read(place).rebuild.splitlines():
        words = shlex.split(line)
        assert words[:3] == ["python", "-m", "pipeline.index"]
        assert command("index", *words[3:]).code == 0
    assert stored(place) == expected


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--add", __file__], 2, "--index DIR or --collection FILE is missing"),
        (["--remove", "1", "--topics", "mb2012"], 2, "found mb2012, expected the file of an own"),
        (["--index", "x", "--posts", __file__, "--replace"], 2, "--replace needs --add FILE"),
        (["--index", "x", "--remove", "1"], 1, "x: found no such folder, expected an index"),
        (["--index", "x", "--remove", __file__], 1, "expected one id"),
    ],
)
def test_bad_usage(command: Command, arguments: list[str], code: int, message: str) -> None:
    done = command("index", *arguments)
    assert done.code == code and message in done.err
