"""Convolutions over the terms of padded texts."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from rerankers.layers.embeddings import mask_of


class MaskedConvolution(nn.Module):
    """ReLU(convolution) over ``width`` terms from each term on, zeros after the text's end.

    Equation of ``v_i`` in Rao et al. (2019), section 3.2. Padding stays zero.
    """

    def __init__(self, size: int, filters: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(width * size, filters))
        self.bias = nn.Parameter(torch.zeros(filters))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, terms: Tensor, mask: Tensor) -> Tensor:
        """Convolve ``terms`` [B, L, E] with ``mask`` [B, L, 1]: [B, L, F]."""
        length = terms.shape[1]
        padded = F.pad(terms, (0, 0, 0, self.width - 1))
        windows = torch.cat([padded[:, j : j + length] for j in range(self.width)], dim=2)
        hidden: Tensor = F.relu(F.linear(windows, self.weight.t(), self.bias))
        return hidden * mask

    def products(self, vectors: Tensor) -> Tensor:
        """[N · width, F]: each of ``vectors`` [N, E] times the weights of each offset in turn.

        A window's convolution, before bias and ReLU, is the sum of ``width`` of these rows.
        """
        return products_by_offset(vectors, self.weight, self.width)


class ConvolutionTower(nn.Module):
    """Term vectors and the convolutions stacked on them (Rao et al. 2019, section 3.2).

    Args:
        vectors: module from identifiers to vectors of ``size`` dimensions.
        size: E.
        filters: F of every convolution.
        width: terms under a filter.
        depth: number of convolutions.
    """

    def __init__(self, vectors: nn.Module, size: int, filters: int, width: int, depth: int) -> None:
        super().__init__()
        self.vectors = vectors
        sizes = [size] + [filters] * depth
        self.convolutions = nn.ModuleList(
            MaskedConvolution(inputs, filters, width) for inputs in sizes[:depth]
        )

    def forward(self, ids: Tensor) -> list[Tensor]:
        """Vectors of every depth for ids [B, L]: depth + 1 tensors [B, L, ·]."""
        mask = mask_of(ids).unsqueeze(2)
        levels = [self.vectors(ids)]
        for convolution in self.convolutions:
            levels.append(convolution(levels[-1], mask))
        return levels


class WideConvolution(nn.Module):
    """Convolution over every window with a term: L + width - 1 positions for L terms.

    The text is surrounded by width - 1 zero vectors on either side (Kalchbrenner et al. 2014,
    section 3.1; Severyn & Moschitti 2015, section 3.1). Bias and non-linearity follow in the model.

    Args:
        size: E.
        filters: F.
        width: m, terms under a filter.
    """

    def __init__(self, size: int, filters: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(width * size, filters))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, terms: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve ``terms`` [B, L, E], zeros after ``lengths`` [B].

        Returns:
            [B, L + width - 1, F], zeros after the text, and the new lengths [B], 0 for a text
            without terms.
        """
        positions, margin = terms.shape[1] + self.width - 1, self.width - 1
        padded = F.pad(terms, (0, 0, margin, margin))
        windows = torch.cat([padded[:, j : j + positions] for j in range(self.width)], dim=2)
        wider = torch.where(lengths > 0, lengths + margin, 0)
        # Windows after the text hold zeros only, so without a bias they are zero.
        return windows @ self.weight, wider

    def products(self, vectors: Tensor) -> Tensor:
        """[N · width, F]: each of ``vectors`` [N, E] times the weights of each offset in turn.

        A window's convolution, before bias and ReLU, is the sum of ``width`` of these rows.
        """
        return products_by_offset(vectors, self.weight, self.width)


def products_by_offset(vectors: Tensor, weight: Tensor, width: int) -> Tensor:
    """[N · width, F] of ``vectors`` [N, E] and ``weight`` [width · E, F]."""
    by_offset = weight.unflatten(0, (width, -1))
    return torch.einsum("ne,wef->nwf", vectors, by_offset).flatten(0, 1)
