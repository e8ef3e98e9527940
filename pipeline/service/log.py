"""The log of reranked searches and of users' events, and searches that show two models.

A folder has files of JSON lines, ``searches-2026-11-24-ab12cd34.jsonl`` for a day and a run of a
service, and the ``key`` of the hashes of queries. A thread writes: requests do not wait for the
disk, and a killed process loses the lines that wait.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import random
import secrets
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from cachetools import LRUCache
from prometheus_client import Gauge
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from indexes.files import write_bytes
from pipeline.collections.clicks import CHALLENGER, CHAMPION, HASHED, WRONG, read_event
from pipeline.service.errors import PlainErrors, RequestError
from pipeline.service.formats import ScoreResponse
from pipeline.service.http.models import Models, ServedModel
from pipeline.service.http.requests import check_media_type
from pipeline.service.http.service import Service
from pipeline.service.proxy.response import Hit
from pipeline.service.proxy.search import Ubi, Window
from pipeline.service.record import LOG, Record
from rerankers.text.words import MAX_CHARACTERS

MOST_WAITING = 32_000_000  # Bytes of lines that wait to be written; further lines are dropped
MOST_EVENTS = 1000  # Of a request
MOST_NAME = 512  # Characters of an id or an action
MOST_KNOWN = 100_000  # Last searches, whose events are known

Score = Callable[[ServedModel, Record], Awaitable[ScoreResponse]]
"""Scores the hits of a window by a model."""


class SearchLog:
    """Writes a log; its methods may be called by any thread, and neither wait nor raise errors.

    ``is_plain``: queries are not hashed. ``days``: until files are deleted.
    """

    def __init__(self, folder: Path, is_plain: bool = False, days: float = 30) -> None:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        self.folder, self._days, self._run_id, self._name = folder, days, secrets.token_hex(4), ""
        key = folder / "key"
        if not is_plain and not key.exists():
            write_bytes(key, secrets.token_bytes(32))
            key.chmod(0o600)
        self._key = None if is_plain else key.read_bytes()
        self.written = self.dropped = self.unknown = self._told = self._waiting = 0
        self._known, self._lock = LRUCache[str, bool](MOST_KNOWN), threading.Lock()
        self._writer = ThreadPoolExecutor(1, "log")

    def write(self, record: dict[str, Any]) -> None:
        """Queue a search or an event."""
        if query := record.get("query"):
            record["query"] = self._hashed(query[:MAX_CHARACTERS])
        line = b""
        with suppress(TypeError):  # Half a surrogate pair.
            line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        with self._lock:
            if query:
                self._known[record["search_id"]] = True
            self.unknown += record["search_id"] not in self._known
            is_lost = not line or self._waiting + len(line) > MOST_WAITING
            self._waiting += 0 if is_lost else len(line)
        if is_lost:
            self._lose("too many wait")
        else:
            self._writer.submit(self._append, line)

    def close(self) -> None:
        """Write what waits."""
        self._writer.shutdown()

    def _hashed(self, text: str) -> str:
        if self._key is None:
            return text
        normal = " ".join(text.casefold().split()).encode("utf-8", "replace")
        return HASHED + hmac.digest(self._key, normal, "sha256").hex()[:32]

    def _append(self, line: bytes) -> None:
        """Append the whole line or nothing; on a new day, delete old files first."""
        now = datetime.now(UTC)
        try:
            if (name := f"searches-{now:%Y-%m-%d}-{self._run_id}.jsonl") != self._name:
                self._name = name
                for path in self.folder.glob("searches-*.jsonl"):
                    if path.name < f"searches-{now - timedelta(self._days):%Y-%m-%d}":
                        path.unlink(missing_ok=True)
            with open(self.folder / name, "ab", 0, opener=partial(os.open, mode=0o600)) as stream:
                size = stream.tell()
                if stream.write(line) < len(line):
                    stream.truncate(size)
                    raise OSError("the disk is full")
            self.written += 1
        except OSError as error:
            self._lose(str(error))
        with self._lock:
            self._waiting -= len(line)

    def _lose(self, problem: str) -> None:
        with self._lock:
            self.dropped += 1
            if self.dropped > 2 * self._told:  # Not at each of thousands.
                self._told = self.dropped
                LOG.error("--log: %d lines are lost until now: %s", self._told, problem)


def team_draft(
    champion: Sequence[int], challenger: Sequence[int], seed: str
) -> tuple[list[int], list[int]]:
    """Two rankings of the same rows in one, and the team of each place.

    Team-draft interleaving: Radlinski, Kurup & Joachims, "How Does Clickthrough Data Reflect
    Retrieval Quality?" (CIKM 2008), section 5.2. In each round a coin decides which ranking first
    adds its best row that is not in the list yet, to get the clicks on it. Rows above the first
    difference are of no team, 0. ``seed`` makes the coins: the pages of a search must agree.
    """
    coins, same = random.Random(seed), 0
    while same < len(champion) and champion[same] == challenger[same]:
        same += 1
    teams = dict.fromkeys(champion[:same], 0)  # Row -> team, in the new order
    left = {CHAMPION: iter(champion[same:]), CHALLENGER: iter(challenger[same:])}
    while len(teams) < len(champion):
        first = coins.choice((CHAMPION, CHALLENGER))
        for team in (first, CHAMPION + CHALLENGER - first):
            row = next((row for row in left[team] if row not in teams), None)
            if row is not None:
                teams[row] = team
    return [*teams], [*teams.values()]


class Ranked(NamedTuple):
    """The ranking of a window; the other fields are of logged searches only."""

    rows: Sequence[tuple[int, str]]  # Rows of the hits and their new scores, best first
    search_id: str = ""
    ext: str = ""  # Members of ``ext`` in the response


@dataclass
class Loop:
    """Ranks searches, and logs them if there is a log.

    A ``share`` of them shows posts of both the service's default model and the challenger.
    """

    service: Service
    log: SearchLog | None = None
    challenger: Models | None = None
    share: float = 0.0

    def __post_init__(self) -> None:
        if self.log:
            registry = self.service.metrics.registry
            lines = Gauge("tweetrerank_log_lines", "Of the log", ["outcome"], registry=registry)
            for outcome in ("written", "dropped", "unknown"):
                lines.labels(outcome).set_function(partial(getattr, self.log, outcome))

    async def rank(
        self, score: Score, model: ServedModel, record: Record, window: Window, hits: Sequence[Hit]
    ) -> Ranked:
        """The ranking of a window; raises RequestError."""
        ubi, other = window.ubi or Ubi(), list[int]()
        search_id = ubi.query_id or uuid.uuid4().hex
        if rival := self._rival(search_id, model, window):
            own = Record(record.request_id, record.method, record.path)
            of_rival = self._order(score(rival, own), record.request_id)
            scored, other = await asyncio.gather(score(model, record), of_rival)
        else:
            scored = await score(model, record)
        rows = [(row, orjson.dumps(score).decode()) for row, score in scored.best()]
        order, teams = [row for row, _ in rows], None
        if other:
            order, teams = team_draft(order, other, search_id)
            # Clients expect descending scores, which two models together do not have.
            rows = [(row, score) for row, (_, score) in zip(order, rows, strict=True)]
        if self.log is None:
            return Ranked(rows)
        page = slice(window.start, window.start + window.size)
        shown, names = [hits[row] for row in order[page]], None
        if ubi.object_id_field:
            names = [hit.text([ubi.object_id_field])[:MOST_NAME] for hit in shown]
        search = {
            "search_id": search_id,
            "time": time.time(),
            "index": hits[0].index_name,
            "model": model.name,
            "version": model.version,
            "query": window.query,
            "start": window.start,
            "shown": [hit.doc_id for hit in shown],
            "objects": names if names and all(names) else None,
            "challenger": rival.version if rival and teams else None,
            "teams": teams[page] if teams else None,
        }
        self.log.write(search)
        name = orjson.dumps(search_id).decode()
        ext = f',"ubi":{{"query_id":{name}}}' if window.ubi else ""
        return Ranked(rows, search_id, f'"tweetrerank":{{"search_id":{name}}}{ext}')

    def _rival(self, search_id: str, model: ServedModel, window: Window) -> ServedModel | None:
        """The challenger, if it takes part in a search."""
        rival = self.challenger and self.challenger.default
        if (
            not rival
            or rival.version == model.version
            or model.name != self.service.models.default.name
            or window.model is not None
            # A further page must go on with the same list, which only an id of the client tells.
            or (window.start and not (window.ubi and window.ubi.query_id))
            or random.Random(f"share {search_id}").random() >= self.share
        ):
            return None
        return rival

    async def _order(self, scored: Awaitable[ScoreResponse], request_id: str) -> list[int]:
        """The challenger's order; empty if it fails."""
        try:
            return [*(await scored).order]
        except Exception as error:
            LOG.error("request %s: the challenger fails: %s", request_id, error)
            return []

    def routes(self) -> list[Route]:
        """``/events``, if there is a log."""
        return [Route("/events", self._events, methods=["POST"])] if self.log else []

    async def _events(self, request: Request) -> JSONResponse:
        """Log events in the form of OpenSearch's User Behavior Insights, one or a list."""
        assert self.log is not None
        request.state.format = PlainErrors()
        check_media_type(request)
        async with self.service.bodies.read(request) as body:
            try:
                content = orjson.loads(body)
            except orjson.JSONDecodeError as error:
                raise RequestError("json", f"found no JSON in the body: {error}") from None
        events = content if isinstance(content, list) else [content]
        if len(events) > MOST_EVENTS:
            raise RequestError("many", f"found {len(events):,} events, expected {MOST_EVENTS:,}")
        try:
            events = [read_event(event) for event in events]
        except WRONG as error:
            raise RequestError("value", str(error)) from None
        for event in events:
            if not event or any(len(text or "") > MOST_NAME for text in event.values()):
                problem = f'found no "action_name", or a text of more than {MOST_NAME} characters'
                raise RequestError("value", problem)
        for event in events:
            self.log.write({"time": time.time(), **event})
        return JSONResponse({"accepted": len(events)})
