"""The fast path of MP-HCNN on a CPU, which computes each distinct span of terms once.

It computes the vectors and similarities of posts. Queries and all layers after pooling
are computed by the model itself. Tests compare the scores with those of the model's
forward pass.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tweetrerank.rerankers.networks.base import QUERY, URL_TRIGRAMS, Interactions
from tweetrerank.rerankers.networks.inputs import Tokenized
from tweetrerank.rerankers.networks.layers.tabulated_tower import TabulatedTower
from tweetrerank.rerankers.text.ragged import Ragged, Rows

CPU = torch.device("cpu")


class Pooled(NamedTuple):
    """The similarities of each query position, pooled over each post."""

    maximum: Tensor  # [P, Lq]
    mean: Tensor  # [P, Lq]


class FastPath(Tokenized):
    """Computes similarities by distinct spans, for batches of pairs of one query.

    ``model`` is MP-HCNN's :class:`Model`, and must have no softmax of similarities.
    """

    def __init__(self, model: Any, pairs: Tokenized) -> None:
        super().__init__(**vars(pairs))
        self.mean_scale: float = model.mean_scale
        self.inputs: dict[str, dict[str, int]] = {}
        """Tower -> input of posts that it encodes -> number of terms that are read of
        it."""
        for perspective in model.perspectives.values():
            inputs = self.inputs.setdefault(perspective.tower, {})
            inputs[perspective.post_input] = perspective.post_length
        is_cosine = model.config.similarity == "cosine"
        self.towers: dict[str, TabulatedTower] = {}
        for name, inputs in self.inputs.items():
            terms = [self.posts[key].values for key in inputs]
            ids = np.unique(np.concatenate(terms))
            self.towers[name] = TabulatedTower(model.towers[name], ids, is_cosine)

    def interactions_of(self, model: Any, rows: Rows) -> Interactions:
        """Return the interactions of the pairs ``rows`` [P] of one query."""
        posts = self.post_index[rows]
        query_row = self.query_index[rows[:1]]
        terms = {}
        for name, ids in self.queries.items():
            terms[name] = ids.batch(query_row, CPU)
        query = model.encode(terms, QUERY)
        by_input: dict[str, list[Pooled]] = {}
        for name in self.towers:
            by_input |= self._pooled(name, posts, query.vectors[name, name])
        pooled = {}
        for name, perspective in model.perspectives.items():
            pooled[name] = by_input[perspective.post_input]
        url_lengths = torch.from_numpy(self.posts[URL_TRIGRAMS].lengths_of(posts))
        query_of_post = torch.zeros(len(rows), dtype=torch.int64)
        return model.features(
            pooled,
            query.terms,
            query_of_post,
            url_lengths,
        )

    def _pooled(
        self,
        tower: str,
        posts: Rows,
        query: list[Tensor],
    ) -> dict[str, list[Pooled]]:
        """Return input of posts -> pooled similarities at each depth, by one tower.

        The spans of a tower are shared by all its inputs.
        """
        inputs = self.inputs[tower]
        texts: dict[str, Ragged] = {}
        for name, most in inputs.items():
            texts[name] = self.posts[name].take(posts, most)
        joined = Ragged.joined(list(texts.values()))
        levels = self.towers[tower].similarities(joined, query)
        pooled: dict[str, list[Pooled]] = {}
        start = 0
        for name, text in texts.items():
            end = start + len(text.values)
            pooled[name] = []
            for values, at in levels:
                pooled[name].append(self._pool(values, at[start:end], text.starts))
            start = end
        return pooled

    def _pool(
        self,
        values: Tensor,
        at: Rows,
        starts: Rows,
    ) -> Pooled:
        """Return the maximum and mean over the positions of each post.

        Both are 0 for a post without positions. Posts begin at the positions ``starts``
        [P + 1]. ``at`` holds the row of ``values`` [U, Lq] for each position.
        """
        if not len(at):
            empty = values.new_zeros(len(starts) - 1, values.shape[1])
            return Pooled(empty, empty)
        rows = torch.from_numpy(at)
        offsets = torch.from_numpy(starts[:-1])
        maximum = F.embedding_bag(
            rows,
            values,
            offsets,
            mode="max",
        )
        mean = F.embedding_bag(
            rows,
            values,
            offsets,
            mode="mean",
        )
        return Pooled(maximum, self.mean_scale * mean)
