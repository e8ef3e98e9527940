"""Word vectors fitted to a teacher's encodings, against least squares by numpy."""

import numpy as np
import numpy.typing as npt
import pytest

from pipeline.adaptation.fit import RIDGE, ROUNDS, fit
from pipeline.errors import DataError
from rerankers.text.spaces import general
from rerankers.text.words import words

Array = npt.NDArray[np.float64]
WORDS = [f"{a}{b}" for a in ("storm", "ferry", "bakery", "museum") for b in ("", "s", "er", "ing")]
SIZE = 6


def posts(count: int) -> list[str]:
    """Random words, from one to eight in each post; some twice in a post."""
    random = np.random.default_rng(1)
    lengths = [int(random.integers(1, 9)) for _ in range(count)]
    return [" ".join(random.choice(WORDS, size=n)) for n in lengths]


def encodings(count: int) -> Array:
    found = np.random.default_rng(2).normal(size=(count, SIZE)) + 0.5
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def counts(texts: list[str]) -> Array:
    rows = [[words(text).count(word) for word in WORDS] for text in texts]
    return np.array(rows) / np.sqrt([[len(words(text))] for text in texts])


def ridge_regression(matrix: Array, targets: Array, ridge: float) -> Array:
    size = matrix.shape[1]
    padded = np.concatenate([matrix, np.sqrt(ridge) * np.eye(size)])
    return np.linalg.lstsq(padded, np.concatenate([targets, np.zeros((size, SIZE))]))[0]


@pytest.mark.parametrize("ridge", [RIDGE, 1.0])
def test_vectors_are_those_of_least_squares(ridge: float) -> None:
    texts, targets = posts(60), encodings(60)
    centred = targets - targets.mean(axis=0)
    matrix, base = counts(texts), general().vectors(WORDS).astype(np.float64)
    linear = ridge_regression(matrix @ base, centred, ridge)
    added = ridge_regression(matrix, centred - matrix @ base @ linear, ridge)
    rounds: list[int] = []
    space = fit(texts, targets, rounds.append, ridge)
    assert sum(rounds) == ROUNDS and sorted(space.words) == sorted(WORDS)
    np.testing.assert_allclose(space.linear, linear, atol=2e-4)  # in fp32
    # What posts add is kept in eight bits.
    step = np.abs(added).max() / 127
    np.testing.assert_allclose(space.vectors(WORDS), base @ linear + added, atol=step)
    assert np.abs(added).max() > 20 * step


def test_posts_without_words_or_encodings_are_left_out() -> None:
    texts, targets = posts(50), encodings(50)
    one = fit(texts, targets)
    without = np.concatenate([targets, encodings(2), np.zeros((1, SIZE))])
    other = fit([*texts, "", "...", "unheard zebra"], without)
    np.testing.assert_array_equal(other.vectors(WORDS), one.vectors(WORDS))
    assert not other.knows("zebra")
    with pytest.raises(DataError, match="found no posts with words"):
        fit(["", "..."], encodings(2))
