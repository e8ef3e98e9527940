"""The fast path of MP-HCNN on a CPU: vectors and similarities of distinct windows of terms.

Posts of one topic repeat one another: retweets, words of the query, common phrases. The output of a
convolution depends only on the terms under its filter, so it is computed once for each distinct
window and looked up for every position that holds it. Pooling and all else are the model's; tests
compare the scores with those of its own forward pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.devices import is_host
from rerankers.networks.base import URL_TRIGRAMS, Inputs, Interactions, Reranker
from rerankers.networks.inputs import Scorable, Tokenized
from rerankers.networks.layers.convolutions import ConvolutionTower, MaskedConvolution
from rerankers.networks.layers.similarity import LEAST_LENGTH, PADDING_SIMILARITY, partial_softmax
from rerankers.networks.models.mp_hcnn import Model
from rerankers.text.ragged import Ragged, Rows, distinct

WINDOWS = 2048
"""Windows that pass through a layer together."""

GROUP = 64
"""Posts that are pooled together; their similarities fit the processor's cache."""

CPU = torch.device("cpu")


@torch.no_grad()
def fast_path(model: Reranker, pairs: Scorable) -> FastPath | None:
    """The fast path for these pairs; None if only the model's own forward pass can score them.

    It is for MP-HCNN on the CPU, for texts rather than cached interactions, for positions of
    padding that count for nothing, or for a constant, and for one tower of trigrams.
    """
    if not isinstance(model, Model) or model.reads_padding or model.config.separate_urls:
        return None
    if not isinstance(pairs, Tokenized) or not is_host(model.device_of()):
        return None
    return FastPath(model, pairs)


class FastPath(Scorable):
    """Similarities by distinct windows, for batches of pairs of one query.

    Args:
        model: in evaluation mode, on the CPU.
        pairs: tokenized.
    """

    def __init__(self, model: Model, pairs: Tokenized) -> None:
        self.pairs, self.query_index = pairs, pairs.query_index
        self.towers: dict[str, tuple[TabulatedTower, list[tuple[str, int]]]] = {}
        """Name -> a tower with the inputs of posts that it encodes, and the terms read of each."""
        self._last: tuple[int, Inputs, dict[str, list[Tensor]]] | None = None
        is_cosine = model.config.similarity == "cosine"
        for name, tower in model.towers.items():
            inputs = [
                (each.post_input, each.post_length)
                for each in model.perspectives.values()
                if each.tower == name
            ]
            # A tower has the name of the query input that it encodes.
            read = [pairs.queries[name], *(pairs.posts[key] for key, _ in inputs)]
            times = np.bincount(np.concatenate([[0], *(each.values for each in read)]))
            ids = 1 + np.flatnonzero(times[1:])
            self.towers[name] = TabulatedTower(tower, ids, is_cosine), inputs  # type: ignore[arg-type]

    def compared(self, model: Reranker, rows: Rows) -> Interactions:
        """Interactions of the pairs ``rows`` [P] of one query."""
        assert isinstance(model, Model)
        terms, vectors = self._query(model, int(self.query_index[rows[0]]))
        posts = self.pairs.post_index[rows]
        similarities: dict[str, Sequence[WindowSimilarities]] = {}
        for name, (tower, inputs) in self.towers.items():
            # Inputs of one tower share its windows.
            parts = [self.pairs.posts[key].take(posts, longest) for key, longest in inputs]
            levels = tower.similarities(Ragged.joined(parts), vectors[name])
            by_input = zip(*(level.split(parts) for level in levels), strict=True)
            similarities |= zip((key for key, _ in inputs), by_input, strict=True)
        pooled = {
            name: [model.pool(level, each) for level in similarities[each.post_input]]
            for name, each in model.perspectives.items()
        }
        url_lengths = self.pairs.posts[URL_TRIGRAMS].lengths_of(posts)
        read = torch.from_numpy(np.minimum(url_lengths, model.config.url_trigrams))
        return model.features(pooled, terms, torch.zeros(len(rows), dtype=torch.int64), read)

    def lengths(self) -> Rows:
        """[P] terms of each pair's post."""
        return self.pairs.lengths()

    def _query(self, model: Model, row: int) -> tuple[Inputs, dict[str, list[Tensor]]]:
        """Input -> terms [1, Lq] of a query, and tower -> its vectors; kept until it changes.

        A query without terms is read as one position of padding.
        """
        last = self._last
        # Threads may need different queries at the same time.
        if last is None or last[0] != row:
            index, vectors = np.array([row]), dict[str, list[Tensor]]()
            queries = {name: ids.batch(index, CPU) for name, ids in self.pairs.queries.items()}
            terms = model.cut_queries(queries)
            for name, (tower, _) in self.towers.items():
                ids = terms[name].ids[0].numpy()
                vectors[name] = tower.encode_query(Ragged(ids, np.array([0, len(ids)])))
            self._last = last = row, terms, vectors
        return last[1:]


