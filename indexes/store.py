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

_SORTED_KIB = 64 * 1024
COLUMNS = "doc_id, text, url, signals"
"""Columns of a post: signals are JSON, or NULL; files of earlier versions have none."""

_KEPT = (
    200_000  # Ids that stay in memory, some 25 MB: several methods find the same posts
)
POSTS_FILE = "posts.sqlite"  # File name in an index's folder
GIVEN = "IN (SELECT value FROM json_each(?))"  # Any number of values, as JSON


class Summary(NamedTuple):
    """Statistics of a new store: posts, those with an empty text, whether all ids are numbers."""

    posts: int
    empties: int
    numeric_ids: bool


class Closing:
    """Closed at the end of a ``with`` block."""

    def close(self) -> None:
        """Release files and connections."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PostStore(Closing):
    """Posts of a file by :meth:`build`, which must not change meanwhile. They have the places 0, 1,
    …: by descending number if all ids are numbers below 2^63, else by descending text. For ids that
    grow with time that is from new to old. Raises DataError for a file that is missing or not
    a store of posts."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise DataError(f"{path}: there is no such file of posts")
        # `immutable` needs no locks and works in read-only folders.
        name = f"file:{quote(str(self.path.absolute()))}?mode=ro&immutable=1"
        try:
            self._connection = sqlite3.connect(name, uri=True, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._unusable(error) from None
        self._ids: dict[int, str] = {}
        fields = [row[1] for row in self._select("PRAGMA table_info(posts)")]
        self._columns = (
            COLUMNS if "signals" in fields else COLUMNS.removesuffix(", signals")
        )
        # Not the count of posts, for which all of them would be read.
        ((last,),) = self._select("SELECT max(place) FROM posts")
        self._size = 0 if last is None else int(last) + 1

    @staticmethod
    def build(
        path: Path, posts: Iterable[Post], sources: Sequence[Path | str] = ()
    ) -> Summary:
        """Write posts, in any order, into a new file; not atomic: write into a temporary folder.

        Memory does not grow with the number of posts: sqlite sorts them in temporary files, in
        ``$SQLITE_TMPDIR``, else ``$TMPDIR`` or ``/var/tmp``, which take twice the posts' size.
        Raises DataError: there are no posts (of ``sources``), an id is repeated, empty or has
        spaces, a text has an unpaired surrogate, or the disk is full.
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
        """All posts, in the order of their places."""
        return map(
            post_of, self._select(f"SELECT {self._columns} FROM posts ORDER BY place")
        )

    def get_many(self, doc_ids: Iterable[str]) -> dict[str, Post]:
        """The posts with these ids, in this order; unknown ids are absent."""
        wanted = list(dict.fromkeys(doc_ids))
        query = f"SELECT {self._columns} FROM posts WHERE doc_id {GIVEN}"
        found = {
            row[0]: post_of(row) for row in self._select(query, json.dumps(wanted))
        }
        return {doc_id: found[doc_id] for doc_id in wanted if doc_id in found}

    def ids_at(self, places: Sequence[int]) -> list[str]:
        """The ids at these places, in the same order."""
        if len(self._ids) > _KEPT:
            self._ids = {}  # Other threads go on with theirs.
        ids = self._ids
        if unknown := [place for place in places if place not in ids]:
            query = f"SELECT place, doc_id FROM posts WHERE place {GIVEN}"
            ids.update(self._select(query, json.dumps(unknown)))
        return [ids[place] for place in places]

    def first_up_to(self, number: int) -> int:
        """The first place with an id of at most ``number``; for stores of numeric ids."""
        return bisect_left(
            range(self._size), -number, key=lambda at: -int(self.ids_at([at])[0])
        )

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _select(self, query: str, *values: str) -> Iterator[tuple[Any, ...]]:
        try:
            # Not `yield from`: it closes the cursor, which fails once the connection is closed.
            for row in self._connection.execute(query, values):  # noqa: UP028
                yield row
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def _unusable(self, error: sqlite3.Error) -> DataError:
        return DataError(
            f"{self.path}: not a readable file of posts ({error}); build the index again"
        )


def post_of(row: Sequence[Any]) -> Post:
    """The post of a row of :data:`COLUMNS`."""
    doc_id, text, url, *signals = row
    return Post(
        doc_id, text, url, json.loads(signals[0]) if signals and signals[0] else {}
    )


def row_of(post: Post) -> Sequence[Any]:
    """A post as a row of :data:`COLUMNS`."""
    return (*post[:3], json.dumps(post.signals, default=str) if post.signals else None)


def is_number(doc_id: str) -> bool:
    """Whether an id is a whole number from 0 to 2^63 - 1, like the ids of tweets."""
    return (
        doc_id.isascii()
        and doc_id.isdigit()
        and len(doc_id) < 30
        and int(doc_id) < 1 << 63
    )


def _checked(posts: Iterable[Post], counts: Counter[str]) -> Iterator[Post]:
    """The posts, which are counted; raises DataError for one that cannot be kept."""
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
    # No journal: an unfinished file is thrown away, never repaired. The cache's size is also that
    # of the parts that are sorted in memory; sqlite merges 16 of them at a time.
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
    if not (
        summary := Summary(counts["posts"], counts["empty"], not counts["named"])
    ).posts:
        names = ", ".join(Path(source).name for source in sources) or "the input"
        raise DataError(f"{names}: found no posts, expected at least one")
    order = (
        "CAST(doc_id AS INTEGER) DESC, doc_id DESC"
        if summary.numeric_ids
        else "doc_id DESC"
    )
    connection.execute(
        f"INSERT INTO posts SELECT row_number() OVER (ORDER BY {order}) - 1, {COLUMNS} "
        "FROM unsorted"
    )
    try:
        connection.execute("CREATE UNIQUE INDEX places ON posts (doc_id)")
    except sqlite3.IntegrityError:
        # Equal ids are neighbours.
        ((doc_id,),) = connection.execute(
            "SELECT one.doc_id FROM posts one JOIN posts other ON other.place = one.place + 1 "
            "WHERE other.doc_id = one.doc_id LIMIT 1"
        )
        where = (
            f" ({', '.join(places)})" if (places := places_of(doc_id, sources)) else ""
        )
        raise DataError(
            f"found the id {doc_id!r} twice{where}, expected every id once over all files"
        ) from None
    connection.execute("COMMIT")
    return summary
