"""What MP-HCNN saw: the matches of its similarity layer, and the characters that they are about.

Rao et al. (AAAI 2019) print such matches as shaded text (Table 6). Here :func:`compare` gives them
for every perspective and depth, and :func:`find_words` and :func:`find_url` say which characters
of the text as it was written each word and each letter that the model reads comes from.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from unicodedata import combining, normalize
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerankers.base import WORDS, Pairs
from rerankers.engine.tokenized import Tokenized
from rerankers.models.mp_hcnn import Model, Perspective, PhraseVectors
from rerankers.text import words as reading
from rerankers.text.inputs import TextEncoder

Values = npt.NDArray[np.float32]
Span = tuple[int, int]
"""Where characters of a text begin and end."""

_PERCENT = re.compile(r"(?:%[0-9A-Fa-f]{2})+")


class Word(NamedTuple):
    """A word as the model reads it.

    Attributes:
        text: lower case, without accents; see :func:`rerankers.text.words.words`.
        spans: for each of its characters, the characters of the original text that it is from.
    """

    text: str
    spans: tuple[Span, ...]

    @property
    def place(self) -> Span:
        """From its first character to its last."""
        return self.spans[0][0], self.spans[-1][1]


@dataclass(frozen=True)
class Matches:
    """One query against one post or its URL.

    Attributes:
        levels: [Lq, Ld] similarities for each depth, from terms to phrases, normalised as in the
            model's similarity layer.
        width: terms under a filter.
    """

    levels: tuple[Values, ...]
    width: int

    def reach(self, level: int) -> int:
        """Terms in a phrase of this depth."""
        return 1 + level * (self.width - 1)

    def best(self, level: int) -> Values:
        """How well the phrase from each query position on is matched: [Lq], 0 by nothing."""
        similarity = self.levels[level]
        if not similarity.size:
            return np.zeros(len(similarity), np.float32)
        best: Values = similarity.max(axis=1)
        return best

    def where(self, level: int) -> list[int | None]:
        """The position of the post that matches each query position best, the first of equals."""
        similarity = self.levels[level]
        if not similarity.size:
            return [None] * len(similarity)
        return [int(place) for place in similarity.argmax(axis=1)]

    def shades(self, level: int) -> Values:
        """How well each of the post's phrases is matched by its best query phrase: [Ld]."""
        similarity = self.levels[level]
        if not similarity.size:
            return np.zeros(similarity.shape[1], np.float32)
        shades: Values = similarity.max(axis=0)
        return shades

    def term_shades(self, level: int) -> Values:
        """The same for each of the post's terms, by the best phrase that it is in: [Ld]."""
        shades, reach = self.shades(level), self.reach(level)
        return np.array(
            [shades[max(0, n - reach + 1) : n + 1].max() for n in range(len(shades))], np.float32
        )


@dataclass(frozen=True)
class Evidence:
    """What the model compared of a query and a post.

    Attributes:
        query_words: those that are read.
        weights: the importance (IDF) of each of them.
        post_words: those that are read.
        url: what of the URL each of its trigrams is centred on; empty if there is no URL.
        matches: perspective (``words``, ``post_trigrams``, ``url_trigrams``) -> matches.
    """

    query_words: list[str]
    weights: Values
    post_words: list[Word]
    url: tuple[Span, ...]
    matches: dict[str, Matches]


