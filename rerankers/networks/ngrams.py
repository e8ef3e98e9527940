"""Convolutions and similarities of distinct windows of terms, for fast paths.

Posts of one topic repeat one another: retweets, words of the query, common phrases. The output of a
convolution depends only on the terms under its filter, so it is computed once for each distinct
window and looked up for every position that holds it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.networks.layers.convolutions import ConvolutionTower, MaskedConvolution
from rerankers.networks.layers.similarity import LEAST_LENGTH, PADDING_SIMILARITY, partial_softmax
from rerankers.text.ragged import Ragged, Rows, distinct

WINDOWS = 2048
"""Windows that pass through a layer together."""

GROUP = 64
"""Posts that are pooled together; their similarities fit the processor's cache."""


def windows_of(texts: Ragged, values: Rows, width: int) -> list[Rows]:
    """The windows of ``width`` places that start at each of the T places of texts.

    Args:
        values: [T] number above 0 of each place.

    Returns:
        Columns: ``values`` [T] at the windows' first place, second place, …; 0 beyond the end.
    """
    columns = [values]
    for shift in range(1, width):
        later = np.zeros_like(values)
        later[: max(0, len(values) - shift)] = values[shift:]
        later[texts.remaining <= shift] = 0
        columns.append(later)
    return columns


def used_ids(inputs: Iterable[Ragged]) -> Rows:
    """Every identifier above 0 in ``inputs``, ascending."""
    inputs = list(inputs)
    highest = max((int(ids.values.max(initial=0)) for ids in inputs), default=0)
    is_used = np.zeros(highest + 1, dtype=np.bool_)
    for ids in inputs:
        is_used[ids.values] = True
    is_used[0] = False
    return np.flatnonzero(is_used)


def distinct_windows(texts: Ragged, values: Rows, width: int) -> tuple[Rows, Rows]:
    """The distinct ones of :func:`windows_of`.

    Returns:
        [U, width] rows of :meth:`MaskedConvolution.products` to be summed, and [T] the window that
        starts at each place.
    """
    windows = windows_of(texts, values, width)
    first, which = distinct(windows, is_exact=False)
    places = np.stack([column[first] for column in windows], axis=1)
    return places * width + np.arange(width), which


def rows_by_id(ids: Rows) -> Rows:
    """[highest id + 1] the place of each of the distinct ``ids``, from 1."""
    rows = np.zeros(int(ids.max(initial=0)) + 1, dtype=np.int64)
    rows[ids] = np.arange(1, len(ids) + 1)
    return rows


class QueryVectors(NamedTuple):
    """Vectors ``levels`` [Lq, F] of a query at each depth; [1, Lq] of ``PADDING_SIMILARITY``."""

    levels: Sequence[Tensor]
    padding: Tensor


@dataclass(frozen=True)
class WindowSimilarities:
    """Similarities of P posts, stored once for each distinct window.

    The methods are those of :class:`rerankers.networks.layers.pooling.Similarities`.

    Attributes:
        values: [U + 1, Lq] of U distinct windows; the last row is ``PADDING_SIMILARITY``.
        rows: [T] row of ``values`` for each position of the posts.
        posts: P sequences of T positions in all.
    """

    values: Tensor
    rows: Rows
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


class TowerInput(NamedTuple):
    """Tower of an input of posts, and the number of terms that it reads at most."""

    tower: str
    longest: int


Visit = Callable[[int, int, int, Tensor], None]
"""Called with a depth, the number of its windows that were visited, that of all, and the vectors
[B, F] of its next ones."""


