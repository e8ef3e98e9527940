"""Boosted regression trees over the features of pairs.

One list of trees, as in LambdaMART (Burges 2010), or the mean of several lists with an objective
each. The number of trees is fixed, or the one with the best AP on held-out training topics; the
final trees are grown on all training topics (:mod:`tweetrerank.rerankers.trees.growth`).
"""

import dataclasses
import importlib
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Literal, Self

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
"""Objectives of the trees, as LightGBM's parameters. ``lambdarank``: NDCG with about equal weights
of all topics. ``lambdarank_sum``: NDCG with weights that grow with a topic's relevant posts.
``binary``: the log-loss of single pairs, as in logistic regression. An objective that is named
twice has two lists of trees with two seeds."""

LOG_RANK, RECIPROCAL_RANK = "given.log_rank", "first_stage.reciprocal_rank"
"""Features of a first stage's rank, of which a model reads one."""

STAND_IN = {
    "content.log_rank": (1, 0),
    "content.bm25": (-25, 0.2),
    "lexical.ql": (-1, 0),
}
"""In place of an unknown log rank: feature -> weight, and the value from which it counts, so that
probabilities compare to those with a first stage. Chosen by leaving collections out."""

SHOWN = 5  # Features shown of the largest positive contributions, and of the largest negative ones

MEASURE = (
    "the Shapley values of its features in the model's trees, less the topic's mean"
)

COMMON = (
    20_000  # Words that trees with a memory of posts know from the start: half a second
)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class BoostingConfig(Checked):
    """Hyperparameters; for the reasons of the defaults see ``trees/fusion.py``."""

    families: str  # Names of files in rerankers/features
    trees: int = at_least(1, 200)  # Of each list, at most
    parts: int = at_least(
        0, 0
    )  # Parts of the topics that choose the number of trees; 0: all trees
    learning_rate: float = above_zero(0.1)  # Weight of each tree
    leaves: int = at_least(2, 7, MOST_LEAVES)  # Leaves of a tree
    minimum_leaf: int = at_least(1, 100)  # Smallest number of pairs in a leaf
    penalty: float = at_least(0, 5.0)  # L2 penalty of a leaf's value
    truncation: int = at_least(1, 100)  # Ranks that count in the gradients' NDCG
    objectives: str = ",".join(OBJECTIVES)  # A list of trees for each
    seed: int = (
        1  # Of the parts and of the first list's draws; the next list has the next seed
    )
    feature_fraction: float = above_zero(
        0.3, 1
    )  # Share of the features, drawn anew for each tree
    bagging: float = above_zero(
        0.7, 1
    )  # Share of the training pairs, drawn anew for each tree
    trust: float = at_least(
        0, 0.0
    )  # What the logarithm of a first stage's rank takes from a score

    def problems(self) -> Iterator[str]:
        """A message for each impossible value."""
        yield from super().problems()
        features.names_of(self.families.split(","))
        for name in self.objectives.split(","):
            if name not in OBJECTIVES:
                yield f"setting objectives: found {name!r}, expected one of {', '.join(OBJECTIVES)}"
        if self.parts == 1:
            yield "setting parts: found 1, expected 0 (all trees), or 2 or more"


