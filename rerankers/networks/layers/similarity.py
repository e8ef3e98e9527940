"""Similarities of terms, and pooling over positions of a text; those without a term never count."""

from typing import NamedTuple

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


class PaddedSimilarities(NamedTuple):
    """Similarities of each query position with all positions of P posts, as a padded tensor.

    A post without terms is pooled to 0.

    Where texts are padded to fixed lengths, and padding is read like a term, all padded positions
    of a text are alike: they are one position, which counts as many times.
    """

    values: Tensor  # [P, Lq, Ld]
    query_counts: Tensor  # [P, Lq] positions that each one stands for: 1 for a term, 0 for none
    post_counts: Tensor  # [P, Ld]

    def max(self) -> Tensor:
        """Maximum over each post's positions: [P, Lq]."""
        maxima = self._masked(self.values).amax(dim=2)
        return torch.where(self.post_counts.any(dim=1, keepdim=True), maxima, 0.0)

    def mean(self) -> Tensor:
        """Mean over each post's positions: [P, Lq]."""
        total = torch.bmm(self.values, self.post_counts.unsqueeze(2)).squeeze(2)
        return total / self.post_counts.sum(dim=1, keepdim=True).clamp_min(1.0)

    def softmax(self, temperature: float, length: int) -> Tensor:
        """:func:`partial_softmax` over the post's positions: [P, Lq, Ld]."""
        return partial_softmax(self.values * temperature, self.post_counts.unsqueeze(1), 2, length)

    def pooled_softmax(self, temperature: float, length: int) -> tuple[Tensor, Tensor]:
        """Maximum and mean of :meth:`softmax`, which is not computed itself: two of [P, Lq]."""
        logits = self._masked(self.values * temperature)
        own = logits.logsumexp(dim=2)
        unused = (length - self.post_counts.sum(dim=1, keepdim=True)).log()  # log of as many e⁰
        total = torch.logaddexp(own, unused)
        return (logits.max(dim=2).values - total).exp(), (own - total).exp() / length

    def query_softmax(self, temperature: float) -> Tensor:
        """Softmax over the query's positions: [P, Lq, Ld], 0 where a position counts 0 times."""
        return self._shares(temperature) * self._once().unsqueeze(2)

    def pooled_query_softmax(self, temperature: float) -> tuple[Tensor, Tensor]:
        """Maximum and mean of :meth:`query_softmax` over the post's positions: two of [P, Lq]."""
        shares, once = self._shares(temperature), self._once()
        there = shares * self.post_counts.clamp_max(1.0).unsqueeze(1)
        total = torch.bmm(there, self.post_counts.unsqueeze(2)).squeeze(2)
        mean = total / self.post_counts.sum(dim=1, keepdim=True)
        return there.max(dim=2).values * once, mean * once

    def _masked(self, values: Tensor) -> Tensor:
        return values.masked_fill(self.post_counts.unsqueeze(1) == 0, PADDING_SIMILARITY)

    def _shares(self, temperature: float) -> Tensor:
        """Sums over all positions that one stands for: [P, Lq, Ld]."""
        return (self.values * temperature + self.query_counts.log().unsqueeze(2)).softmax(dim=1)

    def _once(self) -> Tensor:
        """1 / count, 0 for none: [P, Lq]."""
        return torch.where(self.query_counts > 0, 1 / self.query_counts.clamp_min(1.0), 0.0)


def weighted_mean(features: Tensor, weights: Tensor) -> Tensor:
    """Mean of ``features`` [P, L, K] with ``weights`` [P, L]: [P, K], 0 for an empty text."""
    total = weights.sum(dim=1, keepdim=True).clamp_min(1e-6)
    return torch.bmm((weights / total).unsqueeze(1), features).squeeze(1)


def window_means(values: Tensor, mask: Tensor, width: int) -> Tensor:
    """Mean of ``values`` [B, L] over the terms among the ``width`` positions from each on."""
    padding = (0, width - 1)
    sums = F.pad(values * mask, padding).unfold(1, width, 1).sum(dim=2)
    counts = F.pad(mask, padding).unfold(1, width, 1).sum(dim=2)
    return sums / counts.clamp_min(1.0)
