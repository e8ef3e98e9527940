"""Attractiveness of posts, separated from the examination of their positions, from clicks.

The position-based model: a post d shown for a query q at position k is clicked if its position is
examined and the post attracts, independently: P(click) = θ_k · α_qd. Chuklin, Markov & de Rijke,
"Click Models for Web Search" (Morgan & Claypool, 2015), sections 3.3 and 4.3; as an estimator of
position bias: Wang et al., "Position Bias Estimation for Unbiased Learning to Rank in Personal
Search" (WSDM 2018), section 4, and Wang et al., "Learning to Rank with Selection Bias in Personal
Search" (SIGIR 2016).

Both estimate α by expectation maximisation, as one number for each pair or as a regression over
features. With few impressions of a pair the number overfits: every position seems examined. Here α
has a Beta prior and is integrated out, on a grid, so that only θ and means of the prior are fitted:

  E step: posterior of α of each pair, given its clicks and skips, θ and the prior;
  M step: θ_k = expected share of examined impressions at k; the prior's means = means of α.

The ranking that was shown puts attractive posts first. So that θ does not take the blame, the prior
has a mean for each place, the rounded mean position of a pair: Mundlak, "On the Pooling of Time
Series and Cross Section Data" (Econometrica, 1978), section 2. Pairs shown at several positions
tell θ from α. Without any, θ stays near its start, 1 / k, as is usual: Joachims, Swaminathan &
Schnabel, "Unbiased Learning-to-Rank with Biased Feedback" (WSDM 2017), section 6.

Where coins have chosen the positions, as an interleaving of two rankings does, θ follows from the
clicks on the same pair at two positions alone: :func:`examination_of_swaps`.

The data determine θ · α alone, so θ of the first position is 1 and no other is above it: α is the
click rate at the first position.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.special import betainc

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

ROUNDS = 300
"""Most rounds of expectation maximisation."""

TOLERANCE = 1e-4
"""The fit ends when no examination, nor the mean, changes by more in a round."""

MEAN_STRENGTH = 10
"""Pairs that the mean of all places counts for in the prior's mean of one place."""

HIGHEST_MEAN = 0.9
"""Of the prior: in a log that shows clicked posts alone, one click would be certainty."""

MOST_SWAPPED = 30
"""Positions whose examination is estimated by swaps."""

FEWEST_CLICKS = 50.0
"""Clicks at each of two positions, on pairs shown at both, that their ratio needs: fewer are less
exact than the fit, whose error is one-sided but small."""

_BINS = 128
_BLOCK = 8192
# Bins of equal width in t, where α = sin² t: the posterior's width in t is 1/(2√n) after n
# examined impressions, whatever α is. 128 bins are exact to about 10,000.
_EDGES: Floats = np.sin(np.linspace(0, np.pi / 2, _BINS + 1)) ** 2
_NODES: Floats = np.sin((np.arange(_BINS) + 0.5) * np.pi / 2 / _BINS) ** 2


class ClickModel(NamedTuple):
    """A fitted position-based model.

    Attributes:
        examination: [positions], of the first position 1.
        attractiveness: [pairs], posterior mean of the click rate at the first position.
        mean: of the attractiveness of all pairs.
    """

    examination: Floats
    attractiveness: Floats
    mean: float

    @property
    def gain(self) -> Floats:
        """[pairs]: (α - mean) / (1 - mean); 0 is the average pair, 1 is a click each time."""
        return (self.attractiveness - self.mean) / (1 - self.mean)


class _Evidence(NamedTuple):
    """Pairs with the same clicks, skips and place, counted once; most have one impression."""

    clicks: Floats  # [patterns]
    skips: csr_array  # [patterns, positions]
    place: Integers  # [patterns], rounded mean position
    pairs: Floats  # [patterns], number of pairs
    pattern: Integers  # [pairs]


