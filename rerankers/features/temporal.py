"""Features of a tweet's time, and of how many good candidates are near this time.

This is the temporal feedback by kernel density estimation of Efron, Lin, He & de Vries
(2014). The candidates' times, weighted by their scores, show when the topic was
discussed. The density at a candidate's time leaves out the candidate itself. Densities
are computed on a grid with linear binning of the weights (Fan & Marron, JCGS 1994), so
the work grows linearly with the number of candidates.

A tweet's identifier contains its time: the bits above the lowest 22 are milliseconds
since 4 November 2010 (Twitter's Snowflake). A candidate with any other identifier, such
as a smaller number, has no time. Its features are 0, and no density includes it.
"""

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.features.candidates import CandidateList
from tweetrerank.rerankers.features.family import Columns, family
from tweetrerank.rerankers.features.scaling import minmax
from tweetrerank.rerankers.features.text_tables import Floats
from tweetrerank.rerankers.pairs import FIRST_STAGE
from tweetrerank.rerankers.text.ragged import Rows

WIDTHS = (2.0, 6.0, 24.0)  # Standard deviations of the kernels in hours

_HOUR = 3_600_000.0  # In milliseconds

_STEPS = 16  # Number of grid steps in a kernel's width
_BESIDE = float(np.exp(-0.5 / _STEPS**2))  # Height of a kernel one step from its centre
# A kernel counts as 0 at more widths from its centre. There it is below 0.00000002.
_REACH = 6

_EPOCH = 1_288_834_974_657  # Time zero of identifiers, in milliseconds since 1970

_FIRST = 10**10
"""Lowest number that is read as an identifier with a time.

The first tweet with such an identifier had 29,700,859,247. Smaller numbers may be those
of another collection that numbers its posts.
"""

_LEAST = 1e-6  # Sums and densities below this are not used as divisors


def milliseconds(doc_id: str) -> int | None:
    """Return the time in a tweet's identifier, in milliseconds since 1970.

    Returns None if the identifier is not a number from 10^10 to 2^63 - 1 in ASCII
    digits.
    """
    is_number = doc_id.isascii() and doc_id.isdigit()
    if not is_number or len(doc_id) >= 20:
        return None
    number = int(doc_id)
    if not _FIRST <= number < 2**63:
        return None
    return (number >> 22) + _EPOCH


def newest_doc_id(milliseconds: int) -> str:
    """Return the greatest identifier that a tweet of a given time can have.

    The time is in milliseconds since 1970. Raises ValueError if no identifier has this
    time.
    """
    number = ((milliseconds - _EPOCH + 1) << 22) - 1
    if not _FIRST <= number < 2**63:
        raise ValueError(
            f"found {milliseconds} ms since 1970, expected a time of tweets"
        )
    return str(number)


@family(
    "density_2h density_6h density_24h surplus_2h surplus_6h surplus_24h age newer",
    FIRST_STAGE,
)
def temporal(candidates: CandidateList) -> Columns:
    """Return features of a post's time, and of the best candidates near this time.

    ``density_h``: Σ w_j K_h(t_i − t_j) / Σ w_j over the other candidates j, in [0, 1].
    K_h is a Gaussian with a width of h hours and the height 1, and w is the squared
    min–max first-stage score. The error of the grid is below 0.1 % of the height.
    ``surplus_h``: ``density_h`` divided by the density in which all w are 1. The
    divisor is at least 0.000001.
    ``age``: ln(1 + hours between this candidate and the newest one).
    ``newer``: share of the candidates with a time that are newer, in [0, 1).
    All are 0 for a candidate without a time.
    """
    shape = (2 * len(WIDTHS) + 2, len(candidates))
    values = np.zeros(shape)
    # An identifier without a time gets 0.
    times = np.array(
        [milliseconds(doc_id) or 0 for doc_id in candidates.doc_ids], dtype=np.int64
    )
    timed = np.flatnonzero(times)
    if len(timed):
        weights = minmax(candidates.signal(FIRST_STAGE)) ** 2
        values[:, timed] = _features(times[timed], weights[timed])
    return list(values)


def _features(
    times: Rows,
    weights: Floats,
) -> list[npt.NDArray[np.floating]]:
    """Return all features of N candidates that have times, each [N]."""
    ages = (times.max() - times) / _HOUR
    # ``totals`` has two sums over the other candidates: of their weights, and of ones.
    ones = np.ones(len(ages))
    stacked = np.stack([weights, ones], axis=1)  # [N, 2]
    totals = stacked.sum(axis=0) - stacked
    totals = np.where(totals > _LEAST, totals, np.inf)
    densities = []
    surpluses = []
    for width in WIDTHS:
        density, plain_density = (_sums(ages, stacked, width) / totals).T
        densities.append(density)
        surpluses.append(density / np.maximum(plain_density, _LEAST))
    newer = np.searchsorted(np.sort(ages), ages) / len(ages)
    return [*densities, *surpluses, np.log1p(ages), newer]


def _sums(
    ages: Floats,
    weights: Floats,
    width: float,
) -> Floats:
    """Return weighted sums of the other candidates' kernels at each candidate's age.

    ``weights`` [N, W] has W weights of each candidate. The result is [N, W].
    """
    places = _places(ages, width)
    left = places.astype(np.int64)  # Grid point before each candidate
    right_share = places - left
    left_share = 1.0 - right_share
    size = int(left.max()) + 2
    grids = np.zeros((weights.shape[1], size))  # [W, size]
    for grid, weight in zip(grids, weights.T, strict=True):
        left_weights = weight * left_share
        right_weights = weight * right_share
        grid += np.bincount(left, left_weights, size)
        grid[1:] += np.bincount(left, right_weights, size - 1)
    smooth = _smoothed(grids)
    left_sums = smooth[:, left] * left_share
    right_sums = smooth[:, left + 1] * right_share
    own_kernel = (
        left_share**2 + right_share**2 + 2.0 * _BESIDE * left_share * right_share
    )
    sums = (left_sums + right_sums).T
    others = sums - own_kernel[:, None] * weights
    # Smaller values are rounding errors. They occur if no other candidate is near.
    return np.where(others > 1e-9, others, 0.0)


def _places(ages: Floats, width: float) -> Floats:
    """Return the places of the candidates on the grid [N], in steps."""
    order = np.argsort(ages, kind="stable")
    sorted_ages = ages[order] / width
    # Gaps are cut to the kernels' reach. So the number of candidates limits the size of
    # the grid. The sums stay the same, because kernels count as 0 beyond their reach.
    gaps = np.minimum(
        np.diff(sorted_ages, prepend=sorted_ages[0]),
        _REACH,
    )
    places = np.empty(len(ages))
    places[order] = np.cumsum(gaps) * _STEPS
    return places


def _smoothed(grids: Floats) -> Floats:
    """Return the convolution of grids [W, size] with a kernel of height 1 [W, size].

    The grids are padded by the kernel's reach, because the Fourier transform treats
    them as periodic.
    """
    size = grids.shape[1]
    padded = 1 << (size + _REACH * _STEPS).bit_length()
    waves = np.fft.rfftfreq(padded) * (2.0 * np.pi * _STEPS)
    height = _STEPS * np.sqrt(2.0 * np.pi)
    spectrum = np.exp(-0.5 * waves**2) * height
    transformed = np.fft.rfft(grids, padded) * spectrum
    return np.fft.irfft(transformed, padded)[:, :size]
