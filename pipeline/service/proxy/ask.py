"""A caller's search, in the form in which the engine is asked.

:func:`read_search` makes a :class:`Search` from a body. If the hits of the search can
be reranked, it has ``candidates``. The engine is then asked for its best hits, and the
caller gets one page of these. Any other search passes unchanged, and has the reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from tweetrerank.pipeline.service.proxy.allowed import LISTS, dumped, matches
from tweetrerank.pipeline.service.proxy.json_path import (
    Json,
    object_or_empty,
    values_at,
)
from tweetrerank.pipeline.service.proxy.query_text import field_names, text_of
from tweetrerank.pipeline.service.service_errors import RequestError

_DESCENDING: tuple[Any, ...] = (
    "_score",
    "_score:desc",
    {"_score": "desc"},
    {"_score": {"order": "desc"}},
    {"_score": {}},
)
_BY_SCORE = (None, "", [], *_DESCENDING, *([key] for key in _DESCENDING))
"""The sorts that order hits only by score. A further key is used to read on from a hit.
"""

_TOP_HITS = b'"top_hits":'
"""These bytes in a body show that an aggregation returns hits."""


@dataclass(frozen=True)
class PostFields:
    """The fields of the posts in an index."""

    texts: tuple[str, ...] = ("contents",)  # Their texts are joined by blanks
    url: str | None = "url"
    signals: tuple[tuple[str, str], ...] = ()
    """(name, field) pairs of the numbers that a model reads."""
    # Name of the model for these posts, or None for the default
    model: str | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all fields."""
        names = list(self.texts)
        if self.url:
            names.append(self.url)
        names += [field_name for _, field_name in self.signals]
        return tuple(names)


FieldsOf = Mapping[str, PostFields]
"""The fields of posts by index. The key "" stands for all other indexes."""


@dataclass(frozen=True)
class SearchDefaults:
    """Settings that hold for a search unless it overrides them."""

    fields: PostFields = PostFields()
    candidates: int = 100  # Hits to rerank
    most: int = 2000  # Most hits that a search may ask to rerank
    seconds: float = 5.0  # Seconds in which the scores must be there
    weight: float | None = None
    """Share of the model in a mixture with the engine's score, or None for no mixture.
    """
    indexes: Sequence[str] = ("*",)  # Names and patterns of indexes that may be read
    served: FieldsOf = field(default_factory=dict)
    """The fields of some indexes. All other indexes have ``fields``."""
    numbers: Sequence[str] = ()
    """The numbers that models read. By default their fields have the same names."""
    reads_ubi: bool = False
    """Whether ``ext.ubi`` is meant for the service's log and not for the engine."""


class Ubi(msgspec.Struct):
    """The object ``ext.ubi`` of OpenSearch's User Behavior Insights."""

    query_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class _QueryContext(msgspec.Struct, forbid_unknown_fields=True):
    query_text: str | None = None
    query_text_path: str | None = None


_Fields = Annotated[list[str], Meta(min_length=1, max_length=100)]


class _Rerank(msgspec.Struct, forbid_unknown_fields=True):
    """The object ``ext.rerank``, in the form that OpenSearch's processor reads."""

    query_context: _QueryContext | None = None
    document_fields: _Fields | None = None
    rerank_window: Annotated[int, Meta(gt=0)] | None = None
    model: str | None = None
    weight: Annotated[float, Meta(ge=0, le=1)] | None = None
    signals: dict[str, str] | list[str] = {}


class _Ext(msgspec.Struct):
    rerank: _Rerank = msgspec.field(default_factory=_Rerank)
    ubi: Ubi | None = None


@dataclass(frozen=True)
class Candidates:
    """Which hits of a search are reranked, and which page the caller wants."""

    query: str  # The text that the models read
    start: int  # Number of hits before the page
    size: int  # Number of hits on the page
    depth: int  # Number of hits to rerank; later hits keep the engine's order
    fields: FieldsOf
    added: Sequence[str]  # Fields that are requested only for the reranker
    place: int  # Hash of the indexes and the added fields
    bodies: tuple[bytes, bytes]
    """(the body that the engine gets first, the body with the added fields).

    The first one lacks the added fields if the sources of hits come anyway.
    """
    model: str | None  # The model that the caller names
    weight: float | None
    ubi: Ubi | None  # ``ext.ubi`` if it is meant for the log


class Search(NamedTuple):
    """A search in the form that the engine gets.

    Without ``candidates`` it passes unchanged, and ``reason`` says why.
    """

    body: bytes
    candidates: Candidates | None
    reason: str = ""
    outcome: str = "unchanged"  # Label of the search in the metrics
    header: bytes = b""  # Its header line if a request has several searches


class UnchangedError(Exception):
    """A search cannot be reranked, and has to pass unchanged."""

    def __init__(self, reason: str, outcome: str = "unchanged") -> None:
        super().__init__(reason)
        self.reason = reason
        self.outcome = outcome


