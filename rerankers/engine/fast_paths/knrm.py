"""K-NRM and Conv-KNRM on distinct n-grams: kernels are computed once for each, and summed by post.

The contribution of a post's n-gram to a soft count depends only on the n-gram and the query.
"""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.base import WORDS, Interactions
from rerankers.engine.fast_paths import PerQueryFastPath
from rerankers.engine.tokenized import Tokenized
from rerankers.engine.windows import used_ids, windows_of
from rerankers.layers.convolutions import MaskedConvolution
from rerankers.layers.similarity import unit_length
from rerankers.models.knrm import Model, NgramVectors
from rerankers.text.ragged import Ragged, Rows, distinct


class FastPath(PerQueryFastPath[NgramVectors]):
    """Soft counts of the query's n-grams."""

    def __init__(self, model: Model, pairs: Tokenized) -> None:
        super().__init__(model, pairs)
        posts = pairs.posts[WORDS]
        self.longest = int(posts.lengths.max(initial=0))
        ids = used_ids([posts])
        self.rows = np.zeros(int(ids.max(initial=0)) + 1, dtype=np.int64)
        self.rows[ids] = np.arange(1, len(ids) + 1)
        # Row 0 is for positions after a text's end.
        vectors = F.pad(model.vectors(torch.from_numpy(ids)), (0, 0, 1, 0))
        self.convolutions: list[MaskedConvolution] = list(model.convolutions)  # type: ignore[arg-type]
        self.tables = [layer.products(vectors) for layer in self.convolutions] or [vectors]

    def compared(self, rows: Rows) -> Interactions:
        """Interactions of the pairs ``rows`` [P] of one query."""
        query, posts = self.query(rows), self.pairs.post_index[rows]
        sequences = self.pairs.posts[WORDS].take(posts, self.longest)
        found: Interactions = self.model.logarithms(self._counts(query, sequences), query.mask)
        return found

    def _counts(self, query: NgramVectors, posts: Ragged) -> Tensor:
        """Soft counts of each pair of lengths, concatenated: [P, Lq, K]."""
        count, levels, length = len(posts.lengths), len(query.levels), query.mask.shape[1]
        asked = torch.cat(query.levels, dim=1)[0]  # [levels · Lq, F]
        starts = torch.from_numpy(posts.starts[:-1])
        values = self.rows[posts.values]
        sums = []
        for width, table in enumerate(self.tables, start=1):
            windows = windows_of(posts, values, width)
            first, which = distinct(windows, is_exact=False)
            similarity = self._vectors(windows, first, table) @ asked.T
            # Each similarity as a post of one word: kernels that are not yet summed.
            column = similarity.view(1, -1, 1)
            kernels = self.model.kernels(column, column.new_ones(1, 1))
            terms = kernels.view(len(first), len(asked) * kernels.shape[2])
            bags = F.embedding_bag(torch.from_numpy(which), terms, starts, mode="sum")
            sums.append(bags.view(count, levels, length, kernels.shape[2]))
        return torch.stack(sums, dim=3).transpose(1, 2).flatten(2)

    def _vectors(self, windows: list[Rows], first: Rows, table: Tensor) -> Tensor:
        """Vectors [U, F], of length 1, of the windows at the positions ``first`` [U]."""
        width = len(windows)
        places = np.stack([column[first] for column in windows], axis=1)
        if not self.convolutions:
            hidden = table.index_select(0, torch.from_numpy(places[:, 0]))
        else:
            places = places * width + np.arange(width)
            hidden = F.embedding_bag(torch.from_numpy(places), table, mode="sum")
            hidden = F.relu_(hidden.add_(self.convolutions[width - 1].bias))
        return unit_length(hidden)
