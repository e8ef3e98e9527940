"""The fast path of MP-HCNN on a CPU: vectors and similarities of distinct windows of terms.

Posts of one topic repeat one another: retweets, words of the query, common phrases. The output of a
convolution depends only on the terms under its filter, so it is computed once for each distinct
window and looked up for every position that holds it. Queries and all after pooling are the
model's; tests compare the scores with those of its own forward pass.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tweetrerank.rerankers import devices
from tweetrerank.rerankers.networks.base import (
    QUERY,
    URL_TRIGRAMS,
    Interactions,
    Reranker,
)
from tweetrerank.rerankers.networks.inputs import Tokenized
from tweetrerank.rerankers.networks.layers import LEAST_LENGTH, MaskedConvolution
from tweetrerank.rerankers.networks.models.mp_hcnn import MEAN_SCALE, Model
from tweetrerank.rerankers.text.ragged import Ragged, Rows, distinct

WINDOWS = 2048  # That pass through a layer together: their vectors stay in the processor's cache
CPU = torch.device("cpu")


class FastPath(Tokenized):
    """Similarities by distinct windows, for batches of tokenized pairs of one query."""

    def __init__(self, model: Model, pairs: Tokenized) -> None:
        super().__init__(**vars(pairs))
        self.inputs: dict[str, dict[str, int]] = {}
        """Tower -> inputs of posts that it encodes -> terms read of each."""
        for each in model.perspectives.values():
            self.inputs.setdefault(each.tower, {})[each.post_input] = each.post_length
        is_cosine = model.config.similarity == "cosine"
        self.towers: dict[str, TabulatedTower] = {}
        for name, inputs in self.inputs.items():
            ids = np.unique(np.concatenate([self.posts[key].values for key in inputs]))
            self.towers[name] = TabulatedTower(model.towers[name], ids, is_cosine)

    def compared(self, model: Reranker, rows: Rows) -> Interactions:
        """Interactions of the pairs ``rows`` [P] of one query."""
        assert isinstance(model, Model)
        index, posts = self.query_index[rows[:1]], self.post_index[rows]
        terms = {name: ids.batch(index, CPU) for name, ids in self.queries.items()}
        query, pooled = (
            model.encode(terms, QUERY),
            dict[str, list[tuple[Tensor, Tensor]]](),
        )
        for name, inputs in self.inputs.items():
            # Inputs of one tower share its windows.
            parts = [self.posts[key].take(posts, most) for key, most in inputs.items()]
            levels = self.towers[name].similarities(
                Ragged.joined(parts), query.vectors[name, name]
            )
            ends = np.cumsum([len(part.values) for part in parts])[:-1]
            for values, places in levels:
                for key, part, own in zip(
                    inputs, parts, np.split(places, ends), strict=True
                ):
                    pooled.setdefault(key, []).append(_pooled(values, own, part.starts))
        of_perspectives = {
            n: pooled[each.post_input] for n, each in model.perspectives.items()
        }
        lengths = torch.from_numpy(self.posts[URL_TRIGRAMS].lengths_of(posts))
        query_of_post = torch.zeros(len(rows), dtype=torch.int64)
        return model.features(of_perspectives, query.terms, query_of_post, lengths)


def distinct_windows(texts: Ragged, values: Rows, width: int) -> tuple[Rows, Rows]:
    """The distinct windows of ``width`` places that start at each of the T places of texts.
    ``values`` [T] are numbers above 0 of each place; beyond a text's end it is 0. The results are
    [U, width] rows of a table with a row for each offset of each number, and [T] the window that
    starts at each place."""
    windows = [values]
    for shift in range(1, width):
        later = np.zeros_like(values)
        later[: max(0, len(values) - shift)] = values[shift:]
        later[texts.remaining <= shift] = 0
        windows.append(later)
    first, which = distinct(windows, is_exact=False)
    places = np.stack([column[first] for column in windows], axis=1)
    return places * width + np.arange(width), which


def _pooled(values: Tensor, rows: Rows, starts: Rows) -> tuple[Tensor, Tensor]:
    """Maximum and mean [P, Lq] of the rows of each post; 0 for a post without any."""
    if not len(rows):
        empty = values.new_zeros(len(starts) - 1, values.shape[1])
        return empty, empty
    of_posts = torch.from_numpy(rows), values, torch.from_numpy(starts[:-1])
    maxima = F.embedding_bag(*of_posts, mode="max")
    return maxima, MEAN_SCALE * F.embedding_bag(*of_posts, mode="mean")


class TabulatedTower:
    """The vectors of a tower's forward pass, computed once for each distinct window. The first
    convolution is linear before its ReLU. So the product of every term's vector with the weights of
    every offset is computed once, and the layer becomes a sum of ``width`` table rows. Each deeper
    layer gets its table from the layer below. ``ids`` are the identifiers, without 0, of all terms
    to read by a ConvolutionTower; vectors are ``normalized`` to length 1 for cosines."""

    def __init__(self, tower: Any, ids: Rows, normalized: bool) -> None:
        self.convolutions: list[MaskedConvolution] = [*tower.convolutions]
        self.normalized = normalized
        self.rows = np.zeros(
            int(ids.max(initial=0)) + 1, dtype=np.int64
        )  # Of identifiers
        self.rows[ids] = np.arange(1, len(ids) + 1)
        vectors: Tensor = tower.vectors(F.pad(torch.from_numpy(ids), (1, 0)))
        by_offset = (
            each.weight.unflatten(0, (each.width, -1)) for each in self.convolutions
        )
        self.weights = [
            each.permute(1, 0, 2).flatten(1).contiguous() for each in by_offset
        ]
        """Weights of each depth [E, width · F], those of each offset side by side."""
        self.table = vectors @ self.weights[0] if self.weights else vectors
        self.terms = vectors.mul_(self._scale(vectors))  # [V + 1, E]; row 0 is padding

    def similarities(
        self, posts: Ragged, query: Sequence[Tensor]
    ) -> list[tuple[Tensor, Rows]]:
        """Similarities of posts with a query, of which there are vectors [1, Lq, F] of each depth.
        Of each depth: [U, Lq] of its distinct windows, and [T] that of each position of the posts.
        A few thousand windows at a time pass through all steps of a depth."""
        values, table = self.rows[posts.values], self.table
        columns = [level[0].T.contiguous() for level in query]
        places, which = distinct([values], is_exact=False)
        terms = self.terms.index_select(0, torch.from_numpy(values[places]))
        levels = [(terms @ columns[0], which)]
        for depth, layer in enumerate(self.convolutions, start=1):
            windows, which = distinct_windows(posts, values, layer.width)
            rows, table = torch.from_numpy(windows), table.view(-1, len(layer.bias))
            found = table.new_empty(len(rows), columns[depth].shape[1])
            following = None
            if depth < len(self.convolutions):  # Row 0: positions after a text's end.
                following = table.new_zeros(1 + len(rows), self.weights[depth].shape[1])
            for start in range(0, len(rows), WINDOWS):
                vectors = F.embedding_bag(
                    rows[start : start + WINDOWS], table, mode="sum"
                )
                vectors, end = vectors.add_(layer.bias).relu_(), start + len(vectors)
                torch.mm(vectors, columns[depth], out=found[start:end]).mul_(
                    self._scale(vectors)
                )
                if following is not None:
                    torch.mm(
                        vectors, self.weights[depth], out=following[1 + start : 1 + end]
                    )
            levels.append((found, which))
            if following is not None:
                values, table = which + 1, following
        return levels

    def _scale(self, vectors: Tensor) -> Tensor:
        """Factors [B, 1] of vectors [B, F], or of their products: to length 1, or 1."""
        if not self.normalized:
            return vectors.new_ones(len(vectors), 1)
        lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        return lengths.clamp_min_(LEAST_LENGTH).reciprocal_()


@torch.no_grad()
def fast_path(model: Reranker, pairs: Tokenized) -> FastPath | None:
    """The fast path for these pairs; None if only the model's own forward pass can score them. It
    is for MP-HCNN on the CPU without softmax, with one tower of trigrams, and for texts rather than
    cached interactions."""
    if not isinstance(model, Model) or pairs.places is not None:
        return None
    is_plain = model.config.normalization == "none" and not model.config.separate_urls
    return (
        FastPath(model, pairs)
        if is_plain and model.device_of().type in devices.HOSTS
        else None
    )
