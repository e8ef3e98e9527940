"""Convolutions over the terms of padded texts and over matrices, and fully connected layers."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from rerankers.layers.embeddings import mask_of, mask_of_lengths


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
        return self.activations(windows_from(terms, self.width)) * mask

    def activations(self, windows: Tensor) -> Tensor:
        """ReLU(convolution) of windows [..., width · E]: [..., F]."""
        return F.relu(F.linear(windows, self.weight.t(), self.bias))

    def of_packed(self, terms: Tensor) -> Tensor:
        """All windows of the rows [T, E] of one long text: [T - width + 1, F]."""
        count = len(terms) - self.width + 1
        columns = [terms[shift : shift + count] for shift in range(self.width)]
        return self.activations(torch.cat(columns, dim=1))

    def of_distinct(self, vectors: Tensor, rows: Tensor) -> Tensor:
        """:meth:`of_packed` of the rows [T] of ``vectors`` [U, E], each multiplied only once."""
        count = len(rows) - self.width + 1
        products = self.products(vectors).view(len(vectors), self.width, -1)
        total = self.bias.expand(count, -1)
        for shift in range(self.width):
            total = total + products[:, shift].index_select(0, rows[shift : shift + count])
        return F.relu(total)


class ConvolutionTower(nn.Module):
    """Term vectors and the convolutions stacked on them (Rao et al. 2019, section 3.2).

    Only positions with a term are computed: texts of a batch differ in length, and a post has a
    third of the paper's positions on average.

    Attributes:
        precision: of the convolutions' products in training, ``fp32`` or ``bf16``.

    Args:
        vectors: module from identifiers to vectors of ``size`` dimensions.
        size: E.
        filters: F of every convolution.
        width: terms under a filter.
        depth: number of convolutions.
    """

    def __init__(self, vectors: nn.Module, size: int, filters: int, width: int, depth: int) -> None:
        super().__init__()
        self.vectors, self.precision = vectors, "fp32"
        sizes = [size] + [filters] * depth
        self.convolutions = nn.ModuleList(
            MaskedConvolution(inputs, filters, width) for inputs in sizes[:depth]
        )

    def forward(self, ids: Tensor, length: int | None = None) -> list[Tensor]:
        """Vectors of every depth for ids [B, L], terms first: depth + 1 tensors [B, L, ·].

        Padding is 0 at every depth. With a ``length`` it is read like a term whose vector is 0,
        and the result has ``length`` positions.
        """
        layers: list[MaskedConvolution] = list(self.convolutions)  # type: ignore[arg-type]
        widest = max([2, *(layer.width for layer in layers)])
        texts = PackedTexts.of(ids, length or ids.shape[1], widest - 1)
        distinct, rows = texts.ids.unique(return_inverse=True)
        vectors = self.vectors(distinct)
        terms = vectors[rows]
        padding = terms.new_zeros(terms.shape[1])
        levels = [texts.padded(terms, padding)]
        is_narrow = self.training and self.precision == "bf16"
        for depth, layer in enumerate(layers):
            with torch.autocast(ids.device.type, torch.bfloat16, enabled=is_narrow):
                windows = layer.of_packed(terms) if depth else layer.of_distinct(vectors, rows)
                terms = texts.masked(windows)
                if length is None:
                    padding = terms.new_zeros(terms.shape[1])
                else:
                    padding = layer.activations(padding.repeat(layer.width))
                    terms = terms + padding * (1 - texts.mask)
            levels.append(texts.padded(terms.float(), padding.float()))
        return levels


class PackedTexts(NamedTuple):
    """The T terms of B texts, one text after another with zeros between them."""

    padded_shape: tuple[int, int]  # B, and positions of a padded text with the zeros after it
    gap: int  # Zeros after a text
    places: Tensor  # [T] of each packed identifier in the padded texts
    ids: Tensor  # [T]
    mask: Tensor  # [T, 1], 1 for terms

    @classmethod
    def of(cls, ids: Tensor, length: int, gap: int) -> PackedTexts:
        """Pack padded identifiers [B, L], which will be padded to ``length`` again."""
        padded = F.pad(ids, (0, length - ids.shape[1] + gap))
        lengths = ids.ne(0).sum(dim=1)
        inside = mask_of_lengths(lengths + gap, padded.shape[1]).flatten()
        places = inside.nonzero().squeeze(1)
        packed = padded.flatten()[places]
        shape = padded.shape[0], padded.shape[1]
        return cls(shape, gap, places, packed, mask_of(packed).unsqueeze(1))

    def masked(self, windows: Tensor) -> Tensor:
        """Values of the windows at the first places, 0 between texts: [T, F]."""
        missing = len(self.ids) - len(windows)
        return F.pad(windows, (0, 0, 0, missing)) * self.mask.to(windows.dtype)

    def padded(self, terms: Tensor, padding: Tensor) -> Tensor:
        """Packed terms [T, F] in their places, ``padding`` [F] elsewhere: [B, L, F]."""
        count, length = self.padded_shape
        everywhere = padding.expand(count * length, -1).contiguous()
        placed = everywhere.index_copy(0, self.places, terms)
        return placed.view(count, length, -1)[:, : length - self.gap]


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
