"""Finds the text that a search looks for in a query in the engines' language."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tweetrerank.pipeline.service.proxy.allowed import LISTS, matches
from tweetrerank.pipeline.service.proxy.json_path import Json, object_or_empty

_PLAIN = (str, int, float)
"""The types of values that are texts. A bool is not one, though it is an int."""

_LONGEST_TEXT = 2000
"""Number of characters of a query that are read. Models read fewer."""

_SYNTAX = re.compile(
    r"""(?P<sign>[+!-]?)(?P<field>(?:[^\s:"()\[\]{}/\\]|\\.)+:)?
    (?P<value>
        "(?:[^"\\]|\\.)*"?  # Quoted text, also without its end
        |/(?:[^\s/\\]|\\.)*/  # Regular expression
        |[\[{][^\[\]{}]*[\]}]  # Range
        |[()]
        |(?:[^\s"()\\]|\\.)+  # Word
    )
    """,
    re.VERBOSE,
)
"""The signs, fields and values of a ``query_string``."""

_MARKS = re.compile(r"\\(.)|[*?\"|]|[~^][\d.]*$")
"""Escapes, wildcards, and marks at the end of a word. The escaped character stays."""

_OPERATORS = ("AND", "OR", "NOT", "&&", "||")

_PATTERN_STARTS = "/[{"
"""The first characters of regular expressions and ranges."""


def text_of(query: Any, fields: Sequence[str]) -> str:
    """Return the text that a query looks for, or "" if there is none.

    The first text that is searched in ``fields`` takes precedence over all others.
    """
    texts = [pair for pair in _texts(query, fields) if pair[1].strip()]
    for is_on_fields, text in texts:
        if is_on_fields:
            return text
    if texts:
        return texts[0][1]
    return ""


def _texts(
    query: Any,
    fields: Sequence[str],
) -> Iterator[tuple[bool, str]]:
    """Yield the texts of all queries inside a query, in their order.

    Each is a tuple (whether it is searched in ``fields``, the text).
    """
    if isinstance(query, list):
        for item in query:
            yield from _texts(item, fields)
    for kind, inner in object_or_empty(query).items():
        if not isinstance(inner, dict):
            continue
        keys = LISTS["texts"].get(kind, "")
        if keys == "field":
            yield from _texts_by_field(inner, fields)
        elif keys == "fields":
            yield from _text_on_fields(kind, inner, fields)
        else:
            # Keys of the queries inside, the scoring ones first
            for key in keys.split():
                yield from _texts(inner.get(key), fields)


def _texts_by_field(
    query: Json,
    fields: Sequence[str],
) -> Iterator[tuple[bool, str]]:
    """Yield the texts of a query such as ``match``, which has fields as its keys."""
    for name, text in query.items():
        if isinstance(text, dict):
            text = text.get("query")
        if type(text) in _PLAIN and _is_text_field(name, fields):
            yield True, str(text)


def _text_on_fields(
    kind: str,
    query: Json,
    fields: Sequence[str],
) -> Iterator[tuple[bool, str]]:
    """Yield the text of a query such as ``multi_match``, which lists its fields."""
    text = query.get("query")
    listed = field_names(query.get("fields"))
    names = [name.partition("^")[0] for name in listed]
    if not names:
        names = [str(query.get("default_field") or "*")]
    is_on_fields = any(_is_text_field(name, fields) for name in names)
    if type(text) not in _PLAIN or not (is_on_fields or listed):
        return
    if kind == "query_string":
        # The listed fields count as text fields because they are searched.
        yield is_on_fields, plain_text(text, list(fields) + names)
    elif kind == "simple_query_string":
        yield is_on_fields, plain_text(text, None)
    else:
        yield is_on_fields, str(text)


def field_names(value: Any) -> list[str]:
    """Return the names of fields, given in one of the forms that the engines accept."""
    if isinstance(value, str):
        return value.split(",")
    names: list[str] = []
    if not isinstance(value, dict | list):
        return names
    for name in value:
        if isinstance(name, dict):
            name = name.get("field")
        if isinstance(name, str):
            names.append(name)
    return names


def _is_text_field(name: str, fields: Sequence[str]) -> bool:
    """Whether a name or pattern stands for a text field or a subfield of one."""
    return any(matches(name, field) or name.startswith(f"{field}.") for field in fields)


def plain_text(text: Any, fields: Sequence[str] | None) -> str:
    """Return the words that a ``query_string`` wants, without those it excludes.

    ``fields`` are the text fields. They are None for a ``simple_query_string``, whose
    syntax has no fields.
    """
    reader = _QueryStringReader(fields)
    for match in _SYNTAX.finditer(str(text)[:_LONGEST_TEXT]):
        reader.read(match["sign"], match["field"] or "", match["value"])
    return " ".join(" ".join(reader.words).split())


class _QueryStringReader:
    """Collects the wanted words of a query string, piece by piece."""

    def __init__(self, fields: Sequence[str] | None) -> None:
        self.words: list[str] = []
        self._fields = fields
        self._groups = [True]  # For each open bracket, whether its words are wanted
        self._is_after_not = False

    def read(self, sign: str, field: str, value: str) -> None:
        """Read a piece of the query string.

        ``field`` ends with a colon, or is "" if the piece has no field.
        """
        if self._fields is None:
            value = field + value
            field = ""
        elif value in _OPERATORS:
            self._is_after_not = value == "NOT"
            return
        is_wanted = self._is_wanted(sign, field)
        self._is_after_not = False
        if value == "(":
            self._groups.append(is_wanted)
        elif value == ")":
            self._groups = self._groups[:-1] or [True]
        elif is_wanted and not self._is_pattern(value):
            self.words.append(_MARKS.sub(_unmarked, value))

    def _is_wanted(self, sign: str, field: str) -> bool:
        if not self._groups[-1] or self._is_after_not or sign in ("-", "!"):
            return False
        if field and self._fields is not None:
            name = field[:-1].replace("\\", "")
            return _is_text_field(name, self._fields)
        return True

    def _is_pattern(self, value: str) -> bool:
        """Whether a value is a regular expression or a range."""
        return self._fields is not None and value[0] in _PATTERN_STARTS


def _unmarked(mark: re.Match[str]) -> str:
    """Return the escaped character, or a blank in place of a mark."""
    return mark[1] or " "
