"""Reasons for the scores of posts: words in shades, and rows of numbers.

A model fills in the same record whatever its kind, and pages and terminals show it: for trees a row
is a family of features with its contribution to the score, for MP-HCNN a word of the query with its
best matches.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from itertools import groupby
from math import isnan
from typing import Any, NamedTuple

import numpy as np

from tweetrerank.rerankers.text.spans import Span, find_url, find_words
from tweetrerank.rerankers.text.words import STOP_WORDS, words

WORD_STEPS = (
    "related",
    "close in meaning",
    "same stem",
    "same word",
)  # Shades 1 to 4 of words

RELATED, CLOSE = 0.3, 0.5
"""Least cosines of related words (race, marathon) and of close ones (prize, winner) in
the general space, where others are below 0.1.
"""

_ENTITIES = re.compile("&(?:amp|lt|gt|quot|#39);")
_JOINERS = (
    "\u200c\u200d"  # Unprintable to Python, but parts of emoji and of Persian words.
)


class Segment(NamedTuple):
    """Consecutive characters of one shade, 0 (none) to 4."""

    text: str
    step: int


class Cell(NamedTuple):
    """A number of a row, its shade, and the words of the post that it is about."""

    score: float | None
    step: int = 0
    where: str = ""


class Row(NamedTuple):
    """A word of the query with its weight (IDF), or a family of features; numbers by
    column.
    """

    label: str
    weight: float | None
    cells: tuple[Cell, ...]


class Column(NamedTuple):
    """Heading of a column, and of the group of columns around it."""

    heading: str
    group: str = ""


class Feature(NamedTuple):
    """A post's value of a feature, NaN if unknown, and the feature's contribution to
    the score.
    """

    feature: str
    value: float
    added: float


@dataclass(frozen=True)
class Reasons:
    """Reasons for one post's score."""

    text: list[Segment]
    url: list[Segment]  # Empty without a URL
    rows: list[Row]
    further: list[tuple[str, list[Segment]]] = field(default_factory=list)
    """Text and URL once more, by title, in the shades of other matches."""
    features: list[Feature] = field(default_factory=list)
    """Features with the largest contributions, from the highest to the lowest."""
    numbers: str = (
        ""  # Those beside the text, and their places: ``likes 37, 4th of 100``
    )


@dataclass(frozen=True)
class Explanation:
    """Reasons for the scores of posts of one query."""

    kind: str  # ``matches`` or ``contributions``
    measure: str  # Of the numbers in rows
    steps: Sequence[str]  # Names of the shades 1 to 4
    columns: Sequence[Column]
    posts: Sequence[Reasons]
    base: float = 0.0  # To which contributions are added: the mean score of the list
    importances: Mapping[str, float] = field(default_factory=dict)
    """Label of a row -> its share in all of the model's scores, the largest first."""

    @property
    def extent(self) -> tuple[float, float]:
        """The least and the greatest number in a row; 0 is in between."""
        rows = (row for post in self.posts for row in post.rows)
        numbers = [0.0, *(cell.score or 0.0 for row in rows for cell in row.cells)]
        return min(numbers), max(numbers)

    @property
    def groups(self) -> list[tuple[str, list[int]]]:
        """Heading of adjacent columns and their indices."""
        groups = groupby(
            range(len(self.columns)), key=lambda index: self.columns[index].group
        )
        return [(heading, list(members)) for heading, members in groups]

    def to_dict(self) -> dict[str, Any]:
        """The explanation without its posts, for JSON."""
        names = ("kind", "measure", "steps", "base", "extent", "groups")
        shown = {name: getattr(self, name) for name in names}
        return shown | {"columns": [column.heading for column in self.columns]}


def as_dict(reasons: Reasons) -> dict[str, Any]:
    """Reasons for JSON: shaded texts are lists of [characters, shade], unknown values
    are null.
    """
    further = [
        {"title": title, "segments": shaded} for title, shaded in reasons.further
    ]
    rows = [
        row._asdict() | {"cells": [c._asdict() for c in row.cells]}
        for row in reasons.rows
    ]
    known = [
        f._asdict() | {"value": None if isnan(f.value) else f.value}
        for f in reasons.features
    ]
    return vars(reasons) | {"rows": rows, "further": further, "features": known}


