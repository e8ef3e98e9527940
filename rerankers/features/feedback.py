"""Pseudo-relevance feedback: similarity of a post and the best candidates.

Posts are TF-IDF vectors of stems. A stem t that occurs f times in a post has the weight
(1 + ln f) · idf(t) (Manning, Raghavan & Schütze 2008, section 6.4.1), with the IDF of
its most common word in the list. Vectors have length 1. A second set of vectors leaves
out the query's stems and is not normalised again: most candidates of a lexical first
stage contain these stems, and the other stems show how the candidates agree beyond the
query.

Relevance is the centroid of the best candidates of the first stage (Rocchio 1971),
weighted by first-stage score as in the relevance model of Lavrenko & Croft (2001). The
centroid for a candidate leaves out the candidate: otherwise the best candidates would
be similar to a centroid that contains them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tweetrerank.rerankers.features.candidates import (
    CandidateList,
    Tokens,
    numbered,
    sums,
)
from tweetrerank.rerankers.features.family import Columns, family
from tweetrerank.rerankers.features.text_tables import Bools, Floats
from tweetrerank.rerankers.pairs import FIRST_STAGE
from tweetrerank.rerankers.text.ragged import Rows, among

DEPTHS = (5, 10, 20, 50, 100)

_MINIMUM_WEIGHT = 1e-3
"""Weight of the worst candidate. With equal or missing scores all weights are equal."""


@family(
    "every_5 every_10 every_20 every_50 every_100"
    " rest_5 rest_10 rest_20 rest_50 rest_100",
    FIRST_STAGE,
)
def feedback(candidates: CandidateList) -> Columns:
    """Similarity of a post and the best k candidates, for several depths k.

    ``every_k``: cosine of the post's vector z_i and the centroid of the other
    candidates among the best k, in [0, 1]. The centroid is the sum over j ≠ i of w_j ·
    z_j with w = min–max first-stage score + 0.001. All candidates with the k-th highest
    score are among the best k.
    ``rest_k``: product of the two without the query's stems, in [0, 1]. The centroid is
    scaled to length 1, the post's vector is not.
    Both are 0 if there are no other candidates, or none with words. They are NaN in a
    short list of given candidates.
    """
    if not len(candidates) or candidates.is_short:
        unknown = np.full(len(candidates), np.nan)
        return [unknown] * (2 * len(DEPTHS))
    weights = weights_of(candidates.evidence)
    every, is_query_stem = _vectors(candidates.tokens)
    rest = every.take(~is_query_stem)
    rest_products = rest.with_sums(weights)
    every_products = rest_products + every.take(is_query_stem).with_sums(weights)
    columns: list[Floats] = []
    columns.extend(_similarities(every, every_products, weights).T)
    columns.extend(_similarities(rest, rest_products, weights).T)
    return columns


def weights_of(scores: Floats, depths: Sequence[int] = DEPTHS) -> Floats:
    """Weights of the candidates in the centroid of each depth: [N, K].

    The weight of a candidate below the depth is 0.
    """
    places = [-min(depth, len(scores)) for depth in depths]
    lowest = np.sort(scores)[places]  # [K]
    column = scores[:, None]
    return np.where(column >= lowest, column + _MINIMUM_WEIGHT, 0.0)


def likeness(
    with_others: Floats,
    squares: Floats,
    weights: Floats,
) -> Floats:
    """Product of each vector z_i and the centroid of the others, scaled to length 1.

    The centroid is c = Σ w_j z_j. Without z_i its square is |c|² − 2 w_i z_i·(c − w_i
    z_i) − w_i² |z_i|².

    Args:
        with_others: z_i · (c − w_i z_i), [N, K].
        squares: |z_i|², [N].
        weights: w, [N, K].

    Returns:
        [N, K].
    """
    cross_terms = weights * with_others
    own_terms = weights**2 * squares[:, None]
    other_cross_terms = cross_terms.sum(axis=0) - 2.0 * cross_terms
    other_terms = own_terms.sum(axis=0) - own_terms
    square_lengths = other_cross_terms + other_terms
    is_long = square_lengths > 1e-9  # Rounding can give 0 or a little less
    lengths = np.sqrt(np.where(is_long, square_lengths, 1.0))
    return np.where(is_long, with_others / lengths, 0.0)


class _Vectors(NamedTuple):
    """Sparse vectors of N posts: E entries, in the order of posts and stems."""

    post: Rows  # [E]
    stem: Rows  # [E]
    value: Floats  # [E]

    def take(self, entries: Bools) -> "_Vectors":
        """Some of the entries [E]."""
        return _Vectors(
            self.post[entries],
            self.stem[entries],
            self.value[entries],
        )

    def with_sums(self, weights: Floats) -> Floats:
        """Products z_i · Σ_j w_jk z_j of the vectors z, for weights [N, K]: [N, K]."""
        products = []
        for weight in weights.T:
            centroid = np.bincount(
                self.stem,
                self.value * weight[self.post],
            )
            terms = self.value * centroid[self.stem]
            products.append(sums(self.post, terms, len(weight)))
        return np.stack(products, axis=1)


def _similarities(
    vectors: _Vectors,
    products: Floats,
    weights: Floats,
) -> Floats:
    """:func:`likeness` of vectors, with their products with the sums of all: [N, K]."""
    squares = sums(vectors.post, vectors.value**2, len(weights))
    with_others = products - weights * squares[:, None]
    # Smaller values are rounding errors.
    with_others = np.where(with_others > 1e-12, with_others, 0.0)
    return likeness(with_others, squares, weights)


def _vectors(tokens: Tokens) -> tuple[_Vectors, Bools]:
    """TF-IDF vectors of length 1, and whether each entry is of a query's stem [E]."""
    stems, numbers = numbered(tokens.words.stem)  # [S], [T]
    idf = np.full(
        len(stems),
        np.inf,
        dtype=np.float32,
    )
    np.minimum.at(idf, numbers, tokens.words.idf)
    entries = tokens.posts.owners * len(stems) + numbers
    entries, counts = np.unique(entries, return_counts=True)
    post, stem = np.divmod(
        entries,
        max(1, len(stems)),
    )
    value = (1.0 + np.log(counts)) * idf[stem]
    squares = sums(post, value * value, len(tokens.posts))
    lengths = np.sqrt(squares)[post]
    value = value / np.maximum(lengths, 1e-9)
    value = value.astype(np.float32).astype(np.float64)
    is_query_stem = among(stems, np.sort(tokens.query.stem))
    return _Vectors(post, stem, value), is_query_stem[stem]
