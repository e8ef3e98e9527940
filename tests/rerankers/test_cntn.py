"""CNTN against sections 3 and 4 of the paper, written out in loops."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from helpers.model_samples import CASES, assert_naive_scores, varied, weights_of, word_vectors
from helpers.reranking_samples import all_pairs, encoder, small_model

from rerankers.base import Reranker
from rerankers.layers.pooling import k_max_pooling
from rerankers.models.cntn import Model, dynamic_k
from rerankers.scoring import batches as scoring

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
        inputs = filters.shape[0] // 3
        if s:
            edge = np.zeros((2, inputs))
            padded = np.concatenate([edge, maps, edge])
            maps = np.array(
                [
                    sum(padded[i + j] @ filters[j * inputs : (j + 1) * inputs] for j in range(3))
                    for i in range(len(padded) - 2)
                ]
            )
        else:
            maps = np.zeros((0, filters.shape[1]))
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
    score = 0.0
    for i in range(config.slices):
        inner = 0.0
        if config.bilinear == "tensor":
            m = everything["tensor"][i]
            inner += sum(q[x] * m[x, y] * a[y] for x in range(len(q)) for y in range(len(a)))
        elif config.bilinear == "identity":
            inner += q @ a
        if config.linear:
            row = everything["linear.weight"][i]
            inner += row @ np.concatenate([q, a]) + everything["linear.bias"][i]
        outer = math.tanh(inner) if config.activation == "tanh" else inner
        score += everything["weights"][i] * outer
    return float(score)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_scores_are_those_of_the_paper(configuration: str) -> None:
    model = varied("cntn", configuration)
    with torch.no_grad():
        model.get_parameter("weights").mul_(1.3)
    # Equal windows would be told apart by their rounding, so the long text repeats no word.
    long = " ".join(f"cuts{n}" for n in range(31))
    assert_naive_scores(model, partial(naive_score, model), [*CASES[:-1], (long, long)])


@pytest.mark.parametrize("seed", range(2))
def test_k_max_pooling_is_that_of_loops(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.normal(size=(6, 9, 4)).astype(np.float32)
    if seed % 2:
        values = np.round(values)  # many equal values
    lengths = np.array([9, 5, 1, 0, 7, 3])
    k = random.integers(1, 12, size=6)
    for row, length in enumerate(lengths):
        values[row, length:] = 100.0  # must never be kept
    pooled, kept = k_max_pooling(
        torch.from_numpy(values), torch.from_numpy(lengths), torch.from_numpy(k)
    )
    assert pooled.shape == (6, k.max(), 4)
    assert kept.tolist() == np.minimum(k, lengths).tolist()
    for row, length in enumerate(lengths):
        for feature in range(4):
            expected = naive_k_max(values[row, :length, feature].tolist(), int(k[row]))
            expected += [0.0] * (int(k.max()) - len(expected))
            assert pooled[row, :, feature].tolist() == expected


def test_k_max_pooling_passes_gradients_to_what_it_keeps() -> None:
    values = torch.tensor([[[3.0], [1.0], [2.0], [9.0]]], requires_grad=True)
    pooled, _ = k_max_pooling(values, torch.tensor([3]), torch.tensor([2]))
    assert pooled.flatten().tolist() == [3.0, 2.0]
    (pooled * torch.tensor([[[5.0], [7.0]]])).sum().backward()
    assert values.grad is not None
    assert values.grad.flatten().tolist() == [5.0, 0.0, 7.0, 0.0]


def test_k_follows_the_length_of_the_text() -> None:
    lengths = torch.arange(60)
    for depth in (1, 3):
        for layer in range(1, depth + 1):
            expected = [max(4, -((layer - depth) * s // depth)) for s in range(60)]
            assert dynamic_k(lengths, layer, depth, 4).tolist() == expected
    # Kalchbrenner et al. (2014), section 3.4: 18 words, k_top 3, three layers.
    eighteen = torch.tensor([18])
    assert [int(dynamic_k(eighteen, layer, 3, 3)) for layer in (1, 2, 3)] == [12, 6, 3]


def test_the_cosine_starts_as_one() -> None:
    scores = scoring.score(small_model("cntn", "cntn_i"), all_pairs(), encoder())
    assert (np.abs(scores) <= 1 + 1e-6).all()
