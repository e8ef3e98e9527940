"""The log of reranked searches and of users' events, and searches that show two models.

A folder has files of JSON lines, ``searches-2026-11-24-ab12cd34.jsonl`` for a day and a run of a
service, and the ``key`` of the hashes of queries. A thread writes lines several times a second:
nobody waits for the disk, and a killed process loses what was not written yet.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
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
from pipeline.collections.clicks import HASHED, WRONG, read_event
from pipeline.service.errors import PlainErrors, RequestError
from pipeline.service.formats import ScoreRequest
from pipeline.service.http.models import Models, ServedModel
from pipeline.service.http.service import Service
from pipeline.service.interleaving import is_drawn, team_draft
from pipeline.service.proxy.search import Hit, Ubi, Window
from pipeline.service.record import LOG, Record
from rerankers.text.words import MAX_CHARACTERS

FLUSH = 0.25  # Seconds between two writes
MOST_WAITING = 32_000_000  # Bytes of lines that wait to be written; further lines are dropped
MOST_EVENTS = 1000  # Of a request
MOST_NAME = 512  # Characters of an id or an action
MOST_KNOWN = 100_000  # Last searches, whose events are known


class SearchLog:
    """Writes a log; its methods may be called by any thread, and neither wait nor raise errors.

    ``is_plain``: queries are not hashed. ``days``: until files are deleted.
    """

    def __init__(self, folder: Path, is_plain: bool = False, days: float = 30) -> None:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        self.folder, self._days, self._run_id, self._day = folder, days, secrets.token_hex(4), ""
        key = folder / "key"
        if not is_plain and not key.exists():
            write_bytes(key, secrets.token_bytes(32))
            key.chmod(0o600)
        self._key = None if is_plain else key.read_bytes()
        self.written = self.dropped = self.unknown = self._told = self._bytes = 0
        self._waiting, self._known = list[bytes](), LRUCache[str, bool](MOST_KNOWN)
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

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
            if not line or self._bytes + len(line) > MOST_WAITING:
                self.dropped += 1
            else:
                self._waiting.append(line)
                self._bytes += len(line)

    def close(self) -> None:
        """Write what waits."""
        self._end.set()
        self._thread.join(5)

    def _hashed(self, text: str) -> str:
        if self._key is None:
            return text
        normal = " ".join(text.casefold().split()).encode("utf-8", "replace")
        return HASHED + hmac.digest(self._key, normal, "sha256").hex()[:32]

    def _run(self) -> None:
        while not self._end.wait(FLUSH):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        now, problem = datetime.now(UTC), "too many wait"
        if (day := f"searches-{now:%Y-%m-%d}") != self._day:
            self._day = day
            for path in self.folder.glob("searches-*.jsonl"):
                if path.name < f"searches-{now - timedelta(self._days):%Y-%m-%d}":
                    with suppress(OSError):
                        path.unlink()
        with self._lock:
            lines, self._waiting = self._waiting, []
        try:
            if lines:
                _append(self.folder / f"{day}-{self._run_id}.jsonl", b"".join(lines))
            self.written += len(lines)
        except OSError as error:
            problem, self.dropped = str(error), self.dropped + len(lines)
        with self._lock:
            self._bytes -= sum(map(len, lines))
        if self.dropped > 2 * self._told:  # Not at each of thousands.
            self._told = self.dropped
            LOG.error("--log: %d lines are lost until now: %s", self._told, problem)


def _append(path: Path, content: bytes) -> None:
    """Append all lines or none; raises OSError."""
    with open(path, "ab", 0, opener=partial(os.open, mode=0o600)) as stream:
        size = stream.tell()
        try:
            while content:
                content = content[stream.write(content) :]
        except OSError:
            stream.truncate(size)
            raise


class Ranked(NamedTuple):
    """Rows of the hits and their new scores, best first.

    If it is logged, the id of the search, and members of ``ext`` in the response.
    """

    rows: Sequence[tuple[int, str]]
    search_id: str = ""
    ext: str = ""


class Loop:
    """Ranks searches, and logs them if there is a log.

    A ``share`` of them shows posts of both the service's default model and the challenger.
    """

    def __init__(
        self,
        service: Service,
        log: SearchLog | None = None,
        challenger: Models | None = None,
        share: float = 0.0,
    ) -> None:
        self.service, self.log, self.challenger, self._share = service, log, challenger, share
        if log:
            registry = service.metrics.registry
            lines = Gauge("tweetrerank_log_lines", "Of the log", ["outcome"], registry=registry)
            for outcome in ("written", "dropped", "unknown"):
                lines.labels(outcome).set_function(partial(getattr, log, outcome))

    async def rank(
        self,
        wanted: ScoreRequest,
        model: ServedModel,
        record: Record,
        deadline: float,
        window: Window,
        hits: Sequence[Hit],
    ) -> Ranked:
        """The ranking of a window; raises RequestError."""
        ubi, score = window.ubi or Ubi(), self.service.score
        search_id = ubi.query_id or uuid.uuid4().hex
        rival = self._rival(search_id, model, window)
        scored, other = await asyncio.gather(
            score(wanted, model, record, deadline), self._order(wanted, rival, record, deadline)
        )
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
            "scores": [scored.scores[row] for row in order[page]],
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
            or not is_drawn(search_id, self._share)
        ):
            return None
        return rival

    async def _order(
        self, wanted: ScoreRequest, rival: ServedModel | None, record: Record, deadline: float
    ) -> list[int] | None:
        """The challenger's order; None without it, or where it fails."""
        try:
            own = Record(record.request_id, record.method, record.path)
            scored = rival and await self.service.score(wanted, rival, own, deadline)
            return [*scored.order] if scored else None
        except Exception as error:
            LOG.error("request %s: the challenger fails: %s", record.request_id, error)
            return None

    def routes(self) -> list[Route]:
        """``/events``, if there is a log."""
        return [Route("/events", self._events, methods=["POST"])] if self.log else []

    async def _events(self, request: Request) -> JSONResponse:
        """Log events in the form of OpenSearch's User Behavior Insights, one or a list."""
        assert self.log is not None
        request.state.format = PlainErrors()
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError("media", f"found {kind[:100]!r}, expected application/json")
        async with self.service.bodies.read(request) as body:
            try:
                content = orjson.loads(body)
            except orjson.JSONDecodeError as error:
                raise RequestError("json", f"found no JSON in the body: {error}") from None
        events = content if isinstance(content, list) else [content]
        if len(events) > MOST_EVENTS:
            raise RequestError("many", f"found {len(events):,} events, expected {MOST_EVENTS:,}")
        try:
            found = [read_event(event) for event in events]
        except WRONG as error:
            raise RequestError("value", str(error)) from None
        for event in found:
            if event is None or any(len(text or "") > MOST_NAME for text in event.values()):
                problem = f'found no "action_name", or a text of more than {MOST_NAME} characters'
                raise RequestError("value", problem)
        for event in found:
            self.log.write({"time": time.time(), **(event or {})})
        return JSONResponse({"accepted": len(found)})
