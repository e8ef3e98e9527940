"""A convolution tower that computes each distinct span of terms once.

Posts of one topic repeat one another: retweets, words of the query, common phrases. The
output of a convolution depends only on the terms under its filter. So each distinct
span is computed once, and looked up at every position that holds it.
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

SPANS_AT_ONCE = 2048  # Their vectors stay in the processor's cache through a layer


class Spans(NamedTuple):
    """Distinct spans of terms, and their places in texts."""

    rows: Rows  # [U, width] row for each offset of a span in a table
    at: Rows  # [T] span that starts at each position


class SpanValues(NamedTuple):
    """Similarities of distinct spans with the phrases of a query."""

    values: Tensor  # [U, Lq]
    at: Rows  # [T] row of ``values`` for each position


def distinct_spans(texts: Ragged, numbers: Rows, width: int) -> Spans:
    """Distinct spans of ``width`` positions that start at the T positions of texts.

    ``numbers`` [T] are a number above 0 for each position, 0 beyond a text's end. Rows
    are those of a table with a row for each offset of each number.
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
    """The vectors of a tower's forward pass, computed once for each distinct span.

    The first convolution is linear before its ReLU. So the product of every term's
    vector with the weights of every offset is computed once, and the layer becomes a
    sum of ``width`` rows of a table. The layer below fills the table of each deeper
    layer.

    ``ids`` are the identifiers, without 0, of all terms to be read. Similarities
    are cosines if ``normalized``, else dot products.
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
        """Identifier -> its row in the tables of terms."""
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
        """Similarities of posts with a query, at each depth.

        ``query`` are its vectors [1, Lq, F] of each depth.
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
        """Similarities [U, Lq] of spans with the query [F, Lq], and the next table.

        ``weights`` are those of the next layer; None for the last layer. Some spans at
        a time pass through all steps.
        """
        rows = torch.from_numpy(spans.rows)
        table = table.view(-1, len(layer.bias))
        values = table.new_empty(len(rows), query.shape[1])
        next_table = table  # Not read after the last layer
        if weights is not None:  # Row 0: positions after a text's end
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
        """Factors [B, 1] of vectors [B, F] or of their products: to length 1, or 1."""
        if not self.normalized:
            return vectors.new_ones(len(vectors), 1)
        lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        return lengths.clamp_min_(LEAST_LENGTH).reciprocal_()


def _by_offset(layer: MaskedConvolution) -> Tensor:
    """Weights [E, width · F], those of each offset side by side."""
    weight = layer.weight.unflatten(0, (layer.width, -1))  # [width, E, F]
    return weight.permute(1, 0, 2).flatten(1).contiguous()
