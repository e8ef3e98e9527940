"""Count the words that a query and a post have in common, and recognise stop words."""

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
        # It is derived from the vocabulary, so checkpoints do not store it.
        self.is_stop = nn.Buffer(torch.from_numpy(is_stop), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return 1.0 where ``ids`` are terms but not stop words, and 0.0 elsewhere.

        ``ids`` may have any shape.
        """
        count = len(self.is_stop)
        is_stop = self.is_stop[ids.clamp(max=count - 1)] & (ids < count)
        return (ids.ne(0) & ~is_stop).float()


class WordOverlap(nn.Module):
    """Counts the distinct words that a query and a post have in common.

    Sources: Yu et al. (2014), section 4.2; Severyn & Moschitti (2015).
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
        """Return four counts of common words for each pair, [P, 4].

        They are the number of common words, the sum of their IDF, and both of these
        without stop words. ``query`` has Q queries. ``post_ids`` [P, Ld] are the word
        identifiers of P posts, and ``query_of_post`` [P] is the row of each post's
        query.
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