def visible(text: str) -> str:
    """The text with line breaks as spaces, other control characters as � (no terminal
    escapes or changes of direction), and tweets' entities (``&amp;``) as the characters
    they stand for.
    """
    return "".join(_visible(text))


def _visible(text: str) -> list[str]:
    """Text shown for each character; none for the later ones of an entity."""
    shown = [
        " " if c.isspace() else c if c.isprintable() or c in _JOINERS else "�"
        for c in text
    ]
    for entity in _ENTITIES.finditer(text):
        start, end = entity.span()
        shown[start:end] = [unescape(entity[0]), *[""] * (end - start - 1)]
    return shown


def placed(name: str, value: float, others: Iterable[float]) -> str:
    """A number and its place among all known ones, from the highest: ``likes 37, 4th of
    100``.
    """
    if isnan(value):
        return f"{name} unknown"
    known = [other for other in others if not isnan(other)]
    place = 1 + sum(other > value for other in known)
    ending = {1: "st", 2: "nd", 3: "rd"}.get(
        place % 10 if place // 10 % 10 != 1 else 0, "th"
    )
    return f"{name} {value:.15g}, {place:,}{ending} of {len(known):,}"


def shade(
    text: str, spans: Iterable[Span], values: Iterable[float], bounds: Sequence[float]
) -> list[Segment]:
    """A text in segments; each character has the shade of the best match at its place.
    ``values`` are those of the matches at ``spans``, which may overlap; a longer one is
    cut.
    """
    steps = [0] * len(text)
    for (start, end), value in zip(spans, values, strict=False):
        step = bisect_right(bounds, value)
        steps[start:end] = [max(step, old) for old in steps[start:end]]
    pairs = [pair for pair in zip(_visible(text), steps, strict=True) if pair[0]]
    groups = groupby(pairs, key=lambda pair: pair[1])
    return [
        Segment("".join(character for character, _ in group), step)
        for step, group in groups
    ]


def shade_words(
    query: str, posts: Sequence[tuple[str, str]], by_meaning: bool
) -> list[tuple[list[Segment], list[Segment]]]:
    """Texts and URLs of posts, shaded by their words' nearness to the query's. Stop
    words match nothing, unless the query has no others; words match inside URLs, too.
    ``by_meaning``: whether words that are near in the general space are shaded.
    """
    every = dict.fromkeys(words(query))
    asked = [word for word in every if word not in STOP_WORDS] or [*every]
    traced = [find_words(text) for text, _ in posts]
    steps = _word_steps(
        asked, {word.text for of_post in traced for word in of_post}, by_meaning
    )
    bounds, found = (1, 2, 3, 4), []
    for (text, url), of_post in zip(posts, traced, strict=True):
        places = [word.place for word in of_post]
        shaded = shade(text, places, [steps[word.text] for word in of_post], bounds)
        letters, spans = find_url(url)
        first = [(word, at) for word in asked if (at := letters.find(word)) >= 0]
        inside = [(spans[at][0], spans[at + len(word) - 1][1]) for word, at in first]
        found.append((shaded, shade(url, inside, [4] * len(inside), bounds)))
    return found


def _word_steps(
    asked: Sequence[str], of_posts: set[str], by_meaning: bool
) -> dict[str, int]:
    """Word of a post -> shade by its nearest word of the query, 0 for none."""
    from tweetrerank.rerankers.text.spaces import general
    from tweetrerank.rerankers.text.stems import stem

    stems = set(map(stem, asked))
    steps = {
        word: 4 if word in asked else 3 * (stem(word) in stems) for word in of_posts
    }
    others = [
        word for word, step in steps.items() if not step and word not in STOP_WORDS
    ]
    if by_meaning and asked and others:
        (query, query_lengths, _), (vectors, lengths, _) = map(
            general().take, (asked, others)
        )
        lengths = np.maximum(np.outer(query_lengths, lengths), 1e-6)
        nearest = (query @ vectors.T / lengths).max(axis=0)
        shades = np.searchsorted((RELATED, CLOSE), nearest, "right").tolist()
        steps |= dict(zip(others, shades, strict=True))
    return steps
