"""Attractiveness of posts, separated from the examination of their positions, from clicks.

The position-based model: a post d shown for a query q at position k is clicked if its position is
examined and the post attracts, independently: P(click) = θ_k · α_qd. Chuklin, Markov & de Rijke,
"Click Models for Web Search" (Morgan & Claypool, 2015), sections 3.3 and 4.3; as an estimator of
position bias: Wang et al., "Position Bias Estimation for Unbiased Learning to Rank in Personal
Search" (WSDM 2018), section 4, and Wang et al., "Learning to Rank with Selection Bias in Personal
Search" (SIGIR 2016).

Both estimate α by expectation maximisation, as one number for each pair or as a regression over
features. With few impressions of a pair the number overfits: every position seems examined. Here α
is integrated out, on a grid. Its prior knows two kinds of pairs, each with a Beta distribution:
posts that users want, and those that are clicked by mistake. So only θ, the means of both and the
share of the first kind are fitted:

  E step: posterior of α and of the kind of each pair, given its clicks and skips, θ and the prior;
  M step: θ_k = expected share of examined impressions at k; means of α, shares of kinds.

The ranking that was shown puts attractive posts first. So that θ does not take the blame, the share
is one for each fifth of the pairs by the score of the model that ranked them, as in the second
paper, whose prior is a regression over features. Where the log has no scores it is one for each
place, the rounded mean position of a pair: Mundlak, "On the Pooling of Time Series and Cross
Section Data" (Econometrica, 1978), section 2. Pairs shown at several positions tell θ
from α. Without any, θ stays near its start, 1 / k, as is usual: Joachims, Swaminathan & Schnabel,
"Unbiased Learning-to-Rank with Biased Feedback" (WSDM 2017), section 6.

A pair is relevant if α is above the geometric mean of both kinds' means. With the clicks the
certainty of this grows, not the number of posts that somebody once clicked by mistake.

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

ROUNDS = 300  # Most rounds of expectation maximisation
TOLERANCE = 1e-4  # The fit ends when no examination, nor the mean, changes by more in a round
SHARE_STRENGTH = 10  # Pairs that all groups count for in the share of wanted posts of one group
GROUPS = 5  # Of pairs by their scores; ten gave judgments as good

STRENGTH = 10.0
"""Of both kinds' Beta distributions, in impressions. Of 2, 4, 10 and 30 it gave the best judgments
of simulated clicks on collections of other kinds."""

HIGHEST_MEAN = 0.9
"""Of a kind: in a log that shows clicked posts alone, one click would be certainty."""

MOST_SWAPPED = 30  # Positions whose examination is estimated by swaps

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
    """A fitted position-based model."""

    examination: Floats  # [positions], of the first position 1
    attractiveness: Floats  # [pairs], posterior mean of the click rate at the first position
    relevance: Floats  # [pairs], probability that the post is one that users want


class _Prior(NamedTuple):
    """Of attractiveness: means of posts that users do not and do want, and shares of the latter."""

    low: float
    high: float
    shares: Floats  # [groups]

    @property
    def threshold(self) -> float:
        """Attractiveness of relevant posts, at least."""
        return float(np.sqrt(self.low * self.high))


class _Posterior(NamedTuple):
    """What follows from the evidence, for each pattern."""

    attractiveness: Floats  # Mean of α
    relevance: Floats  # P(α is above the prior's threshold)
    wanted: Floats  # P(of the kind that users want)
    wanted_attractiveness: Floats  # Mean of α, times this where it is of this kind


class _Evidence(NamedTuple):
    """Pairs with the same clicks, skips and group, counted once; most have one impression."""

    clicks: Floats  # [patterns]
    skips: csr_array  # [patterns, positions]
    group: Integers  # [patterns]
    pairs: Floats  # [patterns], number of pairs
    pattern: Integers  # [pairs]


def fit(
    pair: Integers,
    position: Integers,
    click: Booleans,
    *,
    strength: float = STRENGTH,
    known: Floats | None = None,
    group: Integers | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> ClickModel:
    """Fit the model to posts as they were shown, one entry for a post in an impression.

    Args:
        pair: [entries], number of the pair of query and post, from 0.
        position: [entries], from 0.
        click: [entries], whether the post was clicked.
        strength: of the Beta prior, in impressions.
        known: [positions], examination where it is not to be fitted, else NaN.
        group: [pairs], from 0, with one share of wanted posts each (default: by place).
    """
    shown = np.bincount(position)
    clicked = np.bincount(position, weights=click)
    if group is None:
        group = np.rint(np.bincount(pair, position) / np.bincount(pair)).astype(np.int64)
    evidence = _evidence(pair, position, click, group)
    pairs = np.bincount(evidence.group, weights=evidence.pairs).astype(np.float64)
    # Neither 0 nor 1, which expectation maximisation never leaves.
    examination = 1 / np.arange(1.0, len(shown) + 1)
    mean = clicked.sum() / (shown * examination).sum()
    prior = _Prior(_limited(mean / 2), _limited(3 * mean), np.full(len(pairs), 0.25))
    for _ in range(ROUNDS):
        examined, posterior = _expectation(evidence, examination, prior, strength)
        new_prior = _fitted(evidence, posterior, pairs)
        new = (clicked + examined) / np.maximum(shown, 1)
        if known is not None:
            is_known = ~np.isnan(known[: len(new)])
            new[: len(known)][is_known] = known[: len(new)][is_known]
        new[0] = 1
        steps = [*(new - examination), *(new_prior.shares - prior.shares)]
        steps += [new_prior.low - prior.low, new_prior.high - prior.high]
        examination, prior = new, new_prior
        progress(1)
        if np.abs(steps).max() < TOLERANCE:
            break
    _, posterior = _expectation(evidence, examination, prior, strength)
    of_pairs = (values[evidence.pattern] for values in posterior[:2])
    return ClickModel(examination, *of_pairs)


def _fitted(evidence: _Evidence, posterior: _Posterior, pairs: Floats) -> _Prior:
    """The prior that fits the posterior best; ``pairs`` [groups] are the pairs of each group."""
    wanted = evidence.pairs * posterior.wanted
    sums = np.bincount(evidence.group, weights=wanted, minlength=len(pairs))
    clicked = evidence.pairs @ posterior.attractiveness
    of_wanted = evidence.pairs @ posterior.wanted_attractiveness
    overall = wanted.sum() / pairs.sum()
    return _Prior(
        _limited((clicked - of_wanted) / (pairs.sum() - wanted.sum())),
        _limited(of_wanted / wanted.sum()),
        (sums + SHARE_STRENGTH * overall) / (pairs + SHARE_STRENGTH),
    )


def groups_by_score(pair: Integers, score: Floats) -> Integers | None:
    """[pairs], the part of equal size that a pair's mean score is in; None if one has no score.

    Args:
        pair: [entries], as in :func:`fit`.
        score: [entries], of the post in an impression; NaN if it is not known.
    """
    mean = np.bincount(pair, score) / np.bincount(pair)
    if np.isnan(mean).any():
        return None
    limits = np.quantile(mean, np.arange(1, GROUPS) / GROUPS)
    return np.searchsorted(limits, mean, side="right")


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


def _limited(mean: float) -> float:
    """The mean of a kind, within its limits."""
    return float(np.clip(mean, TOLERANCE, HIGHEST_MEAN))


def _evidence(pair: Integers, position: Integers, click: Booleans, group: Integers) -> _Evidence:
    shape = (int(pair.max()) + 1, int(position.max()) + 1)
    clicks = np.bincount(pair, weights=click).astype(np.float64)
    skipped = pair[~click], position[~click]
    skips = csr_array((np.ones(len(skipped[0])), skipped), shape=shape)
    skips.sum_duplicates()
    numbers: dict[tuple[float, int, bytes, bytes], int] = {}
    first: list[int] = []
    pattern = np.empty(shape[0], np.int64)
    for row in range(shape[0]):
        part = slice(skips.indptr[row], skips.indptr[row + 1])
        cells = skips.indices[part].tobytes(), skips.data[part].tobytes()
        key = (float(clicks[row]), int(group[row]), *cells)
        pattern[row] = numbers.setdefault(key, len(numbers))
        if pattern[row] == len(first):
            first.append(row)
    counts = np.bincount(pattern).astype(np.float64)
    return _Evidence(clicks[first], skips[first], group[first], counts, pattern)


def _expectation(
    evidence: _Evidence, examination: Floats, prior: _Prior, strength: float
) -> tuple[Floats, _Posterior]:
    """Expected examined skips at each position, and what follows of each pattern.

    ``examination`` is [positions]; ``strength`` that of both kinds.
    """
    # Masses of bins, not densities: these are infinite at 0 and 1 for weak priors.
    low, high = (
        np.diff(betainc(mean * strength, (1 - mean) * strength, _EDGES)) for mean in prior[:2]
    )
    wanted = prior.shares[:, None] * high  # [groups, bins]
    masses = np.maximum(wanted + (1 - prior.shares[:, None]) * low, 1e-300)
    log_prior, wanted = np.log(masses), wanted / masses
    missed = 1 - np.outer(examination, _NODES)  # [positions, bins]: P(no click)
    log_missed, log_nodes = np.log(missed), np.log(_NODES)
    examined_if_skipped = np.outer(examination, 1 - _NODES) / missed
    examined = np.zeros(len(examination))
    found = np.empty((len(_Posterior._fields), len(evidence.clicks)))
    for start in range(0, len(evidence.clicks), _BLOCK):
        block = slice(start, start + _BLOCK)
        skips, group = evidence.skips[block], evidence.group[block]
        logs = log_prior[group] + skips @ log_missed
        logs += np.outer(evidence.clicks[block], log_nodes)
        posterior = np.exp(logs - logs.max(axis=1, keepdims=True))
        posterior /= posterior.sum(axis=1, keepdims=True)  # [block, bins]
        of_wanted = posterior * wanted[group]
        found[:, block] = (
            posterior @ _NODES,
            posterior[:, prior.threshold <= _NODES].sum(axis=1),
            of_wanted.sum(axis=1),
            of_wanted @ _NODES,
        )
        weighted = skips.T @ (posterior * evidence.pairs[block, None])  # [positions, bins]
        examined += (weighted * examined_if_skipped).sum(axis=1)
    return examined, _Posterior(*found)
