"""Words that mean the same, by their vectors: query and post, and the best posts and this one.

Each word of the query is matched with the word of the post that is nearest, and both texts are
compared as centroids of their words, weighted by IDF (Kenter & de Rijke, CIKM 2015). The centroid
of the best candidates stands for relevance: Rocchio (1971) among vectors of words, as Zamani &
Croft (ICTIR 2016) and Roy et al. (2016) have relevance models there; see the family ``feedback``.
The papers leave open what becomes of words without a vector. Those of a query are passed over,
those of a post have a cosine of 0 with every word.
"""

import numpy as np
import numpy.typing as npt
import torch

from rerankers.base import FIRST_STAGE
from rerankers.features._candidates import CandidateList, Tokens
from rerankers.features.feedback import DEPTHS, likeness, weights_of
from rerankers.text.vectors import UnitVectors

NAMES = ("mean_best", "least_best", "centroid", *(f"feedback_{depth}" for depth in DEPTHS))
"""
With the query's distinct words that are no stop words (all, if it has no others) and have a vector:
``mean_best``: the highest cosine of each with a word of the post, averaged with IDF as weights.
``least_best``: the least of these highest cosines.
``centroid``: cosine of the sum of these words' vectors and that of all words of the post, both
weighted by IDF; a word that a post repeats counts each time.
``feedback_k``: cosine of that sum, as a vector z_i of length 1, and the centroid of the others
among the best k, as in the family ``feedback``.
All are in [-1, 1], and 0 where one side has no words with a vector.
"""

SIGNALS = (FIRST_STAGE,)

VECTORS = True

Array = npt.NDArray[np.float64]


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 8]."""
    values = np.zeros((len(candidates), len(NAMES)), dtype=np.float32)
    if candidates.vectors is None or not len(candidates):
        return values
    tokens = candidates.tokens
    posts = _sums(tokens, candidates.vectors)
    query, weights = _query(candidates, candidates.vectors)
    if len(query):
        # A matrix product may round by the number of words, which a tree would see where posts of
        # two topics have all words of the query.
        vectors, place = _distinct(candidates.vectors, tokens.vector)
        cosines = np.einsum("qe,ve->qv", query, vectors)
        best = _best(cosines[:, place], tokens.counts)
        values[:, 0] = (best * weights[:, None]).sum(axis=0) / max(weights.sum(), 1e-9)
        values[:, 1] = best.min(axis=0)
        centroid = torch.from_numpy((weights[:, None] * query).sum(axis=0))
        values[:, 2] = (posts @ torch.nn.functional.normalize(centroid, dim=0)).numpy()
    values[:, 3:] = _feedback(posts, candidates.minmax(FIRST_STAGE))
    return values


def _distinct(
    vectors: UnitVectors, rows: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Vectors [V, E] of the V distinct words among ``rows`` [T], and each word's place there."""
    found = np.zeros(len(vectors.matrix), dtype=np.bool_)
    found[rows] = True
    distinct = np.flatnonzero(found)
    place = np.empty(len(found), dtype=np.int64)
    place[distinct] = np.arange(len(distinct))
    return vectors.matrix[distinct], place[rows]


def _query(
    candidates: CandidateList, vectors: UnitVectors
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Vectors [Lq, E] and IDF [Lq] of the query's words that are compared."""
    content = candidates.query_is_content
    rows = candidates.words.vector[candidates.query_rows]
    compared = (content if content.any() else ~content) & (rows > 0)
    return vectors.matrix[rows[compared]], candidates.query_idf[compared]


def _sums(tokens: Tokens, vectors: UnitVectors) -> torch.Tensor:
    """[N, E] sum of the vectors of each post's words by IDF, of length 1; or 0."""
    summed = torch.nn.functional.embedding_bag(
        torch.from_numpy(tokens.vector), torch.from_numpy(vectors.matrix),
        torch.from_numpy(tokens.starts[:-1].astype(np.int32)), mode="sum",
        per_sample_weights=torch.from_numpy(tokens.idf),
    )  # fmt: skip
    lengths = torch.linalg.vector_norm(summed, dim=1, keepdim=True)
    return torch.where(lengths > 1e-6, summed / lengths, 0.0)


def _best(
    cosines: npt.NDArray[np.float32], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """[Lq, N] highest of the cosines [Lq, T] of each post's words; 0 for a post without words."""
    best = np.zeros((len(cosines), len(counts)), dtype=np.float32)
    filled = counts > 0
    # A part between two starts is one post's only if no post without words is between them.
    starts = (np.cumsum(counts) - counts)[filled]
    if len(starts):
        best[:, filled] = np.maximum.reduceat(cosines, starts, axis=1)
    return best


def _feedback(posts: torch.Tensor, scores: Array) -> Array:
    """[N, K] of vectors [N, E] of length 1 or 0, and min–max scores [N]."""
    weights = weights_of(scores)
    chosen = np.flatnonzero(weights.any(axis=1))
    best, theirs = posts[torch.from_numpy(chosen)].double(), torch.from_numpy(weights[chosen])
    centroids = best.T @ theirs
    squares = torch.linalg.vector_norm(posts, dim=1).double().square().numpy()
    with_others = (posts @ centroids.float()).double().numpy()
    # In double precision: where a post is most of the centroid, little is left without it.
    own = torch.linalg.vector_norm(best, dim=1).square()
    with_others[chosen] = (best @ centroids - theirs * own[:, None]).numpy()
    squares[chosen] = own.numpy()
    return likeness(with_others, squares, weights)
