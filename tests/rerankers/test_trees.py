"""Boosted trees by bit vectors: the values of LightGBM, bit by bit."""

from typing import Any

import lightgbm
import numpy as np
import pytest

from rerankers import checkpoint
from rerankers.errors import RerankerError
from rerankers.trees.boosting import Trees
from rerankers.trees.evaluate import MOST_LEAVES, Forest
from rerankers.trees.lambdamart import Config


def features(rows: int, columns: int) -> np.ndarray:
    """Random features, a tenth of them zero and a tenth missing."""
    random = np.random.default_rng(1)
    values = random.normal(size=(rows, columns)).round(1)
    values[random.random(values.shape) < 0.1] = np.nan
    values[random.random(values.shape) < 0.1] = 0.0
    return values.astype(np.float32)


def grown(leaves: int, **options: Any) -> lightgbm.Booster:
    values = features(4000, 6)
    labels = np.nan_to_num(values) @ np.arange(6) + 3 * np.isnan(values[:, 0])
    options |= {"num_leaves": leaves, "min_data_in_leaf": 1, "verbosity": -1, "num_threads": 1}
    return lightgbm.train(options, lightgbm.Dataset(values, label=labels), 20)


@pytest.mark.parametrize("options", [{}, {"zero_as_missing": True}, {"use_missing": False}])
@pytest.mark.parametrize("leaves", [2, 8, 9, 33, MOST_LEAVES])
def test_trees_of_any_size_that_miss_values(leaves: int, options: dict[str, bool]) -> None:
    booster, values = grown(leaves, **options), features(300, 6)
    (found,) = Forest([booster.model_to_string()]).sums(values)
    np.testing.assert_array_equal(found, booster.predict(values, num_threads=1))


def test_a_value_at_a_threshold_goes_to_the_left() -> None:
    booster = grown(8)
    thresholds = booster.trees_to_dataframe().query("abs(threshold) < 1e30")
    columns = thresholds["split_feature"].str.removeprefix("Column_").astype(int)
    values = np.zeros((len(columns), 6), np.float32)
    values[np.arange(len(columns)), columns] = thresholds["threshold"]
    values = np.concatenate([values, np.nextafter(values, np.float32(9))])
    (found,) = Forest([booster.model_to_string()]).sums(values)
    np.testing.assert_array_equal(found, booster.predict(values, num_threads=1))


def test_several_lists_and_trees_without_a_split() -> None:
    lists = [grown(4), grown(2, min_gain_to_split=1e9), grown(7)]
    trees, values = Forest([each.model_to_string() for each in lists]), features(5, 6)
    expected = [each.predict(values, num_threads=1) for each in lists]
    np.testing.assert_array_equal(trees.sums(values), expected)
    assert trees.sums(values[:0]).shape == (3, 0)
    # A training of few pairs splits nothing.
    constant = lists[1].model_to_string()
    np.testing.assert_array_equal(Forest([constant]).sums(values), expected[1:2])
    nothing = constant.partition("Tree=0")[0] + "end of trees"
    assert Forest([nothing]).sums(values).tolist() == [[0.0] * 5]


def test_the_shipped_trees() -> None:
    model = checkpoint.load(checkpoint.SHIPPED / "window" / "all", "window")
    assert isinstance(model, Trees)
    values = features(200, len(model.names))
    expected = np.mean([each.predict(values, raw_score=True) for each in model.boosters], axis=0)
    np.testing.assert_array_equal(model.evaluate(values), expected.astype(np.float32))


def test_larger_trees_and_other_kinds_are_errors() -> None:
    with pytest.raises(RerankerError, match="setting leaves: found 65, expected 64 at most"):
        Config(leaves=65, families="links")
    with pytest.raises(ValueError, match="65 leaves, 64 at most"):
        Forest([grown(65).model_to_string()])
    with pytest.raises(ValueError, match="linear leaves"):
        Forest([grown(4, linear_tree=True).model_to_string()])
