"""A search in the engines' JSON: its text, and the window of hits to rerank."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from pipeline.service.proxy.allowed import LISTS, Json, dumped, matches
from pipeline.service.proxy.response import PostFields, at
from pipeline.service.requests import RequestError

_TEXTS = {kind: keys.split() for keys, kinds in LISTS["texts"].items() for kind in kinds}
"""Kind of a query -> keys of the queries in it, the scoring ones first; or whose text it has."""

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


class ServedIndex(NamedTuple):
    """An index with options of its own: the name of the model for its posts, and their fields."""

    model: str
    fields: PostFields


@dataclass(frozen=True)
class SearchDefaults:
    """Options of searches that do not say otherwise."""

    fields: PostFields = PostFields()
    window: int = 100  # Hits to rerank
    most: int = 2000  # Hits to rerank at most
    seconds: float = 5.0  # For the scores
    weight: float | None = None  # Share of the model beside the engine's score; None: model alone
    indexes: Sequence[str] = ("*",)  # Names and patterns of those that may be read
    served: Mapping[str, ServedIndex] = field(default_factory=dict)  # Index -> its own options
    numbers: Sequence[str] = ()  # Those that models read; without other names they are the fields
    reads_ubi: bool = False  # Whether ``ext.ubi`` is for the log here, not for the engine


class Ubi(msgspec.Struct):
    """``ext.ubi``, of OpenSearch's User Behavior Insights."""

    query_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class _Rerank(msgspec.Struct):
    """``ext.rerank``, in the form of OpenSearch's processor."""

    query_context: dict[str, str | None] | None = None  # query_text, or query_text_path
    document_fields: Annotated[list[str], Meta(min_length=1, max_length=100)] | None = None
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
    fields: Mapping[str, PostFields]  # Index -> fields of its posts; "" for all others
    added: Sequence[str]  # Fields that only the reranker needs
    place: int  # Hash of the indexes and these fields
    body: bytes  # The search with them
    short: bytes | None  # The same without them, for hits that show their whole sources
    model: str | None
    weight: float | None
    ubi: Ubi | None  # ``ext.ubi``, if it is for the log

    def asked(self, lacking: Container[int]) -> bytes:
        """The search to send, where the sources of some places are known to lack fields."""
        return self.short if self.short and self.place not in lacking else self.body


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
    indexes: Sequence[str] = ("*",),
) -> Search:
    """Read an allowed search of some indexes; raises RequestError for a wrong ``ext.rerank``.

    ``given`` are the parameters of the path, or the header in several searches.
    """
    own, given_ext = content, content.get("ext")
    ext: Json = given_ext if isinstance(given_ext, dict) else {}
    ours = ("rerank", "ubi") if defaults.reads_ubi else ("rerank",)
    told = {name: ext[name] for name in ours if ext.get(name) is not None}
    if told:
        others = {name: value for name, value in ext.items() if name not in told}
        own = {n: v for n, v in content.items() if n != "ext"} | ({"ext": others} if others else {})
    pipeline = given.get("search_pipeline") or content.get("search_pipeline")
    is_hybrid = isinstance(query := content.get("query"), dict) and "hybrid" in query
    if pipeline and ("rerank" in told or not is_hybrid):
        return Search(dumped(content), None, "the search names a pipeline of the engine")
    if told.get("rerank") is False:
        return Search(dumped(own), None, "ext.rerank is false")
    try:
        options = msgspec.convert(told, _Ext)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        raise RequestError("value", message, ("ext", path.rstrip("`"))) from None
    try:
        return Search(dumped(own), _window(own, given, options, defaults, indexes))
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
    options, shown, asked = ext.rerank, content.get("fields"), _asked(content)
    start, size = _number("from", 0, content, given), _number("size", 10, content, given)
    depth = min(options.rerank_window or defaults.window, defaults.most)
    parts, both = (content, asked, given), (content, given)
    if any(part.get(name) not in (None, "") for name in LISTS["continued"] for part in parts):
        raise UnchangedError("the search reads on from a hit, or groups hits")
    if not all(_by_score(part.get("sort")) for part in parts):
        raise UnchangedError("the sort has another key than _score")
    if start is None or not size:
        raise UnchangedError("the search shows no hits")
    if start >= depth:
        raise UnchangedError(f"the page begins after the {depth} hits that are reranked")
    is_partial = any("_none_" in _names(part.get("stored_fields")) for part in both)
    if is_partial or not isinstance(shown, list | None) or "filter_path" in given:
        raise UnchangedError("the search leaves out parts of the response")
    query = asked.get("query")
    if given.get("q"):
        query = {"query_string": {"query": given["q"], "default_field": given.get("df", "*")}}
    fields = _fields(options, defaults, indexes)
    text = _text(query, content, options, [n for each in fields.values() for n in each.texts])
    values = [shown, *(part.get("docvalue_fields") for part in both), content.get("script_fields")]
    patterns = [name for value in values for name in _names(value)]
    needed = dict.fromkeys(name for each in fields.values() for name in each.names)
    added = [name for name in needed if not any(matches(p, name) for p in patterns)]
    whole = content | {"from": 0, "size": max(depth, start + size)}
    body = whole | {"fields": [*(shown or []), *added]} if added else whole
    hides = any(name == "stored_fields" or name.startswith("_source") for name in given)
    hides = hides or "stored_fields" in content or content.get("_source", True) is not True
    return Window(
        *(text, start, size, depth, fields, added, hash((*indexes, *added)), dumped(body)),
        short=None if hides or not added else dumped(whole),
        model=options.model,
        weight=defaults.weight if options.weight is None else options.weight,
        ubi=ext.ubi,
    )


