"""Base of DSSM and C-DSSM: letter trigrams of words, and cosines of semantic vectors.

Huang et al. (2013), section 3.2, "word hashing": a word is the counts of the trigrams of #word#. A
layer over these counts is a sum of one vector for each trigram, so the counts, almost all of which
are zero, are never computed.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from rerankers.devices import is_host
from rerankers.errors import RerankerError
from rerankers.networks.base import TRIGRAMS, Inputs, Interactions, Reranker
from rerankers.networks.layers.embeddings import mask_of_lengths
from rerankers.networks.layers.similarity import unit_length
from rerankers.networks.training.settings import RAO_2019, Settings
from rerankers.text.vocabulary import Vocabulary
from rerankers.text.words import TRIGRAM_CLASSES, TRIGRAM_COUNT

# Knuth's multiplicative hash (2³² divided by the golden ratio, made odd): it spreads trigrams that
# differ in their last letter only.
_MULTIPLIER = 2654435761


class SemanticModel(Reranker):
    """Cosine of two texts' semantic vectors, times γ (Huang et al. 2013, section 3.3).

    Queries and posts share the network. The hyperparameters contain ``smoothing``, γ.
    """

    network: ClassVar[type[nn.Module]]
    """Maps trigram identifiers [B, L] to vectors of length 1, [B, K]."""

    # The papers' loss: one clicked document and four others.
    training_settings = Settings(loss="listwise", learning_rate=1e-3, negatives=4)
    own_settings: ClassVar[Mapping[str, Settings]] = {"rao2019": RAO_2019}
    query_inputs = (TRIGRAMS,)
    post_inputs = (TRIGRAMS,)

    def __init__(self, config: Any, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        self.tower = self.network(config)

    def encode(self, inputs: Inputs) -> Tensor:
        """Semantic vectors of B texts: [B, K]."""
        vectors: Tensor = self.tower(inputs[TRIGRAMS].ids)
        return vectors

    def interact(self, queries: Tensor, posts: Tensor, query_of_post: Tensor) -> Interactions:
        """Products whose sum is the cosine: [P, 1, K]."""
        return {"products": (queries[query_of_post] * posts).unsqueeze(1)}

    def head(self, representations: Tensor) -> Tensor:
        """γ times the cosine: [P]."""
        return self.config.smoothing * representations.sum(dim=1)


class TrigramSums(nn.Module):
    """Product of a trained matrix and the trigram counts of texts or words.

    Args:
        size: K, dimensions of a trigram vector.
        buckets: rows of the matrix; trigrams share rows if there are fewer.
    """

    def __init__(self, size: int, buckets: int) -> None:
        super().__init__()
        if not 0 < buckets <= TRIGRAM_COUNT:
            raise RerankerError(
                f"setting trigram_buckets: found {buckets}, expected 1 to {TRIGRAM_COUNT:,}"
            )
        self.buckets, self.sparse = buckets, False
        # Row 0 is for padding and never read.
        self.weight = nn.Parameter(torch.empty(buckets + 1, size))
        # A text has tens of trigrams: their initial sum is in the steep range of tanh.
        nn.init.uniform_(self.weight, -0.1, 0.1)

    def rows_of(self, ids: Tensor) -> Tensor:
        """The row of each trigram identifier, of any shape; 0 is padding."""
        if self.buckets == TRIGRAM_COUNT:
            return ids
        mixed = (ids * _MULTIPLIER) & 0xFFFFFFFF
        return torch.where(ids > 0, ((mixed * self.buckets) >> 32) + 1, 0)

    def forward(self, ids: Tensor) -> Tensor:
        """Sums over whole texts, ids [B, L]: [B, K]."""
        return F.embedding_bag(
            self.rows_of(ids), self.weight, mode="sum", padding_idx=0, sparse=self.sparse
        )

    def by_word(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over each word of texts, ids [B, L]: [B, W, K], and the mask of words [B, W].

        W are the words of the longest text, at least 1, or the most that there can be.
        """
        starts = begins_word(ids)
        counts = starts.sum(dim=1)
        most = max(1, int(counts.max())) if is_host(ids.device) else ids.shape[1]
        mask = mask_of_lengths(counts, most)  # [B, W]
        # The word of each trigram, ascending in row order; padding is of a row's last word.
        places = torch.arange(mask.numel(), device=ids.device).view(mask.shape)
        words = (starts.cumsum(dim=1) - 1).clamp_min(0) + places[:, :1]
        offsets = torch.searchsorted(words.flatten(), places.flatten())
        rows = self.rows_of(ids).flatten()
        options: dict[str, Any] = {"mode": "sum", "padding_idx": 0, "sparse": self.sparse}
        sums = F.embedding_bag(rows, self.weight, offsets, **options)
        return sums.view(*mask.shape, -1), mask


def begins_word(ids: Tensor) -> Tensor:
    """Whether a trigram is its word's first, the only one that begins with # (class 0)."""
    return (ids > 0) & (ids <= TRIGRAM_CLASSES**2)


def unit_vectors(vectors: Tensor, mask: Tensor) -> Tensor:
    """Vectors [B, K] scaled to length 1; 0 where ``mask`` [B] is 0."""
    return unit_length(vectors) * mask.unsqueeze(1)
