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
from typing import Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines import engine_search as searches
from tweetrerank.indexes.engines.client import Engine, EngineAddress, EngineError, Json
from tweetrerank.indexes.engines.engine_search import (
    Hit,
    all_hits,
    body_of,
    search,
    single_precision,
)
from tweetrerank.indexes.engines.layout import (
    CUT_HERE,
    ID,
    NUMBER,
    Layout,
    cut_words,
    kept_posts,
)
from tweetrerank.indexes.methods import EngineQuery, Method, Topic, id_limit
from tweetrerank.indexes.posts import Post, with_signals
from tweetrerank.indexes.records import is_doc_id, listed, value_of, well_formed
from tweetrerank.indexes.store import COLUMNS, GIVEN, Closing, post_of, row_of

Searches = Iterator[tuple[str, dict[str, Any]]]  # Ids of topics, bodies

_POSTS = 1000  # Posts that are fetched by one search

_NUMBERS = {"long", "integer", "short", "byte", "unsigned_long"}
_DATES = {"date", "date_nanos"}


def open_index(
    address: EngineAddress, directory: Path, sources: Sequence[Path] | None = None
) -> "OwnIndex | ForeignIndex":
    """Open an index, whose posts are kept in ``directory``; ``sources`` are checked in one of ours.
    Raises DataError if there is no such engine, index or field, or it has other posts."""
    engine = Engine(address)
    if not address.has_methods:
        return ForeignIndex(engine, engine.describe(), directory)
    return OwnIndex(engine, engine.describe(), directory, sources)


