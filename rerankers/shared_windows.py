"""A batch's similarities with gradients, each distinct window of terms computed once.

A training step sees a topic's posts together, with their common words, and posts share a tower with
their URLs and with the queries. What :class:`rerankers.layers.convolutions.ConvolutionTower` gives place
by place is given here window by window, as :mod:`rerankers.engine.towers` does for scoring: a convolution
is linear before its ReLU, so every distinct vector is multiplied with every offset's weights once,
and a window is a sum of ``width`` rows of these products. The gradients of all places that have a
window are added up before they go back through it.

Nothing is padded to the longest post: the terms of a query's posts lie side by side, are compared
with the query in one product, and each post's are pooled from there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.engine.towers import by_offset
from rerankers.engine.windows import Ids, Texts, distinct
from rerankers.layers.convolutions import ConvolutionTower, MaskedConvolution
from rerankers.text.inputs import on_device


@dataclass(frozen=True)
class SideBySide:
    """The terms of P posts, in a row of S slots for each of Q queries.

    What is pooled here is [Q, S, Lq]: something of each slot and each position of its query.

    Attributes:
        shape: Q and S.
        slots: [T] of Q · S: where each of the posts' terms is, post by post.
        starts: [P] where each post begins in ``slots``.
        lengths: [P] terms of each post.
    """

    shape: tuple[int, int]
    slots: Tensor
    starts: Tensor
    lengths: Tensor

    @classmethod
    def of(
        cls, texts: Texts, query_of_post: Ids, queries: int, device: torch.device
    ) -> "SideBySide":
        """Lay out ``texts`` [P]; ``query_of_post`` [P] is the row of each post's query."""
        lengths, order = texts.lengths, np.argsort(query_of_post, kind="stable")
        taken = np.bincount(query_of_post, weights=lengths, minlength=queries).astype(np.int64)
        size = max(1, int(taken.max(initial=0)))
        # Where each post begins if rows followed each other without gaps, and then with them.
        starts = np.zeros(len(order), dtype=np.int64)
        starts[order] = np.cumsum(lengths[order]) - lengths[order]
        starts += (np.arange(queries) * size - np.cumsum(taken) + taken)[query_of_post]
        slots = np.repeat(starts + lengths, lengths) - texts.remaining
        begins = np.cumsum(lengths) - lengths
        parts = (on_device(part, device) for part in (slots, begins, lengths))
        return cls((queries, size), *parts)

    def place(self, rows: Tensor) -> Tensor:
        """``rows`` [T] of the posts' terms in their slots: [Q, S], 0 in the others."""
        placed = rows.new_zeros(self.shape)
        placed.view(-1)[self.slots] = rows
        return placed

    def best(self, values: Tensor) -> Tensor:
        """Largest of each post: [P, Lq], 0 for a post without terms."""
        return F.embedding_bag(self.slots, values.flatten(0, 1), self.starts, mode="max")

    def mean(self, values: Tensor, length: int | None = None) -> Tensor:
        """Mean of each post, over ``length`` terms or as many as it has: [P, Lq]."""
        total = F.embedding_bag(self.slots, values.flatten(0, 1), self.starts, mode="sum")
        return total / (length or self.lengths.clamp_min(1).unsqueeze(1))

    def softmax(self, logits: Tensor, length: int) -> list[Tensor]:
        """Largest and mean share of each post: two of [P, Lq].

        Shares are those of :func:`rerankers.layers.similarity.partial_softmax` over ``length`` terms.
        """
        top = self.best(logits)
        peak = top.detach().clamp_min(0.0)  # Shares do not depend on it.
        places = F.embedding(self.slots, logits.flatten(0, 1))
        held = torch.exp(places - peak.repeat_interleave(self.lengths, dim=0))
        terms = torch.arange(len(self.slots), device=logits.device)
        total = F.embedding_bag(terms, held, self.starts, mode="sum")
        all_of_it = total + (length - self.lengths).unsqueeze(1) * torch.exp(-peak)
        largest = torch.exp(top - peak) / all_of_it
        return [largest * self.lengths.gt(0).unsqueeze(1), total / all_of_it / length]


def similarities(
    tower: ConvolutionTower, queries: Tensor, posts: Sequence[Tensor], query_of_post: Tensor,
    normalized: bool,
) -> list[tuple[SideBySide, list[Tensor]]]:  # fmt: skip
    """Every term of a post against every term of its query, at every depth.

    Args:
        tower: whose weights the gradients are of.
        queries: terms [Q, Lq], 0 after the last.
        posts: one or more inputs of P posts, terms [P, Ld], 0 after the last.
        query_of_post: [P] row of the query of each post.
        normalized: whether vectors are to have length 1, as cosines need them.

    Returns:
        For each view how its terms lie, and depth + 1 tensors [Q, S, Lq].
    """
    device, of_post = queries.device, query_of_post.cpu().numpy()
    asked, *inputs = (Texts.of_padded(view.cpu().numpy()) for view in (queries, *posts))
    layouts = [SideBySide.of(view, of_post, len(queries), device) for view in inputs]
    sizes = [len(texts.ids) for texts in (asked, *inputs)]
    is_there = queries.ne(0)
    found: list[list[Tensor]] = [[] for _ in inputs]
    for vectors, which in _levels(tower, Texts.joined([asked, *inputs]), device):
        if normalized:
            vectors = F.normalize(vectors, dim=1, eps=1e-6)
        vectors = F.pad(vectors, (0, 0, 1, 0))  # Row 0 is where there is no term.
        first, *others = on_device(which + 1, device).split(sizes)
        rows = torch.zeros_like(queries).masked_scatter_(is_there, first)
        columns = F.embedding(rows, vectors, padding_idx=0).transpose(1, 2)  # [Q, F, Lq]
        for similar, layout, values in zip(found, layouts, others, strict=True):
            placed = F.embedding(layout.place(values), vectors, padding_idx=0)  # [Q, S, F]
            similar.append(torch.bmm(placed, columns))
    return list(zip(layouts, found, strict=True))


def _levels(
    tower: ConvolutionTower, texts: Texts, device: torch.device
) -> Iterator[tuple[Tensor, Ids]]:
    """For each depth vectors [U, F] of distinct windows, and [T] which of them each place has."""
    terms, which = np.unique(texts.ids, return_inverse=True)
    vectors = tower.vectors(on_device(terms, device))
    yield vectors, which
    convolutions: list[MaskedConvolution] = list(tower.convolutions)  # type: ignore[arg-type]
    for convolution in convolutions:
        width = convolution.width
        windows = texts.windows(which + 1, width)
        first, which = distinct(windows)
        places = np.stack([column[first] for column in windows], axis=1)
        rows = on_device(places * width + np.arange(width), device)
        products = F.pad(vectors, (0, 0, 1, 0)) @ by_offset(convolution)
        table = products.view(-1, len(convolution.bias))
        vectors = F.relu(F.embedding_bag(rows, table, mode="sum") + convolution.bias)
        yield vectors, which
