"""The command ``adapt`` with a tiny teacher, and the searches that read what it writes."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import Command, Result
from helpers.teacher_samples import write_folder

from pipeline.adaptation import teacher as teachers
from pipeline.adaptation.teacher import FloatArray, Teacher
from pipeline.collections.named import find
from pipeline.collections.trec import read_run
from rerankers.errors import RerankerError
from rerankers.text.spaces import description_of
from rerankers.text.words import words

Run = Callable[..., Result]
SIZE = 6


class Words:
    """A teacher whose encodings are sums of random vectors of words; a count of its texts."""

    def __init__(self, fail_after: int | None = None) -> None:
        self.encoded, self.fail_after = 0, fail_after

    def embed(self, texts: Sequence[str]) -> FloatArray:
        found = np.full((len(texts), SIZE), 1e-3, np.float32)
        for row, text in enumerate(texts):
            if self.encoded == self.fail_after:
                raise KeyboardInterrupt
            self.encoded += 1
            for word in words(text):
                seed = int.from_bytes(word.encode()[:8], "big")
                found[row] += np.random.default_rng(seed).normal(size=SIZE)
        return found


@pytest.fixture
def teacher(monkeypatch: pytest.MonkeyPatch) -> Words:
    """In the place of every named teacher."""
    found = Words()
    made = Teacher("words", SIZE, "first", found.embed)
    monkeypatch.setattr(teachers, "open_teacher", lambda *_: made)
    return found


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A collection of 60 posts of a few words, and one without a word."""
    random = np.random.default_rng(1)
    texts = [" ".join(random.choice(["storm", "ferry", "bakery"], 4)) for _ in range(60)]
    texts[0] += " \0\ud83d"  # Neither stops a teacher.
    write_posts(tmp_path / "posts.jsonl", [*texts, "..."])
    (tmp_path / "topics.tsv").write_text("a\tstorm ferry\n")
    (tmp_path / "mine.toml").write_text('posts = ["posts.jsonl"]\ntopics = "topics.tsv"\n')
    return tmp_path / "mine.toml"


def write_posts(path: Path, texts: Sequence[str]) -> None:
    lines = [json.dumps({"id": str(n), "text": text}) for n, text in enumerate(texts)]
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def run(command: Command) -> Run:
    return partial(command, "adapt", "--collection")


@pytest.mark.slow
def test_the_sample_is_adapted_and_searched(run: Run, command: Command, tmp_path: Path) -> None:
    """By a folder of a transformer; after that the fusion for adapted collections is taken."""

    def searched() -> Mapping[str, Mapping[str, float]]:
        command("search", "--topics", "sample", "--output", tmp_path / "run.txt", code=0)
        return read_run(tmp_path / "run.txt")

    write_folder(tmp_path / "tiny")
    before, teacher = searched(), ("--teacher", tmp_path / "tiny")
    result = run("sample", *teacher, "--device", "cpu", "--threads", "1", code=0)
    sample = find("sample")
    path, space = sample.adapted_path, sample.adapted_space
    assert str(path) in result.out
    assert "of the encodings' variance explained" in result.out
    assert space.size == 16 and len(space.words) > 500
    made = description_of(path)
    assert made["teacher"] == "tiny" and len(made["fingerprint"]) == 64
    assert int(made["posts"]) == sum(bool(post.text.strip()) for post in sample.posts())
    after = searched()
    assert before.keys() == after.keys() and before != after
    path.unlink()
    by_index = ("adapt", "--index", sample.index_directory, *teacher)
    assert f"--index {sample.index_directory}" in command(*by_index, "--check", code=1).err
    command(*by_index, code=0)
    path.unlink()
    assert searched() == before


def test_an_interrupted_adaptation_goes_on(
    run: Run, mine: Path, teacher: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teachers, "PART", 5)
    path = find(str(mine)).adapted_path
    teacher.fail_after = 12
    run(mine, code=130)
    assert not path.exists()
    teacher.fail_after = None
    explained = run(mine, code=0).out.partition("held-out posts: ")[2].partition("%")[0]
    assert float(explained) > 80
    assert sorted(find(str(mine)).adapted_space.words) == ["bakery", "ferry", "storm"]
    distinct = len({post.text for post in find(str(mine)).posts()})
    assert teacher.encoded == 12 + distinct - 10  # of the parts of five, two were whole
    run(mine, code=0)
    assert teacher.encoded == 2 + distinct
    # A failure leaves the old vectors.
    before = path.read_bytes()
    write_posts(mine.parent / "posts.jsonl", ["another storm", "the ferry", "a bakery"])
    teacher.fail_after = teacher.encoded + 1
    run(mine, code=130)
    assert path.read_bytes() == before


def test_drift_is_the_share_of_unknown_words(run: Run, mine: Path, teacher: Words) -> None:
    assert f"pipeline.adapt --collection {mine}" in run(mine, "--check", code=1).err
    run(mine, code=0)
    encoded = teacher.encoded
    same = run(mine, "--check", code=0).out
    assert "0.0% of the words of the 61 posts" in same and "3 words, by words on 61 posts" in same
    write_posts(mine.parent / "posts.jsonl", ["storm ferry", "new words"])
    assert "50.0% of the words of the 2 posts" in run(mine, "--check").out
    assert teacher.encoded == encoded


def test_of_many_posts_a_sample_is_read(run: Run, mine: Path, teacher: Words) -> None:
    assert "a sample of 20 of 61 posts" in run(mine, "--posts", "20", code=0).err
    assert teacher.encoded <= 20
    path, other = find(str(mine)).adapted_path, mine.with_name("other.toml")
    assert description_of(path)["posts"] == "20"
    shutil.copy(mine, other)
    shutil.copy(path, find(str(other)).adapted_path)
    with pytest.raises(RerankerError, match="made from 20 posts of own/mine "):
        assert find(str(other)).adapted_space


@pytest.mark.parametrize("texts", [["storm"], ["storm", " "], ["...", "!", "?"]])
def test_too_few_posts(run: Run, mine: Path, teacher: Words, texts: list[str]) -> None:
    write_posts(mine.parent / "posts.jsonl", texts)
    errors = run(mine, code=1).err
    assert "found" in errors and "posts" in errors and "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("wikiqa", "wikiqa is not searched"),
        ("no-such", "no-such"),
        ("sample --teacher minlm", "found 'minlm', expected minilm, multilingual or a fo"),
        ("sample --posts 0", "--posts"),
        ("sample --index mine", "give one of --collection NAME and --index DIR"),
    ],
)
def test_mistakes_are_named(run: Run, arguments: str, message: str) -> None:
    assert message in run(*arguments.split(), code=2).err
