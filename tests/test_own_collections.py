"""Collections of one's own, described by a file, where a named one could stand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.collections.named import find, open_collection
from pipeline.command.errors import DataError, UsageError

POSTS = {
    "monday": [("1", "storm closes the harbour"), ("2", "harbour festival opens on friday")],
    "tuesday": [("3", "ferry tickets sold out"), ("4", "the storm is over")],
}
TOML = 'posts = ["posts-*.jsonl"]\ntopics = "topics.tsv"\nqrels = "qrels.txt"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collection of four posts and two topics, and a home folder."""
    monkeypatch.setenv("TWEETRERANK_HOME", str(tmp_path / "home"))
    folder = tmp_path / "mine"
    folder.mkdir()
    for day, posts in POSTS.items():
        lines = [json.dumps({"id": doc_id, "text": text}) for doc_id, text in posts]
        (folder / f"posts-{day}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "topics.tsv").write_text("a\tstorm harbour\nb\tferry tickets\n")
    (folder / "qrels.txt").write_text("a 0 1 1\na 0 2 0\nb 0 3 1\n")
    (folder / "harbour.toml").write_text(TOML)
    return folder


def test_file_describes_a_collection(folder: Path) -> None:
    collection = find(str(folder / "harbour.toml"))
    assert collection.name == "harbour"
    assert [topic.query_id for topic in collection.topics] == ["a", "b"]
    assert [post.doc_id for post in collection.posts()] == ["1", "2", "3", "4"]
    assert collection.qrels == {"a": {"1": 1, "2": 0}, "b": {"3": 1}}
    (folder / "harbour.toml").write_text('posts = "posts-monday.jsonl"\ntopics = "topics.tsv"\n')
    collection = open_collection(str(folder / "harbour.toml"))
    assert [post.doc_id for post in collection.posts()] == ["1", "2"]
    assert collection.qrels is None
    assert "--qrels" in collection.missing_judgments
    named = open_collection(str(folder / "harbour.toml"), qrels=folder / "qrels.txt")
    assert named.qrels is not None


def test_files_of_one_name_are_different_collections(folder: Path) -> None:
    other = folder.parent / "other"
    folder.joinpath("sub").mkdir()
    folder.rename(other)
    copies = [other / "harbour.toml", other / "sub" / "harbour.toml"]
    copies[1].write_text(
        'posts = ["../posts-*.jsonl"]\ntopics = "../topics.tsv"\nqrels = "../qrels.txt"\n'
    )
    first, second = (find(str(path)).index_directory for path in copies)
    assert first is not None and second is not None
    assert first != second
    assert first.parent == second.parent


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (
            'posts = ["nothing-*.jsonl", "posts-*.jsonl"]\ntopic = "topics.tsv"\nqrels = 3\n',
            [
                "found the key 'topic', expected posts, topics, qrels; did you mean 'topics'?",
                "found no topics",
                "posts: found no file 'nothing-*.jsonl'",
                "qrels: found 3, expected the name of a file",
            ],
        ),
        ('posts = 4\ntopics = "absent.tsv"\n', ["posts: found 4", "no file 'absent.tsv'"]),
        (
            'posts = ["posts-*.jsonl"]\ntopics = "qrels.txt"\nqrels = "topics.tsv"\n',
            ["topics: ", "qrels.txt:1: ", "qrels: ", "topics.tsv:1: "],
        ),
        ("posts = [", ["found no TOML"]),
        (TOML.replace("qrels.txt", "others.txt"), ["has judgments for no topic of"]),
    ],
)
def test_all_problems_of_a_file_are_named_at_once(
    folder: Path, text: str, problems: list[str]
) -> None:
    (folder / "others.txt").write_text("x 0 1 1\n")
    (folder / "harbour.toml").write_text(text)
    with pytest.raises(DataError) as caught:
        find(str(folder / "harbour.toml"))
    message = str(caught.value)
    assert all(line.startswith(str(folder / "harbour.toml")) for line in message.splitlines())
    for problem in problems:
        assert problem in message


def test_absent_file_and_name_of_another_collection(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"found no file .*harbor\.toml; .* has harbour\.toml"):
        find(str(folder / "harbor.toml"))
    (folder / "mb12.toml").write_text(TOML)
    with pytest.raises(DataError, match="mb12 is the name of another collection"):
        find(str(folder / "mb12.toml"))


@pytest.mark.slow
def test_commands_take_the_file(folder: Path, command: Callable[..., Any]) -> None:
    """The index is built at the first search, and used by the next."""
    toml, run = str(folder / "harbour.toml"), folder / "run.txt"
    first = ["--collection", toml, "--reranker", "none", "--output", run]
    assert command("search", *first).code == 0
    assert run.read_text().split()[:3] == ["a", "Q0", "1"]
    measured = command("evaluate", toml, run, "-m", "AP")
    assert "2 judged topics" in measured.out
    assert command("index", "--collection", toml).code == 0
    searched = command("search", "--topics", toml, "--output", run)
    assert "building the index" not in searched.err
    page = folder / "a.html"
    command("explain", "--collection", toml, "--query-id", "a", "--output", page)
    assert "storm" in page.read_text()
    given = ["--topics", toml, run, "--output", folder / "again", "--reranker", "mp_hcnn"]
    assert command("rerank", *given).code == 0
    # Posts that have changed since need another index.
    with (folder / "posts-tuesday.jsonl").open("a") as stream:
        stream.write('{"id": "5", "text": "another storm"}\n')
    changed = command("search", *first)
    assert changed.code == 1
    assert f"pipeline.index --collection {toml}" in changed.err
