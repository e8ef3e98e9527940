"""A candidate among the candidates that say nearly the same.

Near-duplicates on Twitter: Tao et al. (2013). Scores smoothed over neighbours: Diaz (2005), after
whom candidates that are alike should have scores that are alike; here one step of it, from a
candidate's neighbours and without its own score.
"""

import numpy as np
import numpy.typing as npt

from rerankers.base import FIRST_STAGE
from rerankers.candidates import CandidateList

NAMES = (
    "alike", "duplicates", "nearest", "smoothed", "support", "smoothed_rest", "support_rest",
)  # fmt: skip
"""
``alike``, ``duplicates``: number of other candidates with a TF-IDF cosine above 0.5 and above 0.8.
``nearest``: mean cosine of the 10 nearest candidates (of all, if there are fewer), in [0, 1].
``smoothed``: Σ g_j s_j / Σ g_j over the 20 nearest candidates j, of which g is the cosine and s the
min–max first-stage score; in [0, 1], 0 if none has a word in common. All that are as near as the
20th are among them.
``support``: Σ g_j s_j of these.
``smoothed_rest``, ``support_rest``: the same with the vectors' products without the query's words.
"""

SIGNALS = (FIRST_STAGE,)

_NEAREST = 10
_NEIGHBOURS = 20
_GROUP = 16
"""Candidates of which only the nearest is looked at to tell how near a neighbour must be."""


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 7]."""
    if not len(candidates):
        return np.zeros((0, len(NAMES)), dtype=np.float32)
    vectors = candidates.term_vectors
    scores = candidates.minmax(FIRST_STAGE)
    nearest, smoothed, support = _neighbours(vectors.every, scores)
    _, smoothed_rest, support_rest = _neighbours(vectors.rest, scores)
    columns = [
        *_above(vectors.every, 0.5, 0.8),
        nearest,
        smoothed,
        support,
        smoothed_rest,
        support_rest,
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def _above(
    products: npt.NDArray[np.float32], low: float, high: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Number of products of each candidate above ``low`` and above ``high``: two of [N]."""
    # Few are, so they are found once and counted then.
    places, count = np.flatnonzero(products > low), len(products)
    row, is_high = places // count, products.ravel()[places] > high
    return np.bincount(row, minlength=count), np.bincount(row[is_high], minlength=count)


def _neighbours(
    products: npt.NDArray[np.float32], scores: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], ...]:
    """Mean product of the 10 nearest, and mean and sum of the 20 nearest's scores: three of [N]."""
    count = len(products)
    places = np.flatnonzero(products >= _bound(products)[:, None])
    row, column = np.divmod(places, count)
    value = products.ravel()[places]
    # One row of the table for each candidate, filled up with zeros.
    found = np.bincount(row, minlength=count)
    table = np.zeros((count, max(_NEIGHBOURS, int(found.max()))), dtype=np.float32)
    table[row, np.arange(len(row)) - (np.cumsum(found) - found)[row]] = value
    best = np.sort(table, axis=1)[:, -_NEIGHBOURS:].astype(np.float64)
    nearest = best[:, -_NEAREST:].sum(axis=1) / max(1, min(_NEAREST, count - 1))
    near = value >= best[row, 0]
    row, column, value = row[near], column[near], value[near].astype(np.float64)
    weight = np.bincount(row, weights=value, minlength=count)
    summed = np.bincount(row, weights=value * scores[column], minlength=count)
    support = summed.astype(np.float64)
    return nearest, support / np.where(weight > 0, weight, 1.0), support


def _bound(products: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """[N] above 0 and at most the 20th highest product of each candidate, unless that is 0.

    It is the 20th highest of the highest products of groups of candidates, which is several times
    quicker to find than the 20th of all.
    """
    count, least = len(products), np.finfo(np.float32).tiny
    groups, alone = divmod(count, _GROUP)
    if groups < _NEIGHBOURS:
        return np.full(count, least)
    # Neighbours in the list may be alike, so candidate i is of group i modulo their number. By
    # columns, whole rows are compared at once; should rounding make them differ from the rows, the
    # bound is still below.
    grouped = products[: count - alone].reshape(_GROUP, groups, count)
    highest = np.ascontiguousarray(grouped.max(axis=0).T)
    bound: npt.NDArray[np.float32] = np.sort(highest, axis=1)[:, -_NEIGHBOURS]
    return np.maximum(bound * np.float32(1 - 1e-5), least)
