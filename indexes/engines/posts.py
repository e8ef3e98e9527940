"""Posts of an engine's index, kept in a file beside the local indexes and read anew if changed."""

import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Protocol

from indexes.errors import CollectionError
from indexes.posts import Post
from indexes.store import select_many

Fetch = Callable[[Sequence[str]], Iterable[Post]]  # Ids -> the posts that have them, in any order


class Changes(Protocol):
    """An index that others write to."""

    @property
    def size(self) -> int:
        """Number of posts."""

    def change_numbers(self) -> Mapping[str, int] | None:
        """Shard -> sequence number of its last change; None if the engine does not tell."""

    def changed_since(self, number: int) -> Iterable[Post]:
        """At least the posts whose last change has a higher number."""


class KeptPosts:
    """Posts by id; those that are not yet in the file are fetched.

    The file has the form of :class:`indexes.store.PostStore`, so that a new index starts with the
    posts that it was built from. It may be used by one thread at a time. Whether posts have changed
    is looked up once, at the first use.

    Args:
        path: of the file, which is made if it is missing.
        fetch: gets posts from the engine.
        fetch_all: gets all of them.
        changes: of posts that others may change; None if nobody does.
    """

    def __init__(
        self,
        path: Path,
        fetch: Fetch,
        fetch_all: Callable[[], Iterable[Post]],
        changes: Changes | None = None,
    ) -> None:
        self.path, self._fetch, self._fetch_all, self._changes = path, fetch, fetch_all, changes
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = sqlite3.connect(path, check_same_thread=False, timeout=60)
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS posts "
                "(place INTEGER PRIMARY KEY, doc_id TEXT UNIQUE, text TEXT, url TEXT)"
            )
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS changes (shard TEXT PRIMARY KEY, number INTEGER)"
            )
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def __iter__(self) -> Iterator[Post]:
        """All posts, each once, in an order of no meaning."""
        self._refreshed  # noqa: B018
        if not self._has_all():
            self._keep(self._fetch_all())
            self._execute("PRAGMA user_version = 1")
        return iter(
            [Post._make(row) for row in self._execute("SELECT doc_id, text, url FROM posts")]
        )

    def get_many(self, doc_ids: Iterable[str]) -> dict[str, Post]:
        """The posts with these ids, in this order; unknown ids are absent."""
        self._refreshed  # noqa: B018
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

    @cached_property
    def _refreshed(self) -> None:
        """Read posts anew that have changed since they were read; say so, and since when."""
        if self._changes is None or (numbers := self._changes.change_numbers()) is None:
            return
        before = {shard: int(number) for shard, number in self._execute("SELECT * FROM changes")}
        changed = [shard for shard in before if numbers.get(shard) != before[shard]]
        is_new = not before or before.keys() != numbers.keys()
        if before and not changed and not is_new:
            return
        whole = self._has_all()
        ((kept,),) = self._execute("SELECT count(*) FROM posts")
        moment = datetime.fromtimestamp(self.path.stat().st_mtime, UTC)
        text = f"the posts kept here since {moment:%Y-%m-%d %H:%M} UTC"
        if whole and not is_new and all(numbers[shard] >= before[shard] for shard in changed):
            self._keep(self._changes.changed_since(min(before[shard] for shard in changed)))
            text = f"{text} are brought up to date"
            ((kept,),) = self._execute("SELECT count(*) FROM posts")
            whole = int(kept) == self._changes.size
        else:
            whole = False
        if not whole:
            # Posts are gone, or there is no telling which have changed.
            text = f"{text} are read anew"
            self._forget()
        if kept:
            print(f"{self.path.parent.name}: {text}", file=sys.stderr)
        with self._connection:
            self._connection.execute("DELETE FROM changes")
            self._connection.executemany("INSERT INTO changes VALUES (?, ?)", numbers.items())

    def _forget(self) -> None:
        with self._connection:
            self._connection.execute("DELETE FROM posts")
        self._execute("PRAGMA user_version = 0")

    def _kept(self, wanted: Sequence[str]) -> dict[str, Post]:
        query = "SELECT doc_id, text, url FROM posts WHERE doc_id IN"
        return {row[0]: Post._make(row) for row in select_many(self._execute, query, wanted)}

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
