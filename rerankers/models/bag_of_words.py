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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rerankers.bilinear import Bilinear
from rerankers.embeddings import word_vectors
from rerankers.overlap import StopWords
from rerankers.settings import Settings
from rerankers.vocabulary import Vocabulary


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    count: bool = True  # Add counts of common words by logistic regression (section 4.2)


class Model(Bilinear):
    """Section 3.1; see the module's docstring."""

    config_type = Config
    configurations: ClassVar[Mapping[str, Config]] = {
        "count": Config(),
        "plain": Config(count=False),
    }
    training_settings = Settings(
        loss="pointwise", sampling="pairs", optimizer="adagrad", learning_rate=0.05,
        weight_decay=1e-4, batch_pairs=50, steps=47, epochs=40, patience=10,
    )  # fmt: skip

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary.vectors.shape[1], config.count, vocabulary)
        self.config = config
        self.vectors = word_vectors(vocabulary, "static", unknown=0.25)
        self.content_words = StopWords(vocabulary)

    def compose(self, ids: Tensor) -> Tensor:
        """Mean vector of the words that are not stop words: [B, E]."""
        weights = self.content_words(ids).unsqueeze(2)  # [B, L, 1]
        total: Tensor = (self.vectors(ids) * weights).sum(dim=1)
        return total / weights.sum(dim=1).clamp_min(1.0)
