"""A search in the engines' JSON: its text, and the window of hits to rerank."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, StrictFloat, StrictInt, StrictStr

from pipeline.service.errors import RequestError
from pipeline.service.proxy.allowed import LISTS, Json, dumped, names_of
from pipeline.service.proxy.indexes import matches
from pipeline.service.proxy.response import Hit
from pipeline.service.requests import validated

_CONTINUED = names_of(LISTS["continued"])
"""Parts of a search that reads on from a hit, or whose hits are groups."""

_TEXTS = {
    kind: names_of(keys) for keys, kinds in LISTS["texts"].items() for kind in names_of(kinds)
}
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


class PostFields(NamedTuple):
    """Fields of an index's posts: of their texts, joined by blanks, and of their links."""

    texts: tuple[str, ...] = ("contents",)
    url: str | None = "url"

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.texts, self.url) if self.url else self.texts


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
    reads_ubi: bool = False  # Whether ``ext.ubi`` is for the log here, not for the engine


@dataclass(frozen=True)
class Window:
    """The best hits of a search, to be reranked, and the page that is shown."""

    query: str
    start: int  # Of the page
    size: int
    depth: int  # Hits to rerank; those after them keep the engine's order
    fields: Mapping[str, PostFields]  # Index -> fields of its posts; "" for all others
    added: Sequence[str]  # Fields that only the reranker needs
    model: str | None
    weight: float | None
    body: bytes  # The search of the window
    short: bytes | None  # The same without the added fields, for hits that show their whole source
    ubi: Ubi | None = None  # ``ext.ubi``, if it is for the log

    def fields_of(self, hit: Hit) -> PostFields:
        """The fields of a hit."""
        return self.fields.get(hit.index_name, self.fields[""])

    def is_shown(self, hit: Hit) -> bool:
        """Whether a hit's source has all that the reranker needs."""
        return hit.has(self.fields_of(hit).names)

    def text_of(self, hit: Hit) -> str:
        """The text of a hit."""
        return hit.text(self.fields_of(hit).texts)


class Search(NamedTuple):
    """A search as the engine is to see it, and its window or the reason why it passes unchanged."""

    body: bytes
    window: Window | None
    reason: str = ""
    outcome: str = "unchanged"
    header: bytes = b""  # Of one of several searches


class UnchangedError(Exception):
    """A search passes unchanged, for a reason; and how it is counted."""

    def __init__(self, reason: str, outcome: str = "unchanged") -> None:
        super().__init__(reason)
        self.reason, self.outcome = reason, outcome


class Ubi(BaseModel):
    """``ext.ubi``, of OpenSearch's User Behavior Insights."""

    query_id: Annotated[StrictStr, Field(min_length=1, max_length=256)] | None = None


class _QueryContext(BaseModel):
    query_text: StrictStr | None = None
    query_text_path: StrictStr | None = None


class _Rerank(BaseModel):
    """``ext.rerank``, in the form of OpenSearch's processor."""

    query_context: _QueryContext | None = None
    document_fields: Annotated[list[StrictStr], Field(min_length=1)] | None = None
    rerank_window: Annotated[StrictInt, Field(gt=0)] | None = None
    model: StrictStr | None = None
    weight: Annotated[StrictFloat | StrictInt, Field(ge=0, le=1)] | None = None


def read_search(
    content: Json,
    given: Mapping[str, str],
    defaults: SearchDefaults,
    indexes: Sequence[str] = ("*",),
) -> Search:
    """Read an allowed search of some indexes; raises RequestError for a wrong ``ext.rerank``.

    ``given`` are the parameters of the path, or the header in several searches.
    """
    pipeline = given.get("search_pipeline") or content.get("search_pipeline")
    own, rerank = _without(content, "rerank")
    query = content.get("query")
    if pipeline and not (rerank is None and isinstance(query, dict) and "hybrid" in query):
        return Search(dumped(content), None, "the search names a pipeline of the engine")
    own, ubi = _without(own, "ubi") if defaults.reads_ubi else (own, None)
    if rerank is False:
        return Search(dumped(own), None, "ext.rerank is false")
    options = validated(_Rerank, rerank or {}, ("ext", "rerank"))
    told = None if ubi is None else validated(Ubi, ubi, ("ext", "ubi"))
    try:
        return Search(dumped(own), _window(own, given, options, defaults, told, indexes))
    except UnchangedError as error:
        return Search(dumped(own), None, error.reason, error.outcome)


