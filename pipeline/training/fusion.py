"""Training lists of trees: candidates of all searches, or windows of several first stages."""

import string
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.collections.collection import Collection
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Qrels, ranked
from pipeline.ranking.fusion import UnionRetriever
from pipeline.ranking.retrievers import (
    Candidates,
    IndexRetriever,
    Retriever,
    doc_ids_of,
    retriever_for,
    with_resources,
)
from pipeline.training.first_stages import ENGINES, memory_retrievers
from pipeline.training.training_set import JudgedCandidates
from rerankers.text.words import MENTION_OR_LINK
from rerankers.trees.fusion import SEARCHES

MOST_TOPICS = 150
"""Topics of each of several training collections, at most."""

WINDOW = 100  # Posts of the window that most clients rerank

WINDOWS = (20, 50, WINDOW, WINDOW, 200)
"""Sizes of the windows of a model that reranks what it is given; one of them is drawn for each
first stage and topic. Of collections with official runs a thousand posts are reranked, too."""

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


def fusion_lists(
    config: Any, collections: Sequence[Collection], judged_posts: bool = False
) -> JudgedCandidates:
    """Candidates and scores of all rankers of a fusion, for the topics of ``collections``.
    ``judged_posts``: whether the judgments of other topics are read."""
    lists = _Lists(collections)
    for collection in collections:
        retriever = UnionRetriever.of(collection, config)
        print(f"candidates of {collection.name} by {', '.join(retriever.rankers)}", file=sys.stderr)
        topics, judged = lists.topics_of(collection)
        found = with_resources(retriever.search(topics), collection, judged_posts)
        prefix = f"{collection.name}/" * bool(judged.keys() & lists.qrels.keys())
        lists.add(collection.name, found, judged, prefix=prefix)
    return lists.joined()


def window_lists(
    collections: Sequence[Collection], most: int, judged_posts: bool = False
) -> JudgedCandidates:
    """Windows of the best posts of several first stages for the topics of ``collections``.

    Each comes with scores or in its order, so a model knows what to read where scores are missing;
    one of each topic comes as a set, and one in batches. Of mixed collections some are in a
    language that nobody knows. First stages are the collection's own, all methods of search, and
    those of engines. Of a single collection the own one's windows with scores, of :data:`WINDOW`
    posts each, keep their query_ids. A topic's forms are held out together.

    Args:
        most: topics of each of several collections, drawn anew for each first stage. They bound
            time and memory.
        judged_posts: whether the judgments of other topics are read.
    """
    lists = _Lists(collections)
    for collection in collections:
        name, sizes = collection.name, (*WINDOWS, 1000) if collection.runs else WINDOWS
        print(f"windows of {name}", file=sys.stderr)
        every, of_every = lists.topics_of(collection)
        for number, retriever in enumerate(_first_stages(collection, lists.several)):
            topics = lists.some(every, most) if lists.several else every
            judged = {topic.query_id: of_every[topic.query_id] for topic in topics}
            found = retriever.search(topics, max(sizes))
            found = with_resources(found, collection, judged_posts)
            if not lists.several and not number:
                served = _windows(found, np.full(len(topics), WINDOW))
                lists.add(name, served, judged, prefix="")
            windows = _windows(found, lists.sizes(sizes, topics))
            lists.add(name, windows, judged, FORMS[:2])
            if lists.are_mixed:
                drawn = lists.some(topics, round(DISGUISED * len(topics)))
                lists.add(name, *_disguised(replace(windows, topics=drawn), judged), FORMS[:2])
        # A set is the same set whoever found it.
        lists.add(name, _windows(found, lists.sizes(sizes, topics)), judged, FORMS[2:])
        batches = _windows(found, lists.sizes((20, 50, WINDOW), topics))
        lists.add_batches(name, batches, judged)
        if lists.are_mixed:
            drawn = lists.some(topics, round(DISGUISED * len(topics)))
            lists.add_batches(name, *_disguised(replace(batches, topics=drawn), judged))
    return lists.joined()


