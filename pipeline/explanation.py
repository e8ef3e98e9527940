"""Why posts of one topic are ranked where they are, ready to be shown in a terminal or on a page.

Ranks come from the scores before, by the model, and after; matches from
:mod:`rerankers.evidence`. Nothing here prints.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from pipeline.trec import ranked

if TYPE_CHECKING:
    from indexes.posts import Post
    from rerankers.evidence import Evidence, Span

MOVERS = 3
"""Posts shown of those that rose most, and of those that fell most."""

STEPS = ("weak", "fair", "good", "exact or nearly so")
"""Names of the shades 1 to 4; 0 is none."""

_JOINERS = "\u200c\u200d"  # Unprintable to Python, but parts of emoji and of Persian words.
_GROUPS = {
    "words": "words of the post",
    "post_trigrams": "letters of the post",
    "url_trigrams": "letters of the URL",
}


class Place(NamedTuple):
    """Where a ranking has a post."""

    rank: int
    score: float


class Standing(NamedTuple):
    """A post's places in the three rankings."""

    before: Place
    neural: Place
    after: Place

    @property
    def rise(self) -> int:
        """Ranks gained; negative for ranks lost."""
        return self.before.rank - self.after.rank


class Segment(NamedTuple):
    """Characters that follow one another and have the same shade, 0 (none) to 4."""

    text: str
    step: int


class Cell(NamedTuple):
    """How well something of the query is matched, and by which words of the post."""

    score: float | None
    step: int
    where: str = ""


class Row(NamedTuple):
    """A query word: its importance (IDF), and its matches, one for each column."""

    word: str
    weight: float
    cells: tuple[Cell, ...]


class Column(NamedTuple):
    """A perspective at a depth."""

    perspective: str
    level: int
    group: str
    heading: str


class Shading(NamedTuple):
    """A text or a URL, shaded by the matches of one column."""

    title: str
    segments: list[Segment]


@dataclass(frozen=True)
class PostView:
    """All that is shown of a post.

    Attributes:
        doc_id: its id.
        standing: its places.
        grade: judged relevance, None where there is none.
        text: the post as it was written, shaded by the matches of its words.
        url: its URL, shaded by the matches of its letters; empty if it has none.
        rows: a table of the query's words.
        further: the same texts shaded by the other columns.
    """

    doc_id: str
    standing: Standing
    grade: int | None
    text: list[Segment]
    url: list[Segment]
    rows: list[Row]
    further: list[Shading]


@dataclass(frozen=True)
class Explanation:
    """One topic's ranking and what it is made of.

    Attributes:
        collection: name of the topics' source.
        query_id: of the topic.
        query: its text.
        first_stage: what found the candidates.
        model: name of the reranker, and where its weights are from.
        mixing: λ and where it is from, in words.
        candidates: how many posts were ranked.
        measure: what a match is, in words.
        bounds: from where on a match has the shades 1 to 4.
        columns: of the posts' tables.
        sections: heading -> posts.
    """

    collection: str
    query_id: str
    query: str
    first_stage: str
    model: str
    mixing: str
    candidates: int
    measure: str
    bounds: tuple[float, ...]
    columns: tuple[Column, ...]
    sections: Mapping[str, Sequence[PostView]]


def places(scores: Mapping[str, float]) -> dict[str, Place]:
    """Rank, from 1, and score of each post of a topic, best first, by the one tie rule."""
    return {
        doc_id: Place(rank, score) for rank, (doc_id, score) in enumerate(ranked(scores), start=1)
    }


def standings(
    before: Mapping[str, float], neural: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, Standing]:
    """Places of each post in all three rankings, in the order of the last."""
    old, new = places(before), places(neural)
    return {
        doc_id: Standing(old[doc_id], new[doc_id], place) for doc_id, place in places(after).items()
    }


def choose(found: Mapping[str, Standing], best: int, movers: int = MOVERS) -> dict[str, list[str]]:
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


def visible(text: str) -> str:
    """The text with each line break as a space and each control character as �.

    Nothing that steers a terminal or turns the direction of other text gets through, and every
    character keeps its place.
    """
    return "".join(
        " " if c.isspace() else c if c.isprintable() or c in _JOINERS else "�" for c in text
    )


