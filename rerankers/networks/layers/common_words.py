"""Common words of a query and a post, and stop words."""

import numpy as np
import torch
from torch import Tensor, nn

from tweetrerank.rerankers.networks.base import Terms
from tweetrerank.rerankers.text.vocabulary import Vocabulary
from tweetrerank.rerankers.text.words import STOP_WORDS


class StopWords(nn.Module):
    """Recognises stop words by their identifiers, if they have pre-trained vectors."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        is_stop = np.zeros(1 + len(vocabulary.known), dtype=bool)
        is_stop[1:] = [word in STOP_WORDS for word in vocabulary.known]
        # Derived from the vocabulary, so not stored in checkpoints.
        self.is_stop = nn.Buffer(torch.from_numpy(is_stop), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """1.0 where ``ids``, of any shape, are terms but not stop words."""
        count = len(self.is_stop)
        is_stop = self.is_stop[ids.clamp(max=count - 1)] & (ids < count)
        return (ids.ne(0) & ~is_stop).float()


class WordOverlap(nn.Module):
    """Counts of distinct common words.

    Yu et al. (2014), section 4.2; Severyn & Moschitti (2015).
    """

    size = 4

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.content_words = StopWords(vocabulary)

    def forward(
        self,
        query: Terms,
        post_ids: Tensor,
        query_of_post: Tensor,
    ) -> Tensor:
        """Number of common words, sum of their IDF, and both without stop words.

        The result is [P, 4], for Q queries, the word identifiers ``post_ids`` [P, Ld]
        of P posts, and the row ``query_of_post`` [P] of each post's query.
        """
        is_same = query.ids.unsqueeze(2) == query.ids.unsqueeze(1)  # [Q, Lq, Lq]
        is_repeated = torch.tril(is_same, diagonal=-1).any(dim=2)
        # [Q, Lq], 1 for the first occurrence of a term
        is_first = (query.ids.ne(0) & ~is_repeated).float()
        counts = torch.stack([is_first, is_first * query.weights], dim=2)
        content_counts = counts * self.content_words(query.ids).unsqueeze(2)
        of_words = torch.cat([counts, content_counts], dim=2)  # [Q, Lq, 4]
        # [P, Lq, Ld]
        matches = query.ids[query_of_post].unsqueeze(2) == post_ids.unsqueeze(1)
        is_common = matches.any(dim=2).float().unsqueeze(1)  # [P, 1, Lq]
        return torch.bmm(is_common, of_words[query_of_post]).squeeze(1)
