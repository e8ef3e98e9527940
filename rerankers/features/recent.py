"""Keep the posts that were read for features, so that later calls need not read them.

What the cache has of a post depends on its text and URL and on the source of IDF. It
does not depend on the model.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from threading import Lock

import numpy as np

from tweetrerank.rerankers.features.text_tables import COLUMNS, PostTable, WordTable
from tweetrerank.rerankers.pairs import Pairs
from tweetrerank.rerankers.text.ragged import Ragged, Rows
from tweetrerank.rerankers.text.vocabulary import Idf

MOST_WORDS = 2**16
"""The cache is emptied when it has more words than this. The properties and vectors of
a word take 1 KB."""

OBJECTS = 400
"""Number of bytes that a post's seven objects take in addition to their content."""

Post = tuple[str, str]  # Text and URL

PostColumns = tuple[bytes, ...]
"""A post's values in each of :data:`COLUMNS`."""


class RecentPosts:
    """A cache of the posts used last. It is thread-safe.

    Args:
        max_bytes: largest size of the posts. The table of their words, of which there
            are about :data:`MOST_WORDS` at most, is not included.

    Attributes:
        bytes: size of the posts in the cache.
        hits: number of posts that have been found in the cache.
        misses: number of posts that have not been found.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._words: WordTable | None = None
        self._posts: OrderedDict[Post, PostColumns] = OrderedDict()
        """The post used last is at the end."""
        self._lock = Lock()

    def words(self, idf: Idf) -> WordTable:
        """Return the table of words.

        If the table is full or was made for another source of IDF, the cache is emptied
        and a new table is returned.
        """
        with self._lock:
            table = self._words
            if table is None or table.idf is not idf or len(table) > MOST_WORDS:
                table = WordTable(idf)
                self._words = table
                self._posts.clear()
                self.bytes = 0
            return table

    def reader(
        self,
        pairs: Pairs,
        words: WordTable,
    ) -> Callable[[Rows], PostTable]:
        """Return a function that returns the table of posts with given numbers [N].

        The numbers are rows of ``pairs.texts``. The function takes posts from the cache
        and reads the others.
        """

        def read(numbers: Rows) -> PostTable:
            posts = []
            for number in numbers.tolist():
                posts.append((pairs.texts[number], pairs.urls[number]))
            columns_of = self._find(posts, words)
            missing = [post for post in dict.fromkeys(posts) if post not in columns_of]
            if missing:
                new_columns = _read(missing, words)
                self._add(new_columns, words)
                columns_of |= new_columns
            return _table([columns_of[post] for post in posts])

        return read

    def _find(
        self,
        posts: Sequence[Post],
        words: WordTable,
    ) -> dict[Post, PostColumns]:
        """Return the columns of those posts that are in the cache."""
        columns_of = {}
        with self._lock:
            # If the table has been replaced, the words have other rows there.
            if words is self._words:
                for post in posts:
                    if post in self._posts:
                        columns_of[post] = self._posts[post]
            for post in columns_of:
                self._posts.move_to_end(post)
            hits = sum(post in columns_of for post in posts)
            self.hits += hits
            self.misses += len(posts) - hits
        return columns_of

    def _add(
        self,
        columns_of: Mapping[Post, PostColumns],
        words: WordTable,
    ) -> None:
        with self._lock:
            if words is not self._words:
                return
            for post, columns in columns_of.items():
                # Another thread may have added the post in the meantime.
                if post not in self._posts:
                    self._posts[post] = columns
                    self.bytes += _size(post, columns)
            while self.bytes > self.max_bytes:
                oldest, columns = self._posts.popitem(last=False)
                self.bytes -= _size(oldest, columns)


def _read(
    posts: Sequence[Post],
    words: WordTable,
) -> dict[Post, PostColumns]:
    """Read distinct posts and return their columns."""
    texts, urls = zip(*posts, strict=True)
    table = PostTable.read(texts, urls, words)
    columns = []
    for name in COLUMNS:
        lists = table.column(name)
        content = lists.values.tobytes()
        borders = (lists.starts * lists.values.itemsize).tolist()
        columns.append([content[start:end] for start, end in pairwise(borders)])
    columns_of_posts = zip(*columns, strict=True)
    return dict(zip(posts, columns_of_posts, strict=True))


def _table(posts: Sequence[PostColumns]) -> PostTable:
    """Return the table of posts, given by their columns."""
    columns = {}
    for number, (name, kind) in enumerate(COLUMNS.items()):
        contents = [post[number] for post in posts]
        sizes = np.fromiter(
            map(len, contents),
            np.int64,
            len(contents),
        )
        values = np.frombuffer(b"".join(contents), kind)
        lengths = sizes // np.dtype(kind).itemsize
        columns[name] = Ragged.from_lengths(values, lengths)
    return PostTable(len(posts), columns.__getitem__)


def _size(post: Post, columns: PostColumns) -> int:
    text, url = post
    content = sum(map(len, columns))
    return OBJECTS + len(text) + len(url) + content