def read_search(
    content: Json,
    parameters: Mapping[str, str],
    defaults: SearchDefaults,
    indexes: Sequence[str] = (),
) -> Search:
    """Read a search that has been checked and may pass.

    ``parameters`` are those of the URL, with those of the search's own header if a
    request has several searches. ``indexes`` are the searched ones. Raises RequestError
    if ``ext.rerank`` or ``ext.ubi`` is wrong.
    """
    ext = object_or_empty(content.get("ext"))
    ours = ["rerank"]
    if defaults.reads_ubi:
        ours.append("ubi")
    options = {name: ext[name] for name in ours if ext.get(name) is not None}
    if _is_for_pipeline(content, parameters, options):
        reason = "the search names a pipeline of the engine"
        return Search(dumped(content), None, reason)
    plain = _without_options(content, ext, ours)
    body = dumped(plain)
    if options.get("rerank") is False:
        return Search(body, None, "ext.rerank is false")
    try:
        converted = msgspec.convert(options, _Ext)
        candidates = _candidates(plain, parameters, converted, defaults, indexes)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        raise RequestError("value", f"ext.{path.rstrip('`')}: {message}") from None
    except UnchangedError as error:
        return Search(body, None, error.reason, error.outcome)
    return Search(body, candidates)


def _is_for_pipeline(
    content: Json,
    parameters: Mapping[str, str],
    options: Json,
) -> bool:
    """Whether a pipeline of the engine changes the order of hits, or reads ``ext``.

    The pipeline of a hybrid query only joins the hits of its parts, so the result can
    still be reranked.
    """
    name = parameters.get("search_pipeline") or content.get("search_pipeline")
    if not name:
        return False
    query = object_or_empty(content.get("query"))
    return "rerank" in options or "hybrid" not in query


def _without_options(content: Json, ext: Json, ours: Sequence[str]) -> Json:
    """Return the search without the options of ``ext`` that are for the proxy."""
    if not any(name in ext for name in ours):
        return content
    plain = {name: value for name, value in content.items() if name != "ext"}
    further = {name: value for name, value in ext.items() if name not in ours}
    if further:
        plain["ext"] = further
    return plain


def _candidates(
    content: Json,
    parameters: Mapping[str, str],
    ext: _Ext,
    defaults: SearchDefaults,
    indexes: Sequence[str],
) -> Candidates:
    """Return the candidates of a search.

    Raises UnchangedError if the search cannot be reranked.
    """
    options = ext.rerank
    start = _number("from", 0, content, parameters)
    size = _number("size", 10, content, parameters)
    depth = min(options.rerank_window or defaults.candidates, defaults.most)
    inner = _inner_search(content)
    _check_order(content, inner, parameters)
    _check_page(start, size, depth)
    _check_response_parts(content, parameters)
    fields = _fields(options, defaults, indexes)
    query = _query(inner, parameters)
    text = _text(query, content, options, fields)
    search = content | {"from": 0, "size": max(depth, start + size)}
    plain_body = dumped(search)
    added: list[str] = []
    # Elasticsearch would also return the fields with each hit of an aggregation.
    if _TOP_HITS not in plain_body:
        added = _added_fields(content, parameters, fields)
    body_with_fields = plain_body
    if added:
        requested = content.get("fields") or []
        body_with_fields = dumped(search | {"fields": requested + added})
    first_body = body_with_fields
    if _shows_sources(content, parameters):
        first_body = plain_body
    weight = options.weight
    if weight is None:
        weight = defaults.weight
    return Candidates(
        query=text,
        start=start,
        size=size,
        depth=depth,
        fields=fields,
        added=added,
        place=hash(tuple(indexes) + tuple(added)),
        bodies=(first_body, body_with_fields),
        model=options.model,
        weight=weight,
        ubi=ext.ubi,
    )


def _inner_search(content: Json) -> Json:
    """Return the search, or the one inside its standard retriever."""
    retriever = content.get("retriever")
    if isinstance(retriever, dict):
        return object_or_empty(retriever.get("standard"))
    return content


def _query(inner: Json, parameters: Mapping[str, str]) -> Any:
    """Return the query of a search. The parameter ``q`` takes precedence."""
    if parameters.get("q"):
        text = parameters["q"]
        field = parameters.get("df", "*")
        return {"query_string": {"query": text, "default_field": field}}
    return inner.get("query")


# Reasons for which a search passes unchanged


def _check_order(
    content: Json,
    inner: Json,
    parameters: Mapping[str, str],
) -> None:
    """Raise UnchangedError unless the hits are ordered by score, from the best one."""
    sources = (content, inner, parameters)
    for source in sources:
        if any(source.get(name) not in (None, "") for name in LISTS["continued"]):
            raise UnchangedError("the search reads on from a hit, or groups hits")
    for source in sources:
        if source.get("sort") not in _BY_SCORE:
            raise UnchangedError("the sort has another key than _score")


