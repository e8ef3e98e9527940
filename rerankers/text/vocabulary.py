"""Find the identifiers of words and their inverse document frequencies (IDF)."""

import json
import math
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Self

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

FORMAT = 1  # Version of the form that :meth:`Vocabulary.content` returns

UNKNOWN_BUCKETS = 2**15
"""Number of identifiers that all unknown words share.

A word's identifier is chosen by a hash. So two different words have the same one with a
probability of 1 in 33,000.
"""

BLOCK = 4096  # Number of texts whose words are counted together

PRIOR_POSTS = 1000.0
"""Weight of general usage: it counts like so many posts added to a collection's."""

RAREST = 1e-7
"""Lowest share of all words that a known word has, in languages other than English."""

Floats = npt.NDArray[np.float32]

_DIGIT = re.compile(r"\d")


class Vocabulary:
    """The identifiers of words.

    0 is for padding, 1 to V are for the known words, and the following ones are the
    buckets that unknown words share.

    Args:
        known: the V known words.
        vectors: vectors of the known words [V, E].
        buckets: number of identifiers that unknown words share.
    """

    def __init__(
        self,
        known: Sequence[str],
        vectors: Floats,
        buckets: int = UNKNOWN_BUCKETS,
    ) -> None:
        self.known = list(known)
        self.vectors = vectors
        self.buckets = buckets
        self._ids = {word: row for row, word in enumerate(self.known, start=1)}

    def ids(self, tokens: Sequence[str]) -> list[int]:
        """Return the identifiers of words.

        Vocabularies with the same number of buckets put an unknown word into the same
        bucket.
        """
        ids = self._ids
        start = len(self.known) + 1  # First bucket
        count = self.buckets
        return [
            ids.get(token) or start + zlib.crc32(token.encode(errors="replace")) % count
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
        """Make a vocabulary of some words of pre-trained vectors.

        Args:
            texts: texts of the training.
            vectors: the pre-trained vectors, with the most frequent words first.
            minimum_count: a word is known if so many texts contain it.
            common: so many of the most frequent words are known in any case, because
                future queries and posts may contain them.
            tokens: the rule for words, a value of
                :attr:`tweetrerank.rerankers.text.words.Reading.tokens`.
        """
        split = words if tokens == "words" else treebank_words
        counts = Counter[str]()
        for text in texts:
            counts.update(set(split(text)))
        rows = [
            row
            for row, word in enumerate(vectors.words)
            if row < common or counts[word] >= minimum_count
        ]
        known = [vectors.words[row] for row in rows]
        return cls(known, vectors.matrix[rows])

    def content(self) -> bytes:
        """Return the words as JSON, without the vectors.

        The vectors are saved with the model's weights.
        """
        content = {
            "format": FORMAT,
            "buckets": self.buckets,
            "vector_size": self.vectors.shape[1],
            "words": self.known,
        }
        return json.dumps(content, ensure_ascii=False).encode()

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that :meth:`content` made.

        The vectors are zeros, and the model fills them in from its weights. Raises
        RerankerError if the file is missing, incomplete or of another format.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            known = [str(word) for word in content["words"]]
            size = int(content["vector_size"])
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']}, expected {FORMAT}")
            vectors = np.zeros((len(known), size), np.float32)
            return cls(known, vectors, int(content["buckets"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RerankerError(
                f"{path}: found no readable vocabulary ({error}), expected the JSON "
                "file of a training; train again or restore the file"
            ) from None


@dataclass(frozen=True)
class Idf:
    """The inverse document frequencies of words, by one source.

    The value of a word that n of N posts have is ``ln(1 + N/n) / ln(1 + N)``. It is
    near 0 for a word of every post, and 1 for a word of one post or none. Its scale
    does not depend on the source, so a model can be used with other frequencies than
    those it was trained with. The classical form ``ln N/n`` has no such scale.
    """

    share: Callable[[str], float]  # Function that returns n/N of a word
    posts: float  # N
    source: str  # Name of the source, as for ``checkpoint.idf_from``
    # Function that returns the words of the source, whose trigrams are counted
    known: Callable[[], Collection[str]]

    def weights(
        self,
        tokens: Sequence[str],
        classical: bool = False,
    ) -> Floats:
        """Return the IDF of each word [L].

        ``classical`` asks for the form ``ln N/n``.
        """
        scale = math.log1p(self.posts)
        shares = [self.share(token) for token in tokens]
        idf = {}
        # Each share is converted only once, because many words have the same one, for
        # example all unknown words.
        for share in set(shares):
            rarity = 1 / max(share, 1 / self.posts)
            if classical:
                idf[share] = math.log(rarity)
            else:
                idf[share] = math.log1p(rarity) / scale
        return np.array(
            [idf[share] for share in shares],
            dtype=np.float32,
        )

    def trigram_weights(self, trigrams: npt.NDArray[np.int32]) -> Floats:
        """Return the classical IDF of each of T character trigrams [T]."""
        shares = np.maximum(self._trigram_shares[trigrams], 1 / self.posts)
        return -np.log(shares).astype(np.float32)

    @cached_property
    def _trigram_shares(self) -> npt.NDArray[np.float64]:
        """Estimated share of posts that have each trigram.

        The estimate takes words to occur independently of each other. A trigram with a
        space may lie at the end of a word, at the beginning of one, or across two
        words. Each word of a post is taken to have one neighbour on either side.
        """
        words = list(self.known())
        trigrams = character_trigrams(words)
        shares = np.array([self.share(word) for word in words])
        counts = np.zeros(TRIGRAM_COUNT)
        trigram_shares = np.repeat(shares, trigrams.lengths)
        np.add.at(counts, trigrams.values, trigram_shares)
        in_words = counts.reshape([TRIGRAM_CLASSES] * 3)
        starts = in_words[0]  # Trigrams ``#ab``
        ends = in_words[:, :, 0]  # Trigrams ``ab#``
        in_posts = in_words.copy()
        in_posts[SPACE] += starts
        in_posts[:, :, SPACE] += ends
        first_letters = starts.sum(axis=1)
        last_letters = ends.sum(axis=0)
        across_words = np.outer(last_letters, first_letters)
        words_per_post = max(first_letters.sum(), 1.0)
        in_posts[:, SPACE] += across_words / words_per_post
        return -np.expm1(-in_posts.ravel())

    @classmethod
    def from_wordfreq(cls, language: str = "en") -> Self:
        """Return the frequencies of general usage in a language, including Twitter.

        They come from the package ``wordfreq`` (Speer 2022). The share of posts that
        have a word is taken to be 15 times its share of all words, because a post has
        about 15 words.
        """

        def share(word: str) -> float:
            return min(1.0, 15 * word_frequencies(language)(word))

        def known() -> Collection[str]:
            if language != "en":
                return _frequencies_of_words(language).keys()
            import wordfreq

            return wordfreq.get_frequency_dict(language, "best").keys()

        return cls(
            share,
            1e7,
            f"wordfreq:{language}",
            known,
        )

    @classmethod
    def from_document_frequencies(
        cls,
        frequencies: Mapping[str, int],
        posts: int,
        source: str,
    ) -> Self:
        """Return the frequencies of a collection, which has ``posts`` posts.

        ``frequencies`` has the number of posts that contain each word.
        """

        def share(word: str) -> float:
            return frequencies.get(word, 0) / posts

        return cls(
            share,
            float(posts),
            source,
            frequencies.keys,
        )

    def smoothed(
        self,
        general: "Idf",
        source: str,
    ) -> Self:
        """Return these frequencies smoothed by those of general usage.

        The collection counts as if it had :data:`PRIOR_POSTS` more posts, of general
        usage. This is Dirichlet's prior (Zhai & Lafferty, "A study of smoothing methods
        for language models", 2004, section 4). The scale is that of ``general``.
        """
        weight = self.posts / (self.posts + PRIOR_POSTS)

        def share(word: str) -> float:
            return weight * self.share(word) + (1 - weight) * general.share(word)

        return replace(
            self,
            share=share,
            posts=general.posts,
            source=source,
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that has N in line 1, then lines ``word<TAB>document frequency``.

        Raises RerankerError if the file cannot be read, or if a line has another form.
        The message names the file and the line.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RerankerError(
                f"{path}: cannot be read as UTF-8 text ({error})"
            ) from None
        first = lines[0] if lines else "an empty file"
        if not first.strip().isdecimal() or int(first) == 0:
            raise RerankerError(
                f"{path}:1: found {first!r}, expected the number of posts"
            )
        frequencies: dict[str, int] = {}
        for number, line in enumerate(lines[1:], start=2):
            word, _, count = line.partition("\t")
            if not word or not count.strip().isdecimal():
                raise RerankerError(
                    f"{path}:{number}: found {line!r}, "
                    "expected word<TAB>document frequency"
                )
            frequencies[word] = int(count)
        return cls.from_document_frequencies(frequencies, int(first), str(path))


def document_frequencies(
    texts: Sequence[str], progress: Callable[[int], object]
) -> str:
    """Count how many texts contain each word.

    Returns the content of a file for :meth:`Idf.read`. ``progress`` is called with the
    number of texts counted since its last call.
    """
    counts = Counter[str]()
    for start in range(0, len(texts), BLOCK):
        lexicon = Lexicon.from_texts(texts[start : start + BLOCK])
        rows = lexicon.texts
        size = len(lexicon.words)
        # Each distinct word of each text has one number.
        places = np.unique(rows.owners * size + rows.values)
        for row in (places % size).tolist():
            counts[lexicon.words[row]] += 1
        progress(len(rows))
    lines = [f"{len(texts)}\n"]
    for word, count in counts.most_common():
        lines.append(f"{word}\t{count}\n")
    return "".join(lines)


@cache
def word_frequencies(language: str) -> Callable[[str], float]:
    """Return a function that returns a word's share of all words of a language.

    Words must be as :func:`tweetrerank.rerankers.text.words.words` returns them. In
    languages other than English, a word with a digit gets its English frequency. The
    share of an unknown word is 0. The package ``wordfreq`` is imported here, at the
    first call.
    """
    if language == "en":
        return _english_frequencies()
    frequencies = _frequencies_of_words(language)

    def frequency(word: str) -> float:
        listed = frequencies.get(word)
        if listed:
            return listed
        if _DIGIT.search(word):
            return _english_frequency(word)
        return 0.0

    return frequency


def _english_frequency(word: str) -> float:
    import wordfreq

    return float(wordfreq.word_frequency(word, "en"))


def _english_frequencies() -> Callable[[str], float]:
    """Return a faster equivalent of ``wordfreq.word_frequency`` for English.

    A word of lower-case ASCII letters is looked up in wordfreq's list. If the list does
    not have it, its frequency is 0. Otherwise the word has a level (bin) in the list,
    and all words of one level have the same frequency. So wordfreq is called only once
    for each level. It is called for every word of another form.
    """
    import wordfreq

    frequencies: dict[float | None, float] = {None: 0.0}  # None: words without a level
    # With both arguments this is wordfreq's own cached list.
    level_of = wordfreq.get_frequency_dict("en", "best").get

    def frequency(word: str) -> float:
        if not (word.isascii() and word.isalpha() and word.islower()):
            return _english_frequency(word)
        level = level_of(word)
        if level not in frequencies:
            frequencies[level] = _english_frequency(word)
        return frequencies[level]

    return frequency


@cache
def _frequencies_of_words(language: str) -> Mapping[str, float]:
    """Return the frequencies of wordfreq's list, converted to our words.

    The conversion is needed because our words mostly have no accents, and scripts
    without spaces are cut into pairs of characters. If several listed words contain
    one of ours, their frequencies are added.
    """
    import wordfreq

    listed: dict[str, float] = {}
    for word, share in wordfreq.get_frequency_dict(language, "best").items():
        if share >= RAREST:
            listed[word] = share
    lexicon = Lexicon.from_texts(list(listed))
    shares = list(listed.values())
    rows = lexicon.texts.values.tolist()
    owners = lexicon.texts.owners.tolist()
    frequencies = defaultdict[str, float](float)
    for row, owner in zip(rows, owners, strict=True):
        frequencies[lexicon.words[row]] += shares[owner]
    return dict(frequencies)
