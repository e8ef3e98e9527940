"""Features of how close query and post are in meaning, by word vectors.

Each word of the query is compared with the nearest word of the post. Also, both texts
are compared as sums of their words' vectors (Kenter & de Rijke, CIKM 2015). The
centroid of the best candidates represents relevance. This is Rocchio's method (1971)
with word vectors, as in the relevance models of Zamani & Croft (ICTIR 2016) and Roy et
al. (2016); see the family ``feedback``.
"""

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.features.candidates import LEAST_KNOWN, CandidateList
from tweetrerank.rerankers.features.family import Columns, Family, parametric_family
from tweetrerank.rerankers.features.feedback import likeness, weights_of
from tweetrerank.rerankers.features.scaling import minmax, z_score
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
    "cosine",
    "cosine_minmax",
    "cosine_z",
    "idf_cosine",
    "mean_best",
    "least_best",
    "feedback_5",
    "feedback_10",
    "feedback_20",
    "feedback_50",
    "mixed_feedback",
    "mixed_minmax",
)

Array = npt.NDArray[np.float32]


@parametric_family("SPACE")
def meaning(name: str) -> Family:
    """Return the family of similarities in a space of word vectors.

    ``name`` is ``general`` or ``adapted``. Raises RerankerError for another name.

    ``cosine``: cosine of two sums of vectors, those of the query's words and those of
    the post's words; in [-1, 1].
    ``cosine_minmax``: (c − min) / (max − min) of this cosine c over the topic's
    candidates; 0 if all are equal.
    ``cosine_z``: (c − mean) / standard deviation; 0 if all are equal.
    ``idf_cosine``: as ``cosine``, but each word's vector is scaled to length 1 and
    weighted by IDF.
    ``mean_best``: highest cosine of a word of the query with any word of the post,
    averaged over the distinct words of the query with IDF as the weight. Stop words are
    left out, unless the query has no other words.
    ``least_best``: the lowest of these cosines.
    ``feedback_k``: cosine of the post and the centroid of the other candidates among
    the best k of the first stage, as in the family ``feedback``.
    ``mixed_feedback``: the same for the best 10 by ``mixed_minmax``.
    ``mixed_minmax``: mean of ``cosine_minmax`` and the min–max first-stage score, in
    [0, 1].
    Features are 0 where a text has no words. Features that compare the candidates are
    NaN in a list that is too short for it. All are NaN if there is no such space, or if
    it knows too few words of the list.
    """
    if name not in (GENERAL, ADAPTED):
        raise RerankerError(
            f"found the feature family meaning with the space {name!r}, expected "
            f"meaning:{GENERAL} or meaning:{ADAPTED}"
        )

    def columns(candidates: CandidateList) -> Columns:
        unknown = np.full(len(candidates), np.nan)
        space = general() if name == GENERAL else candidates.resources.get(name)
        if not space or not len(candidates):
            return [unknown] * len(NAMES)
        words = _Words.of(candidates, space)
        if not words.are_known:
            return [unknown] * len(NAMES)
        return _columns(candidates, words)

    return Family(NAMES, (FIRST_STAGE,), columns)


def _columns(candidates: CandidateList, words: "_Words") -> Columns:
    """Return all features in the order of :data:`NAMES`, each [N]."""
    factor = candidates.comparison_factor
    sums = words.sums()
    cosine = _products(sums, sums[0])[1:]
    # Vectors of length 1, weighted by IDF
    weights = words.idf / np.maximum(words.embeddings.lengths, SHORT)
    idf_sums = words.sums(weights.astype(np.float32))
    first_stage = candidates.evidence
    mixed = (minmax(cosine) + first_stage) / 2
    first_stage_weights = weights_of(first_stage, DEPTHS)
    mixed_weights = weights_of(mixed, (10,))
    centroids = np.concatenate([first_stage_weights, mixed_weights], axis=1)
    feedback = _feedback(sums[1:], centroids)  # [N, K]
    return [
        cosine,
        factor * minmax(cosine),
        factor * z_score(cosine),
        _products(idf_sums, idf_sums[0])[1:],
        *_best(candidates, words),
        *(factor * feedback.T),
        factor * mixed,
    ]


