"""Base of the two models of Yu et al. (2014): bilinear matching and counts of common words.

Lei Yu, Karl Moritz Hermann, Phil Blunsom and Stephen Pulman: *Deep Learning for Answer Sentence
Selection*, 2014. The probability that an answer a to a question q is correct is σ(qᵀ M a + b). With
counts, a logistic regression combines it with the number of common words and their IDF.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from rerankers.logistic import logistic_regression
from rerankers.networks.base import WORDS, Inputs, Interactions, Reranker, Terms
from rerankers.networks.layers.overlap import WordOverlap
from rerankers.networks.training.settings import Settings
from rerankers.text.vocabulary import Vocabulary

COUNTS = 2  # Number of common words, and the sum of their IDF


class ComposedTexts(NamedTuple):
    """Vectors [B, E] of texts, and their words for the counts."""

    vectors: Tensor
    words: Terms


@dataclass(frozen=True)
class Config:
    """Hyperparameters of both models."""

    count: bool = True  # Add counts of common words by logistic regression (section 4.2)


class Bilinear(Reranker):
    """Bilinear score of two composed vectors (section 3, equation 1).

    Composed vectors have the dimensions E of word vectors.
    """

    config_type = Config
    configurations: ClassVar[Mapping[str, Config]] = {
        "count": Config(),
        "plain": Config(count=False),
    }
    training_settings = Settings(
        loss="pointwise",
        sampling="pairs",
        optimizer="adagrad",
        learning_rate=0.05,
        weight_decay=1e-4,
        steps=47,
        epochs=40,
        patience=10,
    )

    coefficients: Tensor
    intercept: Tensor
    is_fitted: Tensor

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        size = vocabulary.vectors.shape[1]
        self.matrix = nn.Parameter(torch.randn(size, size) * 0.01)  # section 4.2: N(0, 0.01)
        self.bias = nn.Parameter(torch.zeros(()))
        if config.count:
            self.overlap = WordOverlap(vocabulary)
            self.register_buffer("coefficients", torch.zeros(COUNTS + 1))
            self.register_buffer("intercept", torch.zeros(()))
            self.register_buffer("is_fitted", torch.zeros((), dtype=torch.bool))

    @abstractmethod
    def compose(self, ids: Tensor) -> Tensor:
        """Vectors [B, E] of texts from the identifiers of their words [B, L]."""

    def encode(self, inputs: Inputs) -> ComposedTexts:
        """Compose B texts."""
        return ComposedTexts(self.compose(inputs[WORDS].ids), inputs[WORDS])

    def interact(
        self, queries: ComposedTexts, posts: ComposedTexts, query_of_post: Tensor
    ) -> Interactions:
        """The products q ∘ (M a), whose sum is qᵀ M a, and the counts."""
        transformed = posts.vectors @ self.matrix.t()
        parts = [queries.vectors[query_of_post] * transformed]
        if self.config.count:
            counts = self.overlap(queries.words, posts.words.ids, query_of_post)
            parts.append(counts[:, :COUNTS])
        return {"match": torch.cat(parts, dim=1).unsqueeze(1)}

    def head(self, representations: Tensor) -> Tensor:
        """qᵀ M a + b, or the logit of the regression once it is fitted: [P]."""
        if not self.config.count:
            return representations.sum(dim=1) + self.bias
        plain = representations[:, :-COUNTS].sum(dim=1) + self.bias
        fitted = self._features(representations) @ self.coefficients + self.intercept
        return torch.where(self.is_fitted, fitted, plain)

    def _features(self, representations: Tensor) -> Tensor:
        """Counts and probability: [P, 3]."""
        logits = representations[:, :-COUNTS].sum(dim=1, keepdim=True) + self.bias
        return torch.cat([representations[:, -COUNTS:], torch.sigmoid(logits)], dim=1)

    def needs_fit(self) -> bool:
        """Whether there are counts, and so a regression."""
        return self.config.count

    def fit(self, representations: Tensor, relevant: Tensor) -> None:
        """Fit the regression by L-BFGS with an L2 penalty of 0.01 (section 4.2)."""
        device = self.device_of()
        with torch.no_grad():
            features = self._features(representations.to(device)).cpu().numpy()
        coefficients, intercept = logistic_regression(features, relevant.numpy(), penalty=0.01)
        self.coefficients.copy_(torch.from_numpy(coefficients))
        self.intercept.fill_(intercept)
        self.is_fitted.fill_(True)
