"""Matches of MP-HCNN, for explanations: similarities of each perspective before pooling.

Rao et al. (AAAI 2019), Table 6, shades the words of a post by them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rerankers.errors import RerankerError
from rerankers.explanation import Cell, Column, Explanation, Reasons, Row, shade
from rerankers.networks.inputs import TextEncoder
from rerankers.networks.layers.pooling import CountedSimilarities, PaddedSimilarities
from rerankers.networks.models.mp_hcnn import Model, Perspective
from rerankers.networks.tokenized import Tokenized
from rerankers.pairs import Pairs
from rerankers.text import words as reading
from rerankers.text.spans import Span, Word, find_url, find_words, trigram_spans

Values = npt.NDArray[np.float32]


@dataclass(frozen=True)
class PerspectiveMatches:
    """Similarities of one query and one post in one perspective."""

    levels: tuple[Values, ...]
    """[Lq, Ld] similarities at each depth, after the softmax if the model has one."""
    width: int  # Terms under a filter

    def phrase_length(self, level: int) -> int:
        """Terms in a phrase of this depth."""
        return 1 + level * (self.width - 1)

    def best(self, level: int) -> Values:
        """Similarity of each query phrase with its best match: [Lq], 0 for an empty post."""
        return _highest(self.levels[level], axis=1)

    def best_positions(self, level: int) -> list[int | None]:
        """Post position of each query phrase's best match, the first of equals."""
        similarity = self.levels[level]
        if not similarity.size:
            return [None] * len(similarity)
        return similarity.argmax(axis=1).tolist()

    def post_phrases(self, level: int) -> Values:
        """Similarity of each post phrase with its best query phrase: [Ld]."""
        return _highest(self.levels[level], axis=0)

    def post_terms(self, level: int) -> Values:
        """Similarity of the best phrase that contains each term of the post: [Ld]."""
        phrases, length = self.post_phrases(level), self.phrase_length(level)
        return np.array(
            [phrases[max(0, n - length + 1) : n + 1].max() for n in range(len(phrases))], np.float32
        )


def _highest(similarity: Values, axis: int) -> Values:
    """Highest similarities over an axis; 0 where it is empty."""
    return similarity.max(axis=axis) if similarity.size else similarity.sum(axis=axis)


@dataclass(frozen=True)
class PairMatches:
    """Matches of a query and a post, both cut to the lengths that the model reads."""

    query_words: list[str]
    weights: Values  # IDF of each query word
    post_words: list[Word]
    url: tuple[Span, ...]
    """Span of the URL at the centre of each of its trigrams; empty without a URL."""
    matches: dict[str, PerspectiveMatches]
    """Perspective (``words``, ``post_trigrams``, ``url_trigrams``) -> its matches."""


def find_matches(
    model: Model, encoder: TextEncoder, query: str, texts: Sequence[str], urls: Sequence[str]
) -> list[PairMatches]:
    """Matches of a query with each post, given by its text and its expanded URL or ""."""
    if model.reading != reading.Reading():
        raise RerankerError(
            f"found a model that reads texts as {model.reading}; matches are shown of models of "
            f"{reading.Reading()}, for example of another configuration"
        )
    rows = np.arange(len(texts))
    pairs = Pairs([query], texts, urls, np.zeros_like(rows), rows)
    with torch.inference_mode():
        inputs = Tokenized.from_pairs(pairs, encoder, model).batch(rows, model.device_of())
        queries, posts = model.encode_queries(inputs[0]), model.encode_posts(inputs[1])
        post_lengths = {
            name: terms.ids.count_nonzero(dim=1).tolist() for name, terms in posts.terms.items()
        }
        by_perspective = {
            name: [
                _by_post(model, similarities, perspective, post_lengths[perspective.post_input])
                for similarities in model.similarities(queries, posts, inputs[2], perspective)
            ]
            for name, perspective in model.perspectives.items()
        }
    query_lengths = {name: int(terms.ids.count_nonzero()) for name, terms in queries.terms.items()}
    tokens = reading.words(query)[: model.config.query_words]
    found = []
    for row, (text, url) in enumerate(zip(texts, urls, strict=True)):
        letters, spans = find_url(url)
        matches = {}
        for name, perspective in model.perspectives.items():
            length = query_lengths[perspective.query_input]
            levels = tuple(posts[row][:length] for posts in by_perspective[name])
            matches[name] = PerspectiveMatches(levels, perspective.width)
        found.append(
            PairMatches(
                tokens,
                encoder.idf.weights(tokens, model.idf != "relative"),
                find_words(text)[: model.config.post_words],
                tuple(trigram_spans(spans, letters)),
                matches,
            )
        )
    return found


def _by_post(
    model: Model,
    similarities: PaddedSimilarities | CountedSimilarities,
    perspective: Perspective,
    lengths: Sequence[int],
) -> list[Values]:
    """Similarities [Lq, Ld] of each post of ``lengths`` [P], without its padding."""
    values, temperature = similarities.values, model.config.temperature
    if isinstance(similarities, CountedSimilarities):
        values = similarities.query_softmax(temperature)
    elif model.config.normalization == "post":
        values = similarities.softmax(temperature, perspective.post_length)
    return [
        post[:, :length].float().cpu().numpy() for post, length in zip(values, lengths, strict=True)
    ]


COSINE_BOUNDS = (0.7, 0.8, 0.9, 0.99)
"""Unrelated phrases have cosines up to about 0.7; equal ones have 1."""

SOFTMAX_BOUNDS = (0.1, 0.25, 0.5, 0.75)

