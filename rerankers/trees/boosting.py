"""Score pairs by boosted regression trees over their features.

A model has one list of trees, as in LambdaMART (Burges 2010), or several lists that
were grown for different objectives. Then its score is the mean over the lists. The
number of trees in a list is fixed, or it is the number with the best AP on held-out
training topics. The final trees are always grown on all training topics
(:mod:`tweetrerank.rerankers.trees.growth`).
"""

import dataclasses
import importlib
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers import explanation, features
from tweetrerank.rerankers.devices import threads
from tweetrerank.rerankers.explanation import (
    Cell,
    Column,
    Explanation,
    Feature,
    Reasons,
    Row,
)
from tweetrerank.rerankers.features.recent import RecentPosts
from tweetrerank.rerankers.model import Model, Progress, check_finite, silent
from tweetrerank.rerankers.pairs import NUMBER, Pairs
from tweetrerank.rerankers.settings import Checked, above_zero, at_least
from tweetrerank.rerankers.trees.forest import MOST_LEAVES, Forest

_LAMBDARANK = {"objective": "lambdarank", "label_gain": [0, 1]}
OBJECTIVES: Mapping[str, Mapping[str, Any]] = {
    "lambdarank": _LAMBDARANK | {"lambdarank_norm": True},
    "lambdarank_sum": _LAMBDARANK | {"lambdarank_norm": False},
    "binary": {"objective": "binary"},
}
"""Objectives of the trees, as LightGBM's parameters.

``lambdarank``: NDCG, with about equal weights for all topics. ``lambdarank_sum``: NDCG,
with a weight for each topic that grows with the number of its relevant posts.
``binary``: the log-loss of single pairs, as in logistic regression. If a configuration
names an objective twice, it has two lists of trees with different seeds.
"""

# Features that contain the first stage's rank. A model reads one of them.
LOG_RANK = "given.log_rank"
RECIPROCAL_RANK = "first_stage.reciprocal_rank"


class StandIn(NamedTuple):
    """How a feature is used in place of an unknown log rank."""

    weight: float  # Factor of the feature
    usual: float  # Subtracted from the feature before it is weighted


STAND_IN = {
    "content.log_rank": StandIn(1, 0),
    "content.bm25": StandIn(-25, 0.2),
    "lexical.ql": StandIn(-1, 0),
}
"""Features that take the place of the log rank if it is unknown.

The usual values keep probabilities comparable to those with a first stage. Weights and
usual values were chosen by leaving out one collection at a time.
"""

# An explanation shows this many positive contributions, and as many negative ones
SHOWN = 5

MEASURE = (
    "the Shapley values of its features in the model's trees, less the topic's mean"
)

COMMON = 20_000
"""Number of common words that trees with a cache read at their start, so that the cache
knows them. This takes half a second."""

_LEAST_RECIPROCAL_RANK = np.float32(1e-4)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class BoostingConfig(Checked):
    """Hyperparameters. ``trees/fusion.py`` gives the reasons for the defaults."""

    families: str  # Names of feature families, separated by commas
    trees: int = at_least(1, 200)  # Largest number of trees in a list
    parts: int = at_least(0, 0)
    """Number of parts into which the topics are split to choose the number of trees by
    cross-validation. 0 makes no choice and grows all trees."""
    learning_rate: float = above_zero(0.1)  # Weight of each tree
    leaves: int = at_least(2, 7, MOST_LEAVES)  # Largest number of leaves of a tree
    minimum_leaf: int = at_least(1, 100)  # Smallest number of pairs in a leaf
    penalty: float = at_least(0, 5.0)  # L2 penalty on the values of leaves
    truncation: int = at_least(1, 100)  # Ranks that count in the gradients' NDCG
    # Names of objectives, separated by commas. Each has a list of trees.
    objectives: str = ",".join(OBJECTIVES)
    seed: int = 1
    """Seed of the parts and of the first list of trees. Each further list adds 1."""
    feature_fraction: float = above_zero(0.3, 1)
    """Share of the features that is drawn for each tree."""
    bagging: float = above_zero(0.7, 1)
    """Share of the training pairs that is drawn for each tree."""
    trust: float = at_least(0, 0.0)
    """The logarithm of the first stage's rank, multiplied by this, reduces the score.
    """

    def problems(self) -> Iterator[str]:
        """Yield a message for each impossible value."""
        yield from super().problems()
        features.names_of(self.families.split(","))
        for name in self.objectives.split(","):
            if name not in OBJECTIVES:
                choices = ", ".join(OBJECTIVES)
                yield f"setting objectives: found {name!r}, expected one of {choices}"
        if self.parts == 1:
            yield "setting parts: found 1, expected 0 (all trees), or 2 or more"


