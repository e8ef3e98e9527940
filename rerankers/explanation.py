"""Explain the scores of posts by shaded words and by rows of numbers.

Models of all kinds fill in the same record, which web pages and terminals show. For
trees, a row is a family of features with its contribution to the score. For MP-HCNN, a
row is a word of the query with its best matches.
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

# Lowest cosines of the two shades, in the general space of word vectors. There the
# cosine of unrelated words is below 0.1. Each comment is an example.
RELATED = 0.3  # race, marathon
CLOSE = 0.5  # prize, winner

_ENTITIES = re.compile("&(?:amp|lt|gt|quot|#39);")

_JOINERS = "\u200c\u200d"
"""Characters that Python calls unprintable, but that emoji and Persian words need:
the zero-width non-joiner and joiner."""


class Segment(NamedTuple):
    """Consecutive characters of the same shade, from 0 (none) to 4."""

    text: str
    step: int


class Cell(NamedTuple):
    """A number in a row, its shade, and the words of the post that it is about."""

    score: float | None
    step: int = 0
    where: str = ""


class Row(NamedTuple):
    """A word of the query with its weight (IDF), or a family without a weight."""

    label: str
    weight: float | None
    cells: tuple[Cell, ...]  # A number for each column


class Column(NamedTuple):
    """The heading of a column, and the heading of the group that it belongs to."""

    heading: str
    group: str = ""


class Feature(NamedTuple):
    """A feature, its value (NaN if unknown), and its contribution to the score."""

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
    """Title and segments of further shaded views of the text or URL."""
    features: list[Feature] = field(default_factory=list)
    """Features with the largest contributions, from the highest to the lowest."""
    numbers: str = ""
    """Numeric fields of the post and their places in the list, for example
    ``likes 37, 4th of 100``."""


@dataclass(frozen=True)
class Explanation:
    """Reasons for the scores of posts of one query."""

    kind: str  # ``matches`` or ``contributions``
    measure: str  # Meaning of the numbers in rows
    steps: Sequence[str]  # Names of the shades 1 to 4
    columns: Sequence[Column]
    posts: Sequence[Reasons]
    base: float = 0.0
    """Mean score of the list. Adding a post's contributions to it gives the score."""
    importances: Mapping[str, float] = field(default_factory=dict)
    """Label of a row -> its importance for the model as a share of 1, largest first."""

    @property
    def extent(self) -> tuple[float, float]:
        """(lowest, highest) number of all rows. The range always includes 0."""
        numbers = [0.0]
        for post in self.posts:
            for row in post.rows:
                numbers += [cell.score or 0.0 for cell in row.cells]
        return min(numbers), max(numbers)

    @property
    def groups(self) -> list[tuple[str, list[int]]]:
        """(heading, indices of its columns) of each group of adjacent columns."""
        indices = range(len(self.columns))
        groups = groupby(indices, key=lambda index: self.columns[index].group)
        return [(heading, list(members)) for heading, members in groups]

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation without its posts, for JSON."""
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
    """Return the reasons as a dictionary for JSON.

    A shaded text is a list of [characters, shade]. An unknown value (NaN) is None,
    because JSON has no NaN.
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
    """Return the text in a form that is safe to show.

    All white space becomes spaces. Other unprintable characters become �, so that a
    post can neither send escapes to a terminal nor change the direction of writing. The
    HTML entities of tweets (``&amp;``) become the characters they stand for.
    """
    return "".join(_visible(text))


def _visible(text: str) -> list[str]:
    """Return what to show for each character of the text.

    The first character of an entity becomes what it stands for, the others "".
    """
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
    """Describe a number and its place among ``values``: ``likes 37, 4th of 100``.

    The highest number has the first place, and equal numbers have the same one. Unknown
    values (NaN) do not count. If ``value`` is NaN, the result is ``likes unknown``.
    """
    if isnan(value):
        return f"{name} unknown"
    numbers = [number for number in values if not isnan(number)]
    place = 1 + sum(number > value for number in numbers)
    return f"{name} {value:.15g}, {_ordinal(place)} of {len(numbers):,}"


def _ordinal(number: int) -> str:
    """Return the ordinal of a number: ``1st``, ``2nd``, ``11th``, ``1,001st``."""
    ending = "th"
    if number // 10 % 10 != 1:
        ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def shade(
    text: str, spans: Iterable[Span], values: Iterable[float], bounds: Sequence[float]
) -> list[Segment]:
    """Cut a text into segments of one shade. A character gets its best match's shade.

    ``spans`` are the places of the matches, and may overlap; ``values`` say how good
    each match is. ``bounds`` are the lowest values of shade 1, 2 and so on. If there
    are more values than spans, the rest are ignored.
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
    """Return (segments of the text, segments of the URL) of each (text, URL) post.

    A word is the darker, the closer it is to a word of the query. Stop words match
    nothing, unless the query has no other words. Words of the query are also found
    inside URLs. ``by_meaning`` says whether words that are only close in meaning, by
    the general word vectors, are shaded as well.
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
    """Return the span of the first occurrence in a URL of each query word it has."""
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
    """Return the shade of each word by its nearest word of the query; 0 is no match."""
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
    """Return the cosine of each other word and its nearest query word [W].

    The vectors are the general ones.
    """
    from tweetrerank.rerankers.text.spaces import general

    query, query_lengths, _ = general().take(query_words)  # [Q, E], [Q]
    vectors, lengths, _ = general().take(others)  # [W, E], [W]
    products = np.maximum(np.outer(query_lengths, lengths), 1e-6)
    return (query @ vectors.T / products).max(axis=0)
