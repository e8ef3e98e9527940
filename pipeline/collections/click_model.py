"""Estimate judgments from a click log by a position-based model of clicks.

The model says that users click on a post if they examine its position and the post
attracts them. For post d at position k for query q, P(click) = θ_k · α_qd. See
Chuklin, Markov & de Rijke, "Click Models for Web Search" (2015), sections 3.3 and 4.3,
and Wang et al. (WSDM 2018), section 4.

There are two kinds of pairs: wanted posts, and posts that are clicked by mistake. The
prior of α is a mixture of one Beta distribution for each kind. A pair is relevant if α
is at least the geometric mean of the means of both kinds.

Pairs that were shown at several positions tell θ from α. If there are none, θ stays
near its start value, 1 / k.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tweetrerank.indexes.records import is_doc_id
from tweetrerank.pipeline.collections.click_log import ClickLog
from tweetrerank.pipeline.collections.trec import Qrels
from tweetrerank.pipeline.text import table_lines

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Counts = npt.NDArray[Any]  # Whole numbers, as integers or as floats

RELEVANT = 0.5  # Smallest probability of grade 1
HIGHLY_RELEVANT = 0.9  # Smallest probability of grade 2

ROUNDS = 300  # Largest number of rounds of expectation maximisation
# The fit ends when every parameter changes by less than this in a round.
TOLERANCE = 1e-4
SHARE_STRENGTH = 10
"""Number of pairs that the share of all groups counts as in the share of one group."""
HIGHEST_MEAN = 0.9
"""Largest mean of a kind.

