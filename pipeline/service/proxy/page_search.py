"""A search in the engines' JSON and its response: text, window of hits to rerank, page.

msgspec splits a response: hits, totals and unknown members are :class:`msgspec.Raw`, so numbers in
any form and keys in their order come through. What msgspec refuses is not reranked.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, Self

import msgspec
from msgspec import Meta, Raw

from tweetrerank.indexes.engines.engine_search import single_precision
from tweetrerank.pipeline.service.proxy.allowed import LISTS, Json, dumped, matches
from tweetrerank.pipeline.service.score_request import Request, ScoreRequest
from tweetrerank.pipeline.service.service_errors import RequestError
from tweetrerank.rerankers.pairs import number_of

_PLAIN = (str, int, float)  # Types of a text
_LONGEST_TEXT = 2000  # Characters of a query that are read; models read fewer

_SYNTAX = re.compile(
    r"""(?P<sign>[+!-]?)(?P<field>(?:[^\s:"()\[\]{}/\\]|\\.)+:)?
    (?P<value>"(?:[^"\\]|\\.)*"?|/(?:[^\s/\\]|\\.)*/|[\[{][^\[\]{}]*[\]}]|[()]|(?:[^\s"()\\]|\\.)+)
    """,
    re.VERBOSE,
)
"""Signs, fields and values of ``query_string``."""

_MARKS = re.compile(r"\\(.)|[*?\"|]|[~^][\d.]*$")
"""Escapes, which stay without their backslash, wildcards, and marks at a word's end."""

_BEST_FIRST = (
    "_score",
    "_score:desc",
    *({"_score": how} for how in ("desc", {"order": "desc"}, {})),
)
_BY_SCORE = None, "", [], *_BEST_FIRST, *([key] for key in _BEST_FIRST)
"""Sorts by the score alone: a further key is for reading on."""

FIRST_STAGE = "_first_stage_score"  # Field of a hit with the engine's own score

Members = dict[str, Raw]
Row = tuple[int, str | None]  # Of a hit, and its new score; None for the old one

MARK: Members = {"_reranked": Raw(b"false")}
"""First member of a response that should have been reranked."""

ResponseError = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""Errors of a response that cannot be read."""


@dataclass(frozen=True)
class PostFields:
    """Fields of an index's posts."""

    texts: tuple[str, ...] = ("contents",)  # Joined by blanks
    url: str | None = "url"
    signals: tuple[
        tuple[str, str], ...
    ] = ()  # Numbers that a model reads: its name, field
    model: str | None = None  # Name of the posts' own model

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        texts = (*self.texts, self.url) if self.url else self.texts
        return (*texts, *(field for _, field in self.signals))


FieldsOf = Mapping[str, PostFields]  # Index -> fields of its posts


@dataclass(frozen=True)
class SearchDefaults:
    """Options of searches that do not say otherwise."""

    fields: PostFields = PostFields()
    window: int = 100  # Hits to rerank
    most: int = 2000  # Hits to rerank at most
    seconds: float = 5.0  # For the scores
    weight: float | None = (
        None  # Share of the model beside the engine's score; None: model alone
    )
    indexes: Sequence[str] = ("*",)  # Names and patterns of those that may be read
    served: FieldsOf = field(default_factory=dict)  # Of indexes with their own
    numbers: Sequence[
        str
    ] = ()  # Those that models read; without other names they are the fields
    reads_ubi: bool = (
        False  # Whether ``ext.ubi`` is for the log here, not for the engine
    )


class Ubi(msgspec.Struct):
    """``ext.ubi``, of OpenSearch's User Behavior Insights."""

    query_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class _Context(msgspec.Struct, forbid_unknown_fields=True):
    query_text: str | None = None
    query_text_path: str | None = None


class _Rerank(msgspec.Struct, forbid_unknown_fields=True):
    """``ext.rerank``, in the form of OpenSearch's processor."""

    query_context: _Context | None = None
    document_fields: Annotated[list[str], Meta(min_length=1, max_length=100)] | None = (
        None
    )
    rerank_window: Annotated[int, Meta(gt=0)] | None = None
    model: str | None = None
    weight: Annotated[float, Meta(ge=0, le=1)] | None = None
    signals: dict[str, str] | list[str] = {}


