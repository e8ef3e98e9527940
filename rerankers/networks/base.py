"""The PyTorch module of a network, which turns terms of queries and posts into scores.

All shape comments of this package use these dimensions:

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
"""Words in which every digit is replaced by 0 (Severyn & Moschitti 2015, section
4.1)."""
TRIGRAMS = "trigrams"
URL_TRIGRAMS = "url_trigrams"

QUERY = "query"  # Side of a pair
POST = "post"  # The other side


class Terms(NamedTuple):
    """One input for a batch of texts."""

    ids: Tensor  # [B, L] identifier of each term; 0 is padding
    weights: Tensor  # [B, L] IDF of each term, 0 for padding; [B, 0] for posts

    def first(self, most: int) -> Self:
        """Return the first ``most`` terms of each text."""
        return self._replace(
            ids=self.ids[:, :most],
            weights=self.weights[:, :most],
        )

    @property
    def mask(self) -> Tensor:
        """Mask [B, L]: 1.0 for terms, 0.0 for padding."""
        return self.ids.ne(0).float()

    @property
    def lengths(self) -> Tensor:
        """Number of terms of each text, [B]."""
        return self.ids.ne(0).sum(dim=1)


class Encoded(NamedTuple):
    """A batch of encoded texts with their words."""

    vectors: Any
    """[B, E] for texts, [B, L, E] for words, or a list of these by length of
    phrases."""
    words: Terms


Inputs = Mapping[str, Terms]
"""Name of an input -> the terms of a batch of texts."""

Interactions = Mapping[str, Tensor]
"""Name -> [P, L, K]: K features at each of L positions of a pair. The positions are
those of the query, or there is only one. Padding with zero positions does not change a
score."""


class Reranker(nn.Module, ABC):
    """A model that scores (query, post) pairs.

    The forward pass has four steps. ``encode`` sees one side only, ``interact``
    compares both sides, ``represent`` gives one vector for each pair, and ``head``
    computes its score. A score does not depend on the other pairs of the batch, because
    padding is masked.
    """

    configurations: ClassVar[Mapping[str, Any]]
    """Name -> frozen dataclass of hyperparameters. The first one is the default."""
    query_inputs: ClassVar[Sequence[str]] = (WORDS,)
    """The inputs of queries that ``encode`` reads."""
    post_inputs: ClassVar[Sequence[str]] = (WORDS,)
    """The inputs of posts that ``encode`` reads."""
    training_settings: ClassVar[Settings] = Settings()
    """Default training settings. They have 0 epochs if the model has no gradient
    steps."""
    configuration_settings: ClassVar[Mapping[str, Settings]] = {"rao2019": RAO_2019}
    """Configuration -> its training settings, if they differ from
    ``training_settings``."""
    decay_shares: ClassVar[Mapping[str, float]] = {}
    """Part of a parameter's name -> factor of the parameter's weight decay."""
    has_matches: ClassVar[bool] = False
    """Whether :meth:`explain` shows matches of query and post as reasons for a
    score."""

    idf: str = "relative"
    """Which inverse document frequencies weight the terms of a query. ``relative``
    frequencies are scaled to [0, 1]. ``classical`` ones are ln N/n. ``phrases`` are
    also classical, but a trigram has its own frequency instead of that of its word."""
    reading: Reading = Reading()
    """How texts are split into terms."""
    reads_prior: bool = False
    """Whether the priors of posts are added to the interactions, as ``PRIOR`` [P, 1,
    1]."""
    interactions_are_fixed: bool = False
    """Whether ``encode`` and ``interact`` have nothing to train. Training then calls
    them only once for each pair."""
    needs_fit: bool = False
    """Whether :meth:`fit` is called after the gradient steps."""

    score: nn.Module
    """Last layers of the default :meth:`head`, which map [P, K] to [P, 1]."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    @classmethod
    def settings_of(cls, configuration: str | None = None) -> Settings:
        """Return the training settings of a named configuration.

        None is the default one.
        """
        name = configuration or next(iter(cls.configurations))
        return cls.configuration_settings.get(name, cls.training_settings)

    @abstractmethod
    def encode(self, inputs: Inputs, side: str) -> Any:
        """Encode B texts of one side, which is ``QUERY`` or ``POST``."""

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
        """Return one vector for each pair, [P, K].

        By default, this is the concatenation of all flattened interactions.
        """
        flat = [values.flatten(1) for values in interactions.values()]
        return torch.cat(flat, dim=1)

    def head(self, representations: Tensor) -> Tensor:
        """Return the scores [P] of representations [P, K]: logits, higher is better."""
        return self.score(representations).squeeze(1)

    def integrate(self, interactions: Interactions) -> Tensor:
        """Return the scores [P] of interactions by the last two steps."""
        return self.head(self.represent(interactions))

    def interactions(
        self,
        queries: Inputs,
        posts: Inputs,
        query_of_post: Tensor,
        prior: Tensor | None,
    ) -> Interactions:
        """Apply the first two steps to P posts, each with its query.

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
        """Return the scores [P] by all four steps.

        The arguments are those of :meth:`interactions`.
        """
        return self.integrate(self.interactions(*batch))

    def fast_path(self, pairs: Any) -> Any:
        """Return the same pairs in a form that is compared faster.

        ``pairs`` and the result are
        :class:`tweetrerank.rerankers.networks.inputs.Tokenized`. The result computes
        the same interactions as :meth:`interactions`, except for rounding. It may share
        work between the pairs of a batch. The default is None, which means that there
        is no such form.
        """
        return None

    def explain(
        self,
        encoder: Any,
        pairs: Pairs,
        rows: Sequence[int],
    ) -> Explanation | None:
        """Explain the scores of the pairs ``rows``, which belong to one query.

        ``encoder`` is a :class:`tweetrerank.rerankers.networks.inputs.TextEncoder`. The
        default is None, which means that the model has no explanation.
        """
        return None

    def fit(self, representations: Tensor, relevant: Tensor) -> None:
        """Fit the parameters that are not trained by gradients to the training pairs.

        ``representations`` [P, K] come from the trained model. ``relevant`` [P] says
        whether each pair is relevant.
        """

    def device_of(self) -> torch.device:
        """Return the device of the parameters and buffers."""
        return next(chain(self.parameters(), self.buffers())).device
