"""The family ``temporal`` against sums over pairs of candidates."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from helpers.feature_lists import computed, of_texts, random_list

from rerankers.features.temporal import NAMES, WIDTHS, milliseconds
from rerankers.pairs import FIRST_STAGE


def test_times_of_identifiers() -> None:
    assert milliseconds("29700859247") == 1_288_834_981_738  # the first, 2010-11-04 01:43:01
    assert milliseconds(str(2**63 - 1)) is not None
    # Numbers of other collections' posts are smaller.
    numbers = ("30000000", str(10**10 - 1), "0" * 5 + str(10**10 - 1), str(2**63))
    for doc_id in ("", "doc1", "-29000000000000000", "2e17", "²" * 11, *numbers):
        assert milliseconds(doc_id) is None


def expected(hours: Sequence[float], weights: Sequence[float], width: float) -> list[list[float]]:
    rows = []
    for i, now in enumerate(hours):
        others = [j for j in range(len(hours)) if j != i]
        kernel = {j: math.exp(-((now - hours[j]) ** 2) / (2 * width**2)) for j in others}
        total = sum(weights[j] for j in others)
        density = sum(weights[j] * kernel[j] for j in others) / total if total else 0.0
        rows.append([density, density / max(1e-6, sum(kernel.values()) / len(others))])
    return rows


@pytest.mark.parametrize("scores", [True, False])
def test_densities_are_sums_of_kernels_of_the_others(scores: bool) -> None:
    candidates = random_list("bbc", 50, scores=scores)
    found = computed("temporal", candidates)
    hours = [(int(doc_id) >> 22) / 3_600_000 for doc_id in candidates.doc_ids]
    weights = (candidates.minmax(FIRST_STAGE) ** 2).tolist()
    for width in WIDTHS:
        for row, (density, surplus) in enumerate(expected(hours, weights, width)):
            assert found[f"density_{width:.0f}h"][row] == pytest.approx(density, rel=2e-3, abs=1e-6)
            assert found[f"surplus_{width:.0f}h"][row] == pytest.approx(surplus, rel=2e-3, abs=1e-6)
    for row, hour in enumerate(hours):
        assert found["age"][row] == pytest.approx(math.log1p(max(hours) - hour), abs=1e-5)
        newer = sum(other > hour for other in hours) / len(hours)
        assert found["newer"][row] == pytest.approx(newer)


def test_features_without_times_are_0() -> None:
    for candidates in (
        random_list("bbc", 20, doc_ids=False),
        dataclasses.replace(random_list("bbc", 20), doc_ids=[f"doc{n}" for n in range(20)]),
        of_texts("bbc"),
    ):
        found = computed("temporal", candidates)
        assert not np.array([found[name] for name in NAMES]).any()
