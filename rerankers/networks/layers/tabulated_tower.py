"""A convolution tower that computes each distinct span of terms only once.

Posts on one topic repeat one another: retweets, words of the query, common phrases. The
output of a convolution depends only on the terms under its filter. Each distinct span
is therefore computed once, and looked up at every position that holds it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tweetrerank.rerankers.networks.layers.convolutions import (
    ConvolutionTower,
    MaskedConvolution,
)
from tweetrerank.rerankers.networks.layers.term_vectors import LEAST_LENGTH
from tweetrerank.rerankers.text.ragged import Ragged, Rows, distinct

SPANS_AT_ONCE = 2048  # The vectors of so many spans stay in the processor's cache


class Spans(NamedTuple):
    """The distinct spans of terms, and their places in texts."""

    rows: Rows  # [U, width], the table row for each offset of a span
    at: Rows  # [T], the span that starts at each position


class SpanValues(NamedTuple):
    """The similarities of distinct spans with the phrases of a query."""

    values: Tensor  # [U, Lq]
    at: Rows  # [T], the row of ``values`` for each position


def distinct_spans(texts: Ragged, numbers: Rows, width: int) -> Spans:
    """Return the distinct spans of ``width`` positions of texts.

    There is a span from each of the T positions. ``numbers`` [T] holds a number above 0
    for each position. Positions beyond the end of a text have the number 0. The rows of
    the result are those of a table that has a row for each offset of each number.
    """
    columns = [numbers]
    for shift in range(1, width):
        later = np.zeros_like(numbers)
        later[: max(0, len(numbers) - shift)] = numbers[shift:]
        later[texts.remaining <= shift] = 0
        columns.append(later)
    first, at = distinct(columns, is_exact=False)
    spans = np.stack([column[first] for column in columns], axis=1)  # [U, width]
    return Spans(spans * width + np.arange(width), at)


class TabulatedTower:
    """Computes the vectors of a tower's forward pass once for each distinct span.

    The first convolution is linear before its ReLU. The product of every term's vector
    with the weights of every offset is therefore computed once, and the layer becomes a
    sum of ``width`` rows of a table. Each layer fills the table of the layer above it.

    ``ids`` are the identifiers of all terms to be read, without 0. Similarities are
    cosines if ``normalized``, otherwise dot products.
    """

    def __init__(
        self,
        tower: ConvolutionTower,
        ids: Rows,
        normalized: bool,
    ) -> None:
        self.convolutions: list[MaskedConvolution] = list(tower.convolutions)  # type: ignore[arg-type]
        self.normalized = normalized
        count = int(ids.max(initial=0)) + 1
        self.rows = np.zeros(count, dtype=np.int64)
        """Identifier of a term -> its row in the tables of terms."""
        self.rows[ids] = np.arange(1, len(ids) + 1)
        self.weights = [_by_offset(layer) for layer in self.convolutions]
        with_padding = F.pad(torch.from_numpy(ids), (1, 0))
        vectors: Tensor = tower.vectors(with_padding)
        self.table = vectors
        if self.weights:
            self.table = vectors @ self.weights[0]
        self.terms = vectors.mul_(self._scale(vectors))
        """[V + 1, E]; row 0 is padding."""

    def similarities(
        self,
        posts: Ragged,
        query: Sequence[Tensor],
    ) -> list[SpanValues]:
        """Return the similarities of posts with a query at each depth.

        ``query`` holds the query's vectors [1, Lq, F] at each depth.
        """
        numbers = self.rows[posts.values]
        table = self.table
        columns = [level[0].T.contiguous() for level in query]  # [F, Lq] each
        first, at = distinct([numbers], is_exact=False)
        terms = self.terms.index_select(0, torch.from_numpy(numbers[first]))
        levels = [SpanValues(terms @ columns[0], at)]
        for depth, layer in enumerate(self.convolutions, start=1):
            spans = distinct_spans(posts, numbers, layer.width)
            weights = None
            if depth < len(self.convolutions):
                weights = self.weights[depth]
            values, table = self._convolve(
                layer,
                spans,
                table,
                columns[depth],
                weights,
            )
            levels.append(SpanValues(values, spans.at))
            numbers = spans.at + 1
        return levels

    def _convolve(
        self,
        layer: MaskedConvolution,
        spans: Spans,
        table: Tensor,
        query: Tensor,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return (similarities [U, Lq], next table) of spans.

        The similarities are with the ``query`` [F, Lq]. ``weights`` are those of the
        next layer, or None for the last layer. Spans pass through all steps in blocks.
        """
        rows = torch.from_numpy(spans.rows)
        table = table.view(-1, len(layer.bias))
        values = table.new_empty(len(rows), query.shape[1])
        next_table = table  # It is not read after the last layer
        if weights is not None:  # Row 0 is for positions after a text's end
            next_table = table.new_zeros(1 + len(rows), weights.shape[1])
        for start in range(0, len(rows), SPANS_AT_ONCE):
            block = rows[start : start + SPANS_AT_ONCE]
            end = start + len(block)
            sums = F.embedding_bag(block, table, mode="sum")
            vectors = sums.add_(layer.bias).relu_()  # [block, F]
            similarities = torch.mm(vectors, query, out=values[start:end])
            similarities.mul_(self._scale(vectors))
            if weights is not None:
                torch.mm(
                    vectors,
                    weights,
                    out=next_table[1 + start : 1 + end],
                )
        return values, next_table

    def _scale(self, vectors: Tensor) -> Tensor:
        """Return the factors [B, 1] that scale vectors [B, F], or products of them.

        They scale the vectors to length 1 if similarities are cosines, and are 1
        otherwise.
        """
        if not self.normalized:
            return vectors.new_ones(len(vectors), 1)
        lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        return lengths.clamp_min_(LEAST_LENGTH).reciprocal_()


def _by_offset(layer: MaskedConvolution) -> Tensor:
    """Return the weights as [E, width · F], with each offset's side by side."""
    weight = layer.weight.unflatten(0, (layer.width, -1))  # [width, E, F]
    return weight.permute(1, 0, 2).flatten(1).contiguous()