@dataclass(frozen=True, kw_only=True, repr=False)
class Trees(Model):
    """Lists of trees over a pair's features."""

    configurations: ClassVar[
        Mapping[str, Any]
    ]  # Named configurations; the first is the default

    config: BoostingConfig
    lists: Sequence[
        str
    ]  # Trees of each objective in LightGBM's text format, which loses nothing
    recent: RecentPosts | None = None  # Tables of the last posts, if they are kept

    @cached_property
    def families(self) -> Sequence[str]:
        """Families of ``rerankers/features``, in the order of the columns."""
        return tuple(self.config.families.split(","))

    @cached_property
    def names(self) -> Sequence[str]:
        """Names of the K features."""
        return features.names_of(self.families)

    explains: ClassVar[Literal["contributions", ""]] = "contributions"

    def explain(self, pairs: Pairs, rows: Sequence[int]) -> Explanation | None:
        """Contributions of features and of their families, less their mean over the list. A post's
        contributions and the list's mean score add up to the post's score."""
        if not self.explains:
            return None
        values, added = self.contributions(pairs)
        scores, importances = self.evaluate(values), self.importances()
        added = added - added.mean(axis=0)
        by_meaning = any(family.startswith("meaning:") for family in importances)
        posts = [(pairs.texts[row], pairs.urls[row]) for row in pairs.post_index[rows]]
        shaded = explanation.shade_words(pairs.queries[0], posts, by_meaning)
        unknown = np.full(len(pairs), np.nan)
        known = {
            n: pairs.signals.get(NUMBER + n, unknown).tolist() for n in self.numbers
        }
        found = []
        for row, (text, url) in zip(rows, shaded, strict=True):
            parts = [
                *map(Feature, self.names, values[row].tolist(), added[row].tolist())
            ]
            sums = _by_family((part.feature, part.added) for part in parts)
            order = sorted(parts, key=lambda part: -part.added)
            most = [part for part in order[:SHOWN] if part.added > 0]
            least = [part for part in order[-SHOWN:] if part.added < 0]
            families = [Row(name, None, (Cell(sums[name]),)) for name in importances]
            numbers = "; ".join(
                explanation.placed(n, of[row], of) for n, of in known.items()
            )
            found.append(
                Reasons(text, url, families, features=most + least, numbers=numbers)
            )
        base = sum(float(scores[row]) - added[row].sum() for row in rows) / len(rows)
        kind, steps, columns = (
            "contributions",
            explanation.WORD_STEPS,
            [Column("contribution")],
        )
        return Explanation(
            kind, MEASURE, steps, columns, found, float(base), importances
        )

    @cached_property
    def _forest(self) -> Forest:
        return Forest(self.lists)

    @cached_property
    def boosters(self) -> Sequence[Any]:
        """The lists as LightGBM's ``Booster``, which is imported for these alone."""
        return [lightgbm().Booster(model_str=trees) for trees in self.lists]

    def score(self, pairs: Pairs, progress: Progress = silent) -> Floats:
        """Scores [P], query by query; see :class:`tweetrerank.rerankers.model.Model`."""
        scores, pairs = (
            np.zeros(len(pairs), np.float32),
            pairs.with_resources(self.resources),
        )
        known = self.families, self.idf, self.recent
        for rows, found in features.of_lists(pairs, *known, self.evaluate):
            scores[rows] = found
            progress(len(rows))
        check_finite(scores)
        return scores

    def evaluate(self, values: Floats) -> Floats:
        """Scores [P] of features [P, K]: sum of the trees' values, mean over the objectives, less
        what the configuration trusts in the first stage, or in the texts where it is unknown."""
        scores = _mean(self._forest.sums(values))
        for _, distrusted in self._distrusted(values):
            scores -= distrusted
        return scores

    def _distrusted(self, values: Floats) -> Iterator[tuple[int, Floats]]:
        """Numbers of features, of a rank or in place of it, and what each takes from scores [P]."""
        trust, column = self.config.trust, values.T
        of = {name: number for number, name in enumerate(self.names)} if trust else {}
        if (number := of.get(RECIPROCAL_RANK)) is not None:
            yield number, -trust * np.log(np.maximum(column[number], np.float32(1e-4)))
        if (number := of.get(LOG_RANK)) is not None:
            yield number, trust * np.nan_to_num(column[number])
            unknown = np.isnan(column[number]).astype(np.float32)
            for name, (weight, usual) in (
                STAND_IN.items() if STAND_IN.keys() <= of.keys() else ()
            ):
                yield (
                    of[name],
                    trust
                    * weight
                    * unknown
                    * (np.nan_to_num(column[of[name]]) - usual),
                )

    def contributions(self, pairs: Pairs) -> tuple[Floats, Floats]:
        """Features of pairs [P, K], and the contribution of each to the scores [P, K]. Shapley
        values of the trees: Scott M. Lundberg et al.: *From Local Explanations to Global
        Understanding with Explainable AI for Trees*, Nature Machine Intelligence, 2020. A score is
        the sum of the pair's contributions and a constant, the mean over the training pairs."""
        pairs = pairs.with_resources(self.resources)
        values = features.table(pairs, self.families, self.idf).values
        how = {"pred_contrib": True, "num_threads": threads()}
        added = _mean([each.predict(values, **how) for each in self.boosters])[
            :, :-1
        ].copy()
        for column, distrusted in self._distrusted(values):
            added[:, column] -= distrusted
        return values, added

    def importances(self) -> Mapping[str, float]:
        """Family -> share of the gain of all splits, mean over the objectives, the largest first;
        0 if all are 0."""
        # Shares, as each objective has its own unit of gain.
        gains = np.stack(
            [booster.feature_importance("gain") for booster in self.boosters]
        )
        shares = gains / gains.sum(axis=1, keepdims=True).clip(
            np.finfo(np.float64).tiny
        )
        sums = _by_family(zip(self.names, shares.mean(axis=0).tolist(), strict=True))
        total = sum(sums.values()) or 1.0
        return {
            family: sums[family] / total
            for family in sorted(sums, key=lambda f: -sums[f])
        }

    def remembering(self, max_bytes: int) -> Self:
        """A copy that keeps what it reads of the last posts, besides their words."""
        return dataclasses.replace(self, recent=RecentPosts(max_bytes))

    @property
    def counts(self) -> Counter[str]:
        """``hits``, ``misses`` and ``bytes`` of the kept posts."""
        names = ("hits", "misses", "bytes") if self.recent else ()
        return Counter({name: getattr(self.recent, name) for name in names})

    def warm_up(self) -> None:
        """Score posts of common words: first uses would make the first requests slow."""
        super().warm_up()
        common, size = [*islice(self.idf.known(), COMMON if self.recent else 0)], 100
        texts = [" ".join(common[at : at + size]) for at in range(0, len(common), size)]
        rows = np.arange(len(texts))
        self.score(Pairs(["cuts"], texts, [""] * len(texts), rows * 0, rows))
        if self.recent:
            self.recent.hits = self.recent.misses = 0

    def files(self) -> Mapping[str, bytes]:
        """The trees, a file for each objective."""
        lists = (trees.encode() for trees in self.lists)
        return dict(zip(files_of(self.config), lists, strict=True))


def _by_family(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sums of features' values by family, from (``family.feature``, value)."""
    sums: dict[str, float] = defaultdict(float)
    for feature, value in values:
        sums[feature.rpartition(".")[0]] += value
    return sums


def _mean(by_objective: npt.ArrayLike) -> Floats:
    return np.mean(np.asarray(by_objective, dtype=np.float64), axis=0).astype(
        np.float32
    )


def files_of(config: BoostingConfig) -> list[str]:
    """Files of a checkpoint with the trees of each objective, in LightGBM's text format."""
    others = range(2, len(config.objectives.split(",")) + 1)
    return ["model.txt", *(f"model_{number}.txt" for number in others)]


def lightgbm() -> Any:
    """LightGBM without pandas and scikit-learn, for whose objects alone it imports them. Two
    seconds and 140 MiB less; a later import of these packages is not affected."""
    hidden = [name for name in ("pandas", "sklearn") if name not in sys.modules]
    # To an import statement a module that is None is one that cannot be found.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        return importlib.import_module("lightgbm")
    finally:
        for name in hidden:
            del sys.modules[name]
