"""The module of a network: from terms of queries and posts to scores.

Dimensions in all shape comments of this package:

====  ======================================================================
Q     queries
D     posts
P     (query, post) pairs
L     length of a text in terms (words or trigrams); Lq of a query, Ld of a post
E     dimensions of a term vector
F     convolutional filters
K     features or dimensions of a representation
====  ======================================================================
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from tweetrerank.rerankers.explanation import Explanation
from tweetrerank.rerankers.networks.training.training_settings import RAO_2019, Settings
from tweetrerank.rerankers.pairs import PRIOR, Pairs
from tweetrerank.rerankers.text.words import Reading

WORDS = "words"
MASKED_WORDS = "masked_words"
"""Words with every digit replaced by 0 (Severyn & Moschitti 2015, section 4.1)."""
TRIGRAMS = "trigrams"
URL_TRIGRAMS = "url_trigrams"

QUERY = "query"  # Side of a pair
POST = "post"  # The other side


class Terms(NamedTuple):
    """One input of a batch of texts."""

    ids: Tensor  # [B, L] term identifiers; 0 is padding
    weights: Tensor  # [B, L] IDF of each term, 0 for padding; [B, 0] for posts

    def first(self, most: int) -> Self:
        """The first ``most`` terms of each text."""
        return self._replace(
            ids=self.ids[:, :most],
            weights=self.weights[:, :most],
        )

    @property
    def mask(self) -> Tensor:
        """[B, L] 1.0 for terms, 0.0 for padding."""
        return self.ids.ne(0).float()

    @property
    def lengths(self) -> Tensor:
        """[B] terms of each text."""
        return self.ids.ne(0).sum(dim=1)


class Encoded(NamedTuple):
    """A batch of texts with their words."""

    vectors: Any
    """[B, E] of texts, [B, L, E] of words, or a list of these by length of phrases."""
    words: Terms


Inputs = Mapping[str, Terms]
"""Name of an input -> the terms of a batch of texts."""

Interactions = Mapping[str, Tensor]
"""Name -> [P, L, K]: K features of each of L positions of a pair.

Positions are the query's, or there is only one. Padding with zero positions does not
change a score."""


class Reranker(nn.Module, ABC):
    """A model that scores (query, post) pairs.

    The forward pass has four steps: ``encode`` sees one side only, ``interact``
    compares both, ``represent`` gives one vector for each pair, and ``head`` its score.
    A score does not depend on the other pairs of the batch: padding is masked.
    """

    configurations: ClassVar[Mapping[str, Any]]
    """Frozen dataclasses of hyperparameters by name; the first one is the default."""
    query_inputs: ClassVar[Sequence[str]] = (WORDS,)
    """Inputs of queries that ``encode`` reads."""
    post_inputs: ClassVar[Sequence[str]] = (WORDS,)
    """Inputs of posts that ``encode`` reads."""
    training_settings: ClassVar[Settings] = Settings()
    """Default settings of training; 0 epochs for a model without steps."""
    configuration_settings: ClassVar[Mapping[str, Settings]] = {"rao2019": RAO_2019}
    """Settings of training of configurations that depart from ``training_settings``."""
    decay_shares: ClassVar[Mapping[str, float]] = {}
    """Part of a parameter's name -> factor of its weight decay."""
    has_matches: ClassVar[bool] = False
    """Whether :meth:`explain` shows matches of query and post as reasons of a score."""

    idf: str = "relative"
    """Weights of a query's terms, inverse document frequencies.

    ``relative`` ones are scaled into [0, 1]. ``classical`` ones are ln N/n. ``phrases``
    are classical, too, but a trigram has its frequency, not that of its word.
    """
    reading: Reading = Reading()
    """How texts become terms."""
    reads_prior: bool = False
    """Whether the posts' priors are added to the interactions: ``PRIOR``, [P, 1, 1]."""
    interactions_are_fixed: bool = False
    """Whether ``encode`` and ``interact`` are not trained; training calls them once."""
    needs_fit: bool = False
    """Whether :meth:`fit` follows the gradient steps."""

    score: nn.Module
    """Last layers of the default :meth:`head`: [P, K] to [P, 1]."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    @classmethod
    def settings_of(cls, configuration: str | None = None) -> Settings:
        """Settings of training of a named configuration; None is the default one."""
        name = configuration or next(iter(cls.configurations))
        return cls.configuration_settings.get(name, cls.training_settings)

    @abstractmethod
    def encode(self, inputs: Inputs, side: str) -> Any:
        """Encode B texts of a side, ``QUERY`` or ``POST``."""

    @abstractmethod
    def interact(
        self,
        queries: Any,
        posts: Any,
        query_of_post: Tensor,
    ) -> Interactions:
        """Compare each of P encoded posts with its query.

        ``query_of_post`` [P] is the row of the query among the Q encoded queries.
        """

    def represent(self, interactions: Interactions) -> Tensor:
        """One vector for each pair: [P, K]; by default all interactions, flattened."""
        flat = [values.flatten(1) for values in interactions.values()]
        return torch.cat(flat, dim=1)

    def head(self, representations: Tensor) -> Tensor:
        """Scores [P] of representations [P, K]: logits, higher is better."""
        return self.score(representations).squeeze(1)

    def integrate(self, interactions: Interactions) -> Tensor:
        """Scores [P] of interactions."""
        return self.head(self.represent(interactions))

    def interactions(
        self,
        queries: Inputs,
        posts: Inputs,
        query_of_post: Tensor,
        prior: Tensor | None,
    ) -> Interactions:
        """The first two steps, for P posts, each with its query.

        ``prior`` [P] is None unless the model reads priors.
        """
        interactions = self.interact(
            self.encode(queries, QUERY),
            self.encode(posts, POST),
            query_of_post,
        )
        if prior is None:
            return interactions
        return dict(interactions) | {PRIOR: prior.view(-1, 1, 1)}

    def forward(self, *batch: Any) -> Tensor:
        """Scores [P] by all four steps, with the arguments of :meth:`interactions`."""
        return self.integrate(self.interactions(*batch))

    def fast_path(self, pairs: Any) -> Any:
        """The same pairs with a faster way to compare them; None by default.

        ``pairs`` are :class:`tweetrerank.rerankers.networks.inputs.Tokenized`, and so
        is the result. It computes the same interactions as :meth:`interactions`, except
        for rounding, and it may share work between the pairs of a batch.
        """
        return None

    def explain(
        self,
        encoder: Any,
        pairs: Pairs,
        rows: Sequence[int],
    ) -> Explanation | None:
        """Reasons for the scores of the pairs ``rows`` of one query; None by default.

        ``encoder`` is a :class:`tweetrerank.rerankers.networks.inputs.TextEncoder`.
        """
        return None

    def fit(self, representations: Tensor, relevant: Tensor) -> None:
        """Fit parameters without gradients to the training pairs.

        ``representations`` [P, K] are by the trained model, ``relevant`` [P] are truth
        values.
        """

    def device_of(self) -> torch.device:
        """Device of parameters and buffers."""
        return next(chain(self.parameters(), self.buffers())).device
