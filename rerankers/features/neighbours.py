"""A candidate among the best candidates that say nearly the same.

Near-duplicates on Twitter: Tao et al. (2013). Scores smoothed over neighbours: Diaz (2005), after
whom candidates that are alike should have scores that are alike; here one step of it, from a
candidate's neighbours and without its own score.
"""

import numpy as np
import numpy.typing as npt
import torch

from rerankers.base import FIRST_STAGE
from rerankers.features._candidates import CandidateList, among_best

NAMES = (
    "alike", "duplicates", "nearest", "smoothed", "support", "smoothed_rest", "support_rest",
)  # fmt: skip
"""
All compare with the other candidates that are among the best 1000 by first-stage score, so that
work does not grow with the square of the candidates' number; all with the 1000th score are in.
``alike``, ``duplicates``: number of these with a TF-IDF cosine above 0.5 and above 0.8.
``nearest``: mean cosine of the 10 nearest of them (of all, if there are fewer), in [0, 1].
``smoothed``: Σ g_j s_j / Σ g_j over the 20 nearest j, of which g is the cosine and s the min–max
first-stage score; in [0, 1], 0 if none has a word in common. All that are as near as the 20th are
among them.
``support``: Σ g_j s_j of these.
``smoothed_rest``, ``support_rest``: the same with the vectors' products without the query's words.
"""

SIGNALS = (FIRST_STAGE,)

_BEST = 1000
_ALIKE, _DUPLICATE = 0.5, 0.8
_NEAREST = 10
_NEIGHBOURS = 20
_GROUP = 16
"""Candidates, a power of 2, of which only the nearest is looked at to tell how near a neighbour
must be."""


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 7]."""
    values = np.zeros((len(candidates), len(NAMES)), dtype=np.float32)
    if not len(candidates):
        return values
    scores = candidates.minmax(FIRST_STAGE)
    best = np.flatnonzero(among_best(scores, _BEST))
    count = max(1, min(_NEAREST, len(candidates) - 1))
    for rows, every, rest in candidates.term_vectors.products(best):
        near = _near(every, at_least=_ALIKE)
        row, _, value = near
        alike, duplicates = (
            np.bincount(row[value > least], minlength=len(every)) for least in (_ALIKE, _DUPLICATE)
        )
        nearest, *of_every = _neighbours(near, scores[best], len(every))
        _, *of_rest = _neighbours(_near(rest), scores[best], len(rest))
        columns = [alike, duplicates, nearest / count, *of_every, *of_rest]
        values[rows] = np.stack(columns, axis=1)
    return values


Products = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""Three arrays [H]: some candidates, others, and the products of both."""


def _near(products: npt.NDArray[np.float32], at_least: float = 1.0) -> Products:
    """The 20 highest products of each candidate [B, M], and all of ``at_least``; others, too."""
    bound = np.minimum(_bound(products), np.float32(at_least))
    places = np.flatnonzero(products >= bound[:, None])
    row, column = np.divmod(places, products.shape[1])
    return row, column, products.ravel()[places]


def _neighbours(
    near: Products, scores: npt.NDArray[np.float64], count: int
) -> tuple[npt.NDArray[np.float64], ...]:
    """Sum of the 10 nearest products, and mean and sum of the 20 nearest's scores: three of [B].

    Args:
        near: what :func:`_near` found.
        scores: [M] of the others.
        count: B.
    """
    row, column, value = near
    # One row of the table for each candidate, filled up with zeros.
    found = np.bincount(row, minlength=count)
    table = np.zeros((count, max(_NEIGHBOURS, int(found.max()))), dtype=np.float32)
    table[row, np.arange(len(row)) - (np.cumsum(found) - found)[row]] = value
    best = np.sort(table, axis=1)[:, -_NEIGHBOURS:].astype(np.float64)
    is_near = value >= best[row, 0]
    row, column, value = row[is_near], column[is_near], value[is_near].astype(np.float64)
    weight = np.bincount(row, weights=value, minlength=count)
    support = np.bincount(row, weights=value * scores[column], minlength=count).astype(np.float64)
    nearest = best[:, -_NEAREST:].sum(axis=1)
    return nearest, support / np.where(weight > 0, weight, 1.0), support


def _bound(products: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """[B] above 0 and at most the 20th highest of the products [B, M], unless that is 0.

    It is the 20th highest of the highest products of groups, which is several times quicker to find
    than the 20th of all.
    """
    count, others = products.shape
    groups, least = others // _GROUP, np.finfo(np.float32).tiny
    if groups < _NEIGHBOURS:
        return np.full(count, least)
    # Neighbours in the list may be alike, so candidate i is of group i modulo their number. Halves
    # are compared as a whole, which is three times as fast as group by group.
    highest = torch.from_numpy(products)[:, : groups * _GROUP]
    while highest.shape[1] > groups:
        half = highest.shape[1] // 2
        highest = torch.maximum(highest[:, :half], highest[:, half:])
    bound: npt.NDArray[np.float32] = np.sort(highest.numpy(), axis=1)[:, -_NEIGHBOURS]
    return np.maximum(bound, least)
