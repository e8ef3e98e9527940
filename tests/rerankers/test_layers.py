"""Shared layers against numpy and against loops."""

import numpy as np
import pytest
import torch

from rerankers.networks.layers.convolutions import drop_, scale_of_kept
from rerankers.networks.layers.embeddings import (
    TYPICAL_LENGTH,
    FrozenVectors,
    hashed_vectors,
    word_vectors,
)
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