SHARES_OF_GREATEST = (0.25, 0.5, 0.75, 0.95)


def strength_bounds(model: Model, found: Sequence[PairMatches]) -> tuple[float, ...]:
    """Least similarities of weak, fair, good and (nearly) exact matches.

    For similarities without an upper limit (dot products without softmax) they are shares of the
    greatest one.
    """
    if model.config.normalization != "none":
        return SOFTMAX_BOUNDS
    if model.config.similarity == "cosine":
        return COSINE_BOUNDS
    levels = [level for pair in found for match in pair.matches.values() for level in match.levels]
    greatest = max((float(level.max()) for level in levels if level.size), default=1.0)
    return tuple(share * max(greatest, 1e-6) for share in SHARES_OF_GREATEST)


def measure_name(model: Model) -> str:
    """The similarity measure, in words."""
    if model.config.normalization != "none":
        return f"{model.config.similarity} similarity after a softmax"
    return {"cosine": "cosine similarity", "dot": "dot product"}[model.config.similarity]


def mean_by_word(values: Values, words: Sequence[str]) -> list[float | None]:
    """Means of ``values`` [L], one for each trigram of all words, over each word's trigrams.

    None for a word whose trigrams are all cut off.
    """
    means: list[float | None] = []
    start = 0
    for word in words:
        end = start + len(reading.character_trigrams([word]).values)
        part = values[start:end]
        means.append(float(part.mean()) if len(part) else None)
        start = end
    return means


def explain(model: Any, encoder: TextEncoder, pairs: Pairs, rows: Sequence[int]) -> Explanation:
    """Reasons for the scores of the pairs ``rows`` of one query: its best matches by word."""
    places = pairs.post_index[rows].tolist()
    texts, urls = [pairs.texts[row] for row in places], [pairs.urls[row] for row in places]
    found = find_matches(model, encoder, pairs.queries[0], texts, urls)
    bounds = strength_bounds(model, found)
    steps = [f"{name} from {bound:.2f}" for name, bound in zip(STEPS, bounds, strict=True)]
    posts = [reasons(*post, bounds) for post in zip(texts, urls, found, strict=True)]
    levels = levels_of(found[0])
    columns = [Column(_heading(found[0], *level), _GROUPS[level[0]]) for level in levels]
    return Explanation("matches", measure_name(model), steps, columns, posts)


STEPS = ("weak", "fair", "good", "exact or nearly so")  # Names of the shades 1 to 4; 0 is none

_GROUPS = {
    "words": "words of the post",
    "post_trigrams": "letters of the post",
    "url_trigrams": "letters of the URL",
}

Level = tuple[str, int]
"""A perspective of the model at one depth, a column of the table."""


def levels_of(found: PairMatches) -> list[Level]:
    """Every perspective at every depth."""
    return [
        (name, n) for name, matches in found.matches.items() for n in range(len(matches.levels))
    ]


def _heading(found: PairMatches, name: str, level: int) -> str:
    length = found.matches[name].phrase_length(level)
    heading = f"{length} words" if name == "words" else f"{length + 2} letters"
    return "word" if heading == "1 words" else heading


def reasons(text: str, url: str, found: PairMatches, bounds: Sequence[float]) -> Reasons:
    """Matches of one post; ``bounds`` are the least similarities of the shades 1 to 4."""
    levels = levels_of(found)
    shaded = {
        level: shade(*_spans(text, url, found, *level), bounds)
        for level in levels
        if level[0] != "url_trigrams" or found.url
    }
    depth = min(1, max(n for _, n in levels))
    # Single words say most about a text; pieces of several letters about a URL, one long word.
    of_text = ("words", 0) if "words" in found.matches else ("post_trigrams", depth)
    of_url = ("url_trigrams", depth)
    cells = zip(*(_cells(found, *level, bounds) for level in levels), strict=True)
    return Reasons(
        shaded.pop(of_text, shade(text, (), (), bounds)),
        shaded.pop(of_url, shade(url.strip(), (), (), bounds)),
        [
            Row(word, float(weight), row)
            for word, weight, row in zip(found.query_words, found.weights, cells, strict=True)
        ],
        [
            (f"{_GROUPS[level[0]]}, {_heading(found, *level)}", segments)
            for level, segments in shaded.items()
        ],
    )


def _spans(
    text: str, url: str, found: PairMatches, name: str, level: int
) -> tuple[str, Sequence[Span], Iterable[float]]:
    """The text or URL that a level is about, places in it, and a similarity for each place."""
    values = found.matches[name].post_terms(level)
    if name == "words":
        return text, [word.place for word in found.post_words], values
    if name == "post_trigrams":
        spans = [s for word in found.post_words for s in trigram_spans(word.spans, word.text)]
        return text, spans, values
    return url, found.url, values


def _cells(found: PairMatches, name: str, level: int, bounds: Sequence[float]) -> list[Cell]:
    """A level's cell for each query word."""
    matches = found.matches[name]
    best = matches.best(level)
    if name == "words":
        length = matches.phrase_length(level)
        phrases = [
            "" if start is None else " ".join(w.text for w in found.post_words[start:][:length])
            for start in matches.best_positions(level)
        ]
        return [
            Cell(float(score), bisect_right(bounds, score), phrase)
            for score, phrase in zip(best, phrases, strict=True)
        ]
    if name == "url_trigrams" and not found.url:
        return [Cell(None)] * len(found.query_words)
    return [
        Cell(score, 0 if score is None else bisect_right(bounds, score))
        for score in mean_by_word(best, found.query_words)
    ]
