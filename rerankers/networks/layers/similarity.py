"""Similarities of terms, and functions of similarities."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

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


class GaussianKernels(nn.Module):
    """Soft counts of matches at levels of similarity (Xiong et al. 2017, section 3.1).

    A kernel of mean μ and width σ gives ``exp(-(s - μ)² / 2σ²)`` for a similarity s. The first
    has the mean 1 and is so narrow that it counts exact matches; the ten others have means
    that divide [-1, 1] evenly: 0.9, 0.7 … -0.9.
    """

    size = 11  # K
    kernels = ((1.0, 1e-3), *((1.0 - (2 * place + 1) / 10, 0.1) for place in range(10)))

    def forward(self, similarity: Tensor, post_mask: Tensor) -> Tensor:
        """Sum over the post's terms: [P, Lq, K], from cosines [P, Lq, Ld] and a mask [P, Ld]."""
        column = post_mask.unsqueeze(2)
        # One kernel at a time, so that intermediate values fit the processor's cache.
        sums = [
            torch.bmm(torch.exp((similarity - mean).square() * (-0.5 / width**2)), column)
            for mean, width in self.kernels
        ]
        return torch.cat(sums, dim=2)
