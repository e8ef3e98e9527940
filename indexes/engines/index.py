"""Indexes in OpenSearch and Elasticsearch that are open for searching."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import filterfalse
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from indexes.engines import dsl
from indexes.engines.address import EngineAddress
from indexes.engines.client import Engine, EngineError
from indexes.engines.layout import (
    CUT_HERE,
    ID,
    NUMBER,
    TEXT,
    URL,
    Layout,
    cut_words,
    default_pipeline,
    without_scale,
)
from indexes.engines.posts import Changes, KeptPosts
from indexes.engines.searching import Hit, all_hits, search, single_precision
from indexes.errors import CollectionError
from indexes.methods import EngineQuery, Method, Topic, id_limit
from indexes.posts import Post
from indexes.records import is_doc_id, listed, well_formed

_POSTS = 1000  # Posts that are fetched by one search

_NUMBERS = {"long", "integer", "short", "byte", "unsigned_long"}
_DATES = {"date", "date_nanos"}


def open_index(
    address: EngineAddress, directory: Path, sources: Sequence[Path] | None = None
) -> "OwnIndex | ForeignIndex":
    """Open an index, whose posts are kept in ``directory``; ``sources`` are checked in one of ours.

    Raises:
        CollectionError: there is no such engine, index or field, or it does not fit the posts.
    """
    engine = Engine.connect(address)
    description = describe(engine)
    if not address.has_methods:
        return ForeignIndex(engine, description, directory)
    return OwnIndex(engine, Layout.read(address, description), directory, sources)


def describe(engine: Engine) -> dict[str, Any]:
    """Settings and fields of the index; of the first one where an alias names several."""
    found = engine.patiently("GET", f"/{engine.address.index}")
    if not found:
        raise EngineError(f"{engine.address}: there is no such index", 404)
    return dict(found[min(found)], indexes=len(found))


def count(engine: Engine) -> int:
    """Number of posts in the index."""
    return int(engine.patiently("GET", f"/{engine.address.index}/_count")["count"])


def cache_file(directory: Path, uuid: str) -> Path:
    """File of an index's posts that are kept here; an index made anew has another."""
    return directory / f"posts-{uuid}.sqlite"


