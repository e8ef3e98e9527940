"""When a post was written, and whether the best candidates were written at the same time.

Temporal feedback by kernel density estimation, Efron, Lin, He & de Vries (2014): the times of the
candidates, weighted by their scores, tell when there was something to say. A candidate is left out
of its own density. Densities are computed on a grid, to which a candidate's weight is given by
linear binning (Fan & Marron, JCGS 1994): work grows with the number of candidates, not its square.

A tweet's identifier has its time: milliseconds since 4 November 2010 in the bits above the lowest
22 (Twitter's Snowflake). Identifiers that are not such numbers have no time, and a candidate
without a time has zeros and is in no density.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rerankers.base import FIRST_STAGE
from rerankers.features._candidates import CandidateList

WIDTHS = (2.0, 6.0, 24.0)
"""Standard deviations of the kernels in hours."""

NAMES = (
    *(f"density_{width:.0f}h" for width in WIDTHS),
    *(f"surplus_{width:.0f}h" for width in WIDTHS),
    "age",
    "newer",
)
"""
``density_h``: Σ w_j K_h(t_i − t_j) / Σ w_j over the other candidates j, with K_h a Gaussian of
width h hours and height 1, and w the squared min–max first-stage score; in [0, 1]. Off by the
grid's 0.1 % of the height at most.
``surplus_h``: ``density_h`` divided by the same with w = 1, of which at least 0.000001 is taken.
``age``: ln(1 + hours between this candidate and the newest).
``newer``: share of the candidates with a time that are newer, in [0, 1).
"""

SIGNALS = (FIRST_STAGE,)

_STEPS = 16
"""Steps of the grid to a kernel's width."""
_BESIDE = float(np.exp(-0.5 / _STEPS**2))
"""A kernel's height one step from its middle."""
_REACH = 6
"""Widths after which a kernel counts as 0: it is below 0.00000002 there."""

_EPOCH = 1_288_834_974_657
"""Milliseconds from 1970 to the first of these identifiers."""
_HOUR = 3_600_000.0
_LEAST = 1e-6


def milliseconds(doc_id: str) -> int | None:
    """Time of a tweet since 1970 by its identifier; None if that has no time.

    Such an identifier is a number from 2^22 to 2^63 - 1 in ASCII digits.
    """
    if not (doc_id.isascii() and doc_id.isdigit() and len(doc_id) < 20):
        return None
    number = int(doc_id)
    return (number >> 22) + _EPOCH if 2**22 <= number < 2**63 else None


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 8]."""
    values = np.zeros((len(candidates), len(NAMES)), dtype=np.float32)
    times = _times(candidates.doc_ids)
    timed = np.flatnonzero(times)
    if len(timed):
        times, weights = times[timed], candidates.minmax(FIRST_STAGE)[timed] ** 2
        values[timed] = _features((times.max() - times) / _HOUR, weights)
    return values


def _times(doc_ids: Sequence[str]) -> npt.NDArray[np.int64]:
    """:func:`milliseconds` of each identifier [N], 0 for those that have no time."""
    joined, lengths = "".join(doc_ids), [*map(len, doc_ids)]
    if joined.isascii() and joined.isdigit() and min(lengths) > 0 and max(lengths) < 19:
        # As nearly always: numbers of 63 bits.
        numbers = np.fromiter(map(int, doc_ids), dtype=np.int64, count=len(doc_ids))
        return np.where(numbers < 2**22, 0, (numbers >> 22) + _EPOCH)
    return np.array([milliseconds(doc_id) or 0 for doc_id in doc_ids], dtype=np.int64)


def _features(
    ages: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """[N, 8] of ages in hours [N] and weights [N]."""
    # For each candidate: the weights of the others, and their number.
    both = np.stack([weights, np.ones(len(ages))], axis=1)
    others = both.sum(axis=0) - both
    densities, surpluses = [], []
    for width in WIDTHS:
        density, plain = (_sums(ages, both, width) / np.where(others > _LEAST, others, np.inf)).T
        densities.append(density)
        surpluses.append(density / np.maximum(plain, _LEAST))
    newer = np.searchsorted(np.sort(ages), ages, side="left") / len(ages)
    return np.stack([*densities, *surpluses, np.log1p(ages), newer], axis=1)


def _sums(
    ages: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], width: float
) -> npt.NDArray[np.float64]:
    """[N, W] kernels around the other candidates, at each one's age, for W weights [N, W]."""
    order = np.argsort(ages, kind="stable")
    # Where a gap is wider than the kernels reach, it is as if it were no wider: the grid's size is
    # bounded by the number of candidates, whatever years they are from.
    gaps = np.minimum(np.diff(ages[order] / width, prepend=ages[order[0]] / width), _REACH)
    place = np.empty(len(ages))
    place[order] = np.cumsum(gaps) * _STEPS
    left = place.astype(np.int64)
    right_share = place - left
    left_share = 1.0 - right_share
    own = left_share**2 + right_share**2 + 2.0 * _BESIDE * left_share * right_share
    size = int(left.max()) + 2
    grids = np.zeros((weights.shape[1], size))
    for grid, weight in zip(grids, weights.T, strict=True):
        grid += np.bincount(left, weights=weight * left_share, minlength=size)
        grid[1:] += np.bincount(left, weights=weight * right_share, minlength=size - 1)
    smooth = _smoothed(grids)
    found = smooth[:, left] * left_share + smooth[:, left + 1] * right_share
    # What rounding leaves of a candidate that is alone is nothing.
    others = found.T - own[:, None] * weights
    return np.where(others > 1e-9, others, 0.0)


def _smoothed(grids: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """[W, G] grids [W, G] with a kernel of one width and height 1 around each of their points."""
    # Beyond a grid there is as much room as a kernel reaches, as the transform is periodic.
    length = grids.shape[1]
    size = 1 << (length + _REACH * _STEPS).bit_length()
    waves = np.fft.rfftfreq(size) * (2.0 * np.pi * _STEPS)
    spectrum = np.exp(-0.5 * waves**2) * (_STEPS * np.sqrt(2.0 * np.pi))
    smooth: npt.NDArray[np.float64] = np.fft.irfft(np.fft.rfft(grids, size) * spectrum, size)
    return smooth[:, :length]
