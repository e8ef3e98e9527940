"""Ranking of posts for one query at a time, by Lucene and Anserini."""

import json
import random
from array import array
from typing import Any

from indexes.analysis import searchable
from indexes.jvm import JAVA_LOCK, call, java_class, java_exception
from indexes.methods import BM25, RM3, Axiomatic, EngineQuery, Method

CONTENTS = "contents"  # Field of the texts
ID = "id"  # Field of the posts' ids, which Pyserini reads

PLACE = "place"
"""Field of the posts' places, equal to their numbers in Lucene, for filters by place."""

Ranking = tuple[list[int], list[float]]  # Places of posts, best first, and their scores

# Far more words than any query has; Lucene's own limit is 1024.
_MAX_CLAUSES = 1 << 16


def analyze(text: str, with_analyzer: Any) -> Any:
    """The terms of a text, as a Java list."""
    analyzers = java_class("io.anserini.analysis.AnalyzerUtils")
    return analyzers.analyze(with_analyzer, searchable(text))


class Ranker:
    """Ranks posts by one method; :meth:`rank` may be called from several threads.

    As new posts have lower places than old ones, a topic's time limit is a first place. It holds in
    every round: in the first search, in the random draw of :class:`Axiomatic` and in the second
    search. Word statistics are always those of the whole collection. A post's number in the
    reader, Lucene's IndexReader, is its place. ``with_analyzer`` is that of the index.
    """

    def __init__(self, reader: Any, with_analyzer: Any, method: Method, hits: int) -> None:
        searcher_class = java_class("org.apache.lucene.search.IndexSearcher")
        searcher_class.setMaxClauseCount(_MAX_CLAUSES)
        self._searcher = searcher_class(
            reader, signature="(Lorg/apache/lucene/index/IndexReader;)V"
        )
        with JAVA_LOCK:
            self._searcher.setSimilarity(_similarity(method))
            self._size: int = reader.maxDoc()
        self._method, self._hits = method, hits
        self._analyzer = with_analyzer
        self._points = java_class("org.apache.lucene.document.IntPoint")
        self._words = java_class("io.anserini.search.query.BagOfWordsQueryGenerator")()
        self._scored = java_class("io.anserini.search.ScoredDocs")
        self._json = java_class("com.fasterxml.jackson.databind.ObjectMapper")()
        java_class("org.apache.lucene.search.TopDocs")  # seen here first, not in many threads
        self._arguments = java_class("io.anserini.search.SearchCollection$Args")()
        self._arguments.hits = hits
        # Posts of equal score then stay in the order of the index, from new to old.
        self._arguments.arbitraryScoreTieBreak = True

    def rank(self, text: str, first_place: int = 0) -> Ranking:
        """The best posts for a query, among those from ``first_place`` on."""
        text = searchable(text)
        with JAVA_LOCK:
            terms = analyze(text, self._analyzer)
            if not terms.size():
                return [], []
            query = self._words.buildQuery(CONTENTS, self._analyzer, text)
        limit = self._points.newRangeQuery(PLACE, first_place, self._size)
        visible = limit if first_place else None
        method = self._method
        if not isinstance(method, RM3 | Axiomatic):
            return self._ranking(query, visible)
        first = self._scored_docs(query, visible, method.fb_docs)
        if not len(first.lucene_docids):
            return [], []
        context = java_class("io.anserini.rerank.RerankerContext")(
            self._searcher, None, query, None, text, terms, visible, self._arguments
        )
        if isinstance(method, RM3):
            try:
                return _as_lists(call(self._rm3(method), "rerank", first, context))
            except java_exception() as error:
                # In a small collection all words of the best posts may be too common to add.
                if "boost must be a positive float" not in str(error):
                    raise
                return self._ranking(query, visible)
        pool = self._pool(first, first_place, method)
        ranking = _as_lists(call(self._axiomatic(method, pool), "rerank", pool, context))
        # In a small collection, words that most posts have get no weight, and the query is empty.
        return ranking if ranking[0] else self._ranking(query, visible)

    def _ranking(self, query: Any, visible: Any) -> Ranking:
        """The result of one search; ``visible`` is a filter or None."""
        # As a text, in a tenth of the time that Anserini needs to fetch all posts as documents.
        found = call(self._json, "writeValueAsString", self._search(query, visible, self._hits))
        best = json.loads(found)["scoreDocs"]
        # Java's shortest decimals, as the single precision that they stand for.
        return [hit["doc"] for hit in best], array("f", [hit["score"] for hit in best]).tolist()

    def _scored_docs(self, query: Any, visible: Any, hits: int) -> Any:
        """The result of one search as Anserini's ScoredDocs, for feedback."""
        return self._scored.fromTopDocs(self._search(query, visible, hits), self._searcher)

    def _search(self, query: Any, visible: Any, hits: int) -> Any:
        """One search, as Lucene's TopDocs; ``visible`` is a filter or None."""
        if visible is not None:
            occur = java_class("org.apache.lucene.search.BooleanClause$Occur")
            builder = java_class("org.apache.lucene.search.BooleanQuery$Builder")()
            with JAVA_LOCK:
                builder.add(query, occur.MUST)
                builder.add(visible, occur.FILTER)
                query = builder.build()
        return call(self._searcher, "search", query, java_class("java.lang.Integer")(hits))

    def _rm3(self, method: RM3) -> Any:
        return java_class("io.anserini.rerank.lib.Rm3Reranker")(
            self._analyzer,
            None,  # class of the parser of raw posts
            CONTENTS,
            method.fb_terms,
            method.fb_docs,
            method.original_weight,
            False,  # print the query
            True,  # filter terms
        )

    def _axiomatic(self, method: Axiomatic, pool: Any) -> Any:
        return java_class("io.anserini.rerank.lib.AxiomReranker")(
            self._analyzer,
            None,  # class of the parser of raw posts
            None,  # path of the index, for a cache of its ids
            None,  # path of another index to draw from
            CONTENTS,
            True,  # deterministic
            method.seed,
            # With r = all posts of the pool and n = 1 Anserini draws no posts itself; it would
            # draw from the whole index, posts after the topic's time limit included.
            len(pool.lucene_docids),
            1,
            method.beta,
            method.fb_terms,
            None,  # path of a cache of ids
            False,  # print the query
            False,  # tweets in Anserini's own form
        )

    def _pool(self, first: Any, first_place: int, method: Axiomatic) -> Any:
        """The best posts, filled up by random ones to the size of the pool, as ScoredDocs."""
        places = set(first.lucene_docids)
        visible = self._size - first_place
        wanted = min(visible, method.fb_docs * method.pool_factor)
        # Counted from the oldest post, so that the draw does not depend on later posts.
        for drawn in random.Random(method.seed).sample(range(visible), wanted):
            if len(places) == wanted:
                break
            places.add(self._size - 1 - drawn)
        return self._scored_docs(self._points.newSetQuery(PLACE, *sorted(places)), None, wanted)


def _similarity(method: Method) -> Any:
    package = "org.apache.lucene.search.similarities."
    if isinstance(method, BM25):
        return java_class(package + "BM25Similarity")(method.k1, method.b)
    assert not isinstance(method, EngineQuery)
    return java_class(package + "LMDirichletSimilarity")(method.mu)


def _as_lists(scored: Any) -> Ranking:
    return list(scored.lucene_docids), list(scored.scores)
