"""Bigrams: the mean of a convolution over pairs of words, with bilinear matching.

This is the second model of Yu et al. (2014). The paper, matching and counts are those
of ``bag_of_words.py``.

A text is the mean of tanh(T_L s_i + T_R s_{i+1} + b) over its bigrams (section 3.2), so
that word order counts.

Choices where the paper is silent: A text of one word has one bigram, in which the
second word is zero. Stop words are kept, because without them bigrams would join words
that are not adjacent.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tweetrerank.rerankers.networks.layers.positions import pad_after
from tweetrerank.rerankers.networks.models.bag_of_words import Bilinear, Config
from tweetrerank.rerankers.text.vocabulary import Vocabulary


class Model(Bilinear):
    """The model of section 3.2; see the module's docstring."""

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        size = vocabulary.vectors.shape[1]
        # Section 4.2: N(0, 0.01)
        self.left = nn.Parameter(torch.randn(size, size) * 0.01)  # T_L
        self.right = nn.Parameter(torch.randn(size, size) * 0.01)  # T_R
        self.bigram_bias = nn.Parameter(torch.zeros(size))

    def compose(self, ids: Tensor) -> Tensor:
        """Return the mean bigram of each text (equation 5), [B, E]."""
        terms = self.vectors(ids)  # [B, L, E]
        following = pad_after(terms[:, 1:], 1)
        left = terms @ self.left.t()
        right = following @ self.right.t()
        bigrams = torch.tanh(left + right + self.bigram_bias)
        # A bigram begins at each word except the last one, or at the only word of a
        # text.
        mask = ids.ne(0).float()
        begins = F.pad(mask[:, 1:], (0, 1))  # [B, L]
        begins[:, 0] = mask[:, 0]
        count = begins.sum(dim=1, keepdim=True).clamp_min(1)
        return (bigrams * begins.unsqueeze(2)).sum(dim=1) / count
