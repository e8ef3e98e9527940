"""Reasons for the scores of posts: words in shades, and rows of numbers.

Models of all kinds fill in the same record, which pages and terminals show. A row of
trees is a family of features with its contribution to the score. A row of MP-HCNN is a
word of the query with its best matches.
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
import numpy.typing as npt

from tweetrerank.rerankers.text.spans import Span, find_url, find_words
from tweetrerank.rerankers.text.words import STOP_WORDS, words

WORD_STEPS = ("related", "close in meaning", "same stem", "same word")
"""Names of the shades 1 to 4 of words."""

SAME_STEM = 3
SAME_WORD = 4

# Least cosines in the general space, where unrelated words are below 0.1
RELATED = 0.3  # race, marathon
CLOSE = 0.5  # prize, winner

_ENTITIES = re.compile("&(?:amp|lt|gt|quot|#39);")

_JOINERS = "\u200c\u200d"
"""Characters that Python calls unprintable, but that emoji and Persian words need."""


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
    """A word of the query with its weight (IDF), or a family of features."""

    label: str
    weight: float | None
    cells: tuple[Cell, ...]  # A number for each column


class Column(NamedTuple):
    """Heading of a column, and of the group of columns around it."""

    heading: str
    group: str = ""


class Feature(NamedTuple):
    """Value of a feature (NaN if unknown), and its contribution to the score."""

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
    """Text and URL in the shades of other matches, with a title each."""
    features: list[Feature] = field(default_factory=list)
    """Features with the largest contributions, from the highest to the lowest."""
    numbers: str = ""
    """Numeric fields of the post, with their places: ``likes 37, 4th of 100``."""


@dataclass(frozen=True)
class Explanation:
    """Reasons for the scores of posts of one query."""

    kind: str  # ``matches`` or ``contributions``
    measure: str  # Meaning of the numbers in rows
    steps: Sequence[str]  # Names of the shades 1 to 4
    columns: Sequence[Column]
    posts: Sequence[Reasons]
    base: float = 0.0
    """Mean score of the list, which contributions are added to."""
    importances: Mapping[str, float] = field(default_factory=dict)
    """Label of a row -> its share in all of the model's scores, the largest first."""

    @property
    def extent(self) -> tuple[float, float]:
        """The least and the greatest number in a row, with 0 in between."""
        numbers = [0.0]
        for post in self.posts:
            for row in post.rows:
                numbers += [cell.score or 0.0 for cell in row.cells]
        return min(numbers), max(numbers)

    @property
    def groups(self) -> list[tuple[str, list[int]]]:
        """Heading of adjacent columns and their indices."""
        indices = range(len(self.columns))
        groups = groupby(indices, key=lambda index: self.columns[index].group)
        return [(heading, list(members)) for heading, members in groups]

    def to_dict(self) -> dict[str, Any]:
        """The explanation without its posts, for JSON."""
        return {
            "kind": self.kind,
            "measure": self.measure,
            "steps": self.steps,
            "base": self.base,
            "extent": self.extent,
            "groups": self.groups,
            "columns": [column.heading for column in self.columns],
        }


def as_dict(reasons: Reasons) -> dict[str, Any]:
    """Reasons for JSON: shaded texts are lists of [characters, shade].

    Unknown values are null.
    """
    rows = []
    for row in reasons.rows:
        cells = [cell._asdict() for cell in row.cells]
        rows.append(row._asdict() | {"cells": cells})
    further = [
        {"title": title, "segments": segments} for title, segments in reasons.further
    ]
    features = []
    for feature in reasons.features:
        value = None if isnan(feature.value) else feature.value
        features.append(feature._asdict() | {"value": value})
    return vars(reasons) | {"rows": rows, "further": further, "features": features}


def visible(text: str) -> str:
    """The text as it can be shown.

    Line breaks become spaces. Other control characters become �, so that there are no
    terminal escapes or changes of direction. Tweets' entities (``&amp;``) become the
    characters they stand for.
    """
    return "".join(_visible(text))


def _visible(text: str) -> list[str]:
    """Visible text of each character; "" for the later characters of an entity."""
    characters = [_visible_character(character) for character in text]
    for entity in _ENTITIES.finditer(text):
        start, end = entity.span()
        blanks = [""] * (end - start - 1)
        characters[start:end] = [unescape(entity[0]), *blanks]
    return characters


def _visible_character(character: str) -> str:
    if character.isspace():
        return " "
    if character.isprintable() or character in _JOINERS:
        return character
    return "�"


