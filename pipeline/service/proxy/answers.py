"""Answers of an engine, cut into pieces of text: what is not changed stays as the engine wrote it.

Numbers of any length, halves of surrogate pairs and keys in their order come through, which they
would not if the answer were read as a whole and written again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

FIRST_STAGE = "_first_stage_score"
"""Field of a hit with the engine's own score."""

MARK = '"_reranked":false,'
"""At the start of an answer that should have been reranked."""

_GROUPS = ("fields", "ignored_field_values")
"""Members of a hit with values of fields."""

_KEY = re.compile(r'[\s,]*("(?:[^"\\]|\\.)*")\s*:\s*')
_NEXT = re.compile(r"[\s,]*")
_METADATA = re.compile(r'\{(?:"_(?!score")[a-z_]+":(?:"[^"\\]*"|-?[\d.]+),)*')
"""A hit's start, with the members before its score that have short values."""
_SCORE = re.compile(_METADATA.pattern + r'"_score":(-?\d[\d.eE+-]*)(?=[,}])')
"""The same, with the score."""
_HALVES = re.compile("[\ud800-\udfff]")

Value = TypeVar("Value")
Reader = Callable[[str, int], tuple[Any, int]]
"""Text and place of a value -> the value, and where it ends."""

_scan: Reader = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class Member(NamedTuple):
    """A key and its value; the key starts at ``start``, the value at ``begin``."""

    start: int
    begin: int
    stop: int
    value: Any


Members = Mapping[str, Member]


class Hit(NamedTuple):
    """A hit from ``start`` to ``stop``, and what it says."""

    start: int
    stop: int
    content: Mapping[str, Any]

    @property
    def score(self) -> float | None:
        """The engine's score."""
        value = self.content.get("_score")
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value)

    def text(self, names: Sequence[str]) -> str:
        """The values of fields, joined by blanks."""
        return " ".join(text for name in names for text in self._texts(name))

    def has(self, names: Sequence[str]) -> bool:
        """Whether its source has all of these fields."""
        source = self.content.get("_source")
        return all(_inside(source, name) is not None for name in names)

    def _texts(self, name: str) -> Iterator[str]:
        for group in _GROUPS:
            found = self.content.get(group)
            if found and name in found:
                return _leaves(found[name])
        return _leaves(_inside(self.content.get("_source"), name))


@dataclass(frozen=True)
class Answer:
    """The answer to a search, in the text of one or several.

    Attributes:
        text: of all of them.
        start, stop: of this one in the text.
        first, last: of the list of hits in the text.
        hits: in the engine's order; None if there is no list.
    """

    text: str
    start: int
    stop: int
    first: int = 0
    last: int = 0
    hits: Sequence[Hit] | None = None

    def page(
        self,
        rows: Sequence[tuple[int, str | None]],
        dropped: Collection[str],
        marked: bool = False,
    ) -> str:
        """The answer with these hits alone: row and new score, None for the engine's own."""
        assert self.hits is not None
        shown = [self._hit(self.hits[row], dropped, score) for row, score in rows]
        mark = MARK if marked else ""
        return (
            f"{{{mark}{self.text[self.start + 1 : self.first]}[{','.join(shown)}]"
            f"{self.text[self.last : self.stop]}"
        )

    def _hit(self, hit: Hit, dropped: Collection[str], score: str | None) -> str:
        """A hit without some fields, with another score."""
        if score is None and not dropped:
            return self.text[hit.start : hit.stop]
        is_plain = score is not None and hit.content.keys().isdisjoint(_GROUPS)
        if is_plain and (found := _SCORE.match(self.text, hit.start)):
            # Nearly all hits: only the score changes.
            before, after = self.text[hit.start : found.start(1)], self.text[found.end() : hit.stop]
            return f'{before}{score},"fields":{{"{FIRST_STAGE}":[{found[1]}]}}{after}'
        start = _end(_METADATA, self.text, hit.start)
        members = self._changed(hit, start)
        first = members.get("_score")
        extra = []
        if first and score is not None:
            extra = [f'"{FIRST_STAGE}":[{self.text[first.begin : first.stop]}]']
        parts, end = [], start
        for name, member in members.items():
            end = member.stop
            if name in _GROUPS:
                kept = self._kept(member, dropped if score is None else {*dropped, FIRST_STAGE})
                if name == "fields":
                    kept, extra = [*kept, *extra], []
                if kept:
                    parts.append(f'"{name}":{{{",".join(kept)}}}')
            elif member is first and score is not None:
                parts.append(f'"_score":{score}')
            else:
                parts.append(self.text[member.start : end])
        if extra:
            parts.append(f'"fields":{{{extra[0]}}}')
        before, after = self.text[hit.start : start], self.text[end : hit.stop]
        return f"{before}{','.join(parts)}{after}"

    def _changed(self, hit: Hit, start: int) -> Members:
        """The members of a hit from ``start`` to the last one that changes."""
        left = {"_score", *_GROUPS} & hit.content.keys()
        found = {}
        for name, member in _each(self.text, start):
            found[name] = member
            left.discard(name)
            if not left:
                break
        return found

    def _kept(self, group: Member, dropped: Collection[str]) -> list[str]:
        """The fields of a group that stay."""
        if group.value.keys() <= set(dropped):
            return []
        fields = _each(self.text, group.begin + 1)
        return [self.text[one.start : one.stop] for name, one in fields if name not in dropped]


