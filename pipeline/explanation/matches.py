"""Matches of MP-HCNN's similarity layer between a query and posts, as in table 6 of the paper.

The matches come from :mod:`~rerankers.networks.models._mp_hcnn_matches`. Paper: Rao et al. 2019.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, cast

from pipeline.explanation.rank_changes import visible

if TYPE_CHECKING:
    from indexes.posts import Post
    from pipeline.explanation.rank_changes import RerankedTopic
    from rerankers.networks.models._mp_hcnn_matches import PairMatches
    from rerankers.networks.network import Network
    from rerankers.reranker import Model
    from rerankers.text.spans import Span

STEPS = ("weak", "fair", "good", "exact or nearly so")  # Names of the shades 1 to 4; 0 is none

WORD_STEPS = ("related", "close in meaning", "same stem", "same word")
"""The shades 1 to 4 of :func:`shade_words`."""

RELATED, CLOSE = 0.3, 0.5
"""Least cosines of related words (race, marathon) and of close ones (prize, winner) in the general
space, where others are below 0.1."""

_GROUPS = {
    "words": "words of the post",
    "post_trigrams": "letters of the post",
    "url_trigrams": "letters of the URL",
}


class Segment(NamedTuple):
    """Consecutive characters of one shade, 0 (none) to 4."""

    text: str
    step: int


class Cell(NamedTuple):
    """Best match of a query word or phrase: score, shade, and the post's matching words."""

    score: float | None
    step: int
    where: str = ""


class Row(NamedTuple):
    """A query word, its weight (IDF), and its best match by column."""

    word: str
    weight: float
    cells: tuple[Cell, ...]


class Column(NamedTuple):
    """A perspective of the model (words, letters of the post, letters of the URL) at one depth."""

    perspective: str
    level: int
    group: str
    heading: str


class Shading(NamedTuple):
    """A text or URL, shaded by the matches of one column."""

    title: str
    segments: list[Segment]


class WordShades(NamedTuple):
    """A post's text and URL, shaded by its words' nearness to the query's."""

    text: list[Segment]
    url: list[Segment]


class PostMatches(NamedTuple):
    """Matches of one post."""

    text: list[Segment]  # The original text, shaded by the matches of single words
    url: list[Segment]  # The URL, shaded by the matches of letters; empty without a URL
    rows: list[Row]  # One per query word
    further: list[Shading]  # Text and URL shaded by the other columns


@dataclass(frozen=True)
class MatchExplanation:
    """Matches of a topic's chosen posts."""

    ranking: RerankedTopic
    facts: Mapping[str, str]  # About the ranking as a whole
    measure: str  # Name of the similarity
    bounds: tuple[float, ...]  # Least similarity of the shades 1 to 4
    columns: tuple[Column, ...]  # Of the posts' tables
    posts: Mapping[str, PostMatches]

    @property
    def groups(self) -> list[tuple[str, list[int]]]:
        """Heading of adjacent columns and their indices."""
        indices = range(len(self.columns))
        groups = groupby(indices, key=lambda index: self.columns[index].group)
        return [(heading, list(members)) for heading, members in groups]


def explain(
    ranking: RerankedTopic, checkpoint: Model, first_stage: str, mixing: str
) -> MatchExplanation:
    """Matches of the chosen posts, by an MP-HCNN.

    ``first_stage`` (origin of the candidates) and ``mixing`` (λ) are facts, in words.
    """
    from rerankers.networks.models import mp_hcnn
    from rerankers.networks.models._mp_hcnn_matches import (
        find_matches,
        measure_name,
        strength_bounds,
    )

    network = cast("Network", checkpoint)
    model = cast(mp_hcnn.Model, network.model)
    posts = ranking.posts
    pairs = find_matches(
        model,
        network.encoder,
        ranking.topic.text,
        [post.text for post in posts],
        [post.url for post in posts],
    )
    bounds = strength_bounds(model, pairs)
    weights = "/".join(checkpoint.directory.resolve().parts[-2:])
    return MatchExplanation(
        ranking,
        {
            "Candidates": f"{len(ranking.changes)}, by {first_stage}",
            "Model": f"{checkpoint.name}, weights {weights}",
            "Mixing": mixing,
        },
        measure_name(model),
        bounds,
        columns_of(pairs[0]),
        {
            post.doc_id: explain_post(post, found, bounds)
            for post, found in zip(posts, pairs, strict=True)
        },
    )


def columns_of(found: PairMatches) -> tuple[Column, ...]:
    """Every perspective at every depth."""
    columns = []
    for name, matches in found.matches.items():
        for level in range(len(matches.levels)):
            length = matches.phrase_length(level)
            heading = f"{length} words" if name == "words" else f"{length + 2} letters"
            heading = "word" if heading == "1 words" else heading
            columns.append(Column(name, level, _GROUPS[name], heading))
    return tuple(columns)


