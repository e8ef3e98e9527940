"""Boosted regression trees over the features of pairs, by LightGBM.

One list of trees, as in LambdaMART (Burges 2010), or the mean of several lists with an objective
each. The number of trees is fixed, or the one with the best AP on held-out training topics; the
final trees are grown on all training topics.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerankers import features
from rerankers.base import Report
from rerankers.errors import RerankerError, require_above_zero, require_at_least, require_choice
from rerankers.layers.trees import MOST_LEAVES, Trees
from rerankers.models._feature_model import FeatureModel
from rerankers.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from lightgbm import Booster, Dataset
    from lightgbm.callback import CallbackEnv

_LAMBDARANK = {"objective": "lambdarank", "label_gain": [0, 1]}
OBJECTIVES: Mapping[str, Mapping[str, Any]] = {
    "lambdarank": _LAMBDARANK | {"lambdarank_norm": True},
    "lambdarank_sum": _LAMBDARANK | {"lambdarank_norm": False},
    "binary": {"objective": "binary"},
}
"""Objectives of the trees, as LightGBM's parameters. ``lambdarank``: NDCG with about equal weights
of all topics. ``lambdarank_sum``: NDCG with weights that grow with a topic's relevant posts.
``binary``: the log-loss of single pairs, as in logistic regression. An objective that is named
twice has two lists of trees with two seeds."""

PATIENCE = 30
"""Trees without a better AP on held-out topics that end the search for their number."""


@dataclass(frozen=True)
class BoostingConfig:
    """Hyperparameters."""

    families: str  # Names of files in rerankers/features
    trees: int = 300  # At most
    parts: int = 5  # Parts of the topics that choose the number of trees; 0 grows all trees
    learning_rate: float = 0.1  # Weight of each tree
    leaves: int = 4  # Leaves of a tree
    minimum_leaf: int = 100  # Smallest number of pairs in a leaf
    penalty: float = 1.0  # L2 penalty of a leaf's value
    truncation: int = 30  # Ranks that count in the gradients' NDCG
    objectives: str = "lambdarank"  # Names in OBJECTIVES, a list of trees for each
    seed: int = 1  # Of the parts and of the first list's draws; the next list has the next seed
    feature_fraction: float = 1.0  # Share of the features, drawn anew for each tree
    bagging: float = 1.0  # Share of the training pairs, drawn anew for each tree

    def __post_init__(self) -> None:
        features.names_of(self.families.split(","))
        for name in self.objectives.split(","):
            require_choice("objectives", name, [*OBJECTIVES])
        require_at_least(self, trees=1, parts=0, leaves=2, minimum_leaf=1, truncation=1)
        if self.parts == 1:
            raise RerankerError("setting parts: found 1, expected 0 (all trees), or 2 or more")
        if self.leaves > MOST_LEAVES:
            found = f"setting leaves: found {self.leaves}"
            raise RerankerError(f"{found}, expected {MOST_LEAVES} at most")
        require_at_least(self, penalty=0)
        require_above_zero(self, "learning_rate", "feature_fraction", "bagging")
        for name in ("feature_fraction", "bagging"):
            if (share := getattr(self, name)) > 1:
                raise RerankerError(f"setting {name}: found {share}, expected 1 at most")


@dataclass(frozen=True)
class FusionConfig(BoostingConfig):
    """Hyperparameters of several lists of trees; for the reasons see ``models/fusion.py``."""

    objectives: str = "lambdarank,lambdarank_sum,binary"  # A list of trees for each
    trees: int = 200  # Of each list
    parts: int = 0  # Parts of the topics that choose the number of trees; 0 grows all trees
    leaves: int = 7  # Leaves of a tree
    penalty: float = 5.0  # L2 penalty of a leaf's value
    truncation: int = 100  # Ranks that count in the gradients' NDCG
    feature_fraction: float = 0.3  # Of the features, drawn anew for each tree
    bagging: float = 0.7  # Of the training pairs, drawn anew for each tree


class BoostedTrees(FeatureModel):
    """Lists of trees over a pair's features. An unfitted model raises RerankerError."""

    def __init__(self, config: BoostingConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self._lists: list[str] = []
        """In LightGBM's text format, which loses nothing."""
        self.start: list[Booster] = []
        """Lists that fitting extends by half as many trees as it grows otherwise."""

    @cached_property
    def boosters(self) -> list[Booster]:
        """A list of trees for each objective; LightGBM is imported for these alone.

        Raises:
            RerankerError: there are none before fitting.
        """
        return [_lightgbm().Booster(model_str=trees) for trees in self._fitted()]

    @cached_property
    def _trees(self) -> Trees:
        return Trees(self._fitted())

    def head(self, representations: Tensor) -> Tensor:
        """Sum of the trees' values, mean over the objectives: [P]."""
        return _mean(self._trees.sums(representations.cpu().numpy()), representations)

    def contributions(self, representations: Tensor) -> Tensor:
        """Shapley values of the trees (Lundberg et al. 2020): [P, K].

        Scott M. Lundberg et al.: *From Local Explanations to Global Understanding with Explainable
        AI for Trees*, Nature Machine Intelligence, 2020. The constant that their sum lacks is the
        mean over the training pairs.
        """
        values, threads = representations.cpu().numpy(), torch.get_num_threads()
        by_objective: list[Any] = [
            booster.predict(values, pred_contrib=True, num_threads=threads)
            for booster in self.boosters
        ]
        return _mean(by_objective, representations)[:, :-1]

    def importances(self) -> Mapping[str, float]:
        """Each feature's share of the gain of all splits, mean over the objectives."""
        # Shares, as each objective has its own unit of gain.
        gains = np.stack([booster.feature_importance("gain") for booster in self.boosters])
        shares = gains / gains.sum(axis=1, keepdims=True).clip(np.finfo(np.float64).tiny)
        return dict(zip(self.names, shares.mean(axis=0).tolist(), strict=True))

    def fit(
        self,
        representations: Tensor,
        relevant: Tensor,
        query_index: Tensor,
        progress: Report = lambda message: None,
    ) -> None:
        """Grow the trees.

        Raises:
            RerankerError: LightGBM cannot grow any.
        """
        lightgbm = _lightgbm()

        queries = query_index.numpy()
        order = np.argsort(queries, kind="stable")
        _, sizes = np.unique(queries, return_counts=True)
        values, labels = representations.numpy()[order], relevant.numpy()[order].astype(np.int32)

        def data(options: Mapping[str, Any]) -> Dataset:
            return lightgbm.Dataset(
                values,
                label=labels,
                group=sizes,
                feature_name=[name.replace(":", "/") for name in self.names],  # It refuses colons.
                params=dict(options),
                free_raw_data=False,
            )

        try:
            boosters = []
            for row, objective in enumerate(self._objectives()):
                options = self._options(objective, self.config.seed + row)
                report = _counting(progress, f"{objective}, its number of trees: ")
                trees, start = self._best_count(options, data(options), sizes, report), None
                if self.start:
                    trees, start = -(-self.config.trees // 2), self.start[row]
                report = _counting(progress, f"{objective}, trees: ")
                boosters.append(
                    lightgbm.train(
                        options, data(options), trees, init_model=start, callbacks=[report]
                    )
                )
        except lightgbm.basic.LightGBMError as error:
            raise RerankerError(
                f"LightGBM cannot grow trees over these pairs ({error}); "
                "train with a greater `minimum_leaf`"
            ) from None
        self._lists = [booster.model_to_string() for booster in boosters]
        for parsed in ("boosters", "_trees"):
            self.__dict__.pop(parsed, None)

    def _best_count(
        self,
        options: dict[str, Any],
        data: Dataset,
        sizes: npt.NDArray[np.int64],
        report: Callable[[CallbackEnv], None],
    ) -> int:
        """The number of trees with the best AP on held-out topics, mean over the parts."""
        lightgbm = _lightgbm()

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
            data,
            num_boost_round=config.trees,
            folds=folds,
            callbacks=[report, lightgbm.early_stopping(PATIENCE, verbose=False)],
        )
        means = next(values for name, values in figures.items() if name.endswith("-mean"))
        return int(np.argmax(np.asarray(means))) + 1

    def _options(self, objective: str, seed: int) -> dict[str, Any]:
        config = self.config
        return {
            **OBJECTIVES[objective],
            "lambdarank_truncation_level": config.truncation,
            "learning_rate": config.learning_rate,
            "num_leaves": config.leaves,
            "min_data_in_leaf": config.minimum_leaf,
            "lambda_l2": config.penalty,
            "feature_fraction": config.feature_fraction,
            "bagging_fraction": config.bagging,
            "bagging_freq": int(config.bagging < 1),
            "seed": seed,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": torch.get_num_threads(),
            "verbosity": -1,
            # Trees that are extended may have been grown without the last features.
            "predict_disable_shape_check": bool(self.start),
        }

    def start_from(self, trained: BoostedTrees) -> None:
        """Let :meth:`fit` extend the trees of a trained model.

        What many collections taught it is kept where a few topics of one's own say nothing.

        Raises:
            RerankerError: it has other objectives, or features that are not the first ones here.
        """
        starts_alike = self.names[: len(trained.names)] == trained.names
        if not starts_alike or trained.config.objectives != self.config.objectives:
            raise RerankerError("found a model of other features or objectives to start from")
        self.start = trained.boosters

    def files(self) -> Mapping[str, bytes]:
        """The trees, a file for each objective."""
        return {
            file_of(number): trees.encode() for number, trees in enumerate(self._fitted(), start=1)
        }

    def read_files(self, directory: Path) -> None:
        """Read the trees."""
        numbers = range(1, len(self._objectives()) + 1)
        self._lists = [(directory / file_of(n)).read_text(encoding="utf-8") for n in numbers]

    def _objectives(self) -> list[str]:
        return self.config.objectives.split(",")

    def _fitted(self) -> list[str]:
        if not self._lists:
            raise RerankerError("found a model without trees; train it before it is used")
        return self._lists


def _mean(by_objective: npt.ArrayLike, alike: Tensor) -> Tensor:
    mean = np.mean(np.asarray(by_objective, dtype=np.float64), axis=0)
    return torch.from_numpy(mean.astype(np.float32)).to(alike.device)


def _lightgbm() -> Any:
    """LightGBM without pandas and scikit-learn, for whose objects alone it imports them.

    Two seconds and 140 MiB less; a later import of these packages is not affected.
    """
    hidden = [name for name in ("pandas", "sklearn") if name not in sys.modules]
    # To an import statement a module that is None is one that cannot be found.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        return importlib.import_module("lightgbm")
    finally:
        for name in hidden:
            del sys.modules[name]


def _counting(progress: Report, label: str) -> Callable[[CallbackEnv], None]:
    """A callback of LightGBM that reports each tree."""

    def report(state: CallbackEnv) -> None:
        grown = state.iteration + 1 - state.begin_iteration
        progress(f"{label}{grown} of {state.end_iteration - state.begin_iteration}")

    return report


def file_of(number: int) -> str:
    """Name of the file with the trees of an objective from 1 on, in LightGBM's text format."""
    return "model.txt" if number == 1 else f"model_{number}.txt"
