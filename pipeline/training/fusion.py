"""Training sets of fusions: candidates of all rankers, or windows of first stages."""

from __future__ import annotations

import string
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.collections.collection import Collection
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Qrels, Run, ranked
from pipeline.ranking.fusion import Rankers, UnionRetriever
from pipeline.ranking.retrievers import (
    Candidates,
    IndexRetriever,
    Retriever,
    doc_ids_of,
    retriever_for,
    with_resources,
    with_space,
)
from pipeline.training.first_stages import ENGINES, memory_retrievers
from pipeline.training.training_set import JudgedCandidates, TrainingSet
from rerankers.features.judged import JUDGED
from rerankers.text.words import MENTION_OR_LINK
from rerankers.trees.fusion import SEARCHES

MOST_TOPICS = 150
"""Topics of each of several training collections, at most."""

WINDOW = 100  # Posts of the window that most clients rerank

WINDOWS = (20, 50, WINDOW, WINDOW, 200)
"""Sizes of the windows of a model that reranks what it is given; one of them is drawn for each
first stage and topic."""

OFFICIAL_WINDOWS = (*WINDOWS, 1000)
"""The same for collections with official runs, of which a thousand posts are reranked."""

BATCHES = (2, 4, 8, 8, 16, 32)
"""Sizes of the batches in which clients send a window of :data:`WINDOW` posts at most."""

FORMS = ("scores", "order", "nothing")
"""What is known of a window's first stage; see
:attr:`pipeline.ranking.retrievers.Candidates.forms`."""

DISGUISED = 0.3
"""Share of the windows whose language is made one that no source of words knows."""

_ALPHABET = {ord(a): chr(0x10D0 + n) for n, a in enumerate(string.ascii_lowercase)}
_DISGUISE = _ALPHABET | {ord(a): _ALPHABET[ord(a.lower())] for a in string.ascii_uppercase}
"""Letter -> letter of another alphabet, Georgian, which has no capitals and no accents."""


def fusion_training_set(
    rankers: Rankers,
    training_set: TrainingSet,
    collections: Sequence[Collection],
    judged_posts: bool = False,
) -> TrainingSet:
    """Candidates and scores of all rankers, for the topics of a training set.

    ``collections`` are those of the training set; ``judged_posts``: whether the judgments of other
    topics are read.
    """
    drawing, several = _Drawing(), len(collections) > 1
    for collection in collections:
        print(f"candidates of {collection.name} by {', '.join(rankers.names)}", file=sys.stderr)
        topics, judged = _topics(collection, drawing, several)
        found = with_space(UnionRetriever(collection, rankers).search(topics), collection)
        if judged_posts:
            found = with_resources(found, {JUDGED: collection.judged_posts})
        prefix = f"{collection.name}/" * bool(judged.keys() & drawing.qrels.keys())
        drawing.add(collection.name, found, judged, prefix=prefix)
    return replace(
        training_set,
        candidates=f"the best {rankers.depth} of each of {', '.join(rankers.candidate_rankers)}",
        training=drawing.training(training_set.training.judged_only, _are_mixed(collections)),
    )


def _are_mixed(collections: Sequence[Collection]) -> bool:
    """Whether a model of these is for collections of any kind, whose signals may be missing."""
    return len(collections) > 1 and not all(collection.runs for collection in collections)


def _topics(
    collection: Collection, drawing: _Drawing, several: bool
) -> tuple[Sequence[Topic], Qrels]:
    """The topics of a collection to train on, and their judgments."""
    grades = collection.training_qrels or {}
    topics: Sequence[Topic] = collection.training_topics
    if several:
        topics = drawing.some(topics, MOST_TOPICS)
    return topics, {topic.query_id: grades[topic.query_id] for topic in topics}


