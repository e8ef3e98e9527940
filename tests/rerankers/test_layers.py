"""Layers, losses and settings of networks against NumPy, loops and plain forward passes."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from rerankers.errors import RerankerError
from rerankers.networks.layers.convolutions import ConvolutionTower, drop_, scale_of_kept
from rerankers.networks.layers.embeddings import (
    TYPICAL_LENGTH,
    FrozenVectors,
    TrainedVectors,
    hashed_vectors,
    mask_of_lengths,
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


def test_frozen_vectors_are_close_to_the_originals() -> None:
    vectors = FrozenVectors(KNOWN, buckets=8)(torch.arange(1, 21)).numpy()
    half_a_step = np.abs(KNOWN).max(axis=1, keepdims=True) / 127 / 2
    assert (np.abs(vectors - KNOWN) <= half_a_step * 1.001).all()
    cosines = (vectors * KNOWN).sum(1) / np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(cosines, np.linalg.norm(KNOWN, axis=1), rtol=1e-3)


def test_frozen_vectors_of_padding_and_unknown_words() -> None:
    frozen = FrozenVectors(KNOWN, buckets=8)
    ids = torch.tensor([[0, 21, 28], [20, 0, 22]])
    vectors = frozen(ids)
    assert vectors.shape == (2, 3, 50)
    assert not vectors[0, 0].any() and not vectors[1, 1].any()
    table = hashed_vectors(8, 50, seed=1) * np.float32(TYPICAL_LENGTH / (73.6 * 50**0.5))
    for place, row in (((0, 1), 0), ((0, 2), 7), ((1, 2), 1)):
        np.testing.assert_allclose(vectors[place].numpy(), table[row], rtol=1e-6)
    np.testing.assert_array_equal(vectors[1, 0], frozen(torch.tensor([20]))[0])


def test_dropout_keeps_expected_values() -> None:
    torch.manual_seed(1)
    for dtype in (torch.float32, torch.bfloat16):
        values = torch.full((999, 101), scale_of_kept(0.4), dtype=dtype)
        kept = drop_(values, 0.4).float()
        assert kept.count_nonzero().item() / kept.numel() == pytest.approx(0.6, abs=0.01)
        assert kept.mean().item() == pytest.approx(1, abs=0.01)
    assert drop_(torch.ones(5), 0.0).all() and scale_of_kept(0.0) == 1


def test_unknown_words_of_rao_2019_are_positive_and_trained() -> None:
    vocabulary = Vocabulary([f"w{row}" for row in range(20)], KNOWN, buckets=30)
    vectors = word_vectors(vocabulary, "positive", unknown=0.25)
    table = vectors.weight.detach()
    assert vectors.weight.requires_grad
    assert np.array_equal(table[1:21].numpy(), KNOWN)
    assert 0 <= float(table[21:].min()) < 0.01 < 0.09 < float(table[21:].max()) <= 0.1


PACKED = [[1, 2, 3, 1, 2, 3], [5], [], [2, 3, 1, 2, 9, 9, 9], [1, 2, 3, 1, 2]]


def tower_of(width: int, depth: int, reads_padding: bool = False) -> ConvolutionTower:
    torch.manual_seed(1)
    known = np.random.default_rng(1).normal(size=(9, 5)).astype(np.float32)
    vectors = TrainedVectors(known, 1, trains_padding=reads_padding)
    tower = ConvolutionTower(vectors, 5, 7, width, depth, reads_padding)
    for name, parameter in tower.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
    if reads_padding:
        torch.nn.init.uniform_(vectors.weight[0].detach(), -0.5, 0.5)
    return tower


def plain_levels(tower: ConvolutionTower, ids: torch.Tensor, read_padding: bool) -> list[Any]:
    """Convolutions of padded texts, as the paper has them."""
    mask = torch.ones(*ids.shape, 1) if read_padding else ids.ne(0).float().unsqueeze(2)
    levels = [tower.vectors(ids)]
    for layer in tower.convolutions:
        # Beyond the last position, a convolution that reads padding finds more of it.
        following = F.pad(levels[-1], (0, 0, 0, 9))
        levels.append(layer(following, F.pad(mask, (0, 0, 0, 9)))[:, : ids.shape[1]])
    return levels


@pytest.mark.parametrize("read_padding", [False, True])
@pytest.mark.parametrize(("width", "depth"), [(1, 2), (2, 0), (2, 1), (4, 3)])
def test_packed_texts_have_the_vectors_and_gradients_of_padded_ones(
    width: int, depth: int, read_padding: bool
) -> None:
    ids = torch.zeros(len(PACKED), 19 if read_padding else 7, dtype=torch.int64)
    for row, text in enumerate(PACKED):
        ids[row, : len(text)] = torch.tensor(text, dtype=torch.int64)
    tower = tower_of(width, depth, read_padding)
    found = tower.of_parts([ids[:, :7]])[0]
    expected = plain_levels(tower, ids, read_padding)
    read = mask_of_lengths(ids.ne(0).sum(dim=1) + read_padding, found[0].shape[1]).unsqueeze(2)
    # Beyond the first position of padding nothing is said; the plain form has no more to read
    # after its last position.
    found = [level * read for level in found]
    expected = [level[:, : read.shape[1]] * read for level in expected]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    gradients = gradients_of(tower, found), gradients_of(tower, expected)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def gradients_of(tower: ConvolutionTower, levels: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gradients of a sum over all levels, with different weights for all their numbers."""
    tower.zero_grad()
    total = torch.zeros(())
    for level in levels:
        total = total + (level * torch.linspace(-1, 1, level.numel()).view_as(level)).sum()
    total.backward()
    return {n: p.grad.clone() for n, p in tower.named_parameters() if p.grad is not None}


def test_low_precision_is_for_training_alone() -> None:
    tower, ids = tower_of(3, 2), torch.tensor([[1, 2, 3, 4, 5, 6]])
    exact = tower.of_parts([ids])[0][-1]
    tower.precision = "bf16"
    narrow = tower.train().of_parts([ids])[0][-1]
    assert narrow.dtype == torch.float32
    assert not torch.equal(narrow, exact)
    torch.testing.assert_close(narrow, exact, rtol=0.05, atol=0.05)
    assert torch.equal(tower.eval().of_parts([ids])[0][-1], exact)


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
