"""Two rankings of the same posts in one list.

Team-draft interleaving: Radlinski, Kurup & Joachims, "How Does Clickthrough Data Reflect Retrieval
Quality?" (CIKM 2008), section 5.2. In each round a coin decides which ranking chooses first; each
adds its best post that is not in the list yet, and gets the clicks on its posts. Up to where both
rankings agree, posts are of no team: clicks there say nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

NONE, CHAMPION, CHALLENGER = 0, 1, 2  # Teams


def team_draft(
    champion: Sequence[int], challenger: Sequence[int], seed: str
) -> tuple[list[int], list[int]]:
    """The interleaved ranking of the same rows, and the team of each of its places.

    ``seed`` makes the coins: the pages of a search must agree.
    """
    coins, same = random.Random(seed), 0
    while same < len(champion) and champion[same] == challenger[same]:
        same += 1
    order, teams = list(champion[:same]), [NONE] * same
    seen = set(order)
    left = {CHAMPION: iter(champion[same:]), CHALLENGER: iter(challenger[same:])}
    while len(order) < len(champion):
        first = coins.choice((CHAMPION, CHALLENGER))
        for team in (first, CHAMPION + CHALLENGER - first):
            row = next((row for row in left[team] if row not in seen), None)
            if row is not None:
                seen.add(row)
                order.append(row)
                teams.append(team)
    return order, teams


def is_drawn(seed: str, share: float) -> bool:
    """Whether a search is among the interleaved ones; the same for all pages of a search."""
    return random.Random(f"share {seed}").random() < share
