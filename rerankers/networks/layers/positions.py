"""Positions of texts in a batch: padding, masks and spans."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def pad_after(values: Tensor, count: int) -> Tensor:
    """Add ``count`` zero positions after each text.

    ``values`` [B, L, K] become [B, L + count, K].
    """
    return F.pad(values, (0, 0, 0, count))


def pad_before(values: Tensor, count: int) -> Tensor:
    """Add ``count`` zero positions before each text.

    ``values`` [B, L, K] become [B, L + count, K].
    """
    return F.pad(values, (0, 0, count, 0))


def mask_of_lengths(lengths: Tensor, positions: int) -> Tensor:
    """Return whether each position is within its text, as [B, L].

    ``lengths`` [B] are those of the texts, and L is ``positions``.
    """
    places = torch.arange(positions, device=lengths.device)
    return places < lengths.unsqueeze(1)


def spans_from(terms: Tensor, width: int) -> Tensor:
    """Return the span of ``width`` terms that starts at each term.

    ``terms`` [B, L, E] become [B, L, width · E]. The end of a text is followed by
    zeros.
    """
    length = terms.shape[1]
    padded = pad_after(terms, width - 1)
    shifted = [padded[:, offset : offset + length] for offset in range(width)]
    return torch.cat(shifted, dim=2)
