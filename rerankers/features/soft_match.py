"""Similarity of meaning by word vectors: of query and post, and of post and best candidates.

Each word of the query is matched with its nearest word of the post, and both texts are compared as
centroids of their words, weighted by IDF (Kenter & de Rijke, CIKM 2015). Relevance is the centroid
of the best candidates: Rocchio (1971) with word vectors, as the relevance models of Zamani & Croft
(ICTIR 2016) and Roy et al. (2016); see the family ``feedback``. The papers leave open the handling
of words without a vector: here those of a query are skipped, and those of a post have a cosine of 0
with every word.
"""

import numpy as np
import numpy.typing as npt
import torch

from rerankers.base import FIRST_STAGE
from rerankers.features._candidates import CandidateList, Tokens
from rerankers.features._tables import Floats
from rerankers.features.feedback import DEPTHS, likeness, weights_of
from rerankers.text.ragged import Rows
from rerankers.text.vectors import UnitVectors

NAMES = ("mean_best", "least_best", "centroid", *(f"feedback_{depth}" for depth in DEPTHS))
"""
Over the query's distinct words with a vector, without stop words (unless it has no others):
``mean_best``: highest cosine of each with a word of the post, mean weighted by IDF.
``least_best``: the lowest of these highest cosines.
``centroid``: cosine of the sum of these words' vectors and the sum over all words of the post, both
weighted by IDF; repeated words of a post count each time.
``feedback_k``: cosine of the post's sum, as a vector z_i of length 1, and the centroid of the
others among the best k, as in the family ``feedback``.
All are in [-1, 1], and 0 if one side has no words with a vector.
"""

SIGNALS = (FIRST_STAGE,)

VECTORS = True

Array = npt.NDArray[np.float32]


def compute(candidates: CandidateList) -> Array:
    """[N, 8]."""
    values = np.zeros((len(candidates), len(NAMES)), dtype=np.float32)
    if candidates.vectors is None or not len(candidates):
        return values
    tokens = candidates.tokens
    posts = _sums(tokens, candidates.vectors)
    query, weights = _query(candidates, candidates.vectors)
    if len(query):
        # No matrix product: its rounding may depend on the number of words, and trees see it.
        vectors, place = _distinct(candidates.vectors, tokens.words.vector)
        cosines = np.einsum("qe,ve->qv", query, vectors)
        best = _best(cosines[:, place], tokens.posts.lengths)
        values[:, 0] = (best * weights[:, None]).sum(axis=0) / max(weights.sum(), 1e-9)
        values[:, 1] = best.min(axis=0)
        centroid = torch.from_numpy((weights[:, None] * query).sum(axis=0))
        values[:, 2] = (posts @ torch.nn.functional.normalize(centroid, dim=0)).numpy()
    values[:, 3:] = _feedback(posts, candidates.minmax(FIRST_STAGE))
    return values


def _distinct(vectors: UnitVectors, rows: npt.NDArray[np.integer]) -> tuple[Array, Rows]:
    """Vectors [V, E] of the V distinct words in ``rows`` [T], and the place [T] of each in V."""
    found = np.zeros(len(vectors.matrix), dtype=np.bool_)
    found[rows] = True
    distinct = np.flatnonzero(found)
    place = np.empty(len(found), dtype=np.int64)
    place[distinct] = np.arange(len(distinct))
    return vectors.matrix[distinct], place[rows]


def _query(candidates: CandidateList, vectors: UnitVectors) -> tuple[Array, Array]:
    """Vectors [Lq, E] and IDF [Lq] of the compared words of the query."""
    words = candidates.query_columns
    content = ~words.is_stop_word
    compared = (content if content.any() else ~content) & (words.vector > 0)
    return vectors.matrix[words.vector[compared]], words.idf[compared]


def _sums(tokens: Tokens, vectors: UnitVectors) -> torch.Tensor:
    """[N, E] sum of the vectors of each post's words, weighted by IDF; of length 1, or 0."""
    summed = torch.nn.functional.embedding_bag(
        torch.from_numpy(tokens.words.vector),
        torch.from_numpy(vectors.matrix),
        torch.from_numpy(tokens.posts.starts[:-1].astype(np.int32)),
        mode="sum",
        per_sample_weights=torch.from_numpy(tokens.words.idf),
    )
    lengths = torch.linalg.vector_norm(summed, dim=1, keepdim=True)
    return torch.where(lengths > 1e-6, summed / lengths, 0.0)


def _best(cosines: Array, counts: Rows) -> Array:
    """[Lq, N] highest of the cosines [Lq, T] in each post; 0 for a post without words."""
    best = np.zeros((len(cosines), len(counts)), dtype=np.float32)
    filled = counts > 0
    # reduceat needs non-empty parts.
    starts = (np.cumsum(counts) - counts)[filled]
    if len(starts):
        best[:, filled] = np.maximum.reduceat(cosines, starts, axis=1)
    return best


def _feedback(posts: torch.Tensor, scores: Floats) -> Floats:
    """``feedback_k`` [N, K] of vectors [N, E] of length 1 or 0, and min–max scores [N]."""
    weights = weights_of(scores)
    chosen = np.flatnonzero(weights.any(axis=1))
    best, theirs = posts[torch.from_numpy(chosen)].double(), torch.from_numpy(weights[chosen])
    centroids = best.T @ theirs
    squares = torch.linalg.vector_norm(posts, dim=1).double().square().numpy()
    with_others = (posts @ centroids.float()).double().numpy()
    # In double precision, as little is left if a post is most of the centroid.
    own = torch.linalg.vector_norm(best, dim=1).square()
    with_others[chosen] = (best @ centroids - theirs * own[:, None]).numpy()
    squares[chosen] = own.numpy()
    return likeness(with_others, squares, weights)
