"""Searches and their responses in the engines' JSON: the window to rerank, and its page.

Responses are cut into pieces of text: what is not changed stays as the engine wrote it. Numbers of
any length, halves of surrogate pairs and keys in their order come through, which they would not if
the response were read as a whole and written again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field, StrictInt, StrictStr

from pipeline.service.errors import RequestError
from pipeline.service.http.requests import validated
from pipeline.service.proxy.indexes import looked_up, matches, readable

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
    "dis_max": ("queries",),
    "function_score": ("query",),
    "has_child": ("query",),
    "has_parent": ("query",),
    "hybrid": ("queries",),
    "nested": ("query",),
    "script_score": ("query",),
}
"""Queries of queries -> their keys, the scoring ones first."""

_SPLIT = frozenset(
    (
        *("query", "from", "size", "sort", "_source", "fields", "docvalue_fields", "ext", "aggs"),
        *("aggregations", "highlight", "min_score", "post_filter", "rescore", "indices_boost"),
        *("explain", "version", "seq_no_primary_term", "timeout", "terminate_after"),
        *("track_scores", "track_total_hits"),
    )
)
"""Parts of a search beside which a hit's source can come by a search of its own."""

_SPLIT_PARAMETERS = frozenset(
    (
        *("from", "size", "routing", "preference", "pretty", "human", "typed_keys", "search_type"),
        *("ignore_unavailable", "allow_no_indices", "expand_wildcards", "ignore_throttled"),
        *("batched_reduce_size", "max_concurrent_shard_requests", "pre_filter_shard_size"),
        *("ccs_minimize_roundtrips", "rest_total_hits_as_int", "track_total_hits"),
    )
)

_WIDENED = _SPLIT - {
    *("sort", "explain", "min_score", "rescore", "indices_boost", "terminate_after", "track_scores")
}
"""Parts of a search beside which a second one finds further hits with the scores of the first."""

_WIDENED_PARAMETERS = _SPLIT_PARAMETERS - {"rest_total_hits_as_int", "track_total_hits"}

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
    """Options of searches that do not say otherwise.

    Attributes:
        fields: of the posts.
        window: hits to rerank.
        most: hits to rerank at most; larger searches pass unchanged.
        seconds: for the scores.
        indexes: names and patterns of those that may be read.
        served: index -> its own options; the default model and fields for others.
        reads_ubi: whether ``ext.ubi`` is for the log here, not for the engine.
        widens: whether the window gets further hits by a second search.
    """

    fields: PostFields = PostFields()
    window: int = 100
    most: int = 2000
    seconds: float = 5.0
    indexes: Sequence[str] = ("*",)
    served: Mapping[str, ServedIndex] = field(default_factory=dict)
    reads_ubi: bool = False
    widens: bool = False


@dataclass(frozen=True)
class Window:
    """The best hits of a search, to be reranked, and the page of them that is shown.

    Attributes:
        query: text of the search.
        start, size: of the page.
        hits: of the window.
        own_fields: index -> fields of its posts, where it has others.
        added: fields that only the reranker needs.
        body: the search of the window.
        short: the same without the added fields, for hits that show their whole source.
        needed: end of a search whose hits' sources have only what the reranker needs; None if their
            whole sources cannot come by another search.
        ubi: ``ext.ubi``, if it is for the log.
        can_widen: whether a second search finds hits that the first one might have found.
    """

    query: str
    start: int
    size: int
    hits: int
    fields: PostFields
    own_fields: Mapping[str, PostFields]
    added: Sequence[str]
    model: str | None
    body: bytes
    short: bytes | None
    needed: bytes | None = None
    ubi: Ubi | None = None
    can_widen: bool = False

    def widened(self, words: Mapping[str, float]) -> Window:
        """The window of a search of the same posts that prefers those with weighted words."""
        every = (self.fields, *self.own_fields.values())
        fields = list(dict.fromkeys(name for each in every for name in each.texts))
        should = [
            {"multi_match": {"query": word, "fields": fields, "boost": weight, "lenient": True}}
            for word, weight in words.items()
        ]
        short = self.short and _widened(self.short, self.hits, should)
        return replace(self, body=_widened(self.body, self.hits, should), short=short)

    def fields_of(self, hit: Hit) -> PostFields:
        """The fields of a hit."""
        return self.own_fields.get(hit.index_name, self.fields)

    def is_shown(self, hit: Hit) -> bool:
        """Whether a hit's source has all that the reranker needs."""
        names = {*self.fields_of(hit).names, self.ubi and self.ubi.object_id_field}
        return hit.has([name for name in self.added if name in names])

    def without_sources(self, body: bytes) -> bytes:
        """A search of the window, for hits with only the needed part of their sources."""
        assert self.needed is not None
        return body[:-1] + self.needed


