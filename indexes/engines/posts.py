"""Posts of an engine's index, fetched once and kept in a file beside the local indexes."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from indexes.errors import CollectionError
from indexes.posts import Post

_CHUNK = 900

Fetch = Callable[[Sequence[str]], Iterable[Post]]
"""Ids -> the posts that have them, in any order."""


class KeptPosts:
    """Posts by id; those that are not yet in the file are fetched.

    The file has the form of :class:`indexes.store.PostStore`, so that a new index starts with the
    posts that it was built from. It may be used by one thread at a time.

    Args:
        path: of the file, which is made if it is missing.
        fetch: gets posts from the engine.
        fetch_all: gets all of them.
    """

    def __init__(self, path: Path, fetch: Fetch, fetch_all: Callable[[], Iterable[Post]]) -> None:
        self.path, self._fetch, self._fetch_all = path, fetch, fetch_all
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = sqlite3.connect(path, check_same_thread=False, timeout=60)
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS posts "
                "(place INTEGER PRIMARY KEY, doc_id TEXT UNIQUE, text TEXT, url TEXT)"
            )
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def __iter__(self) -> Iterator[Post]:
        """All posts, each once, in an order of no meaning."""
        if not self._has_all():
            self._keep(self._fetch_all())
            self._execute("PRAGMA user_version = 1")
        return iter(
            [Post._make(row) for row in self._execute("SELECT doc_id, text, url FROM posts")]
        )

    def get_many(self, doc_ids: Iterable[str]) -> dict[str, Post]:
        """The posts with these ids, in this order; unknown ids are absent."""
        wanted = list(dict.fromkeys(doc_ids))
        found = self._kept(wanted)
        missing = [doc_id for doc_id in wanted if doc_id not in found]
        if missing and not self._has_all():
            self._keep(self._fetch(missing))
            found |= self._kept(missing)
        return {doc_id: found[doc_id] for doc_id in wanted if doc_id in found}

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _kept(self, wanted: Sequence[str]) -> dict[str, Post]:
        found: dict[str, Post] = {}
        for start in range(0, len(wanted), _CHUNK):
            chunk = wanted[start : start + _CHUNK]
            marks = ",".join("?" * len(chunk))
            rows = self._execute(
                f"SELECT doc_id, text, url FROM posts WHERE doc_id IN ({marks})", chunk
            )
            found |= {row[0]: Post._make(row) for row in rows}
        return found

    def _keep(self, posts: Iterable[Post]) -> None:
        """Write posts; all of them or, on an error, none."""
        try:
            with self._connection:
                self._connection.executemany(
                    "INSERT OR REPLACE INTO posts (doc_id, text, url) VALUES (?, ?, ?)", posts
                )
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def _has_all(self) -> bool:
        ((version,),) = self._execute("PRAGMA user_version")
        return bool(version)

    def _execute(self, query: str, values: Sequence[str] = ()) -> list[tuple[str, ...]]:
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def _unusable(self, error: sqlite3.Error) -> CollectionError:
        return CollectionError(
            f"{self.path}: posts of the engine cannot be kept in this file ({error}); free space, "
            "or remove the file"
        )


def adopt(store: Path, path: Path) -> None:
    """Move a complete store of an index's posts to where its posts are kept."""
    connection = sqlite3.connect(store)
    with connection:
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    store.replace(path)
