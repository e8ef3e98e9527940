"""Bag of words: mean word vectors, matched by a matrix.

Lei Yu, Karl Moritz Hermann, Phil Blunsom and Stephen Pulman: *Deep Learning for Answer Sentence
Selection*, 2014.

A text is the sum of its word vectors without stop words, divided by its length; a matrix turns an
answer's vector into that of the question it would answer, and their product is the score. The
configuration ``count`` adds two counts of common words by logistic regression.

Where the paper is silent: the length is that of what is summed, so stop words dilute nothing.
Counts are of distinct words, stop words included. Unknown words, which the paper gives one vector
for all, have each one of its own.
"""

from torch import Tensor

from rerankers.layers.embeddings import word_vectors
from rerankers.layers.overlap import StopWords
from rerankers.models._bilinear import Bilinear, Config
from rerankers.text.vocabulary import Vocabulary


class Model(Bilinear):
    """Section 3.1; see the module's docstring."""

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.vectors = word_vectors(vocabulary, "static", unknown=0.25)
        self.content_words = StopWords(vocabulary)

    def compose(self, ids: Tensor) -> Tensor:
        """Mean vector of the words that are not stop words: [B, E]."""
        weights = self.content_words(ids).unsqueeze(2)  # [B, L, 1]
        total: Tensor = (self.vectors(ids) * weights).sum(dim=1)
        return total / weights.sum(dim=1).clamp_min(1.0)
