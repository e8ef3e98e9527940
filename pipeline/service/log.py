"""The log of reranked searches and of users' events.

The folder of a log has a file of JSON lines for each day and run of the service, such
as ``searches-2026-11-24-ab12cd34.jsonl``, and the ``key`` that signs the ids of
searches. A thread writes the lines, so that requests do not wait for the disk. If the
process is killed, the lines that still wait are lost.
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

MOST_WAITING = 32_000_000  # Most bytes of lines that wait to be written
PLACE = 1000  # Bytes that an entry of the queue counts in addition to its lines
MOST_NAMED = 20_000
"""Number of latest searches with ids from clients that may still get events."""

_KEY_BYTES = 32
_DAY = slice(9, 19)  # Where a file's name has the day


class SearchLog:
    """The log of searches and events. Logging does not wait for the disk.

    Args:
        folder: the folder of the log, which is made if it is missing.
        is_plain: whether the texts of queries are written.
        days: number of days after which a file is deleted.
        share: share of the searches that show posts of two models, from 0 to 1.
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
        self._waiting = 0  # Bytes that wait to be written
        self._reported = 0  # Number of dropped lines in the last message about them
        self._writer = ThreadPoolExecutor(1, "log")

    def digest(self, text: str) -> str:
        """Return a hash of the text that nobody can compute without the log's key."""
        content = text.encode("utf-8", "replace")
        return hmac.digest(self._key, content, "sha256").hex()[:32]

    def known(self, name: str) -> str:
        """Return the id of a logged search, given its signed id or the client's own id.

        Returns "" if no such search is known.
        """
        search_id, _, digest = name.rpartition(".")
        expected = self.digest(search_id)
        if hmac.compare_digest(digest.encode(), expected.encode()):
            return search_id
        return self._named.get(name, "")

    def is_drawn(self, search_id: str) -> bool:
        """Whether a search belongs to the share that shows posts of two models.

        The answer depends on the id alone, so that all pages of a search agree.
        """
        return random.Random(f"share {search_id}").random() < self._share

    def search(
        self, search: dict[str, Any], query: str, client: str, is_named: bool
    ) -> str:
        """Queue a search for the log and return its signed id.

        ``is_named`` says that the client has chosen the id, so that events may use it
        without a signature.
        """
        search_id = search["query_id"]
        if is_named:
            self._named[search_id] = search_id
        # A client that repeats a search for the same text counts as one voter.
        words = " ".join(query.casefold().split())
        search["voter"] = self.digest(f"{client}\n{words}")
        if self._is_plain:
            search = search | {"user_query": query[:MAX_CHARACTERS]}
        self.write([search])
        return f"{search_id}.{self.digest(search_id)}"

    def events(self, records: Sequence[Any]) -> int:
        """Queue those events that belong to logged searches, and return their number.

        Raises RequestError if an event is malformed, if none belongs to a logged
        search, or if too many lines wait.
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
        """Return the line for an event.

        Its ``query_id`` is "" if the search is not logged.

        Raises one of the errors in :data:`WRONG` if the event is malformed.
        """
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
        """Queue all of the records, or none if they do not fit.

        Returns whether they fit. Records that do not are counted as dropped.
        """
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
        """Write the lines that wait, and end the thread."""
        self._writer.shutdown()

    def _append(self, lines: bytes, count: int) -> None:
        """Append all of the lines to the file of today, or none if that fails.

        On a new day, files that are too old are deleted first.
        """
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
        """Delete the files that are too old.

        Their age is counted from the newest file and not from today, so that a clock
        that jumps ahead does not delete all files.
        """
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
            if dropped > 2 * self._reported:  # No message for each of thousands
                self._reported = dropped
                LOG.error("--log: %d lines are lost until now: %s", dropped, problem)


def _read_key(folder: Path) -> bytes:
    """Return the key of a log, which is made if there is none.

    Raises DataError if the file has the wrong length.
    """
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
    """Append the lines to a file.

    If they do not fit on the disk, leaves the file unchanged and raises OSError.
    """
    opener = partial(os.open, mode=0o600)
    with open(path, "ab", 0, opener=opener) as stream:
        size = stream.tell()
        if stream.write(lines) < len(lines):
            stream.truncate(size)
            raise OSError("the disk is full")
