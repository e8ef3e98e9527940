"""How like the best candidates of the first stage a post is: pseudo-relevance feedback.

The centroid of Rocchio (1971) of the best candidates, weighted as in the relevance model of
Lavrenko & Croft (2001) by how well each matches the query. A candidate is left out of the centroid
that it is compared with: otherwise the best are like it because they are in it.
"""

import numpy as np
import numpy.typing as npt

from rerankers.base import FIRST_STAGE
from rerankers.features._candidates import CandidateList, among_best

DEPTHS = (5, 10, 20, 50, 100)

NAMES = (
    *(f"every_{depth}" for depth in DEPTHS),
    *(f"rest_{depth}" for depth in DEPTHS),
)
"""
``every_k``: cosine of the post's TF-IDF vector z_i and the centroid of the others among the best k,
the sum over j ≠ i of w_j · z_j with w = min–max first-stage score + 0.001; in [0, 1]. All with the
k-th highest score are among the best k.
``rest_k``: product of the same two vectors without the query's words, of which the centroid's has
length 1 again and the post's has not; in [0, 1].
Both are 0 where there are no others, or none with words.
"""

SIGNALS = (FIRST_STAGE,)

_LEAST = 1e-3
"""Weight of the worst candidate: with equal scores, or none, all count alike."""


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 10]."""
    if not len(candidates):
        return np.zeros((0, len(NAMES)), dtype=np.float32)
    weights, vectors = weights_of(candidates.minmax(FIRST_STAGE)), candidates.term_vectors
    every, rest = vectors.with_centroids(weights)
    return np.concatenate(
        [
            likeness(every, vectors.every.squares, weights),
            likeness(rest, vectors.rest.squares, weights),
        ],
        axis=1,
    ).astype(np.float32)


def weights_of(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """[N, K] weight of each candidate in the centroid of each depth, 0 if it is not in it."""
    chosen = np.stack([among_best(scores, depth) for depth in DEPTHS], axis=1)
    return np.where(chosen, scores[:, None] + _LEAST, 0.0)


def likeness(
    with_others: npt.NDArray[np.float64],
    squares: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """[N, K] product of each vector and the centroid of the others, of which that has length 1.

    With c = Σ w_j z_j, the centroid without z_i has the square |c|² − 2 w_i z_i·(c − w_i z_i) −
    w_i² |z_i|².

    Args:
        with_others: [N, K] z_i · (c − w_i z_i).
        squares: [N] |z_i|².
        weights: [N, K] w.
    """
    crossed, own = weights * with_others, weights**2 * squares[:, None]
    length = (crossed.sum(axis=0) - 2.0 * crossed) + (own.sum(axis=0) - own)
    # Rounding can leave a length to nothing, or to less.
    found = length > 1e-9
    return np.where(found, with_others / np.sqrt(np.where(found, length, 1.0)), 0.0)
