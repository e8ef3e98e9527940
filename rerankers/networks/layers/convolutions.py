"""Convolutions over the terms of texts, and over matrices."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tweetrerank.rerankers.networks.layers.positions import (
    pad_after,
    pad_before,
    spans_from,
)


class Convolution(nn.Module):
    """Weights of F filters over ``width`` terms, each of E = ``size`` dimensions."""

    def __init__(
        self,
        size: int,
        filters: int,
        width: int,
    ) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(width * size, filters))
        nn.init.xavier_uniform_(self.weight)


class MaskedConvolution(Convolution):
    """Computes ReLU(convolution) over ``width`` terms, starting at each term.

    A text is followed by zeros, and padding stays zero. Source: Rao et al. (2019),
    section 3.2, equation of v_i.
    """

    def __init__(
        self,
        size: int,
        filters: int,
        width: int,
    ) -> None:
        super().__init__(size, filters, width)
        self.bias = nn.Parameter(torch.zeros(filters))

    def forward(self, terms: Tensor, mask: Tensor) -> Tensor:
        """Convolve ``terms`` [B, L, E] with ``mask`` [B, L, 1] into [B, L, F]."""
        padded = pad_after(terms, self.width - 1)
        packed = self.of_packed(padded.flatten(0, 1))
        hidden = packed.unflatten(0, padded.shape[:2])
        return hidden[:, : terms.shape[1]] * mask

    def of_packed(self, terms: Tensor, dropout: float = 0.0) -> Tensor:
        """Convolve the rows [T, E] of one long text, and return [T, F].

        Spans that end beyond the text are 0. There is one product for each offset in a
        span, so that spans are not copied. Products have the dtype of ``terms``. The
        share ``dropout`` of the results is dropped.
        """
        weight = self.weight.to(terms.dtype)
        by_offset = weight.unflatten(0, (self.width, -1))  # [width, E, F]
        count = len(terms) - self.width + 1
        total = self.bias.to(terms.dtype)  # Then [T - width + 1, F]
        for shift in range(self.width):
            shifted = terms[shift : shift + count]
            total = torch.addmm(total, shifted, by_offset[shift])
        hidden = F.dropout(F.relu(total), dropout)
        return pad_after(hidden, self.width - 1)


class ConvolutionTower(nn.Module):
    """Term vectors, and the convolutions that are stacked on them.

    Source: Rao et al. (2019), section 3.2. All texts of a batch are computed as one
    long text, with padding between the texts.

    If a tower ``reads_padding``, identifier 0 is a term like any other. A span never
    begins before its position. All padded positions of a text therefore have the same
    vectors, except for dropout, and only the first of them is computed.

    ``dropout`` is the share of dimensions that are dropped in training. It applies to
    all term vectors of a text, and to the outputs of each convolution.
    """

    def __init__(
        self,
        vectors: nn.Module,
        size: int,
        filters: int,
        width: int,
        depth: int,
        reads_padding: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.vectors = vectors
        # Number format of products in training: ``fp32`` or ``bf16``
        self.precision = "fp32"
        self.reads_padding = reads_padding
        self.dropout = dropout
        sizes = [size] + [filters] * depth
        self.convolutions = nn.ModuleList(
            MaskedConvolution(inputs, filters, width) for inputs in sizes[:depth]
        )

    def forward(self, ids: Tensor) -> list[Tensor]:
        """Return the vectors of texts [B, L] at every depth.

        The depths go from terms to the longest phrases. The result has depth + 1
        tensors [B, L, ·], which are 0 for padding. A tower that reads padding returns
        [B, L + 1, ·], where the first position after a text stands for all padded
        positions.
        """
        dropout = self.dropout if self.training else 0.0
        padded = F.pad(ids, (0, self._gap()))
        terms = self.vectors(padded.flatten())
        if dropout:
            ones = terms.new_ones(len(ids), terms.shape[1])
            factors = F.dropout(ones, dropout)
            terms = terms * factors.repeat_interleave(padded.shape[1], 0)
        levels = [terms]
        if self.training and self.precision == "bf16":
            terms = terms.bfloat16()
        mask = padded.flatten().ne(0).unsqueeze(1)
        for layer in self._layers():
            terms = layer.of_packed(terms, dropout)
            if not self.reads_padding:
                terms = terms * mask
            levels.append(terms)
        length = ids.shape[1] + self.reads_padding
        texts = [level.unflatten(0, padded.shape) for level in levels]
        return [level[:, :length].float() for level in texts]

    def _layers(self) -> list[MaskedConvolution]:
        return list(self.convolutions)  # type: ignore[arg-type]

    def _gap(self) -> int:
        """Return the number of padded positions between texts.

        It is large enough that no span reads two texts.
        """
        margins = [layer.width - 1 for layer in self._layers()]
        if self.reads_padding:
            # Each convolution leaves fewer positions that do not read another text.
            return 1 + sum(margins)
        return max([1, *margins])


class WideConvolution(Convolution):
    """A convolution over every span that holds a term of the text.

    L terms have L + width - 1 spans, because the text is surrounded by width - 1 zero
    vectors on either side (Kalchbrenner et al. 2014, section 3.1; Severyn & Moschitti
    2015, section 3.1). The model adds the bias and the non-linearity.
    """

    def forward(self, terms: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve ``terms`` [B, L, E], which are zero after ``lengths`` [B].

        Returns (values, lengths). The values are [B, L + width - 1, F] and zero after
        the text. The new lengths are [B], and 0 for a text without terms.
        """
        margin = self.width - 1
        new_lengths = torch.where(lengths > 0, lengths + margin, 0)
        spans = spans_from(pad_before(terms, margin), self.width)
        # Spans after the text hold only zeros, so without a bias they are zero.
        return spans @ self.weight, new_lengths


def square_convolution(before: int, after: int, width: int) -> nn.Conv2d:
    """Return a ``width`` × ``width`` convolution for a ReLU.

    Its weights are initialised as in He et al. (2015).
    """
    layer = nn.Conv2d(
        before,
        after,
        width,
        padding="same",
    )
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    layer.bias = nn.Parameter(torch.zeros(after))
    return layer
