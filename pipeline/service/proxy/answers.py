"""Answers of an engine, cut into pieces of text: what is not changed stays as the engine wrote it.

Numbers of any length, halves of surrogate pairs and keys in their order come through, which they
would not if the answer were read as a whole and written again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

FIRST_STAGE = "_first_stage_score"
"""Field of a hit with the engine's own score."""

MARK = '"_reranked":false,'
"""At the start of an answer that should have been reranked."""

_KEY = re.compile(r'[\s,]*("(?:[^"\\]|\\.)*")\s*:\s*')
_NEXT = re.compile(r"[\s,]*")
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
    """A hit from ``start`` to ``stop``; the members of ``fields`` are read too."""

    start: int
    stop: int
    members: Members

    @property
    def score(self) -> float | None:
        """The engine's score."""
        found = self.members.get("_score")
        value = found.value if found else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value)

    def text(self, names: Sequence[str]) -> str:
        """The values of fields, joined by blanks."""
        return " ".join(text for name in names for text in self._texts(name))

    def _texts(self, name: str) -> Iterator[str]:
        for group in ("fields", "ignored_field_values"):
            found = self.members.get(group)
            if found and name in found.value:
                return _leaves(found.value[name].value)
        source = self.members.get("_source")
        return _leaves(_inside(source.value, name)) if source else iter(())


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
        parts = []
        for name, member in hit.members.items():
            if name in ("fields", "ignored_field_values"):
                kept = [
                    self.text[one.start : one.stop]
                    for key, one in member.value.items()
                    if key not in dropped and (key != FIRST_STAGE or score is None)
                ]
                if name == "fields" and score is not None:
                    kept.append(self._first_stage(hit))
                if kept:
                    parts.append(f'"{name}":{{{",".join(kept)}}}')
            elif name == "_score" and score is not None:
                parts.append(f'"_score":{score}')
            else:
                parts.append(self.text[member.start : member.stop])
        if "fields" not in hit.members and score is not None:
            parts.append(f'"fields":{{{self._first_stage(hit)}}}')
        return f"{{{','.join(parts)}}}"

    def _first_stage(self, hit: Hit) -> str:
        member = hit.members["_score"]
        return f'"{FIRST_STAGE}":[{self.text[member.begin : member.stop]}]'


def read(text: str) -> Answer:
    """The answer to a search; raises ValueError for another text."""
    return _checked(lambda: _answer(text, _start(text)))[0]


def read_many(text: str) -> tuple[Sequence[Answer], int, int]:
    """The answers to searches, and where their list starts and ends.

    Raises:
        ValueError: there is no such list.
    """
    found, _ = _checked(lambda: _members(text, _start(text), {"responses": _list_of(_answer)}))
    if "responses" not in found:
        raise ValueError("found no list of answers")
    _, begin, stop, answers = found["responses"]
    return answers, begin, stop


def _checked(read: Callable[[], Value]) -> Value:
    try:
        return read()
    except (StopIteration, IndexError, RecursionError):
        raise ValueError("found no JSON of the expected form") from None


def _start(text: str) -> int:
    match = _NEXT.match(text)
    return match.end() if match else 0


def _answer(text: str, at: int) -> tuple[Answer, int]:
    found, stop = _members(text, at, {"hits": _hits})
    if "hits" not in found or "hits" not in found["hits"].value:
        return Answer(text, at, stop), stop
    _, first, last, hits = found["hits"].value["hits"]
    return Answer(text, at, stop, first, last, hits), stop


def _hits(text: str, at: int) -> tuple[Members, int]:
    return _members(text, at, {"hits": _list_of(_hit)})


def _hit(text: str, at: int) -> tuple[Hit, int]:
    found, stop = _members(text, at, {"fields": _members, "ignored_field_values": _members})
    return Hit(at, stop, found), stop


def _members(text: str, at: int, readers: Mapping[str, Reader] | None = None) -> tuple[Any, int]:
    """The members of the object at a place; some values are read in their own ways."""
    if text[at] != "{":
        raise ValueError("found no object")
    at += 1
    found: dict[str, Member] = {}
    while match := _KEY.match(text, at):
        key = match[1]
        name = json.loads(key) if "\\" in key else key[1:-1]
        begin = match.end()
        value, at = ((readers and readers.get(name)) or _scan)(text, begin)
        found[name] = Member(match.start(1), begin, at, value)
    return found, _closed(text, at, "}")


def _list_of(reader: Reader) -> Reader:
    def read_list(text: str, at: int) -> tuple[Any, int]:
        if text[at] != "[":
            raise ValueError("found no list")
        found, at = [], at + 1
        while text[at := _start_of_next(text, at)] != "]":
            value, at = reader(text, at)
            found.append(value)
        return found, at + 1

    return read_list


def _start_of_next(text: str, at: int) -> int:
    match = _NEXT.match(text, at)
    return match.end() if match else at


def _closed(text: str, at: int, mark: str) -> int:
    at = _start_of_next(text, at)
    if text[at] != mark:
        raise ValueError(f"found no {mark}")
    return at + 1


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