def placed(name: str, value: float, values: Iterable[float]) -> str:
    """A number and its place among ``values``: ``likes 37, 4th of 100``.

    The highest is first; unknown values (NaN) do not count.
    """
    if isnan(value):
        return f"{name} unknown"
    numbers = [number for number in values if not isnan(number)]
    place = 1 + sum(number > value for number in numbers)
    return f"{name} {value:.15g}, {_ordinal(place)} of {len(numbers):,}"


def _ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``11th``, ``1,001st``."""
    ending = "th"
    if number // 10 % 10 != 1:
        ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def shade(
    text: str, spans: Iterable[Span], values: Iterable[float], bounds: Sequence[float]
) -> list[Segment]:
    """Cut a text into segments; a character has the shade of the best match there.

    ``values`` are those of the matches at ``spans``, which may overlap. ``bounds`` are
    the least values of the shades. Further values without a span are ignored.
    """
    steps = [0] * len(text)
    for (start, end), value in zip(spans, values, strict=False):
        step = bisect_right(bounds, value)
        steps[start:end] = [max(step, other) for other in steps[start:end]]
    shaded = []
    for characters, step in zip(_visible(text), steps, strict=True):
        if characters:
            shaded.append(Segment(characters, step))
    segments = []
    for step, group in groupby(shaded, key=lambda segment: segment.step):
        segments.append(Segment("".join(part.text for part in group), step))
    return segments


def shade_words(
    query: str, posts: Sequence[tuple[str, str]], by_meaning: bool
) -> list[tuple[list[Segment], list[Segment]]]:
    """Shade texts and URLs of posts by the nearness of their words to the query's.

    Stop words match nothing, unless the query has no others. Words match inside URLs,
    too. ``by_meaning``: whether words that are near in the general space are shaded.
    """
    distinct = dict.fromkeys(words(query))
    query_words = [word for word in distinct if word not in STOP_WORDS]
    if not query_words:
        query_words = list(distinct)
    words_of_posts = [find_words(text) for text, _ in posts]
    vocabulary = {word.text for post_words in words_of_posts for word in post_words}
    steps = _word_steps(query_words, vocabulary, by_meaning)
    bounds = (1, 2, 3, 4)
    shaded = []
    for (text, url), post_words in zip(posts, words_of_posts, strict=True):
        spans = [word.place for word in post_words]
        values = [steps[word.text] for word in post_words]
        inside = _spans_in_url(url, query_words)
        url_segments = shade(url, inside, [SAME_WORD] * len(inside), bounds)
        shaded.append((shade(text, spans, values, bounds), url_segments))
    return shaded


def _spans_in_url(url: str, query_words: Sequence[str]) -> list[Span]:
    """Spans of the first occurrence of each query word in a URL."""
    letters, spans = find_url(url)
    inside = []
    for word in query_words:
        start = letters.find(word)
        if start >= 0:
            last = start + len(word) - 1
            inside.append((spans[start][0], spans[last][1]))
    return inside


def _word_steps(
    query_words: Sequence[str], vocabulary: set[str], by_meaning: bool
) -> dict[str, int]:
    """Word of a post -> shade by its nearest word of the query, 0 for none."""
    from tweetrerank.rerankers.text.stems import stem

    stems = {stem(word) for word in query_words}
    steps = {}
    for word in vocabulary:
        steps[word] = 0
        if word in query_words:
            steps[word] = SAME_WORD
        elif stem(word) in stems:
            steps[word] = SAME_STEM
    unmatched = [
        word for word, step in steps.items() if not step and word not in STOP_WORDS
    ]
    if by_meaning and query_words and unmatched:
        cosines = _nearest_cosines(query_words, unmatched)
        shades = np.searchsorted((RELATED, CLOSE), cosines, "right").tolist()
        steps |= dict(zip(unmatched, shades, strict=True))
    return steps


def _nearest_cosines(
    query_words: Sequence[str], others: Sequence[str]
) -> npt.NDArray[np.floating]:
    """Cosine of each other word and its nearest query word, in the general space."""
    from tweetrerank.rerankers.text.spaces import general

    query, query_lengths, _ = general().take(query_words)  # [Q, E], [Q]
    vectors, lengths, _ = general().take(others)  # [W, E], [W]
    products = np.maximum(np.outer(query_lengths, lengths), 1e-6)
    return (query @ vectors.T / products).max(axis=0)
