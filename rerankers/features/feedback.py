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
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rerankers.base import FIRST_STAGE
from rerankers.features._candidates import CandidateList, Tokens
from rerankers.features._tables import Floats
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
    is_asked = np.zeros(every.shape[1], dtype=np.bool_)
    is_asked[stem[np.isin(tokens.words.stem, tokens.query.stem)]] = True
    rest = every[:, ~is_asked]
    with_rest = _with_sums(rest, weights)
    with_every = with_rest + _with_sums(every[:, is_asked], weights)
    columns = []
    for vectors, with_all in ((every, with_every), (rest, with_rest)):
        squares = _sums(_rows(vectors), vectors.data.astype(np.float64) ** 2, len(candidates))
        with_others = with_all - weights * squares[:, None]
        with_others = np.where(with_others > 1e-12, with_others, 0.0)  # Against rounding
        columns.append(likeness(with_others, squares, weights))
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


def _with_sums(vectors: sparse.csr_array, weights: Floats) -> Floats:
    """[N, K] z_i · Σ_j w_jk z_j, for vectors z [N, S] and weights [N, K]."""
    weighted = np.flatnonzero(weights.any(axis=1))
    products: Floats = vectors @ (vectors[weighted].T @ weights[weighted])
    return products


def _rows(vectors: sparse.csr_array) -> Rows:
    """[E] row of each entry."""
    return np.repeat(np.arange(vectors.shape[0]), np.diff(vectors.indptr))


def _vectors(tokens: Tokens, stem: Rows) -> sparse.csr_array:
    """TF-IDF vectors of length 1 [N, S], for the numbers [T] of the words' stems as columns."""
    from scipy import sparse

    shape = (len(tokens.posts), int(stem.max(initial=-1)) + 1)
    lowest = np.full(shape[1], np.inf, dtype=np.float32)
    np.minimum.at(lowest, stem, tokens.words.idf)
    # Entries in the order of posts and columns; equal ones are added up.
    places = (tokens.posts.owners, stem)
    vectors = sparse.coo_array((np.ones(len(stem)), places), shape=shape).tocsr()
    post, value = _rows(vectors), (1.0 + np.log(vectors.data)) * lowest[vectors.indices]
    length = np.sqrt(_sums(post, value * value, shape[0]))
    vectors.data = (value / np.maximum(length[post], 1e-9)).astype(np.float32)
    return vectors


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
