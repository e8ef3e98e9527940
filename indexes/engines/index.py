"""Indexes in OpenSearch and Elasticsearch that are open for searching, and their posts."""

import json
import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from itertools import filterfalse
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self
from zlib import crc32

from indexes.engines import search as searches
from indexes.engines.client import Engine, EngineAddress, EngineError
from indexes.engines.layout import (
    CUT_HERE,
    ID,
    NUMBER,
    SIGNALS,
    TEXT,
    URL,
    Layout,
    cut_words,
    default_pipeline,
    kept_posts,
    without_scale,
)
from indexes.engines.search import Hit, all_hits, body_of, search, single_precision
from indexes.errors import CollectionError
from indexes.methods import EngineQuery, Method, Topic, id_limit
from indexes.posts import Post, with_signals
from indexes.records import is_doc_id, listed, value_of, well_formed
from indexes.store import COLUMNS, GIVEN, post_of, row_of

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
    engine = Engine(address)
    description = engine.describe()
    if not address.has_methods:
        return ForeignIndex(engine, description, directory)
    return OwnIndex(engine, Layout.read(address, description), directory, sources)


class EngineIndex(ABC):
    """An index that is open for searching; its ``posts`` are fetched once and kept in a file.

    ``uuid`` is the engine's id of the index, ``pipeline`` that of every search, without which our
    searches go if ``bypasses``. ``source``: the fields of a post, True for all.
    """

    def __init__(
        self, engine: Engine, directory: Path, uuid: str, bypasses: bool, source: list[str] | bool
    ) -> None:
        self._engine, self._address, self._source = engine, engine.address, source
        # Added to every search.
        self._keys = {"search_pipeline": "_none"} if bypasses else {}
        self.posts = KeptPosts(kept_posts(directory, uuid), self)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled index is opened again."""
        return open_index, (self._address, self.posts.path.parent)

    def close(self) -> None:
        """Close the file of posts."""
        self.posts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Number of posts."""
        return self._engine.count()

    @abstractmethod
    def _post(self, hit: Hit) -> Post:
        """The post of a hit with its source."""

    def fetch(self, doc_ids: Sequence[str]) -> Iterator[Post]:
        """The posts with these ids, in any order."""
        field, bodies = self._address.id_field, {}
        for start in range(0, len(doc_ids), _POSTS):
            part = doc_ids[start : start + _POSTS]
            query = {"terms": {field: part}} if field else {"ids": {"values": part}}
            shown = {"_source": self._source, "sort": ["_doc"]}
            bodies[f"of the posts {part[0]} …"] = (
                body_of(query, None, _POSTS, ()) | shown | self._keys
            )
        for found in search(self._engine, bodies, 10_000).values():
            yield from map(self._post, found)

    def fetch_all(self, query: Mapping[str, Any] = MappingProxyType({})) -> Iterator[Post]:
        """All posts, or those of a query."""
        body = {"_source": self._source, **self._keys, **query}
        return map(self._post, all_hits(self._engine, body))

    def change_numbers(self) -> Mapping[str, int] | None:
        """Shard -> sequence number of its last change; None if nobody changes it, or tells."""
        return None

    def changed_since(self, number: int) -> Iterator[Post]:
        """At least the posts whose last change has a higher number."""
        return self.fetch_all({"query": {"range": {"_seq_no": {"gt": number}}}})


class OwnIndex(EngineIndex):
    """An index by :func:`indexes.engines.layout.build`."""

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
        super().__init__(engine, directory, layout.uuid, bool(layout.pipeline), source=True)

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
            topic.query_id: body_of(searches.match(field, text), limit, hits, sort) | keys
            for topic, text, limit in zip(topics, texts, limits, strict=True)
            # A query without words finds nothing, and need not be sent.
            if text.strip()
        }
        found = search(self._engine, bodies, self.layout.window, threads)
        scale, place = without_scale(self._engine, method), len(sort) - 1
        run = {}
        for topic in topics:
            # Elasticsearch adds another key to those of a point in time.
            keyed = [hit["sort"] for hit in found.get(topic.query_id, ())]
            scores = single_precision(key[0] for key in keyed)
            pairs = zip(keyed, scores, strict=True)
            run[topic.query_id] = {str(key[place]): score / scale for key, score in pairs}
        return run

    @cached_property
    def id_range(self) -> tuple[str, str] | None:
        """The lowest and the highest id, None if the ids are not all whole numbers."""
        if not self.manifest.numeric_ids:
            return None
        orders = ("asc", "desc")
        ends = {
            order: body_of({"match_all": {}}, None, 1, [{NUMBER: order}, {ID: order}]) | self._keys
            for order in orders
        }
        found = search(self._engine, ends, self.layout.window)
        lowest, highest = (found[order][0]["sort"][-1] for order in orders)
        return lowest, highest

    def _limit(self, topic: Topic) -> dict[str, Any] | None:
        limit = id_limit(topic, self.manifest.numeric_ids, self._address)
        return None if limit is None else searches.up_to(NUMBER, limit)

    def _post(self, hit: Hit) -> Post:
        source = hit["_source"]
        return Post(source[ID], source[TEXT], source[URL], source.get(SIGNALS, {}))


