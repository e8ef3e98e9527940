"""One topic's candidates as TF-IDF vectors of stems.

A word t that stands f times in a post has the weight (1 + ln f) · idf(t) (Manning, Raghavan &
Schütze 2008, section 6.4.1); a vector has the length 1. A stem's IDF is that of the commonest of
its words in the list. Vectors without the query's stems are not made longer again: what is left
out was in every candidate that a first stage by words found, and the rest says how the candidates
agree beyond it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from rerankers.word_table import Tokens

if TYPE_CHECKING:
    from scipy import sparse

_FREQUENT = 24
"""A stem of so many posts is compared by a dense product: a sparse one's work grows with the
product of the numbers of posts."""

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Vectors:
    """Vectors of N posts by their E entries, post by post.

    Attributes:
        posts: N.
        post, stem, value: [E] an entry's post, column and value.
    """

    posts: int
    post: npt.NDArray[np.int64]
    stem: npt.NDArray[np.int64]
    value: Matrix

    def part(self, chosen: npt.NDArray[np.bool_]) -> "Vectors":
        """The entries ``chosen`` [E] alone."""
        return Vectors(self.posts, self.post[chosen], self.stem[chosen], self.value[chosen])

    @cached_property
    def squares(self) -> npt.NDArray[np.float64]:
        """[N] product of a vector with itself."""
        return _sums(self.post, self.value.astype(np.float64) ** 2, self.posts)

    def with_centroids(self, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """[N, K] z_i · Σ_{j≠i} w_jk z_j, for vectors z and weights [N, K], none below 0."""
        matrix = self._matrix()
        found: npt.NDArray[np.float64] = matrix @ (matrix.T @ weights)
        found -= weights * self.squares[:, None]
        # What rounding leaves is no likeness.
        return np.where(found > 1e-12, found, 0.0)

    def products(self, others: npt.NDArray[np.int64]) -> Matrix:
        """[N, M] products with the vectors of the posts ``others`` [M]."""
        frequency = np.bincount(self.stem)
        is_frequent = frequency >= _FREQUENT
        dense, column = is_frequent[self.stem], np.cumsum(is_frequent) - 1
        matrix = np.zeros((self.posts, int(is_frequent.sum())), dtype=np.float32)
        matrix[self.post[dense], column[self.stem[dense]]] = self.value[dense]
        # Not by NumPy, whose threads PyTorch's number does not bound.
        dense_part = torch.from_numpy(matrix) @ torch.from_numpy(matrix[others]).T
        products: Matrix = dense_part.numpy()
        # A stem of one post is in no product of two.
        rare = ~dense & (frequency[self.stem] > 1)
        if rare.any():
            vectors = self.part(rare)._matrix()
            found = (vectors @ vectors[others].T).tocoo()
            products.reshape(-1)[found.row * np.int64(len(others)) + found.col] += found.data
        return products

    def _matrix(self) -> "sparse.csr_array":
        from scipy import sparse

        ends = np.cumsum(np.bincount(self.post, minlength=self.posts))
        columns = int(self.stem.max(initial=-1)) + 1
        entries = (self.value, self.stem, np.append(0, ends))
        return sparse.csr_array(entries, shape=(self.posts, columns))


@dataclass(frozen=True)
class TermVectors:
    """N candidates as vectors.

    Attributes:
        every: of all stems; of length 1, or 0 for a post without words.
        rest: the same without the entries of the query's stems.
        asked: these entries alone.
    """

    every: Vectors
    rest: Vectors
    asked: Vectors

    @classmethod
    def of(cls, tokens: Tokens) -> "TermVectors":
        """The vectors of posts."""
        numbers = _numbered(tokens.stem)
        every = _vectors(tokens, numbers)
        asked = np.isin(every.stem, numbers[np.isin(tokens.stem, tokens.query_stem)])
        return cls(every, every.part(~asked), every.part(asked))

    def products(self, others: npt.NDArray[np.int64]) -> tuple[Matrix, Matrix]:
        """Each vector with those of the candidates ``others`` [M]: of ``every`` and of ``rest``.

        Two of [N, M], in [0, 1], with 0 for a candidate and itself: none is its own neighbour.
        """
        rest = self.rest.products(others)
        every = self.asked.products(others)
        every += rest
        for products in (every, rest):
            products[others, np.arange(len(others))] = 0.0
        return every, rest


def _sums(
    post: npt.NDArray[np.int64], values: npt.NDArray[np.floating], posts: int
) -> npt.NDArray[np.float64]:
    """[N] sum of each post's values [E]."""
    return np.bincount(post, weights=values, minlength=posts).astype(np.float64)


def _numbered(stem: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """[T] the stems of T words, numbered from 0 as they come.

    Sums then round alike, whatever rows words and stems have in the table of words.
    """
    places = np.arange(len(stem))
    first = np.empty(int(stem.max(initial=-1)) + 1, dtype=np.int64)
    first[stem[::-1]] = places[::-1]  # The last of equal indices holds, which is the first place.
    found = first[stem]
    numbers: npt.NDArray[np.int64] = (np.cumsum(found == places) - 1)[found]
    return numbers


def _vectors(tokens: Tokens, stem: npt.NDArray[np.int64]) -> Vectors:
    """Each stem of each post once, by the numbers [T] of the words' stems."""
    size, posts = int(stem.max(initial=-1)) + 1, len(tokens.counts)
    lowest = np.full(size, np.inf, dtype=np.float32)
    np.minimum.at(lowest, stem, tokens.idf)
    keys, frequencies = np.unique(tokens.post * size + stem, return_counts=True)
    post, column = np.divmod(keys, max(size, 1))
    value = (1.0 + np.log(frequencies)) * lowest[column]
    length = np.sqrt(_sums(post, value * value, posts))
    value = (value / np.maximum(length[post], 1e-9)).astype(np.float32)
    return Vectors(posts, post, column, value)
