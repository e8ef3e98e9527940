"""Posts read for features by earlier calls, in memory: the last ones are kept.

What is kept depends on a post's text and URL alone, and on the source of IDF, not on the model.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock

import numpy as np

from tweetrerank.rerankers.features.text_tables import COLUMNS, PostTable, WordTable
from tweetrerank.rerankers.pairs import Pairs
from tweetrerank.rerankers.text.ragged import Ragged, Rows
from tweetrerank.rerankers.text.vocabulary import Idf

MOST_WORDS = 2**16
"""Words whose properties and vectors are kept, 1 KB each; one more, and all begin again."""

OBJECTS = 400
"""Bytes of a post's seven objects besides their content."""

Post = tuple[str, str]
"""Text and URL."""

Kept = tuple[bytes, ...]
"""A post's row of each of :data:`COLUMNS`."""


class RecentPosts:
    """Posts read last; safe in several threads.

    Args:
        max_bytes: of the posts, besides their words, of which there are about :data:`MOST_WORDS`
            at most.

    Attributes:
        bytes: of the posts.
        hits: posts that were found.
        misses: posts that were read.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes, self.hits, self.misses = 0, 0, 0
        self._words: WordTable | None = None
        self._posts: OrderedDict[Post, Kept] = OrderedDict()
        """The one used last at the end."""
        self._lock = Lock()

    def words(self, idf: Idf) -> WordTable:
        """The table of words; a new one, without posts, if it is full or of another source."""
        with self._lock:
            if (
                self._words is None
                or self._words.idf is not idf
                or len(self._words) > MOST_WORDS
            ):
                self._words = WordTable(idf)
                self._posts.clear()
                self.bytes = 0
            return self._words

    def reader(self, pairs: Pairs, words: WordTable) -> Callable[[Rows], PostTable]:
        """A function from posts [N] of pairs to their table; it reads posts that are missing."""

        def read(numbers: Rows) -> PostTable:
            posts = [
                (pairs.texts[number], pairs.urls[number]) for number in numbers.tolist()
            ]
            found = self._find(posts, words)
            if new := [post for post in dict.fromkeys(posts) if post not in found]:
                texts, urls = zip(*new, strict=True)
                read = dict(
                    zip(new, _rows_of(PostTable.read(texts, urls, words)), strict=True)
                )
                self._keep(read, words)
                found |= read
            return _table([found[post] for post in posts])

        return read

    def _find(self, posts: Sequence[Post], words: WordTable) -> dict[Post, Kept]:
        with self._lock:
            # Of another table, posts have other rows of words.
            known = self._posts if words is self._words else {}
            found = {post: known[post] for post in posts if post in known}
            for post in found:
                self._posts.move_to_end(post)
            hits = sum(post in found for post in posts)
            self.hits, self.misses = self.hits + hits, self.misses + len(posts) - hits
        return found

    def _keep(self, read: Mapping[Post, Kept], words: WordTable) -> None:
        with self._lock:
            if words is not self._words:
                return
            for post, kept in read.items():
                # Another thread may have read it at the same time.
                if post not in self._posts:
                    self._posts[post] = kept
                    self.bytes += _size(post, kept)
            while self.bytes > self.max_bytes:
                self.bytes -= _size(*self._posts.popitem(last=False))


def _rows_of(table: PostTable) -> list[Kept]:
    columns = []
    for name in COLUMNS:
        lists = table.column(name)
        data, starts = lists.values.tobytes(), lists.starts * lists.values.itemsize
        columns.append([data[a:b] for a, b in itertools.pairwise(starts.tolist())])
    return [*zip(*columns, strict=True)]


def _table(posts: Sequence[Kept]) -> PostTable:
    columns = {}
    for (name, kind), lists in zip(
        COLUMNS.items(), zip(*posts, strict=True), strict=True
    ):
        lengths = (
            np.fromiter(map(len, lists), np.int64, len(lists))
            // np.dtype(kind).itemsize
        )
        columns[name] = Ragged.from_lengths(
            np.frombuffer(b"".join(lists), kind), lengths
        )
    return PostTable(len(posts), columns.__getitem__)


def _size(post: Post, kept: Kept) -> int:
    return OBJECTS + len(post[0]) + len(post[1]) + sum(map(len, kept))
