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

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tweetrerank.rerankers.features.candidates import (
    CandidateList,
    Columns,
    Tokens,
    family,
    numbered,
    sums,
)
from tweetrerank.rerankers.features.text_tables import Bools, Floats
from tweetrerank.rerankers.pairs import FIRST_STAGE
from tweetrerank.rerankers.text.ragged import Rows, among

DEPTHS = (5, 10, 20, 50, 100)

_MINIMUM_WEIGHT = 1e-3
"""Weight of the worst candidate: with equal scores, or none, all have the same weight."""


@family(
    " ".join(f"{name}_{depth}" for name in ("every", "rest") for depth in DEPTHS),
    FIRST_STAGE,
)
def feedback(candidates: CandidateList) -> Columns:
    """Likeness of a post and the best candidates, for the best k of several depths.

    ``every_k``: cosine of the post's vector z_i and the centroid of the others among the best k,
    the sum over j ≠ i of w_j · z_j with w = min–max first-stage score + 0.001; in [0, 1]. All
    candidates with the k-th highest score are among the best k.
    ``rest_k``: product of the same two without the query's stems, with the centroid's length 1 and
    the post's as left; in [0, 1].
    Both are 0 if there are no others, or none with words; NaN in a short list of given candidates.
    """
    if not len(candidates) or candidates.is_short:
        return [np.full(len(candidates), np.nan)] * (2 * len(DEPTHS))
    weights, (every, is_asked) = (
        weights_of(candidates.evidence),
        _vectors(candidates.tokens),
    )
    rest = every.take(~is_asked)
    with_rest = rest.with_sums(weights)
    with_every = with_rest + every.take(is_asked).with_sums(weights)
    columns: list[Floats] = []
    for vectors, with_all in ((every, with_every), (rest, with_rest)):
        squares = sums(vectors.post, vectors.value**2, len(candidates))
        with_others = with_all - weights * squares[:, None]
        with_others = np.where(
            with_others > 1e-12, with_others, 0.0
        )  # Against rounding
        columns += [*likeness(with_others, squares, weights).T]
    return columns


def weights_of(scores: Floats, depths: Sequence[int] = DEPTHS) -> Floats:
    """[N, K] weight of each candidate in the centroid of each depth, 0 if it is not in it."""
    lowest = np.sort(scores)[[-min(depth, len(scores)) for depth in depths]]
    return np.where(scores[:, None] >= lowest, scores[:, None] + _MINIMUM_WEIGHT, 0.0)


def likeness(with_others: Floats, squares: Floats, weights: Floats) -> Floats:
    """[N, K] product of each vector z_i and the centroid of the others, normalised to length 1.

    With c = Σ w_j z_j, the centroid without z_i has the square |c|² − 2 w_i z_i·(c − w_i z_i) −
    w_i² |z_i|². ``with_others`` are [N, K] z_i · (c − w_i z_i), ``squares`` [N] |z_i|², and
    ``weights`` [N, K] w.
    """
    crossed, own = weights * with_others, weights**2 * squares[:, None]
    length = (crossed.sum(axis=0) - 2.0 * crossed) + (own.sum(axis=0) - own)
    is_long = length > 1e-9  # Rounding can give 0 or a little less.
    return np.where(is_long, with_others / np.sqrt(np.where(is_long, length, 1.0)), 0.0)


class _Vectors(NamedTuple):
    """Vectors of N posts: their E entries in the order of posts and stems, each [E]."""

    post: Rows
    stem: Rows
    value: Floats

    def take(self, entries: Bools) -> "_Vectors":
        """Some of the entries [E]."""
        return _Vectors(self.post[entries], self.stem[entries], self.value[entries])

    def with_sums(self, weights: Floats) -> Floats:
        """[N, K] z_i · Σ_j w_jk z_j, for the vectors z and weights [N, K]."""
        products = []
        for weight in weights.T:
            centroid = np.bincount(self.stem, self.value * weight[self.post])
            products.append(
                sums(self.post, self.value * centroid[self.stem], len(weight))
            )
        return np.stack(products, axis=1)


def _vectors(tokens: Tokens) -> tuple[_Vectors, Bools]:
    """TF-IDF vectors of length 1, and whether the stem of each entry [E] is one of the query."""
    stems, stem = numbered(tokens.words.stem)
    lowest = np.full(len(stems), np.inf, dtype=np.float32)
    np.minimum.at(lowest, stem, tokens.words.idf)
    entries, counts = np.unique(
        tokens.posts.owners * len(stems) + stem, return_counts=True
    )
    post, stem = np.divmod(entries, max(1, len(stems)))
    value = (1.0 + np.log(counts)) * lowest[stem]
    length = np.sqrt(sums(post, value * value, len(tokens.posts)))
    value = (value / np.maximum(length[post], 1e-9)).astype(np.float32)
    is_asked = among(stems, np.sort(tokens.query.stem))
    return _Vectors(post, stem, value.astype(np.float64)), is_asked[stem]
