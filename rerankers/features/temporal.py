"""Time of a post, and density of the best candidates at this time.

Temporal feedback by kernel density estimation, Efron, Lin, He & de Vries (2014): the candidates'
times, weighted by their scores, show when the topic was discussed. A candidate is left out of its
own density. Densities are computed on a grid with linear binning of the weights (Fan & Marron,
JCGS 1994), so the work grows linearly with the number of candidates.

A tweet's identifier contains its time: the bits above the lowest 22 are milliseconds since
4 November 2010 (Twitter's Snowflake). Candidates with other identifiers, also smaller numbers, have
no time: their features are 0, and no density includes them.
"""

import numpy as np

from tweetrerank.rerankers.features.candidates import (
    CandidateList,
    Columns,
    family,
    minmax,
)
from tweetrerank.rerankers.features.text_tables import Floats
from tweetrerank.rerankers.pairs import FIRST_STAGE

WIDTHS = (2.0, 6.0, 24.0)  # Standard deviations of the kernels in hours

_STEPS = 16  # Steps of the grid in a kernel's width
_BESIDE = float(np.exp(-0.5 / _STEPS**2))  # Height of a kernel one step from its centre
_REACH = 6  # Widths beyond which a kernel, below 0.00000002 there, counts as 0

_EPOCH = 1_288_834_974_657  # Time zero of these identifiers, in milliseconds since 1970
_FIRST = 10**10
"""Smaller numbers are no such identifiers, whose first one was 29,700,859,247: other collections
number their posts."""
_LEAST = 1e-6


def milliseconds(doc_id: str) -> int | None:
    """Time of a tweet by its identifier, in milliseconds since 1970.

    None if the identifier is not a number from 10^10 to 2^63 - 1 in ASCII digits.
    """
    if not (doc_id.isascii() and doc_id.isdigit() and len(doc_id) < 20):
        return None
    number = int(doc_id)
    return (number >> 22) + _EPOCH if _FIRST <= number < 2**63 else None


def newest_doc_id(milliseconds: int) -> str:
    """The greatest identifier of a time, in milliseconds since 1970; ValueError if none has it."""
    number = ((milliseconds - _EPOCH + 1) << 22) - 1
    if not _FIRST <= number < 2**63:
        raise ValueError(
            f"found {milliseconds} ms since 1970, expected a time of tweets"
        )
    return str(number)


@family(
    " ".join(
        f"{name}_{width:.0f}h" for name in ("density", "surplus") for width in WIDTHS
    )
    + " age newer",
    FIRST_STAGE,
)
def temporal(candidates: CandidateList) -> Columns:
    """Time of a post, and density of the best candidates at this time.

    ``density_h``: Σ w_j K_h(t_i − t_j) / Σ w_j over the other candidates j, with K_h a Gaussian of
    width h hours and height 1, and w the squared min–max first-stage score; in [0, 1]. The grid's
    error is below 0.1 % of the height.
    ``surplus_h``: ``density_h`` divided by the density with w = 1 (at least 0.000001).
    ``age``: ln(1 + hours between this candidate and the newest).
    ``newer``: share of the candidates with a time that are newer, in [0, 1).
    """
    values = np.zeros((2 * len(WIDTHS) + 2, len(candidates)))
    # 0 for identifiers without a time
    times = np.array([milliseconds(d) or 0 for d in candidates.doc_ids], dtype=np.int64)
    if not len(timed := np.flatnonzero(times)):
        return [*values]
    times, weights = times[timed], minmax(candidates.signal(FIRST_STAGE))[timed] ** 2
    ages = (times.max() - times) / 3_600_000.0  # In hours
    # Sum of the others' weights, and their number, for each candidate.
    both = np.stack([weights, np.ones(len(ages))], axis=1)
    others = both.sum(axis=0) - both
    others = np.where(others > _LEAST, others, np.inf)
    pairs = [(_sums(ages, both, width) / others).T for width in WIDTHS]
    surpluses = [density / np.maximum(plain, _LEAST) for density, plain in pairs]
    newer = np.searchsorted(np.sort(ages), ages, side="left") / len(ages)
    densities = [density for density, _ in pairs]
    values[:, timed] = [*densities, *surpluses, np.log1p(ages), newer]
    return [*values]


def _sums(ages: Floats, weights: Floats, width: float) -> Floats:
    """[N, W] weighted sum of the others' kernels at each candidate's age, for weights [N, W]."""
    order = np.argsort(ages, kind="stable")
    # Gaps are cut to the kernels' reach, so the number of candidates bounds the grid's size.
    gaps = np.minimum(
        np.diff(ages[order] / width, prepend=ages[order[0]] / width), _REACH
    )
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
    # Convolution with a kernel of height 1, padded by its reach: the Fourier transform is periodic.
    padded = 1 << (size + _REACH * _STEPS).bit_length()
    waves = np.fft.rfftfreq(padded) * (2.0 * np.pi * _STEPS)
    spectrum = np.exp(-0.5 * waves**2) * (_STEPS * np.sqrt(2.0 * np.pi))
    smooth = np.fft.irfft(np.fft.rfft(grids, padded) * spectrum, padded)[:, :size]
    sums = smooth[:, left] * left_share + smooth[:, left + 1] * right_share
    # Against rounding for a candidate alone in its time.
    others = sums.T - own[:, None] * weights
    return np.where(others > 1e-9, others, 0.0)
