"""Boosted regression trees over the features of pairs.

One list of trees, as in LambdaMART (Burges 2010), or the mean of several lists, each
with an objective. The number of trees is fixed, or the one with the best AP on held-out
training topics. The final trees are grown on all training topics
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

``lambdarank``: NDCG with about equal weights of all topics. ``lambdarank_sum``: NDCG
with weights that grow with a topic's relevant posts. ``binary``: the log-loss of single
pairs, as in logistic regression. An objective that is named twice has two lists of
trees, with two seeds.
"""

# Features of a first stage's rank; a model reads one of them
LOG_RANK = "given.log_rank"
RECIPROCAL_RANK = "first_stage.reciprocal_rank"


class StandIn(NamedTuple):
    """Use of a feature in place of an unknown rank."""

    weight: float
    usual: float  # Value of the feature that counts as 0


STAND_IN = {
    "content.log_rank": StandIn(1, 0),
    "content.bm25": StandIn(-25, 0.2),
    "lexical.ql": StandIn(-1, 0),
}
"""Features in place of an unknown log rank.

The usual values make probabilities comparable to those with a first stage. Weights and
values were chosen by leaving collections out.
"""

SHOWN = 5  # Largest positive contributions in an explanation, and negative ones

MEASURE = (
    "the Shapley values of its features in the model's trees, less the topic's mean"
)

COMMON = 20_000
"""Common words that trees with a cache of posts read when they start. It takes half a
second."""

_LEAST_RECIPROCAL_RANK = np.float32(1e-4)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class BoostingConfig(Checked):
    """Hyperparameters; for the reasons of the defaults see ``trees/fusion.py``."""

    families: str  # Names of feature families, separated by commas
    trees: int = at_least(1, 200)  # Trees of a list, at most
    parts: int = at_least(0, 0)
    """Parts of the topics that choose the number of trees; 0 grows all trees."""
    learning_rate: float = above_zero(0.1)  # Weight of each tree
    leaves: int = at_least(2, 7, MOST_LEAVES)  # Leaves of a tree
    minimum_leaf: int = at_least(1, 100)  # Smallest number of pairs in a leaf
    penalty: float = at_least(0, 5.0)  # L2 penalty of a leaf's value
    truncation: int = at_least(1, 100)  # Ranks that count in the gradients' NDCG
    objectives: str = ",".join(OBJECTIVES)  # Each has a list of trees
    seed: int = 1
    """Seed of the parts and of the first list's draws. The next list has the next."""
    feature_fraction: float = above_zero(0.3, 1)
    """Share of the features, drawn for each tree."""
    bagging: float = above_zero(0.7, 1)
    """Share of the training pairs, drawn for each tree."""
    trust: float = at_least(0, 0.0)
    """Factor of the logarithm of the first stage's rank, which scores are reduced by.
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
    """Lists of trees over a pair's features."""

    configurations: ClassVar[Mapping[str, Any]]
    """Configurations by name; the first is the default."""

    config: BoostingConfig
    lists: Sequence[str]
    """Trees of each objective in LightGBM's text format, which is lossless."""
    recent: RecentPosts | None = None  # Cache of the posts read last

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
        """Contributions of features and of their families, less their mean over the
        list.

        A post's contributions and the mean score of the list add up to its score.
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
        """The features of one post, from its values [K] and contributions [K]."""
        columns = zip(self.names, values.tolist(), added.tolist(), strict=True)
        return [Feature(name, value, share) for name, value, share in columns]

    def _numbers_by_name(self, pairs: Pairs) -> dict[str, list[float]]:
        """Numeric fields: name -> value of each pair, NaN if unknown."""
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
        """The lists as LightGBM's ``Booster``; LightGBM is imported for them alone."""
        return [lightgbm().Booster(model_str=trees) for trees in self.lists]

    def score(self, pairs: Pairs, progress: Progress = silent) -> Floats:
        """Return scores [P], query by query; see :class:`Model`."""
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
        """Return the scores [P] of features [P, K].

        A score is the sum of the trees' values, mean over the objectives, less the
        share that the configuration trusts to the first stage, or to the texts where
        the first stage is unknown.
        """
        scores = _mean(self._forest.sums(values))
        for _, reduction in self._reductions(values):
            scores -= reduction
        return scores

    def _reductions(self, values: Floats) -> Iterator[tuple[int, Floats]]:
        """Columns of a rank or its stand-ins, and the scores' reduction [P] by each."""
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
        """Features [P, K] of pairs, and their contributions [P, K] to the scores.

        Contributions are the Shapley values of the trees: Scott M. Lundberg et al.:
        *From Local Explanations to Global Understanding with Explainable AI for Trees*,
        Nature Machine Intelligence, 2020. A score is the sum of the pair's
        contributions and a constant, the mean over the training pairs.
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
        """Family -> share of the gain of all splits, the largest first.

        Shares are means over the objectives, and 0 if all gains are 0.
        """
        # Shares, as each objective has a unit of gain.
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
        """Return a copy with a cache of words, and of posts up to ``max_bytes``."""
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
        """Score posts of common words, so that the first requests are not slower."""
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
        """The trees, a file for each objective."""
        contents = (trees.encode() for trees in self.lists)
        return dict(zip(files_of(self.config), contents, strict=True))


def _family_rows(
    contributions: Sequence[Feature], importances: Mapping[str, float]
) -> list[Row]:
    """A row for each family with the sum of its features' contributions."""
    sums = _by_family((item.feature, item.added) for item in contributions)
    return [Row(family, None, (Cell(sums[family]),)) for family in importances]


def _largest(contributions: Sequence[Feature]) -> list[Feature]:
    """The largest positive contributions, then the largest negative ones."""
    ordered = sorted(contributions, key=lambda item: -item.added)
    positive = [item for item in ordered[:SHOWN] if item.added > 0]
    negative = [item for item in ordered[-SHOWN:] if item.added < 0]
    return positive + negative


def _described_numbers(numbers: Mapping[str, Sequence[float]], row: int) -> str:
    """Numeric fields of a post with their places in the list, for a person."""
    described = [
        explanation.placed(name, values[row], values)
        for name, values in numbers.items()
    ]
    return "; ".join(described)


def _by_family(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sums of features' values by family, from (``family.feature``, value)."""
    sums: dict[str, float] = defaultdict(float)
    for feature, value in values:
        family = feature.rpartition(".")[0]
        sums[family] += value
    return sums


def _mean(by_objective: npt.ArrayLike) -> Floats:
    """Mean over the first axis, in single precision."""
    values = np.asarray(by_objective, dtype=np.float64)
    return np.mean(values, axis=0).astype(np.float32)


def files_of(config: BoostingConfig) -> list[str]:
    """Files of a checkpoint with the trees of each objective."""
    count = len(config.objectives.split(","))
    further = [f"model_{number}.txt" for number in range(2, count + 1)]
    return ["model.txt", *further]


def lightgbm() -> Any:
    """LightGBM, imported without pandas and scikit-learn, whose objects it can read.

    That saves two seconds and 140 MiB. A later import of these packages is not
    affected.
    """
    hidden = [name for name in ("pandas", "sklearn") if name not in sys.modules]
    # For an import statement, a module that is None cannot be found.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        return importlib.import_module("lightgbm")
    finally:
        for name in hidden:
            del sys.modules[name]
