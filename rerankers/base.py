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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rerankers.errors import RerankerError
from rerankers.training.settings import Settings

if TYPE_CHECKING:
    from rerankers.text.vectors import UnitVectors

WORDS = "words"
MASKED_WORDS = "masked_words"
"""Words with every digit read as 0 (Severyn & Moschitti 2015, section 4.1)."""
TRIGRAMS = "trigrams"
URL_TRIGRAMS = "url_trigrams"

FIRST_STAGE = "first_stage"
"""Signal: score of a candidate in the run that is reranked."""
PRIOR = "prior"
"""Signal: what the runs that are reranked think of a pair; see :func:`prior_of_rank`."""
FEATURES = "features"
"""Name of the interaction that holds a pair's features."""


@dataclass(frozen=True)
class Pairs:
    """What to score: queries, posts, and which query goes with which post.

    Attributes:
        queries: [Q] texts of the queries.
        texts: [D] texts of the posts.
        urls: [D] expanded URL of each post, or "".
        query_index: [P] row of ``queries``.
        post_index: [P] row of ``texts`` and ``urls``.
        signals: name -> [P] what is known of a pair besides its texts, as ``FIRST_STAGE`` and
            ``PRIOR``; one that is not there counts as 0, but as unknown in the families
            ``signal:NAME``, as NaN does.
        doc_ids: [D] identifier of each post; empty where they are not known.
        memo: name -> what has been computed of ``texts`` and ``urls``, and of which; pairs that
            ``dataclasses.replace`` makes of these share it.
    """

    queries: Sequence[str]
    texts: Sequence[str]
    urls: Sequence[str]
    query_index: npt.NDArray[np.int64]
    post_index: npt.NDArray[np.int64]
    signals: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    doc_ids: Sequence[str] = ()
    memo: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.query_index)

    def part(self, rows: npt.NDArray[np.int64]) -> "Pairs":
        """The pairs ``rows`` [B] alone, without the texts that none of them has."""
        queries, query_index = np.unique(self.query_index[rows], return_inverse=True)
        posts, post_index = np.unique(self.post_index[rows], return_inverse=True)
        return Pairs(
            [self.queries[row] for row in queries],
            [self.texts[row] for row in posts],
            [self.urls[row] for row in posts],
            query_index.astype(np.int64),
            post_index.astype(np.int64),
            {name: values[rows] for name, values in self.signals.items()},
            [self.doc_ids[row] for row in posts] if self.doc_ids else (),
        )


class Terms(NamedTuple):
    """One view of a batch of texts.

    Attributes:
        ids: [B, L] term identifiers, 0 where there is no term.
        weights: [B, L] importance of each term in [0, 1] (IDF), 0 where there is no term.
            Posts carry no weights; theirs is an empty tensor.
    """

    ids: Tensor
    weights: Tensor


