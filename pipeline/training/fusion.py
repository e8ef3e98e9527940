"""Training sets of fusions: the candidates and scores of all rankers for judged topics."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.collections.collection import Collection
from pipeline.collections.trec import Qrels, Run
from pipeline.ranking.fusion import Rankers, UnionRetriever, with_neural
from pipeline.ranking.judged_posts import JudgedPosts
from pipeline.ranking.retrievers import Candidates
from pipeline.training.training_set import JudgedCandidates, TrainingSet

if TYPE_CHECKING:
    pass

MOST_TOPICS = 250
"""Topics of each of several training collections, at most: none outweighs the others."""

MINIMUM_COUNT = 5
"""Posts that must have a word whose vector is kept: rarer ones are in too few to matter."""

UnseenScores = Callable[..., npt.NDArray[np.float32]]
"""Name of a neural reranker, P pairs, query_ids of their queries -> its scores [P]."""


def fusion_training_set(
    rankers: Rankers,
    training_set: TrainingSet,
    collections: Sequence[Collection],
    unseen: UnseenScores,
) -> TrainingSet:
    """Candidates and scores of all rankers, for the topics of a training set.

    ``collections`` are those of the training set; ``unseen`` gives the scores by rerankers that
    have not seen these topics.
    """
    parts: list[Candidates] = []
    qrels: Qrels = {}
    for collection in collections:
        print(f"candidates of {collection.name} by {', '.join(rankers.lexical)}", file=sys.stderr)
        topics = collection.training_topics
        if len(collections) > 1:
            topics = topics[:MOST_TOPICS]
        grades = collection.training_qrels or {}
        judged = {topic.query_id: grades[topic.query_id] for topic in topics}
        of_posts = JudgedPosts(topics, judged) if rankers.judged else None
        found = UnionRetriever(collection, rankers, of_posts).search(topics)
        if judged.keys() & qrels.keys():
            found, judged = _renamed(found, judged, f"{collection.name}/")
        parts.append(found)
        qrels |= judged
    candidates = _joined(parts)
    query_ids = [topic.query_id for topic in candidates.topics]
    for name in rankers.neural:
        candidates = with_neural(candidates, name, partial(unseen, name, query_ids=query_ids))
    return replace(
        training_set,
        candidates=f"the best {rankers.depth} of each of {', '.join(rankers.candidate_rankers)}",
        training=JudgedCandidates(candidates, qrels, training_set.training.judged_only),
        minimum_count=MINIMUM_COUNT,
    )


def _renamed(part: Candidates, qrels: Qrels, prefix: str) -> tuple[Candidates, Qrels]:
    """Candidates and judgments with a prefix before every query_id."""

    def renamed(mapping: Mapping[str, Any]) -> dict[str, Any]:
        return {f"{prefix}{query_id}": value for query_id, value in mapping.items()}

    candidates = replace(
        part,
        topics=[t._replace(query_id=f"{prefix}{t.query_id}") for t in part.topics],
        run=renamed(part.run),
        signals={name: renamed(run) for name, run in part.signals.items()},
        spaces=renamed(part.spaces),
        rest={},
        memo={},
    )
    return candidates, renamed(qrels)


def _joined(parts: Sequence[Candidates]) -> Candidates:
    """The candidates of several collections, whose topics all differ."""
    signals: dict[str, Run] = {}
    for part in parts:
        for name, run in part.signals.items():
            signals[name] = {**signals.get(name, {}), **run}
    return Candidates(
        [topic for part in parts for topic in part.topics],
        {query_id: scores for part in parts for query_id, scores in part.run.items()},
        {doc_id: post for part in parts for doc_id, post in part.posts.items()},
        {},
        signals,
        spaces={query_id: spaces for part in parts for query_id, spaces in part.spaces.items()},
    )
