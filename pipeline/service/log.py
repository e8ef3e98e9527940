"""The log of reranked searches and of users' events, and searches that show two models.

A folder has files of JSON lines, ``searches-2026-11-24-ab12cd34.jsonl`` for a day and a run of a
service, and the ``key`` that signs the ids of searches. A thread writes: requests do not wait for
the disk, and a killed process loses the lines that wait.
"""

import asyncio
import hmac
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cachetools import LRUCache

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import write_bytes
from tweetrerank.pipeline.collections.click_log import (
    CHALLENGER,
    CHAMPION,
    WRONG,
    checked_line,
    read_event,
)
from tweetrerank.pipeline.service.json_log import LOG
from tweetrerank.pipeline.service.proxy.page_search import Hit, Window
from tweetrerank.pipeline.service.request_record import Record
from tweetrerank.pipeline.service.scorer import ServedModel
from tweetrerank.pipeline.service.served_models import Models
from tweetrerank.pipeline.service.service_errors import RequestError
from tweetrerank.rerankers.text.words import MAX_CHARACTERS

MOST_WAITING, PLACE = (
    32_000_000,
    1000,
)  # Bytes of lines that wait; of a place in the queue
MOST_NAMED = 20_000  # Last searches that the client has named, whose events are taken


def team_draft(
    own: Sequence[int], other: Sequence[int], seed: str
) -> tuple[list[int], list[int]]:
    """Two rankings of the same rows in one, and the team of each place.

    Team-draft interleaving (Radlinski, Kurup & Joachims, CIKM 2008, section 5.2): in each round a
    coin decides which ranking first adds its best row that is not in the list yet. Rows above the
    first difference are of no team, 0. ``seed`` makes the coins: pages of a search must agree.
    """
    coins, pairs = random.Random(seed), enumerate(zip(own, other, strict=True))
    same = next((place for place, rows in pairs if len({*rows}) > 1), len(own))
    teams = dict.fromkeys(own[:same], 0)  # Row -> team, in the new order
    left = {CHAMPION: iter(own[same:]), CHALLENGER: iter(other[same:])}
    while len(teams) < len(own):
        for team in coins.sample((CHAMPION, CHALLENGER), 2):
            if (
                row := next((row for row in left[team] if row not in teams), None)
            ) is not None:
                teams[row] = team
    return [*teams], [*teams.values()]


class Ranked(NamedTuple):
    """The ranking of a window; the other fields are of logged searches only."""

    rows: Sequence[tuple[int, str]]  # Rows of the hits and their new scores, best first
    search_id: str = ""
    ext: Mapping[str, Any] = {}  # Members of ``ext`` in the response


