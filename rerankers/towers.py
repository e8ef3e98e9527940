"""A convolution tower computed on distinct windows, its first layer tabulated.

The first convolution of term vectors is linear before its ReLU: the product of every term's vector
with every offset's weights is computed once, and the layer is a sum of ``width`` table rows.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.contexts import Ids, Texts, distinct
from rerankers.convolutions import ConvolutionTower, MaskedConvolution


@dataclass(frozen=True)
class Level:
    """The vectors of one depth.

    Attributes:
        vectors: [U, F] of distinct windows.
        which: [T] row of ``vectors`` for each place.
    """

    vectors: Tensor
    which: Ids


class TabulatedTower:
    """The same vectors as the tower's own forward pass gives.

    Attributes:
        terms: [V + 1, E] vectors of depth 0, row 0 is padding.

    Args:
        tower: in evaluation mode.
        ids: identifiers that will be asked for, without 0.
        normalized: whether vectors are to have length 1, as cosines need them.
    """

    def __init__(self, tower: ConvolutionTower, ids: Ids, normalized: bool) -> None:
        self.convolutions: list[MaskedConvolution] = list(tower.convolutions)  # type: ignore[arg-type]
        self.normalized = normalized
        self.rows = np.zeros(int(ids.max(initial=0)) + 1, dtype=np.int64)
        self.rows[ids] = np.arange(1, len(ids) + 1)
        vectors = tower.vectors(torch.from_numpy(ids))
        self.vectors = F.pad(vectors, (0, 0, 1, 0))  # row 0 is padding
        self.terms = self._comparable(self.vectors)
        self.table = torch.empty(0)
        if self.convolutions:
            self.table = _products(self.vectors, self.convolutions[0])

    def levels(self, texts: Texts) -> list[Level]:
        """The vectors of every depth; those of depth 0 are all of :attr:`terms`."""
        rows = self.rows[texts.ids]
        levels = [Level(self.terms, rows)]
        # Row 0 is what lies beyond a text's end.
        hidden, values = self.vectors, rows
        for convolution in self.convolutions:
            is_first = convolution is self.convolutions[0]
            table = self.table if is_first else _products(hidden, convolution)
            windows = texts.windows(values, convolution.width)
            first, which = distinct(windows)
            places = np.stack([column[first] for column in windows], axis=1)
            places = places * convolution.width + np.arange(convolution.width)
            hidden = F.embedding_bag(torch.from_numpy(places), table, mode="sum")
            hidden = F.relu_(hidden.add_(convolution.bias))
            levels.append(Level(self._comparable(hidden), which))
            hidden, values = F.pad(hidden, (0, 0, 1, 0)), which + 1
        return levels

    def _comparable(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=1, eps=1e-6) if self.normalized else vectors


def _products(vectors: Tensor, convolution: MaskedConvolution) -> Tensor:
    """[N · width, F]: each of N vectors by the weights of each offset in turn."""
    size, filters = vectors.shape[1], convolution.bias.shape[0]
    by_offset = convolution.weight.view(convolution.width, size, filters)
    weights = by_offset.permute(1, 0, 2).reshape(size, convolution.width * filters)
    return (vectors @ weights).view(-1, filters)
