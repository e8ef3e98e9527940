"""The fusion of trees: learning, and trees that extend others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fusion_samples import (
    fit,
    pairs_that_rm3_orders,
    represented,
    require_new_topics_ordered,
)
from helpers.reranking_samples import small_config, vocabulary

from rerankers import features, models
from rerankers.errors import RerankerError
from rerankers.models.fusion import Model

NAME = "fusion"
SMALL = "signal:rm3,signal:ql,signal:unknown,first_stage,links"
TWO = "lambdarank,binary"


def small(families: str = SMALL, **changes: Any) -> Model:
    changes = {"trees": 40, "minimum_leaf": 5, "feature_fraction": 0.5} | changes
    return Model(small_config(NAME, "general", families=families, **changes), vocabulary())


def fitted(**changes: Any) -> Model:
    model = small(**changes)
    fit(model, *pairs_that_rm3_orders())
    return model


@pytest.mark.parametrize(
    ("name", "share"),
    [("fusion", 0.9), ("lambdamart", 0.9)],
)
def test_a_signal_that_orders_posts_is_learnt_for_new_topics(name: str, share: float) -> None:
    """Before that the model is an error; posts without the signal end up below the others."""
    changes = {"trees": 40, "minimum_leaf": 5, "feature_fraction": 0.5}
    [first, *_] = models.find(name).configurations
    config = small_config(name, first, **{"families": SMALL} | changes)
    model: Any = models.find(name)(config, vocabulary())
    values = torch.zeros(1, len(model.names))
    for ask in (model.head, model.contributions):
        with pytest.raises(RerankerError, match=r"without trees; train it before"):
            ask(values)
    require_new_topics_ordered(model)
    shares = model.importances()
    of_signal = [shares[feature] for feature in features.names_of(["signal:rm3"])]
    assert sum(of_signal) > share * sum(shares.values())


def test_trees_that_extend_those_of_fewer_features(tmp_path: Path) -> None:
    """Half as many are added; the first ones are those of the start, which reads no RM3."""
    start = fitted(families="signal:ql,first_stage", objectives=TWO)
    model = small(families="signal:ql,first_stage,signal:rm3", objectives=TWO)
    model.start_from(start)
    require_new_topics_ordered(model)
    pairs, _ = pairs_that_rm3_orders()
    values = represented(model, pairs)
    for grown, first in zip(model.boosters, start.boosters, strict=True):
        assert (grown.num_trees(), first.num_trees()) == (60, 40)
        known = values[:, : len(start.names)].numpy()
        np.testing.assert_array_equal(
            grown.predict(values.numpy(), raw_score=True, num_iteration=40),
            first.predict(known, raw_score=True),
        )
    for name, content in model.files().items():
        (tmp_path / name).write_bytes(content)
    read = small(families=model.config.families, objectives=TWO)
    read.read_files(tmp_path)
    torch.testing.assert_close(read.head(values), model.head(values), rtol=0, atol=0)
    for families, objectives in (("signal:rm3,signal:ql,first_stage", TWO), (SMALL, "binary")):
        with pytest.raises(RerankerError, match="other features or objectives"):
            small(families=families, objectives=objectives).start_from(start)