@dataclass(frozen=True)
class Search:
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
    fields, own_fields = _fields(options.document_fields, defaults, indexes)
    needed = list(dict.fromkeys(n for each in (fields, *own_fields.values()) for n in each.names))
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
    has_source, sources = _shows_source(content, given), None
    if has_source and content.keys() <= _SPLIT and given.keys() <= _SPLIT_PARAMETERS:
        short.pop("_source", None)
        sources = b',"_source":' + _dumped(needed) + b"}"
    body = _dumped(short | {"fields": [*(shown or []), *added]} if added else short)
    first = _dumped(short) if added and has_source else None
    names = fields, own_fields, added, options.model
    query = content.get("query")
    can_widen = isinstance(query, dict) and "hybrid" not in query
    can_widen &= content.keys() <= _WIDENED and given.keys() <= _WIDENED_PARAMETERS
    return Window(text, start, size, hits, *names, body, first, sources, ubi, can_widen)


def _widened(body: bytes, hits: int, should: Sequence[Json]) -> bytes:
    """A search whose hits are chosen by more queries, which they need not match.

    It finds only what it found before, and its hits have their scores of before.
    """
    content: Json = json.loads(body)
    own = content["query"]
    content = {name: part for name, part in content.items() if name not in ("aggs", "aggregations")}
    if isinstance(highlight := content.get("highlight"), dict):
        content["highlight"] = {"highlight_query": own, **highlight}
    by_own = {"rescore_query": own, "query_weight": 0, "rescore_query_weight": 1}
    content["query"] = {"bool": {"must": [own], "should": should}}
    content["rescore"] = {"window_size": hits, "query": by_own}
    return _dumped(content | {"track_total_hits": False})


def _fields(
    given: Sequence[str] | None, defaults: SearchDefaults, indexes: Sequence[str]
) -> tuple[PostFields, Mapping[str, PostFields]]:
    """The fields of posts as a search names them, else those of its indexes.

    Those of indexes with fields of their own stand by themselves.
    """
    own = {
        index: served.fields
        for index, served in defaults.served.items()
        if any(matches(name, index) for name in indexes)
    }
    # Hits of an alias have other names.
    of_names = dict.fromkeys(own.get(name, defaults.fields) for name in indexes)
    fields = next(iter(of_names)) if len(of_names) == 1 else defaults.fields
    if given is None:
        return fields, {name: each for name, each in own.items() if each != fields}
    url = fields.url if fields.url in given else None
    return PostFields(tuple(name for name in given if name != url), url), {}


def _shows_source(content: Json, given: Mapping[str, str]) -> bool:
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
    text = _at(content, context.query_text_path.split("."))
    if not isinstance(text, str):
        problem = "found something else, expected the path of a text in the search"
        location = ("ext", "rerank", "query_context", "query_text_path")
        raise RequestError("value", problem, location)
    return text


def _at(value: Any, path: Sequence[str]) -> Any:
    """The value at a path; names may have dots in them."""
    if not path:
        return value
    if isinstance(value, list) and path[0].isascii() and path[0].isdigit():
        place = int(path[0][:6])
        return _at(value[place], path[1:]) if place < len(value) else None
    if isinstance(value, dict):
        for length in range(1, len(path) + 1):
            inner = value.get(".".join(path[:length]))
            if inner is not None and (text := _at(inner, path[length:])) is not None:
                return text
    return None


def _texts(query: Any) -> Iterator[str]:
    """The texts of the queries inside a query, in their order."""
    if isinstance(query, list):
        yield from chain.from_iterable(map(_texts, query))
    if not isinstance(query, dict):
        return
    for kind, inner in query.items():
        if not isinstance(inner, dict):
            continue
        text = None
        if kind == "match":
            text = next(iter(inner.values()), None)
            text = text.get("query") if isinstance(text, dict) else text
        elif kind in _WITH_TEXT:
            text = inner.get("query")
        if isinstance(text, str | int | float) and not isinstance(text, bool):
            yield str(text)
        for key in _COMPOUND.get(kind, ()):
            yield from _texts(inner.get(key))


