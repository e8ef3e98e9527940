"""One topic's candidates as TF-IDF vectors of stems, and each compared with each.

A word t that stands f times in a post has the weight (1 + ln f) · idf(t) (Manning, Raghavan &
Schütze 2008, section 6.4.1); a vector has the length 1. A stem's IDF is that of the commonest of
its words in the list. Vectors without the query's stems are not made longer again: what is left
out was in every candidate that a first stage by words found, and the rest says how the candidates
agree beyond it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rerankers.word_table import Tokens

_FREQUENT = 24
"""A stem of so many posts is compared by a dense product: a sparse one's work grows with the
square of the number of posts."""

_WIDE = 32
"""Columns of a matrix whose product with itself is quicker by halves."""

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TermVectors:
    """N candidates compared by their vectors.

    Attributes:
        every: [N, N] cosine of two candidates, in [0, 1]; 0 on the diagonal, so that no candidate
            counts as a neighbour of itself.
        rest: [N, N] the same product without the query's stems, at most ``every``.
        every_square, rest_square: [N] product of a candidate with itself: 1 and at most 1, or 0
            for a post without words.
    """

    every: Matrix
    rest: Matrix
    every_square: npt.NDArray[np.float64]
    rest_square: npt.NDArray[np.float64]

    @classmethod
    def of(cls, tokens: Tokens) -> "TermVectors":
        """The vectors of posts, compared."""
        posts, (post, column, value) = len(tokens.counts), _weights(tokens)
        asked = np.isin(column, tokens.query_stem)
        rest = _products(post[~asked], column[~asked], value[~asked], posts)
        every = _products(post[asked], column[asked], value[asked], posts)
        every += rest
        np.fill_diagonal(rest, 0.0)
        np.fill_diagonal(every, 0.0)
        squares = value.astype(np.float64) ** 2
        return cls(
            every,
            rest,
            _sums(post, squares, posts),
            _sums(post[~asked], squares[~asked], posts),
        )


def _sums(
    post: npt.NDArray[np.int64], values: npt.NDArray[np.float64], posts: int
) -> npt.NDArray[np.float64]:
    """[N] sum of each post's ``values`` [E]."""
    return np.bincount(post, weights=values, minlength=posts).astype(np.float64)


def _weights(
    tokens: Tokens,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Matrix]:
    """Each stem of each post once: post, stem and weight, three arrays [E], post by post."""
    size = int(tokens.stem.max(initial=-1)) + 1
    lowest = np.full(size, np.inf, dtype=np.float32)
    np.minimum.at(lowest, tokens.stem, tokens.idf)
    keys, frequencies = np.unique(tokens.post * size + tokens.stem, return_counts=True)
    post, stem = np.divmod(keys, max(size, 1))
    value = (1.0 + np.log(frequencies)) * lowest[stem]
    length = np.sqrt(_sums(post, value * value, len(tokens.counts)))
    return post, stem, (value / np.maximum(length[post], 1e-9)).astype(np.float32)


def _products(
    post: npt.NDArray[np.int64], stem: npt.NDArray[np.int64], value: Matrix, posts: int
) -> Matrix:
    """[N, N] products of vectors that are given by their entries [E]."""
    from scipy import sparse

    frequency = np.bincount(stem)
    frequent = frequency >= _FREQUENT
    dense, place = frequent[stem], np.cumsum(frequent) - 1
    matrix = np.zeros((posts, int(frequent.sum())), dtype=np.float32)
    matrix[post[dense], place[stem[dense]]] = value[dense]
    # For a matrix and its own transpose NumPy computes a half and copies the rest, which pays if
    # the matrix is wide only.
    other = matrix.T if matrix.shape[1] >= _WIDE else matrix.T.copy()
    products: Matrix = matrix @ other
    # A stem of one post is in no product of two.
    rare = ~dense & (frequency[stem] > 1)
    if rare.any():
        entries = (value[rare], (post[rare], stem[rare]))
        vectors = sparse.csr_array(entries, shape=(posts, len(frequency)))
        found = (vectors @ vectors.T).tocoo()
        products.reshape(-1)[found.row * np.int64(posts) + found.col] += found.data
    return products
