"""SM-CNN against sections 3 and 4 of the paper, written out in loops over one pair."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from helpers.model_samples import naive_windows, weights_of
from helpers.overlap_samples import (
    KNOWN,
    SIZE,
    encoder,
    every_pair,
    every_text_pair,
    naive_overlap,
    vocabulary,
)

from rerankers.networks import batches as scoring
from rerankers.networks.models.sm_cnn import Model
from rerankers.networks.tokenized import Tokenized
from rerankers.networks.training.loop import Examples, train
from rerankers.networks.training.optimizers import make_optimizer
from rerankers.networks.training.settings import Settings
from rerankers.pairs import PRIOR, Pairs, prior_of_rank
from rerankers.text.words import words

FILTERS, WIDTH = 4, 5


def small(configuration: str = "static", seed: int = 0, **changes: Any) -> Model:
    """A small model none of whose biases is 0."""
    torch.manual_seed(seed)
    config = Model.configurations[configuration]
    changes = {"filters": FILTERS, "width": WIDTH, **changes}
    model = Model(dataclasses.replace(config, **changes), vocabulary()).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter += torch.randn(parameter.shape) * 0.3
    return model


def naive_texts(model: Model, query: str, post: str) -> tuple[np.ndarray, np.ndarray]:
    """Section 3.1: both texts' vectors, every digit read as 0."""
    weights, sides = weights_of(model), []
    for side, text in (("query", query), ("post", post)):
        masked = ["".join("0" if c.isdigit() else c for c in word) for word in words(text)]
        ids = torch.tensor(encoder().vocabulary.ids(masked), dtype=torch.long)
        with torch.no_grad():
            vectors = model.vectors(ids).double().numpy().reshape(-1, SIZE)
        filters, bias = (
            weights[f"{side}_sentence.{key}"] for key in ("convolution.weight", "bias")
        )
        maps = naive_windows(vectors, WIDTH, WIDTH - 1) @ filters + bias
        sides.append(maps.max(axis=0, initial=0))
    return sides[0], sides[1]


def naive_score(model: Model, query: str, post: str, prior: float = 0.0) -> float:
    """Section 3.2: join layer, hidden layer, output."""
    weights = weights_of(model)
    q, d = naive_texts(model, query, post)
    join = [*q, q @ weights["similarity"] @ d, *d]
    if model.config.overlap:
        join += naive_overlap(query, post)
    if model.config.prior:
        join.append(prior)
    hidden = np.maximum(weights["hidden.weight"] @ join + weights["hidden.bias"], 0)
    return float(weights["score.weight"][0] @ hidden + weights["score.bias"][0])


def with_priors(priors: np.ndarray | None) -> Pairs:
    return dataclasses.replace(every_pair(), signals={} if priors is None else {PRIOR: priors})


@pytest.mark.parametrize(
    ("configuration", "changes"),
    [
        ("static", {}),
        ("text", {}),
        ("static", {"hidden": 3}),
        ("static", {"prior": False}),
        ("static", {"filters": 1}),
    ],
)
def test_scores_are_those_of_the_network_written_out(
    configuration: str, changes: dict[str, Any]
) -> None:
    model = small(configuration, seed=2, **changes)
    pairs = every_pair()
    priors = prior_of_rank(np.arange(1, len(pairs) + 1))
    scores = scoring.score(model, with_priors(priors), encoder())
    expected = [
        naive_score(model, query, post, prior)
        for (query, post), prior in zip(every_text_pair(), priors.tolist(), strict=True)
    ]
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_convolutions_get_a_tenth_of_the_weight_decay() -> None:
    model = small(vectors="positive")
    optimizer = make_optimizer(model, Settings(optimizer="adadelta", weight_decay=1e-4))
    found = {
        id(parameter): group["weight_decay"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    decay = {name: found[id(parameter)] for name, parameter in model.named_parameters()}
    convolution = {
        f"{side}_sentence.{name}"
        for side in ("query", "post")
        for name in ("convolution.weight", "bias")
    }
    assert convolution < set(decay)
    for name, value in decay.items():
        assert value == pytest.approx(1e-5 if name in convolution else 1e-4), name
    assert len(found) == len(decay), "a parameter is in no group, or in two"


@pytest.mark.parametrize("vectors", ["static", "positive"])
def test_training_changes_vectors_only_where_it_may(vectors: str) -> None:
    model = small(vectors=vectors)
    ids = torch.arange(len(KNOWN) + 3)
    before = model.vectors(ids).detach().clone()
    settings = Settings(
        loss="pointwise", sampling="pairs", batch_pairs=20, epochs=1, steps=6, learning_rate=0.01
    )
    relevant = np.arange(len(every_pair())) % 3 == 0
    examples = Examples(Tokenized.from_pairs(every_pair(), encoder(), model), relevant)
    train(model, examples, None, lambda scores: 0.0, settings)
    moved = (model.vectors(ids).detach() != before).any(dim=1)
    assert not moved[0], "padding has a vector"
    assert bool(moved.any()) is (vectors == "positive")