def search_of_sources(hits: Sequence[Hit]) -> bytes:
    """The search of these hits, for their whole sources."""
    indexes: dict[str, list[str]] = {}
    for hit in hits:
        indexes.setdefault(hit.index_name, []).append(hit.content["_id"])
    wanted = [
        {"bool": {"filter": [{"term": {"_index": name}}, {"ids": {"values": ids}}]}}
        for name, ids in indexes.items()
    ]
    query = {"bool": {"filter": [{"bool": {"should": wanted}}]}}
    return _dumped({"query": query, "size": len(hits), "track_total_hits": False})


# --- The response ---------------------------------------------------------------------------------

FIRST_STAGE = "_first_stage_score"  # Field of a hit with the engine's own score
MARK = '"_reranked":false,'  # At the start of a response that should have been reranked
_GROUPS = ("fields", "ignored_field_values")  # Members of a hit with values of fields

_KEY = re.compile(r'[\s,]*("(?:[^"\\]|\\.)*")\s*:\s*')
_NEXT = re.compile(r"[\s,]*")
_HALVES = re.compile("[\ud800-\udfff]")

Key = tuple[str, Any]  # Index and id of a hit

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
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number else None  # type: ignore[arg-type]

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

    @property
    def key(self) -> Key:
        """Its index and id."""
        return self.index_name, self.content.get("_id")

    def _texts(self, name: str) -> Iterator[str]:
        for group in _GROUPS:
            fields = self.content.get(group)
            if fields and name in fields:
                return _leaves(fields[name])
        return _leaves(_inside(self.content.get("_source"), name))


@dataclass(frozen=True)
class SearchResponse:
    """The response to a search, in a text that may hold several.

    Attributes:
        text: of all of them.
        start, stop: of this one in the text.
        first, last: of the list of hits in the text.
        hits: in the engine's order; None if there is no list.
        is_whole: no part of an index has failed.
        is_split: sources of hits have only what the reranker needs.
        ext: start of the content of ``ext`` in the text, and whether there is any; None without it.
    """

    text: str
    start: int
    stop: int
    first: int = 0
    last: int = 0
    hits: Sequence[Hit] | None = None
    is_whole: bool = True
    is_split: bool = False
    ext: tuple[int, bool] | None = None

    def page(
        self,
        rows: Sequence[tuple[int, str | None]],
        dropped: Collection[str],
        marked: bool = False,
        sources: Mapping[Key, str] = MappingProxyType({}),
        ext: str = "",
    ) -> str:
        """The response with these hits alone.

        Args:
            rows: row and new score, None for the engine's own.
            dropped: fields to leave out.
            marked: should have been reranked.
            sources: key of a hit -> text of its whole source, where it has only a part of it.
            ext: members for its ``ext``.
        """
        assert self.hits is not None
        hits = [(self.hits[row], score) for row, score in rows]
        shown = [self._hit(hit, dropped, score, sources.get(hit.key)) for hit, score in hits]
        mark, (head, tail) = MARK if marked else "", self._around_hits(ext)
        if ext and self.ext is None:
            mark += f'"ext":{{{ext}}},'
        return f"{{{mark}{head}[{','.join(shown)}]{tail}"

    def _around_hits(self, ext: str) -> tuple[str, str]:
        """What stands before and after the list of hits, with ``ext`` in the engine's own."""
        head, tail = self.text[self.start + 1 : self.first], self.text[self.last : self.stop]
        if ext and self.ext:
            place, added = self.ext[0], ext + "," * self.ext[1]
            if place < self.first:
                head = self.text[self.start + 1 : place] + added + self.text[place : self.first]
            else:
                tail = self.text[self.last : place] + added + self.text[place : self.stop]
        return head, tail

    def with_hits_of(self, other: SearchResponse) -> SearchResponse:
        """The response with further hits, in its own text."""
        known, start = {hit.key for hit in self.hits or ()}, len(self.text)
        new = [
            Hit(start + hit.start, start + hit.stop, hit.content)
            for hit in other.hits or ()
            if hit.key not in known
        ]
        is_split, hits = self.is_split or other.is_split, [*(self.hits or ()), *new]
        return replace(self, text=self.text + other.text, hits=hits, is_split=is_split)

    def sources(self) -> Mapping[Key, str]:
        """Key of a hit -> text of its source."""
        members = ((hit.key, _raw(self.text, hit.start + 1)) for hit in self.hits or ())
        return {key: of_hit["_source"] for key, of_hit in members if "_source" in of_hit}

    def _hit(
        self, hit: Hit, dropped: Collection[str], score: str | None, source: str | None
    ) -> str:
        """A hit without some fields, with another score and source where they are given."""
        if score is None and source is None and not dropped:
            return self.text[hit.start : hit.stop]
        members = _raw(self.text, hit.start + 1)
        groups = {name: _raw(members.pop(name), 1) for name in _GROUPS if name in members}
        for name in dropped:
            for fields in groups.values():
                fields.pop(name, None)
        if score is not None:
            groups.setdefault("fields", {})[FIRST_STAGE] = f"[{members['_score']}]"
            members["_score"] = score
        if source is not None:
            members["_source"] = source
        return _joined(
            members | {name: _joined(fields) for name, fields in groups.items() if fields}
        )