def compare(
    model: Model, encoder: TextEncoder, query: str, texts: Sequence[str], urls: Sequence[str]
) -> list[Evidence]:
    """The evidence for each post.

    Args:
        model: a trained model.
        encoder: reads texts as the model was trained.
        query: the topic's text.
        texts: of the posts.
        urls: expanded URL of each post, or "".
    """
    rows = np.arange(len(texts))
    pairs = Pairs([query], texts, urls, np.zeros_like(rows), rows)
    with torch.inference_mode():
        inputs = Tokenized.of(pairs, encoder, model).batch(rows, model.device_of())
        queries, posts = model.encode_queries(inputs[0]), model.encode_posts(inputs[1])
        similarities = {
            name: _similarities(model, queries, posts, places)
            for name, places in model.perspectives.items()
        }
    tokens = reading.words(query)[: model.config.query_words]
    found = []
    for row, (text, url) in enumerate(zip(texts, urls, strict=True)):
        letters, spans = find_url(url)
        matches = {
            name: Matches(
                tuple(_crop(level, queries, posts, places, row) for level in similarities[name]),
                places.width,
            )
            for name, places in model.perspectives.items()
        }
        found.append(Evidence(
            tokens, encoder.idf.weights(tokens), find_words(text)[: model.config.post_words],
            tuple(trigram_spans(spans, letters)), matches,
        ))  # fmt: skip
    return found


COSINE_BOUNDS = (0.7, 0.8, 0.9, 0.99)
"""Unrelated phrases have cosines up to about 0.7; the same ones have 1."""

SOFTMAX_BOUNDS = (0.1, 0.25, 0.5, 0.75)

SHARES_OF_GREATEST = (0.25, 0.5, 0.75, 0.95)


def bounds_of(model: Model, evidence: Sequence[Evidence]) -> tuple[float, ...]:
    """From where on a match is weak, fair, good and as good as exact, by the model's measure.

    What has no upper limit (dot products without softmax) is measured by the greatest match.
    """
    if model.config.normalization != "none":
        return SOFTMAX_BOUNDS
    if model.config.similarity == "cosine":
        return COSINE_BOUNDS
    levels = [
        level for found in evidence for match in found.matches.values() for level in match.levels
    ]
    greatest = max((float(level.max()) for level in levels if level.size), default=1.0)
    return tuple(share * max(greatest, 1e-6) for share in SHARES_OF_GREATEST)


def measure_of(model: Model) -> str:
    """What a match is, in words."""
    if model.config.normalization != "none":
        return f"{model.config.similarity} similarity after a softmax"
    return {"cosine": "cosine similarity", "dot": "dot product"}[model.config.similarity]


def _similarities(
    model: Model, queries: PhraseVectors, posts: PhraseVectors, perspective: Perspective
) -> list[Tensor]:
    """Similarities before pooling, at each depth: [P, Lq, Ld]."""
    one_query = torch.zeros(
        len(posts.terms[WORDS].ids), dtype=torch.int64, device=model.device_of()
    )
    temperature, length = model.config.temperature, perspective.post_length
    return [
        similarities.softmax(temperature, length)
        if model.config.normalization == "post"
        else similarities.values
        for similarities in model.similarities(queries, posts, one_query, perspective)
    ]


def _crop(
    level: Tensor, queries: PhraseVectors, posts: PhraseVectors, places: Perspective, row: int
) -> Values:
    """One post's similarities [Lq, Ld] without padding."""
    query_length = int(queries.terms[places.query_input].ids[0].ne(0).sum())
    post_length = int(posts.terms[places.post_input].ids[row].ne(0).sum())
    return level[row, :query_length, :post_length].float().cpu().numpy()


def mean_by_word(values: Values, words: Sequence[str]) -> list[float | None]:
    """The mean over each word's trigrams of ``values`` [L], one for each trigram of all words.

    None stands for a word of which no trigram is read.
    """
    means: list[float | None] = []
    start = 0
    for word in words:
        end = start + len(reading.character_trigrams([word]).values)
        part = values[start:end]
        means.append(float(part.mean()) if len(part) else None)
        start = end
    return means


def trigram_spans(spans: Sequence[Span], letters: str) -> list[Span]:
    """What each trigram of ``#letters#`` is centred on, given what each letter is from.

    A letter has as many trigrams as UTF-8 has bytes for it.
    """
    return [
        span
        for span, letter in zip(spans, letters, strict=True)
        for _ in letter.encode(errors="replace")
    ]


