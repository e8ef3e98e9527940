"""Texts with stop words, repeated words and numbers; their common words by Python's sets."""

import math

import numpy as np

from rerankers.networks.inputs import TextEncoder
from rerankers.pairs import Pairs
from rerankers.text.vocabulary import Idf, Vocabulary
from rerankers.text.words import STOP_WORDS, words

SIZE = 6
KNOWN = ["the", "in", "is", "bbc", "world", "cuts", "water", "egypt", "0000", "1971", "storm", "a"]
FREQUENCIES = {"the": 900, "in": 800, "is": 700, "world": 90, "water": 40, "bbc": 20, "1971": 5}
DOCUMENTS = 1000

QUERIES = [
    "the bbc world service cuts",
    "water water everywhere in egypt in the world",
    "is 1971 in the world of 1984",
    "the",
    "and to and",  # stop words without a vector: they are not told
    "storm",
    "",
]
POSTS = [
    "the the bbc cuts cuts service",
    "in 1984 egypt was the water",
    "1971 1971 and the world to 2024 storm storm",
    "",
    "everywhere and to world",
    "is in the a",
    "storm",
    "water bbc water",
]


def vocabulary() -> Vocabulary:
    """Some words with random vectors, stop words among them."""
    vectors = np.random.default_rng(8).normal(size=(len(KNOWN), SIZE))
    return Vocabulary(KNOWN, vectors.astype(np.float32))


def encoder() -> TextEncoder:
    return TextEncoder(
        vocabulary(), Idf.from_document_frequencies(FREQUENCIES, DOCUMENTS, "made up")
    )


def every_pair() -> Pairs:
    """Each query with each post, query by query."""
    query_index, post_index = np.divmod(np.arange(len(QUERIES) * len(POSTS)), len(POSTS))
    return Pairs(QUERIES, POSTS, [""] * len(POSTS), query_index, post_index)


def every_text_pair() -> list[tuple[str, str]]:
    return [(query, post) for query in QUERIES for post in POSTS]


def is_told(word: str) -> bool:
    """Whether a word is a stop word that a model can tell: one that has a vector."""
    return word in STOP_WORDS and word in KNOWN


def naive_idf(word: str) -> float:
    count = max(1, FREQUENCIES.get(word, 0))
    return math.log(1 + DOCUMENTS / count) / math.log(1 + DOCUMENTS)


def naive_overlap(query: str, post: str) -> list[float]:
    """Number of common words, their IDF, and both without stop words."""
    common = set(words(query)) & set(words(post))
    content = {word for word in common if not is_told(word)}
    return [len(common), sum(map(naive_idf, common)), len(content), sum(map(naive_idf, content))]
