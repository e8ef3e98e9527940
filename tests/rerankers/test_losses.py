"""Losses against loops over pairs of one positive and one negative; training settings."""

import math

import pytest
import torch

from rerankers.errors import RerankerError
from rerankers.networks.training.losses import LOSSES
from rerankers.networks.training.settings import Settings


def naive_pointwise(positives: list[float], negatives: list[float]) -> list[float]:
    return [math.log(1 + math.exp(-s)) for s in (*positives, *(-n for n in negatives))]


def naive_pairwise(positives: list[float], negatives: list[float]) -> list[float]:
    return [max(0.0, 1 - p + n) for p in positives for n in negatives]


def naive_listwise(positives: list[float], negatives: list[float]) -> list[float]:
    rivals = sum(map(math.exp, negatives))
    return [-math.log(math.exp(p) / (math.exp(p) + rivals)) for p in positives]


NAIVE = {"pointwise": naive_pointwise, "pairwise": naive_pairwise, "listwise": naive_listwise}


@pytest.mark.parametrize(("lists", "positives", "negatives"), [(1, 1, 1), (4, 3, 7)])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_means_over_loops(name: str, lists: int, positives: int, negatives: int) -> None:
    torch.manual_seed(lists + positives)
    scores = 3 * torch.randn(lists, positives + negatives, dtype=torch.float64)
    of_lists = [NAIVE[name](row[:positives], row[positives:]) for row in scores.tolist()]
    terms = [term for row in of_lists for term in row]
    assert LOSSES[name](scores, positives).item() == pytest.approx(sum(terms) / len(terms))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_extreme_scores_give_finite_losses_and_gradients(loss: object) -> None:
    assert callable(loss)
    scores = torch.tensor([[1e4, -1e4, 1e4, -1e4]], requires_grad=True)
    value = loss(scores, 2)
    value.backward()
    assert value.isfinite()
    assert scores.grad is not None and scores.grad.isfinite().all()


def test_settings_name_all_mistakes_at_once() -> None:
    wrong = {"loss": "pairwize", "optimizer": "adam", "sampling": "hard", "select": "ndcg"}
    with pytest.raises(RerankerError) as caught:
        Settings(**wrong, schedule="cosine", steps=0, held_out=1.5)
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
    assert Settings(loss="pointwise", sampling="pairs").sampling == "pairs"
    message = "found pairs with the loss listwise.*expected the loss pointwise"
    with pytest.raises(RerankerError, match=message):
        Settings(loss="listwise", sampling="pairs")
