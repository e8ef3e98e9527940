"""The family ``temporal`` against sums over pairs of candidates."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from helpers.feature_lists import computed, of_texts, only, random_list

from rerankers.base import FIRST_STAGE
from rerankers.features.temporal import NAMES, WIDTHS, _times, milliseconds


def test_times_of_identifiers() -> None:
    assert milliseconds("29700859247") == 1_288_834_981_738  # the first, 2010-11-04 01:43:01
    assert milliseconds(str(2**63 - 1)) is not None
    # Numbers of other collections' posts are smaller.
    numbers = ("30000000", str(10**10 - 1), "0" * 5 + str(10**10 - 1), str(2**63))
    for doc_id in ("", "doc1", "-29000000000000000", "2e17", "²" * 11, *numbers):
        assert milliseconds(doc_id) is None


def test_times_of_a_list() -> None:
    usual = [str(n) for n in (2**54, 7, 30_000_000, 10**10 - 1, 10**10, 10**18 - 1)]
    for odd in ([], ["0001"], ["doc1"], ["²"], [str(2**63 - 1)], [str(2**63)], ["-5"]):
        doc_ids = [*usual, *odd]
        assert _times(doc_ids).tolist() == [milliseconds(doc_id) or 0 for doc_id in doc_ids]


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


def test_gaps_of_years() -> None:
    """The grid cuts gaps that are wider than the kernels."""
    candidates = random_list("bbc", 40)
    later = [int(doc_id) + n % 4 * (10**10 << 22) for n, doc_id in enumerate(candidates.doc_ids)]
    candidates = dataclasses.replace(candidates, doc_ids=list(map(str, later)))
    found = computed("temporal", candidates)
    hours = [(doc_id >> 22) / 3_600_000 for doc_id in later]
    assert max(hours) - min(hours) > 8000
    weights = (candidates.minmax(FIRST_STAGE) ** 2).tolist()
    for row, (density, _) in enumerate(expected(hours, weights, 24.0)):
        assert found["density_24h"][row] == pytest.approx(density, rel=2e-3, abs=1e-6)


def test_features_without_times_are_0() -> None:
    for candidates in (
        random_list("bbc", 20, doc_ids=False),
        dataclasses.replace(random_list("bbc", 20), doc_ids=[f"doc{n}" for n in range(20)]),
        of_texts("bbc"),
    ):
        found = computed("temporal", candidates)
        assert not np.array([found[name] for name in NAMES]).any()


def test_candidates_without_a_time_do_not_change_the_others() -> None:
    """The worst and the best candidate have times, as min–max is over all scores."""
    full = random_list("bbc", 30)
    order = np.argsort(full.signal(FIRST_STAGE))
    lost = order[5:12]
    kept = np.setdiff1d(np.arange(30), lost)
    doc_ids = ["x" if row in lost else doc_id for row, doc_id in enumerate(full.doc_ids)]
    some = computed("temporal", dataclasses.replace(full, doc_ids=doc_ids))
    fewer = only(full, kept)
    for name, values in computed("temporal", fewer).items():
        assert [some[name][row] for row in kept] == pytest.approx(values, rel=1e-5), name
        assert not any(some[name][row] for row in lost)


def test_a_candidate_alone_has_no_density() -> None:
    alone = dataclasses.replace(of_texts("bbc", "x"), doc_ids=[str(2**54)])
    assert set(map(tuple, computed("temporal", alone).values())) == {(0.0,)}
