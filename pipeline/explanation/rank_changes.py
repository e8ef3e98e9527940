"""Ranks of a topic's posts before and after reranking, and the choice of posts to explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pipeline.collections.trec import ranked

if TYPE_CHECKING:
    from indexes.posts import Post
    from pipeline.collections.topics import Topic
    from pipeline.ranking.retrievers import Candidates

MOVERS = 3
"""Posts shown of those with the largest gains in rank, and of those with the largest losses."""

_GRADES = ("not relevant", "relevant", "highly relevant")
_JOINERS = "\u200c\u200d"  # Unprintable to Python, but parts of emoji and of Persian words.


class Place(NamedTuple):
    """A post's rank, from 1, and score in a ranking."""

    rank: int
    score: float

    def __str__(self) -> str:
        return f"#{self.rank} ({self.score:.4f})"


@dataclass(frozen=True)
class RankChange:
    """A post's places in successive rankings, by name: the first before, the last after."""

    places: Mapping[str, Place]

    @property
    def last(self) -> Place:
        """Place after reranking."""
        return list(self.places.values())[-1]

    @property
    def gain(self) -> int:
        """Ranks gained from the first ranking to the last; negative for a loss."""
        return next(iter(self.places.values())).rank - self.last.rank

    @property
    def movement(self) -> str:
        """The gain in words."""
        if self.gain == 0:
            return "same rank as before"
        return (
            f"{'▲' if self.gain > 0 else '▼'} {abs(self.gain)}, from #{self.last.rank + self.gain}"
        )

    @property
    def stages(self) -> list[str]:
        """Each ranking's name with the post's place."""
        return [f"{name} {place}" for name, place in self.places.items()]


@dataclass(frozen=True)
class RerankedTopic:
    """The reranked candidates of one topic, and the posts to explain."""

    collection: str  # Name of the topic's source
    topic: Topic
    candidates: Candidates
    changes: Mapping[str, RankChange]  # doc_id -> rank change, for every candidate
    grades: Mapping[str, int]  # doc_id -> judged relevance, for judged posts
    chosen: Mapping[str, Sequence[str]]  # Heading -> doc_ids of the posts to explain, at least one

    @property
    def posts(self) -> list[Post]:
        """The posts to explain."""
        return [self.candidates.posts[d] for doc_ids in self.chosen.values() for d in doc_ids]

    def headline(self, doc_id: str) -> list[str]:
        """A post's rank, movement, grade and id."""
        grade, change = self.grades.get(doc_id), self.changes[doc_id]
        number = "" if grade is None else f" [{grade}]"
        judged = grade_text(grade) + number
        return [f"#{change.last.rank}", change.movement, judged, f"post {doc_id}"]


def places(scores: Mapping[str, float]) -> dict[str, Place]:
    """Place of each post by its score, best first."""
    return {
        doc_id: Place(rank, score) for rank, (doc_id, score) in enumerate(ranked(scores), start=1)
    }


def rank_changes(rankings: Mapping[str, Mapping[str, float]]) -> dict[str, RankChange]:
    """doc_id -> rank change, in the order of the last ranking; ``rankings`` are first to last."""
    found = {name: places(scores) for name, scores in rankings.items()}
    *_, last = found.values()
    return {
        doc_id: RankChange({name: ranking[doc_id] for name, ranking in found.items()})
        for doc_id in last
    }


def choose(changes: Mapping[str, RankChange], best: int) -> dict[str, list[str]]:
    """Heading -> doc_ids: the ``best`` of the last ranking; largest gains and losses of the rest.

    The order of ``changes`` is the last ranking, which also breaks ties between movers.
    """
    shown, others = list(changes)[:best], list(changes)[best:]
    rose = sorted(others, key=lambda doc_id: -changes[doc_id].gain)[:MOVERS]
    fell = sorted(others, key=lambda doc_id: changes[doc_id].gain)[:MOVERS]
    sections = {
        "best of the new ranking": shown,
        "largest gains of the others": [d for d in rose if changes[d].gain > 0],
        "largest losses of the others": [d for d in fell if changes[d].gain < 0],
    }
    return {heading: doc_ids for heading, doc_ids in sections.items() if doc_ids}


def grade_text(grade: int | None) -> str:
    """A judged grade in words."""
    return "not judged" if grade is None else _GRADES[min(max(grade, 0), 2)]


def visible(text: str) -> str:
    """The text with line breaks as spaces and other control characters as �.

    Keeps terminal escapes and changes of text direction out of the output. The length stays.
    """
    return "".join(
        " " if c.isspace() else c if c.isprintable() or c in _JOINERS else "�" for c in text
    )
