"""SM-CNN against sections 3 and 4 of the paper, written out in loops over one pair."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers.model_samples import (
    CASES,
    assert_naive_scores,
    naive_overlap,
    naive_windows,
    varied,
    weights_of,
    word_vectors,
)
from helpers.reranking_samples import all_pairs, encoder, small_model, vocabulary

from rerankers.networks.base import Reranker
from rerankers.networks.inputs import Tokenized
from rerankers.networks.training.loop import Examples, train
from rerankers.networks.training.optimizers import make_optimizer
from rerankers.networks.training.settings import Settings
from rerankers.pairs import PRIOR, prior_of_rank


def naive_text(model: Reranker, side: str, text: str) -> np.ndarray:
    """Section 3.1: a text's vector, every digit read as 0."""
    masked = "".join("0" if c.isdigit() else c for c in text)
    weights, width = weights_of(model, f"{side}_sentence."), model.config.width
    windows = naive_windows(word_vectors(model, masked), width, width - 1)
    return (windows @ weights["convolution.weight"] + weights["bias"]).max(axis=0, initial=0)


def naive_score(model: Reranker, query: str, post: str, prior: float = 0.0) -> float:
    """Section 3.2: join layer, hidden layer, output."""
    weights = weights_of(model)
    q, d = naive_text(model, "query", query), naive_text(model, "post", post)
    join = [*q, q @ weights["similarity"] @ d, *d]
    if model.config.overlap:
        join += naive_overlap(query, post)
    if model.config.prior:
        join.append(prior)
    hidden = np.maximum(weights["hidden.weight"] @ join + weights["hidden.bias"], 0)
    return float(weights["score.weight"][0] @ hidden + weights["score.bias"][0])


@pytest.mark.parametrize(
    ("configuration", "changes"),
    [("static", {"hidden": 0}), ("static", {"prior": False, "filters": 1}), ("text", {})],
)
def test_scores_are_those_of_the_network_written_out(
    configuration: str, changes: dict[str, Any]
) -> None:
    model = varied("sm_cnn", configuration, **changes)
    priors = prior_of_rank(np.arange(1, len(CASES) + 1))
    assert_naive_scores(model, partial(naive_score, model), **{PRIOR: priors})


def test_convolutions_get_a_tenth_of_the_weight_decay() -> None:
    model = small_model("sm_cnn", "static", vectors="positive")
    optimizer = make_optimizer(model, Settings(optimizer="adadelta", weight_decay=1e-4))
    groups = [(group["params"], group["weight_decay"]) for group in optimizer.param_groups]
    found = [(id(parameter), decay) for parameters, decay in groups for parameter in parameters]
    expected = {
        id(parameter): 1e-5 if "_sentence." in name else 1e-4
        for name, parameter in model.named_parameters()
    }
    assert {*expected.values()} == {1e-5, 1e-4}
    assert len(found) == len(expected) and dict(found) == pytest.approx(expected)


@pytest.mark.parametrize("vectors", ["static", "positive"])
def test_training_changes_vectors_only_where_it_may(vectors: str) -> None:
    model, pairs = small_model("sm_cnn", "static", vectors=vectors), all_pairs()
    ids = torch.arange(len(vocabulary().known) + 3)
    before = model.vectors(ids).detach().clone()
    settings = Settings(
        loss="pointwise", sampling="pairs", batch_pairs=20, epochs=1, steps=6, learning_rate=0.01
    )
    tokenized = Tokenized.from_pairs(pairs, encoder(), model)
    train(model, Examples(tokenized, np.arange(len(pairs)) % 3 == 0), None, lambda s: 0.0, settings)
    moved = (model.vectors(ids).detach() != before).any(dim=1)
    assert not moved[0], "padding has a vector"
    assert bool(moved.any()) is (vectors == "positive")
