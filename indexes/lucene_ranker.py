"""Rank posts by a retrieval method of Lucene or Anserini."""

import json
import random
from array import array
from typing import Any

from tweetrerank.indexes.analysis import analyze, searchable
from tweetrerank.indexes.jvm import JAVA_LOCK, call, java_class
from tweetrerank.indexes.methods import (
    BM25,
    RM3,
    Axiomatic,
    EngineQuery,
    Method,
)

CONTENTS = "contents"  # Field of the texts
ID = "id"  # Field of the posts' ids, for Pyserini
PLACE = "place"
"""Field of the posts' places, for filters. A place is the post's number in Lucene."""

Ranking = tuple[list[int], list[float]]  # Places of posts, best first, and their scores

_MAX_CLAUSES = 1 << 16
"""Limit of the words of a query, far above any. Lucene's default limit is 1024."""

_READERS = "[Lorg/apache/lucene/index/CompositeReader;"
_PARALLEL_READER = f"(Z{_READERS}{_READERS})V"
"""Signature of Java. The arguments are whether to close the readers, the readers, and
the readers of documents."""


class Ranker:
    """Ranks posts by one method. :meth:`rank` may be called from several threads.

    New posts have lower places than old ones, so a topic's time limit is the first
    place that is visible. The limit holds in every round: in the first search, in the
    random draw of :class:`Axiomatic`, and in the second search. Word statistics are
    those of the whole collection. ``reader`` is Lucene's IndexReader, in which the
    number of a post is its place. ``with_analyzer`` is the analyzer of the index.
    """

    def __init__(
        self, reader: Any, with_analyzer: Any, method: Method, hits: int
    ) -> None:
        self._method = method
        self._hits = hits
        self._analyzer = with_analyzer
        if isinstance(method, RM3 | Axiomatic):
            # Anserini reads the document of each result, which takes longer than the
            # search. In this reader documents have no fields, but it has the term
            # vectors of the index.
            parallel = java_class("org.apache.lucene.index.ParallelCompositeReader")
            reader = parallel(True, [reader], [], signature=_PARALLEL_READER)
        searcher = java_class("org.apache.lucene.search.IndexSearcher")
        searcher.setMaxClauseCount(_MAX_CLAUSES)
        self._searcher = searcher(
            reader, signature="(Lorg/apache/lucene/index/IndexReader;)V"
        )
        similarity = _similarity(method)
        with JAVA_LOCK:
            self._searcher.setSimilarity(similarity)
            self._size: int = reader.maxDoc()
        self._points = java_class("org.apache.lucene.document.IntPoint")
        self._words = java_class("io.anserini.search.query.BagOfWordsQueryGenerator")()
        self._scored = java_class("io.anserini.search.ScoredDocs")
        self._json = java_class("com.fasterxml.jackson.databind.ObjectMapper")()
        # Loaded here, before many threads need it.
        java_class("org.apache.lucene.search.TopDocs")
        self._arguments = java_class("io.anserini.search.SearchCollection$Args")()
        self._arguments.hits = hits
        # With this, posts of equal score stay in the order of the index: new to old.
        self._arguments.arbitraryScoreTieBreak = True

    def rank(self, text: str, first_place: int = 0) -> Ranking:
        """Return the places and scores of the best posts for a query.

        Only posts from ``first_place`` on are ranked. Both lists are empty if the query
        has no indexed word.
        """
        text = searchable(text)
        with JAVA_LOCK:
            terms = analyze(text, self._analyzer)
            if not terms.size():
                return [], []
            query = self._words.buildQuery(CONTENTS, self._analyzer, text)
        visible = None
        if first_place:
            visible = self._points.newRangeQuery(PLACE, first_place, self._size)
        method = self._method
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
        ranking = self._expanded_ranking(method, best, context)
        # Common words have no weight for Axiomatic, and the expanded query may be
        # empty.
        return ranking if ranking[0] else self._ranking(query, visible)

    def _expanded_ranking(
        self, method: RM3 | Axiomatic, pool: Any, context: Any
    ) -> Ranking:
        """Return the result of the query with words added from a pool of posts.

        The result is empty if no word can be added.
        """
        feedback = self._feedback(method, len(pool.lucene_docids))
        try:
            result = call(feedback, "rerank", pool, context)
            return list(result.lucene_docids), list(result.scores)
        except Exception as error:
            # In a small collection all words of the best posts may be too common for
            # RM3.
            if "boost must be a positive float" not in str(error):
                raise
            return [], []

    def _ranking(self, query: Any, visible: Any) -> Ranking:
        """Return the result of one search. ``visible`` is a filter of posts or None."""
        result = self._search(query, visible, self._hits)
        # Passing the result as text is ten times faster than by Anserini, which fetches
        # all posts as documents.
        hits = json.loads(call(self._json, "writeValueAsString", result))["scoreDocs"]
        places = [hit["doc"] for hit in hits]
        # Java prints single-precision scores with as few decimals as identify them.
        scores = array("f", [hit["score"] for hit in hits]).tolist()
        return places, scores

    def _scored_docs(self, query: Any, visible: Any, hits: int) -> Any:
        """Return the result of one search as Anserini's ScoredDocs, for feedback."""
        result = self._search(query, visible, hits)
        return self._scored.fromTopDocs(result, self._searcher)

    def _search(self, query: Any, visible: Any, hits: int) -> Any:
        """Return the result of one search as Lucene's TopDocs."""
        if visible is not None:
            occur = java_class("org.apache.lucene.search.BooleanClause$Occur")
            builder = java_class("org.apache.lucene.search.BooleanQuery$Builder")()
            with JAVA_LOCK:
                builder.add(query, occur.MUST)
                builder.add(visible, occur.FILTER)
                query = builder.build()
        count = java_class("java.lang.Integer")(hits)
        return call(self._searcher, "search", query, count)

    def _feedback(self, method: RM3 | Axiomatic, size: int) -> Any:
        """Return Anserini's reranker of a method, for a pool of ``size`` posts."""
        if isinstance(method, RM3):
            return java_class("io.anserini.rerank.lib.Rm3Reranker")(
                self._analyzer,
                None,  # Parser of raw posts
                CONTENTS,
                method.fb_terms,
                method.fb_docs,
                method.original_weight,
                False,  # Print the query
                True,  # Filter terms
            )
        # With r = the size of the pool and n = 1, Anserini draws no posts itself. It
        # would also draw posts after the topic's time limit.
        return java_class("io.anserini.rerank.lib.AxiomReranker")(
            self._analyzer,
            None,  # Parser of raw posts
            None,  # Path of the index
            None,  # Path of another index to draw from
            CONTENTS,
            True,  # Deterministic
            method.seed,
            size,  # r
            1,  # n
            method.beta,
            method.fb_terms,
            None,  # Cache of ids
            False,  # Print the query
            False,  # Posts are tweets in Anserini's form
        )

    def _pool(self, best: Any, first_place: int, method: Axiomatic) -> Any:
        """Return the pool of a method: the best posts, filled up with random ones."""
        places = set(best.lucene_docids)
        visible = self._size - first_place
        size = min(visible, method.fb_docs * method.pool_factor)
        # Ages count from the oldest post, so that the draw does not depend on posts
        # after the time limit.
        for age in random.Random(method.seed).sample(range(visible), size):
            if len(places) == size:
                break
            places.add(self._size - 1 - age)
        query = self._points.newSetQuery(PLACE, *sorted(places))
        return self._scored_docs(query, None, size)


def _similarity(method: Method) -> Any:
    """Return Lucene's similarity for a method, as an object of Java."""
    package = "org.apache.lucene.search.similarities"
    if isinstance(method, BM25):
        return java_class(f"{package}.BM25Similarity")(method.k1, method.b)
    assert not isinstance(method, EngineQuery)
    return java_class(f"{package}.LMDirichletSimilarity")(method.mu)
