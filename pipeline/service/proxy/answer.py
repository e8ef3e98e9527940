"""The engine's response to a search, and the page of it that the caller gets.

A response is only split into parts, with msgspec. Hits, totals and unknown members
stay :class:`msgspec.Raw` bytes, so that the form of numbers and the order of keys do
not change. A response that msgspec cannot read is not reranked.
"""

from collections.abc import Collection, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, Self

import msgspec
from msgspec import Meta, Raw

from tweetrerank.indexes.engines.engine_search import single_precision
from tweetrerank.pipeline.service.proxy.ask import Candidates, PostFields
from tweetrerank.pipeline.service.proxy.json_path import values_at
from tweetrerank.pipeline.service.score_request import Request, ScoreRequest
from tweetrerank.rerankers.pairs import number_of

_PLAIN = (str, int, float)
"""The types of values that are texts. A bool is not one, though it is an int."""

# Field of a reranked hit with the engine's own score
FIRST_STAGE = "_first_stage_score"

Members = dict[str, Raw]

_Columns = dict[str, list[Any]]
"""For each field its values in all hits."""

Row = tuple[int, str | None]
"""(row of a hit, its new score as JSON, or None to keep the engine's score)."""

MARK: Members = {"_reranked": Raw(b"false")}
"""The member that is put first into a response if reranking has failed."""

ResponseError = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""The errors that are raised if a response cannot be read."""

_MISSING = ()
"""Stands for the value of a field that a hit lacks."""


class Hit(msgspec.Struct, frozen=True):
    """The parts of a hit that the proxy reads."""

    index_name: str = msgspec.field(name="_index", default="")
    doc_id: str = msgspec.field(name="_id", default="")
    # A negative score shows that the hits of a hybrid query's parts were not joined.
    score: Annotated[float, Meta(ge=0)] | None = msgspec.field(
        name="_score", default=None
    )
    source: dict[str, Any] | None = msgspec.field(name="_source", default=None)
    fields: dict[str, Any] | None = None
    ignored_field_values: dict[str, Any] | None = None

    def value(self, name: str) -> Any:
        """Return the value of a field, or () if the hit lacks it."""
        for group in (self.source, self.fields, self.ignored_field_values):
            if group and name in group:
                return group[name]
        if "." in name:
            return tuple(values_at(self.source, name))
        return _MISSING


_MEMBERS = msgspec.json.Decoder(Members)
_RAWS = msgspec.json.Decoder(list[Raw])
_HITS = msgspec.json.Decoder(list[Hit])


class _Shards(msgspec.Struct):
    failed: int = 0


class Reading(NamedTuple):
    """The request for scores of a search's candidates."""

    request: ScoreRequest
    has_all_fields: bool  # Whether every candidate has all of the fields


class SearchResponse(NamedTuple):
    """The response to a search."""

    content: bytes | Raw
    members: Members
    hits_members: Members  # Members of ``hits``
    candidates: Candidates | None
    hits: Sequence[Hit] | None = None  # None if there is no readable list of them
    reading: Reading | None = None

    @property
    def has_failed_shards(self) -> bool:
        """Whether shards have failed, so that their hits are missing."""
        content = self.members.get("_shards", b"{}")
        try:
            shards = msgspec.json.decode(content, type=_Shards)
        except ResponseError:
            return False
        return shards.failed > 0

    @classmethod
    def read(cls, content: bytes | Raw, candidates: Candidates | None) -> Self:
        """Read a response to a search that had ``candidates`` or passed unchanged.

        ``hits`` or ``reading`` is None if that part cannot be read. Raises one of the
        errors in :data:`ResponseError` if the response is no JSON object.
        """
        members = members_of(content)
        hits_members: Members = {}
        if "hits" in members:
            hits_members = members_of(members["hits"])
        response = cls(content, members, hits_members, candidates)
        try:
            hits = _HITS.decode(hits_members.get("hits", b""))
            if candidates is None:
                return response._replace(hits=hits)
            reading = read_candidates(candidates, hits[: candidates.depth])
        except ResponseError:
            return response
        return response._replace(hits=hits, reading=reading)

    def page(
        self,
        rows: Sequence[Row],
        members: Members,
        best: str | None,
    ) -> Raw:
        """Return the response with only the hits of the given rows.

        ``members`` replace the members of the response. ``best`` replaces its best
        score unless it is None. Fields that only the reranker needed are left out.
        """
        added: Sequence[str] = ()
        if self.candidates:
            added = self.candidates.added
        raws = _RAWS.decode(self.hits_members["hits"])
        hits = [changed(raws[row], score, added) for row, score in rows]
        hits_members = self.hits_members | {"hits": encoded(hits)}
        if best is not None and "max_score" in hits_members:
            hits_members["max_score"] = Raw(best.encode())
        return encoded(members | {"hits": encoded(hits_members)})


