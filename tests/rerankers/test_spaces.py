"""Spaces of word vectors: general ones against their own package, adapted ones in their file."""

import importlib.util
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from helpers.reranking_samples import encoder
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from rerankers.errors import RerankerError
from rerankers.features.tables import WordTable
from rerankers.text import spaces
from rerankers.text.spaces import AdaptedSpace, WordSpace, description_of, general

IDF = encoder().idf
WORDS = ["storm", "water", "bbc", "don't", "zxqv", "日本", "naïve", "42"]


def adapted(words: Sequence[str] = ("storm", "日本", "zxqv"), size: int = 5) -> AdaptedSpace:
    random = np.random.default_rng(1)
    codes = random.integers(-127, 128, size=(len(words), size)).astype(np.int8)
    scales = random.random(len(words)).astype(np.float32)
    return AdaptedSpace(words, codes, scales, random.normal(size=(256, size)).astype(np.float32))


def written(path: Path, space: AdaptedSpace) -> Path:
    path.write_bytes(space.content({"teacher": "tiny"}))
    return path


def test_a_general_vector_is_the_sum_of_the_pieces() -> None:
    """By the package wordllama, which gives their mean."""
    wordllama = pytest.importorskip("wordllama")
    folder = Path(str(wordllama.__file__)).parent
    theirs = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
    odd = ["", " ", "😀", "two words", "x" * 3000, "no\0thing", "a\nb"]
    means = theirs.embed([*WORDS, *odd])
    counts = [len(theirs.tokenizer.encode(w, add_special_tokens=False)) for w in [*WORDS, *odd]]
    assert counts[-len(odd)] == 0 and max(counts[: len(WORDS)]) > 1
    expected = means * np.array(counts)[:, None]
    found = general().vectors([*WORDS, *odd])
    assert found.dtype == np.float32 and found.shape == (len(WORDS + odd), general().size)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)


@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=30), max_size=5))
def test_every_string_has_a_general_vector(texts: list[str]) -> None:
    """Also those with lone surrogates, and whatever other words are asked for."""
    found = general().vectors(texts)
    assert found.shape == (len(texts), general().size) and np.isfinite(found).all()
    for text, vector in zip(texts, found, strict=True):
        np.testing.assert_array_equal(general().vectors([text])[0], vector)


def test_a_table_has_the_vectors_of_its_words_in_every_space() -> None:
    """In many threads, whichever words were looked up before, each computed once."""
    asked: list[str] = []

    def lengths(words: Sequence[str]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        asked.extend(words)
        return np.array([[len(w)] for w in words], np.float32), np.ones(len(words), np.float32)

    table, random = WordTable(IDF), np.random.default_rng(3)
    spaces = [WordSpace(1, lengths), WordSpace(1, lambda words: lengths([w * 2 for w in words]))]
    words = [f"{number}x" * number for number in range(1, 200)]

    def check(number: int) -> None:
        some = random.permutation(words)[: number % 100].tolist()
        vectors, norms, _ = table.vectors(table.rows(some), spaces[number % 2])
        assert vectors[:, 0].tolist() == norms.tolist()
        assert norms.tolist() == [len(word) * (1 + number % 2) for word in some]

    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(check, range(200)))
    assert len(asked) == len({*asked})


def test_an_adapted_vector_is_the_mapped_general_one_and_what_posts_add() -> None:
    space = adapted()
    found, base = space.vectors(["zxqv", "water", "storm"]), general()
    for vector, word in zip(found, ["zxqv", "water", "storm"], strict=True):
        expected = base.vectors([word])[0] @ space.linear
        if word in space.words:
            row = space.words.index(word)
            expected = expected + space.codes[row] * space.scales[row]
        np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=1e-4)
        assert space.knows(word) == (word in space.words)
    assert not np.allclose(found[0], base.vectors(["zxqv"]) @ space.linear)


@pytest.mark.parametrize("words", [("storm", "日本", "zxqv"), ()])
def test_an_adapted_space_is_the_same_after_loading(words: tuple[str, ...], tmp_path: Path) -> None:
    space = adapted(words)
    path = written(tmp_path / "mine.safetensors", space)
    again = AdaptedSpace.load(path)
    asked = [*WORDS, "", "😀", "\ud800"]
    np.testing.assert_array_equal(again.vectors(asked), space.vectors(asked))
    assert again.words == list(words) and description_of(path)["teacher"] == "tiny"


@pytest.mark.filterwarnings("ignore:.*made by an earlier version")
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path, right = written(tmp_path / "mine.safetensors", adapted()), {"format": spaces.FORMAT}
    content, arrays = path.read_bytes(), load_file(path)
    save_file(arrays, path, right)
    with pytest.warns(RuntimeWarning, match=r"mine\.safetensors: made by an earlier version"):
        AdaptedSpace.load(path)
    for damage in (
        lambda: path.write_bytes(content[:-3]),
        lambda: path.write_bytes(content[:-1] + bytes([content[-1] ^ 1])),
        lambda: path.write_bytes(b"no table"),
        lambda: save_file({"words": arrays["words"]}, path, right),
        lambda: save_file(arrays | {"scales": np.ones(2)}, path, right),
        lambda: save_file(arrays | {"linear": np.ones((2, 5))}, path, right),
        lambda: save_file(arrays, path, {"format": "0"}),
        path.unlink,
    ):
        damage()
        with pytest.raises(RerankerError, match=r"mine\.safetensors: found(?s:.*)pipeline\.adapt"):
            AdaptedSpace.load(path)


def test_a_missing_or_damaged_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "__init__.py").write_text("")
    empty = importlib.util.spec_from_file_location(
        "wordllama", tmp_path / "__init__.py", submodule_search_locations=[str(tmp_path)]
    )
    for spec, problem in ((None, "package wordllama"), (empty, "word vectors that can be read")):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _, spec=spec: spec)
        with pytest.raises(RerankerError, match=f"found no {problem}"):
            general.__wrapped__()  # without the cache
