"""Keep posts of an index in a search engine in a local file."""

import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.posts import Post
from tweetrerank.indexes.store import COLUMNS, GIVEN, post_of, row_of

Changes = Mapping[str, int]  # Shard -> sequence number of its last change


class PostSource(Protocol):
    """An index from which posts can be fetched."""

    @property
    def size(self) -> int:
        """Number of posts."""

    def fetch(self, doc_ids: Sequence[str]) -> Iterator[Post]:
        """Yield the posts with these ids, in any order."""

    def fetch_all(self, query: Mapping[str, Any] | None = None) -> Iterator[Post]:
        """Yield all posts, or those that match a query."""

    def change_numbers(self) -> Changes | None:
        """Return the numbers of the last changes, None if they are not available."""


def posts_file(directory: Path, uuid: str, address: EngineAddress) -> Path:
    """Return the file that keeps the posts of an index.

    If the index is created again or the signals change, the file is another one.
    """
    name = f"posts-{uuid}"
    if address.signals:
        name += f"-{crc32(repr(address.signals).encode()):08x}"
    return directory / f"{name}.sqlite"


class KeptPosts:
    """The posts of an index by id, kept in a file. Missing posts are fetched.

    The file has the form of :class:`tweetrerank.indexes.store.PostStore`, so that a new
    index can start with the posts that it was built from. Its ``user_version`` is 1 if
    it has all posts. Only one thread at a time may use the object. At its first use, it
    checks once whether posts of the index have changed.
    """

    def __init__(self, path: Path, index: PostSource) -> None:
        self.path = path
        self._index = index
        self._is_checked = False
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._file_errors():
            self._connection = sqlite3.connect(
                path, check_same_thread=False, timeout=60
            )
            self._connection.executescript(
                "CREATE TABLE IF NOT EXISTS posts"
                " (place INTEGER PRIMARY KEY, doc_id TEXT UNIQUE, text TEXT, url TEXT,"
                " signals TEXT);"
                "CREATE TABLE IF NOT EXISTS changes"
                " (shard TEXT PRIMARY KEY, number INTEGER);"
            )
            # Files of earlier versions lack the column; others raise this error.
            with suppress(sqlite3.OperationalError):
                self._connection.execute("ALTER TABLE posts ADD COLUMN signals TEXT")

    def __iter__(self) -> Iterator[Post]:
        """Iterate over all posts, in any order."""
        self._check_once()
        if not self._has_all():
            self._keep(self._index.fetch_all())
            self._select("PRAGMA user_version = 1")
        rows = self._select(f"SELECT {COLUMNS} FROM posts")
        return iter([post_of(row) for row in rows])

    def get_many(self, doc_ids: Iterable[str]) -> dict[str, Post]:
        """Return the posts with these ids, by id and in this order.

        Unknown ids are left out.
        """
        self._check_once()
        unique_ids = list(dict.fromkeys(doc_ids))
        posts = self._posts_with(unique_ids)
        missing = [doc_id for doc_id in unique_ids if doc_id not in posts]
        if missing and not self._has_all():
            self._keep(self._index.fetch(missing))
            posts |= self._posts_with(missing)
        return {doc_id: posts[doc_id] for doc_id in unique_ids if doc_id in posts}

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _check_once(self) -> None:
        """At the first use, update or remove posts that have changed in the index."""
        if self._is_checked:
            return
        numbers = self._index.change_numbers()
        if numbers is not None:
            rows = self._select("SELECT * FROM changes")
            before = {shard: int(number) for shard, number in rows}
            if before != numbers:
                self._follow(before, numbers)
        self._is_checked = True

    def _follow(self, before: Changes, numbers: Changes) -> None:
        """Bring the file up to date with the index, and print a note on stderr."""
        count = self._count()
        since = datetime.fromtimestamp(self.path.stat().st_mtime, UTC)
        is_updated = False
        if self._has_all() and _has_only_grown(before, numbers):
            changes = [
                number for shard, number in before.items() if numbers[shard] != number
            ]
            newer = {"range": {"_seq_no": {"gt": min(changes)}}}
            self._keep(self._index.fetch_all(newer))
            count = self._count()
            is_updated = count == self._index.size
        if count:
            how = "brought up to date" if is_updated else "read anew"
            print(
                f"{self.path.parent.name}: the posts kept here since "
                f"{since:%Y-%m-%d %H:%M} UTC are {how}",
                file=sys.stderr,
            )
        with self._file_errors(), self._connection as connection:
            if not is_updated:
                # Posts were removed, or it is unknown which have changed.
                connection.execute("DELETE FROM posts")
                connection.execute("PRAGMA user_version = 0")
            connection.execute("DELETE FROM changes")
            connection.executemany("INSERT INTO changes VALUES (?, ?)", numbers.items())

    def _has_all(self) -> bool:
        return bool(self._select("PRAGMA user_version")[0][0])

    def _count(self) -> int:
        count: int = self._select("SELECT count(*) FROM posts")[0][0]
        return count

    def _posts_with(self, doc_ids: Sequence[str]) -> dict[str, Post]:
        query = f"SELECT {COLUMNS} FROM posts WHERE doc_id {GIVEN}"
        rows = self._select(query, [json.dumps(doc_ids)])
        return {row[0]: post_of(row) for row in rows}

    def _keep(self, posts: Iterable[Post]) -> None:
        """Write posts to the file. After an error none of them is written."""
        with self._file_errors(), self._connection:
            self._connection.executemany(
                f"INSERT OR REPLACE INTO posts ({COLUMNS}) VALUES (?, ?, ?, ?)",
                map(row_of, posts),
            )

    def _select(self, query: str, values: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        with self._file_errors():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _file_errors(self) -> Iterator[None]:
        """Raise DataError for errors of the file."""
        try:
            yield
        except sqlite3.Error as error:
            raise DataError(
                f"{self.path}: posts of the engine cannot be kept in this file "
                f"({error}); free space, or remove the file"
            ) from None


def _has_only_grown(before: Changes, numbers: Changes) -> bool:
    """Return whether the shards are the same, and none has a smaller number."""
    if not before or before.keys() != numbers.keys():
        return False
    return all(numbers[shard] >= number for shard, number in before.items())