def read_responses(
    content: bytes,
    are_several: bool,
    candidates: Sequence[Candidates | None],
) -> list[SearchResponse]:
    """Read the response to one search, or the responses to several.

    Returns no responses if their number differs from the number of ``candidates``,
    which has one item for each search. Raises one of the errors in
    :data:`ResponseError`.
    """
    contents: list[bytes | Raw] = [content]
    if are_several:
        responses = members_of(content).get("responses", b"")
        contents = list(_RAWS.decode(responses))
    if len(contents) != len(candidates):
        return []
    return list(map(SearchResponse.read, contents, candidates))


def read_candidates(candidates: Candidates, hits: Sequence[Hit]) -> Reading:
    """Return the request for scores of hits, read from the fields of the hits."""
    texts: list[str] = []
    urls: list[str] = []
    signals: dict[str, list[float]] = {}
    has_all_fields = True
    for index, group in groupby(hits, attrgetter("index_name")):
        fields = candidates.fields.get(index, candidates.fields[""])
        members = list(group)
        columns = _columns(fields, members)
        for column in columns.values():
            if _MISSING in column:
                has_all_fields = False
        texts += _joined_texts(fields, columns)
        urls += _urls(fields, columns, len(members))
        for name, place in fields.signals:
            values = [number_of(_first(value)) for value in columns[place]]
            signals.setdefault(name, []).extend(values)
    request = ScoreRequest(
        Request(query=candidates.query),
        texts,
        urls,
        single_precision(hit.score or 0.0 for hit in hits),
        signals,
        candidates.weight,
    )
    return Reading(request, has_all_fields)


def _columns(fields: PostFields, hits: Sequence[Hit]) -> _Columns:
    columns: _Columns = {}
    for name in fields.names:
        columns[name] = [hit.value(name) for hit in hits]
    return columns


def _joined_texts(fields: PostFields, columns: _Columns) -> list[str]:
    """Return the text of each hit, which joins its text fields with blanks."""
    texts_of_field = [map(joined, columns[name]) for name in fields.texts]
    return [
        " ".join(filter(None, texts)) for texts in zip(*texts_of_field, strict=True)
    ]


def _urls(fields: PostFields, columns: _Columns, count: int) -> list[str]:
    if not fields.url:
        return [""] * count
    return list(map(joined, columns[fields.url]))


def _first(value: Any) -> Any:
    """Return the first item if the value is a list, else the value."""
    if value and type(value) in (list, tuple):
        return value[0]
    return value


def joined(value: Any) -> str:
    """Return the texts and numbers in a value, joined by blanks."""
    if type(value) in _PLAIN:
        return str(value)
    if type(value) in (list, tuple):
        return " ".join(filter(None, map(joined, value)))
    return ""


# Parts of a response


def changed(
    hit: Raw,
    score: str | None,
    dropped: Collection[str],
) -> Raw:
    """Return a hit without the ``dropped`` fields, and with the new score if any."""
    if score is None and not dropped:
        return hit
    members = members_of(hit)
    further: Members = {}
    if score is not None:
        further[FIRST_STAGE] = Raw(b"[%b]" % bytes(members["_score"]))
        members["_score"] = Raw(score.encode())
    _change_values(members, "fields", dropped, further)
    _change_values(members, "ignored_field_values", dropped, {})
    return encoded(members)


def _change_values(
    members: Members,
    name: str,
    dropped: Collection[str],
    further: Members,
) -> None:
    """Drop values from the object ``name`` among the members, and add further values.

    If the object has no values then, it is left out.
    """
    if name not in members and not further:
        return
    values = members_of(members.pop(name, b"{}"))
    remaining = {key: value for key, value in values.items() if key not in dropped}
    remaining |= further
    if remaining:
        members[name] = encoded(remaining)


def encoded(value: Any) -> Raw:
    """Return the value as JSON. Raw pieces of a response stay as they are."""
    return Raw(msgspec.json.encode(value))


def members_of(content: bytes | str | Raw) -> Members:
    """Return the members of a JSON object.

    Raises one of the errors in :data:`ResponseError` if the content is not an object.
    """
    return _MEMBERS.decode(content)