def prior_of_rank(ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """What a run thinks of the posts that it has at these ranks, counted from 1: 1 / ln(r + 1).

    Severyn & Moschitti (2015), section 5, "submission run as a feature". A post that the run does
    not have is worth 0; several runs are averaged.
    """
    return (1.0 / np.log(ranks + 1.0)).astype(np.float32)


Inputs = Mapping[str, Terms]
"""View name -> the terms of a batch of texts."""


Interactions = Mapping[str, Tensor]
"""What a comparison of query and post gives: name -> [P, L, K], K numbers for each of L places
(the query's positions, or one). Places may be padded with zeros without changing a score."""


class Reranker(nn.Module, ABC):
    """A model that scores (query, post) pairs from the inputs of the text that it declares.

    A subclass is one file in ``rerankers/models``. It splits its work into two encoders, neither
    of which knows the other side; ``interact``, which compares what they give; ``represent``,
    which turns comparisons into one vector a pair; and ``head``, which turns that into a score.
    A pair's score must not depend on what else is in the batch: padding (identifier 0) is masked.
    """

    config_type: ClassVar[type]
    """Frozen dataclass of the model's hyperparameters."""

    configurations: ClassVar[Mapping[str, Any]]
    """Named configurations; the first is the default."""

    query_inputs: ClassVar[Sequence[str]]
    """Inputs of a query that ``encode_queries`` reads."""

    post_inputs: ClassVar[Sequence[str]]
    """Inputs of a post that ``encode_posts`` reads."""

    training_settings: ClassVar[Settings] = Settings()
    """How its paper trains it, as far as that works here; every command's default."""

    feature_families: Sequence[str] = ()
    """Families of ``rerankers/features`` that the interactions are to hold, side by side, as
    ``FEATURES`` [P, 1, K]."""

    trained_by_gradients: ClassVar[bool] = True
    """Whether there is anything for the steps of training; else all is done by ``fit``."""

    config: Any

    @abstractmethod
    def encode_queries(self, inputs: Inputs) -> Any:
        """Encode Q queries; the result is opaque to the engine."""

    @abstractmethod
    def encode_posts(self, inputs: Inputs) -> Any:
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
    def represent(self, interactions: Interactions) -> Tensor:
        """Turn comparisons into one vector for each pair: [P, K]."""

    @abstractmethod
    def head(self, representations: Tensor) -> Tensor:
        """Turn vectors of pairs [P, K] into [P] scores, higher is better; a score is a logit."""

    def compare(
        self, queries: Any, posts: Any, query_of_post: Tensor, features: Tensor | None = None
    ) -> Interactions:
        """:meth:`interact`, and the features [P, K] where the model has families of them.

        Raises:
            RerankerError: it has, and they are not there.
        """
        interactions = self.interact(queries, posts, query_of_post)
        if not self.feature_families:
            return interactions
        if features is None:
            raise RerankerError(
                f"found no features, expected those of {', '.join(self.feature_families)} "
                "for every pair"
            )
        return {**interactions, FEATURES: features.unsqueeze(1)}

    def integrate(self, interactions: Interactions) -> Tensor:
        """Turn comparisons into [P] scores."""
        return self.head(self.represent(interactions))

    def forward(
        self, queries: Inputs, posts: Inputs, query_of_post: Tensor, features: Tensor | None = None
    ) -> Tensor:
        """Score P posts, each against its query: [P]."""
        encoded = self.encode_queries(queries), self.encode_posts(posts)
        return self.integrate(self.compare(*encoded, query_of_post, features))

    def unit_vectors(self) -> "UnitVectors | None":
        """Vectors of words for the families that compare words by them; None has none."""
        return None

    def interactions_are_fixed(self) -> bool:
        """Whether training leaves encoders and ``interact`` as they are.

        The training loop then computes the interactions once instead of in every step.
        """
        return False

    def decay_share(self, parameter: str) -> float:
        """Share of the weight decay that the parameter of this name gets."""
        return 1.0

    def needs_fit(self) -> bool:
        """Whether :meth:`fit` is to be called once training has ended."""
        return False

    def fit(self, representations: Tensor, relevant: Tensor, query_index: Tensor) -> None:
        """Fit what is not trained by gradients.

        Args:
            representations: [P, K] of the training pairs, by the trained model.
            relevant: [P] whether each is relevant.
            query_index: [P] the query of each.
        """

    def files(self) -> Mapping[str, bytes]:
        """File name -> content of what a checkpoint is to hold that is no tensor."""
        return {}

    def read_files(self, directory: Path) -> None:
        """Take back what :meth:`files` gave from a checkpoint's folder.

        Raises:
            RerankerError: a file is missing, damaged or of something else.
        """

    def device_of(self) -> torch.device:
        """Where the model's parameters live; the CPU if there are none."""
        first = next(self.parameters(), None)
        return torch.device("cpu") if first is None else first.device


def require_choice(name: str, found: str, choices: Sequence[str]) -> None:
    """Check a setting that is one of a few words; raises RerankerError naming them."""
    if found not in choices:
        raise RerankerError(
            f"setting {name}: found {found!r}, expected one of {', '.join(choices)}"
        )
