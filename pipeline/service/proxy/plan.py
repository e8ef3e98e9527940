"""What a search asks for: which window to rerank, by which text, and which page of it to show."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.service.http.errors import Fault

Json = dict[str, Any]

UNCHANGED = ("search_after", "pit", "slice", "collapse", "scroll")
"""Parts of a search with which a window of the best hits has no meaning."""

UNCHANGED_PARAMETERS = ("filter_path", "source", "scroll", "search_pipeline")
"""Parameters of a path with which the answer, or the search, is not to be read here."""

_COMPOUND: Mapping[str, Sequence[str]] = {
    "bool": ("must", "should", "filter"),
    "boosting": ("positive",),
    "constant_score": ("filter",),
    "dis_max": ("queries",),
    "function_score": ("query",),
    "has_child": ("query",),
    "has_parent": ("query",),
    "hybrid": ("queries",),
    "nested": ("query",),
    "script_score": ("query",),
}
"""Queries of queries -> their keys, the scoring ones first."""

_WITH_TEXT = ("multi_match", "query_string", "simple_query_string")


@dataclass(frozen=True)
class Settings:
    """What holds for searches that do not say otherwise.

    Attributes:
        text_fields: fields of the posts' texts.
        url_field: field of their links.
        window: hits to rerank.
        most: hits to rerank at most; larger searches pass unchanged.
        seconds: for the scores.
    """

    text_fields: Sequence[str] = ("contents",)
    url_field: str | None = "url"
    window: int = 100
    most: int = 2000
    seconds: float = 5.0


@dataclass(frozen=True)
class Plan:
    """How to rerank a search.

    Attributes:
        query: its text.
        start: place of the page's first hit.
        size: hits of the page.
        text_fields: joined by blanks.
        url_field: of the posts' links.
        added: fields that only the reranker needs.
        model: its name; None is the default.
        body: the search of the window.
        short: the same without the added fields, for hits that show their whole source; None if
            they do not.
    """

    query: str
    start: int
    size: int
    text_fields: Sequence[str]
    url_field: str | None
    added: Sequence[str]
    model: str | None
    body: bytes
    short: bytes | None


@dataclass(frozen=True)
class Search:
    """A search as the engine is to see it, and how to rerank it; None if it passes unchanged."""

    body: bytes
    plan: Plan | None = None


def read(body: bytes, parameters: Sequence[tuple[str, str]], settings: Settings) -> Search:
    """What a search asks for.

    Args:
        body: JSON; anything else is the engine's to refuse.
        parameters: of the path, or of the header in a search of several; they come first.
        settings: for what it does not say.

    Raises:
        Fault: its ``ext.rerank`` is wrong.
    """
    given = {name: value for name, value in parameters if value}
    try:
        content = _strict(body) if body.strip() else {}
    except (ValueError, RecursionError):
        return Search(body)
    if "search_pipeline" in given or "search_pipeline" in content:
        return Search(body)
    content, wanted = _without_rerank(content)
    try:
        own = body if wanted is None else dumped(content)
        if wanted is False or any(name in given for name in UNCHANGED_PARAMETERS):
            return Search(own)
        return Search(own, _plan(content, given, _Wanted.read(wanted or {}), settings))
    except (ValueError, RecursionError):
        return Search(body)


def dumped(content: Any) -> bytes:
    """JSON without blanks; raises ValueError for numbers that JSON does not have."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def _strict(body: bytes) -> Json:
    """A JSON object in which no key is twice: Elasticsearch refuses such objects."""

    def unique(pairs: list[tuple[str, Any]]) -> Json:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("found a key twice")
        return found

    def refuse(constant: str) -> Any:
        raise ValueError(f"found {constant}")

    content = json.loads(body.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    if not isinstance(content, dict):
        raise ValueError("found no object")
    return content


def _without_rerank(content: Json) -> tuple[Json, Any]:
    """A search without its ``ext.rerank``, and that; None without one."""
    ext = content.get("ext")
    if not isinstance(ext, dict) or ext.get("rerank") is None:
        return content, None
    others = {name: value for name, value in ext.items() if name != "rerank"}
    rest = {name: value for name, value in content.items() if name != "ext"}
    return (rest | {"ext": others} if others else rest), ext["rerank"]


@dataclass(frozen=True)
class _Wanted:
    """The fields of ``ext.rerank``; None where it does not say."""

    text: str | None
    path: str | None
    fields: Sequence[str] | None
    window: int | None
    model: str | None

    @classmethod
    def read(cls, content: Any) -> _Wanted:
        """Raises Fault for a wrong value."""
        place: tuple[str, ...] = ("ext", "rerank")
        _expect(isinstance(content, dict), "an object", place)
        context = content.get("query_context") or {}
        _expect(isinstance(context, dict), "an object", (*place, "query_context"))
        text, path = context.get("query_text"), context.get("query_text_path")
        _expect(text is None or isinstance(text, str), "a text", (*place, "query_context"))
        _expect(path is None or isinstance(path, str), "a text", (*place, "query_context"))
        fields, window = content.get("document_fields"), content.get("rerank_window")
        is_list = isinstance(fields, list) and all(isinstance(one, str) for one in fields)
        _expect(fields is None or (is_list and fields), "names", (*place, "document_fields"))
        is_whole = isinstance(window, int) and not isinstance(window, bool) and window > 0
        _expect(window is None or is_whole, "a number above 0", (*place, "rerank_window"))
        model = content.get("model")
        _expect(model is None or isinstance(model, str), "a name", (*place, "model"))
        return cls(text, path, fields, window, model)


def _expect(is_good: object, expected: str, place: Sequence[str]) -> None:
    if not is_good:
        raise Fault("value", f"found something else, expected {expected}", place)


def _plan(
    content: Json, given: Mapping[str, str], wanted: _Wanted, settings: Settings
) -> Plan | None:
    """How to rerank a search; None if it passes unchanged."""
    start, size = _number("from", 0, content, given), _number("size", 10, content, given)
    asked = content.get("fields")
    text = _text(content, given, wanted)
    if (
        any(name in content for name in UNCHANGED)
        or not size
        or start is None
        or start + size > settings.most
        or not all(map(_by_score, (given.get("sort", "_score").split(","), content.get("sort"))))
        or not (text and text.strip())
        or not (asked is None or isinstance(asked, list))
        or any("_none_" in _names(one.get("stored_fields")) for one in (given, content))
    ):
        return None
    text_fields, url_field = settings.text_fields, settings.url_field
    if wanted.fields is not None:
        text_fields = [name for name in wanted.fields if name != url_field]
        url_field = url_field if url_field in wanted.fields else None
    needed = [*text_fields, *([url_field] if url_field else [])]
    patterns = [
        *_names(asked),
        *(name for one in (given, content) for name in _names(one.get("docvalue_fields"))),
        *_names(content.get("script_fields")),
    ]
    added = [name for name in needed if not any(_matches(one, name) for one in patterns)]
    window = min(max(wanted.window or settings.window, start + size), settings.most)
    short = content | {"from": 0, "size": window}
    body = dumped(short | {"fields": [*(asked or []), *added]} if added else short)
    is_short = bool(added) and _shows_source(content, given)
    first = dumped(short) if is_short else None
    return Plan(text, start, size, text_fields, url_field, added, wanted.model, body, first)


def _shows_source(content: Json, given: Mapping[str, str]) -> bool:
    """Whether hits have their whole source."""
    limited = any(
        name == "stored_fields" or name.startswith("_source")
        for name in (*given, *(content.keys() - {"_source"}))
    )
    return content.get("_source", True) is True and not limited


def _number(name: str, default: int, content: Json, given: Mapping[str, str]) -> int | None:
    """A number of the path, else of the body; None if one of both is none."""
    inside = _whole(content.get(name, default))
    return None if inside is None else _whole(given.get(name, inside))


def _whole(value: Any) -> int | None:
    """A number as the engines read it, also from a text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _by_score(sort: Any) -> bool:
    """Whether hits come by their scores, best first."""
    first = sort[0] if isinstance(sort, list) and sort else sort
    if isinstance(first, dict) and first:
        name, order = next(iter(first.items()))
        order = order.get("order", "desc") if isinstance(order, dict) else order
        return name == "_score" and order == "desc"
    return first in (None, "_score", "_score:desc") or first == []


def _names(value: Any) -> Iterator[str]:
    """Names of fields in one of the forms that the engines take."""
    if isinstance(value, str):
        yield from value.split(",")
    elif isinstance(value, dict):
        yield from value
    elif isinstance(value, list):
        for one in value:
            name = one.get("field") if isinstance(one, dict) else one
            if isinstance(name, str):
                yield name


def _matches(pattern: str, name: str) -> bool:
    """Whether a name has the form of a pattern, in which ``*`` is any text."""
    if "*" not in pattern:
        return pattern == name
    parts = re.split(r"\*+", pattern)
    return re.fullmatch(".*".join(map(re.escape, parts)), name, re.DOTALL) is not None


def _text(content: Json, given: Mapping[str, str], wanted: _Wanted) -> str | None:
    """The text of the query: as told, else of the first query inside that has one."""
    if wanted.text is not None:
        return wanted.text
    if wanted.path is not None:
        found = _at(content, wanted.path.split("."))
        place = ("ext", "rerank", "query_context", "query_text_path")
        _expect(isinstance(found, str), "the path of a text in the search", place)
        return str(found)
    return given.get("q") or next(_texts(content.get("query")), None)


def _at(value: Any, path: Sequence[str]) -> Any:
    """The value at a path; names may have dots in them."""
    if not path:
        return value
    if isinstance(value, list) and path[0].isascii() and path[0].isdigit():
        place = int(path[0][:6])
        return _at(value[place], path[1:]) if place < len(value) else None
    if isinstance(value, dict):
        for length in range(1, len(path) + 1):
            name = ".".join(path[:length])
            if name in value and (found := _at(value[name], path[length:])) is not None:
                return found
    return None


def _texts(query: Any) -> Iterator[str]:
    """The texts of the queries inside a query, in their order."""
    if isinstance(query, list):
        for one in query:
            yield from _texts(one)
    if not isinstance(query, dict):
        return
    for kind, inner in query.items():
        if not isinstance(inner, dict):
            continue
        if kind == "match":
            found = next(iter(inner.values()), None)
            yield from _as_text(found.get("query") if isinstance(found, dict) else found)
        elif kind in _WITH_TEXT:
            yield from _as_text(inner.get("query"))
        for key in _COMPOUND.get(kind, ()):
            yield from _texts(inner.get(key))


def _as_text(value: Any) -> Iterator[str]:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)
