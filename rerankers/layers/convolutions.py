"""Convolutions over the terms of padded texts and over matrices, and fully connected layers."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from rerankers.layers.embeddings import mask_of


class _Convolution(nn.Module):
    """Weights of F filters over ``width`` terms of E = ``size`` dimensions."""

    def __init__(self, size: int, filters: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(width * size, filters))
        nn.init.xavier_uniform_(self.weight)

    def products(self, vectors: Tensor) -> Tensor:
        """[N · width, F]: each of ``vectors`` [N, E] times the weights of each offset in turn.

        A window's convolution, before bias and ReLU, is the sum of ``width`` of these rows.
        """
        by_offset = self.weight.unflatten(0, (self.width, -1))
        return torch.einsum("ne,wef->nwf", vectors, by_offset).flatten(0, 1)


class MaskedConvolution(_Convolution):
    """ReLU(convolution) over ``width`` terms from each term on, zeros after the text's end.

    Equation of ``v_i`` in Rao et al. (2019), section 3.2. Padding stays zero.
    """

    def __init__(self, size: int, filters: int, width: int) -> None:
        super().__init__(size, filters, width)
        self.bias = nn.Parameter(torch.zeros(filters))

    def forward(self, terms: Tensor, mask: Tensor) -> Tensor:
        """Convolve ``terms`` [B, L, E] with ``mask`` [B, L, 1]: [B, L, F]."""
        windows = windows_from(terms, self.width)
        return F.relu(F.linear(windows, self.weight.t(), self.bias)) * mask


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


class WideConvolution(_Convolution):
    """Convolution over every window with a term: L + width - 1 positions for L terms.

    The text is surrounded by width - 1 zero vectors on either side (Kalchbrenner et al. 2014,
    section 3.1; Severyn & Moschitti 2015, section 3.1). Bias and non-linearity follow in the model.
    """

    def forward(self, terms: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve ``terms`` [B, L, E], zeros after ``lengths`` [B].

        Returns:
            [B, L + width - 1, F], zeros after the text, and the new lengths [B], 0 for a text
            without terms.
        """
        margin = self.width - 1
        wider = torch.where(lengths > 0, lengths + margin, 0)
        windows = windows_from(F.pad(terms, (0, 0, margin, 0)), self.width)
        # Windows after the text hold zeros only, so without a bias they are zero.
        return windows @ self.weight, wider


def windows_from(terms: Tensor, width: int) -> Tensor:
    """Windows of ``width`` terms from each one on, zeros after the end: [B, L, width · E]."""
    padded = F.pad(terms, (0, 0, 0, width - 1))
    return torch.cat([padded[:, j : j + terms.shape[1]] for j in range(width)], dim=2)


def square_convolution(before: int, after: int, width: int) -> nn.Conv2d:
    """Convolution of ``width`` × ``width``, initialised for a ReLU (He et al. 2015)."""
    layer = nn.Conv2d(before, after, width, padding=width // 2)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    layer.bias = nn.Parameter(torch.zeros(after))
    return layer


def xavier_linear(inputs: int, outputs: int) -> nn.Linear:
    """Linear layer with Xavier's uniform distribution and without an initial bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def perceptron(inputs: int, hidden: int, outputs: int, dropout: float) -> nn.Sequential:
    """Two linear layers with a ReLU between them (Rao et al. 2019, section 3.4)."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, outputs)
    )


def bounded(scores: Tensor, bound: float) -> Tensor:
    """Scores of any shape, limited to (-bound, bound) by tanh; about linear near 0."""
    return bound * torch.tanh(scores / bound)