def _without(content: Json, part: str) -> tuple[Json, Any]:
    """A search without a part of its ``ext``, and that; None without one."""
    ext = content.get("ext")
    if not isinstance(ext, dict) or ext.get(part) is None:
        return content, None
    others = {name: value for name, value in ext.items() if name != part}
    rest = {name: value for name, value in content.items() if name != "ext"}
    return (rest | {"ext": others} if others else rest), ext[part]


def _window(
    content: Json,
    given: Mapping[str, str],
    options: _Rerank,
    defaults: SearchDefaults,
    ubi: Ubi | None,
    indexes: Sequence[str],
) -> Window:
    """The window of a search; raises UnchangedError."""
    start, size = _number("from", 0, content, given), _number("size", 10, content, given)
    depth = min(options.rerank_window or defaults.window, defaults.most)
    retriever = content.get("retriever")
    standard = retriever.get("standard") if isinstance(retriever, dict) else {}
    parts = [content, standard if isinstance(standard, dict) else {}, given]
    if any(part.get(name) not in (None, "") for name in _CONTINUED for part in parts):
        raise UnchangedError("the search reads on from a hit, or groups hits")
    if not all(_by_score(part.get("sort")) for part in parts):
        raise UnchangedError("the sort has another key than _score")
    if start is None or not size:
        raise UnchangedError("the search shows no hits")
    if start >= depth:
        raise UnchangedError(f"the page begins after the {depth} hits that are reranked")
    shown = content.get("fields")
    if (
        not (shown is None or isinstance(shown, list))
        or "filter_path" in given
        or any("_none_" in _names(part.get("stored_fields")) for part in (given, content))
    ):
        raise UnchangedError("the search leaves out parts of the response")
    fields = _fields(options.document_fields, defaults, indexes)
    text = _text(content, given, options, [n for each in fields.values() for n in each.texts])
    needed = list(dict.fromkeys(name for each in fields.values() for name in each.names))
    patterns = [
        *_names(shown),
        *(name for part in (given, content) for name in _names(part.get("docvalue_fields"))),
        *_names(content.get("script_fields")),
    ]
    added = [name for name in needed if not any(matches(p, name) for p in patterns)]
    whole = content | {"from": 0, "size": max(depth, start + size)}
    body = dumped(whole | {"fields": [*(shown or []), *added]} if added else whole)
    short = dumped(whole) if added and _shows_source(content, given) else None
    weight = defaults.weight if options.weight is None else options.weight
    model = options.model
    return Window(text, start, size, depth, fields, added, model, weight, body, short, ubi)


def _fields(
    given: Sequence[str] | None, defaults: SearchDefaults, indexes: Sequence[str]
) -> Mapping[str, PostFields]:
    """The fields of posts as a search names them, else those of its indexes."""
    own = {
        index: served.fields
        for index, served in defaults.served.items()
        if any(matches(name, index) for name in indexes)
    }
    # Hits of an alias have other names.
    of_names = dict.fromkeys(own.get(name, defaults.fields) for name in indexes)
    fields = next(iter(of_names)) if len(of_names) == 1 else defaults.fields
    if given is None:
        return {"": fields, **own}
    url = fields.url if fields.url in given else None
    return {"": PostFields(tuple(name for name in given if name != url), url)}


def _shows_source(content: Json, given: Mapping[str, str]) -> bool:
    """Whether hits have their whole sources."""
    names = [*given, *(content.keys() - {"_source"})]
    is_limited = any(name == "stored_fields" or name.startswith("_source") for name in names)
    return content.get("_source", True) is True and not is_limited


def _number(name: str, default: int, content: Json, given: Mapping[str, str]) -> int | None:
    """A number of the path, else of the body; None if one of both is none."""
    inside = _whole(content.get(name, default))
    return None if inside is None else _whole(given.get(name, inside))


