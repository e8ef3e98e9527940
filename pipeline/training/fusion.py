"""Training sets of fusions: candidates of all rankers, or windows of first stages."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.collections.collection import SearchedCollection
from pipeline.collections.trec import Qrels, Run, ranked
from pipeline.ranking.fusion import Rankers, UnionRetriever
from pipeline.ranking.retrievers import (
    Candidates,
    Retriever,
    doc_ids_of,
    retriever_for,
    with_resources,
    with_space,
)
from pipeline.training.training_set import JudgedCandidates, TrainingSet
from rerankers.features.judged import JUDGED
from rerankers.trees.families import SEARCHES

MOST_TOPICS = 250
"""Topics of each of several training collections, at most: none outweighs the others."""

WINDOW = 100  # Posts of the window that most clients rerank

WINDOWS = (20, 50, WINDOW, WINDOW, 200)
"""Sizes of the windows of a model that reranks what it is given; one of them is drawn for each
first stage and topic."""

OFFICIAL_WINDOWS = (*WINDOWS, 1000)
"""The same for collections with official runs, of which a thousand posts are reranked."""

FORMS = ("scores", "order", "nothing")
"""What is known of a window's first stage; see
:attr:`pipeline.ranking.retrievers.Candidates.forms`."""


def fusion_training_set(
    rankers: Rankers,
    training_set: TrainingSet,
    collections: Sequence[SearchedCollection],
    judged_posts: bool = False,
) -> TrainingSet:
    """Candidates and scores of all rankers, for the topics of a training set.

    ``collections`` are those of the training set; ``judged_posts``: whether the judgments of other
    topics are read.
    """
    parts: list[Candidates] = []
    qrels: Qrels = {}
    for collection in collections:
        print(f"candidates of {collection.name} by {', '.join(rankers.names)}", file=sys.stderr)
        topics = collection.training_topics
        if len(collections) > 1:
            topics = topics[:MOST_TOPICS]
        grades = collection.training_qrels or {}
        judged = {topic.query_id: grades[topic.query_id] for topic in topics}
        found = UnionRetriever(collection, rankers).search(topics)
        if judged_posts:
            found = with_resources(found, {JUDGED: collection.judged_posts})
        if judged.keys() & qrels.keys():
            found, judged = _renamed(found, judged, f"{collection.name}/")
        parts.append(found)
        qrels |= judged
    return replace(
        training_set,
        candidates=f"the best {rankers.depth} of each of {', '.join(rankers.candidate_rankers)}",
        training=JudgedCandidates(_joined(parts), qrels, training_set.training.judged_only),
    )


def window_training_set(
    training_set: TrainingSet, collections: Sequence[SearchedCollection], judged_posts: bool = False
) -> TrainingSet:
    """Windows of the best posts of several first stages for the topics of ``collections``.

    Each in the :data:`FORMS` in which it may come, so a model knows what to read where scores are
    missing. First stages are the collection's own and all methods of search. Of a single collection
    the own one's windows with scores, of :data:`WINDOW` posts each, keep their query_ids. A topic's
    forms are held out together. ``judged_posts``: whether the judgments of other topics are read.
    """
    parts: list[Candidates] = []
    qrels: Qrels = {}
    twins: list[str] = []
    rng = np.random.default_rng(1)
    for collection in collections:
        print(f"windows of {collection.name}", file=sys.stderr)
        topics, grades = collection.training_topics, collection.training_qrels or {}
        if len(collections) > 1:
            topics = topics[:MOST_TOPICS]
        judged = {topic.query_id: grades[topic.query_id] for topic in topics}
        sizes = OFFICIAL_WINDOWS if collection.runs else WINDOWS
        for number, retriever in enumerate(_first_stages(collection)):
            is_served = len(collections) == 1 and not number
            drawn = np.full(len(topics), WINDOW) if is_served else rng.choice(sizes, len(topics))
            found = with_space(_windows(retriever.search(topics, max(sizes)), drawn), collection)
            if judged_posts:
                found = with_resources(found, {JUDGED: collection.judged_posts})
            # A set is the same set whoever found it.
            for form in FORMS[: 2 + (number == 0)]:
                is_kept = is_served and form == "scores"
                prefix = "" if is_kept else f"{len(parts)}/"
                part, renamed = _renamed(found, judged, prefix)
                parts.append(replace(part, forms=dict.fromkeys(part.run, form)))
                qrels |= renamed
                twins += [f"{collection.name}/{topic.query_id}" for topic in topics]
    judged_only = training_set.training.judged_only
    return replace(
        training_set,
        candidates=f"windows of {min(WINDOWS)} posts and more of several first stages",
        training=JudgedCandidates(_joined(parts), qrels, judged_only, twins=twins),
    )


def _first_stages(collection: SearchedCollection) -> list[Retriever]:
    """The collection's own first stage, and the methods of search that it has besides."""
    own = retriever_for(collection)
    others = [name for name in SEARCHES if name in collection.methods and name != own.name]
    return [own, *(retriever_for(collection, method=name) for name in others)]


def _windows(found: Candidates, sizes: npt.NDArray[np.integer]) -> Candidates:
    """The best posts of each topic, as many as its size [Q] says."""
    wanted = zip(found.topics, sizes.tolist(), strict=True)
    run = {t.query_id: dict(ranked(found.run.get(t.query_id, {}))[:size]) for t, size in wanted}
    run = {query_id: scores for query_id, scores in run.items() if scores}
    return replace(found, run=run, posts={d: found.posts[d] for d in doc_ids_of(run)}, memo={})


def _renamed(part: Candidates, qrels: Qrels, prefix: str) -> tuple[Candidates, Qrels]:
    """Candidates and judgments with a prefix before every query_id."""

    def renamed(mapping: Mapping[str, Any]) -> dict[str, Any]:
        return {f"{prefix}{query_id}": value for query_id, value in mapping.items()}

    candidates = replace(
        part,
        topics=[t._replace(query_id=f"{prefix}{t.query_id}") for t in part.topics],
        run=renamed(part.run),
        signals={name: renamed(run) for name, run in part.signals.items()},
        resources=renamed(part.resources),
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
        resources={query_id: of for part in parts for query_id, of in part.resources.items()},
        forms={query_id: form for part in parts for query_id, form in part.forms.items()},
    )
