"""Layers against NumPy, and logistic regression against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from tweetrerank.rerankers.logistic import logistic_regression
from tweetrerank.rerankers.networks import layers
from tweetrerank.rerankers.text.vocabulary import Vocabulary

KNOWN = np.random.default_rng(0).normal(size=(20, 50)).astype(np.float32) * np.float32(
    3
)


def test_hashed_vectors_never_change() -> None:
    """By literals: other numbers would make every shipped checkpoint misread unknown terms."""
    table = layers.hashed_vectors(2, 4, seed=1)
    assert table.tolist() == [[-109, 12, -22, -68], [110, 120, -108, -21]]
    assert layers.hashed_vectors(64_000, 32, seed=2)[-1, -4:].tolist() == [
        65,
        49,
        8,
        -18,
    ]


def test_frozen_vectors_are_close_to_the_originals_or_hashed() -> None:
    frozen = layers.FrozenVectors(KNOWN, buckets=8)
    known = frozen(torch.arange(1, 21)).numpy()
    half_a_step = np.abs(KNOWN).max(axis=1, keepdims=True) / 127 / 2
    assert (np.abs(known - KNOWN) <= half_a_step * 1.001).all()
    vectors = frozen(torch.tensor([[0, 21, 28], [20, 0, 22]])).numpy()
    assert vectors.shape == (2, 3, 50)
    assert not vectors[0, 0].any() and not vectors[1, 1].any()
    np.testing.assert_array_equal(vectors[1, 0], known[19])
    scale = layers.TYPICAL_LENGTH / (73.6 * 50**0.5)
    table = layers.hashed_vectors(8, 50, seed=1) * np.float32(scale)
    np.testing.assert_allclose(
        vectors[[0, 0, 1], [1, 2, 2]], table[[0, 7, 1]], rtol=1e-6
    )


def test_unknown_words_of_rao_2019_are_positive_and_trained() -> None:
    vocabulary = Vocabulary([f"w{row}" for row in range(20)], KNOWN, buckets=30)
    weight = layers.word_vectors(vocabulary, "positive", unknown=0.25).weight
    table = weight.detach()
    assert weight.requires_grad and np.array_equal(table[1:21].numpy(), KNOWN)
    assert 0 <= float(table[21:].min()) < 0.01 < 0.09 < float(table[21:].max()) <= 0.1


def test_low_precision_is_for_training_alone() -> None:
    torch.manual_seed(1)
    vectors, ids = layers.TrainedVectors(KNOWN, 1), torch.tensor([[1, 2, 3, 4, 5, 6]])
    tower = layers.ConvolutionTower(vectors, 50, 7, width=3, depth=2)
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
    penalty: float, scale: float
) -> None:
    random = np.random.default_rng(1)
    features = random.normal(size=(400, 3)) * scale
    relevant = features @ [1, 2, 0] / scale + random.logistic(size=400) > 1
    weights = random.random(400) + 0.1
    other = LogisticRegression(C=1 / penalty if penalty else math.inf, max_iter=1000)
    other.fit(features, relevant, weights)
    coefficients, intercept = logistic_regression(features, relevant, weights, penalty)
    np.testing.assert_allclose(coefficients, other.coef_[0], rtol=1e-6)
    assert intercept == pytest.approx(other.intercept_[0], rel=1e-6)
