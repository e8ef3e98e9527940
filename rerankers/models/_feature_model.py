"""What models over features alone share: they read no text, and a pair is its features."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from rerankers import features
from rerankers.base import FEATURES, Inputs, Interactions, Reranker
from rerankers.layers.embeddings import FrozenVectors
from rerankers.text.vectors import UnitVectors
from rerankers.text.vocabulary import Vocabulary

SIGNALS = ("ql", "bm25", "rm3", "axiom", "run_ql", "run_rm3")
"""Lexical rankers whose scores the fusions read, where they are known."""

FUSED = ",".join([
    *(f"signal:{name}" for name in SIGNALS),
    "first_stage", "overlap", "phrases", "links", "hashtags", "quality", "feedback", "temporal",
    "soft_match",
])  # fmt: skip
"""Families that the fusions share. ``prior`` is not among them: ``signal`` says more of the same
runs. Nor is ``neighbours``: it takes a third of the time of all families, and trees rank as well
without it."""


class HasFamilies(Protocol):
    """Settings with ``families`` of features, separated by commas."""

    @property
    def families(self) -> str:
        """As ``first_stage,overlap``."""


class FeatureModel(Reranker):
    """A model that is fitted to the features of pairs, all at once, and sees nothing else.

    Args:
        config: has the families.
        vocabulary: its vectors are kept, in eight bits, where a family compares words by them.

    Attributes:
        names: [K] the features, ``family.feature``.
        vectors: of the known words; None where no family compares words by them.
    """

    query_inputs = ()
    post_inputs = ()
    trained_by_gradients = False

    vectors: FrozenVectors | None

    def __init__(self, config: HasFamilies, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.config: Any = config
        self.feature_families = tuple(config.families.split(","))
        self.names = features.names_of(self.feature_families)
        self.vectors = None
        if features.compare_vectors(self.feature_families):
            self.vectors = FrozenVectors(vocabulary.vectors, buckets=0)
        self._words = vocabulary.known
        self._unit_vectors: UnitVectors | None = None
        self.register_load_state_dict_post_hook(_forget)

    def encode_queries(self, inputs: Inputs) -> None:
        """Nothing: the features have read the queries."""

    def encode_posts(self, inputs: Inputs) -> None:
        """Nothing: the features have read the posts."""

    def interact(self, queries: None, posts: None, query_of_post: Tensor) -> Interactions:
        """Nothing besides the features."""
        return {}

    def interactions_are_fixed(self) -> bool:
        """They are: the model changes no feature."""
        return True

    def represent(self, interactions: Interactions) -> Tensor:
        """The features: [P, K]."""
        return interactions[FEATURES].flatten(1)

    def needs_fit(self) -> bool:
        """It is all that there is of training."""
        return True

    def unit_vectors(self) -> UnitVectors | None:
        """The vectors of the known words, from their eight bits also while it is trained."""
        if self.vectors is not None and self._unit_vectors is None:
            ids = torch.arange(1, 1 + len(self._words), device=self.vectors.codes.device)
            self._unit_vectors = UnitVectors(self._words, self.vectors(ids).cpu().numpy())
        return self._unit_vectors

    @abstractmethod
    def contributions(self, representations: Tensor) -> Tensor:
        """What each feature added to the scores of pairs [P, K]: [P, K].

        A pair's contributions and a number that is the same for all pairs add up to its score.
        """

    @abstractmethod
    def importances(self) -> Mapping[str, float]:
        """Feature, as in ``names`` -> how much it counts over all, 0 or more."""


def _forget(model: FeatureModel, _: Any) -> None:
    """Other vectors have been loaded."""
    model._unit_vectors = None