class EngineIndex(Closing, ABC):
    """An index that is open for searching; its ``posts`` are fetched once and kept in a file.
    Searches go without the index's own pipeline if that ``bypasses``. ``source``: the fields of a
    post, True for all."""

    _several: bool  # Whether word statistics are those of several shards

    def __init__(
        self,
        engine: Engine,
        settings: Json,
        folder: Path,
        bypasses: bool,
        source: list[str] | bool,
    ) -> None:
        self._engine, self._address, self._source = engine, engine.address, source
        self._window = int(settings.get("max_result_window", 10_000))
        # Added to every search.
        self._keys = {"search_pipeline": "_none"} if bypasses else {}
        self.posts = KeptPosts(
            kept_posts(folder, settings["uuid"], engine.address), self
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled index is opened again."""
        return open_index, (self._address, self.posts.path.parent)

    def close(self) -> None:
        """Close the file of posts."""
        self.posts.close()

    @property
    def size(self) -> int:
        """Number of posts."""
        return self._engine.count()

    @property
    def id_range(self) -> tuple[str, str] | None:
        """The lowest and the highest id, None if the ids are not all whole numbers."""
        return None

    def search(
        self,
        topics: Iterable[Topic],
        method: Method,
        hits: int = 1000,
        threads: int = 2,
    ) -> dict[str, dict[str, float]]:
        """As :meth:`tweetrerank.indexes.lucene_index.LuceneIndex.search`; in an index as it is by its own query. Its
        posts of equal score come from the highest id to the lowest, as text."""
        topics = list(topics)
        bodies = {
            id_: body | self._keys for id_, body in self._bodies(topics, method, hits)
        }
        found = search(self._engine, bodies, self._window, threads, self._several)
        scores = {topic.query_id: found.get(topic.query_id, ()) for topic in topics}
        return {
            query_id: self._scores(hits, method) for query_id, hits in scores.items()
        }

    @abstractmethod
    def _bodies(self, topics: Sequence[Topic], method: Method, hits: int) -> Searches:
        """Ids and searches of the topics; raises DataError for a method it has not."""

    @abstractmethod
    def _scores(self, hits: Sequence[Hit], method: Method) -> dict[str, float]:
        """Ids of the hits and scores, best first."""

    @abstractmethod
    def _post(self, hit: Hit) -> Post:
        """The post of a hit with its source."""

    def fetch(self, doc_ids: Sequence[str]) -> Iterator[Post]:
        """The posts with these ids, in any order."""
        field = self._address.id_field
        for start in range(0, len(doc_ids), _POSTS):
            part = [*doc_ids[start : start + _POSTS]]
            query = {"terms": {field: part}} if field else {"ids": {"values": part}}
            yield from self.fetch_all(query)

    def fetch_all(self, query: Json | None = None) -> Iterator[Post]:
        """All posts, or those of a query."""
        chosen = {"query": query} if query else {}
        hits = all_hits(self._engine, {"_source": self._source, **self._keys, **chosen})
        return map(self._post, hits)

    def change_numbers(self) -> Mapping[str, int] | None:
        """Shard -> sequence number of its last change; None if nobody changes it, or tells."""
        return None


class OwnIndex(EngineIndex):
    """An index by :func:`tweetrerank.indexes.engines.layout.build`."""

    _several = False

    def __init__(
        self,
        engine: Engine,
        description: Json,
        directory: Path,
        sources: Sequence[Path] | None,
    ) -> None:
        self.layout = layout = Layout.read(engine.address, description)
        self.manifest, settings = layout.manifest, description["settings"]["index"]
        if not layout.complete:
            raise DataError(
                f"{engine.address}: this index is not complete; send the posts that it lacks with\n"
                f"  {self.manifest.rebuild}"
            )
        if sources is not None and (problem := self.manifest.difference(sources)):
            raise DataError(
                f"{engine.address}: this index was {problem}; choose another `address.index`, or "
                "delete it if nobody needs it, and build it again with\n"
                f"  {self.manifest.rebuild}"
            )
        # Any pipeline would give others than the methods' scores. To leave out fields takes an
        # engine longer than to send them.
        super().__init__(
            engine, settings, directory, bool(_pipeline(settings)), source=True
        )

    @property
    def size(self) -> int:
        """Number of posts."""
        return self.manifest.posts

    def _bodies(self, topics: Sequence[Topic], method: Method, hits: int) -> Searches:
        field, sort = self.layout.field_of(method, self._address), self.layout.sort
        limits = [id_limit(t, self.manifest.numeric_ids, self._address) for t in topics]
        texts = [well_formed(topic.text) for topic in topics]
        if self.layout.analyzer == CUT_HERE:
            texts = cut_words(texts, self.manifest.analyzer)
        for topic, text, limit in zip(topics, texts, limits, strict=True):
            if (
                text.strip()
            ):  # A query without words finds nothing, and need not be sent.
                up_to = None if limit is None else {"range": {NUMBER: {"lte": limit}}}
                body = body_of({"match": {field: {"query": text}}}, up_to, hits, sort)
                # The values of the sort have all that is needed; stored fields need not be read.
                yield topic.query_id, body | {"stored_fields": "_none_"}

    def _scores(self, hits: Sequence[Hit], method: Method) -> dict[str, float]:
        scale, keys = (
            self.layout.scale(self._engine, method),
            [hit["sort"] for hit in hits],
        )
        pairs = zip(keys, single_precision(key[0] for key in keys), strict=True)
        return {str(key[-1]): score / scale for key, score in pairs}

    @cached_property
    def id_range(self) -> tuple[str, str] | None:
        """See :attr:`EngineIndex.id_range`."""
        if not self.manifest.numeric_ids:
            return None
        ends = {
            order: body_of({"match_all": {}}, None, 1, [{NUMBER: order}, {ID: order}])
            | self._keys
            for order in ("asc", "desc")
        }
        found = search(self._engine, ends, self._window)
        lowest, highest = (found[order][0]["sort"][-1] for order in ends)
        return lowest, highest

    def _post(self, hit: Hit) -> Post:
        return self.layout.post(hit["_source"])


class ForeignIndex(EngineIndex):
    """An index that somebody has made for other purposes, with its own query and fields."""

    def __init__(self, engine: Engine, description: Json, directory: Path) -> None:
        address, settings = engine.address, description["settings"]["index"]
        self._several = (
            description["indexes"] > 1 or int(settings["number_of_shards"]) > 1
        )
        self._types = dict(_fields(description["mappings"].get("properties", {})))
        options = ("text_field", "url_field", "id_field", "time_field")
        fields = {
            option: name for option in options if (name := getattr(address, option))
        }
        named = [(f"`address.{option}`", name) for option, name in fields.items()]
        named += [("`signals`", name) for name in address.signals]
        if unknown := [f"{by} {name}" for by, name in named if name not in self._types]:
            raise DataError(
                f"{address}: found no field {', '.join(unknown)}, "
                f"expected one of {listed(list(self._types), 20)}"
            )
        kind = self._types[fields.pop("time_field")] if address.time_field else "date"
        if kind not in _NUMBERS | _DATES:
            raise DataError(
                f"{address}: found the time field {address.time_field} of type {kind}, expected a "
                "date or a whole number"
            )
        self._query = {
            "query": {"match": {fields["text_field"]: {"query": searches.PLACEHOLDER}}}
        }
        if isinstance(address.query, Path):
            self._query = searches.read_query(address.query)
        reranks = False
        if pipeline := _pipeline(settings):  # A reranker belongs to no first stage.
            content = engine.patiently("GET", f"/_search/pipeline/{pipeline}")[pipeline]
            reranks = any(
                "rerank" in part for part in content.get("response_processors", ())
            )
        super().__init__(
            engine, settings, directory, reranks, [*fields.values(), *address.signals]
        )

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

    def _bodies(self, topics: Sequence[Topic], method: Method, hits: int) -> Searches:
        if not isinstance(method, EngineQuery):
            raise DataError(
                f"{self._address}: this index is ranked by its own query, expected no method "
                f"({method.name}); only an index that this program built has those of its own"
            )
        id_field = self._address.id_field
        sort = [{"_score": "desc"}, *([{id_field: "desc"}] if id_field else [])]
        for topic in topics:
            yield (
                topic.query_id,
                body_of(self._search(topic), self._limit(topic), hits, sort),
            )

    def _scores(self, hits: Sequence[Hit], method: Method) -> dict[str, float]:
        has_field = bool(self._address.id_field)
        ids = [str(hit["sort"][1] if has_field else hit["_id"]) for hit in hits]
        for doc_id in filterfalse(is_doc_id, ids):
            raise DataError(
                f"{self._address}: found the id {doc_id!r}, expected ids without spaces, as a "
                "run has them; name a field of such ids by `address.id_field`"
            )
        scores = dict(
            zip(ids, single_precision(hit["_score"] for hit in hits), strict=True)
        )
        return dict(sorted(scores.items(), key=lambda item: item[::-1], reverse=True))

    def _search(self, topic: Topic) -> Any:
        """The index's own query for a topic."""
        text, template = well_formed(topic.text), self._address.query
        if not isinstance(template, str):
            return searches.filled(self._query, text)
        body = {"id": template, "params": {"query": text}}
        answer = self._engine.patiently("POST", "/_render/template", body)
        return searches.check_search(
            answer["template_output"], f"the search template {template}"
        )

    def _limit(self, topic: Topic) -> dict[str, Any] | None:
        field = self._address.time_field
        if topic.max_doc_id is None and (field is None or topic.time is None):
            return None
        if field is None:
            raise DataError(
                f"topic {topic.query_id} has a time limit, and {self._address} no field for it; "
                "name one by `address.time_field`, or remove the limit from the topic"
            )
        if self._types[field] not in _DATES:
            limit = id_limit(topic, True, self._address)
            return None if limit is None else {"range": {field: {"lte": limit}}}
        if topic.time is None:
            raise DataError(
                f"topic {topic.query_id} has the time limit {topic.max_doc_id}, and {field} of "
                f"{self._address} is a date; give the topic a <querytime>"
            )
        return searches.until(field, topic.time, topic.query_id)

    def _post(self, hit: Hit) -> Post:
        """The post of a hit; a text or link of several values is that of the first one."""
        address = self._address
        if (source := hit.get("_source")) is None:
            problem = "the index keeps no texts (_source is off); name one that does"
            raise DataError(f"{address}: {problem}")
        names = (address.text_field, address.url_field, address.id_field)
        text, url, doc_id = (value_of(source, name) for name in names)
        doc_id = str(doc_id if address.id_field else hit["_id"])
        post = Post(doc_id, well_formed(str(text or "")), well_formed(str(url or "")))
        return with_signals(post, source, address.signals)


def _pipeline(settings: Json) -> str | None:
    """The search pipeline that an index has by its settings, None without one."""
    name: str | None = settings.get("search", {}).get("default_pipeline")
    return None if name == "_none" else name


def _fields(properties: Json, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names and types of all fields, those within objects and fields too."""
    for name, one in properties.items():
        if "type" in one:
            yield prefix + name, one["type"]
        for inner in ("properties", "fields"):
            yield from _fields(one.get(inner, {}), f"{prefix}{name}.")


class KeptPosts:
    """Posts of an index by id, in a file; those that are not yet there are fetched. The file has
    the form of :class:`tweetrerank.indexes.store.PostStore`, so that a new index starts with the posts that it
    was built from; ``user_version`` is 1 once all are there. It may be used by one thread at a
    time. Whether posts have changed is looked up once, at the first use."""

    def __init__(self, path: Path, index: EngineIndex) -> None:
        self.path, self._index = path, index
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._told():
            self._connection = sqlite3.connect(
                path, check_same_thread=False, timeout=60
            )
            self._connection.executescript(
                "CREATE TABLE IF NOT EXISTS posts"
                " (place INTEGER PRIMARY KEY, doc_id TEXT UNIQUE, text TEXT, url TEXT,"
                " signals TEXT);"
                "CREATE TABLE IF NOT EXISTS changes (shard TEXT PRIMARY KEY, number INTEGER);"
            )
            with suppress(sqlite3.OperationalError):  # Earlier versions had none.
                self._connection.execute("ALTER TABLE posts ADD COLUMN signals TEXT")

    def __iter__(self) -> Iterator[Post]:
        """All posts, each once, in an order of no meaning."""
        self._refreshed  # noqa: B018
        if not self._has_all():
            self._keep(self._index.fetch_all())
            self._select("PRAGMA user_version = 1")
        return iter([*map(post_of, self._select(f"SELECT {COLUMNS} FROM posts"))])

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
        before = {
            shard: int(number)
            for shard, number in self._select("SELECT * FROM changes")
        }
        if before == numbers:
            return
        count, whole = "SELECT count(*) FROM posts", False
        kept = self._select(count)[0][0]
        moment = datetime.fromtimestamp(self.path.stat().st_mtime, UTC)
        is_later = all(
            numbers[shard] >= before[shard] for shard in before.keys() & numbers
        )
        if self._has_all() and before and before.keys() == numbers.keys() and is_later:
            changed = min(
                before[shard] for shard in before if numbers[shard] != before[shard]
            )
            self._keep(self._index.fetch_all({"range": {"_seq_no": {"gt": changed}}}))
            kept = self._select(count)[0][0]
            whole = kept == self._index.size
        if kept:
            how = "brought up to date" if whole else "read anew"
            text = f"the posts kept here since {moment:%Y-%m-%d %H:%M} UTC are {how}"
            print(f"{self.path.parent.name}: {text}", file=sys.stderr)
        with self._told(), self._connection as connection:
            if not whole:  # Posts are gone, or there is no telling which have changed.
                connection.execute("DELETE FROM posts")
                connection.execute("PRAGMA user_version = 0")
            connection.execute("DELETE FROM changes")
            connection.executemany("INSERT INTO changes VALUES (?, ?)", numbers.items())

    def _has_all(self) -> bool:
        return bool(self._select("PRAGMA user_version")[0][0])

    def _kept(self, wanted: Sequence[str]) -> dict[str, Post]:
        query = f"SELECT {COLUMNS} FROM posts WHERE doc_id {GIVEN}"
        return {
            row[0]: post_of(row) for row in self._select(query, [json.dumps(wanted)])
        }

    def _keep(self, posts: Iterable[Post]) -> None:
        """Write posts; all of them or, on an error, none."""
        with self._told(), self._connection:
            self._connection.executemany(
                f"INSERT OR REPLACE INTO posts ({COLUMNS}) VALUES (?, ?, ?, ?)",
                map(row_of, posts),
            )

    def _select(self, query: str, values: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        with self._told():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of the file as those of a collection."""
        try:
            yield
        except sqlite3.Error as error:
            raise DataError(
                f"{self.path}: posts of the engine cannot be kept in this file ({error}); free "
                "space, or remove the file"
            ) from None
