"""Table of posts, with the columns that features read and that do not depend on a query.

Each column has a list of numbers for every post:

``words``          rows of its words in the table of words
``hashtag_words``  rows of the words of its hashtags
``trigrams``       identifiers of its distinct character trigrams, with spaces around words
``characters``     counts of characters; see :class:`CharacterCounts`
``link``           host and path of its URL (:func:`rerankers.text.words.url_text`) in UTF-8

A column is computed at its first use.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rerankers.features._word_table import WordTable
from rerankers.text import words
from rerankers.text.characters import code_points, distinct_trigrams
from rerankers.text.lexicon import Lexicon
from rerankers.text.ragged import Ragged, Rows

COLUMNS = ("words", "hashtag_words", "trigrams", "characters", "link")

BLOCK = 4096
"""Posts that are read together; larger blocks are no faster and need more memory."""

_RETWEET = re.compile(r"\s*rt\b", re.IGNORECASE)


class CharacterCounts(NamedTuple):
    """Counts over the first ``MAX_CHARACTERS`` characters of N posts: each [N].

    Attributes:
        characters: all characters.
        hashtags: see :func:`rerankers.text.words.hashtags`.
        is_retweet: 1 if the post begins with ``RT``, else 0.
        exclamation_marks, question_marks: number of ``!`` and ``?``.
        other_scripts: characters outside ASCII.
        digits: characters 0 to 9.
        elongations: places with the same letter a to z three times in a row.
    """

    characters: Rows
    hashtags: Rows
    is_retweet: Rows
    exclamation_marks: Rows
    question_marks: Rows
    other_scripts: Rows
    digits: Rows
    elongations: Rows


class Columns:
    """Columns by name, each computed at its first use; safe in several threads.

    Args:
        find: computes the column of a name.
    """

    def __init__(self, find: Callable[[str], Ragged]) -> None:
        self._find = find
        self._found: dict[str, Ragged] = {}
        self._lock = Lock()

    def __getitem__(self, name: str) -> Ragged:
        with self._lock:
            if name not in self._found:
                self._found[name] = self._find(name)
            return self._found[name]


class PostTable:
    """N posts.

    Args:
        columns: name, as in :data:`COLUMNS` -> a column.
        rows: [N] of the columns.
    """

    def __init__(self, columns: Columns | Mapping[str, Ragged], rows: Rows) -> None:
        self._columns, self._rows = columns, rows
        self._taken: dict[str, Ragged] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> Ragged:
        """One of :data:`COLUMNS`."""
        if name not in self._taken:
            self._taken[name] = self._columns[name].take(self._rows)
        return self._taken[name]

    @property
    def counted(self) -> CharacterCounts:
        """The column ``characters`` as arrays."""
        values = self.column("characters").values
        return CharacterCounts(*values.reshape(-1, len(CharacterCounts._fields)).T)

    def take(self, rows: Rows) -> PostTable:
        """The posts ``rows`` [M], in this order."""
        return PostTable(self._columns, self._rows[rows])

    @classmethod
    def read(cls, texts: Sequence[str], urls: Sequence[str], words: WordTable) -> PostTable:
        """Read posts; equal posts are read once.

        Args:
            texts, urls: [N].
            words: the words of the posts are added.
        """
        numbers: dict[tuple[str, str], int] = {}
        rows = [numbers.setdefault(post, len(numbers)) for post in zip(texts, urls, strict=True)]
        posts = list(numbers)
        # An empty block if there are no posts.
        starts = range(0, max(1, len(posts)), BLOCK)
        blocks = [_Block(posts[start : start + BLOCK], words) for start in starts]

        def find(name: str) -> Ragged:
            return Ragged.joined([getattr(block, name) for block in blocks])

        return cls(Columns(find), np.array(rows, dtype=np.int64))

    @classmethod
    def joined(cls, parts: Sequence[PostTable]) -> PostTable:
        """The posts of several tables, table after table."""
        columns = Columns(lambda name: Ragged.joined([part.column(name) for part in parts]))
        return cls(columns, np.arange(sum(map(len, parts))))


class _Block:
    """The columns of some posts."""

    def __init__(self, posts: Sequence[tuple[str, str]], table: WordTable) -> None:
        self.texts, self.urls = [post for post, _ in posts], [url for _, url in posts]
        self.table = table

    @cached_property
    def words(self) -> Ragged:
        return _rows_of(self.texts, self.table)

    @cached_property
    def hashtag_words(self) -> Ragged:
        return _rows_of([" ".join(tags) for tags in self._hashtags], self.table)

    @property
    def trigrams(self) -> Ragged:
        words, starts = self.table.spelled(self.words.values), self.words.starts.tolist()
        lines = [f" {' '.join(words[a:b])} " for a, b in itertools.pairwise(starts)]
        return distinct_trigrams(lines)

    @property
    def characters(self) -> Ragged:
        characters = code_points([post[: words.MAX_CHARACTERS] for post in self.texts])
        codes, is_retweet = characters.values, [bool(_RETWEET.match(post)) for post in self.texts]

        def count(chosen: npt.NDArray[np.bool_]) -> Rows:
            return np.bincount(characters.owners[: len(chosen)][chosen], minlength=len(characters))

        counted = CharacterCounts(
            characters.lengths,
            np.array([len(tags) for tags in self._hashtags], dtype=np.int64),
            np.array(is_retweet, dtype=np.int64),
            count(codes == ord("!")),
            count(codes == ord("?")),
            count(codes > 127),
            count((codes >= ord("0")) & (codes <= ord("9"))),
            count(_third_in_a_row(codes, characters.owners)),
        )
        table = np.stack(counted, axis=1).astype(np.int32)
        return Ragged.from_lengths(table.reshape(-1), np.full(len(table), table.shape[1]))

    @property
    def link(self) -> Ragged:
        said = [words.url_text(url) for url in self.urls]
        # The placeholder of a missing URL contains no words. Some posts have lone surrogates.
        letters = [
            b"" if link == words.URL_PLACEHOLDER else link.encode(errors="surrogatepass")
            for link in said
        ]
        counts = np.fromiter(map(len, letters), dtype=np.int64, count=len(letters))
        return Ragged.from_lengths(np.frombuffer(b"".join(letters), dtype=np.uint8), counts)

    @cached_property
    def _hashtags(self) -> list[list[str]]:
        return [words.hashtags(post) for post in self.texts]


def _rows_of(texts: Sequence[str], table: WordTable) -> Ragged:
    """Rows of each text's words in the table of words."""
    lexicon = Lexicon.from_texts(texts)
    return Ragged(
        table.rows(lexicon.words)[lexicon.texts.values].astype(np.int32), lexicon.texts.starts
    )


def _third_in_a_row(
    codes: npt.NDArray[np.uint32], post: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Whether a letter and the next two are the same, ignoring case: [C - 2]."""
    small = codes | 0x20
    is_letter = (small >= ord("a")) & (small <= ord("z"))
    same = (small[:-2] == small[1:-1]) & (small[1:-1] == small[2:]) & (post[:-2] == post[2:])
    found: npt.NDArray[np.bool_] = same & is_letter[:-2]
    return found