class _Ext(msgspec.Struct):
    rerank: _Rerank = msgspec.field(default_factory=_Rerank)
    ubi: Ubi | None = None


@dataclass(frozen=True)
class Window:
    """The best hits of a search, to be reranked, and the page that is shown."""

    query: str
    start: int  # Of the page
    size: int
    depth: int  # Hits to rerank; those after them keep the engine's order
    fields: FieldsOf  # "" for all other indexes
    added: Sequence[str]  # Fields that only the reranker needs
    place: int  # Hash of the indexes and these fields
    bodies: tuple[
        bytes, bytes
    ]  # The search without them, if its hits show sources, and with them
    model: str | None
    weight: float | None
    ubi: Ubi | None  # ``ext.ubi``, if it is for the log


class Search(NamedTuple):
    """A search as the engine is to see it, and its window or the reason why it passes unchanged."""

    body: bytes
    window: Window | None
    reason: str = ""
    outcome: str = "unchanged"
    header: bytes = b""  # Of one of several searches


class UnchangedError(Exception):
    """A search passes unchanged: the reason, and how it is counted."""


def read_search(
    content: Json,
    given: Mapping[str, str],
    defaults: SearchDefaults,
    indexes: Sequence[str] = (),
) -> Search:
    """Read an allowed search of some indexes; raises RequestError for a wrong ``ext.rerank``.
    ``given`` are the parameters of the path, or the header in several searches."""
    own, ext = content, _object(content.get("ext"))
    ours = ("rerank", "ubi") if defaults.reads_ubi else ("rerank",)
    told = {name: ext[name] for name in ours if ext.get(name) is not None}
    if any(name in ext for name in ours):
        others = {name: value for name, value in ext.items() if name not in ours}
        own = {n: v for n, v in content.items() if n != "ext"} | (
            {"ext": others} if others else {}
        )
    pipeline = given.get("search_pipeline") or content.get("search_pipeline")
    if pipeline and ("rerank" in told or "hybrid" not in _object(content.get("query"))):
        return Search(
            dumped(content), None, "the search names a pipeline of the engine"
        )
    if told.get("rerank") is False:
        return Search(dumped(own), None, "ext.rerank is false")
    try:
        options = msgspec.convert(told, _Ext)
        return Search(dumped(own), _window(own, given, options, defaults, indexes))
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        raise RequestError("value", f"ext.{path.rstrip('`')}: {message}") from None
    except UnchangedError as error:
        return Search(dumped(own), None, *error.args)


def _window(
    content: Json,
    given: Mapping[str, str],
    ext: _Ext,
    defaults: SearchDefaults,
    indexes: Sequence[str],
) -> Window:
    """The window of a search; raises UnchangedError."""
    options, shown, asked = ext.rerank, content.get("fields"), content
    if isinstance(retriever := content.get("retriever"), dict):
        asked = _object(retriever.get("standard"))
    start, size = (
        _number("from", 0, content, given),
        _number("size", 10, content, given),
    )
    depth = min(options.rerank_window or defaults.window, defaults.most)
    parts, both = (content, asked, given), (content, given)
    is_partial = any("_none_" in _names(part.get("stored_fields")) for part in both)
    is_partial = (
        is_partial or not isinstance(shown, list | None) or "filter_path" in given
    )
    reads_on = any(
        p.get(name) not in (None, "") for name in LISTS["continued"] for p in parts
    )
    reasons = {
        "the search reads on from a hit, or groups hits": reads_on,
        "the sort has another key than _score": not all(
            p.get("sort") in _BY_SCORE for p in parts
        ),
        "the search shows no hits": not size,
        f"the page begins after the {depth} hits that are reranked": start >= depth,
        "the search leaves out parts of the response": is_partial,
    }
    if reason := next((text for text, is_so in reasons.items() if is_so), None):
        raise UnchangedError(reason)
    query, fields = asked.get("query"), _fields(options, defaults, indexes)
    if given.get("q"):
        query = {
            "query_string": {"query": given["q"], "default_field": given.get("df", "*")}
        }
    text = _text(
        query, content, options, [n for each in fields.values() for n in each.texts]
    )
    values = [
        part.get(name) for part in both for name in ("docvalue_fields", "stored_fields")
    ]
    values += [shown, content.get("script_fields")]
    patterns = [name for value in values for name in _names(value)]
    needed = dict.fromkeys(name for each in fields.values() for name in each.names)
    whole = content | {"from": 0, "size": max(depth, start + size)}
    body = plain_body = dumped(whole)
    # Elasticsearch gives a search's fields to the hits of its aggregations, too.
    added = list[str]() if b'"top_hits":' in body else [*needed]
    if added := [name for name in added if not any(matches(p, name) for p in patterns)]:
        body = dumped(whole | {"fields": [*(shown or []), *added]})
    hides = any(name == "stored_fields" or name.startswith("_source") for name in given)
    hides = (
        hides or "stored_fields" in content or content.get("_source", True) is not True
    )
    return Window(
        *(text, start, size, depth, fields, added, hash((*indexes, *added))),
        bodies=(body if hides else plain_body, body),
        model=options.model,
        weight=defaults.weight if options.weight is None else options.weight,
        ubi=ext.ubi,
    )


