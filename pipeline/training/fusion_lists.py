"""Training lists of trees: candidates of all searches, or windows of several first stages."""

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array

from tweetrerank.indexes.methods import BM25
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Qrels, Run, ranked
from tweetrerank.pipeline.defaults import DEFAULT_HITS
from tweetrerank.pipeline.ranking.frequencies import file_of, named_frequencies
from tweetrerank.pipeline.ranking.fusion_ranker import UnionRetriever
from tweetrerank.pipeline.ranking.retrievers import (
    Candidates,
    IndexRetriever,
    Retriever,
    doc_ids_of,
    retriever_for,
    with_resources,
)
from tweetrerank.pipeline.text import say
from tweetrerank.pipeline.training.training_set import JudgedCandidates
from tweetrerank.rerankers.checkpoint import GENERAL, OF_POSTS, idf_from
from tweetrerank.rerankers.pairs import FREQUENCIES, Resources
from tweetrerank.rerankers.text.lexicon import Lexicon
from tweetrerank.rerankers.text.spaces import text_vectors
from tweetrerank.rerankers.text.vocabulary import Idf
from tweetrerank.rerankers.text.words import MENTION_OR_LINK
from tweetrerank.rerankers.trees.fusion import SEARCHES

MOST_TOPICS = 150  # Topics of each of several training collections, at most
WINDOW = 100  # Posts of the window that most clients rerank

WINDOWS = (20, 50, WINDOW, WINDOW, 200)
"""Sizes of the windows of a model that reranks what it is given; one of them is drawn for each
first stage and topic. Of collections with official runs a thousand posts are reranked, too."""

BATCHES = (2, 4, 8, 8, 16, 32)
"""Sizes of the batches in which clients send a window of :data:`WINDOW` posts at most."""

FORMS = ("scores", "order", "nothing")
"""Forms in which ``window`` is given a first stage; see
:attr:`tweetrerank.pipeline.ranking.retrievers.Candidates.forms`."""

ENGINES = BM25(k1=1.2, b=0.75)  # The defaults of Lucene, OpenSearch and Elasticsearch
Scores = Callable[
    [Topic], npt.NDArray[np.floating]
]  # A topic -> a score [N] of each post
DISGUISED = (
    0.3  # Share of the windows whose language is made one that no source of words knows
)

_ALPHABET = {ord(a): chr(0x10D0 + n) for n, a in enumerate(string.ascii_lowercase)}
_DISGUISE = _ALPHABET | {
    ord(a): _ALPHABET[ord(a.lower())] for a in string.ascii_uppercase
}
"""Letter -> letter of another alphabet, Georgian, which has no capitals and no accents."""

_PLAIN = {ord(letter): chr(a) for a, letter in _ALPHABET.items()}


def fusion_lists(
    config: Any, collections: Sequence[Collection], judged_posts: bool = False
) -> JudgedCandidates:
    """Candidates and scores of all rankers of a fusion, for the topics of ``collections``.
    ``judged_posts``: whether the judgments of other topics are read."""
    lists = _Lists(collections)
    for collection in collections:
        retriever = UnionRetriever.of(collection, config)
        say(f"candidates of {collection.name} by {', '.join(retriever.rankers)}")
        topics, judged = lists.topics_of(collection)
        found = with_resources(retriever.search(topics), collection, judged_posts)
        prefix = f"{collection.name}/" * bool(judged.keys() & lists.qrels.keys())
        lists.add(collection.name, found, judged, prefix=prefix)
    return lists.joined()


