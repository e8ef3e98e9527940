"""Positions of texts in a batch: padding, masks, and spans."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def pad_after(values: Tensor, count: int) -> Tensor:
    """Add ``count`` zero positions after each text: [B, L, K] to [B, L + count, K]."""
    return F.pad(values, (0, 0, 0, count))


def pad_before(values: Tensor, count: int) -> Tensor:
    """Add ``count`` zero positions before each text: [B, L, K] to [B, L + count, K]."""
    return F.pad(values, (0, 0, count, 0))


def mask_of_lengths(lengths: Tensor, positions: int) -> Tensor:
    """Whether a position is within its text: texts of ``lengths`` [B] to [B, L]."""
    places = torch.arange(positions, device=lengths.device)
    return places < lengths.unsqueeze(1)


def spans_from(terms: Tensor, width: int) -> Tensor:
    """Spans of ``width`` terms from each one on: [B, L, E] to [B, L, width · E].

    Zeros follow the end of a text.
    """
    length = terms.shape[1]
    padded = pad_after(terms, width - 1)
    shifted = [padded[:, offset : offset + length] for offset in range(width)]
    return torch.cat(shifted, dim=2)