def _whole(value: Any) -> int | None:
    """A number as the engines read it, also from a text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return value if type(value) is int and value >= 0 else None


def _by_score(sort: Any) -> bool:
    """Whether hits come by their scores alone, best first: a further key is for reading on."""
    keys = sort.split(",") if isinstance(sort, str) and sort else sort
    if isinstance(keys, list) and len(keys) == 1:
        keys = keys[0]
    if isinstance(keys, dict) and len(keys) == 1:
        name, order = next(iter(keys.items()))
        order = order.get("order", "desc") if isinstance(order, dict) else order
        return name == "_score" and order == "desc"
    return keys in (None, "", [], "_score", "_score:desc")


def _names(value: Any) -> Iterator[str]:
    """Names of fields in one of the forms that the engines take."""
    if isinstance(value, str):
        yield from value.split(",")
    elif isinstance(value, dict):
        yield from value
    elif isinstance(value, list):
        for item in value:
            name = item.get("field") if isinstance(item, dict) else item
            if isinstance(name, str):
                yield name


# --- The text -------------------------------------------------------------------------------------


def _text(content: Json, given: Mapping[str, str], options: _Rerank, fields: Sequence[str]) -> str:
    """The text of the query, as told or of a query on text fields; raises UnchangedError."""
    context, found = options.query_context or _QueryContext(), None
    if context.query_text is not None:
        found = context.query_text
    elif context.query_text_path is not None:
        values = _at(content, context.query_text_path)
        found = next((value for value in values if value is not None), None)
        if not isinstance(found, str):
            problem = "found something else, expected the path of a text in the search"
            location = ("ext", "rerank", "query_context", "query_text_path")
            raise RequestError("value", problem, location)
    elif given.get("q"):
        told = {"query": given["q"], "default_field": given.get("df", "*")}
        found = _of_fields("query_string", told, fields)[0]
    else:
        query = content.get("query")
        if isinstance(retriever := content.get("retriever"), dict):
            standard = retriever.get("standard")
            query = standard.get("query") if isinstance(standard, dict) else None
        texts = [(not is_sure, text) for text, is_sure in _texts(query, fields) if text.strip()]
        found = min(texts, key=lambda pair: pair[0], default=(True, None))[1]
    if not found or not found.strip():
        listed = ", ".join(dict.fromkeys(fields))
        raise UnchangedError(f"no text is searched in {listed}", "no_text")
    return found


def _at(value: Any, path: str) -> Iterator[Any]:
    """The values at a path; names may have dots in them."""
    if isinstance(value, list):
        value = {str(place): item for place, item in enumerate(value)}
    for name in sorted(value, key=len) if isinstance(value, dict) else ():
        if path == name:
            yield value[name]
        elif path.startswith(f"{name}."):
            yield from _at(value[name], path[len(name) + 1 :])


def _texts(query: Any, fields: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Texts of the queries inside a query, in their order, and whether ``fields`` are searched."""
    if isinstance(query, list):
        yield from chain.from_iterable(_texts(item, fields) for item in query)
    for kind, inner in query.items() if isinstance(query, dict) else ():
        if not isinstance(inner, dict):
            continue
        keys = _TEXTS.get(kind, ())
        if keys == ["field"]:
            for name, value in inner.items():
                text = value.get("query") if isinstance(value, dict) else value
                if type(text) in (str, int, float) and _is_text(name, fields):
                    yield str(text), True
        elif keys == ["fields"]:
            yield _of_fields(kind, inner, fields)
        else:
            for key in keys:
                yield from _texts(inner.get(key), fields)


def _of_fields(kind: str, query: Json, fields: Sequence[str]) -> tuple[str, bool]:
    """The text of a query of several fields, which are texts by their use, without its syntax."""
    text, listed = query.get("query"), query.get("fields")
    names = [name.partition("^")[0] for name in _names(listed)]
    names = names or [str(query.get("default_field") or "*")]
    is_sure = any(_is_text(name, fields) for name in names)
    if type(text) not in (str, int, float) or not (listed or is_sure):
        return "", False
    if not kind.endswith("query_string"):
        return str(text), is_sure
    is_simple = kind.startswith("simple")
    return plain(
        str(text), None if is_simple else lambda n: _is_text(n, [*fields, *names])
    ), is_sure


def _is_text(name: str, fields: Sequence[str]) -> bool:
    """Whether a name or pattern is that of a text field, or of a part of it in another analysis."""
    return any(matches(name, field) or name.startswith(f"{field}.") for field in fields)


def plain(text: str, is_text: Callable[[str], bool] | None) -> str:
    """The wanted words of a ``query_string``, or of a simple one, which has no fields (None)."""
    words, kept, is_excluded = list[str](), [True], False
    for match in _SYNTAX.finditer(text[:_LONGEST_TEXT]):
        sign, name, value = match["sign"], match["field"] or "", match["value"]
        if is_text is None:
            name, value = "", name + value
        elif value in ("AND", "OR", "NOT", "&&", "||"):
            is_excluded = value == "NOT"
            continue
        is_kept = kept[-1] and not is_excluded and sign not in ("-", "!")
        if name and is_text:
            is_kept = is_kept and is_text(name[:-1].replace("\\", ""))
        is_excluded = False
        if value == "(":
            kept.append(is_kept)
        elif value == ")":
            kept = kept[:-1] or [True]
        elif is_kept and not (is_text and value[0] in "/[{"):
            words.append(_MARKS.sub(lambda m: m[1] or " ", value))
    return " ".join(" ".join(words).split())