def window_training_set(
    training_set: TrainingSet,
    collections: Sequence[Collection],
    most: int,
    judged_posts: bool = False,
) -> TrainingSet:
    """Windows of the best posts of several first stages for the topics of ``collections``.

    Each comes with scores or in its order, so a model knows what to read where scores are missing;
    one of each topic comes as a set, and one in batches. First stages are the collection's own, all
    methods of search, and those of engines. Of a single collection the own one's windows with
    scores, of :data:`WINDOW` posts each, keep their query_ids. A topic's forms are held out
    together.

    Args:
        training_set: what it is the training set of; its candidates are replaced.
        collections: those of the training set.
        most: topics of each of several collections, drawn anew for each first stage. They bound
            time and memory.
        judged_posts: whether the judgments of other topics are read.
    """
    drawing, several = _Drawing(), len(collections) > 1
    for collection in collections:
        print(f"windows of {collection.name}", file=sys.stderr)
        every, of_every = _topics(collection, drawing, several)
        sizes = OFFICIAL_WINDOWS if collection.runs else WINDOWS
        for number, retriever in enumerate(_first_stages(collection, several)):
            topics = drawing.some(every, most) if several else every
            judged = {topic.query_id: of_every[topic.query_id] for topic in topics}
            found = with_space(retriever.search(topics, max(sizes)), collection)
            if judged_posts:
                found = with_resources(found, {JUDGED: collection.judged_posts})
            if not several and not number:
                served = _windows(found, np.full(len(topics), WINDOW))
                drawing.add(collection.name, served, judged, FORMS[0], prefix="")
            windows = _windows(found, drawing.sizes(sizes, topics))
            drawing.add(collection.name, windows, judged, FORMS[:2])
            if _are_mixed(collections):
                drawn = _disguised(drawing.some_of(windows, DISGUISED), judged)
                drawing.add(collection.name, *drawn, FORMS[:2])
        # A set is the same set whoever found it.
        drawing.add(
            collection.name, _windows(found, drawing.sizes(sizes, topics)), judged, FORMS[2]
        )
        batches = _windows(found, drawing.sizes((20, 50, WINDOW), topics))
        drawing.add_batches(collection.name, batches, judged)
    return replace(
        training_set,
        candidates=f"windows and batches of {min(BATCHES)} posts and more of several first stages",
        training=drawing.training(training_set.training.judged_only, _are_mixed(collections)),
    )


