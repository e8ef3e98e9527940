"""Similarities of terms, and functions of similarities."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

LEAST_LENGTH = 1e-6
"""Shorter vectors count as this long, so that a zero vector has the cosine 0 with every other."""

PADDING_SIMILARITY = -1e4
"""Similarity of positions without a term: below every cosine, and 0 after a softmax."""


def unit_length(vectors: Tensor) -> Tensor:
    """Vectors [..., E] scaled to length 1; their dot products are cosines."""
    return F.normalize(vectors, dim=-1, eps=LEAST_LENGTH)


def partial_softmax(logits: Tensor, mask: Tensor, axis: int, length: int) -> Tensor:
    """Softmax over ``length`` positions, of which all but those of ``mask`` have the logit 0.

    ``logits`` are [P, Lq, Ld]; ``mask``, 1 for terms, is broadcast to them. ``length`` is at least
    the number of terms. The result is [P, Lq, Ld], 0 for padding.
    """
    logits = logits.masked_fill(mask == 0, -torch.inf)
    peak = logits.amax(dim=axis, keepdim=True).clamp_min(0.0)
    exponentials = torch.exp(logits - peak)
    unused = (length - mask.sum(dim=axis, keepdim=True)) * torch.exp(-peak)
    return exponentials / (exponentials.sum(dim=axis, keepdim=True) + unused)
