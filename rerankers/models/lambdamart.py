"""LambdaMART: boosted regression trees over hand-made features.

Christopher J. C. Burges: *From RankNet to LambdaRank to LambdaMART: An Overview*, 2010; the
features are those of the baseline of Rao et al. (2019), section 4.2: query likelihood and four
overlaps (``text``), the link (``text_url``), hashtags (``text_hashtag``), and all of them.

Where the paper is silent: LightGBM grows the trees; a post is relevant or not, both grades alike.
The number of trees is that with the best AP on held-out topics of the training topics (five
parts), and the kept model has so many trees on all of them. Four leaves did better on held-out
training topics than eight or sixteen; leaves of 400 pairs, or 100 ranks in the gradients' NDCG,
changed AP there by less than .007 either way. Query likelihood stands beside its
min-max and its reciprocal rank in the topic's list, since scores of two topics do not compare.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerankers import features
from rerankers.base import FEATURES, Interactions, Reranker, Views
from rerankers.errors import RerankerError
from rerankers.trees import read_trees
from rerankers.vocabulary import Vocabulary

if TYPE_CHECKING:
    from lightgbm import Booster, Dataset

FILE = "model.txt"
"""In a checkpoint's folder: the trees, in LightGBM's own text format."""

PATIENCE = 30
"""Trees without a better AP on held-out topics before the search for their number ends."""

TEXT = "first_stage,overlap"


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    families: str = f"{TEXT},links,hashtags"  # Of rerankers/features
    trees: int = 300  # At most
    parts: int = 5  # Of the training topics, to choose the number of trees by; 0 grows them all
    learning_rate: float = 0.1  # Weight of each tree
    leaves: int = 4  # Leaves of a tree
    minimum_leaf: int = 100  # Pairs in a leaf at least
    penalty: float = 1.0  # L2 penalty of a leaf's value
    truncation: int = 30  # Ranks that count in the gradients' NDCG
    seed: int = 1  # Of the parts; nothing else is drawn by chance

    def __post_init__(self) -> None:
        features.names_of(self.families.split(","))
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


class Model(Reranker):
    """A list of trees over a pair's features; see the module's docstring."""

    config_type = Config
    configurations: ClassVar[Mapping[str, Config]] = {
        "all": Config(),
        "text": Config(families=TEXT),
        "text_url": Config(families=f"{TEXT},links"),
        "text_hashtag": Config(families=f"{TEXT},hashtags"),
    }
    query_views = ()
    post_views = ()
    trained_by_gradients = False

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.config = config
        self.feature_families = tuple(config.families.split(","))
        self.names = features.names_of(self.feature_families)
        self.booster: Booster | None = None

    def encode_queries(self, views: Views) -> None:
        """Nothing: the features have read the queries."""

    def encode_posts(self, views: Views) -> None:
        """Nothing: the features have read the posts."""

    def interact(self, queries: None, posts: None, query_of_post: Tensor) -> Interactions:
        """Nothing besides the features."""
        return {}

    def interactions_are_fixed(self) -> bool:
        """They are: trees change no feature."""
        return True

    def represent(self, interactions: Interactions) -> Tensor:
        """The features: [P, K]."""
        return interactions[FEATURES].flatten(1)

    def judge(self, representations: Tensor) -> Tensor:
        """Sum of the trees' values: [P].

        Raises:
            RerankerError: the model has not been fitted.
        """
        scores = self._fitted().predict(
            representations.cpu().numpy(), num_threads=torch.get_num_threads()
        )
        found = torch.from_numpy(np.asarray(scores, dtype=np.float32))
        return found.to(representations.device)

    def is_calibrated(self) -> bool:
        """It is all that there is of training."""
        return True

    def calibrate(self, representations: Tensor, relevant: Tensor, query_index: Tensor) -> None:
        """Grow the trees.

        Raises:
            RerankerError: LightGBM cannot.
        """
        import lightgbm

        queries = query_index.numpy()
        order = np.argsort(queries, kind="stable")
        _, sizes = np.unique(queries, return_counts=True)
        data = lightgbm.Dataset(
            representations.numpy()[order], label=relevant.numpy()[order].astype(np.int32),
            group=sizes, feature_name=list(self.names), params=self._options(),
            free_raw_data=False,
        )  # fmt: skip
        parts = min(self.config.parts, len(sizes))
        try:
            trees = self._best_count(data, sizes, parts) if parts > 1 else self.config.trees
            self.booster = lightgbm.train(self._options(), data, num_boost_round=trees)
        except lightgbm.basic.LightGBMError as error:
            raise RerankerError(
                f"LightGBM cannot grow trees over these pairs ({error}); "
                "train with a greater --set minimum_leaf"
            ) from None

    def _best_count(self, data: "Dataset", sizes: npt.NDArray[np.int64], parts: int) -> int:
        """The number of trees that is best on held-out topics, by mean AP over the parts."""
        import lightgbm

        rows = np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
        topics = np.random.default_rng(self.config.seed).permutation(len(sizes))
        folds = [
            (
                np.concatenate([rows[topic] for topic in np.setdiff1d(topics, held_out)]),
                np.concatenate([rows[topic] for topic in np.sort(held_out)]),
            )
            for held_out in np.array_split(topics, parts)
        ]
        figures = lightgbm.cv(
            self._options() | {"metric": "map", "eval_at": [int(sizes.max())]},
            data, num_boost_round=self.config.trees, folds=folds,
            callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
        )  # fmt: skip
        means = next(values for name, values in figures.items() if name.endswith("-mean"))
        return int(np.argmax(np.asarray(means))) + 1

    def _options(self) -> dict[str, Any]:
        config = self.config
        return {
            "objective": "lambdarank", "label_gain": [0, 1],
            "lambdarank_truncation_level": config.truncation,
            "learning_rate": config.learning_rate, "num_leaves": config.leaves,
            "min_data_in_leaf": config.minimum_leaf,
            "lambda_l2": config.penalty, "seed": config.seed, "deterministic": True,
            "force_row_wise": True, "num_threads": torch.get_num_threads(), "verbosity": -1,
        }  # fmt: skip

    def files(self) -> Mapping[str, bytes]:
        """The trees.

        Raises:
            RerankerError: there are none yet.
        """
        return {FILE: self._fitted().model_to_string().encode()}

    def read_files(self, directory: Path) -> None:
        """Read the trees.

        Raises:
            RerankerError: there are none, they are cut short, or their features are others.
        """
        path = directory / FILE
        try:
            self.booster = read_trees(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RerankerError(
                f"{path}: found no whole LightGBM model ({error}), expected what training writes; "
                "restore it, or train again"
            ) from None
        if (found := tuple(self.booster.feature_name())) != self.names:
            raise RerankerError(
                f"{path}: found trees over the features {', '.join(found)}, but this version has "
                f"{', '.join(self.names)}; train again with this version"
            )

    def _fitted(self) -> "Booster":
        if self.booster is None:
            raise RerankerError("found a LambdaMART without trees; train it before it is used")
        return self.booster
