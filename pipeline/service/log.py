"""The log of reranked searches and of users' events.

A folder has files of JSON lines, ``searches-2026-11-24-ab12cd34.jsonl`` for a day and a
run of a service, and the ``key`` that signs the ids of searches. A thread writes:
requests do not wait for the disk, and a killed process loses the lines that wait.
"""

import hmac
import os
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from cachetools import LRUCache

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import write_bytes
from tweetrerank.pipeline.collections.click_log import WRONG, checked_line, read_event
from tweetrerank.pipeline.service.json_log import LOG
from tweetrerank.pipeline.service.service_errors import RequestError
from tweetrerank.rerankers.text.words import MAX_CHARACTERS

MOST_WAITING = 32_000_000  # Bytes of lines that wait
PLACE = 1000  # Bytes of a place in the queue
MOST_NAMED = 20_000  # Last searches with ids of clients, whose events are taken

_KEY_BYTES = 32
_DAY = slice(9, 19)  # Place of the day in a file's name


class SearchLog:
    """Log of searches and events; no method waits for the disk.

    Args:
        folder: folder of the log.
        is_plain: whether queries are written.
        days: days until a file is deleted.
        share: share of searches that show posts of two models.
    """

    def __init__(
        self, folder: Path, is_plain: bool = False, days: float = 30, share: float = 0
    ) -> None:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self.folder = folder
        self.counts = {"written": 0, "dropped": 0, "unknown": 0}
        self._is_plain = is_plain
        self._days = timedelta(days)
        self._share = share
        self._key = _read_key(folder)
        self._run_id = os.urandom(4).hex()
        self._file_name = ""
        self._named: LRUCache[str, str] = LRUCache(MOST_NAMED)
        self._lock = threading.Lock()
        self._waiting = 0  # Bytes that wait
        self._reported = 0  # Dropped lines at the last message about them
        self._writer = ThreadPoolExecutor(1, "log")

    def digest(self, text: str) -> str:
        """A keyed hash."""
        content = text.encode("utf-8", "replace")
        return hmac.digest(self._key, content, "sha256").hex()[:32]

    def known(self, name: str) -> str:
        """The id of a logged search, from its signed id or from the client's.

        "" if there is no such search.
        """
        search_id, _, digest = name.rpartition(".")
        expected = self.digest(search_id)
        if hmac.compare_digest(digest.encode(), expected.encode()):
            return search_id
        return self._named.get(name, "")

    def is_drawn(self, search_id: str) -> bool:
        """Whether a search belongs to the share that shows posts of two models."""
        return random.Random(f"share {search_id}").random() < self._share

    def search(
        self, search: dict[str, Any], query: str, client: str, is_named: bool
    ) -> str:
        """Queue a search and return its signed id.

        ``is_named``: its id is the client's.
        """
        search_id = search["query_id"]
        if is_named:
            self._named[search_id] = search_id
        # Repeated searches of a client for the same text have one vote.
        words = " ".join(query.casefold().split())
        search["voter"] = self.digest(f"{client}\n{words}")
        if self._is_plain:
            search = search | {"user_query": query[:MAX_CHARACTERS]}
        self.write([search])
        return f"{search_id}.{self.digest(search_id)}"

    def events(self, records: Sequence[Any]) -> int:
        """Queue the events of logged searches and return their number.

        Raises RequestError if none belongs to a logged search, or if they do not fit.
        """
        events = []
        for number, record in enumerate(records):
            try:
                event = self._event(record)
            except WRONG as error:
                raise RequestError("value", f"[{number}]: {error}") from None
            if event["query_id"]:
                events.append(event)
        self.counts["unknown"] += len(records) - len(events)
        if records and not events:
            raise RequestError(
                "value", "found no known search, expected its X-Search-Id"
            )
        if not self.write(events):
            raise RequestError("overload", "too many events wait to be written")
        return len(events)

    def _event(self, record: Any) -> dict[str, Any]:
        """A line for an event; its ``query_id`` is "" if the search is not logged."""
        search_id, action, doc_id = read_event(record) or ("", "", "")
        if not action:
            raise ValueError('found no "action_name"')
        return {
            "time": time.time(),
            "query_id": self.known(search_id),
            "action_name": action,
            "event_attributes": {"object": {"object_id": doc_id}},
        }

    def write(self, records: Sequence[dict[str, Any]]) -> bool:
        """Queue all of the records, or none if they do not fit."""
        lines = b"".join(map(checked_line, records))
        size = len(lines) + PLACE
        with self._lock:
            has_room = self._waiting + size <= MOST_WAITING
            if has_room:
                self._waiting += size
        if has_room:
            self._writer.submit(self._append, lines, len(records))
        else:
            self._lose(len(records), "too many wait")
        return has_room

    def close(self) -> None:
        """Write the waiting lines."""
        self._writer.shutdown()

    def _append(self, lines: bytes, count: int) -> None:
        """Append all of the lines or nothing; on a new day, delete old files first."""
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        name = f"searches-{today}-{self._run_id}.jsonl"
        try:
            if name != self._file_name:
                self._file_name = name
                self._delete_old(today)
            _append_whole(self.folder / name, lines)
            self.counts["written"] += count
        except OSError as error:
            self._lose(count, str(error))
        with self._lock:
            self._waiting -= len(lines) + PLACE

    def _delete_old(self, today: str) -> None:
        """Delete files by the newest file's day, so that a clock that jumps is safe."""
        day_of = {
            path: path.name[_DAY]
            for path in self.folder.glob("searches-????-??-??-*.jsonl")
        }
        past = [day for day in day_of.values() if day <= today]
        newest = max(past, default=today)
        oldest = f"{date.fromisoformat(newest) - self._days}"
        for path, day in day_of.items():
            if day < oldest:
                path.unlink(missing_ok=True)

    def _lose(self, count: int, problem: str) -> None:
        with self._lock:
            self.counts["dropped"] += count
            dropped = self.counts["dropped"]
            if dropped > 2 * self._reported:  # Not for each of thousands
                self._reported = dropped
                LOG.error("--log: %d lines are lost until now: %s", dropped, problem)


def _read_key(folder: Path) -> bytes:
    """The key of a log, made if there is none."""
    path = folder / "key"
    if not path.exists():
        if any(folder.glob("searches-*")):
            LOG.warning(
                "%s: a lost key is replaced; events of old searches are refused", path
            )
        write_bytes(path, os.urandom(_KEY_BYTES))
    path.chmod(0o600)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise DataError(
            f"{path}: found {len(key)} bytes, expected {_KEY_BYTES}; delete the file"
        )
    return key


def _append_whole(path: Path, lines: bytes) -> None:
    """Append all of the lines; OSError, and an unchanged file, if they do not fit."""
    opener = partial(os.open, mode=0o600)
    with open(path, "ab", 0, opener=opener) as stream:
        size = stream.tell()
        if stream.write(lines) < len(lines):
            stream.truncate(size)
            raise OSError("the disk is full")
