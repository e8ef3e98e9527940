"""K-NRM and Conv-KNRM against the papers' formulas, written out in loops."""

import math
from functools import partial

import numpy as np
import pytest
from helpers.model_samples import (
    CASES,
    assert_naive_scores,
    naive_cosine,
    naive_windows,
    varied,
    weights_of,
    word_vectors,
)

from rerankers.networks.base import Reranker
from rerankers.networks.models.knrm import Model

MEANS = [1.0, 0.9, 0.7, 0.5, 0.3, 0.1, -0.1, -0.3, -0.5, -0.7, -0.9]


def naive_ngrams(model: Reranker, text: str) -> list[np.ndarray]:
    """Vectors of the n-grams of each length: ReLU of a matrix on the words side by side."""
    vectors = word_vectors(model, text)
    if not model.config.longest_ngram:
        return [vectors]
    weights, levels = weights_of(model), []
    for width in range(1, model.config.longest_ngram + 1):
        matrix, bias = (weights[f"convolutions.{width - 1}.{key}"] for key in ("weight", "bias"))
        levels.append(np.maximum(naive_windows(vectors, width) @ matrix + bias, 0))
    return levels


def naive_features(model: Reranker, query: str, post: str) -> list[float]:
    """φ: for each pair of lengths and each kernel, the sum over query words of log Σ K(cosine)."""
    features = []
    for left in naive_ngrams(model, query):
        for right in naive_ngrams(model, post):
            for mean in MEANS:
                sigma = 0.001 if mean == 1.0 else 0.1
                total = 0.0
                for q in left:
                    count = sum(
                        math.exp(-((naive_cosine(q, d) - mean) ** 2) / (2 * sigma**2))
                        for d in right
                    )
                    total += math.log(max(count, 1e-10))
                features.append(0.1 * total)
    return features


def naive_score(model: Reranker, query: str, post: str) -> float:
    weights = weights_of(model)
    inner = float(weights["score.weight"][0] @ naive_features(model, query, post))
    return 10.0 * math.tanh((inner + float(weights["score.bias"][0])) / 10.0)


@pytest.mark.parametrize("configuration", Model.configurations)
def test_scores_are_those_of_the_papers(configuration: str) -> None:
    model = varied("knrm", configuration)
    # A kernel far from its mean multiplies the rounding of a cosine by up to 70: no long texts.
    assert_naive_scores(model, partial(naive_score, model), CASES[:-1])