def distinct_windows(texts: Ragged, values: Rows, width: int) -> tuple[Rows, Rows]:
    """The distinct windows of ``width`` places that start at each of the T places of texts.

    Args:
        values: [T] number above 0 of each place; beyond a text's end it is 0.

    Returns:
        [U, width] rows of :meth:`MaskedConvolution.products` to be summed, and [T] the window that
        starts at each place.
    """
    windows = [values]
    for shift in range(1, width):
        later = np.zeros_like(values)
        later[: max(0, len(values) - shift)] = values[shift:]
        later[texts.remaining <= shift] = 0
        windows.append(later)
    first, which = distinct(windows, is_exact=False)
    places = np.stack([column[first] for column in windows], axis=1)
    return places * width + np.arange(width), which


@dataclass(frozen=True)
class WindowSimilarities:
    """Similarities of P posts, stored once for each distinct window.

    The methods are those of :class:`rerankers.networks.layers.similarity.PaddedSimilarities`.

    Attributes:
        values: [U + 1, Lq] of U distinct windows; the last row is ``PADDING_SIMILARITY``.
        rows: [T] row of ``values`` for each position of the posts.
        posts: P sequences of T positions in all.
    """

    values: Tensor
    rows: Rows
    posts: Ragged

    def split(self, parts: Sequence[Ragged]) -> list[WindowSimilarities]:
        """One for each of ``parts``, which were joined to ``posts``."""
        borders = pairwise(accumulate((len(part.values) for part in parts), initial=0))
        return [
            WindowSimilarities(self.values, self.rows[start:end], part)
            for part, (start, end) in zip(parts, borders, strict=True)
        ]

    def max(self) -> Tensor:
        """Maximum over each post's positions: [P, Lq]."""
        maxima = torch.cat([group.amax(dim=0) for group, _ in self._groups()])
        return torch.where(torch.from_numpy(self.posts.lengths > 0)[:, None], maxima, 0.0)

    def mean(self) -> Tensor:
        """Mean over each post's positions: [P, Lq]."""
        starts = torch.from_numpy(self.posts.starts[:-1])
        return F.embedding_bag(torch.from_numpy(self.rows), self.values, starts, mode="mean")

    def pooled_softmax(self, temperature: float, length: int) -> tuple[Tensor, Tensor]:
        """Maximum and mean of a softmax over ``length`` positions: two of [P, Lq]."""
        maxima, means = [], []
        for group, mask in self._groups():
            shares = partial_softmax(group * temperature, mask.unsqueeze(2), 0, length)
            maxima.append(shares.amax(dim=0))
            means.append(shares.sum(dim=0) / length)
        return torch.cat(maxima), torch.cat(means)

    def _groups(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Similarities [Ld, B, Lq] and mask [Ld, B] of ``GROUP`` posts at a time."""
        rows = torch.from_numpy(self.posts.padded(len(self.values) - 1, self.rows))  # [P, Ld]
        mask = torch.from_numpy(self.posts.inside)
        for start in range(0, len(rows), GROUP):
            end = start + GROUP
            longest = max(1, int(self.posts.lengths[start:end].max(initial=0)))
            group = rows[start:end, :longest].T
            # index_select, then a reduction of the first axis, is the fastest way.
            values = self.values.index_select(0, group.flatten()).view(*group.shape, -1)
            yield values, mask[start:end, :longest].T


Visit = Callable[[int, int, int, Tensor], None]
"""Called with a depth, the number of its windows that were visited, that of all, and the vectors
[B, F] of its next ones."""


class TabulatedTower:
    """The vectors of a tower's forward pass, computed once for each distinct window.

    The first convolution is linear before its ReLU. So the product of every term's vector with the
    weights of every offset is computed once, and the layer becomes a sum of ``width`` table rows.
    Each deeper layer gets its table from the layer below. A few thousand windows at a time pass
    through a layer, so that their vectors are still in the cache for the next step; they are never
    stored.

    Attributes:
        terms: [V + 1, E] vectors of depth 0; row 0 is padding.

    Args:
        tower: in evaluation mode.
        ids: identifiers of the terms that will be read, without 0.
        normalized: whether vectors are scaled to length 1, for cosines.
    """

    def __init__(self, tower: ConvolutionTower, ids: Rows, normalized: bool) -> None:
        self.convolutions: list[MaskedConvolution] = list(tower.convolutions)  # type: ignore[arg-type]
        self.normalized = normalized
        self.rows = np.zeros(int(ids.max(initial=0)) + 1, dtype=np.int64)  # Of identifiers
        self.rows[ids] = np.arange(1, len(ids) + 1)
        vectors: Tensor = tower.vectors(F.pad(torch.from_numpy(ids), (1, 0)))
        self.biases = [convolution.bias for convolution in self.convolutions]
        self.weights = [_weights_by_offset(layer) for layer in self.convolutions]
        self.table = torch.empty(0)
        if self.convolutions:
            self.table = (vectors @ self.weights[0]).view(-1, len(self.biases[0]))
        self.terms = vectors.mul_(self.scale(vectors))
        self.buffers = Buffers()

    def encode_query(self, query: Ragged) -> list[Tensor]:
        """Vectors [Lq, F] of one query, given as one sequence, at each depth."""
        parts = [[bias.new_empty(0, len(bias))] for bias in self.biases]

        def keep(depth: int, done: int, count: int, vectors: Tensor) -> None:
            parts[depth - 1].append(vectors * self.scale(vectors))

        first, *deeper = self.walk(query, keep)
        levels = [self.terms.index_select(0, torch.from_numpy(first))]
        for part, rows in zip(parts, deeper, strict=True):
            levels.append(torch.cat(part).index_select(0, torch.from_numpy(rows)))
        return levels

    def similarities(self, posts: Ragged, query: Sequence[Tensor]) -> list[WindowSimilarities]:
        """Similarities of a query with posts, at each depth."""
        columns = [level.T.contiguous() for level in query]
        padding = self.terms.new_full((1, len(query[0])), PADDING_SIMILARITY)
        values = [padding] * len(query)

        def multiply(depth: int, done: int, count: int, vectors: Tensor) -> None:
            if not done:
                values[depth] = vectors.new_full((count + 1, len(query[0])), PADDING_SIMILARITY)
            part = values[depth][done : done + len(vectors)]
            torch.mm(vectors, columns[depth], out=part).mul_(self.scale(vectors))

        first, *deeper = self.walk(posts, multiply)
        places, rows = distinct([first], is_exact=False)
        terms = self.terms.index_select(0, torch.from_numpy(first[places]))
        values[0] = torch.cat([terms @ columns[0], padding])
        return [
            WindowSimilarities(values_of_depth, rows_of_depth, posts)
            for values_of_depth, rows_of_depth in zip(values, [rows, *deeper], strict=True)
        ]

    def walk(self, sequences: Ragged, visit: Visit) -> list[Rows]:
        """Visit the vectors of all distinct windows, depth by depth.

        Returns:
            [T] for each depth: the number of each position's window, in order of the visits. At
            depth 0 it is the row of :attr:`terms`; these are not visited.
        """
        values, table = self.rows[sequences.values], self.table
        numbers = [values]
        for depth, convolution in enumerate(self.convolutions, start=1):
            places, which = distinct_windows(sequences, values, convolution.width)
            rows = torch.from_numpy(places)
            following = torch.empty(0)
            is_last = depth == len(self.convolutions)
            if not is_last:
                # Row 0 is for positions after a text's end.
                following = self.buffers.rows(depth, len(rows) + 1, self.weights[depth].shape[1])
                following[0] = 0
            for start in range(0, len(rows), WINDOWS):
                vectors = F.embedding_bag(rows[start : start + WINDOWS], table, mode="sum")
                vectors = vectors.add_(convolution.bias).relu_()
                visit(depth, start, len(rows), vectors)
                if not is_last:
                    products = following[1 + start : 1 + start + len(vectors)]
                    torch.mm(vectors, self.weights[depth], out=products)
            if not is_last:
                table = following.view(-1, len(self.biases[depth]))
            numbers.append(which)
            values = which + 1
        return numbers

    def scale(self, vectors: Tensor) -> Tensor:
        """Factors [B, 1] that scale ``vectors`` [B, F] to length 1; 1 without normalization.

        Multiplying products by them is faster than
        :func:`rerankers.networks.layers.similarity.unit_length` of the vectors.
        """
        if not self.normalized:
            return vectors.new_ones(len(vectors), 1)
        lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        return lengths.clamp_min_(LEAST_LENGTH).reciprocal_()


class Buffers(threading.local):
    """Reused memory of one thread: new pages cost as much time as what is computed into them."""

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}

    def rows(self, name: int, count: int, size: int) -> Tensor:
        """[count, size], not initialised; valid until the next call with the same name."""
        if name not in self._kept or self._kept[name].numel() < count * size:
            self._kept.pop(name, None)
            self._kept[name] = torch.empty(int(1.05 * count) * size)
        return self._kept[name][: count * size].view(count, size)


def _weights_by_offset(convolution: MaskedConvolution) -> Tensor:
    """[E, width · F]: the weights of each offset side by side."""
    filters = convolution.bias.shape[0]
    weights = convolution.weight.view(convolution.width, -1, filters)
    return weights.permute(1, 0, 2).reshape(-1, convolution.width * filters).contiguous()
