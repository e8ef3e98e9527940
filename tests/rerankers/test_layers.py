"""Layers against NumPy, and logistic regression against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from tweetrerank.rerankers.logistic import logistic_regression
from tweetrerank.rerankers.networks.layers.convolutions import ConvolutionTower
from tweetrerank.rerankers.networks.layers.term_vectors import (
    TYPICAL_LENGTH,
    FrozenVectors,
    TrainedVectors,
    hashed_vectors,
    word_vectors,
)
from tweetrerank.rerankers.text.vocabulary import Vocabulary

NORMAL = np.random.default_rng(0).normal(size=(20, 50))
KNOWN = NORMAL.astype(np.float32) * np.float32(3)


def test_hashed_vectors_never_change() -> None:
    """Other literals would make every shipped checkpoint misread unknown terms."""
    table = hashed_vectors(2, 4, seed=1)
    assert table.tolist() == [[-109, 12, -22, -68], [110, 120, -108, -21]]
    end = hashed_vectors(64_000, 32, seed=2)[-1, -4:]
    assert end.tolist() == [65, 49, 8, -18]


def test_frozen_vectors_are_close_to_the_originals() -> None:
    frozen = FrozenVectors(KNOWN, buckets=8)
    stored = frozen(torch.arange(1, 21)).numpy()
    half_a_step = np.abs(KNOWN).max(axis=1, keepdims=True) / 127 / 2
    assert (np.abs(stored - KNOWN) <= half_a_step * 1.001).all()


def test_frozen_vectors_of_unknown_words_are_hashed() -> None:
    frozen = FrozenVectors(KNOWN, buckets=8)
    vectors = frozen(torch.tensor([[0, 21, 28], [20, 0, 22]])).numpy()
    assert vectors.shape == (2, 3, 50)
    assert not vectors[0, 0].any() and not vectors[1, 1].any()  # Padding
    np.testing.assert_array_equal(vectors[1, 0], frozen(torch.tensor(20)).numpy())
    scale = TYPICAL_LENGTH / (73.6 * 50**0.5)
    table = hashed_vectors(8, 50, seed=1) * np.float32(scale)
    unknown = vectors[[0, 0, 1], [1, 2, 2]]
    np.testing.assert_allclose(unknown, table[[0, 7, 1]], rtol=1e-6)


def test_unknown_words_of_rao_2019_are_positive_and_trained() -> None:
    names = [f"w{row}" for row in range(20)]
    vocabulary = Vocabulary(names, KNOWN, buckets=30)
    weight = word_vectors(vocabulary, "positive", unknown=0.25).weight
    assert weight.requires_grad
    table = weight.detach()
    assert np.array_equal(table[1:21].numpy(), KNOWN)
    assert 0 <= float(table[21:].min()) < 0.01
    assert 0.09 < float(table[21:].max()) <= 0.1


def test_low_precision_is_for_training_alone() -> None:
    torch.manual_seed(1)
    vectors = TrainedVectors(KNOWN, 1)
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    tower = ConvolutionTower(vectors, 50, 7, width=3, depth=2)
    exact = tower(ids)[-1]
    tower.precision = "bf16"
    narrow = tower.train()(ids)[-1]
    assert narrow.dtype == torch.float32
    assert not torch.equal(narrow, exact)
    torch.testing.assert_close(narrow, exact, rtol=0.05, atol=0.05)
    assert torch.equal(tower.eval()(ids)[-1], exact)


@pytest.mark.parametrize("penalty", [0.0, 0.01, 5.0])
@pytest.mark.parametrize("scale", [0.01, 1.0, 40.0])
def test_logistic_regression_is_that_of_scikit_learn(
    penalty: float,
    scale: float,
) -> None:
    rng = np.random.default_rng(1)
    features = rng.normal(size=(400, 3)) * scale
    relevant = features @ [1, 2, 0] / scale + rng.logistic(size=400) > 1
    weights = rng.random(400) + 0.1
    inverse_penalty = 1 / penalty if penalty else math.inf
    expected = LogisticRegression(C=inverse_penalty, max_iter=1000)
    expected.fit(features, relevant, weights)
    coefficients, intercept = logistic_regression(features, relevant, weights, penalty)
    np.testing.assert_allclose(coefficients, expected.coef_[0], rtol=1e-6)
    assert intercept == pytest.approx(expected.intercept_[0], rel=1e-6)