def _fields(
    options: _Rerank, defaults: SearchDefaults, indexes: Sequence[str]
) -> FieldsOf:
    """The fields of posts as a search names them, else those of its indexes."""
    served, given = defaults.served.items(), options.document_fields
    own = {
        index: each for index, each in served if any(matches(n, index) for n in indexes)
    }
    # Hits of an alias have other names.
    of_names = {own.get(name, defaults.fields) for name in indexes}
    found = {"": of_names.pop() if len(of_names) == 1 else defaults.fields, **own}
    for index, fields in found.items():
        if given is not None:
            url = fields.url if fields.url in given else None
            fields = replace(
                fields, texts=tuple(name for name in given if name != url), url=url
            )
        names = dict(fields.signals) | _object(options.signals)
        signals = tuple((name, names.get(name) or name) for name in defaults.numbers)
        found[index] = replace(fields, signals=signals)
    return found


def _object(value: Any) -> Json:
    """An object; {} for anything else."""
    return value if isinstance(value, dict) else {}


def _number(name: str, default: int, content: Json, given: Mapping[str, str]) -> int:
    """A number of the path, else of the body, also as a text; raises UnchangedError for others."""
    texts = [str(part.get(name, default)) for part in (content, {**content, **given})]
    if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in texts):
        raise UnchangedError(f"{name} is no whole number")
    return int(texts[-1])


def _names(value: Any) -> list[str]:
    """Names of fields in one of the forms that the engines take."""
    if isinstance(value, str):
        return value.split(",")
    listed = value if isinstance(value, dict | list) else ()
    names = [item.get("field") if isinstance(item, dict) else item for item in listed]
    return [name for name in names if isinstance(name, str)]


def _text(query: Any, content: Json, options: _Rerank, fields: Sequence[str]) -> str:
    """The text of the query, as told or of a query on text fields; raises UnchangedError."""
    context = options.query_context or _Context()
    text, path = context.query_text, context.query_text_path
    if text is None and path is not None:
        text = next((value for value in at(content, path) if value is not None), None)
        if not isinstance(text, str):
            problem = "found something else, expected the path of a text in the search"
            raise RequestError(
                "value", f"ext.rerank.query_context.query_text_path: {problem}"
            )
    elif text is None:
        texts = [pair for pair in _texts(query, fields) if pair[1].strip()]
        text = max(texts, key=lambda pair: pair[0], default=(True, ""))[1]
    if not text.strip():
        listed = ", ".join(dict.fromkeys(fields))
        raise UnchangedError(f"no text is searched in {listed}", "no_text")
    return text


