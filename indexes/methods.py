"""Topics, retrieval methods with their parameters, and search by these in Lucene and Anserini.

The README of this folder says how the methods' defaults were chosen.
"""

import json
import random
from array import array
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from tweetrerank.indexes.analysis import analyze, searchable
from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.jvm import JAVA_LOCK, call, java_class
from tweetrerank.indexes.store import is_number

CONTENTS, ID = (
    "contents",
    "id",
)  # Fields of the texts, and of the posts' ids, for Pyserini
PLACE = (
    "place"  # Field of the posts' places, equal to their numbers in Lucene, for filters
)
Ranking = tuple[list[int], list[float]]  # Places of posts, best first, and their scores
_MAX_CLAUSES = 1 << 16  # Far more words than any query has; Lucene's own limit is 1024
# Whether to close the readers, the readers, and those of documents
_OF_READERS = "(Z{0}{0})V".format("[Lorg/apache/lucene/index/CompositeReader;")

_TINY, _INFINITE = 1e-300, float("inf")
_RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("mu", "beta"), (_TINY, _INFINITE)),
    **dict.fromkeys(("b", "original_weight"), (0, 1)),
    **dict.fromkeys(("fb_terms", "fb_docs", "pool_factor"), (1, _INFINITE)),
    "k1": (0, _INFINITE),
    "seed": (-_INFINITE, _INFINITE),
}


class _Parameters:
    def __post_init__(self) -> None:
        """Raise DataError naming the parameters that are out of range."""
        given = [(name, value, *_RANGES[name]) for name, value in vars(self).items()]
        if bad := [f"{k}={v}" for k, v, low, high in given if not low <= v <= high]:
            raise DataError(
                f"{type(self).__name__}: found {', '.join(bad)}; "
                "expected values in the ranges that its description names"
            )


@dataclass(frozen=True)
class QueryLikelihood(_Parameters):
    """Query likelihood with Dirichlet smoothing (Zhai & Lafferty, 2001)."""

    name: ClassVar[str] = "ql"
    mu: float = 100.0
    """Weight of the collection's language model against the post's, in words; above 0."""


@dataclass(frozen=True)
class BM25(_Parameters):
    """Okapi BM25, in Lucene's form (without the constant factor k1 + 1)."""

    name: ClassVar[str] = "bm25"
    k1: float = 0.15  # Term frequency saturation; at least 0
    b: float = 0.0
    """Length normalization, 0 to 1. With 0 equal scores are frequent; new posts come first."""


@dataclass(frozen=True)
class RM3(_Parameters):
    """Pseudo-relevance feedback with the relevance model RM3 (Abdul-Jaleel et al., 2004)."""

    name: ClassVar[str] = "rm3"
    fb_terms: int = 30  # Number of words that are added to the query
    fb_docs: int = 5  # Number of best posts of the first round that supply them
    original_weight: float = 0.3  # Share of the original query in the new one, 0 to 1
    mu: float = (
        50.0  # Dirichlet smoothing of both rounds, as in :class:`QueryLikelihood`
    )


@dataclass(frozen=True)
class Axiomatic(_Parameters):
    """Axiomatic semantic term matching as feedback (Yang & Lin, 2019; Fang & Zhai, 2006). Words are
    weighted by their mutual information with the query's words in a pool of the best posts and of
    random posts within the topic's time limit, which depend on the seed alone."""

    name: ClassVar[str] = "axiom"
    fb_docs: int = (
        10  # Number of best posts of the first round in the pool (``r`` in Anserini)
    )
    pool_factor: int = (
        8  # Size of the pool in multiples of ``fb_docs`` (``n`` in Anserini)
    )
    beta: float = 0.7  # Weight of added words, above 0
    fb_terms: int = (
        50  # Number of words in the new query, the original ones included (``top``)
    )
    mu: float = (
        50.0  # Dirichlet smoothing of both rounds, as in :class:`QueryLikelihood`
    )
    seed: int = 42  # Of the random draw


