"""Find the original characters of the words and letters that a model reads."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self
from unicodedata import normalize
from urllib.parse import unquote

import regex

from tweetrerank.rerankers.text import words as reading
from tweetrerank.rerankers.text.spellings import SPELLINGS, composition

Span = tuple[int, int]  # Start and end of characters in a text

_AROUND = re.compile(r"^\s+|\s+$")
_PERCENT = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_QUERY_AND_FRAGMENT = re.compile(r"/*(?:[?#].*)?\Z", re.DOTALL)
_BLANKS = re.compile(f"[_{reading.END}]")
_APOSTROPHE = re.compile("’")
_CHARACTER = regex.compile(r"\X")  # A character together with its marks
_PART = regex.compile(r"[\w\p{M}]+|[^\w\p{M}]+")  # A word, or the text between words


class Word(NamedTuple):
    """A word as models read it, and where it comes from."""

    text: str  # As :func:`tweetrerank.rerankers.text.words.words` returns it
    spans: tuple[Span, ...]  # Span in the original text of each character of ``text``

    @property
    def place(self) -> Span:
        """Span in the original text of the whole word."""
        first_start, _ = self.spans[0]
        _, last_end = self.spans[-1]
        return first_start, last_end


def trigram_spans(
    spans: Sequence[Span],
    letters: str,
) -> list[Span]:
    """Return the span of the central letter of each trigram of ``#letters#``.

    ``spans`` has the span of each letter. Trigrams are sequences of bytes, so a letter
    is at the centre of as many trigrams as it has bytes in UTF-8.
    """
    sizes = (len(letter.encode(errors="replace")) for letter in letters)
    return _repeated(spans, sizes)


def _repeated(
    spans: Iterable[Span],
    counts: Iterable[int],
) -> list[Span]:
    repeated: list[Span] = []
    for span, count in zip(spans, counts, strict=True):
        repeated.extend([span] * count)
    return repeated


def find_words(text: str) -> list[Word]:
    """Return the words of a text with the spans of their original characters.

    The words are those of :func:`tweetrerank.rerankers.text.words.words`.
    """
    traced = _Traced.of(text[: reading.MAX_CHARACTERS])
    traced = traced.sub(reading.BRACKETS, " ")
    traced = traced.sub(reading.MENTION_OR_LINK, " ")
    traced = traced.lower()
    if not traced.text.isascii():
        traced = traced.fold()
    traced = traced.sub(_BLANKS, " ")
    traced = traced.sub(reading.CLITIC, " ")
    traced = traced.sub(reading.NEGATION, " n")
    traced = traced.sub(reading.ELONGATION, r"\1\1")
    traced = traced.sub(_APOSTROPHE, "'")
    words = []
    for token in reading.TOKEN.finditer(traced.text):
        letters = token.group()
        letter_spans = traced.spans[token.start() : token.end()]
        for start, end in reading.places_in(letters):
            spans = tuple(letter_spans[start:end])
            words.append(Word(letters[start:end], spans))
    return words


def find_url(url: str) -> tuple[str, list[Span]]:
    """Return (letters, span of each letter) of a URL's host and path.

    The letters are those of :func:`tweetrerank.rerankers.text.words.url_text`, but ""
    where that function returns the placeholder.
    """
    traced = _Traced.of(url[: reading.MAX_CHARACTERS])
    traced = traced.sub(_AROUND, "")
    traced = traced.sub(
        _PERCENT,
        lambda match: unquote(match.group()),
    )
    traced = traced.lower()
    traced = traced.sub(reading.SCHEME, "")
    return traced.sub(_QUERY_AND_FRAGMENT, "")


class _Traced(NamedTuple):
    """A text in the course of normalisation, with each character's original span."""

    text: str
    spans: list[Span]

    @classmethod
    def of(cls, text: str) -> Self:
        spans = [(place, place + 1) for place in range(len(text))]
        return cls(text, spans)

    def sub(
        self,
        pattern: re.Pattern[str],
        replacement: str | Callable[[re.Match[str]], str],
    ) -> "_Traced":
        """Do ``pattern.sub(replacement, text)`` and keep track of the spans."""
        texts: list[str] = []
        spans: list[Span] = []
        copied = 0  # Characters of the old text
        for match in pattern.finditer(self.text):
            start, end = match.span()
            if isinstance(replacement, str):
                new_text = match.expand(replacement)
            else:
                new_text = replacement(match)
            texts += [self.text[copied:start], new_text]
            spans += self.spans[copied:start]
            spans += self._replaced(start, end, len(new_text))
            copied = end
        texts.append(self.text[copied:])
        spans += self.spans[copied:]
        return _Traced("".join(texts), spans)

    def _replaced(
        self,
        start: int,
        end: int,
        length: int,
    ) -> list[Span]:
        """Return the spans of ``length`` characters that replace [start, end)."""
        if not length:
            return []
        old_spans = self.spans[start:end]
        # Inserted characters get an empty span.
        if not old_spans:
            place, _ = self.spans[start]
            return [(place, place)] * length
        # Each new character stands for one old character, and the last new character
        # for all the remaining ones. If there are more new characters than old ones,
        # the surplus stands for the last old one.
        last = len(old_spans) - 1
        spans = [old_spans[min(number, last)] for number in range(length)]
        last_start, _ = spans[-1]
        _, old_end = old_spans[-1]
        spans[-1] = (last_start, old_end)
        return spans

    def lower(self) -> "_Traced":
        # A letter's lower case may depend on its neighbours, but its length does not.
        lengths = (len(letter.lower()) for letter in self.text)
        return _Traced(
            self.text.lower(),
            _repeated(self.spans, lengths),
        )

    def fold(self) -> "_Traced":
        """Do what :func:`tweetrerank.rerankers.text.spellings.fold` does.

        A letter's span includes the accents that it loses.
        """
        lengths = (len(normalize("NFKD", letter)) for letter in self.text)
        spans = _repeated(self.spans, lengths)
        traced = _Traced(normalize("NFKD", self.text), spans).lower()
        for pattern, replacement in SPELLINGS:
            traced = traced.sub(pattern, replacement)
        return traced._composed()

    def _composed(self) -> "_Traced":
        """Join each letter and its marks to one character, or remove the marks."""
        text = ""
        spans: list[Span] = []
        for word in _PART.finditer(self.text):
            compose = composition(word.group())
            start, end = word.span()
            for character in _CHARACTER.finditer(self.text, start, end):
                letters = compose(character.group())
                text += letters
                if letters:
                    old_spans = self.spans[character.start() : character.end()]
                    spans += _spans_of_letters(old_spans, len(letters))
        return _Traced(text, spans)


def _spans_of_letters(
    old_spans: Sequence[Span],
    count: int,
) -> list[Span]:
    """Return the spans of the ``count`` letters that replace one character.

    The span of the last letter includes all marks.
    """
    end = max(span_end for _, span_end in old_spans)
    last_start, _ = old_spans[min(count, len(old_spans)) - 1]
    spans = list(old_spans[: count - 1])
    spans.append((last_start, end))
    return spans
