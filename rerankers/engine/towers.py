"""A convolution tower computed on distinct windows, with its first layer tabulated.

The first convolution is linear before its ReLU. So the product of every term's vector with the
weights of every offset is computed once, and the layer becomes a sum of ``width`` table rows. Each
deeper layer gets its table from the layer below. A few thousand windows at a time pass through a
layer, so that their vectors are still in the cache for the next step; they are never stored.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.engine.window_similarities import QueryVectors, WindowSimilarities
from rerankers.engine.windows import Ids, windows_of
from rerankers.layers.convolutions import ConvolutionTower, MaskedConvolution
from rerankers.layers.similarity import LEAST_LENGTH, PADDING_SIMILARITY
from rerankers.text.distinct import distinct
from rerankers.text.ragged import Ragged

WINDOWS = 2048
"""Windows that pass through a layer together."""


class TowerInput(NamedTuple):
    """How an input of posts is encoded.

    Attributes:
        tower: name of the tower.
        longest: terms that are read, at most.
    """

    tower: str
    longest: int


Visit = Callable[[int, Tensor], None]
"""Called with a depth and the vectors [B, F] of its next distinct windows."""


class TabulatedTower:
    """The vectors of a tower's forward pass, computed once for each distinct window.

    Attributes:
        terms: [V + 1, E] vectors of depth 0; row 0 is padding.

    Args:
        tower: in evaluation mode.
        ids: identifiers of the terms that will be read, without 0.
        normalized: whether vectors are scaled to length 1, for cosines.
        dtype: of the products in convolutions; similarities are in float32.
    """

    def __init__(
        self,
        tower: ConvolutionTower,
        ids: Ids,
        normalized: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.convolutions: list[MaskedConvolution] = list(tower.convolutions)  # type: ignore[arg-type]
        self.normalized = normalized
        self.rows = np.zeros(int(ids.max(initial=0)) + 1, dtype=np.int64)
        self.rows[ids] = np.arange(1, len(ids) + 1)
        vectors: Tensor = tower.vectors(F.pad(torch.from_numpy(ids), (1, 0)))
        self.biases = [convolution.bias for convolution in self.convolutions]
        self.weights = [_weights_by_offset(layer).to(dtype) for layer in self.convolutions]
        self.table = torch.empty(0)
        if self.convolutions:
            self.table = (vectors.to(dtype) @ self.weights[0]).view(-1, len(self.biases[0]))
        self.terms = vectors.mul_(self.scale(vectors))
        self.buffers = _Buffers(dtype)

    @property
    def sizes(self) -> list[int]:
        """Dimensions of the vectors at each depth."""
        return [self.terms.shape[1], *(len(bias) for bias in self.biases)]

    def encode_query(self, query: Ragged) -> QueryVectors:
        """Vectors of one query, given as one sequence."""
        parts = [[bias.new_empty(0, len(bias))] for bias in self.biases]

        def keep(depth: int, vectors: Tensor) -> None:
            parts[depth - 1].append(vectors * self.scale(vectors))

        first, *deeper = self.walk(query, keep)
        levels = [self.terms.index_select(0, torch.from_numpy(first))]
        for part, rows in zip(parts, deeper, strict=True):
            levels.append(torch.cat(part).index_select(0, torch.from_numpy(rows)))
        return QueryVectors(levels, self.terms.new_full((1, len(first)), PADDING_SIMILARITY))

    def similarities(self, posts: Ragged, query: QueryVectors) -> list[WindowSimilarities]:
        """Similarities of a query with posts, at each depth."""
        columns = [level.T.contiguous() for level in query.levels]
        parts: list[list[Tensor]] = [[] for _ in self.convolutions]

        def multiply(depth: int, vectors: Tensor) -> None:
            parts[depth - 1].append((vectors @ columns[depth]).mul_(self.scale(vectors)))

        first, *deeper = self.walk(posts, multiply)
        places, rows = distinct([first], is_exact=False)
        terms = self.terms.index_select(0, torch.from_numpy(first[places]))
        parts, rows_by_depth = [[terms @ columns[0]], *parts], [rows, *deeper]
        return [
            WindowSimilarities(torch.cat([*part, query.padding]), rows, posts)
            for part, rows in zip(parts, rows_by_depth, strict=True)
        ]

    def walk(self, sequences: Ragged, visit: Visit) -> list[Ids]:
        """Visit the vectors of all distinct windows, depth by depth.

        Returns:
            [T] for each depth: the number of each position's window, in order of the visits. At
            depth 0 it is the row of :attr:`terms`; these are not visited.
        """
        values, table = self.rows[sequences.values], self.table
        found = [values]
        for depth, convolution in enumerate(self.convolutions, start=1):
            width = convolution.width
            windows = windows_of(sequences, values, width)
            first, which = distinct(windows, is_exact=False)
            places = np.stack([column[first] for column in windows], axis=1)
            rows = torch.from_numpy(places * width + np.arange(width))
            following = torch.empty(0)
            is_last = depth == len(self.convolutions)
            if not is_last:
                # Row 0 is for positions after a text's end.
                following = self.buffers.rows(depth, len(first) + 1, self.weights[depth].shape[1])
                following[0] = 0
            for start in range(0, len(first), WINDOWS):
                vectors = F.embedding_bag(rows[start : start + WINDOWS], table, mode="sum")
                vectors = vectors.float().add_(convolution.bias).relu_()
                visit(depth, vectors)
                if not is_last:
                    products = following[1 + start : 1 + start + len(vectors)]
                    torch.mm(vectors.to(products.dtype), self.weights[depth], out=products)
            if not is_last:
                table = following.view(-1, len(self.biases[depth]))
            found.append(which)
            values = which + 1
        return found

    def scale(self, vectors: Tensor) -> Tensor:
        """Factors [B, 1] that scale ``vectors`` [B, F] to length 1; 1 without normalization.

        Multiplying products by them is faster than
        :func:`rerankers.layers.similarity.unit_length` of the vectors.
        """
        if not self.normalized:
            return vectors.new_ones(len(vectors), 1)
        lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        return lengths.clamp_min_(LEAST_LENGTH).reciprocal_()


class _Buffers(threading.local):
    """Reused memory of one thread: new pages cost as much time as the products written there."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.kept: dict[int, Tensor] = {}

    def rows(self, name: int, count: int, size: int) -> Tensor:
        """[count, size], not initialised; valid until the next call with the same name."""
        if name not in self.kept or self.kept[name].numel() < count * size:
            self.kept.pop(name, None)
            self.kept[name] = torch.empty(int(1.05 * count) * size, dtype=self.dtype)
        return self.kept[name][: count * size].view(count, size)


def _weights_by_offset(convolution: MaskedConvolution) -> Tensor:
    """[E, width · F]: the weights of each offset side by side."""
    filters = convolution.bias.shape[0]
    weights = convolution.weight.view(convolution.width, -1, filters)
    return weights.permute(1, 0, 2).reshape(-1, convolution.width * filters).contiguous()
