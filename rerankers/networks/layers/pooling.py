"""Pooling over the positions of a text; positions without a term never count."""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.networks.layers.similarity import PADDING_SIMILARITY, partial_softmax


class Similarities(Protocol):
    """Similarities of each query position with all positions of P posts, in any memory layout.

    A post without terms is pooled to 0.
    """

    def max(self) -> Tensor:
        """Maximum over each post's positions: [P, Lq]."""

    def mean(self) -> Tensor:
        """Mean over each post's positions: [P, Lq]."""

    def pooled_softmax(self, temperature: float, length: int) -> tuple[Tensor, Tensor]:
        """Maximum and mean of :func:`partial_softmax` over ``length`` positions: two of [P, Lq]."""


class PaddedSimilarities(NamedTuple):
    """Similarities as a padded tensor; see :class:`Similarities`."""

    values: Tensor  # [P, Lq, Ld]
    mask: Tensor  # [P, Ld], 1 where the post has a term

    def max(self) -> Tensor:
        """Maximum over each post's positions: [P, Lq]."""
        masked = self.values.masked_fill(self.mask.unsqueeze(1) == 0, PADDING_SIMILARITY)
        return torch.where(self.mask.any(dim=1, keepdim=True), masked.amax(dim=2), 0.0)

    def mean(self) -> Tensor:
        """Mean over each post's positions: [P, Lq]."""
        total = torch.bmm(self.values, self.mask.unsqueeze(2)).squeeze(2)
        return total / self.mask.sum(dim=1, keepdim=True).clamp_min(1.0)

    def softmax(self, temperature: float, length: int) -> Tensor:
        """:func:`partial_softmax` over the post's positions: [P, Lq, Ld]."""
        return partial_softmax(self.values * temperature, self.mask.unsqueeze(1), 2, length)

    def pooled_softmax(self, temperature: float, length: int) -> tuple[Tensor, Tensor]:
        """Maximum and mean of :meth:`softmax`, which is not computed itself: two of [P, Lq]."""
        logits = (self.values * temperature).masked_fill(
            self.mask.unsqueeze(1) == 0, PADDING_SIMILARITY
        )
        own = logits.logsumexp(dim=2)
        unused = (length - self.mask.sum(dim=1, keepdim=True)).log()  # log of as many times e⁰
        total = torch.logaddexp(own, unused)
        return (logits.max(dim=2).values - total).exp(), (own - total).exp() / length


class CountedSimilarities(NamedTuple):
    """Similarities of texts that are padded to fixed lengths, where padding is read like a term.

    All padded positions of a text are alike: they are one position, which counts as many times.
    """

    values: Tensor  # [P, Lq, Ld]
    query_counts: Tensor  # [P, Lq] positions that each one stands for, 0 for none
    post_counts: Tensor  # [P, Ld]

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

    def _shares(self, temperature: float) -> Tensor:
        """What all positions that one stands for have together: [P, Lq, Ld]."""
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


def k_max_pooling(values: Tensor, lengths: Tensor, k: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The ``k`` [B] highest values of each feature, in text order; of equal values the earlier.

    Texts of ``lengths`` [B] without padding have ``values`` [B, L, F]. The result is [B, most, F],
    0 where a text has no more to keep, and the number kept of each text [B]. No ``k`` is above
    ``most``.
    """
    positions = values.shape[1]
    kept = torch.minimum(k, lengths)
    rows = values.transpose(1, 2)  # [B, F, L]
    places = torch.arange(positions, device=values.device)
    outside = (places >= lengths.unsqueeze(1)).unsqueeze(1)
    inside_only = rows.masked_fill(outside, -torch.inf)
    best = inside_only.argsort(dim=2, descending=True, stable=True)[:, :, :most]  # [B, F, K]
    chosen = places[: best.shape[2]] < kept.unsqueeze(1)  # [B, K]
    # Values that are not chosen are sorted to the end.
    best = best.masked_fill(~chosen.unsqueeze(1), positions).sort(dim=2).values
    pooled = rows.gather(2, best.clamp(max=positions - 1)) * chosen.unsqueeze(1)
    return F.pad(pooled.transpose(1, 2), (0, 0, 0, most - best.shape[2])), kept
