"""Identifiers of words, and their inverse document frequencies (IDF)."""

import json
import math
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.lexicon import Lexicon
from tweetrerank.rerankers.text.vectors import WordVectors
from tweetrerank.rerankers.text.words import (
    SPACE,
    TRIGRAM_CLASSES,
    TRIGRAM_COUNT,
    character_trigrams,
    treebank_words,
    words,
)

FORMAT = 1  # Of :meth:`Vocabulary.content`
UNKNOWN_BUCKETS = 2**15
"""Identifiers shared by all unknown words, chosen by hash: two given words collide once in 33,000
times."""

BLOCK = 4096  # Texts whose words are counted together
PRIOR_POSTS = 1000.0
"""Posts that the frequencies of general usage count for beside a collection's own."""

RAREST = 1e-7  # Share of all words below which words of other languages than English are unknown

_DIGIT = re.compile(r"\d")


class Vocabulary:
    """Word -> identifier: 0 for padding, 1 … V for ``known`` words, then buckets of unknown words.

    ``vectors`` [V, E] are those of the known words; ``buckets`` is a number of identifiers.
    """

    def __init__(
        self,
        known: Sequence[str],
        vectors: npt.NDArray[np.float32],
        buckets: int = UNKNOWN_BUCKETS,
    ) -> None:
        self.known, self.vectors, self.buckets = list(known), vectors, buckets
        self._ids = {word: row for row, word in enumerate(self.known, start=1)}

    def ids(self, tokens: Sequence[str]) -> list[int]:
        """Identifiers of words, the same for an unknown word in every vocabulary of this size."""
        ids, first = self._ids, len(self.known) + 1
        return [
            ids.get(token)
            or first + zlib.crc32(token.encode(errors="replace")) % self.buckets
            for token in tokens
        ]

    @classmethod
    def build(
        cls,
        texts: Iterable[str],
        vectors: WordVectors,
        minimum_count: int = 2,
        common: int = 20_000,
        tokens: str = "words",
    ) -> Self:
        """Select words of pre-trained vectors: those in at least ``minimum_count`` of the texts.

        ``tokens`` are those of a :class:`tweetrerank.rerankers.text.words.Reading`. The ``common`` most
        frequent words are selected anyway, for future queries and posts.
        """
        split = words if tokens == "words" else treebank_words
        counts = Counter(word for text in texts for word in set(split(text)))
        known = enumerate(vectors.words)
        rows = [
            row for row, word in known if row < common or counts[word] >= minimum_count
        ]
        return cls([vectors.words[row] for row in rows], vectors.matrix[rows])

    def content(self) -> bytes:
        """The words as JSON, without the vectors, which are among the model's weights."""
        content: dict[str, Any] = {"format": FORMAT, "buckets": self.buckets}
        content |= {"vector_size": self.vectors.shape[1], "words": self.known}
        return json.dumps(content, ensure_ascii=False).encode()

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file of :meth:`content`, with vectors of zeros for the model to fill.

        Raises RerankerError for a file that is missing, cut short or of another format.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            known, size = (
                [str(word) for word in content["words"]],
                int(content["vector_size"]),
            )
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']}, expected {FORMAT}")
            return cls(
                known, np.zeros((len(known), size), np.float32), int(content["buckets"])
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RerankerError(
                f"{path}: found no readable vocabulary ({error}), expected the JSON file of a "
                "training; train again or restore the file"
            ) from None


@dataclass(frozen=True)
class Idf:
    """Inverse document frequency, from 0 (a word of every post) to 1 (a word of no post).

    ``ln(1 + N/n) / ln(1 + N)`` for a word in n of N posts. The scale does not depend on the source,
    so that a model trained with one source of frequencies can be used with another. The classical
    form, ``ln N/n``, has no scale.
    """

    share: Callable[[str], float]  # Word -> n/N, the share of posts with the word
    posts: float  # N
    source: str  # Name of the source, for reports
    known: Callable[
        [], Collection[str]
    ]  # Words of the source, whose trigrams are counted

    def weights(
        self, tokens: Sequence[str], classical: bool = False
    ) -> npt.NDArray[np.float32]:
        """IDF of each word: [L]."""
        scale, shares = math.log1p(self.posts), [self.share(token) for token in tokens]
        # Many words have the same share, all unknown ones for example.
        rarity = {s: 1 / max(s, 1 / self.posts) for s in set(shares)}
        idf = {
            share: math.log(times) if classical else math.log1p(times) / scale
            for share, times in rarity.items()
        }
        return np.array([idf[share] for share in shares], dtype=np.float32)

    def trigram_weights(
        self, trigrams: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """Classical IDF of character trigrams, for their identifiers [T]: [T]."""
        rarest = 1 / self.posts
        return -np.log(np.maximum(self._trigram_shares[trigrams], rarest)).astype(
            np.float32
        )

    @cached_property
    def _trigram_shares(self) -> npt.NDArray[np.float64]:
        """Share of posts with each trigram, as if words occurred independently.

        A space is a word's end or start, or both: one of so many neighbours in a post.
        """
        words = list(self.known())
        trigrams, counts = character_trigrams(words), np.zeros(TRIGRAM_COUNT)
        shares = np.array([self.share(word) for word in words])
        np.add.at(counts, trigrams.values, np.repeat(shares, trigrams.lengths))
        of_words = counts.reshape([TRIGRAM_CLASSES] * 3)
        spaced = of_words.copy()
        starting, ending = of_words[0].sum(axis=1), of_words[:, :, 0].sum(axis=0)
        spaced[SPACE] += of_words[0]
        spaced[:, :, SPACE] += of_words[:, :, 0]
        spaced[:, SPACE] += np.outer(ending, starting) / max(starting.sum(), 1.0)
        return -np.expm1(-spaced.ravel())

    @classmethod
    def from_wordfreq(cls, language: str = "en") -> Self:
        """General usage, Twitter included, from the package ``wordfreq`` (Speer 2022).

        The share of posts is 15 times the word's share of all words, for 15 words a post.
        """

        def share(word: str) -> float:
            return min(1.0, 15 * word_frequencies(language)(word))

        def known() -> Collection[str]:
            if language != "en":
                return _frequencies_of_words(language).keys()
            import wordfreq

            return wordfreq.get_frequency_dict(language, "best").keys()

        return cls(share, 1e7, f"wordfreq:{language}", known)

    @classmethod
    def from_document_frequencies(
        cls, frequencies: Mapping[str, int], posts: int, source: str
    ) -> Self:
        """Counts of one's own collection: word -> number of posts that hold it."""
        share = lambda word: frequencies.get(word, 0) / posts  # noqa: E731
        return cls(share, float(posts), source, frequencies.keys)

    def smoothed(self, general: "Idf", source: str) -> Self:
        """These counts as if the collection had :data:`PRIOR_POSTS` more posts, of ``general``
        usage, whose scale is kept: Dirichlet's prior (Zhai & Lafferty, "A study of smoothing
        methods for language models", 2004, section 4)."""
        weight = self.posts / (self.posts + PRIOR_POSTS)

        def share(word: str) -> float:
            return weight * self.share(word) + (1 - weight) * general.share(word)

        return replace(self, share=share, posts=general.posts, source=source)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file with N in its first line, then lines ``word<TAB>document frequency``.

        Raises RerankerError, with file and line, for a line of another form.
        """
        try:
            first, *lines = path.read_text(encoding="utf-8").splitlines() or [
                "an empty file"
            ]
        except (OSError, UnicodeDecodeError) as error:
            raise RerankerError(
                f"{path}: cannot be read as UTF-8 text ({error})"
            ) from None
        if not first.strip().isdecimal() or int(first) == 0:
            raise RerankerError(
                f"{path}:1: found {first!r}, expected the number of posts"
            )
        frequencies: dict[str, int] = {}
        for number, line in enumerate(lines, start=2):
            word, _, count = line.partition("\t")
            if not word or not count.strip().isdecimal():
                raise RerankerError(
                    f"{path}:{number}: found {line!r}, expected word<TAB>document frequency"
                )
            frequencies[word] = int(count)
        return cls.from_document_frequencies(frequencies, int(first), str(path))


def document_frequencies(
    texts: Sequence[str], progress: Callable[[int], object]
) -> str:
    """The content of a file for :meth:`Idf.read`; ``progress`` is given numbers of texts."""
    counts = Counter[str]()
    for start in range(0, len(texts), BLOCK):
        lexicon = Lexicon.from_texts(texts[start : start + BLOCK])
        rows, size = lexicon.texts, len(lexicon.words)
        places = np.unique(rows.owners * size + rows.values)  # Each word of a text once
        counts.update(lexicon.words[row] for row in (places % size).tolist())
        progress(len(rows))
    return "".join(
        [f"{len(texts)}\n", *(f"{word}\t{n}\n" for word, n in counts.most_common())]
    )


@cache
def word_frequencies(language: str) -> Callable[[str], float]:
    """Word, as :func:`tweetrerank.rerankers.text.words.words` cuts it -> its share of all words.

    For English a faster ``wordfreq.word_frequency``: a word of lower-case ASCII letters is looked
    up as it is: frequency 0 if wordfreq's list does not have it, otherwise one frequency for all
    words of the same level (bin) of the list. So wordfreq is called once per level instead of once
    per word. The package is loaded with the first word.
    """
    import wordfreq

    def with_digits(word: str) -> float:
        return float(wordfreq.word_frequency(word, "en"))

    if language != "en":
        known = _frequencies_of_words(language)
        return lambda word: (
            known.get(word) or (with_digits(word) if _DIGIT.search(word) else 0.0)
        )
    frequencies: dict[float | None, float] = {None: 0.0}  # Of words without a level
    # With both arguments this is wordfreq's own cached list.
    level_of = wordfreq.get_frequency_dict(language, "best").get

    def frequency(word: str) -> float:
        if not (word.isascii() and word.isalpha() and word.islower()):
            return with_digits(word)
        level = level_of(word)
        if level not in frequencies:
            frequencies[level] = with_digits(word)
        return frequencies[level]

    return frequency


@cache
def _frequencies_of_words(language: str) -> Mapping[str, float]:
    """Frequencies of wordfreq's list by our words: without accents, pairs of unspaced scripts."""
    import wordfreq

    best = wordfreq.get_frequency_dict(language, "best")
    listed = {word: share for word, share in best.items() if share >= RAREST}
    lexicon, shares = Lexicon.from_texts([*listed]), [*listed.values()]
    texts, found = lexicon.texts, defaultdict[str, float](float)
    for row, owner in zip(texts.values.tolist(), texts.owners.tolist(), strict=True):
        found[lexicon.words[row]] += shares[owner]
    return {**found}
