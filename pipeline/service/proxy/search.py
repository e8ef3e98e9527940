"""Searches and their responses in the engines' JSON: the window to rerank, and its page.

Responses are cut into pieces of text: what is not changed stays as the engine wrote it. Numbers of
any length, halves of surrogate pairs and keys in their order come through, which they would not if
the response were read as a whole and written again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field, StrictInt, StrictStr

from pipeline.service.errors import RequestError
from pipeline.service.proxy.indexes import looked_up, matches, readable
from pipeline.service.requests import validated

Json = dict[str, Any]

# --- The search -----------------------------------------------------------------------------------

UNCHANGED = ("search_after", "pit", "slice", "collapse", "scroll")
"""Parts of a search with which a window of the best hits has no meaning."""

UNCHANGED_PARAMETERS = ("filter_path", "source", "scroll", "search_pipeline")
"""Parameters of a path with which the response, or the search, is not to be read here."""

_COMPOUND: Mapping[str, Sequence[str]] = {
    "bool": ("must", "should", "filter"),
    "boosting": ("positive",),
    "constant_score": ("filter",),
    **dict.fromkeys(("dis_max", "hybrid"), ("queries",)),
    **dict.fromkeys(("function_score", "has_child", "has_parent"), ("query",)),
    **dict.fromkeys(("nested", "script_score"), ("query",)),
}
"""Queries of queries -> their keys, the scoring ones first."""

_WITH_TEXT = ("multi_match", "query_string", "simple_query_string")


class PostFields(NamedTuple):
    """Fields of an index's posts: of their texts, joined by blanks, and of their links."""

    texts: tuple[str, ...] = ("contents",)
    url: str | None = "url"

    @property
    def names(self) -> list[str]:
        """All of them."""
        return [*self.texts, *([self.url] if self.url else [])]


class ServedIndex(NamedTuple):
    """An index with options of its own: the name of the model for its posts, and their fields."""

    model: str
    fields: PostFields


@dataclass(frozen=True)
class SearchDefaults:
    """Options of searches that do not say otherwise."""

    fields: PostFields = PostFields()
    window: int = 100  # Hits to rerank
    most: int = 2000  # Hits to rerank at most; larger searches pass unchanged
    seconds: float = 5.0  # For the scores
    indexes: Sequence[str] = ("*",)  # Names and patterns of those that may be read
    served: Mapping[str, ServedIndex] = field(default_factory=dict)  # Index -> its own options
    reads_ubi: bool = False  # Whether ``ext.ubi`` is for the log here, not for the engine


@dataclass(frozen=True)
class Window:
    """The best hits of a search, to be reranked, and the page of them that is shown."""

    query: str
    start: int  # Of the page
    size: int
    fields: Mapping[str, PostFields]  # Index -> fields of its posts; "" for all others
    added: Sequence[str]  # Fields that only the reranker needs
    model: str | None
    body: bytes  # The search of the window
    short: bytes | None  # The same without the added fields, for hits that show their whole source
    ubi: Ubi | None = None  # ``ext.ubi``, if it is for the log

    def fields_of(self, hit: Hit) -> PostFields:
        """The fields of a hit."""
        return self.fields.get(hit.index_name, self.fields[""])

    def is_shown(self, hit: Hit) -> bool:
        """Whether a hit's source has all that the reranker needs."""
        names = {*self.fields_of(hit).names, self.ubi and self.ubi.object_id_field}
        return hit.has([name for name in self.added if name in names])


class Search(NamedTuple):
    """A search as the engine is to see it, and its window; None if it passes unchanged."""

    body: bytes
    window: Window | None = None


class Ubi(BaseModel):
    """``ext.ubi``, of OpenSearch's User Behavior Insights."""

    query_id: Annotated[StrictStr, Field(min_length=1, max_length=256)] | None = None
    object_id_field: StrictStr | None = None


class _QueryContext(BaseModel):
    query_text: StrictStr | None = None
    query_text_path: StrictStr | None = None


class _Rerank(BaseModel):
    """``ext.rerank``, in the form of OpenSearch's processor."""

    query_context: _QueryContext | None = None
    document_fields: Annotated[list[StrictStr], Field(min_length=1)] | None = None
    rerank_window: Annotated[StrictInt, Field(gt=0)] | None = None
    model: StrictStr | None = None