class EngineIndex(ABC):
    """An index that is open for searching; its ``posts`` are fetched once and kept in ``file``.

    ``bypasses``: whether searches go without the index's pipeline. ``source``: the fields of a
    post, True for all. ``changes``: where others write to the index.
    """

    def __init__(
        self,
        engine: Engine,
        file: Path,
        bypasses: bool,
        source: list[str] | bool,
        changes: Changes | None = None,
    ) -> None:
        self._engine, self._address, self._source = engine, engine.address, source
        self._directory = file.parent
        # Added to every search.
        self._keys = {"search_pipeline": "_none"} if bypasses else {}
        self.posts = KeptPosts(file, self._fetch, self._fetch_all, changes)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled index is opened again."""
        return open_index, (self._address, self._directory)

    def close(self) -> None:
        """Close the file of posts."""
        self.posts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _post(self, hit: Hit) -> Post:
        """The post of a hit with its source."""

    def _fetch(self, doc_ids: Sequence[str]) -> Iterator[Post]:
        """The posts with these ids, in any order."""
        field, bodies = self._address.id_field, {}
        for start in range(0, len(doc_ids), _POSTS):
            part = doc_ids[start : start + _POSTS]
            query = {"terms": {field: part}} if field else {"ids": {"values": part}}
            bodies[f"of the posts {part[0]} …"] = {
                "query": query,
                "size": _POSTS,
                "sort": ["_doc"],
                "_source": self._source,
                "track_total_hits": False,
                **self._keys,
            }
        for found in search(self._engine, bodies, 10_000, several_shards=False).values():
            yield from map(self._post, found)

    def _fetch_all(self, query: Mapping[str, Any] = MappingProxyType({})) -> Iterator[Post]:
        """All posts, or those of a query."""
        body = {"_source": self._source, **self._keys, **query}
        return map(self._post, all_hits(self._engine, body))


class OwnIndex(EngineIndex):
    """An index by :mod:`indexes.engines.building`."""

    def __init__(
        self, engine: Engine, layout: Layout, directory: Path, sources: Sequence[Path] | None
    ) -> None:
        self.layout, self.manifest = layout, layout.manifest
        if not layout.complete:
            raise CollectionError(
                f"{engine.address}: this index is not complete; send the posts that it lacks with\n"
                f"  {self.manifest.rebuild}"
            )
        if sources is not None and (problem := self.manifest.difference(sources)):
            raise CollectionError(
                f"{engine.address}: this index was {problem}; choose another `address.index`, or "
                "delete it if nobody needs it, and build it again with\n"
                f"  {self.manifest.rebuild}"
            )
        # Any pipeline would give others than the methods' scores. To leave out fields takes an
        # engine longer than to send them.
        file = cache_file(directory, layout.uuid)
        super().__init__(engine, file, bypasses=bool(layout.pipeline), source=True)

    @property
    def size(self) -> int:
        """Number of posts."""
        return self.manifest.posts

    def search(
        self, topics: Iterable[Topic], method: Method, hits: int = 1000, threads: int = 2
    ) -> dict[str, dict[str, float]]:
        """As :meth:`indexes.index.LuceneIndex.search`."""
        topics = list(topics)
        field, sort = self.layout.field_of(method, self._address), self.layout.sort
        limits = [self._limit(topic) for topic in topics]
        texts = [well_formed(topic.text) for topic in topics]
        if self.layout.analyzer == CUT_HERE:
            texts = cut_words(texts, self.manifest.analyzer)
        # The values of the sort have all that is needed; stored fields need not be read.
        keys = {"stored_fields": "_none_", **self._keys}
        bodies = {
            topic.query_id: dsl.search(dsl.match(field, text), limit, hits, sort) | keys
            for topic, text, limit in zip(topics, texts, limits, strict=True)
            # A query without words finds nothing, and need not be sent.
            if text.strip()
        }
        several = self.layout.shards > 1
        found = search(self._engine, bodies, self.layout.window, several, threads)
        scale, place = without_scale(self._engine, method), len(sort) - 1
        run = {}
        for topic in topics:
            # Elasticsearch adds another key to those of a point in time.
            keyed = [hit["sort"] for hit in found.get(topic.query_id, ())]
            scores = single_precision(key[0] for key in keyed)
            ids = [str(key[place]) for key in keyed]
            run[topic.query_id] = {d: score / scale for d, score in zip(ids, scores, strict=True)}
        return run

    @cached_property
    def id_range(self) -> tuple[str, str] | None:
        """The lowest and the highest id, None if the ids are not all whole numbers."""
        if not self.manifest.numeric_ids:
            return None
        ends = {
            order: dsl.search({"match_all": {}}, None, 1, [{NUMBER: order}, {ID: order}])
            | self._keys
            for order in ("asc", "desc")
        }
        found = search(self._engine, ends, self.layout.window, several_shards=False)
        return found["asc"][0]["sort"][-1], found["desc"][0]["sort"][-1]

    def _limit(self, topic: Topic) -> dict[str, Any] | None:
        limit = id_limit(topic, self.manifest.numeric_ids, self._address)
        return None if limit is None else dsl.up_to(NUMBER, limit)

    def _post(self, hit: Hit) -> Post:
        source = hit["_source"]
        return Post(source[ID], source[TEXT], source[URL])


class ForeignIndex(EngineIndex):
    """An index that somebody has made for other purposes, with its own query and fields."""

    id_range = None  # Ids are texts.

    def __init__(self, engine: Engine, description: Mapping[str, Any], directory: Path) -> None:
        settings = description["settings"]["index"]
        self._window = int(settings.get("max_result_window", 10_000))
        self._several = description["indexes"] > 1 or int(settings["number_of_shards"]) > 1
        self._types = dict(_fields(description["mappings"].get("properties", {})))
        address = engine.address
        named = {
            f"`address.{option}` {name}": name
            for option in ("text_field", "url_field", "time_field", "id_field")
            if (name := getattr(address, option))
        }
        if unknown := [text for text, name in named.items() if name not in self._types]:
            raise CollectionError(
                f"{address}: found no field {', '.join(unknown)}, expected one of "
                f"{listed(list(self._types), 20)}"
            )
        kind = self._types.get(address.time_field or "", "date")
        if kind not in _NUMBERS | _DATES:
            raise CollectionError(
                f"{address}: found the time field {address.time_field} of type {kind}, expected a "
                "date or a whole number"
            )
        self._query = {"query": dsl.match(address.text_field or "", dsl.PLACEHOLDER)}
        if isinstance(address.query, Path):
            self._query = dsl.read_query(address.query)
        fields = [
            name for name in (address.text_field, address.url_field, address.id_field) if name
        ]
        bypasses = _reranks(engine, default_pipeline(settings))
        super().__init__(engine, cache_file(directory, settings["uuid"]), bypasses, fields, self)

    @property
    def size(self) -> int:
        """Number of posts."""
        return count(self._engine)

    def change_numbers(self) -> Mapping[str, int] | None:
        """Shard -> sequence number of its last change; None if the engine does not tell."""
        path = f"/{self._address.index}/_stats"
        try:
            found = self._engine.patiently("GET", path, None, {"level": "shards"})
        except EngineError:  # It may be forbidden.
            return None
        return {
            f"{name}/{number}": max(copy["seq_no"]["max_seq_no"] for copy in copies)
            for name, index in found["indices"].items()
            for number, copies in index["shards"].items()
        }

    def changed_since(self, number: int) -> Iterable[Post]:
        """At least the posts whose last change has a higher number."""
        return self._fetch_all({"query": {"range": {"_seq_no": {"gt": number}}}})

    def search(
        self, topics: Iterable[Topic], method: Method, hits: int = 1000, threads: int = 2
    ) -> dict[str, dict[str, float]]:
        """The ranking of the index's own query.

        Posts of equal score come from the highest id to the lowest, as text.

        Raises:
            CollectionError: ``method`` is another than :class:`indexes.methods.EngineQuery`.
        """
        if not isinstance(method, EngineQuery):
            raise CollectionError(
                f"{self._address}: this index is ranked by its own query, expected no method "
                f"({method.name}); only an index that this program built has those of its own"
            )
        topics, id_field = list(topics), self._address.id_field
        if id_field is None and hits > self._window:
            raise CollectionError(
                f"{self._address}: more than {self._window:,} hits need a field of ids to go on "
                "from, expected its name by `address.id_field`"
            )
        sort = [{"_score": "desc"}, *([{id_field: "desc"}] if id_field else [])]
        bodies = {
            topic.query_id: dsl.search(self._search(topic), self._limit(topic), hits, sort)
            | self._keys
            for topic in topics
        }
        found = search(self._engine, bodies, self._window, self._several, threads)
        run = {}
        for topic in topics:
            hits_of_topic = found[topic.query_id]
            singles = single_precision(hit["_score"] for hit in hits_of_topic)
            scores = dict(zip(map(self._id, hits_of_topic), singles, strict=True))
            for doc_id in filterfalse(is_doc_id, scores):
                raise CollectionError(
                    f"{self._address}: found the id {doc_id!r}, expected ids without spaces, as a "
                    "run has them; name a field of such ids by `address.id_field`"
                )
            best_first = sorted(scores.items(), key=lambda item: item[::-1], reverse=True)
            run[topic.query_id] = dict(best_first)
        return run

    def _search(self, topic: Topic) -> dict[str, Any]:
        """The index's own query for a topic."""
        text, template = well_formed(topic.text), self._address.query
        if not isinstance(template, str):
            filled: dict[str, Any] = dsl.filled(self._query, text)
            return filled
        body = {"id": template, "params": {"query": text}}
        answer = self._engine.patiently("POST", "/_render/template", body)
        return dsl.check_search(answer["template_output"], f"the search template {template}")

    def _limit(self, topic: Topic) -> dict[str, Any] | None:
        field = self._address.time_field
        if topic.max_doc_id is None and (field is None or topic.time is None):
            return None
        if field is None:
            raise CollectionError(
                f"topic {topic.query_id} has a time limit, and {self._address} no field for it; "
                "name one by `address.time_field`, or remove the limit from the topic"
            )
        if self._types[field] in _DATES:
            if topic.time is None:
                raise CollectionError(
                    f"topic {topic.query_id} has the time limit {topic.max_doc_id}, and {field} of "
                    f"{self._address} is a date; give the topic a <querytime>"
                )
            return dsl.until(field, topic.time, topic.query_id)
        limit = id_limit(topic, True, self._address)
        return None if limit is None else dsl.up_to(field, limit)

    def _id(self, hit: Hit) -> str:
        return str(hit["_id"] if self._address.id_field is None else hit["sort"][1])

    def _post(self, hit: Hit) -> Post:
        """The post of a hit; a text or link of several values is that of the first one."""
        address, source = self._address, hit.get("_source", {})
        text = _value(source, address.text_field)
        if text is None and "_source" not in hit:
            raise CollectionError(
                f"{address}: the index keeps no texts (_source is off); name one that does"
            )
        doc_id = hit["_id"] if address.id_field is None else _value(source, address.id_field)
        url = _value(source, address.url_field)
        return Post(str(doc_id), well_formed(str(text or "")), well_formed(str(url or "")))


def _reranks(engine: Engine, pipeline: str | None) -> bool:
    """Whether a search pipeline has a reranker, which belongs to no first stage."""
    if pipeline is None:
        return False
    found = engine.patiently("GET", f"/_search/pipeline/{pipeline}")[pipeline]
    return any("rerank" in processor for processor in found.get("response_processors", []))


def _fields(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names and types of all fields, those within objects and fields too."""
    for name, one in properties.items():
        if "type" in one:
            yield prefix + name, one["type"]
        for inner in ("properties", "fields"):
            yield from _fields(one.get(inner, {}), f"{prefix}{name}.")


def _value(source: Any, field: str | None) -> Any:
    """The first value of a field, None without one; its name may lead into objects."""
    if field is None or source is None:
        return None
    if isinstance(source, list):
        return next((v for one in source if (v := _value(one, field)) is not None), None)
    if not isinstance(source, dict):
        return None
    if field in source:
        value = source[field]
        return value[0] if isinstance(value, list) and value else value
    first, dot, rest = field.partition(".")
    return _value(source.get(first), rest) if dot else None