class ForeignIndex(EngineIndex):
    """An index that somebody has made for other purposes, with its own query and fields."""

    id_range = None  # Ids are texts.

    def __init__(self, engine: Engine, description: Mapping[str, Any], directory: Path) -> None:
        settings = description["settings"]["index"]
        self._window = int(settings.get("max_result_window", 10_000))
        self._several = description["indexes"] > 1 or int(settings["number_of_shards"]) > 1
        self._types = dict(_fields(description["mappings"].get("properties", {})))
        address = engine.address
        options = ("text_field", "url_field", "id_field", "time_field")
        fields = {option: name for option in options if (name := getattr(address, option))}
        named = [(f"`address.{option}`", name) for option, name in fields.items()]
        named += [("`signals`", name) for name in address.signals]
        if unknown := [f"{by} {name}" for by, name in named if name not in self._types]:
            raise CollectionError(
                f"{address}: found no field {', '.join(unknown)}, "
                f"expected one of {listed(list(self._types), 20)}"
            )
        kind = self._types[fields.pop("time_field")] if address.time_field else "date"
        if kind not in _NUMBERS | _DATES:
            raise CollectionError(
                f"{address}: found the time field {address.time_field} of type {kind}, expected a "
                "date or a whole number"
            )
        self._query = {"query": searches.match(fields["text_field"], searches.PLACEHOLDER)}
        if isinstance(address.query, Path):
            self._query = searches.read_query(address.query)
        bypasses = _reranks(engine, default_pipeline(settings))
        kept = f"-{crc32(repr(address.signals).encode()):08x}" if address.signals else ""
        source = [*fields.values(), *address.signals]
        super().__init__(engine, directory, settings["uuid"] + kept, bypasses, source)

    def change_numbers(self) -> Mapping[str, int] | None:
        """As :meth:`EngineIndex.change_numbers`: others may write to it."""
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
            topic.query_id: body_of(self._search(topic), self._limit(topic), hits, sort)
            | self._keys
            for topic in topics
        }
        found = search(self._engine, bodies, self._window, threads, self._several)
        run = {}
        for topic in topics:
            hits_of_topic = found[topic.query_id]
            singles = single_precision(hit["_score"] for hit in hits_of_topic)
            ids = [str(hit["sort"][1] if id_field else hit["_id"]) for hit in hits_of_topic]
            for doc_id in filterfalse(is_doc_id, ids):
                raise CollectionError(
                    f"{self._address}: found the id {doc_id!r}, expected ids without spaces, as a "
                    "run has them; name a field of such ids by `address.id_field`"
                )
            scores = dict(zip(ids, singles, strict=True))
            best_first = sorted(scores.items(), key=lambda item: item[::-1], reverse=True)
            run[topic.query_id] = dict(best_first)
        return run

    def _search(self, topic: Topic) -> dict[str, Any]:
        """The index's own query for a topic."""
        text, template = well_formed(topic.text), self._address.query
        if not isinstance(template, str):
            filled: dict[str, Any] = searches.filled(self._query, text)
            return filled
        body = {"id": template, "params": {"query": text}}
        answer = self._engine.patiently("POST", "/_render/template", body)
        origin = f"the search template {template}"
        return searches.check_search(answer["template_output"], origin)

    def _limit(self, topic: Topic) -> dict[str, Any] | None:
        field = self._address.time_field
        if topic.max_doc_id is None and (field is None or topic.time is None):
            return None
        if field is None:
            raise CollectionError(
                f"topic {topic.query_id} has a time limit, and {self._address} no field for it; "
                "name one by `address.time_field`, or remove the limit from the topic"
            )
        if self._types[field] not in _DATES:
            limit = id_limit(topic, True, self._address)
            return None if limit is None else searches.up_to(field, limit)
        if topic.time is None:
            raise CollectionError(
                f"topic {topic.query_id} has the time limit {topic.max_doc_id}, and {field} of "
                f"{self._address} is a date; give the topic a <querytime>"
            )
        return searches.until(field, topic.time, topic.query_id)

    def _post(self, hit: Hit) -> Post:
        """The post of a hit; a text or link of several values is that of the first one."""
        address, source = self._address, hit.get("_source", {})
        names = (address.text_field, address.url_field, address.id_field)
        text, url, doc_id = (value_of(source, name) for name in names)
        if text is None and "_source" not in hit:
            raise CollectionError(
                f"{address}: the index keeps no texts (_source is off); name one that does"
            )
        doc_id = doc_id if address.id_field else hit["_id"]
        post = Post(str(doc_id), well_formed(str(text or "")), well_formed(str(url or "")))
        return with_signals(post, source, address.signals)


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