def explain_post(post: Post, found: PairMatches, bounds: Sequence[float]) -> PostMatches:
    """Matches of one post; ``bounds`` are the least similarities of the shades 1 to 4."""
    columns = columns_of(found)
    shaded = {
        column: shade(*_spans(post, found, column), bounds)
        for column in columns
        if column.perspective != "url_trigrams" or found.url
    }
    depth = min(1, max(column.level for column in columns))
    # Single words say most about a text; pieces of several letters about a URL, one long word.
    text_column = ("words", 0) if "words" in found.matches else ("post_trigrams", depth)
    text, url = shade(post.text, (), (), bounds), shade(post.url.strip(), (), (), bounds)
    further = []
    for column, segments in shaded.items():
        if column[:2] == text_column:
            text = segments
        elif column[:2] == ("url_trigrams", depth):
            url = segments
        else:
            further.append(Shading(f"{column.group}, {column.heading}", segments))
    cells = zip(*(_cells(found, column, bounds) for column in columns), strict=True)
    rows = [
        Row(word, float(weight), row)
        for word, weight, row in zip(found.query_words, found.weights, cells, strict=True)
    ]
    return PostMatches(text, url, rows, further)


def shade(
    text: str, spans: Iterable[Span], values: Iterable[float], bounds: Sequence[float]
) -> list[Segment]:
    """A text in segments; each character has the shade of the best match at its place.

    ``values`` are the similarities of the matches at ``spans``, which may overlap; where one has
    more elements than the other, the rest is ignored.
    """
    steps = [0] * len(text)
    for (start, end), value in zip(spans, values, strict=False):
        step = bisect_right(bounds, value)
        steps[start:end] = [max(step, old) for old in steps[start:end]]
    pairs = zip(visible(text), steps, strict=True)
    return [
        Segment("".join(character for character, _ in group), step)
        for step, group in groupby(pairs, key=lambda pair: pair[1])
    ]


def shade_words(query: str, posts: Sequence[Post], by_meaning: bool) -> list[WordShades]:
    """Texts and URLs of posts, shaded by their words' nearness to the query's.

    Stop words match nothing, unless the query has no others; words match inside URLs, too.
    ``by_meaning``: whether words that are near in the general space are shaded.
    """
    from rerankers.text.spans import find_url, find_words
    from rerankers.text.words import STOP_WORDS, words

    every = dict.fromkeys(words(query))
    asked = [word for word in every if word not in STOP_WORDS] or [*every]
    traced = [find_words(post.text) for post in posts]
    steps = _word_steps(asked, {word.text for of_post in traced for word in of_post}, by_meaning)
    bounds, found = (1, 2, 3, 4), []
    for post, of_post in zip(posts, traced, strict=True):
        places = [word.place for word in of_post]
        text = shade(post.text, places, [steps[word.text] for word in of_post], bounds)
        letters, spans = find_url(post.url)
        inside = [
            (spans[start][0], spans[start + len(word) - 1][1])
            for word in asked
            if (start := letters.find(word)) >= 0
        ]
        found.append(WordShades(text, shade(post.url, inside, [4] * len(inside), bounds)))
    return found


def _word_steps(asked: Sequence[str], of_posts: set[str], by_meaning: bool) -> dict[str, int]:
    """Word of a post -> shade by its nearest word of the query, 0 for none."""
    import numpy as np

    from rerankers.text.spaces import general
    from rerankers.text.stems import stem
    from rerankers.text.words import STOP_WORDS

    stems = set(map(stem, asked))
    steps = {word: 4 if word in asked else 3 * (stem(word) in stems) for word in of_posts}
    others = [word for word, step in steps.items() if not step and word not in STOP_WORDS]
    if by_meaning and asked and others:
        (query, query_lengths), (vectors, lengths) = general().take(asked), general().take(others)
        lengths = np.maximum(np.outer(query_lengths, lengths), 1e-6)
        nearest = (query @ vectors.T / lengths).max(axis=0)
        shades = np.searchsorted((RELATED, CLOSE), nearest, "right").tolist()
        steps |= dict(zip(others, shades, strict=True))
    return steps


def _spans(
    post: Post, found: PairMatches, column: Column
) -> tuple[str, Sequence[Span], Iterable[float]]:
    """The text or URL that a column is about, places in it, and a similarity for each place."""
    from rerankers.text.spans import trigram_spans

    values = found.matches[column.perspective].post_terms(column.level)
    if column.perspective == "words":
        return post.text, [word.place for word in found.post_words], values
    if column.perspective == "post_trigrams":
        spans = [s for word in found.post_words for s in trigram_spans(word.spans, word.text)]
        return post.text, spans, values
    return post.url, found.url, values


def _cells(found: PairMatches, column: Column, bounds: Sequence[float]) -> list[Cell]:
    """A column's cell for each query word."""
    from rerankers.networks.models._mp_hcnn_matches import mean_by_word

    matches = found.matches[column.perspective]
    best = matches.best(column.level)
    if column.perspective == "words":
        length = matches.phrase_length(column.level)
        phrases = [
            "" if start is None else " ".join(w.text for w in found.post_words[start:][:length])
            for start in matches.best_positions(column.level)
        ]
        return [
            Cell(float(score), bisect_right(bounds, score), phrase)
            for score, phrase in zip(best, phrases, strict=True)
        ]
    if column.perspective == "url_trigrams" and not found.url:
        return [Cell(None, 0)] * len(found.query_words)
    return [
        Cell(score, 0 if score is None else bisect_right(bounds, score))
        for score in mean_by_word(best, found.query_words)
    ]
