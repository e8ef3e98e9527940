"""MP-CNN against Algorithms 1 and 2 of He et al. (2015), written out in loops over one pair."""

import math
from typing import Any

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
from helpers.reranking_samples import VECTOR_SIZE

from rerankers.networks.base import Reranker
from rerankers.networks.models.mp_cnn import Model, _DimensionConvolution


class Naive:
    """The same network for one pair, in double precision."""

    def __init__(self, model: Reranker) -> None:
        self.model, self.config, self.weights = model, model.config, weights_of(model)

    def group_a(self, sentence: np.ndarray, width: float, pooling: str) -> np.ndarray:
        """Block A: one vector."""
        if math.isinf(width):
            return pool(sentence, pooling)
        weight = self.weights[f"holistic.{int(width) - 1}.weight"]  # [F, width · E]
        bias = self.weights[f"holistic.{int(width) - 1}.bias"]
        return pool(np.tanh(naive_windows(sentence, int(width)) @ weight.T + bias), pooling)

    def group_b(self, sentence: np.ndarray, width: int, pooling: str) -> np.ndarray:
        """Block B: [dimensions, filters]."""
        weight = self.weights[f"by_dimension.{width - 1}.weight"]  # [width, filters, E]
        bias = self.weights[f"by_dimension.{width - 1}.bias"]
        windows = naive_windows(sentence, width).reshape(-1, width, 1, VECTOR_SIZE)
        maps = np.tanh((windows * weight).sum(axis=1) + bias)  # [L, filters, E]
        return pool(maps.reshape(len(maps), bias.size), pooling).reshape(bias.shape).T

    def unit_2(self, x: np.ndarray, y: np.ndarray) -> list[float]:
        cosine = x @ y / math.sqrt((x @ x + 1e-8) * (y @ y + 1e-8))
        return [cosine, float(np.linalg.norm(x - y))]

    def unit_1(self, x: np.ndarray, y: np.ndarray) -> list[float]:
        differences = np.abs(x - y).tolist()
        if self.config.l1 == "sum":
            differences = [sum(differences)]
        return self.unit_2(x, y) + differences

    def features(self, query: str, post: str) -> list[float]:
        s1, s2 = word_vectors(self.model, query), word_vectors(self.model, post)
        widths: list[float] = [*range(1, self.config.widths + 1), math.inf]
        poolings = ("max", "min", "mean")
        features = []
        for p in poolings:  # Algorithm 1
            m1 = np.array([self.group_a(s1, w, p) for w in widths])  # [widths, filters]
            m2 = np.array([self.group_a(s2, w, p) for w in widths])
            for i in range(VECTOR_SIZE):
                features += self.unit_2(m1[:, i], m2[:, i])
        for p in poolings:  # Algorithm 2
            for w1 in widths:
                for w2 in widths:
                    features += self.unit_1(self.group_a(s1, w1, p), self.group_a(s2, w2, p))
        for p in ("max", "min"):
            for w in range(1, self.config.widths + 1):
                b1, b2 = self.group_b(s1, w, p), self.group_b(s2, w, p)
                for i in range(self.config.dimension_filters):
                    features += self.unit_1(b1[:, i], b2[:, i])
        return features

    def score(self, query: str, post: str) -> float:
        x = np.array(self.features(query, post))
        hidden = np.tanh(self.weights["hidden.weight"] @ x + self.weights["hidden.bias"])
        return float(self.weights["score.weight"][0] @ hidden + self.weights["score.bias"][0])


def pool(maps: np.ndarray, pooling: str) -> np.ndarray:
    """[L, K] to [K]; nothing is pooled to zeros."""
    if not len(maps):
        return np.zeros(maps.shape[1])
    return np.asarray({"max": np.max, "min": np.min, "mean": np.mean}[pooling](maps, axis=0))


@pytest.mark.parametrize(
    "changes", [{}, {"dimension_filters": 1, "widths": 1}, {"widths": 5}], ids=str
)
@pytest.mark.parametrize("configuration", Model.configurations)
def test_scores_are_those_of_the_algorithms_written_out(
    configuration: str, changes: dict[str, Any]
) -> None:
    model = varied("mp_cnn", configuration, **{"dimension_filters": 3} | changes)
    assert_naive_scores(model, Naive(model).score, CASES[:-1])


@pytest.mark.parametrize("width", [1, 3])
def test_gradients_of_pooled_windows_are_differences(width: int) -> None:
    torch.manual_seed(1)
    convolution = _DimensionConvolution(4, 5, width).double()
    ids = torch.tensor([[1, 2, 3, 4, 2, 5], [3, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])  # 2 twice
    vectors = torch.randn(6, 4, dtype=torch.float64).requires_grad_()
    there = torch.arange(6).gt(0).unsqueeze(1)

    def pooled(vectors: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return convolution((vectors * there)[ids], ids.ne(0).unsqueeze(2))

    parameters = vectors, convolution.weight, convolution.bias
    assert torch.autograd.gradcheck(pooled, parameters)
    trained = pooled(vectors)
    with torch.no_grad():
        torch.testing.assert_close(pooled(vectors), trained, rtol=0, atol=0)
