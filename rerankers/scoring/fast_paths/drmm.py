"""DRMM on distinct words: each word's histogram bins are computed once, and posts count them.

A cosine at the border of two bins may be rounded to either side, as also happens in the forward
pass between batches of different shapes: about one pair in tens of thousands.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.base import WORDS, Interactions, Terms
from rerankers.layers.embeddings import mask_of
from rerankers.models.drmm import Model, TermVectors, histograms
from rerankers.scoring.fast_paths import PerQueryFastPath
from rerankers.scoring.tokenized import Tokenized
from rerankers.text.ragged import Rows, distinct


class FastPath(PerQueryFastPath[TermVectors]):
    """Histograms of the query's words."""

    def __init__(self, model: Model, pairs: Tokenized) -> None:
        super().__init__(model, pairs)
        self.longest = int(pairs.posts[WORDS].lengths.max(initial=0))

    def compared(self, rows: Rows) -> Interactions:
        """Interactions of the pairs ``rows`` [P] of one query."""
        query = self.query(rows)
        ids, weights = query.terms
        counts = self.model.scaled(self._counts(query, self.pairs.post_index[rows]))
        return {
            "histograms": counts * mask_of(ids).unsqueeze(2),
            "words": torch.stack([ids.float(), weights], dim=2).expand(len(rows), -1, -1),
        }

    def _counts(self, query: TermVectors, posts: Rows) -> Tensor:
        """Terms of each of the posts [P] in each bin: [P, Lq, bins]."""
        bins = self.model.config.bins
        sequences = self.pairs.posts[WORDS].take(posts, self.longest)
        first, which = distinct([sequences.values], is_exact=False)
        # Each distinct word is encoded as a post of one word.
        ids = torch.from_numpy(sequences.values[first]).unsqueeze(1)
        words = self.model.encode_posts({WORDS: Terms(ids, torch.empty(len(ids), 0))})
        cosine = words.vectors @ query.vectors[0].T  # [U, 1, Lq]
        exact = ids == query.terms.ids
        bin_of = histograms(cosine.transpose(1, 2), exact.unsqueeze(2), mask_of(ids), bins)
        starts = torch.from_numpy(sequences.starts[:-1])
        counts = F.embedding_bag(torch.from_numpy(which), bin_of.flatten(1), starts, mode="sum")
        return counts.view(len(posts), -1, bins)
