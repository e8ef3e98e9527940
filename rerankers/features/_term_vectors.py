"""One topic's candidates as TF-IDF vectors of stems.

A word t that stands f times in a post has the weight (1 + ln f) · idf(t) (Manning, Raghavan &
Schütze 2008, section 6.4.1); a vector has the length 1. A stem's IDF is that of the commonest of
its words in the list. Vectors without the query's stems are not made longer again: what is left
out was in every candidate that a first stage by words found, and the rest says how the candidates
agree beyond it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerankers.features._word_table import Tokens

if TYPE_CHECKING:
    from scipy import sparse

_FREQUENT = 64
"""A stem of so many posts is compared by a dense product: a sparse one's work grows with the square
of their number."""

_BLOCK = 512
"""Posts that are compared with others at a time: their products stay in the cache."""

Matrix = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


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

    def with_sums(self, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """[N, K] z_i · Σ_j w_jk z_j, for vectors z and weights [N, K]."""
        matrix, weighted = self._matrix(), np.flatnonzero(weights.any(axis=1))
        found: npt.NDArray[np.float64] = matrix @ (matrix[weighted].T @ weights[weighted])
        return found

    def compared(self, others: Rows, frequent: int) -> Callable[[slice, Tensor | None], Tensor]:
        """A function that gives the products of some posts and others [B, M], added to numbers.

        Args:
            others: [M] posts.
            frequent: posts that a stem must be in to be compared by a dense product.
        """
        frequency = np.bincount(self.stem)
        is_frequent = frequency >= frequent
        dense, column = is_frequent[self.stem], np.cumsum(is_frequent) - 1
        matrix = np.zeros((self.posts, int(is_frequent.sum())), dtype=np.float32)
        matrix[self.post[dense], column[self.stem[dense]]] = self.value[dense]
        # Not by NumPy, whose threads PyTorch's number does not bound.
        left, right = torch.from_numpy(matrix), torch.from_numpy(matrix[others].T.copy())
        # A stem of one post is in no product of two.
        is_rare = ~dense & (frequency[self.stem] > 1)
        rare = self.part(is_rare)._matrix() if is_rare.any() else None
        more = None if rare is None else rare @ rare[others].T

        def add(rows: slice, numbers: Tensor | None) -> Tensor:
            own = left[rows]
            found = own @ right if numbers is None else torch.addmm(numbers, own, right)
            if more is not None:
                ends = more.indptr[rows.start : rows.stop + 1].astype(np.int64)
                row = np.repeat(np.arange(len(found)), np.diff(ends))
                these = slice(ends[0], ends[-1])
                places = row * len(others) + more.indices[these]
                found.numpy().reshape(-1)[places] += more.data[these]
            return found

        return add

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

    def with_centroids(self, weights: npt.NDArray[np.float64]) -> Iterator[npt.NDArray[np.float64]]:
        """Two of [N, K], by the vectors ``every`` and ``rest``: z_i · Σ_{j≠i} w_jk z_j.

        Args:
            weights: [N, K] w, none below 0.
        """
        of_rest = self.rest.with_sums(weights)
        of_every = of_rest + self.asked.with_sums(weights)
        for vectors, found in ((self.every, of_every), (self.rest, of_rest)):
            others = found - weights * vectors.squares[:, None]
            # What rounding leaves is no likeness.
            yield np.where(others > 1e-12, others, 0.0)

    def products(self, others: Rows) -> Iterator[tuple[slice, Matrix, Matrix]]:
        """Products of each candidate with others, block by block: of which, and two of [B, M].

        By the vectors ``every`` and ``rest``; in [0, 1], with 0 for a candidate and itself: none is
        its own neighbour.

        Args:
            others: [M] candidates, in ascending order.
        """
        add_asked = self.asked.compared(others, 1)
        add_rest = self.rest.compared(others, _FREQUENT)
        for start in range(0, self.every.posts, _BLOCK):
            rows = slice(start, min(start + _BLOCK, self.every.posts))
            rest = add_rest(rows, None)
            every = add_asked(rows, rest)
            own = np.arange(*np.searchsorted(others, (rows.start, rows.stop)))
            for products in (every, rest):
                products.numpy()[others[own] - start, own] = 0.0
            yield rows, every.numpy(), rest.numpy()


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