@dataclass(frozen=True, kw_only=True, repr=False)
class Trees(Model):
    """A model of lists of trees over a pair's features."""

    configurations: ClassVar[Mapping[str, Any]]
    """Configurations by name. The first is the default."""

    config: BoostingConfig
    lists: Sequence[str]
    """The list of trees of each objective in LightGBM's text format, which is lossless.
    """
    recent: RecentPosts | None = None  # Cache of posts and words; None for no cache

    @cached_property
    def families(self) -> Sequence[str]:
        """Feature families, in the order of the columns."""
        return tuple(self.config.families.split(","))

    @cached_property
    def names(self) -> Sequence[str]:
        """Names of the K features."""
        return features.names_of(self.families)

    @cached_property
    def _columns(self) -> Mapping[str, int]:
        """Name of a feature -> its column."""
        return {name: column for column, name in enumerate(self.names)}

    explains: ClassVar[Literal["contributions", ""]] = "contributions"

    def explain(self, pairs: Pairs, rows: Sequence[int]) -> Explanation | None:
        """Explain scores by the contributions of features and of their families.

        From each contribution its mean over the list is subtracted. So a post's
        contributions and the mean score of the list add up to the post's score. Returns
        None if the model does not explain.
        """
        if not self.explains:
            return None
        values, added = self.contributions(pairs)
        scores = self.evaluate(values)
        importances = self.importances()
        added = added - added.mean(axis=0)
        by_meaning = any(family.startswith("meaning:") for family in importances)
        posts = [(pairs.texts[row], pairs.urls[row]) for row in pairs.post_index[rows]]
        shaded = explanation.shade_words(pairs.queries[0], posts, by_meaning)
        numbers = self._numbers_by_name(pairs)
        reasons = []
        for row, (text, url) in zip(rows, shaded, strict=True):
            contributions = self._contributions_of(values[row], added[row])
            reasons.append(
                Reasons(
                    text,
                    url,
                    _family_rows(contributions, importances),
                    features=_largest(contributions),
                    numbers=_described_numbers(numbers, row),
                )
            )
        base = sum(float(scores[row]) - added[row].sum() for row in rows) / len(rows)
        return Explanation(
            kind="contributions",
            measure=MEASURE,
            steps=explanation.WORD_STEPS,
            columns=[Column("contribution")],
            posts=reasons,
            base=float(base),
            importances=importances,
        )

    def _contributions_of(self, values: Floats, added: Floats) -> list[Feature]:
        """Return one post's features from their values [K] and contributions [K]."""
        columns = zip(self.names, values.tolist(), added.tolist(), strict=True)
        return [Feature(name, value, share) for name, value, share in columns]

    def _numbers_by_name(self, pairs: Pairs) -> dict[str, list[float]]:
        """Return each numeric field's values, one for each pair; NaN if unknown."""
        unknown = np.full(len(pairs), np.nan)
        return {
            name: pairs.signals.get(NUMBER + name, unknown).tolist()
            for name in self.numbers
        }

    @cached_property
    def _forest(self) -> Forest:
        return Forest(self.lists)

    @cached_property
    def boosters(self) -> Sequence[Any]:
        """The lists of trees as LightGBM's ``Booster`` objects.

        Explaining and training need these; scoring works without LightGBM.
        """
        return [lightgbm().Booster(model_str=trees) for trees in self.lists]

    def score(self, pairs: Pairs, progress: Progress = silent) -> Floats:
        """Return the scores [P] of the pairs; see :class:`Model`.

        ``progress`` is called after each query.
        """
        pairs = pairs.with_resources(self.resources)
        scores = np.zeros(len(pairs), np.float32)
        lists = features.of_lists(
            pairs, self.families, self.idf, self.recent, self.evaluate
        )
        for rows, list_scores in lists:
            scores[rows] = list_scores
            progress(len(rows))
        check_finite(scores)
        return scores

    def evaluate(self, values: Floats) -> Floats:
        """Return the scores [P] of pairs with the features ``values`` [P, K].

        A score is the sum of the trees' values in a list, averaged over the lists. It
        is reduced according to the first stage's rank, as far as the configuration's
        ``trust`` says. If this rank is unknown, the features ``STAND_IN`` replace it.
        """
        scores = _mean(self._forest.sums(values))
        for _, reduction in self._reductions(values):
            scores -= reduction
        return scores

    def _reductions(self, values: Floats) -> Iterator[tuple[int, Floats]]:
        """Yield (column of a feature, what it subtracts from the scores [P]).

        The features are the first stage's rank and those that stand in for it.
        """
        trust = self.config.trust
        if not trust:
            return
        column = values.T  # [K, P]
        if RECIPROCAL_RANK in self._columns:
            number = self._columns[RECIPROCAL_RANK]
            reciprocal = np.maximum(column[number], _LEAST_RECIPROCAL_RANK)
            yield number, -trust * np.log(reciprocal)
        if LOG_RANK not in self._columns:
            return
        number = self._columns[LOG_RANK]
        yield number, trust * np.nan_to_num(column[number])
        if not STAND_IN.keys() <= self._columns.keys():
            return
        unknown = np.isnan(column[number]).astype(np.float32)
        for name, stand_in in STAND_IN.items():
            number = self._columns[name]
            excess = np.nan_to_num(column[number]) - stand_in.usual
            yield number, trust * stand_in.weight * unknown * excess

    def contributions(self, pairs: Pairs) -> tuple[Floats, Floats]:
        """Return (features [P, K], their contributions to the scores [P, K]) of pairs.

        Contributions are the Shapley values of the trees: Scott M. Lundberg et al.:
        *From Local Explanations to Global Understanding with Explainable AI for Trees*,
        Nature Machine Intelligence, 2020. The contributions of a pair and a constant,
        the mean over the training pairs, add up to the pair's score.
        """
        pairs = pairs.with_resources(self.resources)
        values = features.table(pairs, self.families, self.idf).values
        shapley = [
            booster.predict(values, pred_contrib=True, num_threads=threads())
            for booster in self.boosters
        ]
        added = _mean(shapley)[:, :-1].copy()  # The last column is the constant.
        for column, reduction in self._reductions(values):
            added[:, column] -= reduction
        return values, added

    def importances(self) -> Mapping[str, float]:
        """Return each family's share of the gain of all splits, the largest first.

        A share is the mean over the objectives. All shares are 0 if all gains are 0.
        """
        # Shares are averaged rather than gains, because each objective measures gain in
        # a unit of its own.
        gains = np.stack(
            [booster.feature_importance("gain") for booster in self.boosters]
        )
        least = np.finfo(np.float64).tiny
        shares = gains / gains.sum(axis=1, keepdims=True).clip(least)
        sums = _by_family(zip(self.names, shares.mean(axis=0).tolist(), strict=True))
        total = sum(sums.values()) or 1.0
        families = sorted(sums, key=lambda family: -sums[family])
        return {family: sums[family] / total for family in families}

    def remembering(self, max_bytes: int) -> Self:
        """Return a copy of the model with a cache of words, and of posts.

        The posts take up to ``max_bytes``. With 0 only words are cached.
        """
        return dataclasses.replace(self, recent=RecentPosts(max_bytes))

    @property
    def counts(self) -> Counter[str]:
        """``hits``, ``misses`` and ``bytes`` of the cache; empty without a cache."""
        if self.recent is None:
            return Counter()
        return Counter(
            hits=self.recent.hits,
            misses=self.recent.misses,
            bytes=self.recent.bytes,
        )

    def warm_up(self) -> None:
        """Score posts made of common words, so that the first requests are not slower.

        The counts of hits and misses start again from 0.
        """
        super().warm_up()
        count = COMMON if self.recent else 0
        common = list(islice(self.idf.known(), count))
        length = 100  # Words of a text
        starts = range(0, len(common), length)
        texts = [" ".join(common[start : start + length]) for start in starts]
        rows = np.arange(len(texts))
        self.score(Pairs(["cuts"], texts, [""] * len(texts), rows * 0, rows))
        if self.recent:
            self.recent.hits = 0
            self.recent.misses = 0

    def files(self) -> Mapping[str, bytes]:
        """Return the content of each objective's file of trees, by file name."""
        contents = (trees.encode() for trees in self.lists)
        return dict(zip(files_of(self.config), contents, strict=True))


