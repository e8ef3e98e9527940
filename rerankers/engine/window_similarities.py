"""Similarities of one query with the distinct windows of posts, and their pooling by post."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.engine.windows import Ids
from rerankers.layers.similarity import partial_softmax
from rerankers.text.ragged import Ragged

GROUP = 64
"""Posts that are pooled together; their similarities fit the processor's cache."""


class QueryVectors(NamedTuple):
    """An encoded query.

    Attributes:
        levels: its vectors [Lq, F] at each depth.
        padding: [1, Lq] of ``PADDING_SIMILARITY``.
    """

    levels: Sequence[Tensor]
    padding: Tensor


@dataclass(frozen=True)
class WindowSimilarities:
    """Similarities of P posts, stored once for each distinct window.

    The methods are those of :class:`rerankers.layers.pooling.Similarities`.

    Attributes:
        values: [U + 1, Lq] of U distinct windows; the last row is ``PADDING_SIMILARITY``.
        rows: [T] row of ``values`` for each position of the posts.
        posts: P sequences of T positions in all.
    """

    values: Tensor
    rows: Ids
    posts: Ragged

    def split(self, parts: Sequence[Ragged]) -> list[WindowSimilarities]:
        """One for each of ``parts``, which were joined to ``posts``."""
        borders = pairwise(accumulate((len(part.values) for part in parts), initial=0))
        return [
            WindowSimilarities(self.values, self.rows[start:end], part)
            for part, (start, end) in zip(parts, borders, strict=True)
        ]

    def max(self) -> Tensor:
        """Maximum over each post's positions: [P, Lq]."""
        maxima = torch.cat([group.amax(dim=0) for group, _ in self._groups()])
        return torch.where(torch.from_numpy(self.posts.lengths > 0)[:, None], maxima, 0.0)

    def mean(self) -> Tensor:
        """Mean over each post's positions: [P, Lq]."""
        starts = torch.from_numpy(self.posts.starts[:-1])
        return F.embedding_bag(torch.from_numpy(self.rows), self.values, starts, mode="mean")

    def pooled_softmax(self, temperature: float, length: int) -> tuple[Tensor, Tensor]:
        """Maximum and mean of a softmax over ``length`` positions: two of [P, Lq]."""
        maxima, means = [], []
        for group, mask in self._groups():
            shares = partial_softmax(group * temperature, mask.unsqueeze(2), 0, length)
            maxima.append(shares.amax(dim=0))
            means.append(shares.sum(dim=0) / length)
        return torch.cat(maxima), torch.cat(means)

    def _groups(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Similarities [Ld, B, Lq] and mask [Ld, B] of ``GROUP`` posts at a time."""
        rows = torch.from_numpy(self.posts.padded(len(self.values) - 1, self.rows))  # [P, Ld]
        mask = torch.from_numpy(self.posts.inside)
        for start in range(0, len(rows), GROUP):
            end = start + GROUP
            longest = max(1, int(self.posts.lengths[start:end].max(initial=0)))
            group = rows[start:end, :longest].T
            # index_select, then a reduction of the first axis, is the fastest way.
            values = self.values.index_select(0, group.flatten()).view(*group.shape, -1)
            yield values, mask[start:end, :longest].T
