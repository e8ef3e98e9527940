"""Tests of significance against brute force, SciPy and the theory that defines them."""

import itertools
import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.evaluation import significance
from pipeline.evaluation.significance import EXACT_TOPICS, holm, paired_t_test, randomization_test

Test = Callable[[Sequence[float], Sequence[float]], float]


def brute_force(a: list[int], b: list[int]) -> float:
    """The share of all sign patterns, in whole numbers, so without any rounding."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    patterns = list(itertools.product((1, -1), repeat=len(differences)))
    sums = [sum(s * d for s, d in zip(p, differences, strict=True)) for p in patterns]
    return sum(abs(total) >= abs(sum(differences)) for total in sums) / len(patterns)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=9))
def test_exact_for_few_topics(pairs: list[tuple[int, int]]) -> None:
    a, b = map(list, zip(*pairs, strict=True))
    # Thirtieths, as P@30 has: equal sums that differ in their last bits.
    p = randomization_test([x / 30 for x in a], [y / 30 for y in b])
    assert p == pytest.approx(brute_force(a, b), abs=1e-12)


def some_values(topics: int, seed: int) -> tuple[list[float], list[float]]:
    drawn = random.Random(seed)
    a = [drawn.random() for _ in range(topics)]
    return a, [x + drawn.gauss(0.03, 0.1) for x in a]


def test_topics_without_a_difference_do_not_count() -> None:
    a, b = some_values(EXACT_TOPICS, seed=1)
    exact = randomization_test(a, b)
    assert randomization_test(a + [0.5] * 100, b + [0.5] * 100) == exact


@pytest.mark.parametrize("topics", [5, EXACT_TOPICS, EXACT_TOPICS + 1, 49, 60])
def test_scipy_agrees(topics: int) -> None:
    a, b = some_values(topics, seed=topics)
    other = stats.permutation_test(
        (a, b), lambda x, y, axis: (x - y).mean(axis), permutation_type="samples",
        n_resamples=100_000, vectorized=True, rng=1,
    ).pvalue  # fmt: skip
    # Two samples of 100,000: six standard errors of their difference.
    tolerance = 1e-12 if topics <= EXACT_TOPICS else 6 * math.sqrt(2 * other * (1 - other) / 1e5)
    assert randomization_test(a, b) == pytest.approx(other, abs=tolerance)


def test_a_sample_approaches_the_exact_value(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = some_values(EXACT_TOPICS, seed=3)
    exact = randomization_test(a, b)
    monkeypatch.setattr(significance, "EXACT_TOPICS", 0)
    sampled = [randomization_test(a, b, seed=seed) for seed in range(5)]
    assert statistics.mean(sampled) == pytest.approx(exact, abs=0.004)
    assert len(set(sampled)) > 1
    assert randomization_test(a, b, seed=2) == sampled[2]


def test_a_sampled_p_is_never_0() -> None:
    a = [0.01 * n for n in range(40)]
    b = [x + 1 + 0.001 * n for n, x in enumerate(a)]
    assert randomization_test(a, b) == 1 / 100_001
    assert randomization_test(a, b, permutations=12_345) == 1 / 12_346
    assert randomization_test(b, a) == 1 / 100_001


@pytest.mark.parametrize("test", [randomization_test, paired_t_test])
def test_no_difference_is_no_evidence(test: Test) -> None:
    assert test([0.1, 0.2, 0.3], [0.1, 0.2, 0.3]) == 1.0
    assert test([0.1], [0.9]) == 1.0
    assert test([0.0, 1.0] * 20, [1.0, 0.0] * 20) == 1.0


def test_every_pattern_of_the_sample_counts_once() -> None:
    assert randomization_test([0.0, 1.0] * 20, [1.0, 0.0] * 20, permutations=12_345) == 1.0


@pytest.mark.parametrize("topics", [2, 5, 49, 170])
def test_t_test_as_scipy_has_it(topics: int) -> None:
    a, b = some_values(topics, seed=topics)
    assert paired_t_test(a, b) == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-9)
    assert paired_t_test(b, a) == pytest.approx(paired_t_test(a, b))


def test_t_test_of_a_constant_difference() -> None:
    a = [0.1 * n for n in range(10)]
    assert paired_t_test(a, [x + 0.1 for x in a]) == 0.0


@pytest.mark.parametrize("test", [randomization_test, paired_t_test])
@pytest.mark.parametrize(
    ("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([math.nan, 1.0], [1.0, 2.0]), ([math.inf], [1.0])]
)
def test_values_that_cannot_be_compared(test: Test, a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        test(a, b)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([0.04]) == [0.04]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(p_values: list[float]) -> None:
    """Corrected p of one hypothesis: the largest Bonferroni p of any set that it is in."""
    indices = range(len(p_values))
    sets = [s for size in indices for s in itertools.combinations(indices, size + 1)]
    expected = [
        max(min(1.0, len(s) * min(p_values[j] for j in s)) for s in sets if i in s)
        for i in indices
    ]  # fmt: skip
    assert holm(p_values) == pytest.approx(expected)