def _raw(text: str, at: int) -> dict[str, str]:
    """Name -> text of the members of an object from a place on."""
    return {name: text[m.begin : m.stop] for name, m in _members(text, at)}


def _joined(members: Mapping[str, str]) -> str:
    """An object of members that are JSON."""
    return f"{{{','.join(f'{json.dumps(name)}:{value}' for name, value in members.items())}}}"


def read_response(text: str) -> SearchResponse:
    """The response to a search; raises ValueError for another text."""
    return _checked(lambda: _response(text, _end(_NEXT, text, 0)))[0]


def read_responses(text: str) -> tuple[Sequence[SearchResponse], int, int]:
    """The responses to several searches, and the bounds of their list; raises ValueError."""
    readers = {"responses": _list_of(_response)}
    members, _ = _checked(lambda: _object(text, _end(_NEXT, text, 0), readers))
    if "responses" not in members:
        raise ValueError("found no list of responses")
    begin, stop, responses = members["responses"]
    return responses, begin, stop


def _checked(read: Callable[[], Value]) -> Value:
    try:
        return read()
    except (StopIteration, IndexError, RecursionError):
        raise ValueError("found no JSON of the expected form") from None


def _response(text: str, at: int) -> tuple[SearchResponse, int]:
    members, stop = _object(text, at, {"hits": _hits})
    if "hits" not in members or "hits" not in members["hits"].value:
        return SearchResponse(text, at, stop), stop
    first, last, hits = members["hits"].value["hits"]
    shards = members["_shards"].value if "_shards" in members else {}
    is_whole = isinstance(shards, dict) and not shards.get("failed")
    ext = members.get("ext")
    place = (ext.begin + 1, bool(ext.value)) if ext and isinstance(ext.value, dict) else None
    return SearchResponse(text, at, stop, first, last, hits, is_whole, ext=place), stop


def _hits(text: str, at: int) -> tuple[Mapping[str, Member], int]:
    return _object(text, at, {"hits": _list_of(_hit)})


def _hit(text: str, at: int) -> tuple[Hit, int]:
    content, stop = _scan(text, at)
    if not isinstance(content, dict):
        raise ValueError("found no object")
    return Hit(at, stop, content), stop


def _object(text: str, at: int, readers: Mapping[str, Reader]) -> tuple[Mapping[str, Member], int]:
    """The members of the object at a place; some values are read in their own ways."""
    if text[at] != "{":
        raise ValueError("found no object")
    members = dict(_members(text, at + 1, readers))
    at = max((member.stop for member in members.values()), default=at + 1)
    at = _end(_NEXT, text, at)
    if text[at] != "}":
        raise ValueError("found no }")
    return members, at + 1


def _members(
    text: str, at: int, readers: Mapping[str, Reader] = MappingProxyType({})
) -> Iterator[tuple[str, Member]]:
    """The members of an object from a place on."""
    while match := _KEY.match(text, at):
        key = match[1]
        name = json.loads(key) if "\\" in key else key[1:-1]
        value, at = readers.get(name, _scan)(text, match.end())
        yield name, Member(match.end(), at, value)


def _list_of(reader: Reader) -> Reader:
    def read_list(text: str, at: int) -> tuple[Any, int]:
        if text[at] != "[":
            raise ValueError("found no list")
        values, at = [], at + 1
        while text[at := _end(_NEXT, text, at)] != "]":
            value, at = reader(text, at)
            values.append(value)
        return values, at + 1

    return read_list


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """The end of a pattern that begins at a place."""
    match = pattern.match(text, at)
    return match.end() if match else at


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
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
