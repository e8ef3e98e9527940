"""Compute the first stages of search engines in memory: BM25, vectors, and a hybrid.

Models of lists are trained on the candidates that a reranker behind a search engine
gets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array

from tweetrerank.indexes.methods import BM25
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Run
from tweetrerank.pipeline.defaults import DEFAULT_HITS
from tweetrerank.pipeline.ranking.retrievers import Candidates, doc_ids_of
from tweetrerank.rerankers.text.lexicon import Lexicon
from tweetrerank.rerankers.text.spaces import text_vectors

Floats = npt.NDArray[np.floating]
# Takes a topic and returns the score of each post, [N]
Scores = Callable[[Topic], Floats]

ENGINES = BM25(k1=1.2, b=0.75)  # The defaults of Lucene, OpenSearch and Elasticsearch
# Number of texts whose vectors are computed together. It bounds the words in memory.
BLOCK = 4096


@dataclass(frozen=True)
class MemoryRetriever:
    """Ranks all posts of a collection by scores that are computed in memory.

    Results have a score above ``least`` and are no later than the topic.
    """

    name: str
    posts: Sequence[Post]
    scores: Scores
    least: float = 0.0

    def search(self, topics: Sequence[Topic], hits: int = DEFAULT_HITS) -> Candidates:
        """Return the best ``hits`` posts of each topic."""
        run: Run = {}
        for topic in topics:
            results = self._results(topic, hits)
            if results:
                run[topic.query_id] = results
        posts = {post.doc_id: post for post in self.posts}
        return Candidates(
            topics, run, {doc_id: posts[doc_id] for doc_id in doc_ids_of(run)}
        )

    def _results(self, topic: Topic, hits: int) -> dict[str, float]:
        """Return doc_id -> score of a topic's best ``hits`` posts, best first."""
        scores = self.scores(topic)  # [N]
        if topic.max_doc_id is not None:
            latest = int(topic.max_doc_id)
            is_late = [int(post.doc_id) > latest for post in self.posts]
            scores = np.where(is_late, -np.inf, scores)
        results = {}
        for row in np.argsort(-scores, kind="stable")[:hits].tolist():
            if scores[row] > self.least:
                results[self.posts[row].doc_id] = float(scores[row])
        return results


def memory_retrievers(collection: Collection) -> list[MemoryRetriever]:
    """Return the first stages ``standard``, ``cosine`` and ``hybrid`` of a collection.

    They rank by BM25 on unstemmed words, by the cosine of general word vectors, and by
    the sum of both. In the sum, the BM25 scores of a topic are divided by their
    maximum.
    """
    posts = list(collection.posts())
    texts = [post.text for post in posts]
    lexical = bm25(texts)
    cosine = _cosine(texts)

    def hybrid(topic: Topic) -> Floats:
        words = lexical(topic)
        meaning = cosine(topic)
        return words / max(words.max(initial=0.0), 1e-9) + meaning

    return [
        MemoryRetriever("standard", posts, lexical),
        MemoryRetriever("cosine", posts, cosine, least=-1.0),
        MemoryRetriever("hybrid", posts, hybrid),
    ]


def bm25(texts: Sequence[str]) -> Scores:
    """Return a function that scores texts [N] by BM25.

    The words are those of an engine's analyzer ``standard``: all words, without
    stemming.
    """
    lexicon = Lexicon.from_texts(texts)
    columns = {word: column for column, word in enumerate(lexicon.words)}
    shape = (len(texts), len(lexicon.words))
    ones = np.ones(len(lexicon.texts.values))
    places = (lexicon.texts.owners, lexicon.texts.values)
    counts = csc_array((ones, places), shape)  # [N, words]
    counts.sum_duplicates()
    holders = np.diff(counts.indptr)  # [words] number of texts with the word
    idf = np.log1p((len(texts) - holders + 0.5) / (holders + 0.5))
    lengths = lexicon.texts.lengths  # [N]
    norm = ENGINES.k1 * (1 - ENGINES.b + ENGINES.b * lengths / max(lengths.mean(), 1.0))
    counts.data = counts.data / (counts.data + norm[counts.indices])

    def scores(topic: Topic) -> Floats:
        query = Lexicon.from_texts([topic.text])
        sums = np.zeros(len(texts))
        for row in query.texts.values.tolist():
            column = columns.get(query.words[row])
            if column is not None:
                entries = slice(counts.indptr[column], counts.indptr[column + 1])
                sums[counts.indices[entries]] += counts.data[entries] * idf[column]
        return sums

    return scores


def _cosine(texts: Sequence[str]) -> Scores:
    """Return a function that scores texts [N] by a cosine.

    It is the cosine between the sums of general word vectors of the topic and the text.
    """
    blocks = [
        text_vectors(texts[start : start + BLOCK])
        for start in range(0, len(texts), BLOCK)
    ]
    vectors = np.concatenate(blocks)  # [N, dimensions]
    return lambda topic: vectors @ text_vectors([topic.text])[0]
