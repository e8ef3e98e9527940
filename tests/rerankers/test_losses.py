"""Losses against loops over pairs of one positive and one negative; training settings."""

import math

import pytest
import torch
from torch import Tensor

from rerankers.errors import RerankerError
from rerankers.networks.training.losses import LOSSES, listwise, pairwise, pointwise
from rerankers.networks.training.settings import Settings

SHAPES = [(1, 1, 1), (4, 3, 7)]


def scores_of(lists: int, positives: int, negatives: int) -> Tensor:
    torch.manual_seed(lists + positives)
    return 3 * torch.randn(lists, positives + negatives, dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES)
def test_pointwise(shape: tuple[int, int, int]) -> None:
    scores, total = scores_of(*shape), 0.0
    for row in scores.tolist():
        for column, score in enumerate(row):
            probability = 1 / (1 + math.exp(-score))
            total -= math.log(probability if column < shape[1] else 1 - probability)
    assert pointwise(scores, shape[1]).item() == pytest.approx(total / scores.numel())


@pytest.mark.parametrize("shape", SHAPES)
def test_pairwise(shape: tuple[int, int, int]) -> None:
    scores, terms = scores_of(*shape), []
    for row in scores.tolist():
        for positive in row[: shape[1]]:
            terms += [max(0.0, 1 - positive + negative) for negative in row[shape[1] :]]
    assert pairwise(scores, shape[1]).item() == pytest.approx(sum(terms) / len(terms))


@pytest.mark.parametrize("shape", SHAPES)
def test_listwise(shape: tuple[int, int, int]) -> None:
    scores, terms = scores_of(*shape), []
    for row in scores.tolist():
        rivals = sum(math.exp(negative) for negative in row[shape[1] :])
        for positive in row[: shape[1]]:
            terms.append(-math.log(math.exp(positive) / (math.exp(positive) + rivals)))
    assert listwise(scores, shape[1]).item() == pytest.approx(sum(terms) / len(terms))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_extreme_scores_give_finite_losses_and_gradients(loss: object) -> None:
    assert callable(loss)
    scores = torch.tensor([[1e4, -1e4, 1e4, -1e4]], requires_grad=True)
    value = loss(scores, 2)
    value.backward()
    assert value.isfinite()
    assert scores.grad is not None and scores.grad.isfinite().all()


def test_settings_name_all_mistakes_at_once() -> None:
    with pytest.raises(RerankerError) as caught:
        Settings(
            loss="pairwize",
            optimizer="adam",
            sampling="hard",
            select="ndcg",
            schedule="cosine",
            steps=0,
            held_out=1.5,
        )
    assert str(caught.value).splitlines() == [
        "setting loss: found 'pairwize', expected one of listwise, pairwise, pointwise",
        "setting optimizer: found 'adam', expected one of adamw, adadelta, adagrad, rmsprop, sgd",
        "setting sampling: found 'hard', expected one of random, max, mix, corrupted, pairs",
        "setting select: found 'ndcg', expected one of map, mrr, loss",
        "setting schedule: found 'cosine', expected one of linear, constant, plateau",
        "setting steps: found 0, one pass over all relevant posts, with 3 of them in a list; "
        "expected `positives` 1, or a number of steps",
        "setting held_out: found 1.5, expected a share in (0, 1)",
    ]


def test_sampled_pairs_need_the_pointwise_loss() -> None:
    assert Settings(loss="pointwise", sampling="pairs").sampling == "pairs"
    message = "found pairs with the loss listwise.*expected the loss pointwise"
    with pytest.raises(RerankerError, match=message):
        Settings(loss="listwise", sampling="pairs")
