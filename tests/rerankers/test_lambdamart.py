"""LambdaMART: learning."""

from typing import Any

import numpy as np
import pytest
from helpers import reranking_samples
from helpers.fusion_samples import pairs_that_rm3_orders
from helpers.reranking_samples import small_config

from rerankers.errors import RerankerError
from rerankers.pairs import Pairs
from rerankers.trees.boosting import Trees

NAME = "lambdamart"


def fitted(pairs: Pairs, relevant: np.ndarray, progress: Any = print, **changes: Any) -> Trees:
    config = small_config(NAME, "all", **changes)
    return reranking_samples.fitted(NAME, config, pairs, relevant, progress=progress)


def test_training_is_independent_of_the_order_of_topics() -> None:
    pairs, relevant = pairs_that_rm3_orders()
    order = np.argsort(-pairs.query_index, kind="stable")
    turned = fitted(pairs.take(order), relevant[order])
    assert turned.files() == fitted(pairs, relevant).files()
    with pytest.raises(RerankerError, match="found no training topic with both"):
        fitted(pairs, np.zeros_like(relevant))


def test_parts_choose_few_trees_for_random_labels() -> None:
    pairs, _ = pairs_that_rm3_orders()
    noise = np.random.default_rng(1).random(len(pairs)) < 0.3
    chosen = fitted(pairs, noise, trees=40, parts=3)
    every = fitted(pairs, noise, trees=40, parts=0)
    ((few,), (all_of_them,)) = (chosen.boosters, every.boosters)
    assert 1 <= few.num_trees() < all_of_them.num_trees() == 40


def test_every_tree_is_progress() -> None:
    told: list[str] = []
    fitted(*pairs_that_rm3_orders(), told.append, trees=3, parts=2)
    counts = [f"lambdarank, its number of trees: {tree} of 3" for tree in (1, 2, 3)]
    assert told[:3] == counts
    assert told[3:] and all(text.startswith("lambdarank, trees: ") for text in told[3:])