def _asked(content: Json) -> Json:
    """A search, or the standard retriever in its place; {} for another retriever."""
    if not isinstance(retriever := content.get("retriever"), dict):
        return content
    standard = retriever.get("standard")
    return standard if isinstance(standard, dict) else {}


def _fields(
    options: _Rerank, defaults: SearchDefaults, indexes: Sequence[str]
) -> Mapping[str, PostFields]:
    """The fields of posts as a search names them, else those of its indexes."""
    own = {
        index: served.fields
        for index, served in defaults.served.items()
        if any(matches(name, index) for name in indexes)
    }
    # Hits of an alias have other names.
    of_names = {own.get(name, defaults.fields) for name in indexes}
    fields = of_names.pop() if len(of_names) == 1 else defaults.fields
    if (given := options.document_fields) is not None:
        url = fields.url if fields.url in given else None
        texts = tuple(name for name in given if name != url)
        fields, own = fields._replace(texts=texts, url=url), {}
    named, found = options.signals, {"": fields, **own}
    for index, each in found.items():
        of = dict(each.signals) | (named if isinstance(named, dict) else {})
        signals = tuple((name, of.get(name) or name) for name in defaults.numbers)
        found[index] = each._replace(signals=signals)
    return found


def _number(name: str, default: int, content: Json, given: Mapping[str, str]) -> int | None:
    """A number of the path, else of the body, also as a text; None if one of both is none."""
    values = [content.get(name, default), *([given[name]] if name in given else ())]
    for value in values:
        is_text = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10
        if not is_text and (type(value) is not int or value < 0):
            return None
    return int(values[-1])


def _by_score(sort: Any) -> bool:
    """Whether hits come by their scores alone, best first: a further key is for reading on."""
    keys = sort.split(",") if isinstance(sort, str) and sort else sort
    if isinstance(keys, list) and len(keys) == 1:
        keys = keys[0]
    if isinstance(keys, dict) and len(keys) == 1:
        [(name, order)] = keys.items()
        order = order.get("order", "desc") if isinstance(order, dict) else order
        return name == "_score" and order == "desc"
    return keys in (None, "", [], "_score", "_score:desc")


def _names(value: Any) -> list[str]:
    """Names of fields in one of the forms that the engines take."""
    if isinstance(value, str):
        return value.split(",")
    listed = value if isinstance(value, dict | list) else ()
    names = [item.get("field") if isinstance(item, dict) else item for item in listed]
    return [name for name in names if isinstance(name, str)]


# --- The text -------------------------------------------------------------------------------------


def _text(query: Any, content: Json, options: _Rerank, fields: Sequence[str]) -> str:
    """The text of the query, as told or of a query on text fields; raises UnchangedError."""
    context = options.query_context or {}
    text, path = context.get("query_text"), context.get("query_text_path")
    if text is None and path is not None:
        text = next((value for value in at(content, path) if value is not None), None)
        if not isinstance(text, str):
            problem = "found something else, expected the path of a text in the search"
            location = ("ext", "rerank", "query_context", "query_text_path")
            raise RequestError("value", problem, location)
    elif text is None:
        texts = [(is_sure, text) for text, is_sure in _texts(query, fields) if text.strip()]
        text = max(texts, key=lambda pair: pair[0], default=(True, ""))[1]
    if not text.strip():
        listed = ", ".join(dict.fromkeys(fields))
        raise UnchangedError(f"no text is searched in {listed}", "no_text")
    return text


def _texts(query: Any, fields: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Texts of the queries inside a query, in their order, and whether ``fields`` are searched."""
    for item in query if isinstance(query, list) else ():
        yield from _texts(item, fields)
    for kind, inner in query.items() if isinstance(query, dict) else ():
        keys = _TEXTS.get(kind, ()) if isinstance(inner, dict) else ()
        if keys == ["field"]:
            for name, value in inner.items():
                text = value.get("query") if isinstance(value, dict) else value
                if type(text) in (str, int, float) and _is_text(name, fields):
                    yield str(text), True
        elif keys == ["fields"]:
            listed, text = _names(inner.get("fields")), inner.get("query")
            names = [name.partition("^")[0] for name in listed]
            names = names or [str(inner.get("default_field") or "*")]
            is_sure = any(_is_text(name, fields) for name in names)
            if type(text) in (str, int, float) and (inner.get("fields") or is_sure):
                if kind == "query_string":  # Fields are texts by their use, too.
                    text = plain(str(text), [*fields, *names])
                elif kind == "simple_query_string":
                    text = plain(str(text), None)
                yield str(text), is_sure
        else:
            for key in keys:
                yield from _texts(inner.get(key), fields)


def _is_text(name: str, fields: Sequence[str]) -> bool:
    """Whether a name or pattern is that of a text field, or of a part of it in another analysis."""
    return any(matches(name, field) or name.startswith(f"{field}.") for field in fields)


def plain(text: str, fields: Sequence[str] | None) -> str:
    """The wanted words of a ``query_string``, or of a simple one, which names no fields (None)."""
    words, kept, is_excluded = list[str](), [True], False
    for match in _SYNTAX.finditer(text[:_LONGEST_TEXT]):
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