def paint(
    text: str, spans: "Iterable[Span]", values: Iterable[float], bounds: Sequence[float]
) -> list[Segment]:
    """A text in segments, each character as dark as the best value that a span gives to it.

    Args:
        text: as it was written.
        spans: where the parts are that have a value; they may share characters.
        values: how well each is matched; what goes beyond the shorter of both is left out.
        bounds: from where on a value has the shades 1, 2, ….
    """
    steps = [0] * len(text)
    for (start, end), value in zip(spans, values, strict=False):
        step = bisect_right(bounds, value)
        for place in range(start, end):
            steps[place] = max(steps[place], step)
    pairs = zip(visible(text), steps, strict=True)
    return [
        Segment("".join(c for c, _ in group), step)
        for step, group in groupby(pairs, key=lambda pair: pair[1])
    ]


def columns_of(evidence: "Evidence") -> tuple[Column, ...]:
    """Every perspective at every depth."""
    columns = []
    for name, matches in evidence.matches.items():
        for level in range(len(matches.levels)):
            reach = matches.reach(level)
            if name == "words":
                heading = "word" if reach == 1 else f"{reach} words"
            else:
                heading = f"{reach + 2} letters"
            columns.append(Column(name, level, _GROUPS[name], heading))
    return tuple(columns)


def view(
    post: "Post", standing: Standing, grade: int | None, evidence: "Evidence",
    bounds: Sequence[float],
) -> PostView:  # fmt: skip
    """All that is shown of a post."""
    columns = columns_of(evidence)
    shaded = {
        column[:2]: _shade(post, evidence, column, bounds)
        for column in columns
        if column.perspective != "url_trigrams" or evidence.url
    }
    # Single words say most about a text; of a URL, which is one long word, longer pieces do.
    depth = max((column.level for column in columns), default=0)
    texts = [("words", 0), ("post_trigrams", min(1, depth))]
    main = next((key for key in texts if key in shaded), None)
    link = ("url_trigrams", min(1, depth))
    return PostView(
        post.doc_id, standing, grade,
        shaded[main] if main else paint(post.text, [], [], bounds),
        shaded[link] if link in shaded else paint(post.url.strip(), [], [], bounds),
        _rows(evidence, columns, bounds),
        [
            Shading(f"{column.group}, {column.heading}", shaded[column[:2]])
            for column in columns
            if column[:2] in shaded and column[:2] not in (main, link)
        ],
    )  # fmt: skip


def _shade(
    post: "Post", evidence: "Evidence", column: Column, bounds: Sequence[float]
) -> list[Segment]:
    from rerankers.evidence import trigram_spans

    values = evidence.matches[column.perspective].term_shades(column.level)
    if column.perspective == "words":
        return paint(post.text, [word.place for word in evidence.post_words], values, bounds)
    if column.perspective == "post_trigrams":
        spans = [s for word in evidence.post_words for s in trigram_spans(word.spans, word.text)]
        return paint(post.text, spans, values, bounds)
    return paint(post.url, evidence.url, values, bounds)


def _rows(evidence: "Evidence", columns: Sequence[Column], bounds: Sequence[float]) -> list[Row]:
    cells = [_cells(evidence, column, bounds) for column in columns]
    return [
        Row(word, float(weight), row)
        for word, weight, row in zip(
            evidence.query_words, evidence.weights, zip(*cells, strict=True), strict=True
        )
    ]


def _cells(evidence: "Evidence", column: Column, bounds: Sequence[float]) -> list[Cell]:
    """One column: a cell for each of the query's words."""
    from rerankers.evidence import mean_by_word

    matches = evidence.matches[column.perspective]
    best = matches.best(column.level)
    if column.perspective == "words":
        reach = matches.reach(column.level)
        return [
            Cell(
                float(score),
                bisect_right(bounds, score),
                "" if place is None
                else " ".join(w.text for w in evidence.post_words[place : place + reach]),
            )
            for score, place in zip(best, matches.where(column.level), strict=True)
        ]  # fmt: skip
    if column.perspective == "url_trigrams" and not evidence.url:
        return [Cell(None, 0)] * len(evidence.query_words)
    return [
        Cell(score, 0 if score is None else bisect_right(bounds, score))
        for score in mean_by_word(best, evidence.query_words)
    ]