def fit(
    pair: Integers,
    position: Integers,
    click: Booleans,
    *,
    strength: float = 2.0,
    known: Floats | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> ClickModel:
    """Fit the model to posts as they were shown, one entry for a post in an impression.

    Args:
        pair: [entries], number of the pair of query and post, from 0.
        position: [entries], from 0.
        click: [entries], whether the post was clicked.
        strength: of the Beta prior, in impressions.
        known: [positions], examination where it is not to be fitted, else NaN.
        progress: is called with 1 after every round.
    """
    shown = np.bincount(position)
    clicked = np.bincount(position, weights=click)
    evidence = _evidence(pair, position, click)
    pairs = np.bincount(evidence.place, weights=evidence.pairs, minlength=len(shown))
    # Neither 0 nor 1, which expectation maximisation never leaves.
    examination = 1 / np.arange(1.0, len(shown) + 1)
    means = np.full(len(shown), _limited(clicked.sum() / (shown * examination).sum()))
    for _ in range(ROUNDS):
        examined, attractiveness = _expectation(evidence, examination, means, strength)
        weights = evidence.pairs * attractiveness
        sums = np.bincount(evidence.place, weights=weights, minlength=len(shown))
        overall = sums.sum() / pairs.sum()
        new_means = _limited((sums + MEAN_STRENGTH * overall) / (pairs + MEAN_STRENGTH))
        new = (clicked + examined) / np.maximum(shown, 1)
        if known is not None:
            is_known = ~np.isnan(known[: len(new)])
            new[: len(known)][is_known] = known[: len(new)][is_known]
        new[0] = 1
        change = max(np.abs(new - examination).max(), np.abs(new_means - means).max())
        examination, means = new, new_means
        progress(1)
        if change < TOLERANCE:
            break
    _, attractiveness = _expectation(evidence, examination, means, strength)
    mean = float(_limited(np.average(attractiveness, weights=evidence.pairs)))
    return ClickModel(examination, attractiveness[evidence.pattern], mean)


def examination_of_swaps(pair: Integers, position: Integers, click: Booleans) -> Floats:
    """[positions], of the first one 1; NaN for positions that no swaps connect with it.

    The ratio of click rates at two positions is pooled over the pairs that were shown at both
    (Mantel & Haenszel 1959), and the ratios are joined by least squares. Agarwal, Zaitsev, Wang,
    Li, Najork & Joachims, "Estimating Position Bias without Intrusive Interventions" (WSDM 2019).

    Args:
        pair: [entries], as in :func:`fit`, of impressions whose positions were chosen by chance.
        position: [entries], from 0.
        click: [entries], whether the post was clicked.
    """
    positions = min(int(position.max(initial=0)) + 1, MOST_SWAPPED)
    kept = position < positions
    _, pair = np.unique(pair[kept], return_inverse=True)
    cells = pair, position[kept]
    shown = np.zeros((int(pair.max(initial=-1)) + 1, positions))
    clicked = shown.copy()
    np.add.at(shown, cells, 1)
    np.add.at(clicked, cells, click[kept])
    rows, targets = [], []
    for k in range(positions):
        for other in range(k):
            total = np.maximum(1, shown[:, k] + shown[:, other])
            here = float((clicked[:, k] * shown[:, other] / total).sum())
            there = float((clicked[:, other] * shown[:, k] / total).sum())
            if min(here, there) >= FEWEST_CLICKS:
                weight = np.sqrt(1 / (1 / here + 1 / there))
                row = np.zeros(positions)
                row[k], row[other] = weight, -weight
                rows.append(row)
                targets.append(weight * np.log(here / there))
    found = np.full(positions, np.nan)
    found[:1] = 0
    reached = {0}
    for _ in range(positions):
        for row in rows:
            ends = {*np.flatnonzero(row).tolist()}
            reached |= ends if ends & reached else set()
    if joined := sorted(reached - {0}):
        is_joined = [bool(row[joined].any()) for row in rows]
        matrix = np.array(rows)[is_joined][:, joined]
        found[joined] = np.linalg.lstsq(matrix, np.array(targets)[is_joined], rcond=None)[0]
    return np.minimum(np.exp(found), 1)


def _limited(means: npt.ArrayLike) -> Floats:
    """Means of a prior, within its limits."""
    return np.clip(np.asarray(means, np.float64), TOLERANCE, HIGHEST_MEAN)


def _evidence(pair: Integers, position: Integers, click: Booleans) -> _Evidence:
    shape = (int(pair.max()) + 1, int(position.max()) + 1)
    clicks = np.bincount(pair, weights=click).astype(np.float64)
    places = np.rint(np.bincount(pair, weights=position) / np.bincount(pair)).astype(np.int64)
    skipped = pair[~click], position[~click]
    skips = csr_array((np.ones(len(skipped[0])), skipped), shape=shape)
    skips.sum_duplicates()
    numbers: dict[tuple[float, int, bytes, bytes], int] = {}
    first: list[int] = []
    pattern = np.empty(shape[0], np.int64)
    for row in range(shape[0]):
        part = slice(skips.indptr[row], skips.indptr[row + 1])
        cells = skips.indices[part].tobytes(), skips.data[part].tobytes()
        key = (float(clicks[row]), int(places[row]), *cells)
        pattern[row] = numbers.setdefault(key, len(numbers))
        if pattern[row] == len(first):
            first.append(row)
    counts = np.bincount(pattern).astype(np.float64)
    return _Evidence(clicks[first], skips[first], places[first], counts, pattern)


def _expectation(
    evidence: _Evidence, examination: Floats, means: Floats, strength: float
) -> tuple[Floats, Floats]:
    """Expected examined skips at each position, and posterior mean of each pattern.

    Args:
        evidence: clicks and skips.
        examination: [positions].
        means: [positions], of the prior of the pairs with this place.
        strength: of the prior.
    """
    # Masses of bins, not densities: these are infinite at 0 and 1 for weak priors.
    limits = betainc(means[:, None] * strength, (1 - means[:, None]) * strength, _EDGES)
    log_prior = np.log(np.maximum(np.diff(limits, axis=1), 1e-300))  # [positions, bins]
    missed = 1 - np.outer(examination, _NODES)  # [positions, bins]: P(no click)
    log_missed, log_nodes = np.log(missed), np.log(_NODES)
    examined_if_skipped = np.outer(examination, 1 - _NODES) / missed
    examined = np.zeros(len(examination))
    attractiveness = np.empty(len(evidence.clicks))
    for start in range(0, len(attractiveness), _BLOCK):
        block = slice(start, start + _BLOCK)
        skips = evidence.skips[block]
        logs = log_prior[evidence.place[block]] + skips @ log_missed
        logs += np.outer(evidence.clicks[block], log_nodes)
        posterior = np.exp(logs - logs.max(axis=1, keepdims=True))
        posterior /= posterior.sum(axis=1, keepdims=True)  # [block, bins]
        attractiveness[block] = posterior @ _NODES
        weighted = skips.T @ (posterior * evidence.pairs[block, None])  # [positions, bins]
        examined += (weighted * examined_if_skipped).sum(axis=1)
    return examined, attractiveness
