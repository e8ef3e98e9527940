"""The tabulated tower against the tower's own forward pass."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from rerankers.networks.layers.convolutions import ConvolutionTower
from rerankers.networks.layers.embeddings import TrainedVectors, mask_of_lengths

TEXTS = [[1, 2, 3, 1, 2, 3], [5], [], [2, 3, 1, 2, 9, 9, 9], [1, 2, 3, 1, 2]]


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
    ids = torch.zeros(len(TEXTS), 19 if read_padding else 7, dtype=torch.int64)
    for row, text in enumerate(TEXTS):
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
