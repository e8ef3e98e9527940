"""LambdaMART: learning and training by the command."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fusion_samples import fit, of_topics, pairs_that_rm3_orders, represented
from helpers.reranking_samples import encoder, small_config, vocabulary

from rerankers import checkpoint
from rerankers.base import Pairs
from rerankers.errors import RerankerError
from rerankers.models.lambdamart import Model

NAME = "lambdamart"


def fitted(pairs: Pairs, relevant: np.ndarray, **changes: Any) -> Model:
    model = Model(small_config(NAME, "all", **changes), vocabulary())
    fit(model, pairs, relevant)
    return model


def test_training_is_independent_of_the_order_of_topics() -> None:
    pairs, relevant = pairs_that_rm3_orders()
    order = np.argsort(-pairs.query_index, kind="stable")
    turned = fitted(of_topics(pairs, order), relevant[order])
    assert turned.files() == fitted(pairs, relevant).files()


def test_parts_choose_few_trees_for_random_labels() -> None:
    pairs, _ = pairs_that_rm3_orders()
    noise = np.random.default_rng(1).random(len(pairs)) < 0.3
    chosen = fitted(pairs, noise, trees=40, parts=3)
    every = fitted(pairs, noise, trees=40, parts=0)
    ((few,), (all_of_them,)) = (chosen.boosters, every.boosters)
    assert 1 <= few.num_trees() < all_of_them.num_trees() == 40


def test_every_tree_is_progress() -> None:
    pairs, relevant = pairs_that_rm3_orders()
    told: list[str] = []
    model = Model(small_config(NAME, "all", trees=3, parts=2), vocabulary())
    labels, queries = torch.from_numpy(relevant), torch.from_numpy(pairs.query_index)
    model.fit(represented(model, pairs), labels, queries, told.append)
    counts = [f"lambdarank, its number of trees: {tree} of 3" for tree in (1, 2, 3)]
    assert told[:3] == counts
    assert told[3:] and all(text.startswith("lambdarank, trees: ") for text in told[3:])


def test_topics_without_relevant_posts_are_an_error() -> None:
    pairs, relevant = pairs_that_rm3_orders()
    with pytest.raises(RerankerError, match="found no training topic with both"):
        fitted(pairs, np.zeros_like(relevant))


def test_a_model_without_trees_is_not_saved(tmp_path: Path) -> None:
    model = Model(small_config(NAME, "all"), vocabulary())
    with pytest.raises(RerankerError, match="without trees"):
        checkpoint.save(tmp_path / "saved", NAME, model, encoder(), {})
