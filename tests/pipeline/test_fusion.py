"""The fusion of trees: learning, contributions of features, and its checkpoint."""

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
from helpers.reranking_samples import all_pairs, encoder, small_config, vocabulary

from rerankers import checkpoint, features, models
from rerankers.errors import RerankerError
from rerankers.models.fusion import Model
from rerankers.reranker import TrainedReranker
from rerankers.scoring import batches as scoring

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


@pytest.fixture(scope="module")
def model() -> Model:
    """Two objectives, and features unknown in training."""
    return fitted(families=f"{SMALL},overlap", objectives=TWO)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("fusion", 0.9),
        ("lambdamart", 0.9),
        pytest.param("linear_fusion", 0.6, marks=pytest.mark.slow),
    ],
)
def test_a_signal_that_orders_posts_is_learnt_for_new_topics(name: str, share: float) -> None:
    """Before that the model is an error; posts without the signal end up below the others."""
    changes = {"trees": 40, "minimum_leaf": 5, "feature_fraction": 0.5, "penalty": 0.001}
    [first, *_] = models.find(name).configurations
    config = small_config(name, first, **{"families": SMALL} | changes)
    model: Any = models.find(name)(config, vocabulary())
    values = torch.zeros(1, len(model.names))
    for ask in (model.head, model.contributions):
        with pytest.raises(RerankerError, match=r"without (trees|weights); train it before"):
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


def test_training_is_deterministic(model: Model) -> None:
    again = fitted(families=model.config.families, objectives=TWO)
    assert again.files() == model.files()


def test_contributions_add_up_to_the_scores(model: Model) -> None:
    """But for a constant; features that no tree reads add nothing."""
    values = represented(model, pairs_that_rm3_orders()[0])
    parts = model.contributions(values)
    assert parts.shape == values.shape
    rest = model.head(values) - parts.sum(dim=1)
    torch.testing.assert_close(rest, rest[:1].expand(len(rest)), rtol=0, atol=1e-4)
    by_name = dict(zip(model.names, parts.T, strict=True))
    for name, share in model.importances().items():
        assert bool(by_name[name].any()) == (share > 0), name
    assert not by_name["signal:unknown.z"].any()
    # Among posts that differ in nothing else, the signal decides: see pairs_that_rm3_orders.
    of_rm3 = sum(part for name, part in by_name.items() if name.startswith("signal:rm3."))
    assert isinstance(of_rm3, torch.Tensor)
    assert np.corrcoef(of_rm3, model.head(values))[0, 1] > 0.95


def save(model: Model, directory: Path) -> Path:
    checkpoint.save(directory, NAME, model, encoder(), {})
    return directory


def load(directory: Path) -> TrainedReranker:
    return checkpoint.load(directory, NAME, idf=encoder().idf)


def test_scores_are_the_same_after_loading(model: Model, tmp_path: Path) -> None:
    """Also the trees of both objectives."""
    pairs, _ = pairs_that_rm3_orders()
    saved = load(save(model, tmp_path / "saved"))
    np.testing.assert_array_equal(saved.score(pairs), scoring.score(model, pairs, encoder()))
    loaded: Any = saved.model
    assert loaded.importances() == model.importances()
    np.testing.assert_array_equal(represented(loaded, all_pairs()), represented(model, all_pairs()))
