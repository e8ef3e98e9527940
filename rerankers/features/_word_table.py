"""Table of words with their IDF, stem, vector and kind.

A word is looked up once for all topics; its properties reach the places in the posts by its row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import Lock

import numpy as np
import numpy.typing as npt
from nltk.stem import PorterStemmer

from rerankers.text.vectors import UnitVectors
from rerankers.text.vocabulary import Idf
from rerankers.text.words import STOP_WORDS

PERSONAL_WORDS = frozenset(["i", "me", "my", "im", "lol", "u"])
"""Words of chat and of posts about oneself."""

_STEMMER = PorterStemmer()

_ENDINGS = (
    *("al", "alli", "anci", "ant", "ator", "bli", "e", "ed", "eli", "enci", "ent", "entli", "er"),
    *("ful", "fulli", "ic", "ing", "ion", "ism", "iti", "ll", "logi", "ou", "ousli", "s", "y"),
)
"""Endings of all words that a rule of Porter's or an exception of NLTK's changes."""


@lru_cache(maxsize=200_000)
def stem(word: str) -> str:
    """The stem of a word by Porter (1980), with NLTK's extensions: ``cuts`` -> ``cut``."""
    small = word.lower()
    # Half of all words, mostly names and numbers, need no call of NLTK.
    return str(_STEMMER.stem(small)) if small.endswith(_ENDINGS) else small


@dataclass(frozen=True)
class KnownWords:
    """Properties of V words.

    Attributes:
        words: [V].
        stems: distinct stems of the words; a stem's number is its place here.
        idf: [V] IDF of each word.
        stem: [V] number of its stem.
        vector: [V] row of its vector in :class:`UnitVectors`; 0 if it has none.
        is_stop_word, is_personal: [V].
    """

    words: Sequence[str]
    stems: Sequence[str]
    idf: npt.NDArray[np.float32]
    stem: npt.NDArray[np.int32]
    vector: npt.NDArray[np.int32]
    is_stop_word: npt.NDArray[np.bool_]
    is_personal: npt.NDArray[np.bool_]

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Word -> row."""
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def stem_numbers(self) -> Mapping[str, int]:
        """Stem -> number."""
        return {stem: number for number, stem in enumerate(self.stems)}


NO_WORDS = KnownWords(
    [],
    [],
    np.zeros(0, np.float32),
    np.zeros(0, np.int32),
    np.zeros(0, np.int32),
    np.zeros(0, np.bool_),
    np.zeros(0, np.bool_),
)


class _Numbers(dict[str, int]):
    """String -> number, from ``known`` or else the next free number.

    Attributes:
        new: strings that ``known`` lacks, in the order of their numbers.
    """

    def __init__(self, known: Mapping[str, int]) -> None:
        super().__init__()
        self._known = known
        self.new: list[str] = []

    def __missing__(self, string: str) -> int:
        number = self._known.get(string)
        if number is None:
            number = len(self._known) + len(self.new)
            self.new.append(string)
        self[string] = number
        return number


class WordTable:
    """Word -> row, extended by the words of new texts; safe in several threads.

    Args:
        idf: source of IDF.
        vectors: word vectors; None if there are none.
        known: words looked up before in the same sources; not changed.

    Attributes:
        idf, stem, vector, is_stop_word, is_personal: [V] as in :class:`KnownWords`.
    """

    def __init__(
        self, idf: Idf, vectors: UnitVectors | None = None, known: KnownWords = NO_WORDS
    ) -> None:
        self._weights, self._vectors, self._known = idf, vectors, known
        self._lock = Lock()
        self._words, self._stems = _Numbers(known.rows), _Numbers(known.stem_numbers)
        self.idf, self.stem, self.vector = known.idf, known.stem, known.vector
        self.is_stop_word, self.is_personal = known.is_stop_word, known.is_personal

    def rows(self, words: Iterable[str]) -> npt.NDArray[np.int64]:
        """[L] rows of words; :meth:`look_up` fills the rows of new words."""
        with self._lock:
            return np.fromiter(map(self._words.__getitem__, words), dtype=np.int64)

    def spelled(self, rows: npt.NDArray[np.integer]) -> list[str]:
        """[L] words of rows."""
        words = [*self._known.words, *self._words.new]
        return [*map(words.__getitem__, rows.tolist())]

    def look_up(self) -> None:
        """Look up the words added since the last call."""
        with self._lock:
            new = self._words.new[len(self.idf) - len(self._known.words) :]
            if new:
                self._add(new)

    def _add(self, new: Sequence[str]) -> None:
        stems = np.array([self._stems[stem(word)] for word in new], dtype=np.int32)
        rows = np.zeros(len(new), np.int64) if self._vectors is None else self._vectors.rows(new)
        stop = np.array([word in STOP_WORDS for word in new], dtype=np.bool_)
        personal = np.array([word in PERSONAL_WORDS for word in new], dtype=np.bool_)
        self.idf = np.concatenate([self.idf, self._weights.weights(new)])
        self.stem = np.concatenate([self.stem, stems])
        self.vector = np.concatenate([self.vector, rows.astype(np.int32)])
        self.is_stop_word = np.concatenate([self.is_stop_word, stop])
        self.is_personal = np.concatenate([self.is_personal, personal])

    def known(self) -> KnownWords:
        """All words with their properties, after :meth:`look_up`."""
        return KnownWords(
            [*self._known.words, *self._words.new],
            [*self._known.stems, *self._stems.new],
            self.idf,
            self.stem,
            self.vector,
            self.is_stop_word,
            self.is_personal,
        )
