"""Tables of posts and of words, with the properties that do not depend on a query.

Each column of a table of posts has a list of numbers for every post:

``words``          rows of its words in the table of words
``hashtag_words``  rows of the words of its hashtags
``trigrams``       identifiers of the distinct character trigrams of its words, with
                   spaces around the words
``grams``          the same with four characters
``characters``     counts of characters; see :class:`CharacterCounts`
``link``           host and path of its URL
                   (:func:`tweetrerank.rerankers.text.words.url_text`) in UTF-8

A column is computed when it is first used. The properties of a word are looked up only
once for all topics, and posts refer to them by the word's row.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from itertools import pairwise
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
"""Words that are typical of chat and of posts about oneself."""


class WordColumns(NamedTuple):
    """Properties of V words, each [V]."""

    idf: npt.NDArray[np.float32]
    stem: npt.NDArray[np.int32]  # Number of the word's stem
    is_stop_word: Bools
    is_personal: Bools

    def take(self, rows: npt.NDArray[np.integer]) -> "WordColumns":
        """Return the properties of the words ``rows`` [T], each [T]."""
        return WordColumns(
            self.idf[rows],
            self.stem[rows],
            self.is_stop_word[rows],
            self.is_personal[rows],
        )


class _Numbers(dict[str, int]):
    """A dictionary that numbers strings. A new string gets the next free number.

    The function ``form`` maps a string to its normal form, and strings of one form
    share a number. ``strings`` are the forms in the order of their numbers.
    """

    def __init__(
        self,
        form: Callable[[str], str] = str,
    ) -> None:
        super().__init__()
        self.strings: list[str] = []
        self._form = form

    def __missing__(self, string: str) -> int:
        form = self._form(string)
        if form != string:
            number = self[form]
        else:
            number = len(self.strings)
            self.strings.append(string)
        self[string] = number
        return number


class _SpaceVectors:
    """The vectors that words of a table have in a space. Each is computed only once."""

    def __init__(self, space: WordSpace) -> None:
        self._space = space
        self._places = np.zeros(0, np.int64)  # By row; -1 for words without a vector
        self._embeddings = Growing(space.take([]))

    def take(
        self,
        rows: Rows,
        table_size: int,
        spelled: Callable[[Rows], list[str]],
    ) -> Embeddings:
        """Return the vectors of V distinct words.

        Args:
            rows: rows of the words in the table [V].
            table_size: number of words in the table.
            spelled: function that returns the words of given rows.
        """
        missing_places = table_size - len(self._places)
        if missing_places > 0:
            # Room for more words than there are, so that the array rarely grows.
            unknown = np.full(table_size + missing_places, -1)
            self._places = np.concatenate([self._places, unknown])
        new_rows = rows[self._places[rows] < 0]
        if len(new_rows):
            start = len(self._embeddings)
            self._places[new_rows] = start + np.arange(len(new_rows))
            self._embeddings.append(*self._space.take(spelled(new_rows)))
        places = self._places[rows]
        vectors, lengths, is_known = self._embeddings.arrays()
        return Embeddings(
            vectors.take(places, axis=0),
            lengths.take(places, axis=0),
            is_known.take(places, axis=0),
        )


class WordTable:
    """A table with a row for each distinct word. It is thread-safe.

    The words of new texts are added as they are read.
    """

    def __init__(self, idf: Idf) -> None:
        self.idf = idf
        self._lock = Lock()
        self._words = _Numbers(words.shortened)
        self._words[words.END] = -1
        self._stems = _Numbers()
        # Columns of a WordColumns
        self._columns = Growing([np.zeros(0, kind) for kind in "fi??"])
        self._vectors: dict[WordSpace, _SpaceVectors] = {}

    def __len__(self) -> int:
        return len(self._words.strings)

    def rows(self, tokens: Sequence[str]) -> Rows:
        """Return the rows of L words [L], and -1 for END. New words are added."""
        with self._lock:
            rows = map(self._words.__getitem__, tokens)
            return np.fromiter(rows, np.int64, len(tokens))

    def cut(self, texts: Sequence[str]) -> Ragged:
        """Return the rows (int32) of the words of each text, as lists."""
        rows_and_ends = self.rows(words.tokens_of(texts))
        rows = Ragged.split(rows_and_ends, -1)
        return Ragged(rows.values.astype(np.int32), rows.starts)

    def spelled(
        self,
        rows: npt.NDArray[np.integer],
    ) -> list[str]:
        """Return the words in the rows [L]."""
        return list(map(self._words.strings.__getitem__, rows.tolist()))

    def vectors(
        self,
        rows: Rows,
        space: WordSpace,
    ) -> Embeddings:
        """Return the vectors in a space of V distinct words, given by their rows."""
        with self._lock:
            if space not in self._vectors:
                self._vectors[space] = _SpaceVectors(space)
            vectors = self._vectors[space]
            return vectors.take(rows, len(self), self.spelled)

    def columns(self) -> WordColumns:
        """Return the properties of all words of the table.

        Properties are computed here for the words added since the last call. Arrays
        that an earlier call returned are not changed.
        """
        with self._lock:
            new_words = self._words.strings[len(self._columns) :]
            if new_words:
                stems = [self._stems[stem(word)] for word in new_words]
                self._columns.append(
                    self.idf.weights(new_words),
                    np.array(stems, dtype=np.int32),
                    np.array([word in words.STOP_WORDS for word in new_words]),
                    np.array([word in PERSONAL_WORDS for word in new_words]),
                )
            return WordColumns(*self._columns.arrays())


COLUMNS = {  # Name of a column -> type of its numbers
    "words": np.int32,
    "hashtag_words": np.int32,
    "trigrams": np.uint64,
    "grams": np.uint64,
    "characters": np.int32,
    "link": np.uint8,
}

BLOCK = 4096
"""Number of posts that are read together. Larger blocks are no faster and need more
memory."""

_RETWEET = re.compile(r"\s*rt\b", re.IGNORECASE)


class CharacterCounts(NamedTuple):
    """Counts in the first ``MAX_CHARACTERS`` characters of N posts, each [N]."""

    characters: Rows
    hashtags: Rows
    is_retweet: Rows  # 1 if the post begins with ``RT``, else 0
    exclamation_marks: Rows
    question_marks: Rows
    other_scripts: Rows  # Characters outside ASCII
    digits: Rows  # Characters 0 to 9
    elongations: Rows  # Places where a letter a to z occurs three times in a row


class PostTable:
    """A table of N posts.

    Args:
        size: N.
        find: function that returns the column of a name, one of :data:`COLUMNS`.

    Attributes:
        column: the function ``find`` with a cache, so that it is called once for each
            column.
    """

    def __init__(
        self,
        size: int,
        find: Callable[[str], Ragged],
    ) -> None:
        self._size = size
        self.column = cache(find)

    def __len__(self) -> int:
        return self._size

    @property
    def counted(self) -> CharacterCounts:
        """The column ``characters`` as an array for each count."""
        values = self.column("characters").values
        counts = values.reshape(-1, len(CharacterCounts._fields))
        return CharacterCounts(*counts.T)

    def take(self, rows: Rows) -> "PostTable":
        """Return a table of the posts ``rows`` [M], in this order."""
        return PostTable(
            len(rows),
            lambda name: self.column(name).take(rows),
        )

    @classmethod
    def read(
        cls,
        texts: Sequence[str],
        urls: Sequence[str],
        words: WordTable,
    ) -> "PostTable":
        """Read N posts, given by their texts and URLs, and add their words to a table.

        Posts with the same text and URL are read only once.
        """
        number_of: dict[tuple[str, str], int] = {}
        rows = [
            number_of.setdefault(post, len(number_of))
            for post in zip(texts, urls, strict=True)
        ]
        posts = list(number_of)
        blocks = []
        # Without posts there is one empty block.
        for start in range(0, max(1, len(posts)), BLOCK):
            blocks.append(_Block(posts[start : start + BLOCK], words))

        def find(name: str) -> Ragged:
            return Ragged.joined([getattr(block, name) for block in blocks])

        distinct_posts = cls(len(posts), find)
        return distinct_posts.take(np.array(rows, dtype=np.int64))


def spaced(texts: Iterable[Sequence[str]]) -> Ragged:
    """Return the code points of texts, given by their words.

    There is a space before and after each word.
    """
    return code_points([f" {' '.join(words)} " for words in texts])


class _Block:
    """The columns of some posts that are read together."""

    def __init__(
        self,
        posts: Sequence[tuple[str, str]],
        table: WordTable,
    ) -> None:
        self.texts = [text for text, _ in posts]
        self.urls = [url for _, url in posts]
        self.table = table

    @cached_property
    def words(self) -> Ragged:
        return self.table.cut(self.texts)

    @cached_property
    def hashtag_words(self) -> Ragged:
        tagged_posts = [" ".join(tags) for tags in self._hashtags if tags]
        rows = self.table.cut(tagged_posts)
        lengths = np.array([len(tags) for tags in self._hashtags])
        lengths[lengths > 0] = rows.lengths
        return Ragged.from_lengths(rows.values, lengths)

    @cached_property
    def _spaced(self) -> Ragged:
        spelled = self.table.spelled(self.words.values)
        borders = self.words.starts.tolist()
        return spaced([spelled[start:end] for start, end in pairwise(borders)])

    @property
    def trigrams(self) -> Ragged:
        return distinct_grams(self._spaced, 3)

    @property
    def grams(self) -> Ragged:
        return distinct_grams(self._spaced, 4)

    @property
    def characters(self) -> Ragged:
        posts = code_points([text[: words.MAX_CHARACTERS] for text in self.texts])
        codes = posts.values
        hashtags = [len(tags) for tags in self._hashtags]
        is_retweet = [bool(_RETWEET.match(text)) for text in self.texts]

        is_digit = (codes >= ord("0")) & (codes <= ord("9"))

        def count(is_counted: Bools) -> Rows:
            owners = posts.owners[: len(is_counted)][is_counted]
            return np.bincount(owners, minlength=len(posts))

        counts = CharacterCounts(
            characters=posts.lengths,
            hashtags=np.array(hashtags, dtype=np.int64),
            is_retweet=np.array(is_retweet, dtype=np.int64),
            exclamation_marks=count(codes == ord("!")),
            question_marks=count(codes == ord("?")),
            other_scripts=count(codes > 127),
            digits=count(is_digit),
            elongations=count(_is_elongated(posts)),
        )
        table = np.stack(counts, axis=1).astype(np.int32)
        lengths = np.full(len(table), table.shape[1])
        return Ragged.from_lengths(table.reshape(-1), lengths)

    @property
    def link(self) -> Ragged:
        letters = [_link_bytes(url) for url in self.urls]
        lengths = np.fromiter(
            map(len, letters),
            dtype=np.int64,
            count=len(letters),
        )
        values = np.frombuffer(b"".join(letters), dtype=np.uint8)
        return Ragged.from_lengths(values, lengths)

    @cached_property
    def _hashtags(self) -> list[list[str]]:
        return [words.hashtags(text) for text in self.texts]


def _is_elongated(posts: Ragged) -> Bools:
    """Return for each place whether one letter a to z occurs there and at the next two.

    ``posts`` are the code points of posts; the three places must be in one post. The
    last two places of all are left out.
    """
    lower = posts.values | 0x20  # ASCII letters in lower case
    is_letter = (lower >= ord("a")) & (lower <= ord("z"))
    is_same_post = posts.owners[:-1] == posts.owners[1:]
    is_same = lower[:-1] == lower[1:]
    is_twice = is_same & is_same_post & is_letter[:-1]
    return is_twice[:-1] & is_twice[1:]


def _link_bytes(url: str) -> bytes:
    link = words.url_text(url)
    # The placeholder of a missing URL is dropped, so that no word matches it.
    if link == words.URL_PLACEHOLDER:
        return b""
    # Some posts contain half a surrogate pair.
    return link.encode(errors="surrogatepass")
