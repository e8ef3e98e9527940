"""Rankings that are logged, and that may interleave the posts of two models."""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tweetrerank.pipeline.collections.click_log import CHALLENGER, CHAMPION
from tweetrerank.pipeline.service.json_log import LOG
from tweetrerank.pipeline.service.log import SearchLog
from tweetrerank.pipeline.service.proxy.answer import Hit
from tweetrerank.pipeline.service.proxy.ask import Candidates
from tweetrerank.pipeline.service.request_record import Record
from tweetrerank.pipeline.service.scorer import ServedModel
from tweetrerank.pipeline.service.served_models import Models

Score = Callable[[ServedModel, Record], Awaitable[Any]]
"""A function that scores the candidates by a model and counts the work in a record."""


class Ranked(NamedTuple):
    """The ranking of candidates. Only logged searches have the last two fields."""

    rows: Sequence[tuple[int, str]]  # (row of a hit, its new score), best first
    search_id: str = ""
    ext: Mapping[str, Any] = {}  # Members for ``ext`` in the response


def team_draft(
    champion: Sequence[int],
    challenger: Sequence[int],
    seed: str,
) -> tuple[list[int], list[int]]:
    """Merge two rankings of the same rows; return the rows and each place's team.

    This is team-draft interleaving (Radlinski, Kurup & Joachims, CIKM 2008, section
    5.2). In each round, a coin decides which ranking is the first to add its best row
    that is not in the list yet. Rows above the first difference belong to no team,
    which is written as 0. ``seed`` determines the coins, as all pages of a search must
    agree.
    """
    coins = random.Random(seed)
    equal = _common_length(champion, challenger)
    team_of = dict.fromkeys(champion[:equal], 0)  # Row -> team, in the merged order
    remaining = {
        CHAMPION: iter(champion[equal:]),
        CHALLENGER: iter(challenger[equal:]),
    }
    while len(team_of) < len(champion):
        for team in coins.sample((CHAMPION, CHALLENGER), 2):
            for row in remaining[team]:
                if row not in team_of:
                    team_of[row] = team
                    break
    return list(team_of), list(team_of.values())


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of places before the first difference."""
    for place, (row, other) in enumerate(zip(first, second, strict=True)):
        if row != other:
            return place
    return len(first)


class LoggedSearch:
    """A search that is ranked for the log, with a challenger's posts if it is drawn."""

    def __init__(
        self,
        log: SearchLog,
        models: Models,
        model: ServedModel,
        candidates: Candidates,
    ) -> None:
        self._log = log
        self._models = models
        self._model = model
        self._candidates = candidates
        self._client_id: str | None = None
        if candidates.ubi:
            self._client_id = candidates.ubi.query_id
        self.search_id = self._find_search_id()

    def _find_search_id(self) -> str:
        """Return the id of the search that this one continues, or else its own id.

        Its own id is the client's if there is one, or else a new one.
        """
        if not self._client_id:
            return os.urandom(16).hex()
        return self._log.known(self._client_id) or self._client_id

    @property
    def challenger(self) -> ServedModel | None:
        """The model whose posts are interleaved with the model's, or None.

        It is None if the search is not drawn, if it uses another model than the default
        one, or if both models are the same.
        """
        challenger = self._models.challenger
        if not self._log.is_drawn(self.search_id):
            return None
        # A later page must continue the same list, which only an id from the client can
        # tell.
        if self._candidates.start and not self._client_id:
            return None
        model = self._model
        is_default = (
            self._candidates.model is None and model.name == self._models.default.name
        )
        if challenger is None or not is_default:
            return None
        if challenger.version == model.version:
            return None
        return challenger

    async def rank(
        self,
        score: Score,
        record: Record,
        hits: Sequence[Hit],
    ) -> Ranked:
        """Rank the hits by the model's scores, and log the page.

        If the challenger fails, the error is logged and the model's ranking stays as it
        is. Raises the error if the model itself fails.
        """
        challenger = self.challenger
        work = [score(self._model, record)]
        if challenger:
            apart = replace(record, documents=0, cache_hits=0, texts=())
            work.append(score(challenger, apart))
        results = await asyncio.gather(*work, return_exceptions=True)
        scored = results[0]
        if isinstance(scored, BaseException):
            raise scored
        rows = list(scored.best())
        order = [row for row, _ in rows]
        teams: list[int] | None = None
        for result in results[1:]:
            if isinstance(result, BaseException):
                message = "request %s: the challenger fails: %s"
                LOG.error(message, record.request_id, result)
                continue
            order, teams = team_draft(order, result.order, self.search_id)
            # Clients expect descending scores, but those of two models do not descend.
            scores = [score for _, score in rows]
            rows = list(zip(order, scores, strict=True))
        signed_id = self._write(order, teams, record, hits)
        ext: dict[str, Any] = {"tweetrerank": {"search_id": signed_id}}
        if self._candidates.ubi:
            ext["ubi"] = {"query_id": self._client_id or signed_id}
        return Ranked(rows, signed_id, ext)

    def _write(
        self,
        order: Sequence[int],
        teams: Sequence[int] | None,
        record: Record,
        hits: Sequence[Hit],
    ) -> str:
        """Log the page of the search, and return the signed id of the search."""
        candidates = self._candidates
        page = slice(candidates.start, candidates.start + candidates.size)
        challenger = self._models.challenger
        version: str | None = None
        teams_of_page: Sequence[int] | None = None
        if challenger and teams:
            version = challenger.version
            teams_of_page = teams[page]
        entry = {
            "query_id": self.search_id,
            "time": time.time(),
            "index": hits[0].index_name,
            "model": self._model.name,
            "version": self._model.version,
            "start": candidates.start,
            "query_response_hit_ids": [hits[row].doc_id for row in order[page]],
            "challenger": version,
            "teams": teams_of_page,
        }
        is_named = bool(self._client_id)
        return self._log.search(entry, candidates.query, record.client, is_named)
