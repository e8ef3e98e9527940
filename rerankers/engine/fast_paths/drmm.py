"""DRMM by distinct words: each gets its bins of the query's histograms once, and posts count.

A cosine at the border of two bins may be rounded to either side, as the model's own forward pass
rounds it differently from one shape of a batch to another: one pair in tens of thousands.
"""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.base import WORDS, Interactions, Terms
from rerankers.engine.per_query import PerQueryFastPath
from rerankers.engine.tokenized import Tokenized
from rerankers.engine.windows import Ids, TokenSequences, distinct
from rerankers.layers.similarity import mask_of
from rerankers.models.drmm import Model, TermVectors, histograms


class FastPath(PerQueryFastPath[TermVectors]):
    """Histograms of the query's words."""

    def __init__(self, model: Model, encoded: Tokenized) -> None:
        super().__init__(model, encoded)
        self.longest = int(encoded.posts[WORDS].lengths.max(initial=0))

    def compared(self, rows: npt.NDArray[np.int64]) -> Interactions:
        """The pairs ``rows`` [P] of one query, compared but not yet judged."""
        question = self.question(rows)
        ids, weights = question.terms
        counts = self._counts(question, self.encoded.post_index[rows])
        if self.model.config.histogram == "log_count":
            counts = torch.log1p(counts)
        elif self.model.config.histogram == "normalized":
            counts = counts / counts.sum(dim=2, keepdim=True).clamp_min(1.0)
        return {
            "histograms": counts * mask_of(ids).unsqueeze(2),
            "words": torch.stack([ids.float(), weights], dim=2).expand(len(rows), -1, -1),
        }

    def _counts(self, question: TermVectors, posts: Ids) -> Tensor:
        """Terms of each of the posts [P] in each bin: [P, Lq, bins]."""
        bins = self.model.config.bins
        texts = TokenSequences.from_packed(self.encoded.posts[WORDS], posts, self.longest)
        first, which = distinct([texts.ids])
        # Each distinct word as a post of its own.
        ids = torch.from_numpy(texts.ids[first]).unsqueeze(1)
        words = self.model.encode_posts({WORDS: Terms(ids, torch.empty(len(ids), 0))})
        cosine = words.vectors @ question.vectors[0].T  # [U, 1, Lq]
        exact = ids == question.terms.ids
        bin_of = histograms(cosine.transpose(1, 2), exact.unsqueeze(2), mask_of(ids), bins)
        starts = torch.from_numpy(np.cumsum(texts.lengths) - texts.lengths)
        counts = F.embedding_bag(torch.from_numpy(which), bin_of.flatten(1), starts, mode="sum")
        return counts.view(len(posts), -1, bins)
