"""The command that builds indexes."""

import gzip
import shlex
from functools import partial
from pathlib import Path

import pytest
from conftest import Command
from helpers.data_samples import write_microblog

from indexes.index import LuceneIndex
from indexes.posts import Post
from pipeline.collections import named


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    plain, packed = tmp_path / "monday.jsonl", tmp_path / "tues day.jsonl.gz"
    plain.write_text('{"id": 1, "text": "alpha"}\n{"id": 2, "text": ""}\n')
    packed.write_bytes(gzip.compress(b'{"id_str": "30", "full_text": "alpha bravo"}\n'))
    return [plain, packed]


@pytest.fixture
def build(command: Command, files: list[Path]) -> Command:
    """Indexes the files."""
    return partial(command, "index", *(f"--posts={file}" for file in files), "--index")


def test_own_posts(build: Command, tmp_path: Path, files: list[Path]) -> None:
    place = tmp_path / "my new" / "index"
    done = build(place, code=0)
    first, second = done.out.splitlines()
    assert first.startswith("3 posts (1 empty) in ") and first.endswith(" posts/s")
    assert (second, done.err) == (f"index: {place}", "")  # no progress bar, no words of Java's
    with LuceneIndex.open(place, files) as opened:
        assert opened.posts.get_many(["30"]) == {"30": Post("30", "alpha bravo")}
        given = [word for file in files for word in ("--posts", str(file))]
        words = ["python", "-m", "pipeline.index", *given, "--index", str(place)]
        assert shlex.split(opened.manifest.rebuild) == words


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": 1}', 'monday.jsonl:1: found the keys "id", expected a text under "text"'),
        ('{"id": 30, "text": "again"}', "monday.jsonl:1, FOLDER/tues day.jsonl.gz:1), "),
    ],
)
def test_bad_posts(build: Command, tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "monday.jsonl").write_text(line + "\n")
    told = build(tmp_path / "index", code=1).err
    assert message.replace("FOLDER", str(tmp_path)) in told
    assert told.startswith("python -m pipeline.index: error: ")
    assert not (tmp_path / "index").exists()


def test_a_named_collection(command: Command, tmp_path: Path) -> None:
    collection = named.find("mb2012", write_microblog(tmp_path))
    place = collection.index_directory
    for option in ("--collection", "--topics"):
        done = command("index", option, "mb2012", "--data", tmp_path)
        assert done.out.splitlines()[-1] == f"index: {place}", done.err
        with LuceneIndex.open(place, collection.post_files()) as opened:
            assert {*opened.posts} == {*collection.posts()}
            assert opened.manifest.rebuild == (
                f"python -m pipeline.index --collection mb2012 --data {tmp_path} --index {place}"
            )
