"""Where posts of one topic stand in rankings, which of them are worth a look, and that in words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.collections.trec import ranked

MOVERS = 3
"""Posts shown of those that rose most, and of those that fell most."""

_JOINERS = "\u200c\u200d"  # Unprintable to Python, but parts of emoji and of Persian words.


class Place(NamedTuple):
    """Where a ranking has a post."""

    rank: int
    score: float

    def __str__(self) -> str:
        return f"#{self.rank} ({self.score:.4f})"


@dataclass(frozen=True)
class RankChange:
    """A post's places in the first ranking, in the last, and in a neural one between them."""

    before: Place
    after: Place
    neural: Place | None = None

    @property
    def rise(self) -> int:
        """Ranks gained; negative for ranks lost."""
        return self.before.rank - self.after.rank

    @property
    def movement(self) -> str:
        """The rise in words."""
        if self.rise == 0:
            return "where it was before"
        arrow = "▲" if self.rise > 0 else "▼"
        return f"{arrow} {abs(self.rise)}, from #{self.before.rank}"


def places(scores: Mapping[str, float]) -> dict[str, Place]:
    """Rank, from 1, and score of each post of a topic, best first, by the one tie rule."""
    return {
        doc_id: Place(rank, score) for rank, (doc_id, score) in enumerate(ranked(scores), start=1)
    }


def rank_changes(
    before: Mapping[str, float], after: Mapping[str, float],
    neural: Mapping[str, float] | None = None,
) -> dict[str, RankChange]:  # fmt: skip
    """Places of each post in the rankings by these scores, in the order of ``after``."""
    old, new = places(before), places(neural or {})
    return {
        doc_id: RankChange(old[doc_id], place, new.get(doc_id))
        for doc_id, place in places(after).items()
    }


def choose(
    found: Mapping[str, RankChange], best: int, movers: int = MOVERS
) -> dict[str, list[str]]:
    """Heading -> doc_ids: the ``best`` after, and of the others those that moved furthest.

    Of two that moved equally far the one that is now higher comes first.
    """
    shown = list(found)[:best]
    others = list(found)[best:]
    rose = sorted(others, key=lambda doc_id: -found[doc_id].rise)[:movers]
    fell = sorted(others, key=lambda doc_id: found[doc_id].rise)[:movers]
    sections = {
        "best of the new ranking": shown,
        "rose most of the others": [doc_id for doc_id in rose if found[doc_id].rise > 0],
        "fell most of the others": [doc_id for doc_id in fell if found[doc_id].rise < 0],
    }
    return {heading: doc_ids for heading, doc_ids in sections.items() if doc_ids}


def grade_text(grade: int | None) -> str:
    """A judged grade in words."""
    if grade is None:
        return "not judged"
    return "not relevant" if grade <= 0 else "relevant" if grade == 1 else "highly relevant"


def headline(doc_id: str, standing: RankChange, grade: int | None) -> list[str]:
    """What stands above a post: its rank, how it moved, its grade, its id."""
    number = "" if grade is None else f" [{grade}]"
    return [
        f"#{standing.after.rank}", standing.movement, f"{grade_text(grade)}{number}",
        f"post {visible(doc_id)}",
    ]  # fmt: skip


def visible(text: str) -> str:
    """The text with each line break as a space and each control character as �.

    Nothing that steers a terminal or turns the direction of other text gets through, and every
    character keeps its place.
    """
    return "".join(
        " " if c.isspace() else c if c.isprintable() or c in _JOINERS else "�" for c in text
    )
