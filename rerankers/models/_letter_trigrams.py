"""Words as counts of letter trigrams, and what the models that read them have in common.

Huang et al. (2013), section 3.2, "word hashing": a word is #word#, cut into trigrams. A layer of a
network that reads these counts is a sum of one vector for each trigram, so the counts, which are
zero but for a few of 64,000, are never written out.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from rerankers.base import TRIGRAMS, Inputs, Interactions, Reranker
from rerankers.errors import RerankerError
from rerankers.layers.similarity import unit_length
from rerankers.text.words import TRIGRAM_CLASSES, TRIGRAM_COUNT
from rerankers.training.settings import Settings

# Knuth's multiplicative hash (2³² divided by the golden ratio, made odd): it spreads trigrams that
# differ in their last letter only.
_MULTIPLIER = 2654435761


class SemanticModel(Reranker):
    """Cosine of two texts' semantic vectors, times γ (Huang et al. 2013, section 3.3).

    Args:
        config: has ``smoothing``, γ.
        networks: one that reads both sides, or one for queries and one for posts; each turns the
            identifiers of trigrams [B, L] into vectors of length 1, [B, K].
    """

    # The papers' loss: a clicked document among four others.
    training_settings = Settings(
        loss="listwise", optimizer="adamw", learning_rate=1e-3, weight_decay=1e-3, batch_topics=12,
        positives=3, negatives=4, steps=50, epochs=12, patience=4,
    )  # fmt: skip
    query_inputs = (TRIGRAMS,)
    post_inputs = (TRIGRAMS,)

    def __init__(self, config: Any, *networks: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.networks = nn.ModuleList(networks)

    def encode_queries(self, inputs: Inputs) -> Tensor:
        """Semantic vectors of Q queries: [Q, K]."""
        vectors: Tensor = self.networks[0](inputs[TRIGRAMS].ids)
        return vectors

    def encode_posts(self, inputs: Inputs) -> Tensor:
        """Semantic vectors of D posts: [D, K]."""
        vectors: Tensor = self.networks[-1](inputs[TRIGRAMS].ids)
        return vectors

    def interact(self, queries: Tensor, posts: Tensor, query_of_post: Tensor) -> Interactions:
        """The cosine before it is summed: [P, 1, K]."""
        return {"products": (queries[query_of_post] * posts).unsqueeze(1)}

    def represent(self, interactions: Interactions) -> Tensor:
        """What each dimension adds to the cosine: [P, K]."""
        return interactions["products"][:, 0]

    def head(self, representations: Tensor) -> Tensor:
        """γ times the cosine: [P]."""
        scores: Tensor = self.config.smoothing * representations.sum(dim=1)
        return scores


class TrigramSums(nn.Module):
    """A trained matrix times the trigram counts of texts or words.

    Args:
        size: K, numbers in a trigram's vector.
        buckets: rows of the matrix; with fewer than there are trigrams, some share a row.
    """

    def __init__(self, size: int, buckets: int) -> None:
        super().__init__()
        if not 0 < buckets <= TRIGRAM_COUNT:
            raise RerankerError(
                f"setting trigram_buckets: found {buckets}, expected 1 to {TRIGRAM_COUNT:,}"
            )
        self.buckets = buckets
        # Row 0 belongs to padding and is never read.
        self.weight = nn.Parameter(torch.empty(buckets + 1, size))
        # A text has tens of trigrams: their sum begins about as large as tanh is steep.
        nn.init.uniform_(self.weight, -0.1, 0.1)

    def rows_of(self, ids: Tensor) -> Tensor:
        """The row of each trigram identifier, of any shape; 0 is padding."""
        if self.buckets == TRIGRAM_COUNT:
            return ids
        mixed = (ids * _MULTIPLIER) & 0xFFFFFFFF
        return torch.where(ids > 0, ((mixed * self.buckets) >> 32) + 1, 0)

    def forward(self, ids: Tensor) -> Tensor:
        """Sums over whole texts, ids [B, L]: [B, K]."""
        return F.embedding_bag(self.rows_of(ids), self.weight, mode="sum", padding_idx=0)

    def by_word(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over each word of texts, ids [B, L].

        Returns:
            [B, W, K] with W the most words of a text (at least 1), zeros where there is no word,
            and the mask of words [B, W].
        """
        present = ids > 0
        starts = begins_word(ids)
        counts = starts.sum(dim=1)
        places = torch.arange(max(1, int(counts.max())), device=ids.device)
        mask = places < counts.unsqueeze(1)  # [B, W]
        sums = self.weight.new_zeros(*mask.shape, self.weight.shape[1])
        trigrams = self.rows_of(ids[present])
        if len(trigrams):
            # Row by row, words follow each other without a gap.
            offsets = starts[present].nonzero().squeeze(1)
            words = F.embedding_bag(trigrams, self.weight, offsets, mode="sum")
            sums = sums.masked_scatter(mask.unsqueeze(2), words)
        return sums, mask


def begins_word(ids: Tensor) -> Tensor:
    """Where a word begins: its first trigram is the only one that begins with # (class 0)."""
    return (ids > 0) & (ids <= TRIGRAM_CLASSES**2)


def unit_vectors(vectors: Tensor, mask: Tensor) -> Tensor:
    """Vectors [B, K] at length 1, so that their product is a cosine.

    Where ``mask`` [B] is 0 the vector is 0, similar to nothing.
    """
    return unit_length(vectors) * mask.unsqueeze(1)
