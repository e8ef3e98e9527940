"""The command that builds indexes."""

import gzip
import shlex
from pathlib import Path

import pytest
from conftest import Command
from helpers.data_samples import write_microblog

from indexes.errors import CollectionError
from indexes.index import LuceneIndex
from indexes.posts import Post
from pipeline import index
from pipeline.collections import named
from pipeline.command.options import parse_arguments
from pipeline.errors import UsageError


def parse(*arguments: str | Path) -> index.Options:
    return parse_arguments(index.Options, "index", "", [str(word) for word in arguments])


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    plain, packed = tmp_path / "monday.jsonl", tmp_path / "tues day.jsonl.gz"
    plain.write_text('{"id": 1, "text": "alpha"}\n{"id": 2, "text": ""}\n')
    packed.write_bytes(gzip.compress(b'{"id_str": "30", "full_text": "alpha bravo"}\n'))
    return [plain, packed]


def posts_of(files: list[Path]) -> list[str]:
    return [f"--posts={file}" for file in files]


def test_own_posts(command: Command, tmp_path: Path, files: list[Path]) -> None:
    place = tmp_path / "new" / "index"
    done = command("index", *posts_of(files), "--index", place)
    assert (done.code, done.err) == (0, "")  # no progress bar, no words of Java's
    first, second = done.out.splitlines()
    assert first.startswith("3 posts (1 empty) in ")
    assert first.endswith(" posts/s")
    assert second == f"index: {place}"
    with LuceneIndex.open(place, files) as opened:
        assert opened.posts.get_many(["30"]) == {"30": Post("30", "alpha bravo")}


def test_the_command_in_a_message_works(tmp_path: Path, files: list[Path]) -> None:
    place = tmp_path / "my index"
    index.main(parse("--posts", files[0], "--posts", files[1], "--index", place))
    files[0].write_text('{"id": 5, "text": "charlie"}\n')
    with pytest.raises(CollectionError, match="has changed since") as error:
        LuceneIndex.open(place, files)
    words = shlex.split(str(error.value).splitlines()[-1])
    assert words[:3] == ["python", "-m", "pipeline.index"]
    index.main(parse(*words[3:]))
    with LuceneIndex.open(place, files) as opened:
        assert opened.size == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": 1}', 'monday.jsonl:1: found the keys "id", expected a text under "text"'),
        ('{"id": 30, "text": "again"}', "monday.jsonl:1, FOLDER/tues day.jsonl.gz:1), "),
    ],
)
def test_bad_posts_are_one_message(
    command: Command, tmp_path: Path, files: list[Path], line: str, message: str
) -> None:
    files[0].write_text(line + "\n")
    done = command("index", *posts_of(files), "--index", tmp_path / "index")
    assert done.code == 1
    assert message.replace("FOLDER", str(tmp_path)) in done.err
    assert done.err.startswith("python -m pipeline.index: error: ")
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--index", "x"], "nothing to index"),
        (["--posts", __file__], "--index DIR is missing"),
        (["--posts", __file__, "--index", "x", "--collection", "mb2011"], "cannot be combined"),
        (["--topics", "trecqa-raw"], "expected a collection whose posts are searched"),
        (["--index", "none"], "nothing to index"),
    ],
)
def test_bad_usage(arguments: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        index.main(parse(*arguments))


def test_a_named_collection(command: Command, tmp_path: Path) -> None:
    collection = named.find("mb2012", write_microblog(tmp_path))
    assert collection.index_directory
    place = collection.index_directory
    for option in ("--collection", "--topics"):
        done = command("index", option, "mb2012", "--data", tmp_path)
        assert done.out.splitlines()[-1] == f"index: {place}", done.err
        with LuceneIndex.open(place, collection.post_files()) as opened:
            assert {*opened.posts} == {*collection.posts()}
            assert opened.manifest.rebuild == (
                f"python -m pipeline.index --collection mb2012 --data {tmp_path} --index {place}"
            )