class SearchLog:
    """Writes a log, with queries if it ``is_plain``; no method waits for the disk. ``days`` until
    files are deleted; ``share`` of searches that show posts of two models."""

    def __init__(
        self, folder: Path, is_plain: bool = False, days: float = 30, share: float = 0
    ) -> None:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self.folder, self._is_plain, self._days = folder, is_plain, timedelta(days)
        self._share, self._run_id, self._name = share, os.urandom(4).hex(), ""
        if not (path := folder / "key").exists():
            if any(folder.glob("searches-*")):
                LOG.warning(
                    "%s: lost, and made anew; events of old searches are refused", path
                )
            write_bytes(path, os.urandom(32))
        path.chmod(0o600)
        if len(key := path.read_bytes()) != 32:
            raise DataError(
                f"{path}: found {len(key)} bytes, expected 32; delete the file"
            )
        self._key, self._named, self._lock = (
            key,
            LRUCache[str, str](MOST_NAMED),
            threading.Lock(),
        )
        self.counts, self._told, self._waiting = (
            {"written": 0, "dropped": 0, "unknown": 0},
            0,
            0,
        )
        self._writer = ThreadPoolExecutor(1, "log")

    async def rank(
        self,
        models: Models,
        score: Any,
        model: ServedModel,
        record: Record,
        window: Window,
        hits: Sequence[Hit],
    ) -> Ranked:
        """The ranking of a window by a model's ``score`` of its hits; raises RequestError."""
        given, teams, rival = (
            window.ubi and window.ubi.query_id,
            None,
            models.challenger,
        )
        search_id = (given and self.known(given)) or given or os.urandom(16).hex()
        is_drawn = random.Random(f"share {search_id}").random() < self._share
        # A further page must go on with the same list, which only an id of the client tells.
        is_drawn = is_drawn and bool(given or not window.start)
        is_default = window.model is None and model.name == models.default.name
        version, other_version = model.version, rival and rival.version
        work = [score(model, record)]
        if rival and is_drawn and is_default and other_version != version:
            work.append(
                score(rival, replace(record, documents=0, cache_hits=0, texts=()))
            )
        scored, *others = await asyncio.gather(*work, return_exceptions=True)
        if isinstance(scored, BaseException):
            raise scored
        rows = [*scored.best()]
        order = [row for row, _ in rows]
        for other in others:
            if isinstance(other, BaseException):
                LOG.error(
                    "request %s: the challenger fails: %s", record.request_id, other
                )
                continue
            order, teams = team_draft(order, other.order, search_id)
            # Clients expect descending scores, which two models together do not have.
            rows = [(row, score) for row, (_, score) in zip(order, rows, strict=True)]
        page = slice(window.start, window.start + window.size)
        own = {"query_id": search_id, "time": time.time(), "index": hits[0].index_name}
        own |= {"model": model.name, "version": version, "start": window.start}
        own["query_response_hit_ids"] = [hits[row].doc_id for row in order[page]]
        own |= {"challenger": teams and other_version, "teams": teams and teams[page]}
        signed = self.search(own, window.query, record.client, bool(given))
        ubi = {"ubi": {"query_id": given or signed}} if window.ubi else {}
        return Ranked(rows, signed, {"tweetrerank": {"search_id": signed}, **ubi})

    def digest(self, text: str) -> str:
        """A keyed hash."""
        return hmac.digest(self._key, text.encode("utf-8", "replace"), "sha256").hex()[
            :32
        ]

    def known(self, name: str) -> str:
        """The id of a logged search, from its signed one or from the client's; else nothing."""
        search_id, _, digest = name.rpartition(".")
        is_signed = hmac.compare_digest(
            digest.encode(), self.digest(search_id).encode()
        )
        return search_id if is_signed else self._named.get(name, "")

    def search(
        self, search: dict[str, Any], query: str, client: str, is_named: bool
    ) -> str:
        """Queue a search, and give its signed id; ``is_named``: its id is the client's."""
        search_id = search["query_id"]
        if is_named:
            self._named[search_id] = search_id
        # Further searches of a client for the same have no further vote.
        search["voter"] = self.digest(f"{client}\n{' '.join(query.casefold().split())}")
        self.write(
            [
                search | {"user_query": query[:MAX_CHARACTERS]}
                if self._is_plain
                else search
            ]
        )
        return f"{search_id}.{self.digest(search_id)}"

    def events(self, records: Sequence[Any]) -> int:
        """Queue the events of known searches, and give their number; raises RequestError."""
        events = []
        for number, record in enumerate(records):
            try:
                search_id, action, doc_id = read_event(record) or ("", "", "")
                if not action:
                    raise ValueError('found no "action_name"')
            except WRONG as error:
                raise RequestError("value", f"[{number}]: {error}") from None
            event = {
                "time": time.time(),
                "query_id": self.known(search_id),
                "action_name": action,
            }
            if event["query_id"]:
                events.append(
                    event | {"event_attributes": {"object": {"object_id": doc_id}}}
                )
        self.counts["unknown"] += len(records) - len(events)
        if records and not events:
            raise RequestError(
                "value", "found no known search, expected its X-Search-Id"
            )
        if not self.write(events):
            raise RequestError("overload", "too many events wait to be written")
        return len(events)

    def write(self, records: Sequence[dict[str, Any]]) -> bool:
        """Queue all of the records, or, if they do not fit, none."""
        lines = b"".join(map(checked_line, records))
        with self._lock:
            has_room = self._waiting + len(lines) + PLACE <= MOST_WAITING
            self._waiting += (len(lines) + PLACE) * has_room
        if has_room:
            self._writer.submit(self._append, lines, len(records))
        else:
            self._lose(len(records), "too many wait")
        return has_room

    def close(self) -> None:
        """Write what waits."""
        self._writer.shutdown()

    def _append(self, lines: bytes, count: int) -> None:
        """Append all of the lines or nothing; on a new day, delete old files first."""
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        try:
            if (name := f"searches-{today}-{self._run_id}.jsonl") != self._name:
                self._name = name
                # By the newest file's day: a clock that jumps deletes none.
                files = self.folder.glob("searches-????-??-??-*.jsonl")
                days = {path: path.name[9:19] for path in files}
                newest = max(
                    (day for day in days.values() if day <= today), default=today
                )
                oldest = f"{date.fromisoformat(newest) - self._days}"
                for path in (path for path, day in days.items() if day < oldest):
                    path.unlink(missing_ok=True)
            with open(
                self.folder / name, "ab", 0, opener=partial(os.open, mode=0o600)
            ) as stream:
                size = stream.tell()
                if stream.write(lines) < len(lines):
                    stream.truncate(size)
                    raise OSError("the disk is full")
            self.counts["written"] += count
        except OSError as error:
            self._lose(count, str(error))
        with self._lock:
            self._waiting -= len(lines) + PLACE

    def _lose(self, count: int, problem: str) -> None:
        with self._lock:
            self.counts["dropped"] += count
            if (
                dropped := self.counts["dropped"]
            ) > 2 * self._told:  # Not at each of thousands.
                self._told = dropped
                LOG.error("--log: %d lines are lost until now: %s", dropped, problem)
