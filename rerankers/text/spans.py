"""Words and letters of a text as models read them, traced to the original characters."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self
from unicodedata import normalize
from urllib.parse import unquote

import regex

from tweetrerank.rerankers.text import words as reading
from tweetrerank.rerankers.text.words import composition

Span = tuple[int, int]  # Start and end of characters in a text

_AROUND = re.compile(r"^\s+|\s+$")
_PERCENT = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_REST = re.compile(r"/*(?:[?#].*)?\Z", re.DOTALL)  # Of a URL: query and fragment
_BLANKS = re.compile(f"[_{reading.END}]")
_APOSTROPHE = re.compile("’")
_CHARACTER = regex.compile(r"\X")  # With its marks
_PART = regex.compile(r"[\w\p{M}]+|[^\w\p{M}]+")  # A word, or what is between words


class Word(NamedTuple):
    """A word as models read it."""

    text: str  # Lower case, without accents; see :func:`tweetrerank.rerankers.text.words.words`
    spans: tuple[
        Span, ...
    ]  # Original characters that each of its characters comes from

    @property
    def place(self) -> Span:
        """From its first character to its last."""
        return self.spans[0][0], self.spans[-1][1]


def trigram_spans(spans: Sequence[Span], letters: str) -> list[Span]:
    """Span at the centre of each trigram of ``#letters#``, given the span of each letter.

    A letter has as many trigrams as bytes in UTF-8.
    """
    return _repeated(
        spans, (len(letter.encode(errors="replace")) for letter in letters)
    )


def _repeated(spans: Iterable[Span], times: Iterable[int]) -> list[Span]:
    return [
        span for span, count in zip(spans, times, strict=True) for _ in range(count)
    ]


def find_words(text: str) -> list[Word]:
    """The words of :func:`tweetrerank.rerankers.text.words.words`, with their original characters."""
    traced = _Traced.of(text[: reading.MAX_CHARACTERS])
    traced = traced.sub(reading.BRACKETS, " ").sub(reading.MENTION_OR_LINK, " ").lower()
    if not traced.text.isascii():
        traced = traced.fold()
    traced = (
        traced.sub(_BLANKS, " ").sub(reading.CLITIC, " ").sub(reading.NEGATION, " n")
    )
    traced = traced.sub(reading.ELONGATION, r"\1\1").sub(_APOSTROPHE, "'")
    return [
        Word(token.group()[start:end], tuple(traced.spans[token.start() :][start:end]))
        for token in reading.TOKEN.finditer(traced.text)
        for start, end in reading.places_in(token.group())
    ]


def find_url(url: str) -> tuple[str, list[Span]]:
    """The letters of :func:`tweetrerank.rerankers.text.words.url_text`, and their spans; none without a URL."""
    traced = _Traced.of(url[: reading.MAX_CHARACTERS]).sub(_AROUND, "")
    traced = traced.sub(_PERCENT, lambda match: unquote(match.group())).lower()
    return traced.sub(reading.SCHEME, "").sub(_REST, "")


class _Traced(NamedTuple):
    """A text during normalisation, with the original span of each of its characters."""

    text: str
    spans: list[Span]

    @classmethod
    def of(cls, text: str) -> Self:
        return cls(text, [(place, place + 1) for place in range(len(text))])

    def sub(
        self,
        pattern: re.Pattern[str],
        replacement: str | Callable[[re.Match[str]], str],
    ) -> "_Traced":
        """``pattern.sub(replacement, text)``."""
        parts, spans, done = [], [], 0
        for match in pattern.finditer(self.text):
            start, end = match.span()
            new = (
                match.expand(replacement)
                if isinstance(replacement, str)
                else replacement(match)
            )
            parts += [self.text[done:start], new]
            spans += self.spans[done:start] + self._replaced(start, end, len(new))
            done = end
        return _Traced("".join([*parts, self.text[done:]]), spans + self.spans[done:])

    def _replaced(self, start: int, end: int, length: int) -> list[Span]:
        """Spans of ``length`` characters that replace those from ``start`` to ``end``."""
        if not (old := self.spans[start:end]):  # An insertion has an empty span.
            place = self.spans[start][0] if length else 0
            return [(place, place)] * length
        # One old character each; the last new one gets the remaining ones, at least the last.
        new = [old[min(n, len(old) - 1)] for n in range(length)]
        return [*new[:-1], (new[-1][0], old[-1][1])] if new else []

    def lower(self) -> "_Traced":
        # Neighbours may change a letter's lower case, but not its length.
        spans = _repeated(self.spans, (len(letter.lower()) for letter in self.text))
        return _Traced(self.text.lower(), spans)

    def fold(self) -> "_Traced":
        """Plain letters without style and accents; a letter's span includes its accents."""
        spans = _repeated(
            self.spans, (len(normalize("NFKD", letter)) for letter in self.text)
        )
        traced = _Traced(normalize("NFKD", self.text), spans).lower()
        for pattern, replacement in reading.SPELLINGS:
            traced = traced.sub(pattern, replacement)
        text, kept = "", list[Span]()
        for word in _PART.finditer(traced.text):
            composed = composition(word.group())
            for match in _CHARACTER.finditer(traced.text, *word.span()):
                # Marks are composed with the letter before them, or dropped.
                letters, of_letters = (
                    composed(match.group()),
                    traced.spans[slice(*match.span())],
                )
                text += letters
                if letters:
                    ends = [end for _, end in of_letters]
                    last = (
                        of_letters[min(len(letters), len(of_letters)) - 1][0],
                        max(ends),
                    )
                    kept += [*of_letters[: len(letters) - 1], last]
        return _Traced(text, kept)
