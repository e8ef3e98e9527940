"""Shared layers against numpy and against loops."""

import numpy as np
import pytest
import torch

from rerankers.layers.convolutions import (
    MaskedConvolution,
    drop_,
    perceptron,
    scale_of_kept,
    start_like_keras,
)
from rerankers.layers.embeddings import (
    TYPICAL_LENGTH,
    FrozenVectors,
    counts_of,
    hashed_vectors,
    mask_of,
    word_vectors,
)
from rerankers.layers.pooling import CountedSimilarities, weighted_mean, window_means
from rerankers.layers.similarity import partial_softmax
from rerankers.text.vocabulary import Vocabulary

KNOWN = np.random.default_rng(0).normal(size=(20, 50)).astype(np.float32) * np.float32(3)


def splitmix64(number: int) -> int:
    """The generator in Python's whole numbers, as Steele et al. (2014) print it."""
    bits = 2**64 - 1
    z = number * 0x9E3779B97F4A7C15 & bits
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & bits
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & bits
    return (z >> 40) % 255 - 127


def test_hashed_vectors_are_splitmix64() -> None:
    expected = [
        [splitmix64(2 * 2**32 + row * 3 + column) for column in range(3)] for row in range(4)
    ]
    assert hashed_vectors(4, 3, seed=2).tolist() == expected


def test_hashed_vectors_never_change() -> None:
    """By literals: other numbers would make every shipped checkpoint misread unknown terms."""
    assert hashed_vectors(2, 4, seed=1).tolist() == PINNED_SEED_1
    assert hashed_vectors(64_000, 32, seed=2)[-1, -4:].tolist() == PINNED_SEED_2


PINNED_SEED_1 = [[-109, 12, -22, -68], [110, 120, -108, -21]]
PINNED_SEED_2 = [65, 49, 8, -18]


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


@pytest.mark.parametrize("width", [1, 4])
def test_convolution_is_the_loop_of_section_3_2(width: int) -> None:
    torch.manual_seed(1)
    convolution = MaskedConvolution(3, 5, width)
    torch.nn.init.normal_(convolution.bias)
    ids = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
    mask = mask_of(ids).unsqueeze(2)
    terms = torch.randn(3, 5, 3) * mask
    with torch.no_grad():
        result = convolution(terms, mask).numpy()
        weight, bias = convolution.weight.numpy(), convolution.bias.numpy()
    for row, length in enumerate((5, 2, 0)):
        for place in range(5):
            expected = np.zeros(5)
            if place < length:
                window = [
                    terms[row, place + j].numpy() if place + j < 5 else np.zeros(3)
                    for j in range(width)
                ]
                expected = np.maximum(np.concatenate(window) @ weight + bias, 0)
            np.testing.assert_allclose(result[row, place], expected, rtol=1e-5, atol=1e-6)


def test_weighted_mean_is_numpys() -> None:
    rng = np.random.default_rng(2)
    features, weights = rng.normal(size=(4, 6, 3)), rng.uniform(size=(4, 6))
    weights[1, 3:] = 0
    weights[2] = 0
    result = weighted_mean(torch.from_numpy(features), torch.from_numpy(weights)).numpy()
    for row in (0, 1, 3):
        expected = np.average(features[row], axis=0, weights=weights[row])
        np.testing.assert_allclose(result[row], expected, rtol=1e-9)
    np.testing.assert_array_equal(result[2], 0)


@pytest.mark.parametrize("width", [2, 9])
def test_window_means_are_numpys(width: int) -> None:
    rng = np.random.default_rng(3)
    values, lengths = rng.uniform(size=(4, 6)), [6, 3, 1, 0]
    mask = np.arange(6) < np.array(lengths)[:, None]
    result = window_means(torch.from_numpy(values), torch.from_numpy(mask).double(), width)
    for row, length in enumerate(lengths):
        for place in range(length):
            expected = values[row, place : min(place + width, length)].mean()
            assert result[row, place].item() == pytest.approx(expected)
        assert not result[row, length:].any()


