"""The engine's responses to searches, whose bytes stay as they are but for order and scores.

msgspec splits a response: hits, totals and unknown members are :class:`msgspec.Raw`, so numbers in
any form and keys in their order come through. What msgspec refuses is not reranked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from rerankers.pairs import number_of

FIRST_STAGE = "_first_stage_score"  # Field of a hit with the engine's own score
_GROUPS = ("fields", "ignored_field_values")  # Members of a hit with values of fields

Members = dict[str, Raw]

MARK: Members = {"_reranked": Raw(b"false")}
"""First member of a response that should have been reranked."""

ResponseError = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""Errors of a response that cannot be read."""


class Hit(msgspec.Struct, frozen=True):
    """The parts of a hit that are read here."""

    index_name: str = msgspec.field(name="_index", default="")
    doc_id: str = msgspec.field(name="_id", default="")
    # Negative ones mark the parts of a hybrid query whose hits nobody has joined.
    score: Annotated[float, Meta(ge=0)] | None = msgspec.field(name="_score", default=None)
    source: Members | None = msgspec.field(name="_source", default=None)
    fields: Members | None = None
    ignored_field_values: Members | None = None

    def text(self, names: Sequence[str]) -> str:
        """The values of fields, joined by blanks."""
        parts: list[str] = []
        for name in names:
            for group in (self.fields, self.ignored_field_values, self.source):
                if group and name in group:
                    value = _decoded(group[name])
                    break
            else:
                value = _inside(self.source, name)
            parts += (value,) if type(value) is str else _leaves(value)
        return " ".join(parts)

    def number(self, name: str) -> float:
        """The first value of a field as a number; NaN if it is none."""
        value = _inside(self.source, name)
        if value is None:
            value = (self.fields or {}).get(name)
        value = _decoded(value) if isinstance(value, Raw) else value
        while isinstance(value, list):
            value = value[0] if value else None
        return number_of(value)

    def has(self, names: Sequence[str]) -> bool:
        """Whether its source has all of these fields."""
        source = self.source or {}
        return all(name in source or _inside(source, name) is not None for name in names)


_MEMBERS = msgspec.json.Decoder(Members)
_RAWS = msgspec.json.Decoder(list[Raw])
_HITS = msgspec.json.Decoder(list[Hit])
_decoded = msgspec.json.Decoder().decode


@dataclass(frozen=True)
class SearchResponse:
    """The response to a search."""

    content: bytes | Raw
    members: Members
    found: Members  # Members of ``hits``
    raws: Sequence[Raw]  # The hits, in the engine's order
    hits: Sequence[Hit] | None = None  # The same; None if there is no list of them to read

    @classmethod
    def read(cls, content: bytes | Raw) -> SearchResponse:
        """Read a response; raises a :data:`ResponseError`."""
        members = members_of(content)
        found = members_of(members["hits"]) if "hits" in members else {}
        with suppress(*ResponseError):
            hits = found.get("hits", Raw())
            return cls(content, members, found, _RAWS.decode(hits), _HITS.decode(hits))
        return cls(content, members, found, ())

    def page(
        self,
        rows: Sequence[tuple[int, str | None]],
        dropped: Collection[str],
        members: Members,
        best: str | None = None,
    ) -> Raw:
        """The response with the hits of these rows alone, and their new scores, None for old ones.

        Without the fields ``dropped``, with other ``members``, and a new best score if any.
        """
        found = self.found | {"hits": encoded([self._hit(*row, dropped) for row in rows])}
        if best is not None and "max_score" in found:
            found["max_score"] = Raw(best.encode())
        return encoded(members | {"hits": encoded(found)})

    def _hit(self, row: int, score: str | None, dropped: Collection[str]) -> Raw:
        """A hit without some fields, and with another score where it is given."""
        if score is None and not dropped:
            return self.raws[row]
        members, groups = members_of(self.raws[row]), dict[str, Members]()
        for name in _GROUPS:
            if name in members:
                values = members_of(members.pop(name))
                groups[name] = {key: values[key] for key in values if key not in dropped}
        if score is not None:
            first = b"[" + bytes(members["_score"]) + b"]"
            groups.setdefault("fields", {})[FIRST_STAGE] = Raw(first)
            members["_score"] = Raw(score.encode())
        return encoded(members | {name: encoded(group) for name, group in groups.items() if group})


def encoded(value: Any) -> Raw:
    """JSON, with pieces of a response as they are."""
    return Raw(msgspec.json.encode(value))


def members_of(content: bytes | str | Raw) -> Members:
    """The members of an object; raises a :data:`ResponseError`."""
    return _MEMBERS.decode(content)


def read_responses(content: bytes, are_several: bool) -> list[SearchResponse]:
    """The response to a search, or those to several; raises a :data:`ResponseError`."""
    parts = _RAWS.decode(members_of(content).get("responses", b"")) if are_several else [content]
    return [*map(SearchResponse.read, parts)]


def _inside(value: Any, name: str) -> Any:
    """The values of a field in a source: with dots in its key, or an object for each dot."""
    value = _decoded(value) if isinstance(value, Raw) else value
    if isinstance(value, list):
        return [_inside(item, name) for item in value]
    if not isinstance(value, dict) or name in value:
        return value[name] if isinstance(value, dict) else None
    head, _, rest = name.partition(".")
    return _inside(value.get(head), rest) if rest else None


def _leaves(value: Any) -> Sequence[str]:
    """The texts and numbers in a value."""
    if isinstance(value, list):
        return [*chain.from_iterable(map(_leaves, value))]
    return (str(value),) if type(value) in (str, int, float) else ()
