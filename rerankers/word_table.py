"""Words that have been read, each with a row: IDF, stem, vector, whether it is a stop word.

What is known of a word is looked up once for all topics, and spread over the places where the
word stands by arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

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
        self._words: dict[str, int] = {}
        self._stems: dict[str, int] = {}
        self._texts: dict[tuple[str, ...], npt.NDArray[np.int64]] = {}
        self.idf = np.zeros(0, dtype=np.float32)
        self.stem = np.zeros(0, dtype=np.int64)
        self.vector = np.zeros(0, dtype=np.int64)
        self.is_stop_word = np.zeros(0, dtype=np.bool_)
        self.is_personal = np.zeros(0, dtype=np.bool_)

    def rows(self, words: tuple[str, ...]) -> npt.NDArray[np.int64]:
        """[L] rows of the words of a text."""
        found = self._texts.get(words)
        if found is None:
            known = self._words
            rows = [known.setdefault(word, len(known)) for word in words]
            self._texts[words] = found = np.array(rows, dtype=np.int64)
        return found

    def look_up(self) -> None:
        """Fill in what is known of the words that came since the last call."""
        count = len(self._words) - len(self.idf)
        if not count:
            return
        new = list(islice(reversed(self._words), count))[::-1]
        stems = [self._stems.setdefault(stem(word), len(self._stems)) for word in new]
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
        stem, idf, vector, is_stop_word, is_personal: [T]; see :class:`WordTable`.
        query_stem, query_is_stop_word: [Lq] the query's, in its order.
    """

    post: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    stem: npt.NDArray[np.int64]
    idf: npt.NDArray[np.float32]
    vector: npt.NDArray[np.int64]
    is_stop_word: npt.NDArray[np.bool_]
    is_personal: npt.NDArray[np.bool_]
    query_stem: npt.NDArray[np.int64]
    query_is_stop_word: npt.NDArray[np.bool_]

    @classmethod
    def of(
        cls, table: WordTable, query: tuple[str, ...], posts: Sequence[tuple[str, ...]]
    ) -> "Tokens":
        """The words of a query and of posts."""
        asked = table.rows(query)
        each = [table.rows(words) for words in posts]
        table.look_up()
        counts = np.fromiter(map(len, each), dtype=np.int64, count=len(each))
        rows = np.concatenate([np.zeros(0, np.int64), *each])
        starts = np.cumsum(counts) - counts
        return cls(
            np.repeat(np.arange(len(each)), counts),
            np.arange(len(rows)) - np.repeat(starts, counts),
            counts,
            table.stem[rows],
            table.idf[rows],
            table.vector[rows],
            table.is_stop_word[rows],
            table.is_personal[rows],
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
