"""Similarity of meaning of query and post, in a space where every word has a vector.

Each word of the query is matched with its nearest word of the post, and both texts are compared as
sums of their words' vectors (Kenter & de Rijke, CIKM 2015). Relevance is the centroid of the best
candidates: Rocchio (1971) with word vectors, as the relevance models of Zamani & Croft (ICTIR 2016)
and Roy et al. (2016); see the family ``feedback``.
"""

import re

import numpy as np
import numpy.typing as npt

from rerankers.base import FIRST_STAGE
from rerankers.errors import RerankerError
from rerankers.features._candidates import CandidateList, minmax
from rerankers.features._tables import Floats
from rerankers.features.feedback import likeness, weights_of
from rerankers.text.ragged import Ragged, Rows
from rerankers.text.spaces import ADAPTED, GENERAL, general

DEPTHS = (5, 10, 20, 50)

NAMES = (
    *("cosine", "cosine_minmax", "cosine_z", "idf_cosine", "mean_best", "least_best"),
    *(f"feedback_{depth}" for depth in DEPTHS),
    *("mixed_feedback", "mixed_minmax"),
)
"""
``cosine``: cosine of the sums of all words' vectors of query and post; in [-1, 1].
``cosine_minmax``, ``cosine_z``: this as (c − min) / (max − min), (c − mean) / standard deviation,
over the topic's candidates; 0 if all are equal.
``idf_cosine``: cosine of the sums of vectors of length 1, weighted by IDF.
``mean_best``: over the query's distinct words without stop words (unless it has no others), highest
cosine of each with a word of the post, mean weighted by IDF; ``least_best``: the lowest.
``feedback_k``: cosine of the post and the centroid of the others among the best k of the first
stage, as in the family ``feedback``.
``mixed_feedback``: the same with the best 10 by ``cosine_minmax`` + min–max first-stage score.
``mixed_minmax``: half this sum, in [0, 1].
0 where a text has no words; all are NaN if there is no such space.
"""

PARAMETER = "SPACE"

Array = npt.NDArray[np.float32]


def family(parameter: str) -> "Family":
    """The family of a space.

    Raises:
        RerankerError: there is no such space.
    """
    if not re.fullmatch(f"{GENERAL}|{ADAPTED}", parameter):
        raise RerankerError(
            f"found the feature family meaning with the space {parameter!r}, expected "
            f"meaning:{GENERAL} or meaning:{ADAPTED}"
        )
    return Family(parameter)


class Family:
    """Features in the space ``name``; see :class:`rerankers.features.Family`."""

    NAMES: tuple[str, ...] = NAMES
    SIGNALS: tuple[str, ...] = (FIRST_STAGE,)

    def __init__(self, name: str) -> None:
        self.name = name

    def compute(self, candidates: CandidateList) -> Array:
        """[N, 12]."""
        space = general() if self.name == GENERAL else candidates.spaces.get(self.name)
        if space is None:
            return np.full((len(candidates), len(NAMES)), np.nan, dtype=np.float32)
        if not len(candidates):
            return np.zeros((0, len(NAMES)), dtype=np.float32)
        asked = candidates.words.rows(candidates.query_tokens)
        words = candidates.posts.column("words")
        used, places = np.unique(np.concatenate([asked, words.values]), return_inverse=True)
        vectors = space.vectors(candidates.words.spelled(used))
        idf = candidates.words.columns().idf[used]
        posts = Ragged(places[len(asked) :], words.starts)
        sums = _unit(_sums(posts, vectors))
        query = _unit(vectors[places[: len(asked)]].sum(axis=0, keepdims=True))[0]
        cosine = _products(sums, query)
        first_stage = candidates.minmax(FIRST_STAGE)
        mixed = minmax(cosine) + first_stage
        unit = _unit(vectors)
        weighted = unit * idf[:, None]
        idf_query = _unit(weighted[places[: len(asked)]].sum(axis=0, keepdims=True))[0]
        mean_best, least_best = _best(candidates, posts, unit, used)
        columns = [
            cosine,
            minmax(cosine),
            (cosine - cosine.mean()) / (cosine.std() or np.inf),
            _products(_unit(_sums(posts, weighted)), idf_query),
            mean_best,
            least_best,
            *_feedback(sums, first_stage, DEPTHS).T,
            *_feedback(sums, mixed / 2, (10,)).T,
            mixed / 2,
        ]
        return np.stack(columns, axis=1).astype(np.float32)


def _unit(vectors: Array) -> Array:
    """Vectors [V, E] of length 1, or 0."""
    lengths = np.sqrt(np.einsum("ve,ve->v", vectors, vectors))[:, None]
    return np.where(lengths > 1e-6, vectors / np.where(lengths > 1e-6, lengths, 1), 0)


def _products(vectors: Array, query: Array) -> Floats:
    """[N]; no matrix product, whose rounding may depend on the number of rows: trees see it."""
    return np.einsum("ne,e->n", vectors, query).astype(np.float64)


def _sums(texts: Ragged, vectors: Array) -> Array:
    """[N, E] sums of the vectors [V, E] of texts, given by their rows."""
    import torch

    found = torch.nn.functional.embedding_bag(
        torch.from_numpy(texts.values.astype(np.int64)),
        torch.from_numpy(vectors),
        torch.from_numpy(texts.starts[:-1].astype(np.int64)),
        mode="sum",
    )
    return found.numpy()


def _best(
    candidates: CandidateList, posts: Ragged, unit: Array, used: Rows
) -> tuple[Floats, Floats]:
    """``mean_best`` and ``least_best``: two arrays [N]."""
    asked = candidates.words.rows(candidates.query_words)
    properties = candidates.query_columns
    content = ~properties.is_stop_word
    compared = content if content.any() else ~content
    query = unit[np.searchsorted(used, asked[compared])]
    if not len(query):
        return np.zeros(len(posts)), np.zeros(len(posts))
    cosines = np.einsum("qe,ve->qv", query, unit)
    best = np.zeros((len(query), len(posts)), dtype=np.float32)
    filled = posts.lengths > 0
    starts = posts.starts[:-1][filled]
    if len(starts):
        best[:, filled] = np.maximum.reduceat(cosines[:, posts.values], starts, axis=1)
    weights = properties.idf[compared]
    mean = (best * weights[:, None]).sum(axis=0) / max(weights.sum(), 1e-9)
    return mean.astype(np.float64), best.min(axis=0).astype(np.float64)


def _feedback(posts: Array, scores: Floats, depths: tuple[int, ...]) -> Floats:
    """``feedback_k`` [N, K] of vectors [N, E] of length 1 or 0, and scores [N] in [0, 1]."""
    weights = weights_of(scores, depths)
    chosen = np.flatnonzero(weights.any(axis=1))
    centroids = posts[chosen].T.astype(np.float64) @ weights[chosen]
    squares = np.einsum("ne,ne->n", posts, posts).astype(np.float64)
    with_others = posts.astype(np.float64) @ centroids - weights * squares[:, None]
    return likeness(with_others, squares, weights)
