"""Words that have been read, each with a row: IDF, stem, vector, whether it is a stop word.

What is known of a word is looked up once for all topics, and spread over the places where the
word stands by arrays.
"""

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


@dataclass(frozen=True)
class KnownWords:
    """What has been looked up of V words.

    Attributes:
        words: [V].
        stems: of these words, by their numbers.
        idf: [V] IDF of each word.
        stem: [V] number of its stem.
        vector: [V] row of its vector; 0, as in :class:`UnitVectors`, if it has none.
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
    [], [], np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(0, np.int32),
    np.zeros(0, np.bool_), np.zeros(0, np.bool_),
)  # fmt: skip


class _Numbers(dict[str, int]):
    """String -> number, as in ``known`` or else the next.

    Attributes:
        new: those that ``known`` has not, in the order of their numbers.
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
    """Word -> row; grows as texts are read, which may be in several threads.

    Args:
        idf: how rare a word is.
        vectors: of words; None where there are none.
        known: what has been looked up before by the same sources; it stays as it is.

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
        """[L] rows of words, in their order."""
        with self._lock:
            return np.fromiter(map(self._words.__getitem__, words), dtype=np.int64)

    def spelled(self, rows: npt.NDArray[np.integer]) -> list[str]:
        """[L] the words of rows."""
        words = [*self._known.words, *self._words.new]
        return [*map(words.__getitem__, rows.tolist())]

    def look_up(self) -> None:
        """Fill in what is known of the words that came since the last call."""
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
        """What is known of all words, which have been looked up."""
        return KnownWords(
            [*self._known.words, *self._words.new], [*self._known.stems, *self._stems.new],
            self.idf, self.stem, self.vector, self.is_stop_word, self.is_personal,
        )  # fmt: skip
