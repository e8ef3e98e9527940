"""Pseudo-relevance feedback: likeness of a post and the best candidates of the first stage.

Posts are TF-IDF vectors of stems. A stem t that occurs f times in a post has the weight
(1 + ln f) · idf(t) (Manning, Raghavan & Schütze 2008, section 6.4.1), with the IDF of the most
common of its words in the list; vectors have length 1. A second set of vectors leaves out the
query's stems, without normalising again: most candidates of a lexical first stage contain these
stems, and the others tell how the candidates agree beyond the query.

Relevance is the centroid of the best candidates (Rocchio 1971), weighted by first-stage score as
in the relevance model of Lavrenko & Croft (2001). The centroid for a candidate is that of the
others; otherwise the best would be like it because they are in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rerankers.base import FIRST_STAGE
from rerankers.features._candidates import CandidateList, Tokens
from rerankers.features._tables import Bools, Floats
from rerankers.text.ragged import Rows

if TYPE_CHECKING:
    from scipy import sparse

DEPTHS = (5, 10, 20, 50, 100)

NAMES = (
    *(f"every_{depth}" for depth in DEPTHS),
    *(f"rest_{depth}" for depth in DEPTHS),
)
"""
``every_k``: cosine of the post's vector z_i and the centroid of the others among the best k, the
sum over j ≠ i of w_j · z_j with w = min–max first-stage score + 0.001; in [0, 1]. All candidates
with the k-th highest score are among the best k.
``rest_k``: product of the same two without the query's stems, with the centroid's length 1 and
the post's as left; in [0, 1].
Both are 0 if there are no others, or none with words.
"""

SIGNALS = (FIRST_STAGE,)

_MINIMUM_WEIGHT = 1e-3
"""Weight of the worst candidate: with equal scores, or none, all have the same weight."""


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 10]."""
    if not len(candidates):
        return np.zeros((0, len(NAMES)), dtype=np.float32)
    weights, tokens = weights_of(candidates.evidence), candidates.tokens
    stem = _numbered(tokens.words.stem)
    every = _vectors(tokens, stem)
    is_asked = np.isin(every.stem, stem[np.isin(tokens.words.stem, tokens.query.stem)])
    rest, of_query = every.take(~is_asked), every.take(is_asked)
    with_rest = rest.with_sums(weights)
    with_every = with_rest + of_query.with_sums(weights)
    columns = []
    for vectors, with_all in ((every, with_every), (rest, with_rest)):
        with_others = with_all - weights * vectors.squares[:, None]
        with_others = np.where(with_others > 1e-12, with_others, 0.0)  # Against rounding
        columns.append(likeness(with_others, vectors.squares, weights))
    return np.concatenate(columns, axis=1).astype(np.float32)


def weights_of(scores: Floats, depths: Sequence[int] = DEPTHS) -> Floats:
    """[N, K] weight of each candidate in the centroid of each depth, 0 if it is not in it."""
    lowest = [np.sort(scores)[-min(depth, len(scores))] for depth in depths]
    return np.where(scores[:, None] >= lowest, scores[:, None] + _MINIMUM_WEIGHT, 0.0)


def likeness(with_others: Floats, squares: Floats, weights: Floats) -> Floats:
    """[N, K] product of each vector and the centroid of the others, normalised to length 1.

    With c = Σ w_j z_j, the centroid without z_i has the square |c|² − 2 w_i z_i·(c − w_i z_i) −
    w_i² |z_i|².

    Args:
        with_others: [N, K] z_i · (c − w_i z_i).
        squares: [N] |z_i|².
        weights: [N, K] w.
    """
    crossed, own = weights * with_others, weights**2 * squares[:, None]
    length = (crossed.sum(axis=0) - 2.0 * crossed) + (own.sum(axis=0) - own)
    is_long = length > 1e-9  # Rounding can give 0 or a little less.
    return np.where(is_long, with_others / np.sqrt(np.where(is_long, length, 1.0)), 0.0)


@dataclass(frozen=True)
class _Vectors:
    """Sparse vectors of N posts by their E entries, post by post."""

    posts: int  # N
    post: Rows  # [E] row of each entry
    stem: Rows  # [E] its column
    value: npt.NDArray[np.float32]  # [E]

    def take(self, chosen: Bools) -> _Vectors:
        """The vectors with the entries ``chosen`` [E] only."""
        return _Vectors(self.posts, self.post[chosen], self.stem[chosen], self.value[chosen])

    @cached_property
    def squares(self) -> Floats:
        """[N] product of each vector with itself."""
        return _sums(self.post, self.value.astype(np.float64) ** 2, self.posts)

    def with_sums(self, weights: Floats) -> Floats:
        """[N, K] z_i · Σ_j w_jk z_j, for vectors z and weights [N, K]."""
        matrix, weighted = self._matrix(), np.flatnonzero(weights.any(axis=1))
        return matrix @ (matrix[weighted].T @ weights[weighted])

    def _matrix(self) -> sparse.csr_array:
        from scipy import sparse

        ends = np.cumsum(np.bincount(self.post, minlength=self.posts))
        columns = int(self.stem.max(initial=-1)) + 1
        entries = (self.value, self.stem, np.append(0, ends))
        return sparse.csr_array(entries, shape=(self.posts, columns))


def _vectors(tokens: Tokens, stem: Rows) -> _Vectors:
    """TF-IDF vectors of length 1, with the numbers [T] of the words' stems as columns."""
    from scipy import sparse

    size, posts = int(stem.max(initial=-1)) + 1, len(tokens.posts)
    lowest = np.full(size, np.inf, dtype=np.float32)
    np.minimum.at(lowest, stem, tokens.words.idf)
    # Entries in the order of posts and columns; equal ones are added up.
    places = (tokens.posts.owners, stem)
    counts = sparse.coo_array((np.ones(len(stem)), places), shape=(posts, size)).tocsr()
    post = np.repeat(np.arange(posts), np.diff(counts.indptr))
    column, frequencies = counts.indices, counts.data
    value = (1.0 + np.log(frequencies)) * lowest[column]
    length = np.sqrt(_sums(post, value * value, posts))
    value = (value / np.maximum(length[post], 1e-9)).astype(np.float32)
    return _Vectors(posts, post, column, value)


def _numbered(stem: npt.NDArray[np.integer]) -> Rows:
    """[T] the stems of T words, numbered from 0 in order of appearance.

    With these numbers, rounding does not depend on the rows of stems in the table of words.
    """
    places = np.arange(len(stem))
    first = np.empty(int(stem.max(initial=-1)) + 1, dtype=np.int64)
    first[stem[::-1]] = places[::-1]  # Of equal indices the last assignment holds: the first place.
    place = first[stem]
    return (np.cumsum(place == places) - 1)[place]


def _sums(post: Rows, values: npt.NDArray[np.floating], posts: int) -> Floats:
    """[N] sum of each post's values [E]."""
    return np.bincount(post, weights=values, minlength=posts).astype(np.float64)