@dataclass(frozen=True)
class EngineQuery(_Parameters):
    """The query of an index in a search engine that ranks by its own (:mod:`tweetrerank.indexes.engines`)."""

    name: ClassVar[str] = "the engine's own query"


Method = QueryLikelihood | BM25 | RM3 | Axiomatic | EngineQuery

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (QueryLikelihood, BM25, RM3, Axiomatic)
}  # Name on the command line -> method


class Topic(NamedTuple):
    """A query with an optional time limit."""

    query_id: str  # Key of its results; one word
    text: str  # The query
    time: str | None = (
        None  # The time limit as a date, for an index that limits posts by dates
    )
    max_doc_id: str | None = None
    """The newest post within the time limit, a whole number; None for no limit."""


def id_limit(topic: Topic, numeric_ids: bool, index: object) -> int | None:
    """The number of the newest post within a topic's time limit, None without a limit; raises
    DataError if the limit is no number, or the ids of the index (its name) are not."""
    if topic.max_doc_id is None:
        return None
    if not numeric_ids:
        raise DataError(
            f"topic {topic.query_id} is limited to posts up to {topic.max_doc_id}, but the "
            f"ids of {index} are not all whole numbers; remove the time limit from "
            "the topic, or give the posts ids that grow with time"
        )
    if not is_number(topic.max_doc_id):
        raise DataError(
            f"topic {topic.query_id}: found the time limit {topic.max_doc_id!r}, "
            "expected the id of a post (a whole number)"
        )
    return int(topic.max_doc_id)


