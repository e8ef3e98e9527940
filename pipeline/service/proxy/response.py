"""The engine's responses to searches, whose bytes stay as they are but for order and scores.

msgspec splits a response: hits, totals and unknown members are :class:`msgspec.Raw`, so numbers in
any form and keys in their order come through. What msgspec refuses is not reranked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Raw

from rerankers.pairs import number_of

FIRST_STAGE = "_first_stage_score"  # Field of a hit with the engine's own score

Members = dict[str, Raw]
Post = tuple[str, str, Sequence[float], bool]
"""Text, link and numbers of a hit, and whether it has all fields."""

MARK: Members = {"_reranked": Raw(b"false")}
"""First member of a response that should have been reranked."""

ResponseError = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""Errors of a response that cannot be read."""


class PostFields(NamedTuple):
    """Fields of an index's posts: of their texts, joined by blanks, of their links, and of the
    numbers that a model reads (its name, field)."""

    texts: tuple[str, ...] = ("contents",)
    url: str | None = "url"
    signals: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        texts = (*self.texts, self.url) if self.url else self.texts
        return (*texts, *(field for _, field in self.signals))


class Hit(msgspec.Struct, frozen=True):
    """The parts of a hit that are read here."""

    index_name: str = msgspec.field(name="_index", default="")
    doc_id: str = msgspec.field(name="_id", default="")
    # Negative ones mark the parts of a hybrid query whose hits nobody has joined.
    score: Annotated[float, Meta(ge=0)] | None = msgspec.field(name="_score", default=None)
    source: dict[str, Any] | None = msgspec.field(name="_source", default=None)
    fields: dict[str, Any] | None = None
    ignored_field_values: dict[str, Any] | None = None

    def post(self, fields: PostFields) -> Post:
        """Its text, link and numbers, and whether it has all of the fields."""
        values, is_whole = list[Any](), True
        for name in fields.names:
            for group in (self.source, self.fields, self.ignored_field_values):
                if group and name in group:
                    value = group[name]
                    break
            else:
                value = [*at(self.source, name)] if "." in name else None
                is_whole = is_whole and bool(value)
            values.append(value)
        count = len(values) - len(fields.signals)
        parts = [v if type(v) is str else " ".join(_leaves(v)) for v in values[:count]]
        text = " ".join(filter(None, parts[: len(fields.texts)]))
        numbers = [number_of(next(iter(v), None) if type(v) is list else v) for v in values[count:]]
        return text, parts[-1] if fields.url else "", numbers, is_whole


_MEMBERS = msgspec.json.Decoder(Members)
_RAWS = msgspec.json.Decoder(list[Raw])
_HITS = msgspec.json.Decoder(list[Hit])


@dataclass(frozen=True)
class SearchResponse:
    """The response to a search."""

    content: bytes | Raw
    members: Members
    found: Members  # Members of ``hits``
    raws: Sequence[Raw]  # The hits, in the engine's order
    hits: Sequence[Hit] | None  # The same; None if there is no list of them to read
    posts: Sequence[Post]

    @classmethod
    def read(
        cls, content: bytes | Raw, fields: Mapping[str, PostFields] | None = None
    ) -> SearchResponse:
        """Read a response; raises a :data:`ResponseError`.

        ``fields``: index -> fields of its posts, "" for all others; None reads no posts.
        """
        members = members_of(content)
        found = members_of(members["hits"]) if "hits" in members else {}
        with suppress(*ResponseError):
            hits = _HITS.decode(raw := found.get("hits", Raw()))
            of_hits = [fields.get(hit.index_name, fields[""]) for hit in hits] if fields else ()
            posts = [*map(Hit.post, hits, of_hits)]
            return cls(content, members, found, _RAWS.decode(raw), hits, posts)
        return cls(content, members, found, (), None, ())

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
        for name in ("fields", "ignored_field_values"):
            if name in members:
                values = members_of(members.pop(name))
                groups[name] = {key: values[key] for key in values if key not in dropped}
        if score is not None:
            first = Raw(b"[%b]" % bytes(members["_score"]))
            groups["fields"] = groups.get("fields", {}) | {FIRST_STAGE: first}
            members["_score"] = Raw(score.encode())
        return encoded(members | {name: encoded(group) for name, group in groups.items() if group})


def encoded(value: Any) -> Raw:
    """JSON, with pieces of a response as they are."""
    return Raw(msgspec.json.encode(value))


def members_of(content: bytes | str | Raw) -> Members:
    """The members of an object; raises a :data:`ResponseError`."""
    return _MEMBERS.decode(content)


def read_responses(
    content: bytes, are_several: bool, fields: Sequence[Mapping[str, PostFields] | None]
) -> list[SearchResponse]:
    """The response to a search, or those to several; raises a :data:`ResponseError`."""
    parts = _RAWS.decode(members_of(content).get("responses", b"")) if are_several else [content]
    return [*map(SearchResponse.read, parts, fields)] if len(parts) == len(fields) else []


def at(value: Any, path: str) -> Iterator[Any]:
    """The values at a path: names may have dots in them, and items of lists need no place."""
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from at({str(place): item}, path)
            yield from at(item, path)
    for name in sorted(value, key=len) if isinstance(value, dict) else ():
        if path == name:
            yield value[name]
        elif path.startswith(f"{name}."):
            yield from at(value[name], path[len(name) + 1 :])


def _leaves(value: Any) -> Iterator[str]:
    """The texts and numbers in a value."""
    for item in value if isinstance(value, list) else ():
        yield from _leaves(item)
    if type(value) in (str, int, float):
        yield str(value)