Without this bound, the mean would be 1 in a log that has only clicked posts. One click
would then make a post certainly relevant.
"""
STRENGTH = 10  # Number of impressions that a kind's Beta distribution counts as
BLOCK = 8192  # Number of patterns whose posteriors are in memory together

# Bins of equal width in t, where α = sin² t. After n examined impressions, the width of
# the posterior in t is 1/(2√n) for any α: 128 bins are exact to about n = 10,000.
_BINS = 128
EDGES: Floats = np.sin(np.linspace(0, np.pi / 2, _BINS + 1)) ** 2
NODES: Floats = np.tile(np.sin((np.arange(_BINS) + 0.5) * np.pi / 2 / _BINS) ** 2, 2)
"""Values of α: first those of the bins for mistakes, then those for wanted posts."""
WANTED: Floats = np.repeat((0.0, 1.0), _BINS)
"""1 for each bin of wanted posts, 0 for each bin of mistakes."""


class _Patterns(NamedTuple):
    """The distinct combinations of clicks, skips and group that pairs have.

    Most pairs have one impression, so there are far fewer patterns than pairs. P is the
    number of patterns, and K is the number of positions.
    """

    clicks: Counts  # [P]
    skips: Any  # [P, K], sparse: impressions without a click by position
    group: Integers  # [P], rounded mean position
    times: Integers  # [P], number of pairs
    of_pair: Integers  # [pairs], index of the pair's pattern


class _Parameters(NamedTuple):
    """The parameters of the model. G is the number of groups."""

    examination: Floats  # θ [K]
    means: Floats  # μ [2], of mistakes and of wanted posts
    shares: Floats  # ρ [G], share of wanted posts in a group


class _Expectations(NamedTuple):
    """Expected values under the posterior distribution of α."""

    # [P, 4]: E[α], P(relevant), P(wanted), and E[α · wanted]
    moments: Floats
    examined: Floats  # [K], number of examined impressions without a click


def judgments(log: ClickLog, relevance: Floats) -> Qrels:
    """Return the grades of posts by query_id and doc_id.

    ``relevance`` [pairs] has the probability of relevance of each pair. The help of
    ``pipeline.clicks`` explains how grades follow from it.
    """
    clicks = np.bincount(log.pair, log.click)
    skips = np.bincount(log.pair, log.skipped)
    is_judged = (clicks > 0) | ((skips > 0) & (relevance < RELEVANT))
    is_highly = (clicks > 1) & (relevance >= HIGHLY_RELEVANT)
    grades = np.where(is_highly, 2, relevance >= RELEVANT)
    grades = np.where(clicks > 0, grades, 0)
    qrels: Qrels = {}
    for (number, doc_id), grade, judged in zip(
        log.pairs, grades, is_judged, strict=True
    ):
        if judged and is_doc_id(doc_id):
            query_id = log.topics[number].query_id
            qrels.setdefault(query_id, {})[doc_id] = int(grade)
    return qrels


def fit(log: ClickLog) -> tuple[Floats, Floats, Floats]:
    """Fit the model by expectation maximisation.

    Returns (θ, E[α], P(relevant)). θ has a value for each of K positions. E[α], the
    mean attractiveness, and P(relevant) have a value for each pair of the log.

    Let a pair have c clicks, and s_k impressions without a click at position k. The
    posterior of its α is computed on a grid:

        p(α | c, s) ∝ p_g(α) · α^c · Π_k (1 − θ_k α)^s_k
        p_g(α) = (1 − ρ_g) · Beta(α, μ_0 S, (1 − μ_0) S)
                 + ρ_g · Beta(α, μ_1 S, (1 − μ_1) S)

    S is :data:`STRENGTH`. μ_0 is the mean of mistakes, and μ_1 that of wanted posts.
    ρ_g is the share of wanted posts among pairs with the rounded mean position g. It is
    needed because a ranking puts attractive posts first, which must not be taken for an
    effect of θ (Mundlak, Econometrica 1978, section 2). A round sets

        θ_k = (clicks at k + Σ_skips θ_k E[(1 − α) / (1 − θ_k α)]) / impressions at k
        μ_0 = E[α | mistake],  μ_1 = E[α | wanted],  ρ_g = P(wanted | g)

    θ_1 is always 1. ρ_g is smoothed with :data:`SHARE_STRENGTH` pairs that have the
    share of all groups (Chuklin et al., section 4.3; Wang et al., section 4).
    """
    shown = np.bincount(log.position)
    clicked = np.bincount(log.position, log.click)
    patterns = _patterns_of(log, len(shown))
    pairs = np.bincount(patterns.group[patterns.of_pair])  # [G]
    parameters = _first_parameters(shown, clicked, len(pairs))
    before = np.array(np.inf)
    for round_number in range(ROUNDS + 1):
        expectations = _expect(patterns, parameters)
        values = np.concatenate(parameters)
        change = np.abs(values - before).max()
        if round_number == ROUNDS or change < TOLERANCE:
            break
        before = values
        parameters = _maximize(patterns, expectations, shown, clicked, pairs)
    attractiveness, relevance = expectations.moments[patterns.of_pair, :2].T
    return parameters.examination, attractiveness, relevance


def _patterns_of(log: ClickLog, positions: int) -> _Patterns:
    from scipy.sparse import csr_array

    impressions = np.bincount(log.pair)
    clicks = np.bincount(log.pair, log.click)
    mean_position = np.bincount(log.pair, log.position) / impressions
    group = np.rint(mean_position).astype(np.int64)
    cells = (np.where(log.click, 0.0, 1.0), (log.pair, log.position))
    skips = csr_array(cells, shape=(len(impressions), positions))
    # A random number stands for a pattern. Two patterns share a number with a
    # probability of about 2**-52.
    random = np.random.default_rng(0).random(positions + 2)
    numbers = skips @ random[2:] + clicks * random[0] + group * random[1]
    _, first, of_pair, times = np.unique(
        numbers,
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    return _Patterns(clicks[first], skips[first], group[first], times, of_pair)


def _first_parameters(shown: Integers, clicked: Counts, groups: int) -> _Parameters:
    # No parameter may begin as 0 or 1, which expectation maximisation never leaves.
    examination = 1 / np.arange(1.0, len(shown) + 1)
    mean = clicked.sum() / (shown * examination).sum()
    means = np.clip([mean / 2, 3 * mean], TOLERANCE, HIGHEST_MEAN)
    return _Parameters(examination, means, np.full(groups, 0.25))


def _expect(patterns: _Patterns, parameters: _Parameters) -> _Expectations:
    """Return the expected values under these parameters (the E step)."""
    from scipy.special import softmax

    examination, means, _ = parameters
    masses = _prior_masses(parameters)  # [G, bins]
    missed = 1 - np.outer(examination, NODES)  # [K, bins]: P(no click)
    is_relevant = np.sqrt(means[0] * means[1]) <= NODES
    sums = np.stack((NODES, is_relevant, WANTED, NODES * WANTED), axis=1)
    count = len(patterns.group)
    moments = np.empty((count, 4))
    skipped = np.zeros(missed.shape)
    for start in range(0, count, BLOCK):
        block = slice(start, start + BLOCK)
        skips = patterns.skips[block]
        priors = np.log(np.maximum(masses, 1e-300))[patterns.group[block]]
        logs = priors + skips @ np.log(missed)
        logs = logs + np.outer(patterns.clicks[block], np.log(NODES))
        posterior = softmax(logs, axis=1)  # [block, bins]
        moments[block] = posterior @ sums
        skipped += skips.T @ (posterior * patterns.times[block, None])
    examined = (skipped * (1 - NODES) / missed).sum(axis=1) * examination
    return _Expectations(moments, examined)


def _prior_masses(parameters: _Parameters) -> Floats:
    """Return the prior probability of each bin for each group, [G, bins].

    Probabilities of bins are used because the densities of weak priors are infinite at
    0 and 1.
    """
    from scipy.special import betainc

    low, high = (
        np.diff(betainc(mean * STRENGTH, (1 - mean) * STRENGTH, EDGES))
        for mean in parameters.means
    )
    shares = parameters.shares
    return np.hstack((np.outer(1 - shares, low), np.outer(shares, high)))


def _maximize(
    patterns: _Patterns,
    expectations: _Expectations,
    shown: Integers,
    clicked: Counts,
    pairs: Integers,
) -> _Parameters:
    """Return the parameters that are best under these expected values (the M step)."""
    examination = (clicked + expectations.examined) / np.maximum(shown, 1)
    examination[0] = 1
    times = patterns.times
    attracted, _, wanted, attracted_wanted = expectations.moments.T * times
    means = np.array(
        [
            (attracted - attracted_wanted).sum() / (times - wanted).sum(),
            attracted_wanted.sum() / wanted.sum(),
        ]
    )
    means = np.clip(means, TOLERANCE, HIGHEST_MEAN)
    prior = SHARE_STRENGTH * wanted.sum() / times.sum()
    wanted_of_group = np.bincount(patterns.group, wanted)
    shares = (wanted_of_group + prior) / (pairs + SHARE_STRENGTH)
    return _Parameters(examination, means, shares)


def report(log: ClickLog, examination: Floats, qrels: Qrels) -> str:
    """Return a text with counts of impressions and judgments, and by position."""
    grades = Counter[int]()
    for judged in qrels.values():
        grades.update(judged.values())
    by_grade = ", ".join(f"{grades[grade]:,} of grade {grade}" for grade in (2, 1, 0))
    places = np.unique(np.column_stack((log.pair, log.position)), axis=0)
    moved = (np.bincount(places[:, 0]) > 1).sum()
    header = ("position", "impressions", "click rate", "examination")
    lines = [
        f"{log.impressions:,} impressions, {log.with_click:,} with a click",
        f"{len(log.topics):,} queries, {len(qrels):,} with judgments",
        f"{len(log.pairs):,} pairs of query and post, {grades.total():,} judged: "
        f"{by_grade}",
        f"{moved:,} pairs at several positions; without any, examination is about "
        "1 / k\n",
        *table_lines(header, _position_rows(log, examination)),
    ]
    return "\n".join(lines)


def _position_rows(log: ClickLog, examination: Floats) -> list[tuple[str, ...]]:
    """Return a row for each of the first ten positions, and one row for all others."""
    shown = np.bincount(log.position)
    clicked = np.bincount(log.position, log.click)
    first = np.arange(min(len(shown), 11))
    columns = (
        np.add.reduceat(values, first)
        for values in (shown, clicked, shown * examination)
    )
    rows: list[tuple[str, ...]] = []
    for place, count, clicks, looks in zip(first + 1, *columns, strict=True):
        label = f"{place}"
        if place == len(first) < len(shown):
            label = f"{place}-{len(shown)}"
        rates = (f"{clicks / count:.3f}", f"{looks / count:.3f}")
        rows.append((label, f"{count:,}", *rates))
    return rows
