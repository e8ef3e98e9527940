"""Vectors of words, of length 1 each, for comparisons by cosine."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class UnitVectors:
    """Word -> vector of length 1.

    Args:
        words: the V words that have one.
        vectors: [V, E] of any length; they are copied.

    Attributes:
        matrix: [1 + V, E]; row 0, of zeros, is that of all words that have no vector.
    """

    def __init__(self, words: Sequence[str], vectors: npt.NDArray[np.float32]) -> None:
        self._rows = {word: row for row, word in enumerate(words, start=1)}
        self.matrix = np.zeros((1 + vectors.shape[0], vectors.shape[1]), dtype=np.float32)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        np.divide(vectors, lengths, out=self.matrix[1:], where=lengths > 0)

    def rows(self, words: Sequence[str]) -> npt.NDArray[np.int64]:
        """[L] row of ``matrix`` of each word."""
        return np.array([self._rows.get(word, 0) for word in words], dtype=np.int64)
