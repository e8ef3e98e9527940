"""Keep posts in a sqlite file, and read them by id or by place in the index."""

import json
import sqlite3
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.posts import Post, places_of
from tweetrerank.indexes.records import is_doc_id, is_encodable

COLUMNS = "doc_id, text, url, signals"
"""Columns of a post. The signals are JSON or NULL. Older files lack this column."""

GIVEN = "IN (SELECT value FROM json_each(?))"
"""SQL condition that a column has one of the values in a JSON array."""

POSTS_FILE = "posts.sqlite"  # File name in an index's folder

_SORTED_KIB = 64 * 1024  # Memory for sorting, in KiB

_CACHED_IDS = 200_000
"""Number of ids that are kept in memory, which takes some 25 MB.

They are kept because several methods find the same posts.
"""


class Summary(NamedTuple):
    """Figures of a new store."""

    posts: int  # Number of posts
    empties: int  # Number of posts with an empty text
    numeric_ids: bool  # Whether all ids are whole numbers below 2^63


class Closing:
    """Base of classes whose objects are closed at the end of a ``with`` block."""

    def close(self) -> None:
        """Release files and connections."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PostStore(Closing):
    """The posts of a file that :meth:`build` has written.

    The file must not change while it is open. Each post has a place 0, 1, … If all ids
    are whole numbers below 2^63, the places are in descending order of these numbers,
    else in descending order of the ids as text. If ids grow with time, new posts
    therefore come first. Raises DataError if the file is missing or is not a store of
    posts.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise DataError(f"{path}: there is no such file of posts")
        # With `immutable`, sqlite needs no locks and works in read-only folders.
        address = f"file:{quote(str(self.path.absolute()))}?mode=ro&immutable=1"
        try:
            self._connection = sqlite3.connect(
                address, uri=True, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._unusable(error) from None
        self._ids: dict[int, str] = {}
        self._columns = COLUMNS
        fields = [row[1] for row in self._select("PRAGMA table_info(posts)")]
        if "signals" not in fields:
            self._columns = COLUMNS.removesuffix(", signals")
        # Counting the posts would read all of them.
        ((last_place,),) = self._select("SELECT max(place) FROM posts")
        self._size = 0 if last_place is None else int(last_place) + 1

    @staticmethod
    def build(
        path: Path, posts: Iterable[Post], sources: Sequence[Path | str] = ()
    ) -> Summary:
        """Write posts, in any order, into a new file.

        Writing is not atomic, so write into a temporary folder. The memory needed does
        not grow with the number of posts, because sqlite sorts them in temporary files.
        These take twice the size of the posts, and are in ``$SQLITE_TMPDIR``, else in
        ``$TMPDIR`` or ``/var/tmp``. ``sources`` are the files of the posts, for error
        messages. Raises DataError if there are no posts, if an id is repeated, is empty
        or has spaces, if a text has an unpaired surrogate, or if the disk is full.
        """
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                return _fill(connection, posts, sources)
        except sqlite3.Error as error:
            raise DataError(f"{path}: cannot be written: {error}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return PostStore, (self.path.absolute(),)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Post]:
        """Iterate over all posts, in the order of their places."""
        rows = self._select(f"SELECT {self._columns} FROM posts ORDER BY place")
        return map(post_of, rows)

    def get_many(self, doc_ids: Iterable[str]) -> dict[str, Post]:
        """Return the posts with these ids, by id and in this order.

        Unknown ids are left out.
        """
        unique_ids = list(dict.fromkeys(doc_ids))
        query = f"SELECT {self._columns} FROM posts WHERE doc_id {GIVEN}"
        rows = self._select(query, json.dumps(unique_ids))
        posts = {row[0]: post_of(row) for row in rows}
        return {doc_id: posts[doc_id] for doc_id in unique_ids if doc_id in posts}

    def ids_at(self, places: Sequence[int]) -> list[str]:
        """Return the ids at these places, in the same order."""
        if len(self._ids) > _CACHED_IDS:
            self._ids = {}  # Another thread may still read the old one.
        ids = self._ids
        unknown = [place for place in places if place not in ids]
        if unknown:
            query = f"SELECT place, doc_id FROM posts WHERE place {GIVEN}"
            ids.update(self._select(query, json.dumps(unknown)))
        return [ids[place] for place in places]

    def first_up_to(self, number: int) -> int:
        """Return the place of the newest post whose id is at most ``number``.

        It is the number of posts if all ids are greater. All ids of the store must be
        whole numbers.
        """
        return bisect_left(
            range(self._size),
            -number,
            key=lambda place: -int(self.ids_at([place])[0]),
        )

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _select(self, query: str, *values: str) -> Iterator[tuple[Any, ...]]:
        try:
            # Not `yield from`: it would close the cursor, which fails if the connection
            # is closed before.
            for row in self._connection.execute(query, values):  # noqa: UP028
                yield row
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def _unusable(self, error: sqlite3.Error) -> DataError:
        return DataError(
            f"{self.path}: not a readable file of posts ({error}); "
            "build the index again"
        )


def post_of(row: Sequence[Any]) -> Post:
    """Return the post of a row that has :data:`COLUMNS`. The signals may be absent."""
    doc_id, text, url, *signals = row
    if signals and signals[0]:
        return Post(doc_id, text, url, json.loads(signals[0]))
    return Post(doc_id, text, url, {})


def row_of(post: Post) -> Sequence[Any]:
    """Return the values of a post for :data:`COLUMNS`."""
    signals = None
    if post.signals:
        signals = json.dumps(post.signals, default=str)
    return post.doc_id, post.text, post.url, signals


def is_number(doc_id: str) -> bool:
    """Return whether an id is a whole number from 0 to 2^63 - 1, such as a tweet's."""
    return (
        doc_id.isascii()
        and doc_id.isdigit()
        and len(doc_id) < 30
        and int(doc_id) < 1 << 63
    )


def _checked(posts: Iterable[Post], counts: Counter[str]) -> Iterator[Post]:
    """Yield the posts, and count them in ``counts``.

    Raises DataError if a post has an unfit id, or a text that UTF-8 cannot encode.
    """
    for post in posts:
        if not is_doc_id(post.doc_id):
            raise DataError(
                f"found the id {post.doc_id!r}, expected a text without spaces"
            )
        if not is_encodable(post.text + post.url):
            raise DataError(f"post {post.doc_id}: found half a character, a surrogate")
        counts["posts"] += 1
        counts["empty"] += not post.text.strip()
        counts["named"] += not is_number(post.doc_id)
        yield post


def _fill(
    connection: sqlite3.Connection, posts: Iterable[Post], sources: Sequence[Path | str]
) -> Summary:
    """Write the posts, sort them, and check that no id is repeated."""
    # No journal is needed, because an unfinished file is never repaired. The size of
    # the cache also limits the runs that are sorted in memory. sqlite merges 16
    # runs at a time.
    connection.executescript(
        f"""
        PRAGMA journal_mode = OFF;
        PRAGMA synchronous = OFF;
        PRAGMA cache_size = -{_SORTED_KIB};
        CREATE TEMP TABLE unsorted (doc_id TEXT, text TEXT, url TEXT, signals TEXT);
        CREATE TABLE posts
            (place INTEGER PRIMARY KEY, doc_id TEXT, text TEXT, url TEXT, signals TEXT);
        BEGIN;
        """
    )
    counts = Counter[str]()
    rows = map(row_of, _checked(posts, counts))
    connection.executemany("INSERT INTO unsorted VALUES (?, ?, ?, ?)", rows)
    summary = Summary(counts["posts"], counts["empty"], not counts["named"])
    if not summary.posts:
        names = ", ".join(Path(source).name for source in sources) or "the input"
        raise DataError(f"{names}: found no posts, expected at least one")
    order = "doc_id DESC"
    if summary.numeric_ids:
        order = "CAST(doc_id AS INTEGER) DESC, doc_id DESC"
    connection.execute(
        f"INSERT INTO posts SELECT row_number() OVER (ORDER BY {order}) - 1, {COLUMNS} "
        "FROM unsorted"
    )
    try:
        connection.execute("CREATE UNIQUE INDEX places ON posts (doc_id)")
    except sqlite3.IntegrityError:
        raise _repeated_id(connection, sources) from None
    connection.execute("COMMIT")
    return summary


def _repeated_id(
    connection: sqlite3.Connection, sources: Sequence[Path | str]
) -> DataError:
    """Return the error that names a repeated id and the places of its posts.

    After sorting, the posts of one id are neighbours.
    """
    ((doc_id,),) = connection.execute(
        "SELECT one.doc_id FROM posts one JOIN posts other "
        "ON other.place = one.place + 1 WHERE other.doc_id = one.doc_id LIMIT 1"
    )
    places = places_of(doc_id, sources)
    where = f" ({', '.join(places)})" if places else ""
    return DataError(
        f"found the id {doc_id!r} twice{where}, expected every id once over all files"
    )
