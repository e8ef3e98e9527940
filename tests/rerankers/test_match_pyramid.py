"""MatchPyramid against the formulas of the paper, pair by pair."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from helpers.model_samples import (
    assert_naive_scores,
    naive_cosine,
    naive_perceptron,
    naive_squares,
    varied,
    weights_of,
    word_vectors,
)

from rerankers.networks.base import Reranker


def naive_score(model: Reranker, query: str, post: str) -> float:
    config, weights = model.config, weights_of(model)
    a, b = word_vectors(model, query), word_vectors(model, post)
    a, b = a[: config.query_words], b[: config.post_words]
    if config.similarity == "cosine":
        matrix = np.array([[naive_cosine(x, y) for y in b] for x in a]).reshape(len(a), len(b))
    else:
        matrix = a @ b.T / 36
    maps = naive_squares(matrix[None], weights["first.weight"], weights["first.bias"])
    pooled = np.zeros((len(maps), config.pooled_rows, config.pooled_columns))
    if maps.size:
        pooled = F.adaptive_max_pool2d(torch.from_numpy(maps), pooled.shape[1:]).numpy()
    maps = naive_squares(pooled, weights["second.weight"], weights["second.bias"])
    features = F.max_pool2d(torch.from_numpy(maps), 2).flatten().numpy()
    return float(naive_perceptron(weights, "score", features)[0])


SIZES = {"width": 3, "deep_width": 5, "pooled_rows": 3, "pooled_columns": 7, "query_words": 2}


@pytest.mark.parametrize("changes", [{"similarity": "cosine"}, {"similarity": "dot"}, SIZES])
def test_scores_are_those_of_the_paper(changes: dict[str, Any]) -> None:
    model = varied("match_pyramid", "cosine", **{"filters": 3, "deep_filters": 4} | changes)
    assert_naive_scores(model, partial(naive_score, model))
