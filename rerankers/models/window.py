"""A fusion over the candidates of any first stage: boosted trees over texts and what is given.

Where :mod:`rerankers.models.fusion` searches by several rankers itself, this model takes a window
of candidates as it comes: with the scores of its first stage, in its order only, as most clients of
a reranking service send it, or as a set. It is trained on windows of several first stages in all
three forms, so that it knows what to read where the others are missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rerankers.models._boosting import BoostedTrees, BoostingConfig
from rerankers.models._feature_model import ADAPTED_FAMILY, TEXT_FAMILIES

WINDOW_FAMILIES = ("given", "lexical", *TEXT_FAMILIES[1:])
"""All families of texts, but the unit of a first stage's score says nothing of another's."""


@dataclass(frozen=True)
class Config(BoostingConfig):
    """Hyperparameters; for the reasons see :mod:`rerankers.models.fusion`."""

    families: str = ",".join(WINDOW_FAMILIES)  # Names of files in rerankers/features
    objectives: str = "lambdarank,lambdarank_sum,binary"  # A list of trees for each
    trees: int = 200  # Of each list
    parts: int = 0  # Parts of the topics that choose the number of trees; 0 grows all trees
    learning_rate: float = 0.1  # Weight of each tree
    leaves: int = 7  # Leaves of a tree
    penalty: float = 5.0  # L2 penalty of a leaf's value
    truncation: int = 100  # Ranks that count in the gradients' NDCG
    feature_fraction: float = 0.3  # Of the features, drawn anew for each tree
    bagging: float = 0.7  # Of the training pairs, drawn anew for each tree


class Model(BoostedTrees):
    """Lists of trees over a pair's features."""

    config_type = Config
    reads_windows = True
    configurations: ClassVar[Mapping[str, Config]] = {
        "general": Config(),
        "adapted": Config(",".join((*WINDOW_FAMILIES, ADAPTED_FAMILY))),
    }