class KeptPosts:
    """Posts of an index by id, in a file; those that are not yet there are fetched.

    The file has the form of :class:`indexes.store.PostStore`, so that a new index starts with the
    posts that it was built from; ``user_version`` is 1 once all are there. It may be used by one
    thread at a time. Whether posts have changed is looked up once, at the first use.
    """

    def __init__(self, path: Path, index: EngineIndex) -> None:
        self.path, self._index = path, index
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._told():
            self._connection = sqlite3.connect(path, check_same_thread=False, timeout=60)
            for table in (
                "posts (place INTEGER PRIMARY KEY, doc_id TEXT UNIQUE, text TEXT, url TEXT, "
                "signals TEXT)",
                "changes (shard TEXT PRIMARY KEY, number INTEGER)",
            ):
                self._connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")
            with suppress(sqlite3.OperationalError):  # Earlier versions had none.
                self._connection.execute("ALTER TABLE posts ADD COLUMN signals TEXT")

    def __iter__(self) -> Iterator[Post]:
        """All posts, each once, in an order of no meaning."""
        self._refreshed  # noqa: B018
        if not self._has_all():
            self._keep(self._index.fetch_all())
            self._execute("PRAGMA user_version = 1")
        return iter([*map(post_of, self._execute(f"SELECT {COLUMNS} FROM posts"))])

    def get_many(self, doc_ids: Iterable[str]) -> dict[str, Post]:
        """The posts with these ids, in this order; unknown ids are absent."""
        self._refreshed  # noqa: B018
        wanted = list(dict.fromkeys(doc_ids))
        found = self._kept(wanted)
        missing = [doc_id for doc_id in wanted if doc_id not in found]
        if missing and not self._has_all():
            self._keep(self._index.fetch(missing))
            found |= self._kept(missing)
        return {doc_id: found[doc_id] for doc_id in wanted if doc_id in found}

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @cached_property
    def _refreshed(self) -> None:
        """Read posts anew that have changed since they were read; say so, and since when."""
        if (numbers := self._index.change_numbers()) is None:
            return
        before = {shard: int(number) for shard, number in self._execute("SELECT * FROM changes")}
        if before == numbers:
            return
        ((kept,),) = self._execute("SELECT count(*) FROM posts")
        moment = datetime.fromtimestamp(self.path.stat().st_mtime, UTC)
        text, whole = f"the posts kept here since {moment:%Y-%m-%d %H:%M} UTC", False
        is_later = all(numbers[shard] >= before[shard] for shard in before.keys() & numbers)
        if self._has_all() and before and before.keys() == numbers.keys() and is_later:
            changed = min(before[shard] for shard in before if numbers[shard] != before[shard])
            self._keep(self._index.changed_since(changed))
            text = f"{text} are brought up to date"
            ((kept,),) = self._execute("SELECT count(*) FROM posts")
            whole = int(kept) == self._index.size
        if not whole:
            # Posts are gone, or there is no telling which have changed.
            text = f"{text} are read anew"
            with self._told(), self._connection:
                self._connection.execute("DELETE FROM posts")
                self._connection.execute("PRAGMA user_version = 0")
        if kept:
            print(f"{self.path.parent.name}: {text}", file=sys.stderr)
        with self._told(), self._connection:
            self._connection.execute("DELETE FROM changes")
            self._connection.executemany("INSERT INTO changes VALUES (?, ?)", numbers.items())

    def _kept(self, wanted: Sequence[str]) -> dict[str, Post]:
        query = f"SELECT {COLUMNS} FROM posts WHERE doc_id {GIVEN}"
        return {row[0]: post_of(row) for row in self._execute(query, [json.dumps(wanted)])}

    def _keep(self, posts: Iterable[Post]) -> None:
        """Write posts; all of them or, on an error, none."""
        with self._told(), self._connection:
            self._connection.executemany(
                f"INSERT OR REPLACE INTO posts ({COLUMNS}) VALUES (?, ?, ?, ?)", map(row_of, posts)
            )

    def _has_all(self) -> bool:
        ((version,),) = self._execute("PRAGMA user_version")
        return bool(version)

    def _execute(self, query: str, values: Sequence[str] = ()) -> list[tuple[str, ...]]:
        with self._told():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of the file as those of a collection."""
        try:
            yield
        except sqlite3.Error as error:
            raise CollectionError(
                f"{self.path}: posts of the engine cannot be kept in this file ({error}); free "
                "space, or remove the file"
            ) from None
