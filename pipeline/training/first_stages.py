"""First stages of engines, computed in memory: BM25 as engines have it, a vector search, a hybrid.

Their scores and orders are what a reranker behind an engine is given, so models of lists are
trained on them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array

from indexes.methods import BM25
from indexes.posts import Post
from pipeline.collections.collection import Collection
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Run
from pipeline.defaults import DEFAULT_HITS
from pipeline.ranking.retrievers import Candidates, doc_ids_of
from rerankers.text.lexicon import Lexicon
from rerankers.text.spaces import text_vectors

ENGINES = BM25(k1=1.2, b=0.75)
"""The defaults of Lucene, OpenSearch and Elasticsearch."""

Scores = Callable[[Topic], npt.NDArray[np.floating]]
"""A topic -> a score [N] of each post."""


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
            found = {self.posts[n].doc_id: float(scores[n]) for n in best if scores[n] > self.least}
            if found:
                run[topic.query_id] = found
        posts = {post.doc_id: post for post in self.posts}
        return Candidates(topics, run, {d: posts[d] for d in doc_ids_of(run)})


def memory_retrievers(collection: Collection) -> list[MemoryRetriever]:
    """BM25 of words without stems, the cosine of general word vectors, and their hybrid's sum."""
    posts = list(collection.posts())
    lexical, cosine = bm25([post.text for post in posts]), _cosine([post.text for post in posts])

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
    blocks = [text_vectors(texts[start : start + 4096]) for start in range(0, len(texts), 4096)]
    known = np.concatenate(blocks)
    return lambda topic: known @ text_vectors([topic.text])[0]
