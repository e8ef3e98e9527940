"""Tables of posts and of words, with the properties that do not depend on a query.

Each column of a table of posts has a list of numbers for every post:

``words``          rows of its words in the table of words
``hashtag_words``  rows of the words of its hashtags
``trigrams``       identifiers of its distinct character trigrams, with spaces around words
``grams``          the same of four characters
``characters``     counts of characters; see :class:`CharacterCounts`
``link``           host and path of its URL (:func:`tweetrerank.rerankers.text.words.url_text`) in UTF-8

A column is computed at its first use. A word is looked up once for all topics; its properties reach
the places in the posts by its row.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.text import words
from tweetrerank.rerankers.text.ragged import (
    Growing,
    Ragged,
    Rows,
    code_points,
    distinct_grams,
)
from tweetrerank.rerankers.text.spaces import Embeddings, WordSpace
from tweetrerank.rerankers.text.stems import stem
from tweetrerank.rerankers.text.vocabulary import Idf

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PERSONAL_WORDS = frozenset(["i", "me", "my", "im", "lol", "u"])
"""Words of chat and of posts about oneself."""


class WordColumns(NamedTuple):
    """Properties of V words: each [V]."""

    idf: npt.NDArray[np.float32]
    stem: npt.NDArray[np.int32]  # Number of the word's stem
    is_stop_word: Bools
    is_personal: Bools

    def take(self, rows: npt.NDArray[np.integer]) -> "WordColumns":
        """The properties of the words ``rows`` [T]: each [T]."""
        return WordColumns(*(column[rows] for column in self))


class _Numbers(dict[str, int]):
    """String -> number; a new string gets the next free number. Strings of one ``form`` share it.

    ``strings`` are those forms, in the order of their numbers.
    """

    def __init__(self, form: Callable[[str], str] = str) -> None:
        super().__init__()
        self.strings: list[str] = []
        self._form = form

    def __missing__(self, string: str) -> int:
        if (form := self._form(string)) != string:
            number = self[form]
        else:
            number = len(self.strings)
            self.strings.append(string)
        self[string] = number
        return number


class WordTable:
    """Word -> row, extended by the words of new texts; safe in several threads."""

    def __init__(self, idf: Idf) -> None:
        self.idf = idf
        self._lock = Lock()
        self._words, self._stems = _Numbers(words.shortened), _Numbers()
        self._words[words.END] = -1
        self._columns = Growing([np.zeros(0, dtype) for dtype in "fi??"])
        self._vectors: dict[WordSpace, tuple[Rows, Growing]] = {}
        """Space -> place by row, -1 of words without a vector yet; vectors by place."""

    def __len__(self) -> int:
        return len(self._words.strings)

    def rows(self, tokens: Sequence[str]) -> Rows:
        """[L] rows of words; -1 of :data:`tweetrerank.rerankers.text.words.END`."""
        with self._lock:
            return np.fromiter(
                map(self._words.__getitem__, tokens), np.int64, len(tokens)
            )

    def cut(self, texts: Sequence[str]) -> Ragged:
        """Rows (int32) of the words of each text."""
        rows = Ragged.split(self.rows(words.tokens_of(texts)), -1)
        return Ragged(rows.values.astype(np.int32), rows.starts)

    def spelled(self, rows: npt.NDArray[np.integer]) -> list[str]:
        """[L] words of rows."""
        return [*map(self._words.strings.__getitem__, rows.tolist())]

    def vectors(self, rows: Rows, space: WordSpace) -> Embeddings:
        """Vectors of V distinct words in a space, and their lengths; each is computed once."""
        with self._lock:
            places, known = self._vectors.get(space) or (
                rows[:0],
                Growing(space.take([])),
            )
            if (short := len(self) - len(places)) > 0:
                places = np.concatenate([places, np.full(len(self) + short, -1)])
            if len(new := rows[places[rows] < 0]):
                places[new] = len(known) + np.arange(len(new))
                known.append(*space.take(self.spelled(new)))
            self._vectors[space] = places, known
            return Embeddings(
                *(array.take(places[rows], axis=0) for array in known.arrays())
            )

    def columns(self) -> WordColumns:
        """The properties of all words; those of words that are new since the last call are added.

        Arrays that an earlier call returned are not changed.
        """
        with self._lock:
            if new := self._words.strings[len(self._columns) :]:
                self._columns.append(
                    self.idf.weights(new),
                    np.array([self._stems[stem(word)] for word in new], dtype=np.int32),
                    np.array([word in words.STOP_WORDS for word in new]),
                    np.array([word in PERSONAL_WORDS for word in new]),
                )
            return WordColumns(*self._columns.arrays())


COLUMNS = {  # Name -> type of its numbers
    "words": np.int32,
    "hashtag_words": np.int32,
    "trigrams": np.uint64,
    "grams": np.uint64,
    "characters": np.int32,
    "link": np.uint8,
}
BLOCK = 4096  # Posts that are read together; larger blocks are no faster and need more memory

_RETWEET = re.compile(r"\s*rt\b", re.IGNORECASE)


class CharacterCounts(NamedTuple):
    """Counts over the first ``MAX_CHARACTERS`` characters of N posts: each [N]."""

    characters: Rows
    hashtags: Rows
    is_retweet: Rows  # 1 if the post begins with ``RT``, else 0
    exclamation_marks: Rows
    question_marks: Rows
    other_scripts: Rows  # Characters outside ASCII
    digits: Rows  # Characters 0 to 9
    elongations: Rows  # Places with the same letter a to z three times in a row


class PostTable:
    """N posts. ``column``: a name of :data:`COLUMNS` -> the posts' lists, which are found once."""

    def __init__(self, size: int, find: Callable[[str], Ragged]) -> None:
        self._size, self.column = size, cache(find)

    def __len__(self) -> int:
        return self._size

    @property
    def counted(self) -> CharacterCounts:
        """The column ``characters`` as arrays."""
        values = self.column("characters").values
        return CharacterCounts(*values.reshape(-1, len(CharacterCounts._fields)).T)

    def take(self, rows: Rows) -> "PostTable":
        """The posts ``rows`` [M], in this order."""
        return PostTable(len(rows), lambda name: self.column(name).take(rows))

    @classmethod
    def read(
        cls, texts: Sequence[str], urls: Sequence[str], words: WordTable
    ) -> "PostTable":
        """Read N posts and add their words to a table; equal posts are read once."""
        numbers: dict[tuple[str, str], int] = {}
        rows = [
            numbers.setdefault(post, len(numbers))
            for post in zip(texts, urls, strict=True)
        ]
        posts = list(numbers)
        # An empty block if there are no posts.
        starts = range(0, max(1, len(posts)), BLOCK)
        blocks = [_Block(posts[start : start + BLOCK], words) for start in starts]

        def find(name: str) -> Ragged:
            return Ragged.joined([getattr(block, name) for block in blocks])

        return cls(len(posts), find).take(np.array(rows, dtype=np.int64))


