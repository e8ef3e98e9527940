"""DRMM against section 4 of the paper, written out in loops."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from helpers.model_samples import assert_naive_scores, varied, weights_of, word_vectors
from helpers.reranking_samples import encoder

from rerankers.networks.base import Reranker
from rerankers.networks.models.drmm import histograms
from rerankers.text.words import words


def naive_histogram(
    ids: tuple[int, list[int]], vectors: tuple[np.ndarray, np.ndarray]
) -> list[float]:
    """One query word against a post, by 30 bins."""
    counts = [0.0] * 30
    for other, vector in zip(ids[1], vectors[1], strict=True):
        cosine = vectors[0] @ vector / np.linalg.norm(vectors[0]) / np.linalg.norm(vector)
        # Bin number n of 29 is from -1 + 2n/29 on.
        place = max(n for n in range(29) if n == 0 or cosine >= -1 + 2 * n / 29)
        counts[29 if other == ids[0] else place] += 1
    return [math.log(1 + count) for count in counts]


def naive_score(model: Reranker, query: str, post: str) -> float:
    """Section 4: s = Σ g_i z_i."""
    config, weights = model.config, weights_of(model)
    ids, post_ids = (encoder().vocabulary.ids(words(text)) for text in (query, post))
    vectors, post_vectors = word_vectors(model, query), word_vectors(model, post)
    idf = encoder().idf.weights(words(query), config.idf == "classical")
    evidence, shares = [], []
    for place, word in enumerate(ids):
        histogram = naive_histogram((word, post_ids), (vectors[place], post_vectors))
        hidden = np.tanh(weights["evidence.0.weight"] @ histogram + weights["evidence.0.bias"])
        inner = weights["evidence.2.weight"][0] @ hidden + weights["evidence.2.bias"][0]
        evidence.append(10 * math.tanh(inner / 10))
        shares.append(math.exp(weights["gate"][0] * float(idf[place])))
    return sum(z * share / sum(shares) for z, share in zip(evidence, shares, strict=True))


@pytest.mark.parametrize("configuration", ["idf", "rao2019"])
def test_scores_are_those_of_the_paper(configuration: str) -> None:
    model = varied("drmm", configuration)
    with torch.no_grad():  # Not the gate of the start.
        parameter = model.get_parameter("gate")
        parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    assert_naive_scores(model, partial(naive_score, model))


def test_ends_of_the_range_are_in_the_outer_bins() -> None:
    """Rounding takes cosines beyond 1; a synonym whose cosine is 1 is no exact match."""
    cosine = torch.tensor([[[-1.0000002, -1.0, 1.0, 1.0000002, 1.0, -0.5, 0.0]]])
    exact = torch.tensor([[[False, False, False, False, True, False, False]]])
    counts = histograms(cosine, exact, torch.ones(1, 7), 5)
    assert counts.tolist() == [[[2.0, 1.0, 1.0, 2.0, 1.0]]]
    assert not histograms(cosine, exact, torch.zeros(1, 7), 5).any()
