"""Whether users prefer the challenger: a test that may be looked at any time.

Each clicked search is a win of the challenger, a loss, or a tie; ties say nothing. p is the share
of wins among wins and losses. The evidence against "p ≤ p0" is the likelihood of the searches under
a mixture of all q > p0, divided by that under p0. Where p ≤ p0 this is a supermartingale, whose
probability of ever reaching 1/α is at most α (Ville's inequality), however often one looks and
whenever one stops. The p0 that are not rejected are a confidence sequence. Howard, Ramdas,
McAuliffe & Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences" (Annals of
Statistics, 2021), proposition 7 on the beta-binomial mixture; as bets against p0: Waudby-Smith &
Ramdas, "Estimating means of bounded random variables by betting" (JRSS B, 2024).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.loop import log
from pipeline.loop.interleaving import credit

PRIOR = 30.0
"""a of the mixture Beta(a, a): rankers that users can tell apart win 50 to 65 % of the searches."""

MOST = 10**6  # Searches beyond which no need of them is told


def evidence(wins: float, losses: float, p0: float = 0.5) -> float:
    """The logarithm of the evidence against "p ≤ p0", for 0 < p0 < 1."""
    from scipy.special import betaln
    from scipy.stats import beta

    ratio = betaln(PRIOR + wins, PRIOR + losses) - betaln(PRIOR, PRIOR)
    tails = beta.logsf(p0, PRIOR + wins, PRIOR + losses) - beta.logsf(p0, PRIOR, PRIOR)
    return float(ratio + tails - wins * math.log(p0) - losses * math.log1p(-p0))


def lower_limit(wins: float, losses: float, level: float) -> float:
    """The smallest p0 that is not rejected at a level, such as .95."""
    low, high = 1e-6, max(1e-6, wins / max(1.0, wins + losses))
    for _ in range(40):
        middle = (low + high) / 2
        is_rejected = evidence(wins, losses, middle) >= -math.log(1 - level)
        low, high = (middle, high) if is_rejected else (low, middle)
    return low


@dataclass(frozen=True)
class Comparison:
    """What users made of two models.

    Attributes:
        champion, challenger: versions; "" if nothing was interleaved.
        wins, losses, ties: of the challenger, in clicked searches.
        searches: interleaved, with a click or without.
    """

    champion: str = ""
    challenger: str = ""
    wins: int = 0
    losses: int = 0
    ties: int = 0
    searches: int = 0

    def after(self, outcomes: Iterable[int | None]) -> Comparison:
        """The comparison after further searches, see :func:`outcome`."""
        signs = [*outcomes]
        return replace(
            self,
            wins=self.wins + signs.count(1),
            losses=self.losses + signs.count(-1),
            ties=self.ties + signs.count(0),
            searches=self.searches + len(signs),
        )

    @property
    def share(self) -> float:
        """Of wins among wins and losses."""
        return self.wins / max(1, self.wins + self.losses)

    @property
    def evidence(self) -> float:
        """Against "the challenger is not better"; promotion needs 1 / (1 - level)."""
        return math.exp(min(700, evidence(self.wins, self.losses)))

    def is_agreed(self, level: float) -> bool:
        """Whether the challenger is better, at this level."""
        return self.evidence >= 1 / (1 - level)

    def interval(self, level: float) -> tuple[float, float]:
        """Limits of p, each of which is wrong at any time with the probability 1 - level."""
        upper = 1 - lower_limit(self.losses, self.wins, level)
        return lower_limit(self.wins, self.losses, level), upper

    def needed(self, level: float) -> int | None:
        """Further clicked searches until the level, if the shares stay; None if never."""
        decided = self.wins + self.losses
        if self.is_agreed(level):
            return 0
        if self.wins <= self.losses:
            return None
        more = 1.0
        while evidence(self.share * (n := decided + more), (1 - self.share) * n) < -math.log(
            1 - level
        ):
            more *= 1.05
            if more > MOST:
                return None
        return math.ceil(more * (decided + self.ties) / decided)


def compared(
    searches: Iterable[dict[str, Any]], clicks: Mapping[str, Collection[str]]
) -> Comparison:
    """The last two models that were interleaved; ``clicks``: search_id -> object ids."""
    last, found = ("", ""), []
    for search in sorted(searches, key=lambda search: search["time"] or 0):
        if search["teams"]:
            last = (search["version"], search["challenger"])
            found.append(search)
    found = [search for search in found if (search["version"], search["challenger"]) == last]
    pages: dict[str, list[dict[str, Any]]] = {}
    for search in found:
        pages.setdefault(search["search_id"], []).append(search)
    outcomes = (outcome(of, clicks.get(search_id, ())) for search_id, of in pages.items())
    return Comparison(*last).after(outcomes)


def outcome(pages: Sequence[dict[str, Any]], objects: Collection[str]) -> int | None:
    """1 for a win of the challenger, -1 for a loss, 0 for a tie; None without a click.

    ``pages`` are those of one search that users have seen, ``objects`` the clicked ones.
    """
    clicked = [clicked_of(page, objects) for page in pages]
    if not any(clicked):
        return None
    parts = zip(pages, clicked, strict=True)
    balance = sum(credit(page["shown"], page["teams"], ids) for page, ids in parts)
    return (balance > 0) - (balance < 0)


def clicked_of(search: dict[str, Any], objects: Collection[str]) -> set[str]:
    """The shown ids among the clicked objects of a search."""
    if not objects:
        return set()
    if names := search.get("objects"):
        # Clicks may name either: few applications know UBI's object_id_field.
        pairs = zip(search["ids"], names, strict=True)
        objects = {*objects, *(doc_id for doc_id, name in pairs if name in objects)}
    return {doc_id for doc_id in search["shown"] if doc_id in objects}


def clicks_of(events: Iterable[dict[str, Any]]) -> dict[str, set[str]]:
    """search_id -> clicked object ids."""
    found: dict[str, set[str]] = {}
    for event in events:
        if is_click(event["action"]) and event["object_id"]:
            found.setdefault(event["search_id"], set()).add(event["object_id"])
    return found


def is_click(action: str | None) -> bool:
    """Whether an action of UBI's events says that a result was worth opening."""
    name = (action or "").lower()
    return name.endswith("click") or name in ("add_to_cart", "purchase")


COLUMNS = ("search_id", "time", "version", "challenger", "ids", "objects", "shown", "teams")
"""Of searches, for :func:`compared`."""


def read_comparison(folder: Path) -> Comparison:
    """The comparison of a log."""
    return compared(
        log.read(folder, log.SEARCHES, COLUMNS), clicks_of(log.read(folder, log.EVENTS))
    )