def _check_page(start: int, size: int, depth: int) -> None:
    """Raise UnchangedError unless the page would show reranked hits."""
    if not size:
        raise UnchangedError("the search shows no hits")
    if start >= depth:
        raise UnchangedError(
            f"the page begins after the {depth} hits that are reranked"
        )


def _check_response_parts(
    content: Json,
    parameters: Mapping[str, str],
) -> None:
    """Raise UnchangedError if the response will lack parts that reranking needs."""
    stored = field_names(content.get("stored_fields"))
    stored += field_names(parameters.get("stored_fields"))
    has_field_list = isinstance(content.get("fields"), list | None)
    if "_none_" in stored or not has_field_list or "filter_path" in parameters:
        raise UnchangedError("the search leaves out parts of the response")


def _number(
    name: str,
    default: int,
    content: Json,
    parameters: Mapping[str, str],
) -> int:
    """Return a number from the parameters, or else from the body, or else the default.

    It may be written as a string. Raises UnchangedError if it is no whole number.
    """
    in_body = str(content.get(name, default))
    number = str(parameters.get(name, in_body))
    for text in (in_body, number):
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise UnchangedError(f"{name} is no whole number")
    return int(number)


# Fields and text


def _fields(
    options: _Rerank,
    defaults: SearchDefaults,
    indexes: Sequence[str],
) -> FieldsOf:
    """Return the fields that a search names, or else the fields of its indexes."""
    by_index = {"": defaults.fields}
    for index, fields in defaults.served.items():
        if any(matches(pattern, index) for pattern in indexes):
            by_index[index] = fields
    # Hits found through an alias have the name of an index behind the alias.
    of_names = {by_index.get(name, defaults.fields) for name in indexes}
    if len(of_names) == 1:
        by_index[""] = of_names.pop()
    return {
        index: _named_fields(fields, options, defaults)
        for index, fields in by_index.items()
    }


def _named_fields(
    fields: PostFields,
    options: _Rerank,
    defaults: SearchDefaults,
) -> PostFields:
    """Return the fields of an index, replaced by those that a search names."""
    names = options.document_fields
    if names is not None:
        texts = tuple(name for name in names if name != fields.url)
        url = None
        if fields.url in names:
            url = fields.url
        fields = replace(fields, texts=texts, url=url)
    field_of_signal = dict(fields.signals) | object_or_empty(options.signals)
    signals = tuple(
        (name, field_of_signal.get(name) or name) for name in defaults.numbers
    )
    return replace(fields, signals=signals)


def text_fields(fields: FieldsOf) -> list[str]:
    """Return the names of the text fields of all indexes."""
    names: list[str] = []
    for of_index in fields.values():
        names += of_index.texts
    return names


def _text(query: Any, content: Json, options: _Rerank, fields: FieldsOf) -> str:
    """Return the text of the query.

    It is given by ``ext.rerank``, or else taken from the query. Raises UnchangedError
    if there is none.
    """
    names = text_fields(fields)
    context = options.query_context or _QueryContext()
    if context.query_text is not None:
        text = context.query_text
    elif context.query_text_path is not None:
        text = _text_at(content, context.query_text_path)
    else:
        text = text_of(query, names)
    if not text.strip():
        listed = ", ".join(dict.fromkeys(names))
        raise UnchangedError(f"no text is searched in {listed}", "no_text")
    return text


def _text_at(content: Json, path: str) -> str:
    """Return the text at a path in the search.

    Raises RequestError if there is no text at this path.
    """
    for value in values_at(content, path):
        if isinstance(value, str):
            return value
        if value is not None:
            break
    raise RequestError(
        "value",
        "ext.rerank.query_context.query_text_path: found something else, expected the "
        "path of a text in the search",
    )


def _added_fields(
    content: Json,
    parameters: Mapping[str, str],
    fields: FieldsOf,
) -> list[str]:
    """Return the fields that the reranker needs but the search does not ask for."""
    patterns: list[str] = []
    for source in (content, parameters):
        patterns += field_names(source.get("docvalue_fields"))
        patterns += field_names(source.get("stored_fields"))
    patterns += field_names(content.get("fields"))
    patterns += field_names(content.get("script_fields"))
    needed: dict[str, None] = {}
    for of_index in fields.values():
        needed |= dict.fromkeys(of_index.names)
    return [
        name
        for name in needed
        if not any(matches(pattern, name) for pattern in patterns)
    ]


def _shows_sources(content: Json, parameters: Mapping[str, str]) -> bool:
    """Whether the hits come with their whole sources."""
    for name in parameters:
        if name == "stored_fields" or name.startswith("_source"):
            return False
    if "stored_fields" in content:
        return False
    return content.get("_source", True) is True
