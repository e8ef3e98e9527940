"""Searches and clicks of a log as impressions of the click model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.collections.clicks.log import ClickLog, Impression, with_clicks
from pipeline.collections.clicks.model import (
    ROUNDS,
    STRENGTH,
    ClickModel,
    Floats,
    examination_of_swaps,
    fit,
    groups_by_score,
)
from pipeline.command.errors import DataError
from pipeline.command.runtime import bar
from pipeline.loop import log
from pipeline.loop.comparison import clicked_of, clicks_of

if TYPE_CHECKING:
    from indexes.engines.address import EngineAddress

COLUMNS = ("search_id", "time", "query", "ids", "objects", "scores", "start", "shown", "teams")


def impressions(source: Path | EngineAddress) -> Iterator[tuple[dict[str, Any], Impression]]:
    """The searches of a log with a text, each with its impression; raises DataError."""
    if isinstance(source, Path):
        searches, events = log.read(source, log.SEARCHES, COLUMNS), log.read(source, log.EVENTS)
    else:
        from pipeline.loop import engine

        searches, events = engine.read(source, log.SEARCHES), engine.read(source, log.EVENTS)
    clicks = clicks_of(events)
    for search in searches:
        query = search["query"]
        if not (query and query.strip() and search["shown"]):
            continue
        if log.is_hashed(query):
            raise DataError(
                f"{source}: found hashed queries, expected texts; log them by serve --log-queries "
                "plain (models are compared without)"
            )
        clicked = clicked_of(search, clicks.get(search["search_id"], ()))
        shown, start = list(dict.fromkeys(search["shown"])), search["start"] or 0
        is_interleaved = bool(search.get("teams"))
        ids = search.get("ids") or search["shown"]  # An engine's log has the page alone.
        known = dict(zip(ids, search.get("scores") or (), strict=False))
        scores = [known.get(doc_id, math.nan) for doc_id in shown]
        yield search, Impression(query, shown, clicked, None, start, is_interleaved, scores)


def read_logged(
    source: Path | EngineAddress, progress: Callable[[int], object] = lambda _: None
) -> ClickLog:
    """The click log of a service or an engine; raises DataError for one without a click."""
    found = ClickLog()
    for _, impression in impressions(source):
        found.add(impression)
        progress(1)
    return with_clicks(found, str(source), "event with action_name click of a shown post")


def fitted(found: ClickLog, strength: float = STRENGTH, known: Floats | None = None) -> ClickModel:
    """The position-based model of a log; its examination by swaps, where there are enough."""
    pair, position, click = found.pair, found.position, found.click
    if known is None:
        by_chance = found.is_interleaved
        known = examination_of_swaps(pair[by_chance], position[by_chance], click[by_chance])
    group = groups_by_score(pair, found.score)
    with bar(ROUNDS, "position bias", "round") as progress:
        return fit(
            pair, position, click, strength=strength, known=known, group=group, progress=progress
        )
