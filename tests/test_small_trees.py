"""Lists of small trees against LightGBM's own prediction."""

from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt
import pytest

from rerankers.small_trees import SmallTrees

FEATURES = 12


def values(count: int, unknown: float = 0.2) -> npt.NDArray[np.float32]:
    """Features of which some are not known, and many are the same."""
    rng = np.random.default_rng(count)
    found = rng.normal(size=(count, FEATURES)).astype(np.float32)
    found[:, ::2] = found[:, ::2].round()
    found[rng.random(found.shape) < unknown] = np.nan
    # One that is whole while training, and one of which it is only known whether it is.
    found[:, 0] = np.nan_to_num(found[:, 0])
    found[:, 1] = np.where(np.isnan(found[:, 1]), np.nan, 1.0)
    return found


def grown(leaves: int, trees: int = 50, **options: Any) -> lightgbm.Booster:
    features = values(3000)
    labels = (np.nan_to_num(features, nan=-0.5).sum(axis=1) > 0) ^ np.isnan(features[:, 1])
    options |= {"objective": "binary", "num_leaves": leaves, "verbosity": -1, "num_threads": 1}
    return lightgbm.train(options, lightgbm.Dataset(features, label=labels), trees)


@pytest.mark.parametrize("leaves", [2, 5, 9])
@pytest.mark.parametrize("count", [1, 7, 3000])
def test_scores_are_those_of_lightgbm(leaves: int, count: int) -> None:
    """Also where a feature is not known that was in training, or lies on a threshold."""
    booster = grown(leaves)
    small = SmallTrees.of([booster])
    assert small is not None and small.values.shape == (50, 2 ** (leaves - 1))
    features = values(count)
    features[::3] = np.nan
    expected = booster.predict(features, raw_score=True)
    np.testing.assert_allclose(small.scores(features), expected, rtol=1e-12, atol=1e-12)


def test_a_number_on_a_threshold_goes_left() -> None:
    """And the next one of single precision right, though the threshold has more digits."""
    booster = grown(7)
    small = SmallTrees.of([booster])
    assert small is not None
    is_split = np.isfinite(small.thresholds)
    columns = small.columns[small.splits[is_split]]
    for sign in (-np.inf, np.inf):
        features = np.zeros((is_split.sum(), FEATURES), dtype=np.float32)
        thresholds = small.thresholds[is_split]
        features[np.arange(len(columns)), columns] = thresholds
        expected = booster.predict(features, raw_score=True)
        np.testing.assert_allclose(small.scores(features), expected, rtol=1e-12, atol=1e-12)
        with np.errstate(over="ignore"):
            beside = np.nextafter(thresholds, np.float32(sign))
        features[np.arange(len(columns)), columns] = np.where(np.isfinite(beside), beside, 0)
        expected = booster.predict(features, raw_score=True)
        np.testing.assert_allclose(small.scores(features), expected, rtol=1e-12, atol=1e-12)


def test_several_lists_are_added() -> None:
    """Of trees of several sizes, down to a single leaf."""
    boosters = [grown(9), grown(3, 7), grown(2, 1, min_gain_to_split=1e9)]
    small = SmallTrees.of(boosters)
    assert small is not None and len(small.values) == 58
    features = values(100)
    expected = sum(booster.predict(features, raw_score=True) for booster in boosters)
    np.testing.assert_allclose(small.scores(features), expected, rtol=1e-12)
    alone = SmallTrees.of(boosters[2:])
    assert alone is not None and len(alone.columns) == 0
    np.testing.assert_allclose(
        alone.scores(features), boosters[2].predict(features, raw_score=True)
    )
    assert len(small.scores(features[:0])) == 0


def test_what_does_not_fit_is_left_to_lightgbm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large trees before they are taken apart, which is done by recursion."""
    assert SmallTrees.of([grown(5, zero_as_missing=True)]) is None
    monkeypatch.delattr(lightgbm.Booster, "dump_model")
    assert SmallTrees.of([grown(9), grown(10)]) is None


def test_a_pairs_score_is_its_own() -> None:
    """To the bit, whatever is scored beside it."""
    small = SmallTrees.of([grown(7)])
    assert small is not None
    features = values(2500)
    whole = small.scores(features)
    np.testing.assert_array_equal(small.scores(features[700:1801]), whole[700:1801])
    np.testing.assert_array_equal(small.scores(features[[5]]), whole[[5]])
