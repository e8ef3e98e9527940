"""Searches of the proxy: ranked by the champion, or by it and a challenger, and logged."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from pipeline.command.errors import DataError
from pipeline.loop import comparison
from pipeline.loop.comparison import Comparison
from pipeline.loop.interleaving import is_drawn, team_draft
from pipeline.loop.log import EVENTS, SEARCHES, LogWriter
from pipeline.ranking.build import Source
from pipeline.service.formats import ScoreRequest, ScoreResponse
from pipeline.service.http.models import ServedModel
from pipeline.service.http.service import Service
from pipeline.service.proxy.search import Hit, Ubi, Window
from pipeline.service.record import LOG, Record
from rerankers.errors import RerankerError

RECENT = 100  # Searches on the page

MOST_AWAITED = 50_000
"""Interleaved searches whose clicks are counted at once; all are counted from the log."""


class Ranked(NamedTuple):
    """Rows of the hits and their new scores, best first; the id of the search if it is logged."""

    rows: Sequence[tuple[int, str]]
    search_id: str = ""
    has_ubi: bool = False

    @property
    def ext(self) -> str:
        """Members of ``ext`` in the response."""
        if not self.search_id:
            return ""
        search_id = orjson.dumps(self.search_id).decode()
        ubi = f',"ubi":{{"query_id":{search_id}}}' if self.has_ubi else ""
        return f'"tweetrerank":{{"search_id":{search_id}}}{ubi}'


class Challenger:
    """A model that has to prove itself in a share of the searches, once its folder is there."""

    def __init__(self, folder: Path, share: float, cache: int, processes: int) -> None:
        self.folder, self.share, self._parts = folder, share, (cache, processes)
        self.model: ServedModel | None = None
        self.reload()

    def reload(self) -> None:
        """Load the folder if it has changed; a damaged one is logged only."""
        source = Source(self.folder)
        try:
            if not (self.folder / "config.json").exists():
                self.model = None
                LOG.info("--challenger: found no model in %s yet", self.folder)
            elif self.model is None or self.model.version != source.version:
                self.model = ServedModel.load("challenger", source, *self._parts)
                LOG.info("challenger: loaded from %s", self.folder)
        except (RerankerError, DataError, OSError, ValueError) as error:
            LOG.error("challenger: not loaded: %s", error)


class Loop:
    """Ranks and logs searches, and counts what users make of them.

    Without a log there is no challenger, whose ranking is interleaved with that of the service's
    default model.
    """

    def __init__(
        self, service: Service, log: LogWriter | None = None, challenger: Challenger | None = None
    ) -> None:
        self.service, self.log, self.challenger = service, log, challenger
        self.recent: deque[tuple[dict[str, Any], set[str]]] = deque(maxlen=RECENT)
        self._awaited: OrderedDict[str, tuple[list[dict[str, Any]], set[str]]] = OrderedDict()
        self._before = Comparison()
        if log:
            service.metrics.registry.register(self)
        if log and challenger:
            self._read()

    def _read(self) -> None:
        """Begin with what the log has of the two models."""
        assert self.log is not None
        self._awaited = OrderedDict()
        try:
            self._before = comparison.read_comparison(self.log.folder)
        except (DataError, OSError, ValueError) as error:
            LOG.error("the comparison so far cannot be read: %s", error)
        if (self._before.champion, self._before.challenger) != self._pair:
            self._before = Comparison(*self._pair)

    @property
    def _pair(self) -> tuple[str, str]:
        model = self.challenger and self.challenger.model
        return (self.service.models.default.version, model.version) if model else ("", "")

    def reload(self) -> None:
        """Look for a new challenger."""
        if self.challenger:
            self.challenger.reload()
            self._read()

    @property
    def comparison(self) -> Comparison:
        """Of the two models as they are served, from the log before and what came since."""
        return self._before.after(
            comparison.outcome(*search) for search in [*self._awaited.values()]
        )

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
        if self.log is None:
            return Ranked(_rows(await self.service.score(wanted, model, record, deadline)))
        ubi = window.ubi or Ubi()
        search_id = ubi.query_id or uuid.uuid4().hex
        rival = self._rival(search_id, model, window)
        if rival is None:
            scored, other = await self.service.score(wanted, model, record, deadline), None
        else:
            scored, other = await asyncio.gather(
                self.service.score(wanted, model, record, deadline),
                self._by_rival(wanted, rival, record, deadline),
            )
        rows, teams = _rows(scored), None
        order = [row for row, _ in rows]
        if other:
            order, teams = team_draft(order, other, search_id)
            # Clients expect descending scores, which two models together do not have.
            rows = [(row, score) for row, (_, score) in zip(order, rows, strict=True)]
        page = slice(window.start, window.start + window.size)
        objects = None
        if ubi.object_id_field:
            names = [hit.text([ubi.object_id_field]) for hit in hits]
            objects = names if all(names) else None
        ids = [hit.doc_id for hit in hits]
        ranks = [0] * len(ids)
        for place, row in enumerate(order, start=1):
            ranks[row] = place
        search = self.log.write(
            SEARCHES,
            {
                "search_id": search_id,
                "time": time.time(),
                "index": hits[0].index_name,
                "model": model.name,
                "version": model.version,
                "query": window.query,
                "client_id": ubi.client_id,
                "ids": ids,
                "objects": objects,
                "first_stage": wanted.first_stage,
                "scores": scored.scores,
                "ranks": ranks,
                "start": window.start,
                "shown": [ids[row] for row in order[page]],
                "challenger": rival.version if rival and teams else None,
                "teams": teams[page] if teams else None,
            },
        )
        self._await(search)
        return Ranked(rows, search_id, window.ubi is not None)

    def _rival(self, search_id: str, model: ServedModel, window: Window) -> ServedModel | None:
        """The challenger, if it takes part in a search."""
        rival = self.challenger and self.challenger.model
        if (
            not (rival and self.challenger)
            or rival.version == model.version
            or model.name != self.service.models.default.name
            or window.model is not None
            # A further page must go on with the same list, which only an id of the client tells.
            or (window.start and not (window.ubi and window.ubi.query_id))
            or not is_drawn(search_id, self.challenger.share)
        ):
            return None
        return rival

    async def _by_rival(
        self, wanted: ScoreRequest, rival: ServedModel, record: Record, deadline: float
    ) -> list[int] | None:
        """The challenger's order; None where it fails."""
        try:
            own = Record(record.request_id, record.method, record.path)
            return [*(await self.service.score(wanted, rival, own, deadline)).order]
        except Exception as error:
            LOG.error("request %s: the challenger fails: %s", record.request_id, error)
            return None

    def _await(self, search: dict[str, Any]) -> None:
        """Keep a search for its clicks, and as the page of one that has some pages."""
        self.recent.append((search, set()))
        if search["teams"] and (search["version"], search["challenger"]) == self._pair:
            self._awaited.setdefault(search["search_id"], ([], set()))[0].append(search)
            if len(self._awaited) > MOST_AWAITED:
                self._awaited.popitem(last=False)

    def event(self, event: dict[str, Any]) -> None:
        """Log an event, a record of :data:`pipeline.loop.log.SCHEMAS`, and count a click."""
        assert self.log is not None
        self.log.write(EVENTS, event)
        if not (event["object_id"] and comparison.is_click(event["action"])):
            return
        if awaited := self._awaited.get(event["search_id"]):
            awaited[1].add(event["object_id"])
        for search, clicked in self.recent:
            if search["search_id"] == event["search_id"]:
                clicked.add(event["object_id"])

    def collect(self) -> Iterator[Metric]:
        """For ``/metrics``: lines of the log, and the comparison."""
        assert self.log is not None
        lines = GaugeMetricFamily("tweetrerank_log_lines", "Of the log", labels=["outcome"])
        lines.add_metric(["written"], self.log.written)
        lines.add_metric(["dropped"], self.log.dropped)
        yield lines
        if self.challenger:
            state = self.comparison
            searches = GaugeMetricFamily(
                "tweetrerank_comparison", "Clicked searches by outcome", labels=["outcome"]
            )
            for name in ("wins", "losses", "ties"):
                searches.add_metric([name], getattr(state, name))
            yield searches
            yield GaugeMetricFamily(
                "tweetrerank_comparison_evidence", "That the challenger is better", state.evidence
            )


def _rows(scored: ScoreResponse) -> list[tuple[int, str]]:
    return [(row, orjson.dumps(score).decode()) for row, score in scored.best()]
