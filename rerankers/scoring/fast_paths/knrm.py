"""K-NRM and Conv-KNRM on distinct n-grams: kernels are computed once for each, and summed by post.

The contribution of a post's n-gram to a soft count depends only on the n-gram and the query.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.base import WORDS, Interactions
from rerankers.layers.convolutions import MaskedConvolution
from rerankers.layers.similarity import unit_length
from rerankers.models.knrm import Model, NgramVectors
from rerankers.scoring.fast_paths import PerQueryFastPath
from rerankers.scoring.tokenized import Tokenized
from rerankers.scoring.windows import distinct_windows, rows_by_id, used_ids
from rerankers.text.ragged import Ragged, Rows


class FastPath(PerQueryFastPath[NgramVectors]):
    """Soft counts of the query's n-grams."""

    def __init__(self, model: Model, pairs: Tokenized) -> None:
        super().__init__(model, pairs)
        posts = pairs.posts[WORDS]
        self.longest = int(posts.lengths.max(initial=0))
        ids = used_ids([posts])
        self.rows = rows_by_id(ids)
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
            places, which = distinct_windows(posts, values, width)
            similarity = self._vectors(torch.from_numpy(places), table) @ asked.T
            # Each similarity as a post of one word: kernels that are not yet summed.
            column = similarity.view(1, -1, 1)
            kernels = self.model.kernels(column, column.new_ones(1, 1))
            terms = kernels.view(len(places), len(asked) * kernels.shape[2])
            bags = F.embedding_bag(torch.from_numpy(which), terms, starts, mode="sum")
            sums.append(bags.view(count, levels, length, kernels.shape[2]))
        return torch.stack(sums, dim=3).transpose(1, 2).flatten(2)

    def _vectors(self, places: Tensor, table: Tensor) -> Tensor:
        """Vectors [U, F], of length 1, of distinct n-grams [U, n]."""
        if not self.convolutions:
            return unit_length(table.index_select(0, places[:, 0]))
        hidden = F.embedding_bag(places, table, mode="sum")
        return unit_length(F.relu_(hidden.add_(self.convolutions[places.shape[1] - 1].bias)))