def read(text: str) -> Answer:
    """The answer to a search; raises ValueError for another text."""
    return _checked(lambda: _answer(text, _end(_NEXT, text, 0)))[0]


def read_many(text: str) -> tuple[Sequence[Answer], int, int]:
    """The answers to searches, and where their list starts and ends.

    Raises:
        ValueError: there is no such list.
    """
    found, _ = _checked(
        lambda: _members(text, _end(_NEXT, text, 0), {"responses": _list_of(_answer)})
    )
    if "responses" not in found:
        raise ValueError("found no list of answers")
    _, begin, stop, answers = found["responses"]
    return answers, begin, stop


def _checked(read: Callable[[], Value]) -> Value:
    try:
        return read()
    except (StopIteration, IndexError, RecursionError):
        raise ValueError("found no JSON of the expected form") from None


def _answer(text: str, at: int) -> tuple[Answer, int]:
    found, stop = _members(text, at, {"hits": _hits})
    if "hits" not in found or "hits" not in found["hits"].value:
        return Answer(text, at, stop), stop
    _, first, last, hits = found["hits"].value["hits"]
    return Answer(text, at, stop, first, last, hits), stop


def _hits(text: str, at: int) -> tuple[Members, int]:
    return _members(text, at, {"hits": _list_of(_hit)})


def _hit(text: str, at: int) -> tuple[Hit, int]:
    content, stop = _scan(text, at)
    if not isinstance(content, dict):
        raise ValueError("found no object")
    return Hit(at, stop, content), stop


def _members(text: str, at: int, readers: Mapping[str, Reader]) -> tuple[Members, int]:
    """The members of the object at a place; some values are read in their own ways."""
    if text[at] != "{":
        raise ValueError("found no object")
    found = dict(_each(text, at + 1, readers))
    at = max((member.stop for member in found.values()), default=at + 1)
    at = _end(_NEXT, text, at)
    if text[at] != "}":
        raise ValueError("found no }")
    return found, at + 1


def _each(
    text: str, at: int, readers: Mapping[str, Reader] = MappingProxyType({})
) -> Iterator[tuple[str, Member]]:
    """The members of an object from a place on, one after the other."""
    while match := _KEY.match(text, at):
        key = match[1]
        name = json.loads(key) if "\\" in key else key[1:-1]
        begin = match.end()
        value, at = readers.get(name, _scan)(text, begin)
        yield name, Member(match.start(1), begin, at, value)


def _list_of(reader: Reader) -> Reader:
    def read_list(text: str, at: int) -> tuple[Any, int]:
        if text[at] != "[":
            raise ValueError("found no list")
        found, at = [], at + 1
        while text[at := _end(_NEXT, text, at)] != "]":
            value, at = reader(text, at)
            found.append(value)
        return found, at + 1

    return read_list


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where a pattern ends that begins at a place."""
    match = pattern.match(text, at)
    return match.end() if match else at


def _inside(value: Any, name: str) -> Any:
    """The values of a field in a source: with dots in its key, or an object for each dot."""
    if isinstance(value, list):
        return [_inside(one, name) for one in value]
    if not isinstance(value, dict):
        return None
    if name in value:
        return value[name]
    head, _, rest = name.partition(".")
    return _inside(value.get(head), rest) if rest else None


def _leaves(value: Any) -> Iterator[str]:
    """The texts of a field."""
    if isinstance(value, list):
        for one in value:
            yield from _leaves(one)
    elif isinstance(value, str):
        yield value if value.isascii() else _HALVES.sub("\ufffd", value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
