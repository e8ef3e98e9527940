"""Boosted regression trees over the features of pairs: grown, counted, written and read.

LambdaMART (Burges 2010) as LightGBM grows it, or lists of trees by several objectives, whose scores
are averaged. Where the number of trees is chosen, it is that with the best AP on held-out topics of
the training topics, and the kept model has so many trees on all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerankers import features
from rerankers.errors import RerankerError
from rerankers.models._feature_model import FeatureModel
from rerankers.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from lightgbm import Booster, Dataset

FILE = "model.txt"
"""In a checkpoint's folder: the trees of the first objective, in LightGBM's own text format."""

_LAMBDARANK = {"objective": "lambdarank", "label_gain": [0, 1]}
OBJECTIVES: Mapping[str, Mapping[str, Any]] = {
    "lambdarank": _LAMBDARANK | {"lambdarank_norm": True},
    "lambdarank_sum": _LAMBDARANK | {"lambdarank_norm": False},
    "binary": {"objective": "binary"},
}
"""What trees are grown for, as LightGBM's parameters. ``lambdarank``: NDCG, each topic weighs about
the same. ``lambdarank_sum``: the same, but what a topic weighs grows with its relevant posts.
``binary``: the log-loss of each pair by itself, as in logistic regression. One that is named twice
has two lists, of two seeds."""

PATIENCE = 30
"""Trees without a better AP on held-out topics before the search for their number ends."""


@dataclass(frozen=True)
class BoostingConfig:
    """Hyperparameters."""

    families: str  # Of rerankers/features
    trees: int = 300  # At most
    parts: int = 5  # Of the training topics, to choose the number of trees by; 0 grows them all
    learning_rate: float = 0.1  # Weight of each tree
    leaves: int = 4  # Leaves of a tree
    minimum_leaf: int = 100  # Pairs in a leaf at least
    penalty: float = 1.0  # L2 penalty of a leaf's value
    truncation: int = 30  # Ranks that count in the gradients' NDCG
    objectives: str = "lambdarank"  # Of OBJECTIVES, by commas: a list of trees for each
    seed: int = 1  # Of the parts, and of what each tree is given; the next list has the next one
    feature_fraction: float = 1.0  # Of the features, drawn anew for each tree
    bagging: float = 1.0  # Of the training pairs, drawn anew for each tree

    def __post_init__(self) -> None:
        features.names_of(self.families.split(","))
        for name in self.objectives.split(","):
            if name not in OBJECTIVES:
                raise RerankerError(
                    f"setting objectives: found {name!r}, expected some of {', '.join(OBJECTIVES)}"
                )
        for name, least in (
            ("trees", 1), ("parts", 0), ("leaves", 2), ("minimum_leaf", 1), ("truncation", 1),
        ):  # fmt: skip
            if (found := getattr(self, name)) < least:
                raise RerankerError(f"setting {name}: found {found}, expected {least} or more")
        if self.parts == 1:
            raise RerankerError("setting parts: found 1, expected 0 (all trees), or 2 or more")
        if self.learning_rate <= 0 or self.penalty < 0:
            raise RerankerError(
                f"settings learning_rate and penalty: found {self.learning_rate} and "
                f"{self.penalty}, expected one above 0 and one not below it"
            )
        for name in ("feature_fraction", "bagging"):
            if not 0 < (share := getattr(self, name)) <= 1:
                raise RerankerError(f"setting {name}: found {share}, expected one above 0 up to 1")


class BoostedTrees(FeatureModel):
    """Lists of trees over a pair's features.

    Attributes:
        boosters: a list of trees for each objective; empty before it is fitted.
    """

    config: BoostingConfig

    def __init__(self, config: BoostingConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.boosters: list[Booster] = []

    def head(self, representations: Tensor) -> Tensor:
        """Sum of the trees' values, averaged over the objectives: [P].

        Raises:
            RerankerError: the model has not been fitted.
        """
        return self._mean(representations, raw_score=True)

    def contributions(self, representations: Tensor) -> Tensor:
        """Shapley values of the trees (Lundberg et al. 2020): [P, K].

        Scott M. Lundberg et al.: *From Local Explanations to Global Understanding with Explainable
        AI for Trees*, Nature Machine Intelligence, 2020. The number that is missing from a score is
        the trees' mean over the training pairs.

        Raises:
            RerankerError: the model has not been fitted.
        """
        return self._mean(representations, pred_contrib=True)[:, :-1]

    def importances(self) -> Mapping[str, float]:
        """Each feature's share of what all splits gained, averaged over the objectives: 0 for none.

        Raises:
            RerankerError: the model has not been fitted.
        """
        # Objectives have gains of their own units.
        gains = np.stack([booster.feature_importance("gain") for booster in self._fitted()])
        shares = gains / gains.sum(axis=1, keepdims=True).clip(np.finfo(np.float64).tiny)
        return dict(zip(self.names, shares.mean(axis=0).tolist(), strict=True))

    def fit(self, representations: Tensor, relevant: Tensor, query_index: Tensor) -> None:
        """Grow the trees.

        Raises:
            RerankerError: LightGBM cannot.
        """
        import lightgbm

        queries = query_index.numpy()
        order = np.argsort(queries, kind="stable")
        _, sizes = np.unique(queries, return_counts=True)
        values, labels = representations.numpy()[order], relevant.numpy()[order].astype(np.int32)

        def data(options: Mapping[str, Any]) -> "Dataset":
            return lightgbm.Dataset(
                values, label=labels, group=sizes, feature_name=_written(self.names),
                params=dict(options), free_raw_data=False,
            )  # fmt: skip

        try:
            boosters = []
            for seed, objective in enumerate(self._objectives(), start=self.config.seed):
                options = self._options(objective, seed)
                trees = self._best_count(options, data(options), sizes)
                boosters.append(lightgbm.train(options, data(options), num_boost_round=trees))
        except lightgbm.basic.LightGBMError as error:
            raise RerankerError(
                f"LightGBM cannot grow trees over these pairs ({error}); "
                "train with a greater --set minimum_leaf"
            ) from None
        self.boosters = boosters

    def _best_count(
        self, options: dict[str, Any], data: "Dataset", sizes: npt.NDArray[np.int64]
    ) -> int:
        """The number of trees that is best on held-out topics, by mean AP over the parts."""
        import lightgbm

        config = self.config
        parts = min(config.parts, len(sizes))
        if parts < 2:
            return config.trees
        rows = np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
        topics = np.random.default_rng(config.seed).permutation(len(sizes))
        folds = [
            (
                np.concatenate([rows[topic] for topic in np.setdiff1d(topics, held_out)]),
                np.concatenate([rows[topic] for topic in np.sort(held_out)]),
            )
            for held_out in np.array_split(topics, parts)
        ]
        figures = lightgbm.cv(
            options | {"metric": "map", "eval_at": [int(sizes.max())]},
            data, num_boost_round=config.trees, folds=folds,
            callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
        )  # fmt: skip
        means = next(values for name, values in figures.items() if name.endswith("-mean"))
        return int(np.argmax(np.asarray(means))) + 1

    def _options(self, objective: str, seed: int) -> dict[str, Any]:
        config = self.config
        return {
            **OBJECTIVES[objective], "lambdarank_truncation_level": config.truncation,
            "learning_rate": config.learning_rate, "num_leaves": config.leaves,
            "min_data_in_leaf": config.minimum_leaf, "lambda_l2": config.penalty,
            "feature_fraction": config.feature_fraction, "bagging_fraction": config.bagging,
            "bagging_freq": int(config.bagging < 1), "seed": seed, "deterministic": True,
            "force_row_wise": True, "num_threads": torch.get_num_threads(), "verbosity": -1,
        }  # fmt: skip

    def _mean(self, representations: Tensor, **options: bool) -> Tensor:
        """What LightGBM predicts, averaged over the objectives."""
        values = representations.cpu().numpy()
        found = [
            booster.predict(values, num_threads=torch.get_num_threads(), **options)
            for booster in self._fitted()
        ]
        mean = np.mean(np.asarray(found, dtype=np.float64), axis=0)
        return torch.from_numpy(mean.astype(np.float32)).to(representations.device)

    def files(self) -> Mapping[str, bytes]:
        """The trees, a file for each objective.

        Raises:
            RerankerError: there are none yet.
        """
        return {
            file_of(number): booster.model_to_string().encode()
            for number, booster in enumerate(self._fitted(), start=1)
        }

    def read_files(self, directory: Path) -> None:
        """Read the trees."""
        import lightgbm

        numbers = range(1, len(self._objectives()) + 1)
        self.boosters = [
            lightgbm.Booster(model_file=directory / file_of(number)) for number in numbers
        ]

    def _objectives(self) -> list[str]:
        return self.config.objectives.split(",")

    def _fitted(self) -> "list[Booster]":
        if not self.boosters:
            raise RerankerError("found a model without trees; train it before it is used")
        return self.boosters


def file_of(number: int) -> str:
    """The name of the file with the trees of one objective, counted from 1."""
    return FILE if number == 1 else f"model_{number}.txt"


def _written(names: tuple[str, ...]) -> list[str]:
    """Names of features as LightGBM's text has them: it refuses a colon."""
    return [name.replace(":", "/") for name in names]
