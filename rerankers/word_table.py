"""Words that have been read, each with a row: IDF, stem, vector, whether it is a stop word.

What is known of a word is looked up once for all topics, and spread over the places where the
word stands by arrays.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
from nltk.stem import PorterStemmer

from rerankers.stop_words import STOP_WORDS
from rerankers.unit_vectors import UnitVectors
from rerankers.vocabulary import Idf

PERSONAL_WORDS = frozenset(["i", "me", "my", "im", "lol", "u"])
"""Words of posts about oneself, and of chat."""

_STEMMER = PorterStemmer()

_ENDINGS = (
    "al", "alli", "anci", "ant", "ator", "bli", "e", "ed", "eli", "enci", "ent", "entli", "er",
    "ful", "fulli", "ic", "ing", "ion", "ism", "iti", "ll", "logi", "ou", "ousli", "s", "y",
)  # fmt: skip
"""Each word that a rule of Porter's, or one of NLTK's exceptions, changes has one of these."""


@lru_cache(maxsize=200_000)
def stem(word: str) -> str:
    """The stem of a word by Porter (1980), with NLTK's extensions: ``cuts`` -> ``cut``."""
    small = word.lower()
    # Half of all words, names and numbers above all, are not worth a call of NLTK.
    return str(_STEMMER.stem(small)) if small.endswith(_ENDINGS) else small


class _Rows(dict[str, int]):
    """Word -> row: a new word has the next."""

    def __missing__(self, word: str) -> int:
        self[word] = row = len(self)
        return row


class WordTable:
    """Word -> row; grows as texts are read.

    Args:
        idf: how rare a word is.
        vectors: of words; None where there are none.

    Attributes:
        idf: [V] IDF of each word.
        stem: [V] number of its stem; words of one stem have the same.
        vector: [V] row of its vector; 0, as in :class:`UnitVectors`, if it has none.
        is_stop_word, is_personal: [V].
    """

    def __init__(self, idf: Idf, vectors: UnitVectors | None = None) -> None:
        self._weights = idf
        self._vectors = vectors
        self._words, self._stems = _Rows(), _Rows()
        self.idf = np.zeros(0, dtype=np.float32)
        self.stem = np.zeros(0, dtype=np.int64)
        self.vector = np.zeros(0, dtype=np.int64)
        self.is_stop_word = np.zeros(0, dtype=np.bool_)
        self.is_personal = np.zeros(0, dtype=np.bool_)

    def rows(self, words: Iterable[str]) -> npt.NDArray[np.int64]:
        """[L] rows of words, in their order."""
        return np.fromiter(map(self._words.__getitem__, words), dtype=np.int64)

    def look_up(self) -> None:
        """Fill in what is known of the words that came since the last call."""
        count = len(self._words) - len(self.idf)
        if not count:
            return
        new = list(islice(reversed(self._words), count))[::-1]
        stems = [self._stems[stem(word)] for word in new]
        self.idf = np.concatenate([self.idf, self._weights.weights(new)])
        self.stem = np.concatenate([self.stem, np.array(stems, dtype=np.int64)])
        rows = np.zeros(count, np.int64) if self._vectors is None else self._vectors.rows(new)
        self.vector = np.concatenate([self.vector, rows])
        stop = np.array([word in STOP_WORDS for word in new], dtype=np.bool_)
        self.is_stop_word = np.concatenate([self.is_stop_word, stop])
        personal = np.array([word in PERSONAL_WORDS for word in new], dtype=np.bool_)
        self.is_personal = np.concatenate([self.is_personal, personal])


@dataclass(frozen=True)
class Tokens:
    """N posts of T words in all, and their query of Lq words.

    Attributes:
        post: [T] which post a word is of, in ascending order.
        place: [T] its place in the post, from 0.
        counts: [N] words of each post.
        word: [T] its row in the table of words.
        stem, idf, vector, is_stop_word, is_personal: [T]; see :class:`WordTable`.
        query_word, query_stem, query_is_stop_word: [Lq] the query's, in its order.
    """

    post: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    word: npt.NDArray[np.int64]
    stem: npt.NDArray[np.int64]
    idf: npt.NDArray[np.float32]
    vector: npt.NDArray[np.int64]
    is_stop_word: npt.NDArray[np.bool_]
    is_personal: npt.NDArray[np.bool_]
    query_word: npt.NDArray[np.int64]
    query_stem: npt.NDArray[np.int64]
    query_is_stop_word: npt.NDArray[np.bool_]

    @classmethod
    def of(
        cls, table: WordTable, query: tuple[str, ...], posts: Sequence[tuple[str, ...]]
    ) -> "Tokens":
        """The words of a query and of posts."""
        asked = table.rows(query)
        rows = table.rows(chain.from_iterable(posts))
        table.look_up()
        counts = np.fromiter(map(len, posts), dtype=np.int64, count=len(posts))
        starts = np.cumsum(counts) - counts
        return cls(
            np.repeat(np.arange(len(posts)), counts),
            np.arange(len(rows)) - np.repeat(starts, counts),
            counts,
            rows,
            table.stem[rows],
            table.idf[rows],
            table.vector[rows],
            table.is_stop_word[rows],
            table.is_personal[rows],
            asked,
            table.stem[asked],
            table.is_stop_word[asked],
        )

    def mean(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
        """[N] mean over each post's words of ``values`` [T]; 0 for a post without words."""
        return self.total(values) / np.maximum(self.counts, 1)

    def total(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
        """[N] sum over each post's words of ``values`` [T]."""
        totals = np.bincount(self.post, weights=values, minlength=len(self.counts))
        return totals.astype(np.float64)
