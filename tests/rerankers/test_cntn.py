"""CNTN against sections 3 and 4 of the paper, written out in loops."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from helpers.model_samples import (
    CASES,
    assert_naive_scores,
    naive_windows,
    varied,
    weights_of,
    word_vectors,
)

from rerankers.networks.base import Reranker
from rerankers.networks.models.cntn import Model

CONFIGURATIONS = list(Model.configurations)


def naive_k_max(column: list[float], k: int) -> list[float]:
    """The k highest of a list, in its order; of equal ones the earlier."""
    best = sorted(range(len(column)), key=lambda place: (-column[place], place))[:k]
    return [column[place] for place in sorted(best)]


def naive_sentence(weights: dict[str, np.ndarray], vectors: np.ndarray) -> np.ndarray:
    """Section 3 for one text [s, E]: its vector [n_s]."""
    depth, maps, s = 3, vectors, len(vectors)
    for layer in range(1, depth + 1):
        filters = weights[f"convolutions.{layer - 1}.weight"]  # [3 · inputs, F]
        maps = naive_windows(maps, 3, margin=2) @ filters
        k = max(4, math.ceil((depth - layer) * s / depth))
        columns = [naive_k_max(maps[:, f].tolist(), k) for f in range(maps.shape[1])]
        maps = np.array(columns).T.reshape(-1, filters.shape[1])
        maps = np.tanh(maps + weights["biases"][layer - 1])
    top = np.zeros((4, maps.shape[1]))
    top[: len(maps)] = maps
    return np.tanh(weights["output.weight"] @ top.ravel() + weights["output.bias"])


def naive_score(model: Reranker, query: str, post: str) -> float:
    """Equation 1 for one pair."""
    config = model.config
    everything, sides = weights_of(model), []
    for name, text in (("query_sentence.", query), ("post_sentence.", post)):
        vectors = word_vectors(model, text)
        if config.composition == "mean":
            sides.append(vectors.sum(axis=0) / max(1, len(vectors)))
        else:
            sides.append(naive_sentence(weights_of(model, name), vectors))
    q, a = sides
    if config.bilinear == "identity":
        q, a = q / max(np.linalg.norm(q), 1e-6), a / max(np.linalg.norm(a), 1e-6)
    inner = np.zeros(config.slices)
    if config.bilinear == "tensor":
        inner += [q @ m @ a for m in everything["tensor"]]
    elif config.bilinear == "identity":
        inner += q @ a
    if config.linear:
        inner += everything["linear.weight"] @ [*q, *a] + everything["linear.bias"]
    return float(everything["weights"] @ (np.tanh(inner) if config.activation == "tanh" else inner))


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_scores_are_those_of_the_paper(configuration: str) -> None:
    model = varied("cntn", configuration)
    with torch.no_grad():
        model.get_parameter("weights").mul_(1.3)
    # Equal windows would be told apart by their rounding, so the long text repeats no word.
    long = " ".join(f"cuts{n}" for n in range(31))
    assert_naive_scores(model, partial(naive_score, model), [*CASES[:-1], (long, long)])
