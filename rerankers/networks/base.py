"""The module of a network: from terms of queries and posts to scores.

Dimensions in all shape comments of this package:

====  =======================================================================
Q     queries
D     posts
P     (query, post) pairs
L     length of a text in terms (words or trigrams); Lq of a query, Ld of a post
E     dimensions of a term vector
F     convolutional filters
K     features or dimensions of a representation
====  =======================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from rerankers.networks.training.settings import RAO_2019, Settings
from rerankers.text.words import Reading

WORDS = "words"
MASKED_WORDS = "masked_words"
"""Words with every digit replaced by 0 (Severyn & Moschitti 2015, section 4.1)."""
TRIGRAMS = "trigrams"
URL_TRIGRAMS = "url_trigrams"

IDF_FORMS = ("relative", "classical", "phrases")
"""Inverse document frequencies: scaled into [0, 1]; ln N/n; the same, with a trigram's own. With
the others a trigram has the IDF of its word."""

FEATURES = "features"  # Name of the interaction that holds a pair's features


class Terms(NamedTuple):
    """One input of a batch of texts."""

    ids: Tensor  # [B, L] term identifiers; 0 is padding
    weights: Tensor  # [B, L] IDF of each term, 0 for padding; [B, 0] for posts

    def first(self, most: int) -> Terms:
        """The first ``most`` terms of each text."""
        return Terms(self.ids[:, :most], self.weights[:, :most])


class Encoded(NamedTuple):
    """A batch of texts with their words."""

    vectors: Any  # [B, E] of texts or [B, L, E] of words, or one for each length of phrases
    words: Terms


Inputs = Mapping[str, Terms]  # Name of an input -> the terms of a batch of texts

Interactions = Mapping[str, Tensor]
"""Name -> [P, L, K]: K features of each of L positions of a pair, which are the query's positions
or only one. Padding with zero positions does not change a score."""


def named(**configurations: Any) -> Mapping[str, Any]:
    """Configurations, or their settings of training, by name; the first one is the default."""
    return configurations


class Reranker(nn.Module, ABC):
    """A model that scores (query, post) pairs.

    The forward pass has four steps: ``encode_queries`` and ``encode_posts`` each see one side
    only, ``interact`` compares them, ``represent`` gives one vector for each pair, and ``head``
    gives its score. A score does not depend on the other pairs of the batch: padding is masked.
    """

    config_type: ClassVar[type]  # Frozen dataclass of the hyperparameters
    configurations: ClassVar[Mapping[str, Any]]  # See :func:`named`
    query_inputs: ClassVar[Sequence[str]] = (WORDS,)  # Inputs that ``encode_queries`` reads
    post_inputs: ClassVar[Sequence[str]] = (WORDS,)  # Inputs that ``encode_posts`` reads
    training_settings: ClassVar[Settings] = Settings()
    """Default settings of training; 0 epochs for a model without steps."""
    own_settings: ClassVar[Mapping[str, Settings]] = named(rao2019=RAO_2019)
    """Settings of training of the configurations for which ``training_settings`` do not hold."""

    idf: str = "relative"  # Weights of a query's terms, one of :data:`IDF_FORMS`
    reading: Reading = Reading()  # How texts become terms
    feature_families: Sequence[str] = ()
    """Families of ``rerankers/features`` that are concatenated to the interaction ``FEATURES``,
    [P, 1, K]."""
    has_matches: ClassVar[bool] = False
    """Whether its matches of query and post can be shown as the reasons of a score."""

    score: nn.Module  # Last layers of the default :meth:`head`: [P, K] to [P, 1]

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    @classmethod
    def settings_of(cls, configuration: str | None = None) -> Settings:
        """Settings of training of a named configuration; None is the default one."""
        name = configuration or next(iter(cls.configurations))
        return cls.own_settings.get(name, cls.training_settings)

    def encode(self, inputs: Inputs) -> Any:
        """Encode B texts, if queries and posts are encoded alike."""
        raise NotImplementedError

    def encode_queries(self, inputs: Inputs) -> Any:
        """Encode Q queries."""
        return self.encode(inputs)

    def encode_posts(self, inputs: Inputs) -> Any:
        """Encode D posts."""
        return self.encode(inputs)

    @abstractmethod
    def interact(self, queries: Any, posts: Any, query_of_post: Tensor) -> Interactions:
        """Compare each encoded post with its query.

        Args:
            queries: Q queries, as ``encode_queries`` returned them.
            posts: P posts, as ``encode_posts`` returned them.
            query_of_post: [P] row of the query of each post.
        """

    def represent(self, interactions: Interactions) -> Tensor:
        """One vector for each pair: [P, K]; by default all interactions, of one position each."""
        return torch.cat([values.flatten(1) for values in interactions.values()], dim=1)

    def head(self, representations: Tensor) -> Tensor:
        """Scores [P] of representations [P, K]; a score is a logit, higher is better."""
        return self.score(representations).squeeze(1)

    def integrate(self, interactions: Interactions) -> Tensor:
        """Scores [P] of interactions."""
        return self.head(self.represent(interactions))

    def interactions(
        self, queries: Inputs, posts: Inputs, query_of_post: Tensor, features: Tensor | None = None
    ) -> Interactions:
        """The first two steps, for P posts, each with its query.

        Args:
            query_of_post: [P] row of the query of each post.
            features: [P, K] of :attr:`feature_families`; None without families.
        """
        encoded = self.encode_queries(queries), self.encode_posts(posts)
        interactions = self.interact(*encoded, query_of_post)
        return interactions if features is None else {**interactions, FEATURES: features[:, None]}

    def forward(self, *batch: Any) -> Tensor:
        """Scores [P] by all four steps, with the arguments of :meth:`interactions`."""
        return self.integrate(self.interactions(*batch))

    def interactions_are_fixed(self) -> bool:
        """Whether encoders and ``interact`` are not trained: training then calls them once."""
        return False

    def decay_share(self, parameter: str) -> float:
        """Factor of the weight decay for the parameter of this name."""
        return 1.0

    def needs_fit(self) -> bool:
        """Whether :meth:`fit` follows the gradient steps."""
        return False

    def fit(self, representations: Tensor, relevant: Tensor) -> None:
        """Fit the parameters that are not trained by gradients.

        Args:
            representations: [P, K] of the training pairs, by the trained model.
            relevant: [P] whether each pair is relevant.
        """

    def device_of(self) -> torch.device:
        """Device of parameters and buffers; the CPU if there are none."""
        first = next(chain(self.parameters(), self.buffers()), None)
        return torch.device("cpu") if first is None else first.device
