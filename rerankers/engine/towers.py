"""A convolution tower computed on distinct windows, its first layer tabulated.

The first convolution of term vectors is linear before its ReLU: the product of every term's vector
with every offset's weights is computed once, and the layer is a sum of ``width`` table rows. Deeper
layers get their table from the layer before. Windows go through a layer a few thousand at a time,
so that their vectors are still in the cache when they are used, and are never stored.
"""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.engine.windows import Ids, TokenSequences, distinct
from rerankers.layers.convolutions import ConvolutionTower, MaskedConvolution

WINDOWS = 2048
"""Windows that go through a layer together."""

PADDING_SIMILARITY = -1e4
"""Below every cosine: what a place beyond a text's end adds to a maximum."""


class TowerInput(NamedTuple):
    """Which tower reads a view of a post, and how many of its terms."""

    tower: str
    longest: int


class WindowSimilarities(NamedTuple):
    """One query against the places of texts, at one depth.

    Attributes:
        similarity: [U + 1, Lq] of distinct windows and the query's positions; the last row is
            ``PADDING_SIMILARITY``.
        which: [T] row of ``similarity`` for each place.
    """

    similarity: Tensor
    which: Ids


class QueryVectors(NamedTuple):
    """A query as posts are compared with it.

    Attributes:
        phrases: its vectors [Lq, F] at each depth.
        padding: [1, Lq] of ``PADDING_SIMILARITY``.
    """

    phrases: Sequence[Tensor]
    padding: Tensor


Visit = Callable[[int, Tensor], None]
"""Is given a depth and the vectors [B, F] of its next distinct windows."""


class TabulatedTower:
    """The same vectors as the tower's own forward pass gives.

    Attributes:
        terms: [V + 1, E] vectors of depth 0, row 0 is padding.

    Args:
        tower: in evaluation mode.
        ids: identifiers that will be asked for, without 0.
        normalized: whether vectors are to have length 1, as cosines need them.
        number: type of the numbers that layers are multiplied in; what is compared is float32.
    """

    def __init__(
        self, tower: ConvolutionTower, ids: Ids, normalized: bool,
        number: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self.convolutions: list[MaskedConvolution] = list(tower.convolutions)  # type: ignore[arg-type]
        self.normalized = normalized
        self.rows = np.zeros(int(ids.max(initial=0)) + 1, dtype=np.int64)
        self.rows[ids] = np.arange(1, len(ids) + 1)
        vectors: Tensor = tower.vectors(F.pad(torch.from_numpy(ids), (1, 0)))
        self.biases = [convolution.bias for convolution in self.convolutions]
        self.weights = [
            weights_by_offset(convolution).to(number) for convolution in self.convolutions
        ]
        self.table = torch.empty(0)
        if self.convolutions:
            self.table = (vectors.to(number) @ self.weights[0]).view(-1, len(self.biases[0]))
        self.terms = vectors.mul_(self.scale(vectors))
        self.buffers = _Buffers(number)

    @property
    def sizes(self) -> list[int]:
        """Numbers of a vector at each depth."""
        return [self.terms.shape[1], *(len(bias) for bias in self.biases)]

    def ask(self, texts: TokenSequences) -> QueryVectors:
        """One query, whose terms are the places of ``texts``."""
        parts = [[bias.new_empty(0, len(bias))] for bias in self.biases]

        def keep(depth: int, vectors: Tensor) -> None:
            parts[depth - 1].append(vectors * self.scale(vectors))

        first, *deeper = self.walk(texts, keep)
        phrases = [
            self.terms.index_select(0, torch.from_numpy(first)),
            *(
                torch.cat(part).index_select(0, torch.from_numpy(which))
                for part, which in zip(parts, deeper, strict=True)
            ),
        ]
        return QueryVectors(phrases, self.terms.new_full((1, len(first)), PADDING_SIMILARITY))

    def compare(self, texts: TokenSequences, question: QueryVectors) -> list[WindowSimilarities]:
        """A query against the T places of ``texts``, at every depth."""
        columns = [phrase.T.contiguous() for phrase in question.phrases]
        parts: list[list[Tensor]] = [[] for _ in self.convolutions]

        def match(depth: int, vectors: Tensor) -> None:
            parts[depth - 1].append((vectors @ columns[depth]).mul_(self.scale(vectors)))

        first, *deeper = self.walk(texts, match)
        places, which = distinct([first])
        terms = self.terms.index_select(0, torch.from_numpy(first[places]))
        return [
            WindowSimilarities(torch.cat([terms @ columns[0], question.padding]), which),
            *(
                WindowSimilarities(torch.cat([*part, question.padding]), which)
                for part, which in zip(parts, deeper, strict=True)
            ),
        ]

    def walk(self, texts: TokenSequences, visit: Visit) -> list[Ids]:
        """Have all distinct windows visited, depth by depth: which of them each place has.

        At depth 0 these are rows of :attr:`terms`, which are not visited.
        """
        values, table = self.rows[texts.ids], self.table
        found = [values]
        for depth, convolution in enumerate(self.convolutions, start=1):
            width = convolution.width
            windows = texts.windows(values, width)
            first, which = distinct(windows)
            places = np.stack([column[first] for column in windows], axis=1)
            rows = torch.from_numpy(places * width + np.arange(width))
            following = torch.empty(0)
            is_last = depth == len(self.convolutions)
            if not is_last:
                # Row 0 is what lies beyond a text's end.
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
        """What makes each of ``vectors`` [B, F] comparable: [B, 1]."""
        if not self.normalized:
            return vectors.new_ones(len(vectors), 1)
        lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        return lengths.clamp_min_(1e-6).reciprocal_()


class _Buffers(threading.local):
    """Memory of one thread that is used again: new pages cost as much as the products in them."""

    def __init__(self, number: torch.dtype) -> None:
        self.number = number
        self.kept: dict[int, Tensor] = {}

    def rows(self, name: int, count: int, size: int) -> Tensor:
        """[count, size], with anything in it, until the same name is asked for again."""
        if name not in self.kept or self.kept[name].numel() < count * size:
            self.kept.pop(name, None)
            self.kept[name] = torch.empty(int(1.05 * count) * size, dtype=self.number)
        return self.kept[name][: count * size].view(count, size)


def weights_by_offset(convolution: MaskedConvolution) -> Tensor:
    """[E, width · F]: the weights of each offset side by side."""
    filters = convolution.bias.shape[0]
    by_offset = convolution.weight.view(convolution.width, -1, filters)
    return by_offset.permute(1, 0, 2).reshape(-1, convolution.width * filters).contiguous()
