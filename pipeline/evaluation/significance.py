"""Whether two runs differ by more than chance: paired tests over topics, and Holm's correction."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

PERMUTATIONS = 100_000
# Up to so many topics that differ, all 2^n sign patterns are counted: exact, and quicker.
EXACT_TOPICS = 16
_BLOCK = 10_000


def randomization_test(
    a: Sequence[float], b: Sequence[float], seed: int = 0, permutations: int = PERMUTATIONS
) -> float:
    """Two-sided p of Fisher's paired randomization test on the difference of means.

    Under the null hypothesis it is chance which of a topic's two values came from which run, so
    the signs of the differences may be flipped: p is the share of sign patterns whose mean
    difference is at least as far from 0 as the one observed. Topics without a difference do not
    matter. Up to :data:`EXACT_TOPICS` others all patterns are counted, beyond that a sample is
    drawn, and p is (count + 1) / (permutations + 1), which is never 0.

    M. D. Smucker, J. Allan, B. Carterette: A comparison of statistical significance tests for
    information retrieval evaluation, CIKM 2007. The + 1: B. Phipson, G. K. Smyth: Permutation
    p-values should never be zero, 2010.

    Args:
        a: one value a topic.
        b: the other run's, of the same topics in the same order.
        seed: of the sample.
        permutations: size of the sample.

    Raises:
        ValueError: the lengths differ or are 0, or a value is not finite.
    """
    import numpy as np

    differences = _differences(a, b)
    differences = differences[differences != 0]
    if not differences.size:
        return 1.0
    # Sums of the same numbers in another order differ in the last bits and still are ties.
    threshold = abs(differences.sum()) - 1e-9 * np.abs(differences).sum()
    if differences.size <= EXACT_TOPICS:
        patterns = np.arange(2**differences.size)
        signs = patterns[:, None] >> np.arange(differences.size) & 1
        return float(np.mean(np.abs(_flipped_sums(signs, differences)) >= threshold))
    generator = np.random.default_rng(seed)
    count = 0
    for start in range(0, permutations, _BLOCK):
        size = (min(_BLOCK, permutations - start), differences.size)
        signs = generator.integers(0, 2, size, dtype=np.int8)
        count += int(np.count_nonzero(np.abs(_flipped_sums(signs, differences)) >= threshold))
    return (count + 1) / (permutations + 1)


def paired_t_test(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of Student's paired t-test on the difference of means.

    1 where nothing can be said: no difference at all, or a single topic. 0 if every topic differs
    by the same amount.

    Raises:
        ValueError: the lengths differ or are 0, or a value is not finite.
    """
    from scipy import stats

    differences = _differences(a, b)
    if not differences.any() or differences.size == 1:
        return 1.0
    deviation = float(differences.std(ddof=1))
    if deviation < 1e-9 * abs(differences).max():  # what is left is rounding
        return 0.0
    statistic = float(differences.mean()) / (deviation / math.sqrt(differences.size))
    return float(2 * stats.t.sf(abs(statistic), differences.size - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of one family of tests, corrected; in the order given.

    Adjusted so that rejecting those up to α keeps the chance of any false rejection below α.
    S. Holm: A simple sequentially rejective multiple test procedure, 1979.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _flipped_sums(signs: "np.ndarray", differences: "np.ndarray") -> "np.ndarray":
    """Sum of the differences for each pattern.

    Args:
        signs: [patterns, topics], 1 where a difference is flipped, else 0.
        differences: [topics].
    """
    return differences.sum() - 2 * (signs.astype(float) @ differences)


def _differences(a: Sequence[float], b: Sequence[float]) -> "np.ndarray":
    import numpy as np

    if len(a) != len(b) or not len(a):
        raise ValueError(
            f"found {len(a)} and {len(b)} values, expected one of each for every topic"
        )
    differences = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    if not np.isfinite(differences).all():
        raise ValueError("found a value that is not finite, expected numbers")
    return differences
