"""A text's best and mean match, from the similarities of distinct windows.

What :func:`rerankers.layers.similarity.max_over_posts`, ``mean_over_posts`` and ``partial_softmax`` give,
without an array of every pair, query position and post position at once.
"""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.engine.towers import WindowSimilarities
from rerankers.engine.windows import TokenSequences

GROUP = 64
"""Texts whose places are looked at together: these fit the cache."""


def best(matches: WindowSimilarities, texts: TokenSequences) -> Tensor:
    """Best match of each query position: [N, Lq], 0 for a text without terms."""
    found = torch.cat([places.amax(dim=0) for places in _by_place(matches, texts)])
    return torch.where(torch.from_numpy(texts.lengths > 0)[:, None], found, 0.0)


def mean(matches: WindowSimilarities, texts: TokenSequences) -> Tensor:
    """Mean match of each query position: [N, Lq], 0 for a text without terms."""
    starts = torch.from_numpy(np.cumsum(texts.lengths) - texts.lengths)
    return F.embedding_bag(torch.from_numpy(matches.which), matches.similarity, starts, mode="mean")


def softmax(
    matches: WindowSimilarities, texts: TokenSequences, temperature: float, length: int
) -> list[Tensor]:
    """Largest and mean share of each query position: two of [N, Lq].

    Shares are those of a softmax over ``length`` places, of which a text has some; the others
    match nothing, with a logit of 0.
    """
    largest, means, start = [], [], 0
    unused = torch.from_numpy(length - texts.lengths).float()[:, None]
    for places in _by_place(matches, texts):
        places = places.mul_(temperature)
        top = places.amax(dim=0)
        peak = top.clamp_min(0.0)
        held = places.sub_(peak).exp_().sum(dim=0)
        all_of_it = held + unused[start : start + len(top)] * torch.exp(-peak)
        largest.append(top.sub_(peak).exp_() / all_of_it)
        means.append(held / all_of_it / length)
        start += len(top)
    return [torch.cat(largest), torch.cat(means)]


def _by_place(matches: WindowSimilarities, texts: TokenSequences) -> Iterator[Tensor]:
    """For a group of texts at a time their places' similarities [L, B, Lq], L the longest's."""
    similarity, which = matches
    rows = torch.from_numpy(texts.padded(which, len(similarity) - 1))  # [N, L]
    for start in range(0, len(rows), GROUP):
        longest = max(1, int(texts.lengths[start : start + GROUP].max(initial=0)))
        group = rows[start : start + GROUP, :longest].T
        # The rows that index_select brings, reduced over the first axis, are the quickest way.
        yield similarity.index_select(0, group.flatten()).view(*group.shape, -1)
