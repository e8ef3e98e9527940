"""Towers of convolutions over texts that lie one after another, to encode few posts at once.

There is no padding but for a few zeros between two texts. The first convolution is linear before
its ReLU, so the products of each term's vector with the weights of every offset are computed once,
and the layer becomes a sum of ``width`` rows of a table. Deeper layers are convolutions over tiles
of fixed sizes, which stay in the processor's cache.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.layers.convolutions import ConvolutionTower, MaskedConvolution
from rerankers.layers.similarity import LEAST_LENGTH
from rerankers.scoring.windows import Buffers
from rerankers.text.ragged import Ragged, Rows

TILE, STEP = 2048, 128
"""Positions of a tile, and of what its size is a multiple of: each size has a kernel of its own,
which is made on first use."""


@dataclass(frozen=True)
class PackedSimilarities:
    """Similarities of a query with P texts that lie one after another.

    The methods are those of :class:`rerankers.layers.pooling.Similarities`.

    Attributes:
        values: [Lq, T] with at least one column after the last text.
        starts: [P] first column of each text.
        ends: [P] column after each text's last one.
    """

    values: npt.NDArray[np.float32]
    starts: Rows
    ends: Rows

    def every(self, step: int) -> list[EverySimilarities]:
        """Those of the texts 0, ``step``, …, of the texts 1, 1 + ``step``, …, and so on."""
        return [EverySimilarities(self, slice(first, None, step)) for first in range(step)]

    @cached_property
    def maxima(self) -> Tensor:
        """Maximum over each text's positions: [P, Lq]."""
        return self._of_posts(self._reduced(np.maximum, self.values))

    @cached_property
    def means(self) -> Tensor:
        """Mean over each text's positions: [P, Lq]."""
        lengths = np.maximum(self.ends - self.starts, 1).astype(np.float32)
        return self._of_posts(self._reduced(np.add, self.values) / lengths)

    def max(self) -> Tensor:
        """:attr:`maxima`."""
        return self.maxima

    def mean(self) -> Tensor:
        """:attr:`means`."""
        return self.means

    def pooled_softmax(self, temperature: float, length: int) -> tuple[Tensor, Tensor]:
        """Maximum and mean of a softmax over ``length`` positions: two of [P, Lq]."""
        logits = self.values * temperature
        highest = self._reduced(np.maximum, logits)
        peaks = np.maximum(highest, 0)
        owners = np.searchsorted(self.starts, np.arange(logits.shape[1]), "right") - 1
        # Columns between the texts may hold anything, but nothing that overflows.
        exponentials = np.exp(np.minimum(logits - peaks[:, owners.clip(min=0)], 0))
        sums = self._reduced(np.add, exponentials)
        totals = sums + (length - (self.ends - self.starts)) * np.exp(-peaks)
        maxima = np.exp(highest - peaks) / totals
        return self._of_posts(maxima), self._of_posts(sums / totals / length)

    def _reduced(
        self, function: np.ufunc, values: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """[Lq, P] a function of each text's columns; of one other column for an empty text."""
        borders = np.stack([self.starts, self.ends], axis=1).ravel()
        reduced: npt.NDArray[np.float32] = function.reduceat(values, borders, axis=1)
        return reduced[:, ::2]

    def _of_posts(self, values: npt.NDArray[Any]) -> Tensor:
        """[Lq, P] as [P, Lq], 0 for empty texts."""
        by_post = np.where(self.ends > self.starts, values, 0).T
        return torch.from_numpy(np.ascontiguousarray(by_post, dtype=np.float32))


class EverySimilarities(NamedTuple):
    """The similarities of some of the texts; what they share is computed for all texts at once."""

    all: PackedSimilarities
    shown: slice

    def max(self) -> Tensor:
        """Maximum over each text's positions: [P, Lq]."""
        return self.all.maxima[self.shown]

    def mean(self) -> Tensor:
        """Mean over each text's positions: [P, Lq]."""
        return self.all.means[self.shown]

    def pooled_softmax(self, temperature: float, length: int) -> tuple[Tensor, Tensor]:
        """As :meth:`PackedSimilarities.pooled_softmax`."""
        values, starts, ends = self.all.values, self.all.starts, self.all.ends
        own = PackedSimilarities(values, starts[self.shown], ends[self.shown])
        return own.pooled_softmax(temperature, length)


@dataclass(frozen=True)
class PackedVectors:
    """Vectors of P texts that lie one after another.

    Attributes:
        table: [N, E] vectors of terms.
        rows: [T] row of each place's term; at least one place is after the last text.
        vectors: [T, F] vectors of all depths above 0, side by side.
        sizes: dimensions of each of these depths.
        starts: [P] first place of each text.
        ends: [P] place after each text's last one.
    """

    table: Tensor
    rows: npt.NDArray[np.int32]
    vectors: Tensor
    sizes: Sequence[int]
    starts: Rows
    ends: Rows

    @classmethod
    def joined(cls, parts: Sequence[PackedVectors]) -> PackedVectors:
        """The texts of at least one part, part after part; all are of one tower."""
        first = parts[0]
        if len(parts) == 1:
            return first
        before = np.cumsum([0, *(len(part.rows) for part in parts)]).tolist()
        vectors = np.concatenate([part.vectors.numpy() for part in parts])
        return cls(
            max((part.table for part in parts), key=len),  # One that has grown has all terms.
            np.concatenate([part.rows for part in parts]),
            torch.from_numpy(vectors),
            first.sizes,
            np.concatenate([part.starts + n for part, n in zip(parts, before, strict=False)]),
            np.concatenate([part.ends + n for part, n in zip(parts, before, strict=False)]),
        )

    def levels(self, start: int, end: int) -> list[Tensor]:
        """Vectors [end - start, F] of these places at each depth."""
        terms = self.table.index_select(0, torch.from_numpy(self.rows[start:end]))
        return [terms, *self.vectors[start:end].split(self.sizes, dim=1)]

    def products(self, query: Sequence[Tensor]) -> list[npt.NDArray[np.float32]]:
        """Products [Lq, T] with a query's vectors [Lq, F], at each depth.

        By tiles, as when the texts were encoded, so that rounding does not tell the two apart.
        """
        count = len(self.rows)
        products = [torch.zeros(len(columns), count) for columns in query]
        for start in range(0, count - 1, TILE):
            end = min(start + TILE, count - 1)
            for product, columns, level in zip(
                products, query, self.levels(start, end), strict=True
            ):
                product[:, start:end] = columns @ level.T
        return [product.numpy() for product in products]

    def slice(self, first: int, end: int) -> PackedVectors:
        """The texts from ``first`` up to ``end``, which is not among them."""
        start, stop = int(self.starts[first]), int(self.ends[end - 1]) + 1
        starts, ends = self.starts[first:end] - start, self.ends[first:end] - start
        rows, vectors = self.rows[start:stop], self.vectors[start:stop]
        return PackedVectors(self.table, rows, vectors, self.sizes, starts, ends)


class PackedTower:
    """The vectors of a tower's forward pass. Terms that were read once are remembered.

    Args:
        tower: in evaluation mode.
        normalized: whether vectors are scaled to length 1, for cosines.
    """

    def __init__(self, tower: ConvolutionTower, normalized: bool) -> None:
        self.convolutions: list[MaskedConvolution] = list(tower.convolutions)  # type: ignore[arg-type]
        self.normalized, self._vectors = normalized, tower.vectors
        self.gap = max([1, *(layer.width - 1 for layer in self.convolutions)])
        self.halo = max(1, sum(layer.width - 1 for layer in self.convolutions))
        self._weights = [_as_image(layer) for layer in self.convolutions[1:]]
        self._rows = np.zeros(1, dtype=np.int64)
        nothing: Tensor = tower.vectors(torch.zeros(1, dtype=torch.int64))
        self._terms = _Table(torch.zeros_like(nothing))
        if self.convolutions:
            first = self.convolutions[0]
            self._products = _Table(first.products(nothing).view(1, -1).zero_())
            self._first = copy.deepcopy(first).double()
        self._lock, self._buffers = threading.Lock(), Buffers()

    @property
    def sizes(self) -> list[int]:
        """Dimensions of the vectors at each depth."""
        return [self._terms.values.shape[1], *(len(layer.bias) for layer in self.convolutions)]

    @property
    def bytes(self) -> int:
        """Size of what is remembered."""
        tables = [self._terms, *([self._products] if self.convolutions else [])]
        return self._rows.nbytes + sum(table.values.nbytes for table in tables)

    def encode_query(self, query: Ragged) -> list[Tensor]:
        """Vectors [Lq, F] of one query at each depth; the query is given as one text."""
        return self.encode(query)[0].levels(0, len(query.values))

    def size_of(self, texts: Ragged) -> int:
        """Numbers of four bytes that the vectors of texts take."""
        return (self._used(texts) + 1) * (1 + sum(self.sizes[1:]))

    def _used(self, texts: Ragged) -> int:
        """Places of texts and of the gaps between them, rounded up."""
        return -(-(len(texts.values) + self.gap * (len(texts) - 1)) // STEP) * STEP

    def encode(
        self, texts: Ragged, query: Sequence[Tensor] = (), memory: Tensor | None = None
    ) -> tuple[PackedVectors, list[npt.NDArray[np.float32]]]:
        """Vectors of the terms of texts, and their products with a query's vectors.

        An identifier 0 is read as padding. The products are computed while the vectors are in the
        processor's cache, and are valid until the next call in the same thread.

        Args:
            texts: at least one.
            query: its vectors [Lq, F] at each depth.
            memory: for the vectors, :meth:`size_of` numbers.
        """
        starts = texts.starts[:-1] + self.gap * np.arange(len(texts))
        rows = self._rows_of(texts.values)
        used = self._used(texts)
        places = np.zeros(used + self.halo, dtype=np.int64)
        places[np.arange(len(rows)) + self.gap * texts.owners] = rows
        sizes, ends, count = self.sizes[1:], starts + texts.lengths, used + 1
        memory = torch.empty(self.size_of(texts)) if memory is None else memory
        kept_rows, vectors = (
            memory[:count].view(torch.int32),
            memory[count:].view(count, sum(sizes)),
        )
        kept_rows.copy_(torch.from_numpy(places[:count]))
        vectors[used:] = 0.0
        packed = PackedVectors(self._terms.values, kept_rows.numpy(), vectors, sizes, starts, ends)
        products = [
            self._buffers.rows(depth, len(columns), count) for depth, columns in enumerate(query)
        ]
        for product in products:
            product[:, used:] = 0.0
        for start in range(0, used, TILE):
            end = min(start + TILE, used)
            if sizes:
                self._fill(vectors[start:end], places[start : end + self.halo])
            for columns, level, product in zip(
                query, packed.levels(start, end) if query else (), products, strict=True
            ):
                product[:, start:end] = columns @ level.T
        return packed, [product.numpy() for product in products]

    def _fill(self, vectors: Tensor, places: Rows) -> None:
        """Vectors [T, F] of a tile, whose ``places`` go on for as many as its windows reach."""
        first, *deeper = self.convolutions
        offsets, outside = np.arange(first.width), np.flatnonzero(places == 0)
        windows = np.arange(len(places) - first.width + 1)[:, None] + offsets
        rows = torch.from_numpy(places[windows] * first.width + offsets)
        table = self._products.values.view(-1, len(first.bias))
        level = F.embedding_bag(rows, table, mode="sum")
        level.add_(first.bias).relu_()
        done = 0
        for depth in range(len(self.convolutions)):
            inside = outside[: np.searchsorted(outside, len(level))]
            level.index_fill_(0, torch.from_numpy(inside), 0.0)
            place = vectors[:, done : done + level.shape[1]]
            done += level.shape[1]
            own = level[: len(vectors)]
            torch.mul(own, _scale(own), out=place) if self.normalized else place.copy_(own)
            if depth < len(deeper):
                image = level.view(1, len(level), 1, -1).permute(0, 3, 1, 2)
                convolved = F.conv2d(image, self._weights[depth], deeper[depth].bias)
                filters, width = self._weights[depth].shape[0], deeper[depth].width
                level = convolved.permute(0, 2, 3, 1).reshape(len(level) - width + 1, filters)
                level.relu_()

    def _rows_of(self, ids: Rows) -> Rows:
        """[T] row of each term in the tables; new terms get one."""
        highest = int(ids.max(initial=0))
        with self._lock:
            if highest >= len(self._rows):
                self._rows = np.pad(self._rows, (0, 2 * highest + 1 - len(self._rows)))
            rows = self._rows[ids]
            if len(unknown := np.unique(ids[(rows == 0) & (ids > 0)])):
                self._learn(unknown)
                rows = self._rows[ids]
        return rows

    def _learn(self, ids: Rows) -> None:
        # In double precision: rounded once, a term is the same whatever it is learnt with.
        vectors: Tensor = self._vectors(torch.from_numpy(ids.astype(np.int64))).double()
        if self.convolutions:
            self._products.append(self._first.products(vectors).view(len(ids), -1))
        first = self._terms.append(vectors * _scale(vectors) if self.normalized else vectors)
        # Last, as other threads read it.
        self._rows[ids] = first + np.arange(len(ids))


class _Table:
    """Rows [N, F] that grow; ``values`` has spare ones at its end."""

    def __init__(self, values: Tensor) -> None:
        self.values, self._count = values, len(values)

    def append(self, rows: Tensor) -> int:
        """Append rows; the number of the first one."""
        first, self._count = self._count, self._count + len(rows)
        if self._count > len(self.values):
            larger = self.values.new_empty(max(self._count, 2 * len(self.values)), rows.shape[1])
            larger[:first] = self.values[:first]
            self.values = larger
        self.values[first : self._count] = rows
        return first


def _as_image(convolution: MaskedConvolution) -> Tensor:
    """Weights as of a two-dimensional convolution of width 1: [F, E, width, 1]."""
    filters = convolution.bias.shape[0]
    weights = convolution.weight.view(convolution.width, -1, filters).permute(2, 1, 0)
    return weights.unsqueeze(3).contiguous(memory_format=torch.channels_last)


def _scale(vectors: Tensor) -> Tensor:
    """Factors [B, 1] that scale vectors [B, F] to length 1."""
    lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return lengths.clamp_min_(LEAST_LENGTH).reciprocal_()
