"""Tests of significance against brute force and the theory that defines them."""

import itertools
import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.evaluation.significance import holm, paired_t_test, randomization_test

Test = Callable[[Sequence[float], Sequence[float]], float]


def brute_force(a: list[int], b: list[int]) -> float:
    """Share of all sign patterns, in whole numbers: without rounding."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    patterns = list(itertools.product((1, -1), repeat=len(differences)))
    sums = [sum(s * d for s, d in zip(p, differences, strict=True)) for p in patterns]
    return sum(abs(total) >= abs(sum(differences)) for total in sums) / len(patterns)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=9))
def test_randomization_is_exact_for_few_topics(pairs: list[tuple[int, int]]) -> None:
    a, b = map(list, zip(*pairs, strict=True))
    # Thirtieths, as in P@30: equal sums that differ in their last bits.
    p = randomization_test([x / 30 for x in a], [y / 30 for y in b])
    assert p == pytest.approx(brute_force(a, b), abs=1e-12)


def test_a_sample_is_close_to_the_exact_value() -> None:
    drawn = random.Random(3)
    a = [drawn.random() for _ in range(12)]
    b = [x + drawn.gauss(0.03, 0.1) for x in a]
    exact = randomization_test(a, b)
    sampled = [randomization_test(a, b, seed, permutations=4_000) for seed in (1, 2, 2)]
    assert sampled == pytest.approx([exact] * 3, abs=6 * math.sqrt(exact * (1 - exact) / 4_000))
    assert sampled[0] != sampled[1] == sampled[2]
    certain = [1 + 0.001 * n for n in range(40)], [0.01] * 40
    for pair in (certain, certain[::-1]):
        assert randomization_test(*pair, permutations=12_345) == pytest.approx(1 / 12_346)


@pytest.mark.parametrize("test", [randomization_test, paired_t_test])
def test_no_difference_is_no_evidence(test: Test) -> None:
    assert test([0.1, 0.2, 0.3], [0.1, 0.2, 0.3]) == 1.0
    assert test([0.1], [0.9]) == 1.0
    assert test([0.0, 1.0] * 20, [1.0, 0.0] * 20) == 1.0


def test_t_test_by_hand() -> None:
    # Differences of .1, .2, .3: t = .2 / (.1 / sqrt 3) = 3.464 with 2 degrees of freedom.
    assert paired_t_test([0.2, 0.4, 0.6], [0.1, 0.2, 0.3]) == pytest.approx(0.0741799, abs=1e-6)
    assert paired_t_test([0.1, 0.2, 0.3], [0.2, 0.4, 0.6]) == pytest.approx(0.0741799, abs=1e-6)
    a = [0.1 * n for n in range(10)]
    assert paired_t_test(a, [x + 0.1 for x in a]) == 0.0


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([0.04]) == [0.04]
    assert holm([]) == []