@pytest.mark.parametrize("axis", [1, 2])
def test_partial_softmax_is_the_softmax_with_zeros_for_what_is_not_there(axis: int) -> None:
    rng = np.random.default_rng(4)
    logits, there = 30 * rng.normal(size=(3, 4, 4)), [4, 2, 0]
    mask = torch.from_numpy((np.arange(4) < np.array(there)[:, None]).astype(np.float64))
    mask = mask.unsqueeze(3 - axis)
    result = partial_softmax(torch.from_numpy(logits), mask, axis, 9).numpy()
    for row, count in enumerate(there):
        for line in range(4):
            own = logits[row, line, :count] if axis == 2 else logits[row, :count, line]
            powers = np.exp(np.append(own, np.zeros(9 - count)))
            expected = np.append((powers / powers.sum())[:count], np.zeros(4 - count))
            found = result[row, line] if axis == 2 else result[row, :, line]
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-15)


def test_counted_padding_pools_like_padding_that_is_written_out() -> None:
    """Three queries padded to 6 positions, posts to 9; one text is full and one is empty."""
    queries, posts = torch.tensor([2, 6, 0]), torch.tensor([9, 0, 4])
    torch.manual_seed(4)
    terms = torch.randn(3, 7, 5), torch.randn(3, 10, 5)
    ids = tuple(
        (torch.arange(size) < lengths.unsqueeze(1)).long()
        for lengths, size in ((queries, 6), (posts, 9))
    )
    counts = counts_of(ids[0], 6), counts_of(ids[1], 9)
    values = terms[0] @ terms[1].transpose(1, 2)
    counted = CountedSimilarities(values, *counts)
    highest, mean = counted.pooled_query_softmax(0.7)
    for row in range(3):
        places = [
            torch.arange(size).clamp(max=int(lengths[row]))
            for lengths, size in ((queries, 6), (posts, 9))
        ]
        shares = (0.7 * values[row][places[0]][:, places[1]]).softmax(dim=0)
        torch.testing.assert_close(highest[row][places[0]], shares.amax(dim=1))
        torch.testing.assert_close(mean[row][places[0]], shares.mean(dim=1))
        found = counted.query_softmax(0.7)[row][places[0]][:, places[1]]
        torch.testing.assert_close(found, shares)


def test_dropout_keeps_expected_values() -> None:
    torch.manual_seed(1)
    for dtype in (torch.float32, torch.bfloat16):
        values = torch.full((999, 101), scale_of_kept(0.4), dtype=dtype)
        kept = drop_(values, 0.4).float()
        assert kept.count_nonzero().item() / kept.numel() == pytest.approx(0.6, abs=0.01)
        assert kept.mean().item() == pytest.approx(1, abs=0.01)
    assert drop_(torch.ones(5), 0.0).all() and scale_of_kept(0.0) == 1


def test_weights_start_in_the_bounds_of_keras() -> None:
    torch.manual_seed(1)
    convolution, dense = MaskedConvolution(5, 40, 3), perceptron(200, 30, 1, 0.0)
    for module in (convolution, dense):
        start_like_keras(module)
    for weight, bound in (
        (convolution.weight, (6 / (3 * 5 + 3 * 40)) ** 0.5),
        (dense[0].weight, (6 / 230) ** 0.5),
    ):
        assert 0.98 * bound < weight.abs().max().item() <= bound
    assert not dense[0].bias.any()


def test_unknown_words_of_rao_2019_are_positive_and_trained() -> None:
    vocabulary = Vocabulary([f"w{row}" for row in range(20)], KNOWN, buckets=30)
    vectors = word_vectors(vocabulary, "positive", unknown=0.25)
    table = vectors.weight.detach()
    assert vectors.weight.requires_grad
    assert np.array_equal(table[1:21].numpy(), KNOWN)
    assert 0 <= float(table[21:].min()) < 0.01 < 0.09 < float(table[21:].max()) <= 0.1
