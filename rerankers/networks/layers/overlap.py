"""Common words of a query and a post."""

import numpy as np
import torch
from torch import Tensor, nn

from rerankers.networks.base import Terms
from rerankers.text.vocabulary import Vocabulary
from rerankers.text.words import STOP_WORDS


class StopWords(nn.Module):
    """Recognises stop words by their identifiers, if they have pre-trained vectors."""

    is_stop: Tensor

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        is_stop = np.array([False, *(word in STOP_WORDS for word in vocabulary.known)])
        # Derived from the vocabulary, so not stored in checkpoints.
        self.register_buffer("is_stop", torch.from_numpy(is_stop), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """1.0 where ``ids``, of any shape, are terms but not stop words."""
        known = self.is_stop[ids.clamp(max=len(self.is_stop) - 1)] & (ids < len(self.is_stop))
        return (ids.ne(0) & ~known).float()


class WordOverlap(nn.Module):
    """Counts of distinct common words (Yu et al. 2014, 4.2; Severyn & Moschitti 2015)."""

    size = 4

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.content_words = StopWords(vocabulary)

    def forward(self, query: Terms, post_ids: Tensor, query_of_post: Tensor) -> Tensor:
        """[P, 4]: number of common words; sum of their IDF; and both without stop words.

        Words are given for Q queries and P posts, with the row of each post's query.
        """
        earlier = torch.tril(query.ids.unsqueeze(2) == query.ids.unsqueeze(1), diagonal=-1)
        # [Q, Lq], 1 for the first occurrence of a term
        distinct = (query.ids.ne(0) & ~earlier.any(dim=2)).float()
        weights = torch.stack([distinct, distinct * query.weights], dim=2)
        without_stop_words = weights * self.content_words(query.ids).unsqueeze(2)
        of_words = torch.cat([weights, without_stop_words], dim=2)[query_of_post]  # [P, Lq, 4]
        same = query.ids[query_of_post].unsqueeze(2) == post_ids.unsqueeze(1)  # [P, Lq, Ld]
        return torch.bmm(same.any(dim=2).float().unsqueeze(1), of_words).squeeze(1)
