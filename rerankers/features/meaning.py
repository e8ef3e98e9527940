"""Similarity of meaning of query and post, in a space where every word has a vector.

Each word of the query is matched with its nearest word of the post, and both texts are compared as
sums of their words' vectors (Kenter & de Rijke, CIKM 2015). Relevance is the centroid of the best
candidates: Rocchio (1971) with word vectors, as the relevance models of Zamani & Croft (ICTIR 2016)
and Roy et al. (2016); see the family ``feedback``.
"""

import re
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.features.candidates import (
    LEAST_KNOWN,
    PARAMETRIC,
    CandidateList,
    Columns,
    Family,
    minmax,
    z_score,
)
from tweetrerank.rerankers.features.feedback import likeness, weights_of
from tweetrerank.rerankers.features.text_tables import Floats
from tweetrerank.rerankers.pairs import FIRST_STAGE
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.ragged import Ragged, sums_of
from tweetrerank.rerankers.text.spaces import (
    ADAPTED,
    GENERAL,
    SHORT,
    Embeddings,
    WordSpace,
    general,
    unit,
)

DEPTHS = (5, 10, 20, 50)

NAMES = (
    *("cosine", "cosine_minmax", "cosine_z", "idf_cosine", "mean_best", "least_best"),
    *(f"feedback_{depth}" for depth in DEPTHS),
    *("mixed_feedback", "mixed_minmax"),
)

Array = npt.NDArray[np.float32]


def meaning(name: str) -> Family:
    """Similarity in a space of word vectors.

    ``cosine``: cosine of the sums of all words' vectors of query and post; in [-1, 1].
    ``cosine_minmax``, ``cosine_z``: this as (c − min) / (max − min), (c − mean) / standard
    deviation, over the topic's candidates; 0 if all are equal.
    ``idf_cosine``: cosine of the sums of vectors of length 1, weighted by IDF.
    ``mean_best``: over the query's distinct words without stop words (unless it has no others),
    highest cosine of each with a word of the post, weighted by IDF; ``least_best``: the lowest.
    ``feedback_k``: cosine of the post and the centroid of the others among the best k of the first
    stage, as in the family ``feedback``.
    ``mixed_feedback``: the same with the best 10 by ``cosine_minmax`` + min–max first-stage score.
    ``mixed_minmax``: half this sum, in [0, 1].
    0 where a text has no words; those that compare the candidates are NaN in a short list of given
    ones; all are NaN if there is no such space, or if it knows too few words of the list.
    """
    if not re.fullmatch(f"{GENERAL}|{ADAPTED}", name):
        raise RerankerError(
            f"found the feature family meaning with the space {name!r}, expected "
            f"meaning:{GENERAL} or meaning:{ADAPTED}"
        )

    def columns(candidates: CandidateList) -> Columns:
        space = general() if name == GENERAL else candidates.resources.get(name)
        words = _Words.of(candidates, space) if space and len(candidates) else None
        if words is None or not words.are_known:
            return [np.full(len(candidates), np.nan)] * len(NAMES)
        return _columns(candidates, words)

    return Family(NAMES, (FIRST_STAGE,), columns)


PARAMETRIC["meaning"] = "SPACE", meaning


def _columns(candidates: CandidateList, words: "_Words") -> Columns:
    sums = words.sums()
    cosine = _products(sums, sums[0])[1:]
    # Vectors of length 1, weighted by IDF
    by_idf = words.sums(
        (words.idf / np.maximum(words.known.lengths, SHORT)).astype(np.float32)
    )
    first_stage = candidates.evidence
    mixed = (minmax(cosine) + first_stage) / 2
    parts = [weights_of(first_stage, DEPTHS), weights_of(mixed, (10,))]
    feedback = _feedback(sums[1:], np.concatenate(parts, axis=1)).T
    return [
        cosine,
        *(candidates.compared * scaled for scaled in (minmax(cosine), z_score(cosine))),
        _products(by_idf, by_idf[0])[1:],
        *_best(candidates, words),
        *(candidates.compared * column for column in (*feedback, mixed)),
    ]


class _Words(NamedTuple):
    """The V distinct words of a query and its N posts."""

    known: Embeddings  # Their vectors, those of the query first
    idf: Array  # [V]
    texts: Ragged  # Numbers of words: of the query, and of each post

    @classmethod
    def of(cls, candidates: CandidateList, space: WordSpace) -> Self:
        rows, places = candidates.distinct_words
        starts = len(candidates.query_tokens) + candidates.posts.column("words").starts
        texts = Ragged(places, np.concatenate([[0], starts]))
        return cls(
            candidates.words.vectors(rows, space), candidates.columns.idf[rows], texts
        )

    @property
    def are_known(self) -> bool:
        """Whether the space knows enough of the words, or there are none."""
        is_known = self.known.is_known[self.texts.values]
        return not is_known.size or bool(is_known.mean() >= LEAST_KNOWN)

    def sums(self, weights: Array | None = None) -> Array:
        """[1 + N, E] sums of the vectors of each text's words, with weights [V]; of length 1."""
        of_words = None if weights is None else weights[self.texts.values]
        return unit(sums_of(self.texts, self.known.vectors, of_words))


def _products(vectors: Array, query: Array) -> Floats:
    """[N]; no matrix product, whose rounding may depend on the number of rows: trees see it."""
    return np.einsum("ne,e->n", vectors, query).astype(np.float64)


def _best(candidates: CandidateList, words: _Words) -> tuple[Floats, Floats]:
    """``mean_best`` and ``least_best``: two arrays [N]."""
    properties, (vectors, lengths, _) = candidates.query_columns, words.known
    content = ~properties.is_stop_word
    compared = content if content.any() else ~content
    query, count = unit(vectors[: len(compared)][compared]), len(candidates)
    if not len(query):
        return np.zeros(count), np.zeros(count)
    cosines = np.einsum("qe,ve->qv", query, vectors) / np.maximum(lengths, SHORT)
    best = np.zeros((len(query), count), dtype=np.float32)
    filled = words.texts.lengths[1:] > 0
    starts = words.texts.starts[1:-1][filled]
    if len(starts):
        best[:, filled] = np.maximum.reduceat(
            cosines[:, words.texts.values], starts, axis=1
        )
    weights = properties.idf[compared]
    mean = (best * weights[:, None]).sum(axis=0) / max(weights.sum(), 1e-9)
    return mean.astype(np.float64), best.min(axis=0).astype(np.float64)


def _feedback(posts: Array, weights: Floats) -> Floats:
    """``feedback_k`` [N, K] of vectors [N, E] of length 1 or 0, and weights [N, K]."""
    vectors = posts.astype(np.float64)
    squares = np.einsum("ne,ne->n", posts, posts).astype(np.float64)
    # No matrix product: its rounding may depend on the number of rows, and its threads wait for
    # those of another query.
    with_all = []
    for weight in weights.T:
        chosen = np.flatnonzero(weight)
        centroid = np.einsum("ne,n->e", vectors[chosen], weight[chosen])
        with_all.append(np.einsum("ne,e->n", vectors, centroid))
    with_others = np.stack(with_all, axis=1) - weights * squares[:, None]
    return likeness(with_others, squares, weights)