def window_lists(
    collections: Sequence[Collection],
    most: int,
    judged_posts: bool = False,
    of_posts: bool = True,
) -> JudgedCandidates:
    """Windows of the best posts of several first stages for the topics of ``collections``.

    Each comes with scores or in its order, so a model knows what to read where scores are missing;
    one of each topic comes as a set, and one in batches. Of mixed collections some are in a
    language that nobody knows; with ``of_posts`` half have the word frequencies of the collection's
    posts. First stages are the collection's own, all methods of search, and those of engines. Of a
    single collection the own one's windows with scores, of :data:`WINDOW` posts each, keep their
    query_ids. A topic's forms are held out together.

    ``most`` topics of each of several collections are drawn anew for each first stage, which bounds
    time and memory; ``judged_posts``: whether the judgments of other topics are read.
    """
    lists = _Lists(collections)
    for collection in collections:
        name, sizes = collection.name, (*WINDOWS, 1000) if collection.runs else WINDOWS
        say(f"windows of {name}")
        every, of_every = lists.topics_of(collection)
        idf, of_other = (
            _frequencies(collection) if lists.are_mixed and of_posts else (None, None)
        )
        for number, retriever in enumerate(_first_stages(collection, lists.several)):
            topics = lists.some(every, most) if lists.several else every
            judged = {topic.query_id: of_every[topic.query_id] for topic in topics}
            found = with_resources(
                retriever.search(topics, max(sizes)), collection, judged_posts
            )
            if not lists.several and not number:
                lists.add(
                    name,
                    _windows(found, np.full(len(topics), WINDOW)),
                    judged,
                    prefix="",
                )
            windows = _windows(found, lists.sizes(sizes, topics))
            lists.add(name, windows, judged, FORMS[:2], idf=idf)
            if lists.are_mixed:
                drawn = lists.some(topics, round(DISGUISED * len(topics)))
                disguised = _disguised(replace(windows, topics=drawn), judged)
                lists.add(name, *disguised, FORMS[:2], idf=of_other)
        # A set is the same set whoever found it.
        lists.add(
            name,
            _windows(found, lists.sizes(sizes, topics)),
            judged,
            FORMS[2:],
            idf=idf,
        )
        batches = _windows(found, lists.sizes((20, 50, WINDOW), topics))
        lists.add_batches(name, batches, judged, idf)
        if lists.are_mixed:
            drawn = lists.some(topics, round(DISGUISED * len(topics)))
            lists.add_batches(
                name, *_disguised(replace(batches, topics=drawn), judged), of_other
            )
    return lists.joined()


class _Lists:
    """Lists of candidates in the forms in which they may come, drawn at random. Where collections
    are mixed, for models of collections of any kind, signals may be missing, and all collections
    have the same weight."""

    def __init__(self, collections: Sequence[Collection]) -> None:
        self.qrels: Qrels = {}
        self.several = len(collections) > 1
        self.are_mixed = self.several and not all(
            collection.runs for collection in collections
        )
        self._judged_only = any(collection.judged_only for collection in collections)
        self._topics, self._run, self._posts = list[Topic](), Run(), dict[str, Post]()
        self._signals, self._forms = dict[str, Run](), dict[str, str]()
        self._resources = dict[str, Resources]()
        self._twins, self._groups, self._wholes = list[str](), list[str](), list[str]()
        self._parts = 0  # Number of calls of :meth:`add`
        self._rng, self._coins = np.random.default_rng(1), np.random.default_rng(2)

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

    def sizes(
        self, sizes: Sequence[int], topics: Sequence[Topic]
    ) -> npt.NDArray[np.integer]:
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
        idf: Idf | None = None,
    ) -> None:
        """Add the lists of a collection; of ``forms`` one is drawn for each. ``prefix`` is that of
        each query_id, None is a new one; ``wholes`` are the query_ids of the topics that the lists
        are parts of, if they are parts; half of the topics have the word frequencies ``idf``."""
        prefix = f"{self._parts}/" if prefix is None else prefix
        self._parts += 1
        ids = [topic.query_id for topic in found.topics]
        drawn = dict(zip(ids, self._rng.choice(forms, len(ids)).tolist(), strict=True))
        self._topics += [
            t._replace(query_id=f"{prefix}{t.query_id}") for t in found.topics
        ]
        self._posts.update(found.posts)
        self._run |= _prefixed(found.run, prefix)
        self._resources |= _prefixed(found.resources, prefix)
        self._forms |= _prefixed(drawn, prefix)
        self.qrels |= _prefixed(judged, prefix)
        for of, run in found.signals.items():
            self._signals.setdefault(of, {}).update(_prefixed(run, prefix))
        whole = wholes or ids
        coins = {
            query_id: idf and self._coins.random() < 0.5
            for query_id in dict.fromkeys(whole)
        }
        for of_whole, query_id in zip(whole, ids, strict=True):
            if coins[of_whole]:
                known = self._resources.get(key := f"{prefix}{query_id}", {})
                self._resources[key] = {**known, FREQUENCIES: idf}
        self._twins += [f"{name}/{query_id}" for query_id in whole]
        self._wholes += [f"{self._parts}/{query_id}" for query_id in whole]
        self._groups += [name] * len(ids)

    def add_batches(
        self, name: str, found: Candidates, judged: Qrels, idf: Idf | None
    ) -> None:
        """Add the lists in batches, half of them in no order, which compare with each other."""
        batches: list[tuple[Topic, str, dict[str, float]]] = []
        for topic, size in zip(
            found.topics, self.sizes(BATCHES, found.topics), strict=True
        ):
            best, whole = ranked(found.run.get(topic.query_id, {})), topic.query_id
            if self._rng.random() < 0.5:
                best = [best[row] for row in self._rng.permutation(len(best)).tolist()]
            for start in range(0, len(best), int(size)):
                part = dict(best[start : start + int(size)])
                batches.append(
                    (topic._replace(query_id=f"{whole}/{start}"), whole, part)
                )
        parts = replace(
            found,
            topics=[topic for topic, _, _ in batches],
            run={topic.query_id: part for topic, _, part in batches},
            resources={
                t.query_id: found.resources.get(whole, {}) for t, whole, _ in batches
            },
        )
        grades = {topic.query_id: judged[whole] for topic, whole, _ in batches}
        self.add(
            name, parts, grades, FORMS[::2], wholes=[w for _, w, _ in batches], idf=idf
        )

    def joined(self) -> JudgedCandidates:
        """All lists, whose topics all differ."""
        known = (
            self._topics,
            self._run,
            self._posts,
            Run(),
            self._signals,
            self._resources,
        )
        candidates = Candidates(*known, forms=self._forms)
        of_lists = self._groups if self.are_mixed else (), self._twins, self._wholes
        return JudgedCandidates(candidates, self.qrels, self._judged_only, *of_lists)


