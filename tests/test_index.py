"""The command that builds indexes."""

import gzip
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from indexes.errors import CollectionError
from indexes.lucene import LuceneIndex
from indexes.methods import QueryLikelihood
from indexes.posts import Post
from pipeline import index as command
from pipeline.collections import named
from pipeline.command.errors import DataError, UsageError
from pipeline.command.options import parse_arguments

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT = ROOT / "rerankers" / "checkpoints" / "mp_hcnn" / "all"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_module("pipeline.index", *arguments)


def run_module(module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def parse(*arguments: str | Path) -> command.Options:
    return parse_arguments(command.Options, "index", "", [str(word) for word in arguments])


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    plain, packed = tmp_path / "monday.jsonl", tmp_path / "tues day.jsonl.gz"
    plain.write_text('{"id": 1, "text": "alpha"}\n{"id": 2, "text": ""}\n')
    packed.write_bytes(gzip.compress(b'{"id_str": "30", "full_text": "alpha bravo"}\n'))
    return [plain, packed]


def test_own_posts(tmp_path: Path, files: list[Path]) -> None:
    place = tmp_path / "new" / "index"
    done = run("--posts", files[0], "--posts", files[1], "--index", place)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bar, no words of Java's
    first, second = done.stdout.splitlines()
    assert first.startswith("3 posts (1 empty) in ")
    assert first.endswith(" posts/s")
    assert second == f"index: {place}"
    with LuceneIndex.open(place, files) as index:
        assert index.posts.get_many(["30"]) == {"30": Post("30", "alpha bravo")}


def test_the_command_in_a_message_works(tmp_path: Path, files: list[Path]) -> None:
    place = tmp_path / "my index"
    command.main(parse("--posts", files[0], "--posts", files[1], "--index", place))
    files[0].write_text('{"id": 5, "text": "charlie"}\n')
    with pytest.raises(CollectionError, match="has changed since") as error:
        LuceneIndex.open(place, files)
    words = shlex.split(str(error.value).splitlines()[-1])
    assert words[:3] == ["python", "-m", "pipeline.index"]
    command.main(parse(*words[3:]))
    with LuceneIndex.open(place, files) as index:
        assert index.size == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": 1}', 'monday.jsonl:1: found the keys "id", expected a text under "text"'),
        ('{"id": 30, "text": "again"}', "found the id '30' twice, expected every id once over all"),
        ("", "found no posts, expected at least one"),
    ],
)
def test_bad_posts_are_one_message(
    tmp_path: Path, files: list[Path], line: str, message: str
) -> None:
    files[0].write_text(line + "\n")
    only = files if line else files[:1]
    words = [word for file in only for word in ("--posts", file)]
    done = run(*words, "--index", tmp_path / "index")
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.startswith("python -m pipeline.index: error: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "index").exists()


def test_a_folder_that_is_no_index_is_left_alone(tmp_path: Path, files: list[Path]) -> None:
    done = run("--posts", files[0], "--index", tmp_path)
    assert done.returncode == 1
    assert "found a folder that is not an index" in done.stderr
    assert sorted(tmp_path.iterdir()) == sorted(files)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "nothing to index"),
        (["--index", "x"], "nothing to index"),
        (["--posts", __file__], "--index DIR is missing"),
        (["--posts", __file__, "--index", "x", "--collection", "mb2011"], "cannot be combined"),
        (["--topics", "mb2011", "--collection", "mb2012"], "name different collections"),
        (["--topics", "trecqa-raw"], "expected a collection whose posts are searched"),
    ],
)
def test_bad_usage(arguments: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        command.main(parse(*arguments))


@dataclass(frozen=True)
class Tiny:
    """As much of a collection as indexing needs."""

    folder: Path
    name: str = "tiny"
    index_group: str = "tiny-group"

    def post_sources(self) -> list[Path]:
        return [self.folder / "posts.jsonl"]

    def posts(self) -> Iterator[Post]:
        for line in self.post_sources()[0].read_text().splitlines():
            yield Post(**json.loads(line))


def test_a_named_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    collection = Tiny(tmp_path)
    collection.post_sources()[0].write_text('{"doc_id": "1", "text": "alpha"}\n')
    monkeypatch.setenv("TWEETRERANK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(named, "find", lambda name, data: {"tiny": collection}[name])
    for option in ("--collection", "--topics"):
        command.main(parse(option, "tiny", "--data", tmp_path))
        place = tmp_path / "home" / "indexes" / "tiny-group"
        assert capsys.readouterr().out.splitlines()[-1] == f"index: {place}"
        with LuceneIndex.open(place, collection.post_sources()) as index:
            assert list(index.posts) == [Post("1", "alpha")]
            assert index.manifest.rebuild == (
                f"python -m pipeline.index --collection tiny --index {place} --data {tmp_path}"
            )


def test_a_collection_without_its_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tiny: there is no file .*posts\.jsonl; get it by"):
        command.build_collection(Tiny(tmp_path), tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def test_the_sample(tmp_path: Path) -> None:
    done = run("--topics", "sample", "--index", tmp_path / "sample")
    assert done.returncode == 0, done.stderr
    sample = named.find("sample")
    with LuceneIndex.open(tmp_path / "sample", sample.post_sources()) as index:
        assert list(index.posts) == list(sample.posts())[::-1]
        found = index.search(sample.topics, QueryLikelihood())
    assert all(found.values())


@pytest.mark.slow
def test_encoding_keeps_the_index_and_a_search_uses_it(tmp_path: Path, files: list[Path]) -> None:
    place, topics = tmp_path / "index", tmp_path / "topics.tsv"
    topics.write_text("1\talpha bravo\n")
    done = run(
        "--posts", files[0], "--posts", files[1], "--index", place, "--precompute", "mp_hcnn"
    )
    assert done.returncode == 0, done.stderr
    built, where, encoded = done.stdout.splitlines()
    assert built.startswith("3 posts") and where == f"index: {place}"
    assert encoded.startswith(f"precomputed: {place}/precomputed/") and " MB in " in encoded
    again = run("--index", place, "--precompute", CHECKPOINT)
    assert again.returncode == 0, again.stderr
    (line,) = again.stdout.splitlines()
    assert line.split(",")[0] == encoded.split(",")[0]
    folder = Path(line.removeprefix("precomputed: ").partition(",")[0])
    rows = [search(place, topics, choice) for choice in ("none", str(folder))]
    for (found, score), (plain, plain_score) in zip(*rows, strict=True):
        assert found == plain
        assert score == pytest.approx(plain_score, abs=1e-4)
    (folder / "words.0").write_bytes(b"")
    broken = run_search(place, topics)
    assert broken.returncode == 1
    assert "words.0: has 0 bytes" in broken.stderr
    assert f"python -m pipeline.index --index {place} --precompute" in broken.stderr


def search(place: Path, topics: Path, precomputed: str) -> list[tuple[str, float]]:
    done = run_search(place, topics, "--precomputed", precomputed)
    assert done.returncode == 0, done.stderr
    lines = (topics.parent / "run.txt").read_text().splitlines()
    return [(line.split()[2], float(line.split()[4])) for line in lines]


def run_search(place: Path, topics: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = ["--topics", topics, "--index", place, "--output", topics.parent / "run.txt",
             "--checkpoint", CHECKPOINT, "--lambda", "1", *more]  # fmt: skip
    return run_module("pipeline.search", *words)


@pytest.mark.slow
def test_posts_are_read_for_a_fusion_beforehand(tmp_path: Path, files: list[Path]) -> None:
    place, topics, written = tmp_path / "index", tmp_path / "topics.tsv", tmp_path / "run.txt"
    topics.write_text("1\talpha bravo\n2\tcharlie\n")
    done = run("--posts", files[0], "--posts", files[1], "--index", place, "--precompute", "fusion")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1].removeprefix("precomputed: ").partition(",")[0])
    assert (folder / "words.json").is_file()
    words = ["--topics", topics, "--index", place, "--output", written, "--reranker", "fusion"]
    runs = []
    for choice in ("none", folder):
        found = run_module("pipeline.search", *words, "--precomputed", choice)
        assert found.returncode == 0, found.stderr
        runs.append(written.read_text())
    assert runs[0] == runs[1] and len(runs[0].splitlines()) > 1
    (folder / "words.json").unlink()
    broken = run_module("pipeline.search", *words)
    assert broken.returncode == 1 and "words.json: is missing" in broken.stderr


def test_encoding_alone_needs_an_index(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as problems:
        command.main(parse("--index", tmp_path / "none", "--precompute", "mp_hcnn"))
    assert "nothing to index" in str(problems.value)
    with pytest.raises(DataError):
        command.main(parse("--collection", "sample", "--precompute", "no_such_model"))