class _Drawing:
    """Lists of candidates in the forms in which they may come, drawn at random.

    Attributes:
        qrels: judgments of the lists.
    """

    def __init__(self) -> None:
        self.qrels: Qrels = {}
        self._parts: list[Candidates] = []
        self._twins: list[str] = []
        self._groups: list[str] = []
        self._wholes: list[str] = []
        self._rng = np.random.default_rng(1)

    def some(self, topics: Sequence[Topic], most: int) -> Sequence[Topic]:
        """At most so many of the topics, in their order."""
        if len(topics) <= most:
            return topics
        rows = np.sort(self._rng.choice(len(topics), most, replace=False))
        return [topics[row] for row in rows.tolist()]

    def some_of(self, found: Candidates, share: float) -> Candidates:
        """A share of the topics, with their candidates."""
        topics = self.some(found.topics, round(share * len(found.topics)))
        run = {t.query_id: found.run[t.query_id] for t in topics if t.query_id in found.run}
        return replace(found, topics=topics, run=run, memo={})

    def sizes(self, sizes: Sequence[int], topics: Sequence[Topic]) -> npt.NDArray[np.integer]:
        """A size for each topic."""
        return self._rng.choice(sizes, len(topics))

    def add(
        self,
        name: str,
        found: Candidates,
        judged: Qrels,
        forms: str | Sequence[str] = FORMS[0],
        prefix: str | None = None,
        wholes: Sequence[str] = (),
    ) -> None:
        """Add the lists of a collection.

        Args:
            name: of the collection.
            forms: of which one is drawn for each list, or the form of all.
            prefix: before each query_id; None is a new one.
            wholes: query_id of the topic that each list is a part of, if they are parts.
        """
        part, renamed = _renamed(
            found, judged, f"{len(self._parts)}/" if prefix is None else prefix
        )
        drawn = self._rng.choice([forms] if isinstance(forms, str) else forms, len(part.topics))
        ids = [topic.query_id for topic in part.topics]
        self._parts.append(replace(part, forms=dict(zip(ids, drawn.tolist(), strict=True))))
        self.qrels |= renamed
        whole = list(wholes) or [topic.query_id for topic in found.topics]
        self._twins += [f"{name}/{query_id}" for query_id in whole]
        self._wholes += [f"{len(self._parts)}/{query_id}" for query_id in whole]
        self._groups += [name] * len(ids)

    def add_batches(self, name: str, found: Candidates, judged: Qrels) -> None:
        """Add the lists in batches, half of them in no order, which compare with each other."""
        topics: list[Topic] = []
        wholes: list[str] = []
        run: Run = {}
        for topic, size in zip(found.topics, self.sizes(BATCHES, found.topics), strict=True):
            best = ranked(found.run.get(topic.query_id, {}))
            if self._rng.random() < 0.5:
                best = [best[row] for row in self._rng.permutation(len(best)).tolist()]
            for start in range(0, len(best), int(size)):
                topics.append(topic._replace(query_id=f"{topic.query_id}/{start}"))
                run[topics[-1].query_id] = dict(best[start : start + int(size)])
                wholes.append(topic.query_id)
        ids = [topic.query_id for topic in topics]
        known = {new: found.resources.get(of, {}) for new, of in zip(ids, wholes, strict=True)}
        grades = {new: judged[of] for new, of in zip(ids, wholes, strict=True)}
        parts = replace(found, topics=topics, run=run, resources=known, memo={})
        self.add(name, parts, grades, FORMS[::2], wholes=wholes)

    def training(self, judged_only: bool, are_mixed: bool) -> JudgedCandidates:
        """All lists; if collections are mixed, they have the same weight."""
        return JudgedCandidates(
            _joined(self._parts),
            self.qrels,
            judged_only,
            self._groups if are_mixed else (),
            self._twins,
            self._wholes,
        )


def _disguised(found: Candidates, judged: Qrels) -> tuple[Candidates, Qrels]:
    """Candidates and judgments with the letters of another alphabet, a language nobody knows."""

    def other(text: str) -> str:
        parts = MENTION_OR_LINK.split(text)
        kept = [*MENTION_OR_LINK.findall(text), ""]
        return "".join(p.translate(_DISGUISE) + k for p, k in zip(parts, kept, strict=True))

    def renamed(mapping: Mapping[str, Any]) -> dict[str, Any]:
        return {f"disguised/{doc_id}": value for doc_id, value in mapping.items()}

    run = {query_id: renamed(scores) for query_id, scores in found.run.items()}
    of_run = {d: found.posts[d] for d in doc_ids_of(found.run)}
    texts = {doc_id: post._replace(text=other(post.text)) for doc_id, post in of_run.items()}
    candidates = replace(
        found,
        topics=[topic._replace(text=other(topic.text)) for topic in found.topics],
        run=run,
        posts=renamed(texts),
        signals={
            name: {query_id: renamed(scores) for query_id, scores in of.items()}
            for name, of in found.signals.items()
        },
        resources={},
        rest={},
        memo={},
    )
    return candidates, {q: renamed(grades) for q, grades in judged.items() if q in run}


def _first_stages(collection: Collection, several: bool) -> list[Retriever]:
    """The collection's own first stage, the methods of search besides, and those of engines.

    The latter are for models of several collections: they take all posts into memory.
    """
    own = retriever_for(collection)
    if not collection.methods:
        return [own]
    others = [name for name in SEARCHES if name in collection.methods and name != own.name]
    found = [own, *(retriever_for(collection, method=name) for name in others)]
    if not several or collection.engine:
        return found
    engines = IndexRetriever(collection.open_index(), ENGINES)
    return [*found, engines, *memory_retrievers(collection)]


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