def _prefixed(mapping: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The mapping with a prefix before every key."""
    return {f"{prefix}{key}": value for key, value in mapping.items()}


def _disguised(found: Candidates, judged: Qrels) -> tuple[Candidates, Qrels]:
    """Candidates and judgments with the letters of another alphabet, a language nobody knows."""

    def other(text: str) -> str:
        parts = MENTION_OR_LINK.split(text)
        kept = [*MENTION_OR_LINK.findall(text), ""]
        return "".join(
            p.translate(_DISGUISE) + k for p, k in zip(parts, kept, strict=True)
        )

    topics, prefix = found.topics, "disguised/"
    known = {
        t.query_id: found.run[t.query_id] for t in topics if t.query_id in found.run
    }
    of_run = {d: found.posts[d] for d in doc_ids_of(known)}
    candidates = Candidates(
        [topic._replace(text=other(topic.text)) for topic in topics],
        {query_id: _prefixed(scores, prefix) for query_id, scores in known.items()},
        _prefixed(
            {d: post._replace(text=other(post.text)) for d, post in of_run.items()},
            prefix,
        ),
    )
    return candidates, {
        q: _prefixed(grades, prefix) for q, grades in judged.items() if q in known
    }


def _frequencies(collection: Collection) -> tuple[Idf | None, Idf | None]:
    """Word frequencies of a collection's posts, also in the other alphabet's letters."""
    if (path := file_of(collection)) is None:
        return None, None
    own, general = Idf.read(path), idf_from(named_frequencies(GENERAL, collection))
    other = replace(own, share=lambda word: own.share(word.translate(_PLAIN)))
    return own.smoothed(general, OF_POSTS), other.smoothed(general, OF_POSTS)


def _first_stages(collection: Collection, several: bool) -> list[Retriever]:
    """The collection's own first stage, the methods of search besides, and those of engines. The
    latter are for models of several collections: they take all posts into memory. Questions with
    given answers have the latter alone."""
    if collection.answers:
        return [*memory_retrievers(collection)]
    own = retriever_for(collection)
    if not collection.methods:
        return [own]
    others = [
        name for name in SEARCHES if name in collection.methods and name != own.name
    ]
    found = [own, *(retriever_for(collection, method=name) for name in others)]
    if not several or collection.engine:
        return found
    engines = IndexRetriever(collection.open_index(), ENGINES)
    return [*found, engines, *memory_retrievers(collection)]


def _windows(found: Candidates, sizes: npt.NDArray[np.integer]) -> Candidates:
    """The best posts of each topic, as many as its size [Q] says."""
    wanted = zip(found.topics, sizes.tolist(), strict=True)
    run = {
        t.query_id: dict(ranked(found.run.get(t.query_id, {}))[:size])
        for t, size in wanted
    }
    run = {query_id: scores for query_id, scores in run.items() if scores}
    return replace(found, run=run, posts={d: found.posts[d] for d in doc_ids_of(run)})


# First stages of engines, computed in memory: BM25 as engines have it, a vector search, a hybrid.
# Models of lists are trained on what a reranker behind an engine is given.


@dataclass(frozen=True)
class MemoryRetriever:
    """Ranks all posts of a collection by scores computed in memory. Only posts with a score above
    ``least`` are found, and none later than the topic."""

    name: str
    posts: Sequence[Post]
    scores: Scores
    least: float = 0.0

    def search(self, topics: Sequence[Topic], hits: int = DEFAULT_HITS) -> Candidates:
        """The best ``hits`` posts of each topic."""
        run: Run = {}
        for topic in topics:
            scores = self.scores(topic)
            if topic.max_doc_id is not None:
                late = [int(post.doc_id) > int(topic.max_doc_id) for post in self.posts]
                scores = np.where(late, -np.inf, scores)
            best = np.argsort(-scores, kind="stable")[:hits]
            found = {
                self.posts[n].doc_id: float(scores[n])
                for n in best
                if scores[n] > self.least
            }
            if found:
                run[topic.query_id] = found
        posts = {post.doc_id: post for post in self.posts}
        return Candidates(topics, run, {d: posts[d] for d in doc_ids_of(run)})


def memory_retrievers(collection: Collection) -> list[MemoryRetriever]:
    """BM25 of words without stems, the cosine of general word vectors, and their hybrid's sum."""
    posts = list(collection.posts())
    lexical, cosine = (
        bm25([post.text for post in posts]),
        _cosine([post.text for post in posts]),
    )

    def hybrid(topic: Topic) -> npt.NDArray[np.floating]:
        words, meaning = lexical(topic), cosine(topic)
        return words / max(words.max(initial=0.0), 1e-9) + meaning

    return [
        MemoryRetriever("standard", posts, lexical),
        MemoryRetriever("cosine", posts, cosine, -1.0),
        MemoryRetriever("hybrid", posts, hybrid),
    ]


def bm25(texts: Sequence[str]) -> Scores:
    """BM25 over words as an engine's analyzer ``standard`` has them: no stems, all words."""
    lexicon = Lexicon.from_texts(texts)
    numbers = {word: number for number, word in enumerate(lexicon.words)}
    shape = len(texts), len(lexicon.words)
    ones = np.ones(len(lexicon.texts.values))
    counts = csc_array((ones, (lexicon.texts.owners, lexicon.texts.values)), shape)
    counts.sum_duplicates()
    holders = np.diff(counts.indptr)
    idf = np.log1p((len(texts) - holders + 0.5) / (holders + 0.5))
    lengths = lexicon.texts.lengths
    norm = ENGINES.k1 * (1 - ENGINES.b + ENGINES.b * lengths / max(lengths.mean(), 1.0))
    counts.data = counts.data / (counts.data + norm[counts.indices])

    def scores(topic: Topic) -> npt.NDArray[np.floating]:
        asked = Lexicon.from_texts([topic.text])
        found = np.zeros(len(texts))
        for row in asked.texts.values.tolist():
            if (number := numbers.get(asked.words[row])) is not None:
                places = slice(*counts.indptr[number : number + 2])
                found[counts.indices[places]] += counts.data[places] * idf[number]
        return found

    return scores


def _cosine(texts: Sequence[str]) -> Scores:
    """Cosine of the sums of general word vectors."""
    # Blocks bound the kept words.
    blocks = [
        text_vectors(texts[start : start + 4096])
        for start in range(0, len(texts), 4096)
    ]
    known = np.concatenate(blocks)
    return lambda topic: known @ text_vectors([topic.text])[0]
