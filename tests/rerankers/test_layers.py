"""Layers, losses, settings and logistic regression against NumPy, loops and scikit-learn."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from rerankers.errors import RerankerError
from rerankers.logistic import logistic_regression
from rerankers.networks.layers import (
    TYPICAL_LENGTH,
    ConvolutionTower,
    FrozenVectors,
    TrainedVectors,
    hashed_vectors,
    word_vectors,
)
from rerankers.networks.training.loop import LOSSES
from rerankers.networks.training.settings import Settings
from rerankers.text.vocabulary import Vocabulary

KNOWN = np.random.default_rng(0).normal(size=(20, 50)).astype(np.float32) * np.float32(3)


def test_hashed_vectors_never_change() -> None:
    """By literals: other numbers would make every shipped checkpoint misread unknown terms."""
    assert hashed_vectors(2, 4, seed=1).tolist() == [[-109, 12, -22, -68], [110, 120, -108, -21]]
    assert hashed_vectors(64_000, 32, seed=2)[-1, -4:].tolist() == [65, 49, 8, -18]


def test_frozen_vectors_are_close_to_the_originals_or_hashed() -> None:
    frozen = FrozenVectors(KNOWN, buckets=8)
    known = frozen(torch.arange(1, 21)).numpy()
    half_a_step = np.abs(KNOWN).max(axis=1, keepdims=True) / 127 / 2
    assert (np.abs(known - KNOWN) <= half_a_step * 1.001).all()
    vectors = frozen(torch.tensor([[0, 21, 28], [20, 0, 22]])).numpy()
    assert vectors.shape == (2, 3, 50)
    assert not vectors[0, 0].any() and not vectors[1, 1].any()
    np.testing.assert_array_equal(vectors[1, 0], known[19])
    table = hashed_vectors(8, 50, seed=1) * np.float32(TYPICAL_LENGTH / (73.6 * 50**0.5))
    np.testing.assert_allclose(vectors[[0, 0, 1], [1, 2, 2]], table[[0, 7, 1]], rtol=1e-6)


def test_unknown_words_of_rao_2019_are_positive_and_trained() -> None:
    vocabulary = Vocabulary([f"w{row}" for row in range(20)], KNOWN, buckets=30)
    vectors = word_vectors(vocabulary, "positive", unknown=0.25)
    table = vectors.weight.detach()
    assert vectors.weight.requires_grad
    assert np.array_equal(table[1:21].numpy(), KNOWN)
    assert 0 <= float(table[21:].min()) < 0.01 < 0.09 < float(table[21:].max()) <= 0.1


def test_low_precision_is_for_training_alone() -> None:
    torch.manual_seed(1)
    vectors, ids = TrainedVectors(KNOWN, 1), torch.tensor([[1, 2, 3, 4, 5, 6]])
    tower = ConvolutionTower(vectors, 50, 7, width=3, depth=2)
    exact = tower(ids)[-1]
    tower.precision = "bf16"
    narrow = tower.train()(ids)[-1]
    assert narrow.dtype == torch.float32
    assert not torch.equal(narrow, exact)
    torch.testing.assert_close(narrow, exact, rtol=0.05, atol=0.05)
    assert torch.equal(tower.eval()(ids)[-1], exact)


# Terms of a loss, of one list

NAIVE: dict[str, Callable[[list[float], list[float]], list[float]]] = {
    "pointwise": lambda positives, negatives: [
        math.log(1 + math.exp(-s)) for s in (*positives, *(-n for n in negatives))
    ],
    "pairwise": lambda positives, negatives: [
        max(0.0, 1 - p + n) for p in positives for n in negatives
    ],
    "listwise": lambda positives, negatives: [
        math.log(1 + sum(math.exp(n - p) for n in negatives)) for p in positives
    ],
}


@pytest.mark.parametrize(("lists", "positives", "negatives"), [(1, 1, 1), (4, 3, 7)])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_means_over_loops(name: str, lists: int, positives: int, negatives: int) -> None:
    torch.manual_seed(lists + positives)
    scores = 3 * torch.randn(lists, positives + negatives, dtype=torch.float64)
    of_lists = [NAIVE[name](row[:positives], row[positives:]) for row in scores.tolist()]
    terms = [term for row in of_lists for term in row]
    assert LOSSES[name](scores, positives).item() == pytest.approx(sum(terms) / len(terms))
    extreme = torch.tensor([[1e4, -1e4, 1e4, -1e4]], requires_grad=True)
    loss = LOSSES[name](extreme, 2)
    loss.backward()
    assert loss.isfinite() and extreme.grad is not None and extreme.grad.isfinite().all()


def test_settings_name_all_mistakes_at_once() -> None:
    wrong = {"loss": "pairwize", "optimizer": "adam", "sampling": "hard", "select": "ndcg"}
    with pytest.raises(RerankerError) as caught:
        Settings(**wrong, schedule="cosine", steps=0, held_out=1.5)
    assert str(caught.value).splitlines() == [
        "setting loss: found 'pairwize', expected one of listwise, pairwise, pointwise",
        "setting optimizer: found 'adam', expected one of adamw, adadelta, adagrad, rmsprop, sgd",
        "setting schedule: found 'cosine', expected one of linear, constant, plateau",
        "setting sampling: found 'hard', expected one of random, max, mix, corrupted, pairs",
        "setting select: found 'ndcg', expected one of map, mrr, loss",
        "setting held_out: found 1.5, expected a share in (0, 1)",
        "setting steps: found 0, one pass over all relevant posts, with 3 of them in a list; "
        "expected `positives` 1, or a number of steps",
    ]
    assert Settings(loss="pointwise", sampling="pairs").sampling == "pairs"
    message = "found pairs with the loss listwise.*expected the loss pointwise"
    with pytest.raises(RerankerError, match=message):
        Settings(loss="listwise", sampling="pairs")


@pytest.mark.parametrize("penalty", [0.0, 0.01, 5.0])
@pytest.mark.parametrize("scale", [0.01, 1.0, 40.0])
def test_logistic_regression_is_that_of_scikit_learn(penalty: float, scale: float) -> None:
    random = np.random.default_rng(1)
    features = random.normal(size=(400, 3)) * scale
    relevant = features @ [1, 2, 0] / scale + random.logistic(size=400) > 1
    weights = random.random(400) + 0.1
    other = LogisticRegression(C=1 / penalty if penalty else math.inf, max_iter=1000)
    other.fit(features, relevant, weights)
    coefficients, intercept = logistic_regression(features, relevant, weights, penalty)
    np.testing.assert_allclose(coefficients, other.coef_[0], rtol=1e-6)
    assert intercept == pytest.approx(other.intercept_[0], rel=1e-6)