def _texts(query: Any, fields: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """Whether ``fields`` are searched, and the text, of the queries in a query, in their order."""
    for item in query if isinstance(query, list) else ():
        yield from _texts(item, fields)
    for kind, inner in _object(query).items():
        keys = LISTS["texts"].get(kind, "") if isinstance(inner, dict) else ""
        if keys == "field":
            for name, value in inner.items():
                text = value.get("query") if isinstance(value, dict) else value
                if type(text) in _PLAIN and _is_text(name, fields):
                    yield True, str(text)
        elif keys == "fields":
            text, given = inner.get("query"), _names(inner.get("fields"))
            default = str(inner.get("default_field") or "*")
            names = [name.partition("^")[0] for name in given] or [default]
            is_sure = any(_is_text(name, fields) for name in names)
            if type(text) in _PLAIN and (is_sure or given):
                # Fields are texts by their use, too.
                how = {"query_string": [*fields, *names], "simple_query_string": None}
                yield is_sure, plain(text, how[kind]) if kind in how else str(text)
        else:  # Queries within it, the scoring ones first.
            for key in keys.split():
                yield from _texts(inner.get(key), fields)


def _is_text(name: str, fields: Sequence[str]) -> bool:
    """Whether a name or pattern is that of a text field, or of a part of it in another analysis."""
    return any(matches(name, field) or name.startswith(f"{field}.") for field in fields)


def plain(text: Any, fields: Sequence[str] | None) -> str:
    """The wanted words of a ``query_string``, or of a simple one, which names no fields (None)."""
    words, kept, is_excluded = list[str](), [True], False
    for match in _SYNTAX.finditer(str(text)[:_LONGEST_TEXT]):
        sign, name, value = match["sign"], match["field"] or "", match["value"]
        if fields is None:
            name, value = "", name + value
        elif value in ("AND", "OR", "NOT", "&&", "||"):
            is_excluded = value == "NOT"
            continue
        is_kept = kept[-1] and not is_excluded and sign not in ("-", "!")
        if name and fields is not None:
            is_kept = is_kept and _is_text(name[:-1].replace("\\", ""), fields)
        is_excluded = False
        if value == "(":
            kept.append(is_kept)
        elif value == ")":
            kept = kept[:-1] or [True]
        elif is_kept and (fields is None or value[0] not in "/[{"):
            words.append(_MARKS.sub(lambda m: m[1] or " ", value))
    return " ".join(" ".join(words).split())


class Hit(msgspec.Struct, frozen=True):
    """The parts of a hit that are read here."""

    index_name: str = msgspec.field(name="_index", default="")
    doc_id: str = msgspec.field(name="_id", default="")
    # Negative ones mark the parts of a hybrid query whose hits nobody has joined.
    score: Annotated[float, Meta(ge=0)] | None = msgspec.field(
        name="_score", default=None
    )
    source: dict[str, Any] | None = msgspec.field(name="_source", default=None)
    fields: dict[str, Any] | None = None
    ignored_field_values: dict[str, Any] | None = None

    def value(self, name: str) -> Any:
        """The value of a field; () if the hit lacks it."""
        for group in (self.source, self.fields, self.ignored_field_values):
            if group and name in group:
                return group[name]
        return (*at(self.source, name),) if "." in name else ()


def request_of(window: Window, hits: Sequence[Hit]) -> tuple[ScoreRequest, bool]:
    """The request for the scores of a window's hits, and whether none of these lacks a field."""
    texts, urls, signals, are_whole = (
        list[str](),
        list[str](),
        dict[str, list[float]](),
        True,
    )
    for index, group in groupby(hits, attrgetter("index_name")):
        own, run = window.fields.get(index, window.fields[""]), [*group]
        columns = {name: [hit.value(name) for hit in run] for name in own.names}
        are_whole = are_whole and not any(() in column for column in columns.values())
        parts = [map(_joined, columns[name]) for name in own.texts]
        texts += (" ".join(filter(None, each)) for each in zip(*parts, strict=True))
        urls += map(_joined, columns[own.url]) if own.url else [""] * len(run)
        for name, place in own.signals:
            first = (
                v[0] if v and type(v) in (list, tuple) else v for v in columns[place]
            )
            signals.setdefault(name, []).extend(map(number_of, first))
    posts = texts, urls, single_precision(hit.score or 0.0 for hit in hits), signals
    return ScoreRequest(Request(query=window.query), *posts, window.weight), are_whole


_MEMBERS = msgspec.json.Decoder(Members)
_RAWS = msgspec.json.Decoder(list[Raw])
_HITS = msgspec.json.Decoder(list[Hit])


class _Shards(msgspec.Struct):
    failed: int = 0


class SearchResponse(NamedTuple):
    """The response to a search."""

    content: bytes | Raw
    members: Members
    found: Members  # Members of ``hits``
    window: Window | None
    hits: Sequence[Hit] | None = None  # None if there is no list of them to read
    wanted: ScoreRequest | None = None  # Of the hits that are to be reranked
    are_whole: bool = True  # Whether none of these lacks a field

    @property
    def has_failed_shards(self) -> bool:
        """Whether shards have failed, whose hits are missing."""
        with suppress(*ResponseError):
            return (
                msgspec.json.decode(
                    self.members.get("_shards", b"{}"), type=_Shards
                ).failed
                > 0
            )
        return False

    @classmethod
    def read(cls, content: bytes | Raw, window: Window | None) -> Self:
        """Read a response; raises a :data:`ResponseError`."""
        members = members_of(content)
        found = members_of(members["hits"]) if "hits" in members else {}
        with suppress(*ResponseError):
            hits = _HITS.decode(found.get("hits", b""))
            wanted = request_of(window, hits[: window.depth]) if window else ()
            return cls(content, members, found, window, hits, *wanted)
        return cls(content, members, found, window)

    def page(self, rows: Sequence[Row], members: Members, best: str | None) -> Raw:
        """The response with the hits of these rows alone, without the fields that only the reranker
        needed, with other ``members``, and a new best score if any."""
        added, raws = (
            self.window.added if self.window else (),
            _RAWS.decode(self.found["hits"]),
        )
        hits = [changed(raws[row], score, added) for row, score in rows]
        found = self.found | {"hits": encoded(hits)}
        if best is not None and "max_score" in found:
            found["max_score"] = Raw(best.encode())
        return encoded(members | {"hits": encoded(found)})


def changed(hit: Raw, score: str | None, dropped: Collection[str]) -> Raw:
    """A hit without some fields, and with another score where it is given."""
    if score is None and not dropped:
        return hit
    members, first = members_of(hit), dict[str, Raw]()
    if score is not None:
        first = {FIRST_STAGE: Raw(b"[%b]" % bytes(members["_score"]))}
        members["_score"] = Raw(score.encode())
    for name, more in (("fields", first), ("ignored_field_values", {})):
        if more or name in members:
            values = members_of(members.pop(name, b"{}")).items()
            if kept := {key: v for key, v in values if key not in dropped} | more:
                members[name] = encoded(kept)
    return encoded(members)


def encoded(value: Any) -> Raw:
    """JSON, with pieces of a response as they are."""
    return Raw(msgspec.json.encode(value))


def members_of(content: bytes | str | Raw) -> Members:
    """The members of an object; raises a :data:`ResponseError`."""
    return _MEMBERS.decode(content)


def read_responses(
    content: bytes, are_several: bool, windows: Sequence[Window | None]
) -> list[SearchResponse]:
    """The response to a search, or those to several; raises a :data:`ResponseError`."""
    parts = (
        _RAWS.decode(members_of(content).get("responses", b""))
        if are_several
        else [content]
    )
    return (
        [*map(SearchResponse.read, parts, windows)]
        if len(parts) == len(windows)
        else []
    )


def at(value: Any, path: str) -> Iterator[Any]:
    """The values at a path: names may have dots in them, and items of lists need no place."""
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from at({str(place): item}, path)
            yield from at(item, path)
    for name in sorted(_object(value), key=len):
        if path == name:
            yield value[name]
        elif path.startswith(f"{name}."):
            yield from at(value[name], path[len(name) + 1 :])


def _joined(value: Any) -> str:
    """The texts and numbers in a value."""
    if type(value) in _PLAIN:
        return str(value)
    return (
        " ".join(filter(None, map(_joined, value)))
        if type(value) in (list, tuple)
        else ""
    )
