"""How many words a query and a post have in common."""

import numpy as np
import torch
from torch import Tensor, nn

from rerankers.base import Terms
from rerankers.text.vocabulary import Vocabulary
from rerankers.text.words import STOP_WORDS


class StopWords(nn.Module):
    """Tells stop words by their identifiers; a stop word without a vector is not told."""

    is_stop: Tensor

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        is_stop = np.array([False, *(word in STOP_WORDS for word in vocabulary.known)])
        # Known from the vocabulary, so not stored with the weights.
        self.register_buffer("is_stop", torch.from_numpy(is_stop), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """1.0 where ``ids``, of any shape, is a term and no stop word."""
        known = self.is_stop[ids.clamp(max=len(self.is_stop) - 1)] & (ids < len(self.is_stop))
        return (ids.ne(0) & ~known).float()


class WordOverlap(nn.Module):
    """Distinct words that both texts have (Yu et al. 2014, section 4.2; Severyn & Moschitti 2015).

    Args:
        vocabulary: tells the stop words.
    """

    size = 4

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.content_words = StopWords(vocabulary)

    def forward(self, query: Terms, post_ids: Tensor, query_of_post: Tensor) -> Tensor:
        """Count common words.

        Args:
            query: ids and IDF weights [Q, Lq].
            post_ids: [P, Ld].
            query_of_post: [P] row of the query of each post.

        Returns:
            [P, 4]: number of common words; sum of their IDF; and both without stop words.
        """
        distinct = first_occurrences(query.ids)  # [Q, Lq]
        weights = torch.stack([distinct, distinct * query.weights], dim=2)
        without_stop_words = weights * self.content_words(query.ids).unsqueeze(2)
        of_words = torch.cat([weights, without_stop_words], dim=2)[query_of_post]  # [P, Lq, 4]
        same = query.ids[query_of_post].unsqueeze(2) == post_ids.unsqueeze(1)  # [P, Lq, Ld]
        return torch.bmm(same.any(dim=2).float().unsqueeze(1), of_words).squeeze(1)


def first_occurrences(ids: Tensor) -> Tensor:
    """1.0 where a term of ``ids`` [B, L] is there for the first time in its text, else 0.0."""
    same = ids.unsqueeze(2) == ids.unsqueeze(1)  # [B, L, L]
    earlier = torch.tril(same, diagonal=-1).any(dim=2)
    return (ids.ne(0) & ~earlier).float()
