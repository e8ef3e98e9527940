"""The contract between rerankers, the engine that runs them and the loop that trains them.

Dimension legend, used in every shape comment of this package:

====  =======================================================================
Q     queries
D     posts
P     (query, post) pairs
L     length of a text in terms (words or trigrams); Lq of a query, Ld of a post
E     size of a term's vector
F     convolutional filters
====  =======================================================================
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rerankers.errors import RerankerError

WORDS = "words"
TRIGRAMS = "trigrams"
URL_TRIGRAMS = "url_trigrams"


@dataclass(frozen=True)
class Pairs:
    """What to score: queries, posts, and which query goes with which post.

    Attributes:
        queries: [Q] texts of the queries.
        texts: [D] texts of the posts.
        urls: [D] expanded URL of each post, or "".
        query_index: [P] row of ``queries``.
        post_index: [P] row of ``texts`` and ``urls``.
    """

    queries: Sequence[str]
    texts: Sequence[str]
    urls: Sequence[str]
    query_index: npt.NDArray[np.int64]
    post_index: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.query_index)


class Terms(NamedTuple):
    """One view of a batch of texts.

    Attributes:
        ids: [B, L] term identifiers, 0 where there is no term.
        weights: [B, L] importance of each term in [0, 1] (IDF), 0 where there is no term.
            Posts carry no weights; theirs is an empty tensor.
    """

    ids: Tensor
    weights: Tensor


Views = Mapping[str, Terms]
"""View name -> the terms of a batch of texts."""


Interactions = Mapping[str, Tensor]
"""What a comparison of query and post gives: name -> [P, L, K], K numbers for each of L places
(the query's positions, or one). Places may be padded with zeros without changing a score."""


class Reranker(nn.Module, ABC):
    """A model that scores (query, post) pairs from the views of the text that it declares.

    A subclass is one file in ``rerankers/models``. It splits its work into two encoders, neither
    of which knows the other side, ``interact``, which compares what they give, and ``integrate``,
    which turns comparisons into a score. A pair's score must not depend on what else is
    in the batch: padding (identifier 0) is masked.
    """

    config_type: ClassVar[type]
    """Frozen dataclass of the model's hyperparameters."""

    configurations: ClassVar[Mapping[str, Any]]
    """Named configurations; the first is the default."""

    query_views: ClassVar[Sequence[str]]
    """Views of a query that ``encode_queries`` reads."""

    post_views: ClassVar[Sequence[str]]
    """Views of a post that ``encode_posts`` reads."""

    config: Any

    @abstractmethod
    def encode_queries(self, views: Views) -> Any:
        """Encode Q queries; the result is opaque to the engine."""

    @abstractmethod
    def encode_posts(self, views: Views) -> Any:
        """Encode D posts; the result is opaque to the engine."""

    @abstractmethod
    def interact(self, queries: Any, posts: Any, query_of_post: Tensor) -> Interactions:
        """Compare each encoded post with its query.

        Args:
            queries: what ``encode_queries`` gave for Q queries.
            posts: what ``encode_posts`` gave for P posts.
            query_of_post: [P] row of the query of each post.
        """

    @abstractmethod
    def integrate(self, interactions: Interactions) -> Tensor:
        """Turn comparisons into [P] scores, higher is better; a score is a logit."""

    def match(self, queries: Any, posts: Any, query_of_post: Tensor) -> Tensor:
        """Score P encoded posts, each against its encoded query: [P]."""
        return self.integrate(self.interact(queries, posts, query_of_post))

    def forward(self, queries: Views, posts: Views, query_of_post: Tensor) -> Tensor:
        """Score P posts, each against its query: [P]."""
        return self.match(self.encode_queries(queries), self.encode_posts(posts), query_of_post)

    def interactions_are_fixed(self) -> bool:
        """Whether training leaves encoders and ``interact`` as they are.

        The training loop then computes the interactions once instead of in every step.
        """
        return False

    def device_of(self) -> torch.device:
        """Where the model's parameters live."""
        return next(self.parameters()).device


def require_choice(name: str, found: str, choices: Sequence[str]) -> None:
    """Check a setting that is one of a few words; raises RerankerError naming them."""
    if found not in choices:
        raise RerankerError(
            f"setting {name}: found {found!r}, expected one of {', '.join(choices)}"
        )
