"""Test the significance of differences between runs by paired tests.

Holm's correction is for several runs.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tweetrerank.pipeline.evaluation.measures import Values, heading, mean
from tweetrerank.pipeline.text import print_table

PERMUTATIONS = 100_000
"""Number of sign patterns in a sample. Up to 16 topics that differ have fewer patterns
than this, so all their patterns are counted."""

_BATCH = 2_000  # Number of sign patterns that are in memory at a time

_DECIMALS = 12
"""Sums are rounded to this number of decimals before they are compared. Without
rounding, sums of the same numbers in another order would differ in their last bits
instead of being ties."""


def randomization_test(
    a: Sequence[float],
    b: Sequence[float],
    seed: int = 0,
    permutations: int = PERMUTATIONS,
) -> float:
    """Return the two-sided p of Fisher's paired randomization test.

    The test is on the difference of means. The null hypothesis is that the two values
    of a topic are exchangeable, so that the signs of the differences are random. p is
    the share of sign patterns with a mean at least as far from 0 as the observed mean.
    Topics without a difference do not matter. If there are at most ``permutations``
    patterns, all of them are counted. Otherwise a random sample of them is counted, and
    p = (count + 1) / (permutations + 1). With fewer than two differing topics, p is 1.

    Sources: M. D. Smucker, J. Allan, B. Carterette: A comparison of statistical
    significance tests for information retrieval evaluation, CIKM 2007. The + 1 is from
    B. Phipson, G. K. Smyth: Permutation p-values should never be zero, 2010.

    Args:
        a: a value for each topic.
        b: a value for each topic, in the same order as ``a``.
        seed: seed of the random sample.
        permutations: number of sign patterns in the sample.
    """
    from scipy import stats

    differences = np.subtract(a, b)
    differences = differences[differences != 0]
    if differences.size < 2:
        return 1.0
    # Given a single sample, SciPy flips the signs of its values.
    result = stats.permutation_test(
        (differences,),
        lambda sample, axis: np.abs(sample.sum(axis=axis).round(_DECIMALS)),
        permutation_type="samples",
        alternative="greater",
        vectorized=True,
        n_resamples=permutations,
        batch=_BATCH,
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def paired_t_test(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the two-sided p of Student's paired t-test on the difference of means.

    p is 1 if there is a single topic or no difference at all, and 0 if every topic
    differs by the same amount.
    """
    from scipy import stats

    differences = np.subtract(a, b)
    largest = np.abs(differences).max()
    if differences.size == 1 or largest == 0:
        return 1.0
    if differences.std(ddof=1) < 1e-9 * largest:  # Rounding errors
        return 0.0
    return float(stats.ttest_rel(a, b).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the corrected p-values of one family of tests, in the same order.

    If all hypotheses with a corrected p-value up to α are rejected, the probability of
    any false rejection is at most α. Source: S. Holm: A simple sequentially rejective
    multiple test procedure, 1979.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    ascending = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(ascending):
        corrected = (len(p_values) - rank) * p_values[index]
        highest = max(highest, min(1.0, corrected))
        adjusted[index] = highest
    return adjusted


def print_comparison(results: Sequence[tuple[str, Values]]) -> None:
    """Print the mean values of runs, and their differences to the first run.

    Each difference has its p-values.
    """
    base_name, base_values = results[0]
    header = [""]
    rows = [[name] for name, _ in results]
    for measure in base_values:
        header += [heading(measure), "diff", "p(rand)", "p(t)"]
        runs = [list(values[measure].values()) for _, values in results]
        for row, cells in zip(rows, _cells(runs), strict=True):
            row += cells
    print_table(header, rows)
    corrected = ""
    if len(results) > 2:
        corrected = f", Holm-corrected over {len(results) - 1} runs"
    print(
        f"diff: to {base_name}; p: two-sided, by Fisher's randomization test and by "
        f"the paired t-test{corrected}"
    )


def _cells(runs: Sequence[list[float]]) -> list[list[str]]:
    """Return the cells of one measure for each run.

    The cells are the mean, the difference to the first run, and the p-values of two
    tests. The first run has only a mean.
    """
    base = runs[0]
    compared = runs[1:]
    p_values = zip(
        _corrected(randomization_test, base, compared),
        _corrected(paired_t_test, base, compared),
        strict=True,
    )
    cells = [[f"{mean(base):.4f}", "", "", ""]]
    for run, (p_random, p_t) in zip(compared, p_values, strict=True):
        difference = round(mean(run) - mean(base), 4) + 0.0  # Adding 0.0 avoids -0
        row = [f"{mean(run):.4f}", f"{difference:+.4f}"]
        row += [_p_text(p_random), _p_text(p_t)]
        cells.append(row)
    return cells


def _corrected(
    test: Callable[[Sequence[float], Sequence[float]], float],
    base: Sequence[float],
    compared: Sequence[Sequence[float]],
) -> list[float]:
    return holm([test(run, base) for run in compared])


def _p_text(p: float) -> str:
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"
