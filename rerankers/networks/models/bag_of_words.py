"""Bag of words: mean word vectors with bilinear matching.

Lei Yu, Karl Moritz Hermann, Phil Blunsom and Stephen Pulman: *Deep Learning for Answer Sentence
Selection*, 2014.

A text is the mean of its word vectors without stop words (section 3.1). A matrix maps the vector of
an answer to that of its question; the dot product of the mapped vector and the question's is the
score. The configuration ``count`` adds two counts of common words in a logistic regression.

Choices where the paper is silent: the mean is over words that are not stop words. Counts are of
distinct words, with stop words. Each unknown word has its own vector; in the paper all share one.
"""

from torch import Tensor

from rerankers.networks.layers.embeddings import word_vectors
from rerankers.networks.layers.overlap import StopWords
from rerankers.networks.models._bilinear import Bilinear, Config
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
        return (self.vectors(ids) * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1.0)
