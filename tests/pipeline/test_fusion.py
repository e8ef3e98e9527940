"""The fusion of trees: learning, and trees that extend others."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import reranking_samples
from helpers.fusion_samples import pairs_that_rm3_orders, require_new_topics_ordered
from helpers.reranking_samples import encoder, small_config

from rerankers import checkpoint, features, models
from rerankers.errors import RerankerError
from rerankers.trees.boosting import Trees

NAME = "fusion"
SMALL = "signal:rm3,signal:ql,signal:unknown,first_stage,links"
TWO = "lambdarank,binary"
CHANGES: dict[str, Any] = {"trees": 40, "minimum_leaf": 5, "feature_fraction": 0.5}


def fitted(families: str, objectives: str, start: Trees | None = None) -> Trees:
    changes = CHANGES | {"families": families, "objectives": objectives}
    config = small_config(NAME, "general", **changes)
    return reranking_samples.fitted(NAME, config, *pairs_that_rm3_orders(), start)


@pytest.mark.parametrize("name", ["fusion", "lambdamart"])
def test_a_signal_that_orders_posts_is_learnt_for_new_topics(name: str) -> None:
    """Posts without the signal end up below the others."""
    [first, *_] = models.find(name).configurations
    config = small_config(name, first, **{"families": SMALL} | CHANGES)
    shares = require_new_topics_ordered(name, config).importances()
    of_signal = [shares[feature] for feature in features.names_of(["signal:rm3"])]
    assert sum(of_signal) > 0.9 * sum(shares.values())


def test_trees_that_extend_those_of_fewer_features(tmp_path: Path) -> None:
    """Half as many are added; the first ones are those of the start, which reads no RM3."""
    start = fitted("signal:ql,first_stage", TWO)
    model = fitted("signal:ql,first_stage,signal:rm3", TWO, start)
    pairs, _ = pairs_that_rm3_orders()
    values = features.table(pairs, model.families, encoder().idf).values
    for grown, first in zip(model.boosters, start.boosters, strict=True):
        assert (grown.num_trees(), first.num_trees()) == (60, 40)
        np.testing.assert_array_equal(
            grown.predict(values, raw_score=True, num_iteration=40),
            first.predict(values[:, : len(start.names)], raw_score=True),
        )
    idf = tmp_path / "idf.tsv"
    idf.write_text("1000\nthe\t900\nin\t800\nworld\t90\nwater\t40\nservice\t30\nbbc\t20\n")
    model = dataclasses.replace(model, idf=checkpoint.idf_from(str(idf)))
    checkpoint.save(tmp_path / "saved", model)
    loaded = checkpoint.load(tmp_path / "saved", NAME)
    np.testing.assert_array_equal(loaded.score(pairs), model.score(pairs))
    for families, objectives in (("signal:rm3,signal:ql,first_stage", TWO), (SMALL, "binary")):
        with pytest.raises(RerankerError, match="other features or objectives"):
            fitted(families, objectives, start)