class Ranker:
    """Ranks posts by one method; :meth:`rank` may be called from several threads.

    As new posts have lower places than old ones, a topic's time limit is a first place. It holds in
    every round: in the first search, in the random draw of :class:`Axiomatic` and in the second
    search. Word statistics are those of the whole collection. A post's number in the reader,
    Lucene's IndexReader, is its place. ``with_analyzer`` is that of the index.
    """

    def __init__(
        self, reader: Any, with_analyzer: Any, method: Method, hits: int
    ) -> None:
        if isinstance(method, RM3 | Axiomatic):
            # Anserini reads each result's document, which takes longer than the search: here none
            # has a field, and their term vectors are those of the index.
            parts = java_class("org.apache.lucene.index.ParallelCompositeReader")
            reader = parts(True, [reader], [], signature=_OF_READERS)
        searcher = java_class("org.apache.lucene.search.IndexSearcher")
        searcher.setMaxClauseCount(_MAX_CLAUSES)
        self._searcher = searcher(
            reader, signature="(Lorg/apache/lucene/index/IndexReader;)V"
        )
        similarities = "org.apache.lucene.search.similarities."
        if isinstance(method, BM25):
            similarity = java_class(f"{similarities}BM25Similarity")(
                method.k1, method.b
            )
        else:
            assert not isinstance(method, EngineQuery)
            similarity = java_class(f"{similarities}LMDirichletSimilarity")(method.mu)
        with JAVA_LOCK:
            self._searcher.setSimilarity(similarity)
            self._size: int = reader.maxDoc()
        self._method, self._hits, self._analyzer = method, hits, with_analyzer
        self._points = java_class("org.apache.lucene.document.IntPoint")
        self._words = java_class("io.anserini.search.query.BagOfWordsQueryGenerator")()
        self._scored = java_class("io.anserini.search.ScoredDocs")
        self._json = java_class("com.fasterxml.jackson.databind.ObjectMapper")()
        java_class(
            "org.apache.lucene.search.TopDocs"
        )  # seen here first, not in many threads
        self._arguments = java_class("io.anserini.search.SearchCollection$Args")()
        self._arguments.hits = hits
        # Posts of equal score then stay in the order of the index, from new to old.
        self._arguments.arbitraryScoreTieBreak = True

    def rank(self, text: str, first_place: int = 0) -> Ranking:
        """The best posts for a query, among those from ``first_place`` on."""
        text = searchable(text)
        with JAVA_LOCK:
            if not (terms := analyze(text, self._analyzer)).size():
                return [], []
            query = self._words.buildQuery(CONTENTS, self._analyzer, text)
        limit = self._points.newRangeQuery(PLACE, first_place, self._size)
        visible, method = limit if first_place else None, self._method
        if not isinstance(method, RM3 | Axiomatic):
            return self._ranking(query, visible)
        best = self._scored_docs(query, visible, method.fb_docs)
        if not len(best.lucene_docids):
            return [], []
        context = java_class("io.anserini.rerank.RerankerContext")(
            self._searcher, None, query, None, text, terms, visible, self._arguments
        )
        if isinstance(method, Axiomatic):
            best = self._pool(best, first_place, method)
        try:
            found = call(
                self._feedback(method, len(best.lucene_docids)), "rerank", best, context
            )
            ranking = list(found.lucene_docids), list(found.scores)
        except Exception as error:
            # In a small collection all words of the best posts may be too common for RM3 to add.
            if "boost must be a positive float" not in str(error):
                raise
            ranking = [], []
        # For Axiomatic such words have no weight, and the query is empty.
        return ranking if ranking[0] else self._ranking(query, visible)

    def _ranking(self, query: Any, visible: Any) -> Ranking:
        """The result of one search; ``visible`` is a filter or None."""
        # As a text, in a tenth of the time that Anserini needs to fetch all posts as documents.
        found = call(
            self._json, "writeValueAsString", self._search(query, visible, self._hits)
        )
        best = json.loads(found)["scoreDocs"]
        # Java's shortest decimals, as the single precision that they stand for.
        return [hit["doc"] for hit in best], array(
            "f", [hit["score"] for hit in best]
        ).tolist()

    def _scored_docs(self, query: Any, visible: Any, hits: int) -> Any:
        """The result of one search as Anserini's ScoredDocs, for feedback."""
        return self._scored.fromTopDocs(
            self._search(query, visible, hits), self._searcher
        )

    def _search(self, query: Any, visible: Any, hits: int) -> Any:
        """One search, as Lucene's TopDocs."""
        if visible is not None:
            occur = java_class("org.apache.lucene.search.BooleanClause$Occur")
            builder = java_class("org.apache.lucene.search.BooleanQuery$Builder")()
            with JAVA_LOCK:
                builder.add(query, occur.MUST)
                builder.add(visible, occur.FILTER)
                query = builder.build()
        return call(
            self._searcher, "search", query, java_class("java.lang.Integer")(hits)
        )

    def _feedback(self, method: RM3 | Axiomatic, size: int) -> Any:
        """Anserini's reranker of a method, for a pool of ``size`` posts."""
        if isinstance(method, RM3):
            # None: the parser of raw posts. The query is not printed; terms are filtered.
            weights = method.fb_terms, method.fb_docs, method.original_weight
            kind = java_class("io.anserini.rerank.lib.Rm3Reranker")
            return kind(self._analyzer, None, CONTENTS, *weights, False, True)
        # None: the parser of raw posts, and paths of the index and of another one to draw from.
        index = self._analyzer, None, None, None, CONTENTS
        # With r = all posts of the pool and n = 1 Anserini draws no posts itself; it would draw
        # from the whole index, posts after the topic's time limit included. True: deterministic.
        draw = True, method.seed, size, 1
        # No cache of ids; the query is not printed; no tweets in Anserini's own form.
        others = method.beta, method.fb_terms, None, False, False
        return java_class("io.anserini.rerank.lib.AxiomReranker")(
            *index, *draw, *others
        )

    def _pool(self, best: Any, first_place: int, method: Axiomatic) -> Any:
        """The best posts, filled up by random ones to the size of the pool, as ScoredDocs."""
        places = set(best.lucene_docids)
        visible = self._size - first_place
        wanted = min(visible, method.fb_docs * method.pool_factor)
        # Counted from the oldest post, so that the draw does not depend on later posts.
        for drawn in random.Random(method.seed).sample(range(visible), wanted):
            if len(places) == wanted:
                break
            places.add(self._size - 1 - drawn)
        return self._scored_docs(
            self._points.newSetQuery(PLACE, *sorted(places)), None, wanted
        )
