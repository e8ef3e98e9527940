"""Base of the models that read features only, and no text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rerankers import features
from rerankers.base import Inputs, Interactions, Reranker
from rerankers.text.spaces import ADAPTED, GENERAL
from rerankers.text.vocabulary import Vocabulary

SEARCHES = ("ql", "bm25", "rm3", "axiom")
"""Methods of search whose scores the fusions read."""

OFFICIAL_RUNS = ("run_ql", "run_rm3")
"""Official runs of TREC Microblog whose scores its fusions read."""

ADAPTED_FAMILY = f"meaning:{ADAPTED}"
"""The family that needs word vectors adapted to the collection."""

TEXT_FAMILIES = (
    *("first_stage", "overlap", "phrases", "links", "hashtags", "quality", "feedback"),
    f"meaning:{GENERAL}",
)
"""Families that both fusions read; ``signal`` covers ``prior``, as it reads the same runs."""


def fused(*more: str) -> str:
    """The families of a fusion for collections of any kind, and ``more``."""
    return ",".join([*(f"signal:{name}" for name in SEARCHES), *TEXT_FAMILIES, *more])


MICROBLOG = (*(f"signal:{name}" for name in OFFICIAL_RUNS), "temporal")
"""Families that only TREC Microblog has, or only tweets."""

DEPTH, MICROBLOG_DEPTH = 100, 1000
"""Best posts of each ranker that a fusion scores."""


class FeatureModel(Reranker):
    """A model fitted to the features of all training pairs at once.

    Args:
        config: hyperparameters, with ``families`` of features separated by commas.
        vocabulary: not read.
    """

    query_inputs = ()
    post_inputs = ()
    trained_by_gradients = False

    def __init__(self, config: Any, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        self.feature_families = tuple(config.families.split(","))
        self.names = features.names_of(self.feature_families)

    def encode(self, inputs: Inputs) -> None:
        """Nothing: the features contain queries and posts."""

    def interact(self, queries: None, posts: None, query_of_post: Tensor) -> Interactions:
        """Nothing besides the features."""
        return {}

    def interactions_are_fixed(self) -> bool:
        """Always: training changes no feature."""
        return True

    def needs_fit(self) -> bool:
        """Always: there are no training steps."""
        return True

    @abstractmethod
    def contributions(self, representations: Tensor) -> Tensor:
        """Contribution of each feature to the scores of pairs with features [P, K]: [P, K].

        A score is the sum of the pair's contributions and a constant.
        """

    @abstractmethod
    def importances(self) -> Mapping[str, float]:
        """Name of each feature -> its importance over all pairs, 0 or more."""
