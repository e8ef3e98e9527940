"""A candidate among the best candidates that say nearly the same.

Near-duplicates on Twitter: Tao et al. (2013). Scores smoothed over neighbours: Diaz (2005), after
whom candidates that are alike should have scores that are alike; here one step of it, from a
candidate's neighbours and without its own score.
"""

import numpy as np
import numpy.typing as npt

from rerankers.base import FIRST_STAGE
from rerankers.candidates import CandidateList, among_best

NAMES = (
    "alike", "duplicates", "nearest", "smoothed", "support", "smoothed_rest", "support_rest",
)  # fmt: skip
"""
All are about the other candidates that are among the 500 best by first-stage score; those with the
500th highest score are among them.
``alike``, ``duplicates``: number of them with a TF-IDF cosine above 0.5 and above 0.8.
``nearest``: mean cosine of the 10 nearest of them (of all, if there are fewer), in [0, 1].
``smoothed``: Σ g_j s_j / Σ g_j over the 20 nearest j, of which g is the cosine and s the min–max
first-stage score; in [0, 1], 0 if none has a word in common. All that are as near as the 20th are
among them.
``support``: Σ g_j s_j of these.
``smoothed_rest``, ``support_rest``: the same with the vectors' products without the query's words.
"""

SIGNALS = (FIRST_STAGE,)

_BEST = 500
_NEAREST = 10
_NEIGHBOURS = 20


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 7]."""
    if not len(candidates):
        return np.zeros((0, len(NAMES)), dtype=np.float32)
    scores = candidates.minmax(FIRST_STAGE)
    best = np.flatnonzero(among_best(scores, _BEST))
    every, rest = candidates.term_vectors.products(best)
    nearest, smoothed, support = _neighbours(every, scores[best])
    _, smoothed_rest, support_rest = _neighbours(rest, scores[best])
    columns = [
        *_above(every, 0.5, 0.8),
        nearest / max(1, min(_NEAREST, len(candidates) - 1)),
        smoothed,
        support,
        smoothed_rest,
        support_rest,
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def _above(
    products: npt.NDArray[np.float32], low: float, high: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Number of products of each candidate [N, M] above ``low`` and above ``high``: two of [N]."""
    # Few are, so they are found once and counted then.
    places, count = np.flatnonzero(products > low), len(products)
    row, is_high = places // products.shape[1], products.ravel()[places] > high
    return np.bincount(row, minlength=count), np.bincount(row[is_high], minlength=count)


def _neighbours(
    products: npt.NDArray[np.float32], scores: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], ...]:
    """Sum of the 10 nearest products, and mean and sum of the 20 nearest's scores: three of [N].

    Args:
        products: [N, M] with those that may be neighbours.
        scores: [M] of these.
    """
    nearest = np.sort(products, axis=1)[:, -_NEIGHBOURS:]
    bound = np.maximum(nearest[:, 0], np.finfo(np.float32).tiny)
    row, column = np.divmod(np.flatnonzero(products >= bound[:, None]), products.shape[1])
    value, count = products[row, column].astype(np.float64), len(products)
    weight = np.bincount(row, weights=value, minlength=count)
    support = np.bincount(row, weights=value * scores[column], minlength=count)
    summed = nearest[:, -_NEAREST:].sum(axis=1, dtype=np.float64)
    return summed, support / np.where(weight > 0, weight, 1.0), support.astype(np.float64)
