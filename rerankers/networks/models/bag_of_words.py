"""Bag of words: mean word vectors with bilinear matching.

The file also has the base class of both models of the paper, :class:`Bilinear`.

Lei Yu, Karl Moritz Hermann, Phil Blunsom and Stephen Pulman: *Deep Learning for Answer
Sentence Selection*, 2014.

A text is the mean of its word vectors without stop words (section 3.1). A matrix maps
the vector of an answer to that of its question, and the score is the dot product of the
mapped vector and the question's vector. The probability that an answer a to a question
q is correct is σ(qᵀ M a + b). In the configuration ``count``, a logistic regression
combines it with the number of common words and their IDF.

Choices where the paper is silent:

* Means are taken over words that are not stop words.
* Distinct words are counted, including stop words.
* Each unknown word has its own vector. In the paper all of them share one.
* The learning rate is fixed. The paper searches a grid.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tweetrerank.rerankers.logistic import logistic_regression
from tweetrerank.rerankers.networks.base import (
    WORDS,
    Encoded,
    Inputs,
    Interactions,
    Reranker,
)
from tweetrerank.rerankers.networks.layers.common_words import StopWords, WordOverlap
from tweetrerank.rerankers.networks.layers.term_vectors import word_vectors
from tweetrerank.rerankers.networks.training.training_settings import OF_PAIRS
from tweetrerank.rerankers.settings import named
from tweetrerank.rerankers.text.vocabulary import Vocabulary

COUNTS = 2  # Number of common words, and the sum of their IDF


@dataclass(frozen=True)
class Config:
    """Hyperparameters of both models."""

    count: bool = True
    """Whether to add counts of common words by logistic regression (section 4.2)."""


class Bilinear(Reranker):
    """Bilinear score of two composed vectors (section 3, equation 1).

    Composed vectors have as many dimensions E as word vectors.
    """

    configurations = named(
        count=Config(),
        plain=Config(count=False),
    )
    training_settings = replace(
        OF_PAIRS,
        optimizer="adagrad",
        learning_rate=0.05,
        steps=47,
        epochs=40,
        patience=10,
    )

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        self.needs_fit = config.count
        self.vectors = word_vectors(vocabulary, "static", unknown=0.25)
        size = vocabulary.vectors.shape[1]
        # Section 4.2: N(0, 0.01)
        self.matrix = nn.Parameter(torch.randn(size, size) * 0.01)
        self.bias = nn.Parameter(torch.zeros(()))
        if config.count:
            self.overlap = WordOverlap(vocabulary)
            self.coefficients = nn.Buffer(torch.zeros(COUNTS + 1))
            self.intercept = nn.Buffer(torch.zeros(()))
            self.is_fitted = nn.Buffer(torch.zeros((), dtype=torch.bool))

    @abstractmethod
    def compose(self, ids: Tensor) -> Tensor:
        """Return vectors [B, E] of texts from the identifiers of their words.

        ``ids`` are [B, L].
        """

    def encode(self, inputs: Inputs, side: str) -> Encoded:
        """Compose B texts."""
        words = inputs[WORDS]
        return Encoded(self.compose(words.ids), words)

    def interact(
        self,
        queries: Encoded,
        posts: Encoded,
        query_of_post: Tensor,
    ) -> Interactions:
        """Return the products q ∘ (M a) and the counts, as [P, 1, K].

        The sum of the products is qᵀ M a.
        """
        mapped = posts.vectors @ self.matrix.t()
        features = [queries.vectors[query_of_post] * mapped]
        if self.config.count:
            counts = self.overlap(queries.words, posts.words.ids, query_of_post)
            features.append(counts[:, :COUNTS])
        return {"match": torch.cat(features, dim=1).unsqueeze(1)}

    def head(self, representations: Tensor) -> Tensor:
        """Return qᵀ M a + b, or the logit of the regression once it is fitted, [P]."""
        if not self.config.count:
            return representations.sum(dim=1) + self.bias
        products = representations[:, :-COUNTS]
        plain = products.sum(dim=1) + self.bias
        features = self._regression_features(representations)
        fitted = features @ self.coefficients + self.intercept
        return torch.where(self.is_fitted, fitted, plain)

    def _regression_features(self, representations: Tensor) -> Tensor:
        """Return the counts and the probability, [P, 3]."""
        products = representations[:, :-COUNTS]
        counts = representations[:, -COUNTS:]
        logits = products.sum(dim=1, keepdim=True) + self.bias
        return torch.cat([counts, torch.sigmoid(logits)], dim=1)

    def fit(self, representations: Tensor, relevant: Tensor) -> None:
        """Fit the regression by L-BFGS with an L2 penalty of 0.01 (section 4.2)."""
        representations = representations.to(self.device_of())
        with torch.no_grad():
            features = self._regression_features(representations).cpu().numpy()
        coefficients, intercept = logistic_regression(
            features,
            relevant.numpy(),
            penalty=0.01,
        )
        self.coefficients.copy_(torch.from_numpy(coefficients))
        self.intercept.fill_(intercept)
        self.is_fitted.fill_(True)


class Model(Bilinear):
    """The model of section 3.1; see the module's docstring."""

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.content_words = StopWords(vocabulary)

    def compose(self, ids: Tensor) -> Tensor:
        """Return the mean vector of the words that are not stop words, [B, E]."""
        weights = self.content_words(ids).unsqueeze(2)  # [B, L, 1]
        total = (self.vectors(ids) * weights).sum(dim=1)  # [B, E]
        count = weights.sum(dim=1).clamp_min(1.0)  # [B, 1]
        return total / count