def spaced(texts: Iterable[Sequence[str]]) -> Ragged:
    """The code points of texts, given by their words, with a space around each word."""
    return code_points([f" {' '.join(words)} " for words in texts])


class _Block:
    """The columns of some posts."""

    def __init__(self, posts: Sequence[tuple[str, str]], table: WordTable) -> None:
        self.texts, self.urls = [post for post, _ in posts], [url for _, url in posts]
        self.table = table

    @cached_property
    def words(self) -> Ragged:
        return self.table.cut(self.texts)

    @cached_property
    def hashtag_words(self) -> Ragged:
        lengths = np.array([len(tags) for tags in self._hashtags])
        found = self.table.cut([" ".join(tags) for tags in self._hashtags if tags])
        lengths[lengths > 0] = found.lengths
        return Ragged.from_lengths(found.values, lengths)

    @cached_property
    def _spaced(self) -> Ragged:
        spelled, starts = (
            self.table.spelled(self.words.values),
            self.words.starts.tolist(),
        )
        return spaced([spelled[a:b] for a, b in itertools.pairwise(starts)])

    @property
    def trigrams(self) -> Ragged:
        return distinct_grams(self._spaced, 3)

    @property
    def grams(self) -> Ragged:
        return distinct_grams(self._spaced, 4)

    @property
    def characters(self) -> Ragged:
        characters = code_points([post[: words.MAX_CHARACTERS] for post in self.texts])
        codes, post = characters.values, characters.owners
        small = codes | 0x20
        is_letter = (small >= ord("a")) & (small <= ord("z"))
        is_twice = (small[:-1] == small[1:]) & (post[:-1] == post[1:]) & is_letter[:-1]

        def count(chosen: Bools) -> Rows:
            return np.bincount(post[: len(chosen)][chosen], minlength=len(characters))

        counted = CharacterCounts(
            characters.lengths,
            np.array([len(tags) for tags in self._hashtags], dtype=np.int64),
            np.array(
                [bool(_RETWEET.match(text)) for text in self.texts], dtype=np.int64
            ),
            count(codes == ord("!")),
            count(codes == ord("?")),
            count(codes > 127),
            count((codes >= ord("0")) & (codes <= ord("9"))),
            count(is_twice[:-1] & is_twice[1:]),
        )
        table = np.stack(counted, axis=1).astype(np.int32)
        return Ragged.from_lengths(
            table.reshape(-1), np.full(len(table), table.shape[1])
        )

    @property
    def link(self) -> Ragged:
        links = [words.url_text(url) for url in self.urls]
        # The placeholder of a missing URL contains no words. Some posts have lone surrogates.
        letters = [
            b""
            if link == words.URL_PLACEHOLDER
            else link.encode(errors="surrogatepass")
            for link in links
        ]
        counts = np.fromiter(map(len, letters), dtype=np.int64, count=len(letters))
        return Ragged.from_lengths(
            np.frombuffer(b"".join(letters), dtype=np.uint8), counts
        )

    @cached_property
    def _hashtags(self) -> list[list[str]]:
        return [words.hashtags(post) for post in self.texts]