def _family_rows(
    contributions: Sequence[Feature], importances: Mapping[str, float]
) -> list[Row]:
    """Return a row for each family, with the sum of its features' contributions."""
    sums = _by_family((item.feature, item.added) for item in contributions)
    return [Row(family, None, (Cell(sums[family]),)) for family in importances]


def _largest(contributions: Sequence[Feature]) -> list[Feature]:
    """Return the largest positive contributions, then the largest negative ones."""
    ordered = sorted(contributions, key=lambda item: -item.added)
    positive = [item for item in ordered[:SHOWN] if item.added > 0]
    negative = [item for item in ordered[-SHOWN:] if item.added < 0]
    return positive + negative


def _described_numbers(numbers: Mapping[str, Sequence[float]], row: int) -> str:
    """Describe the numeric fields of a post and their places in the list in words."""
    described = [
        explanation.placed(name, values[row], values)
        for name, values in numbers.items()
    ]
    return "; ".join(described)


def _by_family(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the sum of values of each family, given (``family.feature``, value)."""
    sums: dict[str, float] = defaultdict(float)
    for feature, value in values:
        family = feature.rpartition(".")[0]
        sums[family] += value
    return sums


def _mean(by_objective: npt.ArrayLike) -> Floats:
    """Return the mean over the first axis, in single precision."""
    values = np.asarray(by_objective, dtype=np.float64)
    return np.mean(values, axis=0).astype(np.float32)


def files_of(config: BoostingConfig) -> list[str]:
    """Return the name of each objective's file of trees in a checkpoint."""
    count = len(config.objectives.split(","))
    further = [f"model_{number}.txt" for number in range(2, count + 1)]
    return ["model.txt", *further]


def lightgbm() -> Any:
    """Import LightGBM without loading pandas and scikit-learn.

    LightGBM needs these packages only to accept their objects. Leaving them out saves
    two seconds and 140 MiB. They can still be imported later.
    """
    hidden = [name for name in ("pandas", "sklearn") if name not in sys.modules]
    # An import statement does not find a module that is None in sys.modules.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        return importlib.import_module("lightgbm")
    finally:
        for name in hidden:
            del sys.modules[name]
