"""Contributions of families of features to the scores of trees.

Contributions are those of :meth:`rerankers.trees.boosting.Trees.contributions` less their mean over
the list. A post's contributions and the list's mean score add up to the post's score.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rerankers.explanation import (
    WORD_STEPS,
    Cell,
    Column,
    Explanation,
    Feature,
    Reasons,
    Row,
    shade_words,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from rerankers.pairs import Pairs

    Floats = npt.NDArray[np.float32]

FEATURES = 5
"""Features shown with the largest positive contributions, and with the largest negative ones."""

MEASURE = "the Shapley values of its features in the model's trees, less the topic's mean"


def explain(
    pairs: Pairs,
    rows: Sequence[int],
    names: Sequence[str],
    values: Floats,
    added: Floats,
    scores: Floats,
    importances: Mapping[str, float],
) -> Explanation:
    """Reasons for the scores of the pairs ``rows`` of one query's list.

    Args:
        names: of the K features.
        values: [P, K] features.
        added: [P, K] contributions, without their constant.
        scores: [P].
        importances: feature -> its importance for the model.
    """
    added = added - added.mean(axis=0)
    importances = shares(importances)
    by_meaning = any(family.startswith("meaning:") for family in importances)
    posts = [(pairs.texts[row], pairs.urls[row]) for row in pairs.post_index[rows]]
    shaded = shade_words(pairs.queries[0], posts, by_meaning)
    found = []
    for row, (text, url) in zip(rows, shaded, strict=True):
        parts = [*map(Feature, names, values[row].tolist(), added[row].tolist())]
        sums = by_family((part.feature, part.added) for part in parts)
        order = sorted(parts, key=lambda part: -part.added)
        most = [part for part in order[:FEATURES] if part.added > 0]
        least = [part for part in order[-FEATURES:] if part.added < 0]
        families = [Row(family, None, (Cell(sums[family]),)) for family in importances]
        found.append(Reasons(text, url, families, features=most + least))
    base = sum(float(scores[row]) - added[row].sum() for row in rows) / len(rows)
    column = [Column("contribution")]
    return Explanation(
        "contributions", MEASURE, WORD_STEPS, column, found, float(base), importances
    )


def by_family(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sums of features' values by family, from (``family.feature``, value)."""
    sums: dict[str, float] = defaultdict(float)
    for feature, value in values:
        sums[feature.rpartition(".")[0]] += value
    return sums


def shares(importances: Mapping[str, float]) -> dict[str, float]:
    """Family -> share of all features' importances, the largest first; 0 if all are 0."""
    sums = by_family(importances.items())
    total = sum(sums.values()) or 1.0
    return {family: sums[family] / total for family in sorted(sums, key=lambda f: -sums[f])}
