"""Pseudo-relevance feedback: features of how similar a post is to the best candidates.

A post is represented by a TF-IDF vector over stems. A stem t that occurs f times in the
post has the weight (1 + ln f) · idf(t) (Manning, Raghavan & Schütze 2008, section
6.4.1). The IDF is that of the most common word with this stem in the list. Vectors are
scaled to length 1. In a second set of vectors, the query's stems are left out, and the
rest is not scaled again. Most candidates of a lexical first stage contain the query's
stems, so the other stems show how far the candidates agree beyond the query.

The centroid of the first stage's best candidates represents relevance (Rocchio 1971).
Candidates are weighted by their first-stage scores, as in the relevance model of
Lavrenko & Croft (2001). A candidate is compared with a centroid that leaves it out,
because otherwise the best candidates would be similar to themselves.
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
"""Weight of the worst candidate. It is above 0, so that candidates with equal scores
have equal weights other than 0."""


@family(
    "every_5 every_10 every_20 every_50 every_100"
    " rest_5 rest_10 rest_20 rest_50 rest_100",
    FIRST_STAGE,
)
def feedback(candidates: CandidateList) -> Columns:
    """Return the similarity of each post and the best k candidates, for several k.

    ``every_k``: cosine of the post's vector z_i and the centroid of the other
    candidates among the best k, in [0, 1]. The centroid is the sum of w_j · z_j over
    all j ≠ i, where w is the min–max first-stage score + 0.001. If several candidates
    have the k-th highest score, all of them are among the best k.
    ``rest_k``: dot product of the post's vector and the centroid, both without the
    query's stems, in [0, 1]. The centroid is scaled to length 1, the post's vector is
    not.
    Both are 0 if there are no other candidates, or none with words. Both are NaN in a
    list that is too short to compare its candidates.
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
    """Return the weight of each candidate in the centroid of each depth [N, K].

    A candidate that is not among the best ``depth`` has the weight 0. There must be at
    least one candidate.
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
    """Return the dot product of each vector z_i and the centroid of the others [N, K].

    The centroid of all is c = Σ w_j z_j. Without z_i it is c − w_i z_i, and its squared
    length is |c|² − 2 w_i z_i·(c − w_i z_i) − w_i² |z_i|². It is scaled to length 1. If
    its length is 0, the product is 0.

    Args:
        with_others: z_i · (c − w_i z_i) for each vector and centroid [N, K].
        squares: |z_i|² of each vector [N].
        weights: w of each vector in each centroid [N, K].
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
    """Sparse vectors of N posts, as E entries in the order of posts and stems."""

    post: Rows  # [E]
    stem: Rows  # [E]
    value: Floats  # [E]

    def take(self, entries: Bools) -> "_Vectors":
        """Return the vectors with only the entries whose flag [E] is true."""
        return _Vectors(
            self.post[entries],
            self.stem[entries],
            self.value[entries],
        )

    def with_sums(self, weights: Floats) -> Floats:
        """Return the products z_i · Σ_j w_jk z_j of the vectors z [N, K].

        ``weights`` [N, K] are the weights w.
        """
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
    """Return the :func:`likeness` of sparse vectors [N, K].

    ``products`` [N, K] are those of each vector with the centroid of all vectors.
    """
    squares = sums(vectors.post, vectors.value**2, len(weights))
    with_others = products - weights * squares[:, None]
    # Smaller values are rounding errors.
    with_others = np.where(with_others > 1e-12, with_others, 0.0)
    return likeness(with_others, squares, weights)


def _vectors(tokens: Tokens) -> tuple[_Vectors, Bools]:
    """Return (TF-IDF vectors of length 1, whether each entry is a query's stem [E])."""
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
