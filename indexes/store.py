"""Posts on disk (one sqlite file) with random access by id or by place in the index."""

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
"""Columns of a post: signals are JSON, or NULL. Files of earlier versions lack them."""

GIVEN = "IN (SELECT value FROM json_each(?))"
"""Condition on a column: any number of values, passed as one JSON array."""

POSTS_FILE = "posts.sqlite"  # File name in an index's folder

_SORTED_KIB = 64 * 1024  # Memory for sorting

_CACHED_IDS = 200_000
"""Ids in memory, some 25 MB: several methods find the same posts."""


class Summary(NamedTuple):
    """Statistics of a new store."""

    posts: int  # Number of posts
    empties: int  # Number of posts with an empty text
    numeric_ids: bool  # Whether all ids are whole numbers below 2^63


class Closing:
    """Base of objects that are closed at the end of a ``with`` block."""

    def close(self) -> None:
        """Release files and connections."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PostStore(Closing):
    """Posts of a file by :meth:`build`, which must not change meanwhile.

    Posts have the places 0, 1, …: by descending number if all ids are numbers below
    2^63, else by descending text. For ids that grow with time that is from new to old.
    Raises DataError for a file that is missing or is not a store of posts.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise DataError(f"{path}: there is no such file of posts")
        # `immutable` needs no locks and works in read-only folders.
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
        # The count of posts would read all of them.
        ((last_place,),) = self._select("SELECT max(place) FROM posts")
        self._size = 0 if last_place is None else int(last_place) + 1

    @staticmethod
    def build(
        path: Path, posts: Iterable[Post], sources: Sequence[Path | str] = ()
    ) -> Summary:
        """Write posts, in any order, into a new file.

        Writing is not atomic: write into a temporary folder. Memory does not grow with
        the number of posts: sqlite sorts them in temporary files, in
        ``$SQLITE_TMPDIR``, else ``$TMPDIR`` or ``/var/tmp``, which take twice the
        posts' size. Raises DataError if there are no posts (of ``sources``), an id is
        repeated, empty or has spaces, a text has an unpaired surrogate, or the disk is
        full.
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
        """Return the posts with these ids, in this order, without unknown ids."""
        unique_ids = list(dict.fromkeys(doc_ids))
        query = f"SELECT {self._columns} FROM posts WHERE doc_id {GIVEN}"
        rows = self._select(query, json.dumps(unique_ids))
        posts = {row[0]: post_of(row) for row in rows}
        return {doc_id: posts[doc_id] for doc_id in unique_ids if doc_id in posts}

    def ids_at(self, places: Sequence[int]) -> list[str]:
        """Return the ids at these places, in the same order."""
        if len(self._ids) > _CACHED_IDS:
            self._ids = {}  # Other threads continue with their dictionary.
        ids = self._ids
        unknown = [place for place in places if place not in ids]
        if unknown:
            query = f"SELECT place, doc_id FROM posts WHERE place {GIVEN}"
            ids.update(self._select(query, json.dumps(unknown)))
        return [ids[place] for place in places]

    def first_up_to(self, number: int) -> int:
        """Return the first place with an id of at most ``number``.

        Only stores of numeric ids have such a place.
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
            # `yield from` closes the cursor, which fails after the connection is
            # closed.
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
    """Return the post of a row of :data:`COLUMNS`, with or without signals."""
    doc_id, text, url, *signals = row
    if signals and signals[0]:
        return Post(doc_id, text, url, json.loads(signals[0]))
    return Post(doc_id, text, url, {})


def row_of(post: Post) -> Sequence[Any]:
    """Return a post as a row of :data:`COLUMNS`."""
    signals = None
    if post.signals:
        signals = json.dumps(post.signals, default=str)
    return post.doc_id, post.text, post.url, signals


def is_number(doc_id: str) -> bool:
    """Whether an id is a whole number from 0 to 2^63 - 1, like the ids of tweets."""
    return (
        doc_id.isascii()
        and doc_id.isdigit()
        and len(doc_id) < 30
        and int(doc_id) < 1 << 63
    )


def _checked(posts: Iterable[Post], counts: Counter[str]) -> Iterator[Post]:
    """Yield the posts and count them; raises DataError for one that cannot be kept."""
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
    """Write the posts, sort them, and check that their ids differ."""
    # Without a journal: an unfinished file is thrown away, never repaired. The cache's
    # size also limits the runs that are sorted in memory. sqlite merges 16 at a time.
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
    """Error for an id of several posts, which have neighbouring places."""
    ((doc_id,),) = connection.execute(
        "SELECT one.doc_id FROM posts one JOIN posts other "
        "ON other.place = one.place + 1 WHERE other.doc_id = one.doc_id LIMIT 1"
    )
    places = places_of(doc_id, sources)
    where = f" ({', '.join(places)})" if places else ""
    return DataError(
        f"found the id {doc_id!r} twice{where}, expected every id once over all files"
    )
