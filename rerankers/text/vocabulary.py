"""Words and their identifiers, the vectors that come with them, and how rare they are."""

import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rerankers.errors import RerankerError
from rerankers.text.words import words

FORMAT = 1
UNKNOWN_BUCKETS = 2**15
"""Identifiers that unknown words share by hash. With as many, two given words collide once in
33,000 times."""


class Vocabulary:
    """Word -> identifier: 0 is padding, 1 … V known words, then buckets of unknown ones.

    Args:
        known: the V known words.
        vectors: [V, E] their vectors.
        buckets: number of identifiers for unknown words.
    """

    def __init__(
        self,
        known: Sequence[str],
        vectors: npt.NDArray[np.float32],
        buckets: int = UNKNOWN_BUCKETS,
    ) -> None:
        self.known = list(known)
        self.vectors = vectors
        self.buckets = buckets
        self._ids = {word: row for row, word in enumerate(self.known, start=1)}

    def ids(self, tokens: Sequence[str]) -> list[int]:
        """Identifiers of words; the same unknown word has the same one everywhere."""
        ids, first = self._ids, len(self.known) + 1
        return [
            ids.get(token) or first + zlib.crc32(token.encode(errors="replace")) % self.buckets
            for token in tokens
        ]

    @classmethod
    def build(
        cls,
        texts: Iterable[str],
        vectors: "WordVectors",
        minimum_count: int = 2,
        common: int = 20_000,
    ) -> "Vocabulary":
        """Keep the words that have a vector and are used.

        Args:
            texts: posts to count words in; a word counts once for each text.
            vectors: pre-trained vectors, commonest words first.
            minimum_count: texts that a word must be in.
            common: so many of the commonest words with vectors are kept in any case, for queries
                and posts that are not here yet.
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(set(words(text)))
        rows = [
            row
            for row, word in enumerate(vectors.words)
            if row < common or counts[word] >= minimum_count
        ]
        return cls([vectors.words[row] for row in rows], vectors.matrix[rows])

    def save(self, path: Path) -> None:
        """Write the words (not the vectors, which are the model's) as JSON."""
        content = {
            "format": FORMAT,
            "buckets": self.buckets,
            "vector_size": self.vectors.shape[1],
            "words": self.known,
        }
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read what :meth:`save` wrote, with vectors of zeros for the model to fill.

        Raises:
            RerankerError: the file is missing, cut short or of another format.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            known, found = [str(word) for word in content["words"]], content["format"]
            size, buckets = int(content["vector_size"]), int(content["buckets"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RerankerError(
                f"{path}: found no readable vocabulary ({error}), expected the JSON that training "
                "writes; train again or restore the file"
            ) from None
        if found != FORMAT:
            raise RerankerError(f"{path}: found vocabulary format {found}, expected {FORMAT}")
        return cls(known, np.zeros((len(known), size), dtype=np.float32), buckets)


@dataclass(frozen=True)
class WordVectors:
    """Pre-trained word vectors: ``words`` (commonest first) and ``matrix`` [V, E]."""

    words: list[str]
    matrix: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Idf:
    """How rare a word is, from 0 (in every post) to 1 (in none that was counted).

    ``ln(1 + N/n) / ln(1 + N)`` for a word in n of N posts. The scale is the same whatever was
    counted, so a model trained with one source of frequencies can be used with another.

    Attributes:
        share: word -> n/N, the share of posts that it is in.
        posts: N.
        source: where the frequencies come from, for reports.
    """

    share: Callable[[str], float]
    posts: float
    source: str

    def weights(self, tokens: Sequence[str]) -> npt.NDArray[np.float32]:
        """IDF of each word: [L]."""
        scale, shares = math.log1p(self.posts), [self.share(token) for token in tokens]
        # Many words, all that are unknown among them, have one share.
        idf = {s: math.log1p(1 / max(s, 1 / self.posts)) / scale for s in set(shares)}
        return np.array([idf[share] for share in shares], dtype=np.float32)

    @classmethod
    def from_wordfreq(cls, language: str = "en") -> "Idf":
        """General usage, Twitter included, from the package ``wordfreq`` (Speer 2022).

        A word's share of posts is taken as its frequency per word times 15 words a post.
        """
        frequency = word_frequencies(language)

        @lru_cache(maxsize=200_000)
        def share(word: str) -> float:
            return min(1.0, 15 * frequency(word))

        return cls(share, 1e7, f"wordfreq:{language}")

    @classmethod
    def from_document_frequencies(
        cls, frequencies: Mapping[str, int], posts: int, source: str
    ) -> "Idf":
        """From counts of one's own collection: word -> number of posts that it is in."""
        return cls(lambda word: frequencies.get(word, 0) / posts, float(posts), source)

    @classmethod
    def read(cls, path: Path) -> "Idf":
        """From a file of ``word<TAB>document frequency`` lines after a first line with N.

        Raises:
            RerankerError: naming the file and line that are not so.
        """
        frequencies: dict[str, int] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RerankerError(f"{path}: cannot be read as UTF-8 text ({error})") from None
        if not lines or not lines[0].strip().isdecimal() or int(lines[0]) == 0:
            found = lines[0] if lines else "an empty file"
            raise RerankerError(f"{path}:1: found {found!r}, expected the number of posts")
        for number, line in enumerate(lines[1:], start=2):
            word, _, count = line.partition("\t")
            if not word or not count.strip().isdecimal():
                raise RerankerError(
                    f"{path}:{number}: found {line!r}, expected word<TAB>document frequency"
                )
            frequencies[word] = int(count)
        return cls.from_document_frequencies(frequencies, int(lines[0]), str(path))


def word_frequencies(language: str) -> Callable[[str], float]:
    """``wordfreq.word_frequency`` of a language, which is word -> its share of all words.

    Where that takes words apart by a regular expression, it leaves a word of lower-case letters of
    ASCII as it is. If its list has no such word, the frequency is 0; if it has, all words at one
    level of the list have one frequency. So it is asked once a level, and not once a word.
    """
    import wordfreq

    if wordfreq.get_language_info(language)["tokenizer"] != "regex":
        return lambda word: float(wordfreq.word_frequency(word, language))
    frequencies: dict[float, float] = {}

    def frequency(word: str) -> float:
        if not (word.isascii() and word.isalpha() and word.islower()):
            return float(wordfreq.word_frequency(word, language))
        # With both arguments it is the list that wordfreq keeps for itself.
        level = wordfreq.get_frequency_dict(language, "best").get(word)
        if level is None:
            return 0.0
        if level not in frequencies:
            frequencies[level] = float(wordfreq.word_frequency(word, language))
        return frequencies[level]

    return frequency