class _Words(NamedTuple):
    """The V distinct words of a query and its N posts."""

    embeddings: Embeddings  # [V], words of the query first
    idf: Array  # [V]
    texts: Ragged  # Numbers of the words of each text: the query, then the posts

    @classmethod
    def of(
        cls,
        candidates: CandidateList,
        space: WordSpace,
    ) -> Self:
        rows, numbers = candidates.distinct_words
        posts = candidates.posts.column("words")
        starts = len(candidates.query_tokens) + posts.starts
        return cls(
            embeddings=candidates.words.vectors(rows, space),
            idf=candidates.columns.idf[rows],
            texts=Ragged(numbers, np.concatenate([[0], starts])),
        )

    @property
    def are_known(self) -> bool:
        """Whether the space knows enough of the words; true if there are no words."""
        is_known = self.embeddings.is_known[self.texts.values]
        return not is_known.size or bool(is_known.mean() >= LEAST_KNOWN)

    def sums(self, weights: Array | None = None) -> Array:
        """Return the sum of the vectors of each text's words, scaled to length 1.

        The result is [1 + N, E], with the query first. ``weights`` [V] are factors of
        the words' vectors; with None they are all 1.
        """
        if weights is not None:
            weights = weights[self.texts.values]
        return unit(sums_of(self.texts, self.embeddings.vectors, weights))


def _products(vectors: Array, query: Array) -> Floats:
    """Return the dot products [N] of vectors [N, E] and a query's vector [E].

    They are not computed as a matrix product, because its rounding may depend on the
    number of rows, and a small difference can change the scores of trees.
    """
    return np.einsum("ne,e->n", vectors, query).astype(np.float64)


def _best(candidates: CandidateList, words: _Words) -> tuple[Floats, Floats]:
    """Return (``mean_best`` [N], ``least_best`` [N])."""
    columns = candidates.query_columns  # Each [Lq]
    count = len(candidates)
    is_compared = ~columns.is_stop_word
    if not is_compared.any():
        is_compared = columns.is_stop_word
    vectors, lengths, _ = words.embeddings
    query = unit(vectors[: len(is_compared)][is_compared])  # [Q, E]
    if not len(query):
        return np.zeros(count), np.zeros(count)
    cosines = np.einsum("qe,ve->qv", query, vectors) / np.maximum(lengths, SHORT)
    best = np.zeros(
        (len(query), count),
        dtype=np.float32,
    )
    has_words = words.texts.lengths[1:] > 0
    starts = words.texts.starts[1:-1][has_words]
    if len(starts):
        cosines_of_words = cosines[:, words.texts.values]  # [Q, Lq + T]
        best[:, has_words] = np.maximum.reduceat(
            cosines_of_words,
            starts,
            axis=1,
        )
    weights = columns.idf[is_compared]
    weighted_sum = (best * weights[:, None]).sum(axis=0)
    mean = weighted_sum / max(weights.sum(), 1e-9)
    least = best.min(axis=0)
    return mean.astype(np.float64), least.astype(np.float64)


def _feedback(posts: Array, weights: Floats) -> Floats:
    """Return the features ``feedback_k`` of posts [N, K].

    ``posts`` [N, E] are vectors of length 1 or 0, and ``weights`` [N, K] their weights
    in each centroid.
    """
    vectors = posts.astype(np.float64)
    squares = np.einsum("ne,ne->n", posts, posts).astype(np.float64)
    # Not a matrix product, because its rounding may depend on the number of rows, and
    # its threads would wait for those of another query.
    products = []
    for weight in weights.T:
        members = np.flatnonzero(weight)
        centroid = np.einsum("ne,n->e", vectors[members], weight[members])
        products.append(np.einsum("ne,e->n", vectors, centroid))
    with_others = np.stack(products, axis=1) - weights * squares[:, None]
    return likeness(with_others, squares, weights)
