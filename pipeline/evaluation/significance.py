"""Significance of the difference between two runs: paired tests over topics, Holm's correction."""

from collections.abc import Callable, Sequence

import numpy as np

from tweetrerank.pipeline.evaluation.measures import Values, heading, mean
from tweetrerank.pipeline.text import print_table

PERMUTATIONS = 100_000
"""Sign patterns in a sample. Up to 16 differing topics have fewer patterns: all are counted."""

_BATCH = 2_000  # Sign patterns in memory at a time

_DECIMALS = 12
"""Sums of the same numbers in another order differ in the last bits; rounded, they are ties."""


def randomization_test(
    a: Sequence[float],
    b: Sequence[float],
    seed: int = 0,
    permutations: int = PERMUTATIONS,
) -> float:
    """Two-sided p of Fisher's paired randomization test on the difference of means.

    Null hypothesis: the two values of a topic are exchangeable, so the signs of the differences
    are random. p is the share of sign patterns with a mean at least as far from 0 as the observed
    one. Topics without a difference do not matter. If there are no more patterns than
    ``permutations``, all are counted; otherwise p = (count + 1) / (permutations + 1) in a sample.

    M. D. Smucker, J. Allan, B. Carterette: A comparison of statistical significance tests for
    information retrieval evaluation, CIKM 2007. The + 1: B. Phipson, G. K. Smyth: Permutation
    p-values should never be zero, 2010.

    ``a`` and ``b`` have a value per topic, in one order; ``seed`` and ``permutations`` are of the
    sample.
    """
    from scipy import stats

    differences = np.subtract(a, b)
    differences = differences[differences != 0]
    if differences.size < 2:
        return 1.0
    # One sample: SciPy flips the signs of its values.
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
    """Two-sided p of Student's paired t-test on the difference of means: 1 for a single topic or no
    difference at all; 0 if every topic differs by the same amount."""
    from scipy import stats

    differences = np.subtract(a, b)
    largest = np.abs(differences).max()
    if differences.size == 1 or largest == 0:
        return 1.0
    if differences.std(ddof=1) < 1e-9 * largest:  # The rest is rounding.
        return 0.0
    return float(stats.ttest_rel(a, b).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of one family of tests, corrected; in the order given. Rejecting those up to α keeps
    the probability of any false rejection below α. S. Holm: A simple sequentially rejective
    multiple test procedure, 1979."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(
        sorted(range(len(p_values)), key=p_values.__getitem__)
    ):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def print_comparison(results: Sequence[tuple[str, Values]]) -> None:
    """Print mean values, and differences to the first run with their p-values."""
    header, rows = [""], [[name] for name, _ in results]
    for measure in results[0][1]:
        header += [heading(measure), "diff", "p(rand)", "p(t)"]
        base, *others = [list(values[measure].values()) for _, values in results]
        rows[0] += [f"{mean(base):.4f}", "", "", ""]
        tests: list[Callable[..., float]] = [randomization_test, paired_t_test]
        p_values = zip(
            *(holm([test(run, base) for run in others]) for test in tests), strict=True
        )
        for row, run, of_run in zip(rows[1:], others, p_values, strict=True):
            difference = round(mean(run) - mean(base), 4) + 0.0  # + 0.0: never -0
            shown = ["<0.0001" if p < 0.0001 else f"{p:.4f}" for p in of_run]
            row += [f"{mean(run):.4f}", f"{difference:+.4f}", *shown]
    print_table(header, rows)
    corrected = (
        f", Holm-corrected over {len(results) - 1} runs" if len(results) > 2 else ""
    )
    print(
        f"diff: to {results[0][0]}; p: two-sided, by Fisher's randomization test and by the paired "
        f"t-test{corrected}"
    )