def find_words(text: str) -> list[Word]:
    """The words of a text, as :func:`rerankers.text.words.words` gives them, and where they are from."""
    traced = _Traced.from_text(text[: reading.MAX_CHARACTERS])
    traced = traced.sub(reading.BRACKETS, " ").sub(reading.MENTION_OR_LINK, " ").lower()
    if not traced.text.isascii():
        traced = traced.fold()
    traced = traced.replace("_", " ").replace(reading.END, " ")
    traced = traced.sub(reading.CLITIC, " ").sub(reading.NEGATION, " n")
    traced = traced.sub(reading.ELONGATION, r"\1\1").replace("’", "'")
    return [
        Word(traced.text[start:end], tuple(traced.spans[start:end]))
        for start, end in (token.span() for token in reading.TOKEN.finditer(traced.text))
    ]


def find_url(url: str) -> tuple[str, list[Span]]:
    """The letters of a URL that are read (see :func:`rerankers.text.words.url_text`), and their places.

    Where there is no URL there is no letter.
    """
    traced = _Traced.from_text(url[: reading.MAX_CHARACTERS])
    start = len(traced.text) - len(traced.text.lstrip())
    traced = traced.part(start, max(start, len(traced.text.rstrip())))
    traced = traced.sub(_PERCENT, lambda match: unquote(match.group())).lower()
    traced = traced.sub(reading.SCHEME, "")
    traced = traced.part(0, len(re.split(r"[?#]", traced.text, maxsplit=1)[0].rstrip("/")))
    return traced.text, traced.spans


@dataclass(frozen=True)
class _Traced:
    """A text on its way through changes, and what of the original each character is from."""

    text: str
    spans: list[Span]

    @classmethod
    def from_text(cls, text: str) -> "_Traced":
        return cls(text, [(place, place + 1) for place in range(len(text))])

    def part(self, start: int, end: int) -> "_Traced":
        return _Traced(self.text[start:end], self.spans[start:end])

    def replace(self, letter: str, other: str) -> "_Traced":
        """Write one letter as another."""
        return _Traced(self.text.replace(letter, other), self.spans)

    def sub(
        self, pattern: re.Pattern[str], replacement: str | Callable[[re.Match[str]], str]
    ) -> "_Traced":
        """``pattern.sub(replacement, text)``."""
        parts, spans, done = [], [], 0
        for match in pattern.finditer(self.text):
            start, end = match.span()
            new = match.expand(replacement) if isinstance(replacement, str) else replacement(match)
            parts += [self.text[done:start], new]
            spans += self.spans[done:start] + self._replaced(start, end, len(new))
            done = end
        return _Traced("".join([*parts, self.text[done:]]), spans + self.spans[done:])

    def _replaced(self, start: int, end: int, length: int) -> list[Span]:
        """What ``length`` characters in the place of those from ``start`` to ``end`` are from."""
        old = self.spans[start:end]
        if not old:  # An insertion is from nothing.
            place = self.spans[start][0]
            return [(place, place)] * length
        # One for one, and all that is left over for the last; at least the last of the old ones.
        new = [old[min(n, len(old) - 1)] for n in range(length)]
        return [*new[:-1], (new[-1][0], old[-1][1])] if new else []

    def lower(self) -> "_Traced":
        # Which lower case a letter has may depend on its neighbours, how long it is may not.
        spans = [
            span for span, letter in zip(self.spans, self.text, strict=True) for _ in letter.lower()
        ]
        return _Traced(self.text.lower(), spans)

    def fold(self) -> "_Traced":
        """Styled letters as plain ones, and no accents; a letter's place takes in its accents."""
        spans = [
            span
            for span, letter in zip(self.spans, self.text, strict=True)
            for _ in normalize("NFKD", letter)
        ]
        traced = _Traced(normalize("NFKD", self.text), spans).lower()
        kept: list[Span] = []
        for letter, span in zip(traced.text, traced.spans, strict=True):
            if not combining(letter):
                kept.append(span)
            elif kept:
                kept[-1] = (kept[-1][0], max(kept[-1][1], span[1]))
        return _Traced("".join(c for c in traced.text if not combining(c)), kept)
