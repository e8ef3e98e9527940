"""Collect lists of several collections, to train models of lists or of searches."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Qrels, Run
from tweetrerank.pipeline.ranking.retrievers import Candidates
from tweetrerank.pipeline.training.training_set import JudgedCandidates
from tweetrerank.rerankers.pairs import FREQUENCIES, Resources
from tweetrerank.rerankers.text.vocabulary import Idf

Value = TypeVar("Value")

# At most this many topics of each collection are used if there are several
MOST_TOPICS = 150
WITH_SCORES = ("scores",)
"""The only form for lists with scores; see :attr:`Candidates.forms`."""


class TrainingLists:
    """Collects lists of candidates of one or several collections.

    The form of each list's first stage is drawn at random. The collections are called
    *mixed* if there are several and some are not TREC Microblog. Mixed collections all
    get the same weight, and signals may be missing in them.
    """

    def __init__(self, collections: Sequence[Collection]) -> None:
        self.several = len(collections) > 1
        is_microblog = all(collection.runs for collection in collections)
        self.are_mixed = self.several and not is_microblog
        self.rng = np.random.default_rng(1)
        self.qrels: Qrels = {}
        self._coins = np.random.default_rng(2)
        self._judged_only = any(collection.judged_only for collection in collections)
        self._topics: list[Topic] = []
        self._run: Run = {}
        self._posts: dict[str, Post] = {}
        self._signals: dict[str, Run] = {}
        self._forms: dict[str, str] = {}
        self._resources: dict[str, Resources] = {}
        self._twins: list[str] = []
        self._groups: list[str] = []
        self._wholes: list[str] = []
        self._additions = 0  # Number of calls of :meth:`add` so far

    def topics_of(self, collection: Collection) -> tuple[Sequence[Topic], Qrels]:
        """Return (topics, judgments) of a collection to train on.

        If there are several collections, at most :data:`MOST_TOPICS` topics are drawn.
        """
        grades = collection.training_qrels or {}
        topics: Sequence[Topic] = collection.training_topics
        if self.several:
            topics = self.some(topics, MOST_TOPICS)
        return topics, {topic.query_id: grades[topic.query_id] for topic in topics}

    def some(self, topics: Sequence[Topic], most: int) -> Sequence[Topic]:
        """Draw at most ``most`` topics. They keep their order."""
        if len(topics) <= most:
            return topics
        rows = np.sort(self.rng.choice(len(topics), most, replace=False))
        return [topics[row] for row in rows.tolist()]

    def sizes(
        self, sizes: Sequence[int], topics: Sequence[Topic]
    ) -> npt.NDArray[np.integer]:
        """Draw one of ``sizes`` for each topic, and return them as [Q]."""
        return self.rng.choice(sizes, len(topics))

    def add(
        self,
        collection: str,
        lists: JudgedCandidates,
        forms: Sequence[str] = WITH_SCORES,
        prefix: str | None = None,
        idf: Idf | None = None,
    ) -> None:
        """Add lists of a collection.

        Args:
            collection: name of the collection.
            lists: the lists. If they are parts of lists, they have ``wholes``.
            forms: forms of first stages. One of them is drawn for each list.
            prefix: prefix of the query_ids. None takes a new one.
            idf: word frequencies that half of the complete lists get.
        """
        candidates = lists.candidates
        query_ids = [topic.query_id for topic in candidates.topics]
        wholes = lists.wholes or query_ids
        if prefix is None:
            prefix = f"{self._additions}/"
        self._additions += 1
        forms_of_lists = self.rng.choice(forms, len(query_ids)).tolist()
        for query_id, form in zip(query_ids, forms_of_lists, strict=True):
            self._forms[f"{prefix}{query_id}"] = form
        self._add_candidates(candidates, prefix)
        self.qrels |= _prefixed(lists.qrels, prefix)
        if idf is not None:
            for query_id in self._drawn(query_ids, wholes):
                key = f"{prefix}{query_id}"
                resources = dict(self._resources.get(key, {}))
                self._resources[key] = resources | {FREQUENCIES: idf}
        self._twins += [f"{collection}/{query_id}" for query_id in wholes]
        self._wholes += [f"{self._additions}/{query_id}" for query_id in wholes]
        self._groups += [collection] * len(query_ids)

    def _add_candidates(self, candidates: Candidates, prefix: str) -> None:
        """Add candidates, and put a prefix before their query_ids."""
        for topic in candidates.topics:
            self._topics.append(topic._replace(query_id=f"{prefix}{topic.query_id}"))
        self._posts |= candidates.posts
        self._run |= _prefixed(candidates.run, prefix)
        self._resources |= _prefixed(candidates.resources, prefix)
        for name, run in candidates.signals.items():
            signal = self._signals.setdefault(name, {})
            signal |= _prefixed(run, prefix)

    def _drawn(self, query_ids: Sequence[str], wholes: Sequence[str]) -> list[str]:
        """Draw half of the complete lists, and return the query_ids of their parts."""
        is_drawn: dict[str, bool] = {}
        for whole in wholes:
            if whole not in is_drawn:
                is_drawn[whole] = self._coins.random() < 0.5
        parts = zip(query_ids, wholes, strict=True)
        return [query_id for query_id, whole in parts if is_drawn[whole]]

    def joined(self) -> JudgedCandidates:
        """Return all lists together. Each has a different query_id."""
        candidates = Candidates(
            self._topics,
            self._run,
            self._posts,
            priors={},
            signals=self._signals,
            resources=self._resources,
            forms=self._forms,
        )
        return JudgedCandidates(
            candidates,
            self.qrels,
            self._judged_only,
            groups=self._groups if self.are_mixed else (),
            twins=self._twins,
            wholes=self._wholes,
        )


def _prefixed(values: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """Return the mapping with a prefix before every key."""
    return {f"{prefix}{key}": value for key, value in values.items()}
