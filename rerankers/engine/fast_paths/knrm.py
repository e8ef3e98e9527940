"""K-NRM and Conv-KNRM by distinct n-grams: each meets the query once, and posts add up.

What an n-gram of a post adds to a soft count depends on it and on the query alone.
"""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.base import WORDS, Interactions
from rerankers.engine.per_query import PerQueryFastPath
from rerankers.engine.tokenized import Tokenized
from rerankers.engine.windows import Ids, TokenSequences, distinct, used_ids
from rerankers.layers.convolutions import MaskedConvolution
from rerankers.models.knrm import LEAST_COUNT, LOG_SCALE, Model, NgramVectors


class FastPath(PerQueryFastPath[NgramVectors]):
    """Soft counts of the query's n-grams."""

    def __init__(self, model: Model, encoded: Tokenized) -> None:
        super().__init__(model, encoded)
        posts = encoded.posts[WORDS]
        self.longest = int(posts.lengths.max(initial=0))
        ids = used_ids([posts])
        self.rows = np.zeros(int(ids.max(initial=0)) + 1, dtype=np.int64)
        self.rows[ids] = np.arange(1, len(ids) + 1)
        # Row 0 is what lies beyond a text's end.
        vectors = F.pad(model.vectors(torch.from_numpy(ids)), (0, 0, 1, 0))
        self.convolutions: list[MaskedConvolution] = list(model.convolutions)  # type: ignore[arg-type]
        self.tables = [_products(vectors, layer) for layer in self.convolutions] or [vectors]

    def compared(self, rows: npt.NDArray[np.int64]) -> Interactions:
        """The pairs ``rows`` [P] of one query, compared but not yet judged."""
        question = self.question(rows)
        texts = TokenSequences.from_packed(
            self.encoded.posts[WORDS], self.encoded.post_index[rows], self.longest
        )
        counts = self._counts(question, texts)
        logarithms = torch.log(counts.clamp_min(LEAST_COUNT))
        return {"matches": LOG_SCALE * logarithms * question.mask.unsqueeze(2)}

    def _counts(self, question: NgramVectors, texts: TokenSequences) -> Tensor:
        """Soft counts of each pair of lengths side by side: [P, Lq, K]."""
        posts, levels, length = len(texts.lengths), len(question.levels), question.mask.shape[1]
        asked = torch.cat(question.levels, dim=1)[0]  # [levels · Lq, F]
        starts = torch.from_numpy(np.cumsum(texts.lengths) - texts.lengths)
        values = self.rows[texts.ids]
        sums = []
        for width, table in enumerate(self.tables, start=1):
            windows = texts.windows(values, width)
            first, which = distinct(windows)
            similarity = self._vectors(windows, first, table) @ asked.T
            # Each similarity as a post of one word: what the kernels give before they are added up.
            column = similarity.view(1, -1, 1)
            kernels = self.model.kernels(column, column.new_ones(1, 1))
            added = kernels.view(len(first), len(asked) * kernels.shape[2])
            bags = F.embedding_bag(torch.from_numpy(which), added, starts, mode="sum")
            sums.append(bags.view(posts, levels, length, kernels.shape[2]))
        return torch.stack(sums, dim=3).transpose(1, 2).flatten(2)

    def _vectors(self, windows: list[Ids], first: Ids, table: Tensor) -> Tensor:
        """Vectors [U, F], of length 1, of the windows at the places ``first`` [U]."""
        width = len(windows)
        places = np.stack([column[first] for column in windows], axis=1)
        if not self.convolutions:
            hidden = table.index_select(0, torch.from_numpy(places[:, 0]))
        else:
            places = places * width + np.arange(width)
            hidden = F.embedding_bag(torch.from_numpy(places), table, mode="sum")
            hidden = F.relu_(hidden.add_(self.convolutions[width - 1].bias))
        return F.normalize(hidden, dim=1, eps=1e-6)


def _products(vectors: Tensor, convolution: MaskedConvolution) -> Tensor:
    """[N · width, F]: each of N vectors by the weights of each offset in turn."""
    weights = convolution.weight.unflatten(0, (convolution.width, -1))
    return torch.einsum("ne,wef->nwf", vectors, weights).flatten(0, 1)