def read_search(
    body: bytes,
    parameters: Sequence[tuple[str, str]],
    defaults: SearchDefaults,
    indexes: Sequence[str] = ("*",),
) -> Search:
    """Read a search whose ``parameters`` are those of the path, or of the header in several ones.

    ``indexes`` are the names and patterns that are searched. Raises RequestError for a search whose
    indexes cannot be checked or are not served, and for a wrong ``ext.rerank``.
    """
    given = {name: value for name, value in parameters if value}
    content = strict(body if body.strip() else given.get("source", "{}").encode())
    if not indexes and not content.get("pit"):
        readable([], defaults.indexes)
    for name in looked_up(content):
        readable(name.split(","), defaults.indexes)
    if "search_pipeline" in given or "search_pipeline" in content:
        return Search(body)
    content, rerank = _without(content, "rerank")
    ubi = None
    if defaults.reads_ubi:
        content, ubi = _without(content, "ubi")
    try:
        own = body if rerank is None and ubi is None else _dumped(content)
        if rerank is False or any(name in given for name in UNCHANGED_PARAMETERS):
            return Search(own)
        options = validated(_Rerank, rerank or {}, ("ext", "rerank"))
        told = None if ubi is None else validated(Ubi, ubi, ("ext", "ubi"))
        window = _window(content, given, options, defaults, told, indexes)
        return Search(own, window)
    except (ValueError, RecursionError):
        return Search(body)


