"""Convolutions over the terms of padded texts and over matrices, and fully connected layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from rerankers.devices import is_host
from rerankers.networks.layers.embeddings import mask_of


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

    def of_packed(self, terms: Tensor, dropout: float = 0.0) -> Tensor:
        """All windows of the rows [T, E] of one long text, 0 where they end beyond it: [T, F].

        The products are those of the dtype of ``terms``. A share of the results is dropped.
        """
        hidden: Tensor = _Windows.apply(terms, self.weight, self.bias, self.width, dropout)
        return hidden

    def of_distinct(self, vectors: Tensor, rows: Tensor) -> Tensor:
        """:meth:`of_packed` of the rows [T] of ``vectors`` [U, E], each multiplied only once."""
        count = len(rows) - self.width + 1
        products = self.products(vectors).view(len(vectors), self.width, -1)
        total = self.bias.expand(count, -1)
        for shift in range(self.width):
            total = total + products[:, shift].index_select(0, rows[shift : shift + count])
        return F.pad(F.relu(total), (0, 0, 0, self.width - 1))


def drop_(values: Tensor, dropout: float) -> Tensor:
    """Make a share of ``values``, contiguous numbers, 0 in place, in steps of 1/256.

    A random byte each and bitwise operations, for a tenth of the time of PyTorch's dropout. See
    :func:`scale_of_kept` for the others.
    """
    if not is_host(values.device):
        return values.mul_(torch.empty_like(values).bernoulli_(1 / scale_of_kept(dropout)))
    count, integer = values.numel(), {2: torch.int16, 4: torch.int32}[values.element_size()]
    words = torch.empty(-(-count // 8), dtype=torch.int64, device=values.device)
    random_bytes = words.random_(-(2**63), None).view(torch.int8)[:count].view(values.shape)
    # All bits of a byte from -128 to 127 that is kept are 1, and none of the others.
    kept = (round(256 * dropout) - 129 - random_bytes.to(integer)) >> 15
    values.view(integer).bitwise_and_(kept)
    return values


def scale_of_kept(dropout: float) -> float:
    """Factor of the numbers that are kept, so that expected values stay."""
    return 256 / (256 - round(256 * dropout))


class _Windows(torch.autograd.Function):
    """Dropout of ReLU of windows of ``width`` rows of ``terms`` [T, E]; see ``of_packed``.

    A sum of one product for each offset, so that windows are copied neither here nor for
    gradients, and one result, which tells what passed both the ReLU and dropout.
    """

    @staticmethod
    def forward(
        ctx: Any, terms: Tensor, weight: Tensor, bias: Tensor, width: int, dropout: float
    ) -> Tensor:
        ctx.width, ctx.scale = width, scale_of_kept(dropout)
        weight, bias = ((values * ctx.scale).to(terms.dtype) for values in (weight, bias))
        by_offset, count = weight.view(width, -1, weight.shape[1]), len(terms) - width + 1
        hidden = terms.new_zeros(len(terms), weight.shape[1])
        total = hidden[:count]
        torch.addmm(bias, terms[:count], by_offset[0], out=total)
        for shift in range(1, width):
            total.addmm_(terms[shift : shift + count], by_offset[shift])
        total.relu_()
        if dropout:
            drop_(total, dropout)
        ctx.save_for_backward(terms, weight, hidden)
        return hidden

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        terms, weight, hidden = ctx.saved_tensors
        width, count = ctx.width, len(terms) - ctx.width + 1
        gradient = torch.ops.aten.threshold_backward(gradients[0], hidden, 0)[:count]
        by_offset = weight.view(width, -1, weight.shape[1])
        of_terms, of_weights = torch.zeros_like(terms), torch.empty_like(by_offset)
        for shift in range(width):
            of_terms[shift : shift + count].addmm_(gradient, by_offset[shift].t())
            torch.mm(terms[shift : shift + count].t(), gradient, out=of_weights[shift])
        of_weight = of_weights.view_as(weight).float() * ctx.scale
        of_bias = gradient.sum(dim=0, dtype=torch.float32) * ctx.scale
        return of_terms, of_weight, of_bias, None, None


class ConvolutionTower(nn.Module):
    """Term vectors and the convolutions stacked on them (Rao et al. 2019, section 3.2).

    Texts of a batch are computed as one long text, with padding between them; those of similar
    lengths have little of it. No window begins before its position. So where padding is read, all
    padded positions of a text are alike (but for dropout), and only the first is computed.

    Attributes:
        precision: of the convolutions' products in training, ``fp32`` or ``bf16``; otherwise it is
            autocast's.

    Args:
        vectors: module from identifiers to vectors of ``size`` dimensions.
        filters: F of every convolution.
        width: terms under a filter.
        reads_padding: whether padding is read like a term, that of identifier 0.
        dropout: share of dimensions of all vectors of a text that are dropped in training, and of
            outputs of each convolution.
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
        self.vectors, self.precision = vectors, "fp32"
        self.reads_padding, self.dropout = reads_padding, dropout
        sizes = [size] + [filters] * depth
        self.convolutions = nn.ModuleList(
            MaskedConvolution(inputs, filters, width) for inputs in sizes[:depth]
        )

    def of_parts(self, parts: Sequence[Tensor]) -> list[list[Tensor]]:
        """Vectors of every depth for each part's ids [B, L], terms first: depth + 1 tensors.

        They are [B, L, ·], and 0 for padding. If padding is read they are [B, L + 1, ·], and the
        first position after a text is what every padded position is. Parts are computed together.
        """
        layers: list[MaskedConvolution] = list(self.convolutions)  # type: ignore[arg-type]
        dropout = self.dropout if self.training else 0.0
        is_narrow = self.training and self.precision == "bf16"
        kind = parts[0].device.type
        if torch.amp.is_autocast_available(kind):
            is_narrow |= torch.is_autocast_enabled(kind)
        # Every convolution leaves its width - 1 fewer positions that read no other text.
        margins = [layer.width - 1 for layer in layers]
        gap = 1 + sum(margins) if self.reads_padding else max([1, *margins])
        padded = [F.pad(ids, (0, gap)) for ids in parts]
        packed = torch.cat([ids.flatten() for ids in padded])
        is_shared = is_host(packed.device)
        if is_shared:
            distinct, rows = packed.unique(return_inverse=True)
            vectors = self.vectors(distinct)
            terms = F.embedding(rows, vectors)
        else:
            terms = self.vectors(packed)
        if dropout:
            terms = terms * self._kept(padded, terms, dropout)
        levels = [terms]
        terms = terms.bfloat16() if is_narrow else terms
        mask = mask_of(packed).unsqueeze(1)
        for depth, layer in enumerate(layers):
            if depth or dropout or is_narrow or not is_shared:
                terms = layer.of_packed(terms, dropout)
            else:
                terms = layer.of_distinct(vectors, rows)
            if not self.reads_padding:
                terms = terms * mask.to(terms.dtype)
            levels.append(terms)
        by_part = zip(
            *(level.split([ids.numel() for ids in padded]) for level in levels), strict=True
        )
        return [
            [
                level.view(*ids.shape, -1)[:, : ids.shape[1] - gap + self.reads_padding].float()
                for level in part
            ]
            for ids, part in zip(padded, by_part, strict=True)
        ]

    def _kept(self, parts: Sequence[Tensor], terms: Tensor, dropout: float) -> Tensor:
        """Factors [T, E] of the dimensions of each text of ``parts`` [B, L]."""
        sizes = [len(ids) for ids in parts]
        scale = scale_of_kept(dropout)
        kept = drop_(terms.new_full((sum(sizes), terms.shape[1]), scale), dropout).split(sizes)
        lengths = [ids.shape[1] for ids in parts]
        return torch.cat([k.repeat_interleave(n, 0) for k, n in zip(kept, lengths, strict=True)])


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
    layer = nn.Conv2d(before, after, width, padding="same")
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    layer.bias = nn.Parameter(torch.zeros(after))
    return layer


def xavier_linear(inputs: int, outputs: int) -> nn.Linear:
    """Linear layer with Xavier's uniform distribution and without an initial bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def start_like_keras(module: nn.Module) -> None:
    """Draw weights of a module's convolutions and linear layers as Keras does; biases are 0.

    Glorot & Bengio (2010): U[-b, b] with b² = 6 / (inputs + outputs). A filter of ``width`` terms
    counts its inputs and outputs at every offset.
    """
    for layer in module.modules():
        if isinstance(layer, _Convolution):
            inputs, outputs = layer.weight.shape
            bound = (6 / (inputs + layer.width * outputs)) ** 0.5
            nn.init.uniform_(layer.weight, -bound, bound)
        elif isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


def perceptron(inputs: int, hidden: int, outputs: int, dropout: float) -> nn.Sequential:
    """Two linear layers with a ReLU between them (Rao et al. 2019, section 3.4)."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, outputs)
    )


def bounded(scores: Tensor) -> Tensor:
    """Scores of any shape, limited to (-10, 10) by tanh; about linear near 0."""
    return 10.0 * torch.tanh(scores / 10.0)
