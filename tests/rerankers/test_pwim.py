"""PWIM against sections 4 to 7 of the paper, written out in loops."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from helpers.model_samples import (
    CASES,
    Weights,
    assert_naive_scores,
    naive_squares,
    varied,
    weights_of,
    word_vectors,
)

from rerankers.networks.base import Reranker
from rerankers.networks.models.pwim import PER_PLACE, Model, focus


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def naive_lstm(weights: Weights, name: str, vectors: list[np.ndarray]) -> list[np.ndarray]:
    """Equations of section 4: a state for each word in the order in which they are read."""
    units = weights[f"{name}.weight_hh_l0"].shape[1]
    hidden, cell, states = np.zeros(units), np.zeros(units), []
    for vector in vectors:
        gates = weights[f"{name}.weight_ih_l0"] @ vector + weights[f"{name}.bias_ih_l0"]
        gates += weights[f"{name}.weight_hh_l0"] @ hidden + weights[f"{name}.bias_hh_l0"]
        enter, forget, new, leave = np.split(gates, 4)
        cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
        hidden = sigmoid(leave) * np.tanh(cell)
        states.append(hidden)
    return states


def naive_states(model: Reranker, weights: Weights, text: str) -> list[list[np.ndarray]]:
    """Four states of each word: side by side, forward, backward, added."""
    vectors = list(word_vectors(model, text))[: model.config.size]
    forward = naive_lstm(weights, "from_beginning", vectors)
    backward = naive_lstm(weights, "from_end", vectors[::-1])[::-1]
    return [[np.concatenate([f, b]), f, b, f + b] for f, b in zip(forward, backward, strict=True)]


def compare_unit(x: np.ndarray, y: np.ndarray) -> list[float]:
    """coU of section 5."""
    lengths = np.sqrt(x @ x + 1e-8) * np.sqrt(y @ y + 1e-8)
    return [x @ y / lengths, np.sqrt(((x - y) ** 2).sum() + 1e-8), x @ y]


def naive_picks(preference: dict[tuple[int, int], float]) -> set[tuple[int, int]]:
    """One pass of the similarity focus: most preferred first, no word twice."""
    picked: set[tuple[int, int]] = set()
    for t, s in sorted(preference, key=lambda pair: -preference[pair]):
        if all(t != row and s != column for row, column in picked):
            picked.add((t, s))
    return picked


def naive_cube(model: Reranker, query: str, post: str) -> np.ndarray:
    """Sections 4 to 6: [13, size, size]."""
    config = model.config
    weights = weights_of(model)
    queries, posts = (naive_states(model, weights, text) for text in (query, post))
    cube = np.zeros((13, config.size, config.size))
    for t, left in enumerate(queries):
        for s, right in enumerate(posts):
            layers = [compare_unit(x, y) for x, y in zip(left, right, strict=True)]
            cube[:, t, s] = np.append(np.concatenate(layers), 1.0)
    pairs = [(t, s) for t in range(len(queries)) for s in range(len(posts))]
    later = {(t, s): PER_PLACE * (t * config.size + s) for t, s in pairs}
    picked = naive_picks({pair: cube[0][pair] - later[pair] for pair in pairs})
    picked |= naive_picks({pair: -cube[1][pair] - later[pair] for pair in pairs})
    for t, s in pairs:
        if (t, s) not in picked:
            cube[:12, t, s] *= config.focus_weight
    return cube


def naive_score(model: Reranker, query: str, post: str) -> float:
    weights = weights_of(model)
    image = naive_cube(model, query, post)
    for layer in range(5):
        kernel, bias = (weights[f"convolutions.{layer}.{name}"] for name in ("weight", "bias"))
        image = naive_squares(image, kernel, bias)
        if layer < 4:
            image = F.max_pool2d(torch.from_numpy(image), 2, ceil_mode=True).numpy()
    vector = image.max(axis=(1, 2))
    inner = weights["score.0.weight"] @ vector + weights["score.0.bias"]
    hidden = np.tanh(inner) if model.config.activation == "tanh" else np.maximum(inner, 0)
    return float((weights["score.3.weight"] @ hidden + weights["score.3.bias"])[0])


@pytest.mark.parametrize("configuration", Model.configurations)
def test_scores_are_those_of_the_network_written_out(configuration: str) -> None:
    model = varied("pwim", configuration, channel_share=0.05)
    assert_naive_scores(model, partial(naive_score, model))


@pytest.mark.parametrize("changes", [{"focus_weight": 0.5}, {"size": 5}], ids=str)
def test_every_switch_does_what_it_says(changes: dict[str, Any]) -> None:
    model = varied("pwim", "compact", **changes)
    assert_naive_scores(model, partial(naive_score, model), [*CASES[:3], CASES[-1]])


def test_of_equal_matches_the_earlier_is_picked_whatever_the_rounding() -> None:
    noise = 1e-7 * torch.randn(20, 6, 9, generator=torch.Generator().manual_seed(1))
    there = torch.ones(20, 6, 9, dtype=torch.bool)
    picked = focus(0.5 + noise, 1.0 - noise, there, 32)
    assert picked.equal(torch.eye(6, 9, dtype=torch.bool).expand(20, 6, 9))