class _Lists:
    """Lists of candidates in the forms in which they may come, drawn at random. Where collections
    are mixed, for models of collections of any kind, signals may be missing, and all collections
    have the same weight."""

    def __init__(self, collections: Sequence[Collection]) -> None:
        self.qrels: Qrels = {}
        self.several = len(collections) > 1
        self.are_mixed = self.several and not all(collection.runs for collection in collections)
        self._judged_only = any(collection.judged_only for collection in collections)
        self._parts: list[Candidates] = []
        self._twins: list[str] = []
        self._groups: list[str] = []
        self._wholes: list[str] = []
        self._rng = np.random.default_rng(1)

    def topics_of(self, collection: Collection) -> tuple[Sequence[Topic], Qrels]:
        """The topics of a collection to train on, and their judgments."""
        grades = collection.training_qrels or {}
        topics: Sequence[Topic] = collection.training_topics
        if self.several:
            topics = self.some(topics, MOST_TOPICS)
        return topics, {topic.query_id: grades[topic.query_id] for topic in topics}

    def some(self, topics: Sequence[Topic], most: int) -> Sequence[Topic]:
        """At most so many of the topics, in their order."""
        if len(topics) <= most:
            return topics
        rows = np.sort(self._rng.choice(len(topics), most, replace=False))
        return [topics[row] for row in rows.tolist()]

    def sizes(self, sizes: Sequence[int], topics: Sequence[Topic]) -> npt.NDArray[np.integer]:
        """A size for each topic."""
        return self._rng.choice(sizes, len(topics))

    def add(
        self,
        name: str,
        found: Candidates,
        judged: Qrels,
        forms: Sequence[str] = FORMS[:1],
        prefix: str | None = None,
        wholes: Sequence[str] = (),
    ) -> None:
        """Add the lists of a collection.

        Args:
            forms: of which one is drawn for each list.
            prefix: before each query_id; None is a new one.
            wholes: query_id of the topic that each list is a part of, if they are parts.
        """
        prefix = f"{len(self._parts)}/" if prefix is None else prefix
        ids = [topic.query_id for topic in found.topics]
        drawn = self._rng.choice(forms, len(ids)).tolist()
        part = Candidates(
            [topic._replace(query_id=f"{prefix}{topic.query_id}") for topic in found.topics],
            _prefixed(found.run, prefix),
            found.posts,
            signals={of: _prefixed(run, prefix) for of, run in found.signals.items()},
            resources=_prefixed(found.resources, prefix),
            forms=_prefixed(dict(zip(ids, drawn, strict=True)), prefix),
        )
        self._parts.append(part)
        self.qrels |= _prefixed(judged, prefix)
        whole = wholes or ids
        self._twins += [f"{name}/{query_id}" for query_id in whole]
        self._wholes += [f"{len(self._parts)}/{query_id}" for query_id in whole]
        self._groups += [name] * len(ids)

    def add_batches(self, name: str, found: Candidates, judged: Qrels) -> None:
        """Add the lists in batches, half of them in no order, which compare with each other."""
        batches: list[tuple[Topic, str, dict[str, float]]] = []
        for topic, size in zip(found.topics, self.sizes(BATCHES, found.topics), strict=True):
            best, whole = ranked(found.run.get(topic.query_id, {})), topic.query_id
            if self._rng.random() < 0.5:
                best = [best[row] for row in self._rng.permutation(len(best)).tolist()]
            for start in range(0, len(best), int(size)):
                part = dict(best[start : start + int(size)])
                batches.append((topic._replace(query_id=f"{whole}/{start}"), whole, part))
        parts = replace(
            found,
            topics=[topic for topic, _, _ in batches],
            run={topic.query_id: part for topic, _, part in batches},
            resources={t.query_id: found.resources.get(whole, {}) for t, whole, _ in batches},
        )
        grades = {topic.query_id: judged[whole] for topic, whole, _ in batches}
        self.add(name, parts, grades, FORMS[::2], wholes=[whole for _, whole, _ in batches])

    def joined(self) -> JudgedCandidates:
        """All lists, whose topics all differ."""

        def union(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
            return dict(chain.from_iterable(part.items() for part in parts))

        parts = self._parts
        signals = dict.fromkeys(chain.from_iterable(part.signals for part in parts))
        candidates = Candidates(
            [topic for part in parts for topic in part.topics],
            union([part.run for part in parts]),
            union([part.posts for part in parts]),
            {},
            {name: union([part.signals.get(name, {}) for part in parts]) for name in signals},
            resources=union([part.resources for part in parts]),
            forms=union([part.forms for part in parts]),
        )
        groups = self._groups if self.are_mixed else ()
        of_lists = groups, self._twins, self._wholes
        return JudgedCandidates(candidates, self.qrels, self._judged_only, *of_lists)


def _prefixed(mapping: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The mapping with a prefix before every key."""
    return {f"{prefix}{key}": value for key, value in mapping.items()}


def _disguised(found: Candidates, judged: Qrels) -> tuple[Candidates, Qrels]:
    """Candidates and judgments with the letters of another alphabet, a language nobody knows."""

    def other(text: str) -> str:
        parts = MENTION_OR_LINK.split(text)
        kept = [*MENTION_OR_LINK.findall(text), ""]
        return "".join(p.translate(_DISGUISE) + k for p, k in zip(parts, kept, strict=True))

    topics, prefix = found.topics, "disguised/"
    known = {t.query_id: found.run[t.query_id] for t in topics if t.query_id in found.run}
    of_run = {d: found.posts[d] for d in doc_ids_of(known)}
    candidates = Candidates(
        [topic._replace(text=other(topic.text)) for topic in topics],
        {query_id: _prefixed(scores, prefix) for query_id, scores in known.items()},
        _prefixed({d: post._replace(text=other(post.text)) for d, post in of_run.items()}, prefix),
    )
    return candidates, {q: _prefixed(grades, prefix) for q, grades in judged.items() if q in known}


def _first_stages(collection: Collection, several: bool) -> list[Retriever]:
    """The collection's own first stage, the methods of search besides, and those of engines. The
    latter are for models of several collections: they take all posts into memory."""
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
    return replace(found, run=run, posts={d: found.posts[d] for d in doc_ids_of(run)})