def _dumped(content: Any) -> bytes:
    """JSON without blanks; raises ValueError for numbers that JSON does not have."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def strict(body: bytes) -> Json:
    """A JSON object in which no key is twice; raises RequestError for anything else.

    The engine must not read another search than the one whose indexes were checked.
    """

    def unique(pairs: list[tuple[str, Any]]) -> Json:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key is there twice")
        return dict(pairs)

    def refuse(constant: str) -> Any:
        raise ValueError(f"found {constant}")

    try:
        content = json.loads(body.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
        if not isinstance(content, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as error:
        problem = f"found no JSON object that can be read: {str(error)[:200]}"
        raise RequestError("json", problem) from None
    return content


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
) -> Window | None:
    """The window of a search; None if it passes unchanged."""
    start, size = _number("from", 0, content, given), _number("size", 10, content, given)
    shown, text = content.get("fields"), _text(content, given, options)
    if (
        any(name in content for name in UNCHANGED)
        or not size
        or start is None
        or start + size > defaults.most
        or not all(map(_by_score, (given.get("sort", "_score").split(","), content.get("sort"))))
        or not (text and text.strip())
        or not (shown is None or isinstance(shown, list))
        or any("_none_" in _names(part.get("stored_fields")) for part in (given, content))
    ):
        return None
    fields = _fields(options.document_fields, defaults, indexes)
    needed = list(dict.fromkeys(name for each in fields.values() for name in each.names))
    if ubi and ubi.object_id_field not in (None, "_id"):
        needed.append(str(ubi.object_id_field))
    patterns = [
        *_names(shown),
        *(name for part in (given, content) for name in _names(part.get("docvalue_fields"))),
        *_names(content.get("script_fields")),
    ]
    added = [name for name in needed if not any(matches(p, name) for p in patterns)]
    hits = min(max(options.rerank_window or defaults.window, start + size), defaults.most)
    short = content | {"from": 0, "size": hits}
    body = _dumped(short | {"fields": [*(shown or []), *added]} if added else short)
    first = _dumped(short) if added and _shows_source(content, given) else None
    return Window(text, start, size, fields, added, options.model, body, first, ubi)


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
    """Whether hits come by their scores, best first."""
    first = sort[0] if isinstance(sort, list) and sort else sort
    if isinstance(first, dict) and first:
        name, order = next(iter(first.items()))
        order = order.get("order", "desc") if isinstance(order, dict) else order
        return name == "_score" and order == "desc"
    return first in (None, [], "_score", "_score:desc")


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


def _text(content: Json, given: Mapping[str, str], options: _Rerank) -> str | None:
    """The text of the query: as told, else of the first query inside that has a text."""
    context = options.query_context or _QueryContext()
    if context.query_text is not None:
        return context.query_text
    if context.query_text_path is None:
        return given.get("q") or next(_texts(content.get("query")), None)
    found = _at(content, context.query_text_path)
    text = next((value for value in found if value is not None), None)
    if not isinstance(text, str):
        problem = "found something else, expected the path of a text in the search"
        location = ("ext", "rerank", "query_context", "query_text_path")
        raise RequestError("value", problem, location)
    return text


def _at(value: Any, path: str) -> Iterator[Any]:
    """The values at a path; names may have dots in them."""
    if isinstance(value, list):
        value = {str(place): item for place, item in enumerate(value)}
    for name in sorted(value, key=len) if isinstance(value, dict) else ():
        if path == name:
            yield value[name]
        elif path.startswith(f"{name}."):
            yield from _at(value[name], path[len(name) + 1 :])


def _texts(query: Any) -> Iterator[str]:
    """The texts of the queries inside a query, in their order."""
    if isinstance(query, list):
        yield from chain.from_iterable(map(_texts, query))
    if not isinstance(query, dict):
        return
    for kind, inner in query.items():
        if not isinstance(inner, dict):
            continue
        text = inner.get("query") if kind in _WITH_TEXT else None
        if kind == "match":
            text = next(iter(inner.values()), None)
            text = text.get("query") if isinstance(text, dict) else text
        if type(text) in (str, int, float):
            yield str(text)
        for key in _COMPOUND.get(kind, ()):
            yield from _texts(inner.get(key))


# --- The response ---------------------------------------------------------------------------------

FIRST_STAGE = "_first_stage_score"  # Field of a hit with the engine's own score
MARK = '"_reranked":false,'  # At the start of a response that should have been reranked
_GROUPS = ("fields", "ignored_field_values")  # Members of a hit with values of fields

_KEY = re.compile(r'[\s,]*("(?:[^"\\]|\\.)*")\s*:\s*')
_BETWEEN = re.compile(r"[\s,]*")
_HALVES = re.compile("[\ud800-\udfff]")

Value = TypeVar("Value")
Reader = Callable[[str, int], tuple[Any, int]]
"""Text and place of a value -> the value, and its end."""

_scan: Reader = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class Member(NamedTuple):
    """The value of a key, from ``begin`` to ``stop``."""

    begin: int
    stop: int
    value: Any


class Hit(NamedTuple):
    """A hit from ``start`` to ``stop``, and its content."""

    start: int
    stop: int
    content: Mapping[str, Any]

    @property
    def score(self) -> float | None:
        """The engine's score."""
        value = self.content.get("_score")
        return float(value) if type(value) in (int, float) else None  # type: ignore[arg-type]

    @property
    def index_name(self) -> str:
        """Of the index that it is from."""
        return str(self.content.get("_index", ""))

    @property
    def doc_id(self) -> str:
        """Its ``_id``."""
        return str(self.content.get("_id", ""))

    def text(self, names: Sequence[str]) -> str:
        """The values of fields, joined by blanks."""
        return " ".join(chain.from_iterable(map(self._texts, names)))

    def has(self, names: Sequence[str]) -> bool:
        """Whether its source has all of these fields."""
        source = self.content.get("_source")
        return all(_inside(source, name) is not None for name in names)

    def _texts(self, name: str) -> Iterator[str]:
        for group in _GROUPS:
            fields = self.content.get(group)
            if fields and name in fields:
                return _leaves(fields[name])
        return _leaves(_inside(self.content.get("_source"), name))


@dataclass(frozen=True)
class SearchResponse:
    """The response to a search, in a text that may hold several."""

    text: str  # Of all of them
    start: int  # Of this one in the text
    stop: int
    first: int = 0  # Of the list of hits in the text
    last: int = 0
    hits: Sequence[Hit] | None = None  # In the engine's order; None if there is no list
    ext: tuple[int, bool] | None = None  # Start of its content in the text; whether there is any

    def page(
        self,
        rows: Sequence[tuple[int, str | None]],
        dropped: Collection[str],
        marked: bool = False,
        ext: str = "",
    ) -> str:
        """The response with the hits of these rows alone, and their new scores, None for old ones.

        Without the fields ``dropped``, with the members ``ext`` in its ``ext``; ``marked`` where it
        should have been reranked.
        """
        assert self.hits is not None
        shown = ",".join(self._hit(self.hits[row], dropped, score) for row, score in rows)
        changes = [(self.first, self.last, f"[{shown}]")]
        text, at = "{" + MARK * marked, self.start + 1
        if ext and self.ext:
            place, has_others = self.ext
            changes.append((place, place, ext + "," * has_others))
        elif ext:
            text += f'"ext":{{{ext}}},'
        for begin, stop, change in sorted(changes):
            text += self.text[at:begin] + change
            at = stop
        return text + self.text[at : self.stop]

    def _hit(self, hit: Hit, dropped: Collection[str], score: str | None) -> str:
        """A hit without some fields, and with another score where it is given."""
        if score is None and not dropped:
            return self.text[hit.start : hit.stop]
        members = _raw(self.text, hit.start)
        groups = {name: _raw(members.pop(name)) for name in _GROUPS if hit.content.get(name)}
        for fields, name in product(groups.values(), dropped):
            fields.pop(name, None)
        if score is not None:
            groups.setdefault("fields", {})[FIRST_STAGE] = f"[{members['_score']}]"
            members["_score"] = score
        return _joined(members | {name: _joined(group) for name, group in groups.items() if group})


