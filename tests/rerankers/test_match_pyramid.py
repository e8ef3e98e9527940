"""MatchPyramid against the formulas of the paper, written out in loops over each pair's matrix."""

import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from helpers.model_samples import CASES, assert_naive_scores, varied, weights_of, word_vectors

from rerankers.base import Reranker
from rerankers.models.match_pyramid import Config, dynamic_pooling

SIMILARITIES = ["cosine", "dot"]


def naive_convolution(maps: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """ReLU of the windows around each place of maps [C, rows, columns]; beyond them are zeros."""
    filters, _, width, _ = weight.shape
    _, rows, columns = maps.shape
    margin = width // 2
    above = np.zeros((filters, rows, columns))
    for k in range(filters):
        for i in range(rows):
            for j in range(columns):
                total = bias[k]
                for s in range(width):
                    for t in range(width):
                        x, y = i + s - margin, j + t - margin
                        if 0 <= x < rows and 0 <= y < columns:
                            total += weight[k, :, s, t] @ maps[:, x, y]
                above[k, i, j] = max(total, 0.0)
    return above


def parts_of(length: int, parts: int) -> list[range]:
    return [
        range(math.floor(i * length / parts), math.ceil((i + 1) * length / parts))
        for i in range(parts)
    ]


def naive_pooling(maps: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Dynamic pooling of maps [F, Lq, Ld]."""
    pooled = np.zeros((len(maps), rows, columns))
    if maps.size:
        for i, across in enumerate(parts_of(maps.shape[1], rows)):
            for j, down in enumerate(parts_of(maps.shape[2], columns)):
                pooled[:, i, j] = maps[:, across][:, :, down].max(axis=(1, 2))
    return pooled


def naive_matrix(model: Reranker, query: str, post: str) -> np.ndarray:
    """The similarity of each two words of one pair."""
    config: Config = model.config
    a, b = word_vectors(model, query), word_vectors(model, post)
    a, b = a[: config.query_words], b[: config.post_words]
    matrix = np.zeros((len(a), len(b)))
    for i in range(len(a)):
        for j in range(len(b)):
            scale = 36.0
            if config.similarity == "cosine":
                scale = np.linalg.norm(a[i]) * np.linalg.norm(b[j])
            matrix[i, j] = a[i] @ b[j] / scale
    return matrix


def naive_score(model: Reranker, query: str, post: str) -> float:
    config, weights = model.config, weights_of(model)
    matrix = naive_matrix(model, query, post)
    maps = naive_convolution(matrix[None], weights["first.weight"], weights["first.bias"])
    pooled = naive_pooling(maps, config.pooled_rows, config.pooled_columns)
    maps = naive_convolution(pooled, weights["second.weight"], weights["second.bias"])
    rows, columns = config.pooled_rows // 2, config.pooled_columns // 2
    features = [
        maps[k, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max()
        for k in range(len(maps))
        for i in range(rows)
        for j in range(columns)
    ]
    hidden = np.maximum(weights["score.0.weight"] @ features + weights["score.0.bias"], 0)
    return float((weights["score.3.weight"] @ hidden + weights["score.3.bias"])[0])


SIZES = {"width": 3, "deep_width": 5, "pooled_rows": 3, "pooled_columns": 7, "query_words": 2}


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_scores_are_those_of_the_paper(similarity: str) -> None:
    changes = {"similarity": similarity, "filters": 3, "deep_filters": 4}
    model = varied("match_pyramid", "cosine", **changes)
    assert_naive_scores(model, partial(naive_score, model))


def test_other_sizes_have_the_papers_scores_too() -> None:
    model = varied("match_pyramid", "cosine", **SIZES)
    assert_naive_scores(model, partial(naive_score, model), CASES[:3])


@pytest.mark.parametrize("parts", [2, 5])
def test_dynamic_pooling_is_that_of_texts_without_padding(parts: int) -> None:
    generator = torch.Generator().manual_seed(parts)
    lengths = torch.tensor([13, 1, 5, 0, 8, 2, 7])
    maps = torch.randn(len(lengths), 3, 13, 4, generator=generator) - 2.0
    for row, length in enumerate(lengths.tolist()):
        maps[row, :, length:] = 100.0  # must never be seen
    pooled = dynamic_pooling(maps, lengths, parts)
    assert pooled.shape == (len(lengths), 3, parts, 4)
    for row, length in enumerate(lengths.tolist()):
        if length:
            expected = F.adaptive_max_pool2d(maps[row, :, :length], (parts, 4))
            torch.testing.assert_close(pooled[row], expected)
        else:
            assert not pooled[row].any()
