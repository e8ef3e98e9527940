"""What a learned fusion made of the posts of one topic, by what each family of features added.

A fusion says what every feature added to a score
(:meth:`rerankers.models._feature_model.FeatureModel.contributions`). Shown is by how much that is above
the mean of the topic's posts, so that with the mean score these make up a post's score. Nothing
here prints.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

from pipeline.explanation.rank_changes import RankChange

if TYPE_CHECKING:
    from torch import Tensor

    from indexes.posts import Post
    from pipeline.collections.trec import Topic
    from pipeline.reranking import Candidates, NeuralReranker
    from rerankers.models._feature_model import FeatureModel

FEATURES = 5
"""Features shown of those that added most to a post's score, and of those that took away most."""

MEANINGS = {
    "fusion": "the Shapley values of its features in the model's trees, less the topic's mean",
    "linear_fusion": "its features times the model's weights, less the topic's mean",
}
"""Model -> what the numbers of a family are the sum of."""


class Part(NamedTuple):
    """A feature of a post, NaN if it is not known, and what it added to the post's score."""

    feature: str
    value: float
    added: float


@dataclass(frozen=True)
class Fused:
    """The candidates of one topic, as a fusion sees and scores them.

    Attributes:
        model: the fusion.
        doc_ids: [P] of the candidates.
        features: [P, K], in the order of ``model.names``.
        scores: doc_id -> score, higher is better; those of a search.
    """

    model: "FeatureModel"
    doc_ids: Sequence[str]
    features: "Tensor"
    scores: Mapping[str, float]

    @classmethod
    def of(cls, reranker: "NeuralReranker", candidates: "Candidates") -> "Fused":
        """Compute features and scores.

        Args:
            reranker: a trained fusion.
            candidates: of one topic, with the scores of the rankers that the fusion reads.

        Raises:
            RerankerError: the fusion gives scores that are no numbers.
        """
        from rerankers.engine.scoring import represent_tokenized, score_tokenized
        from rerankers.engine.tokenized import Tokenized

        model = cast("FeatureModel", reranker.checkpoint.model)
        encoded = Tokenized.of(candidates.pairs(), reranker.checkpoint.encoder, model)
        (topic,) = candidates.topics
        doc_ids = list(candidates.run[topic.query_id])
        scores = score_tokenized(model, encoded).tolist()
        features = represent_tokenized(model, encoded)
        return cls(model, doc_ids, features, dict(zip(doc_ids, scores, strict=True)))

    def parts(self, chosen: Sequence[str]) -> list[list[Part]]:
        """What each feature added to the scores of the ``chosen`` posts, in their order.

        It is less the mean over the topic's posts: what all have in common explains no rank.
        """
        rows = {doc_id: row for row, doc_id in enumerate(self.doc_ids)}
        places = [rows[doc_id] for doc_id in chosen]
        every = self.model.contributions(self.features.to(self.model.device_of()))
        values, added = self.features[places], (every - every.mean(dim=0))[places]
        return [
            [Part(*part) for part in zip(self.model.names, *of_post, strict=True)]
            for of_post in zip(values.tolist(), added.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class FusedPost:
    """All that is shown of a post.

    Attributes:
        post: with an empty text if that is not known.
        standing: its places in the mean of the rankers and after fusion.
        grade: judged relevance, None where there is none.
        families: family -> what it added to the score.
        most: the features that added most, the largest first.
        least: those that took away most, the largest first.
    """

    post: "Post"
    standing: RankChange
    grade: int | None
    families: Mapping[str, float]
    most: Sequence[Part]
    least: Sequence[Part]


@dataclass(frozen=True)
class FusionExplanation:
    """One topic's fused ranking and what it is made of.

    Attributes:
        collection: name of the topics' source.
        query_id: of the topic.
        query: its text.
        model: name of the fusion, and where its weights are from.
        rankers: those that know the topic, and those that do not, in words.
        candidates: how many posts were ranked.
        meaning: what a family's number is the sum of, in words.
        base: the mean score of the topic's posts.
        importances: family -> share of the model's importances, the largest first.
        sections: heading -> posts; their families have the order of ``importances``.
    """

    collection: str
    query_id: str
    query: str
    model: str
    rankers: str
    candidates: int
    meaning: str
    base: float
    importances: Mapping[str, float]
    sections: Mapping[str, Sequence[FusedPost]]

    @property
    def extent(self) -> tuple[float, float]:
        """The least and the greatest that a family added to a shown post; 0 is between them."""
        added = [
            value
            for posts in self.sections.values()
            for post in posts
            for value in post.families.values()
        ]
        return min(0.0, *added), max(0.0, *added)


def explain(
    collection: str, topic: "Topic", reranker: "NeuralReranker", candidates: "Candidates",
    fused: Fused, found: Mapping[str, RankChange], grades: Mapping[str, int],
    chosen: Mapping[str, Sequence[str]],
) -> FusionExplanation:  # fmt: skip
    """What is shown of a topic.

    Args:
        collection: name of the topic's source.
        topic: the one that was ranked.
        reranker: the fusion.
        candidates: of the topic.
        fused: the same as the fusion sees them.
        found: doc_id -> places of every candidate.
        grades: doc_id -> judged relevance, as far as it is known.
        chosen: heading -> doc_ids of the posts to show, at least one.
    """
    checkpoint = reranker.checkpoint
    doc_ids = [doc_id for shown in chosen.values() for doc_id in shown]
    parts = dict(zip(doc_ids, fused.parts(doc_ids), strict=True))
    rest = [fused.scores[d] - sum(part.added for part in parts[d]) for d in doc_ids]
    importances = shares(fused.model.importances())
    inputs = {
        d: _view(candidates.posts[d], found[d], grades.get(d), parts[d], list(importances))
        for d in doc_ids
    }
    weights = "/".join(checkpoint.directory.resolve().parts[-2:])
    return FusionExplanation(
        collection, topic.query_id, topic.text, f"{checkpoint.name}, weights {weights}",
        _rankers(fused.model.feature_families, candidates, topic.query_id), len(found),
        MEANINGS[checkpoint.name], sum(rest) / len(rest), importances,
        {heading: [inputs[d] for d in shown] for heading, shown in chosen.items()},
    )  # fmt: skip


def by_family(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sums of features' values by family, from (``family.feature``, value)."""
    sums: dict[str, float] = {}
    for feature, value in values:
        family = feature.rpartition(".")[0]
        sums[family] = sums.get(family, 0.0) + value
    return sums


def shares(importances: Mapping[str, float]) -> dict[str, float]:
    """Family -> its share of all features' importances, the largest first; 0 if all are 0."""
    sums = by_family(importances.items())
    total = sum(sums.values()) or 1.0
    return {family: sums[family] / total for family in sorted(sums, key=lambda f: -sums[f])}


def _view(
    post: "Post", standing: RankChange, grade: int | None, parts: Sequence[Part],
    families: Sequence[str],
) -> FusedPost:  # fmt: skip
    sums = by_family((part.feature, part.added) for part in parts)
    order = sorted(parts, key=lambda part: -part.added)
    return FusedPost(
        post, standing, grade, {family: sums[family] for family in families},
        [part for part in order[:FEATURES] if part.added > 0],
        [part for part in order[: -FEATURES - 1 : -1] if part.added < 0],
    )  # fmt: skip


def _rankers(families: Sequence[str], candidates: "Candidates", query_id: str) -> str:
    names = [name.partition(":")[2] for name in families if name.startswith("signal:")]
    known = [name for name in names if candidates.signals.get(name, {}).get(query_id)]
    unknown = [name for name in names if name not in known]
    return ", ".join(known) + (f"; not known here: {', '.join(unknown)}" if unknown else "")
