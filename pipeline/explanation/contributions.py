"""Contributions of feature families to the scores of a fusion.

Contributions are those of :meth:`rerankers.trees.boosting.Trees.contributions` less
their mean over the topic's candidates. A post's contributions and the topic's mean score add up to
the post's score.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

from pipeline.explanation.matches import WordShades, shade_words

if TYPE_CHECKING:
    from pipeline.explanation.rank_changes import RerankedTopic
    from pipeline.ranking.retrievers import Candidates
    from rerankers.reranker import Model
    from rerankers.trees.boosting import Trees

FEATURES = 5
"""Features shown with the largest positive contributions, and with the largest negative ones."""

TREES = "the Shapley values of its features in the model's trees, less the topic's mean"


class Contribution(NamedTuple):
    """A post's value of a feature, NaN if unknown, and the feature's contribution to the score."""

    feature: str
    value: float
    added: float


@dataclass(frozen=True)
class PostContributions:
    """Contributions to one post's score, by family, in the order of the model's importances.

    ``most`` and ``least`` are the features with the largest positive and negative ones, ``shades``
    the words of text and URL that match the query's.
    """

    families: Mapping[str, float]
    most: Sequence[Contribution]
    least: Sequence[Contribution]
    shades: WordShades


@dataclass(frozen=True)
class FusionExplanation:
    """Contributions to the scores of a topic's chosen posts."""

    ranking: RerankedTopic
    facts: Mapping[str, str]  # About the ranking as a whole
    meaning: str  # Summands of a family's contribution
    base: float  # Mean score of the topic's candidates
    importances: Mapping[str, float]
    """Family -> share of the model's importances, the largest first."""
    posts: Mapping[str, PostContributions]

    @property
    def extent(self) -> tuple[float, float]:
        """The least and the greatest contribution of a family to any post; 0 is in between."""
        added = [value for post in self.posts.values() for value in post.families.values()]
        return min(0.0, *added), max(0.0, *added)


def explain(ranking: RerankedTopic, checkpoint: Model) -> FusionExplanation:
    """Contributions to the scores of the chosen posts, by the fusion that gave the scores."""
    model = cast("Trees", checkpoint)
    contributions = _contributions(ranking, model)
    importances = shares(model.importances())
    weights = "/".join(checkpoint.directory.resolve().parts[-2:])
    rest = [
        ranking.changes[doc_id].last.score - sum(part.added for part in parts)
        for doc_id, parts in contributions.items()
    ]
    posts = ranking.posts
    by_meaning = any(family.startswith("meaning:") for family in model.families)
    shaded = shade_words(ranking.topic.text, posts, by_meaning)
    facts = {"Candidates": f"{len(ranking.changes)}, as given"}
    if model.reads == "searches":
        rankers = _rankers(model.families, ranking.candidates, ranking.topic.query_id)
        facts = {
            "Candidates": f"{len(ranking.changes)}, the best of each ranker",
            "Rankers": rankers,
        }
    return FusionExplanation(
        ranking,
        {**facts, "Model": f"{checkpoint.name}, weights {weights}"},
        TREES,
        sum(rest) / len(rest),
        importances,
        {
            post.doc_id: _explain_post(contributions[post.doc_id], importances, shades)
            for post, shades in zip(posts, shaded, strict=True)
        },
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


def _contributions(ranking: RerankedTopic, model: Trees) -> dict[str, list[Contribution]]:
    """doc_id -> contribution of each feature, for the chosen posts."""
    features, added = model.contributions(ranking.candidates.pairs())
    added = added - added.mean(axis=0)
    doc_ids = ranking.candidates.run[ranking.topic.query_id]
    chosen = {post.doc_id for post in ranking.posts}
    rows = zip(doc_ids, features.tolist(), added.tolist(), strict=True)
    return {
        doc_id: [*map(Contribution, model.names, values, parts)]
        for doc_id, values, parts in rows
        if doc_id in chosen
    }


def _explain_post(
    parts: Sequence[Contribution], families: Iterable[str], shades: WordShades
) -> PostContributions:
    sums = by_family((part.feature, part.added) for part in parts)
    order = sorted(parts, key=lambda part: -part.added)
    return PostContributions(
        {family: sums[family] for family in families},
        [part for part in order[:FEATURES] if part.added > 0],
        [part for part in order[: -FEATURES - 1 : -1] if part.added < 0],
        shades,
    )


def _rankers(families: Sequence[str], candidates: Candidates, query_id: str) -> str:
    names = [name.partition(":")[2] for name in families if name.startswith("signal:")]
    known = [name for name in names if candidates.signals.get(name, {}).get(query_id)]
    unknown = [name for name in names if name not in known]
    return ", ".join(known) + (f"; not known here: {', '.join(unknown)}" if unknown else "")