def read_response(text: str) -> SearchResponse:
    """The response to a search; raises ValueError for another text."""
    return _checked(_response, text)


def read_responses(text: str) -> tuple[list[SearchResponse], int, int]:
    """The responses to several searches, and the bounds of their list; raises ValueError."""
    members = _checked(partial(_object, readers={"responses": partial(_list, _response)}), text)
    if "responses" not in members:
        raise ValueError("found no list of responses")
    begin, stop, responses = members["responses"]
    return responses, begin, stop


def _checked(read: Reader, text: str) -> Any:
    try:
        return read(text, _after(text, 0))[0]
    except (StopIteration, IndexError, RecursionError):
        raise ValueError("found no JSON of the expected form") from None


def _response(text: str, at: int) -> tuple[SearchResponse, int]:
    inside = partial(_object, readers={"hits": partial(_list, _hit)})
    members, stop = _object(text, at, {"hits": inside})
    if "hits" not in members or "hits" not in members["hits"].value:
        return SearchResponse(text, at, stop), stop
    ext = members.get("ext")
    place = (ext.begin + 1, bool(ext.value)) if ext and isinstance(ext.value, dict) else None
    first, last, hits = members["hits"].value["hits"]
    return SearchResponse(text, at, stop, first, last, hits, place), stop


def _hit(text: str, at: int) -> tuple[Hit, int]:
    content, stop = _scan(text, at)
    if not isinstance(content, dict):
        raise ValueError("found no object")
    return Hit(at, stop, content), stop


def _object(
    text: str, at: int, readers: Mapping[str, Reader] = MappingProxyType({})
) -> tuple[dict[str, Member], int]:
    """The members of the object at a place; some values are read in their own ways."""
    if text[at] != "{":
        raise ValueError("found no object")
    members, at = {}, at + 1
    while match := _KEY.match(text, at):
        name = json.loads(match[1])
        value, at = readers.get(name, _scan)(text, match.end())
        members[name] = Member(match.end(), at, value)
    at = _after(text, at)
    if text[at] != "}":
        raise ValueError("found no }")
    return members, at + 1


def _list(reader: Reader, text: str, at: int) -> tuple[list[Any], int]:
    """The values of the list at a place."""
    if text[at] != "[":
        raise ValueError("found no list")
    values, at = [], at + 1
    while text[at := _after(text, at)] != "]":
        value, at = reader(text, at)
        values.append(value)
    return values, at + 1


def _after(text: str, at: int) -> int:
    """The end of blanks and commas from a place on."""
    match = _BETWEEN.match(text, at)
    return match.end() if match else at


def _raw(text: str, at: int = 0) -> dict[str, str]:
    """Name -> text of the members of the object at a place."""
    return {name: text[m.begin : m.stop] for name, m in _object(text, at)[0].items()}


def _joined(members: Mapping[str, str]) -> str:
    """An object of members that are JSON."""
    return f"{{{','.join(f'{json.dumps(name)}:{value}' for name, value in members.items())}}}"


def _inside(value: Any, name: str) -> Any:
    """The values of a field in a source: with dots in its key, or an object for each dot."""
    if isinstance(value, list):
        return [_inside(item, name) for item in value]
    if not isinstance(value, dict):
        return None
    if name in value:
        return value[name]
    head, _, rest = name.partition(".")
    return _inside(value.get(head), rest) if rest else None


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        yield from chain.from_iterable(map(_leaves, value))
    elif isinstance(value, str):
        yield value if value.isascii() else _HALVES.sub("\ufffd", value)
    elif type(value) in (int, float):
        yield str(value)