class TabulatedTower:
    """The vectors of a tower's forward pass, computed once for each distinct window.

    The first convolution is linear before its ReLU. So the product of every term's vector with the
    weights of every offset is computed once, and the layer becomes a sum of ``width`` table rows.
    Each deeper layer gets its table from the layer below. A few thousand windows at a time pass
    through a layer, so that their vectors are still in the cache for the next step; they are never
    stored.

    Attributes:
        terms: [V + 1, E] vectors of depth 0; row 0 is padding.

    Args:
        tower: in evaluation mode.
        ids: identifiers of the terms that will be read, without 0.
        normalized: whether vectors are scaled to length 1, for cosines.
    """

    def __init__(self, tower: ConvolutionTower, ids: Rows, normalized: bool) -> None:
        self.convolutions: list[MaskedConvolution] = list(tower.convolutions)  # type: ignore[arg-type]
        self.normalized = normalized
        self.rows = rows_by_id(ids)
        vectors: Tensor = tower.vectors(F.pad(torch.from_numpy(ids), (1, 0)))
        self.biases = [convolution.bias for convolution in self.convolutions]
        self.weights = [_weights_by_offset(layer) for layer in self.convolutions]
        self.table = torch.empty(0)
        if self.convolutions:
            self.table = (vectors @ self.weights[0]).view(-1, len(self.biases[0]))
        self.terms = vectors.mul_(self.scale(vectors))
        self.buffers = Buffers()

    @property
    def sizes(self) -> list[int]:
        """Dimensions of the vectors at each depth."""
        return [self.terms.shape[1], *(len(bias) for bias in self.biases)]

    def encode_query(self, query: Ragged) -> QueryVectors:
        """Vectors of one query, given as one sequence."""
        parts = [[bias.new_empty(0, len(bias))] for bias in self.biases]

        def keep(depth: int, done: int, count: int, vectors: Tensor) -> None:
            parts[depth - 1].append(vectors * self.scale(vectors))

        first, *deeper = self.walk(query, keep)
        levels = [self.terms.index_select(0, torch.from_numpy(first))]
        for part, rows in zip(parts, deeper, strict=True):
            levels.append(torch.cat(part).index_select(0, torch.from_numpy(rows)))
        return QueryVectors(levels, self.terms.new_full((1, len(first)), PADDING_SIMILARITY))

    def similarities(self, posts: Ragged, query: QueryVectors) -> list[WindowSimilarities]:
        """Similarities of a query with posts, at each depth."""
        columns = [level.T.contiguous() for level in query.levels]
        values, length = [query.padding] * len(query.levels), query.padding.shape[1]

        def multiply(depth: int, done: int, count: int, vectors: Tensor) -> None:
            if not done:
                values[depth] = vectors.new_full((count + 1, length), PADDING_SIMILARITY)
            part = values[depth][done : done + len(vectors)]
            torch.mm(vectors, columns[depth], out=part).mul_(self.scale(vectors))

        first, *deeper = self.walk(posts, multiply)
        places, rows = distinct([first], is_exact=False)
        terms = self.terms.index_select(0, torch.from_numpy(first[places]))
        values[0] = torch.cat([terms @ columns[0], query.padding])
        return [
            WindowSimilarities(values_of_depth, rows_of_depth, posts)
            for values_of_depth, rows_of_depth in zip(values, [rows, *deeper], strict=True)
        ]

    def walk(self, sequences: Ragged, visit: Visit) -> list[Rows]:
        """Visit the vectors of all distinct windows, depth by depth.

        Returns:
            [T] for each depth: the number of each position's window, in order of the visits. At
            depth 0 it is the row of :attr:`terms`; these are not visited.
        """
        values, table = self.rows[sequences.values], self.table
        numbers = [values]
        for depth, convolution in enumerate(self.convolutions, start=1):
            places, which = distinct_windows(sequences, values, convolution.width)
            rows = torch.from_numpy(places)
            following = torch.empty(0)
            is_last = depth == len(self.convolutions)
            if not is_last:
                # Row 0 is for positions after a text's end.
                following = self.buffers.rows(depth, len(rows) + 1, self.weights[depth].shape[1])
                following[0] = 0
            for start in range(0, len(rows), WINDOWS):
                vectors = F.embedding_bag(rows[start : start + WINDOWS], table, mode="sum")
                vectors = vectors.add_(convolution.bias).relu_()
                visit(depth, start, len(rows), vectors)
                if not is_last:
                    products = following[1 + start : 1 + start + len(vectors)]
                    torch.mm(vectors, self.weights[depth], out=products)
            if not is_last:
                table = following.view(-1, len(self.biases[depth]))
            numbers.append(which)
            values = which + 1
        return numbers

    def scale(self, vectors: Tensor) -> Tensor:
        """Factors [B, 1] that scale ``vectors`` [B, F] to length 1; 1 without normalization.

        Multiplying products by them is faster than
        :func:`rerankers.networks.layers.similarity.unit_length` of the vectors.
        """
        if not self.normalized:
            return vectors.new_ones(len(vectors), 1)
        lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        return lengths.clamp_min_(LEAST_LENGTH).reciprocal_()


class Buffers(threading.local):
    """Reused memory of one thread: new pages cost as much time as what is computed into them."""

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}

    def rows(self, name: int, count: int, size: int) -> Tensor:
        """[count, size], not initialised; valid until the next call with the same name."""
        if name not in self._kept or self._kept[name].numel() < count * size:
            self._kept.pop(name, None)
            self._kept[name] = torch.empty(int(1.05 * count) * size)
        return self._kept[name][: count * size].view(count, size)


def _weights_by_offset(convolution: MaskedConvolution) -> Tensor:
    """[E, width · F]: the weights of each offset side by side."""
    filters = convolution.bias.shape[0]
    weights = convolution.weight.view(convolution.width, -1, filters)
    return weights.permute(1, 0, 2).reshape(-1, convolution.width * filters).contiguous()
