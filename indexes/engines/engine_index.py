"""Open and search indexes in OpenSearch and Elasticsearch."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines import engine_queries
from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.engines.client import Engine, Json
from tweetrerank.indexes.engines.engine_error import EngineError
from tweetrerank.indexes.engines.engine_queries import body_of
from tweetrerank.indexes.engines.engine_search import (
    Hit,
    all_hits,
    search,
    single_precision,
)
from tweetrerank.indexes.engines.kept_posts import KeptPosts, posts_file
from tweetrerank.indexes.engines.layout import CUT_HERE, ID, NUMBER, Layout, cut_words
from tweetrerank.indexes.methods import EngineQuery, Method, Topic, id_limit
from tweetrerank.indexes.posts import Post, with_signals
from tweetrerank.indexes.records import is_doc_id, listed, value_of, well_formed
from tweetrerank.indexes.store import Closing

Searches = Iterator[tuple[str, dict[str, Any]]]  # Ids of topics, bodies

_POSTS = 1000  # Number of posts that are fetched by one search

_NUMBERS = {"long", "integer", "short", "byte", "unsigned_long"}
_DATES = {"date", "date_nanos"}


def open_index(
    address: EngineAddress, directory: Path, sources: Sequence[Path] | None = None
) -> "OwnIndex | ForeignIndex":
    """Open an index. Copies of its posts are kept in ``directory``.

    If ``sources`` are given, an index that this program built must have been built from
    these files. Raises DataError if there is no such engine, index or field, if the
    index is not complete, or if it has other posts.
    """
    engine = Engine(address)
    if not address.has_methods:
        return ForeignIndex(engine, engine.describe(), directory)
    return OwnIndex(engine, engine.describe(), directory, sources)


class EngineIndex(Closing, ABC):
    """An index that is open for searching. Its ``posts`` are kept in a file.

    If ``bypasses`` is set, searches avoid the search pipeline of the index. ``source``
    names the fields of a post to fetch. True fetches all of them.
    """

    _several: bool  # Whether word statistics are those of several shards

    def __init__(
        self,
        engine: Engine,
        settings: Json,
        folder: Path,
        bypasses: bool,
        source: list[str] | bool,
    ) -> None:
        self._engine = engine
        self._address = engine.address
        self._source = source
        self._page_size = int(settings.get("max_result_window", 10_000))
        self._keys: dict[str, Any] = {}  # Added to every search
        if bypasses:
            self._keys["search_pipeline"] = "_none"
        file = posts_file(folder, settings["uuid"], engine.address)
        self.posts = KeptPosts(file, self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address of the index, which unpickling opens again."""
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
        """Search like :meth:`tweetrerank.indexes.lucene_index.LuceneIndex.search`.

        An index of somebody else is searched by its own query. There, posts of equal
        score are sorted by the id as text, from the highest to the lowest.
        """
        topics = list(topics)
        bodies = {
            query_id: body | self._keys
            for query_id, body in self._bodies(topics, method, hits)
        }
        results = search(self._engine, bodies, self._page_size, threads, self._several)
        return {
            topic.query_id: self._scores(results.get(topic.query_id, []), method)
            for topic in topics
        }

    @abstractmethod
    def _bodies(self, topics: Sequence[Topic], method: Method, hits: int) -> Searches:
        """Yield (query_id, search) for each topic that has words.

        Raises DataError if the index does not offer the method.
        """

    @abstractmethod
    def _scores(self, hits: Sequence[Hit], method: Method) -> dict[str, float]:
        """Return the score of each hit by doc_id, best first."""

    @abstractmethod
    def _post(self, hit: Hit) -> Post:
        """Return the post of a hit that was fetched with its fields."""

    def fetch(self, doc_ids: Sequence[str]) -> Iterator[Post]:
        """Yield the posts with these ids, in any order."""
        field = self._address.id_field
        for start in range(0, len(doc_ids), _POSTS):
            page = list(doc_ids[start : start + _POSTS])
            query = {"terms": {field: page}} if field else {"ids": {"values": page}}
            yield from self.fetch_all(query)

    def fetch_all(self, query: Json | None = None) -> Iterator[Post]:
        """Yield all posts, or those that match a query, in any order."""
        body = {"_source": self._source} | self._keys
        if query:
            body["query"] = query
        return map(self._post, all_hits(self._engine, body))

    def change_numbers(self) -> Mapping[str, int] | None:
        """Return the sequence number of the last change of each shard.

        The result is None if the index never changes, or if the numbers are not
        available.
        """
        return None


class OwnIndex(EngineIndex):
    """An index built by :func:`tweetrerank.indexes.engines.filling.build`."""

    _several = False

    def __init__(
        self,
        engine: Engine,
        description: Json,
        directory: Path,
        sources: Sequence[Path] | None,
    ) -> None:
        self.layout = Layout.read(engine.address, description)
        self.manifest = self.layout.manifest
        if not self.layout.complete:
            raise DataError(
                f"{engine.address}: this index is not complete; send the posts that it "
                f"lacks with\n  {self.manifest.rebuild}"
            )
        difference = None
        if sources is not None:
            difference = self.manifest.difference(sources)
        if difference:
            raise DataError(
                f"{engine.address}: this index was {difference}; choose another "
                "`address.index`, or delete it if nobody needs it, and build it again "
                f"with\n  {self.manifest.rebuild}"
            )
        settings = description["settings"]["index"]
        # Any pipeline would change the scores of the methods.
        bypasses = bool(_pipeline(settings))
        # Leaving out fields takes an engine longer than sending them.
        super().__init__(engine, settings, directory, bypasses, source=True)

    @property
    def size(self) -> int:
        """Number of posts."""
        return self.manifest.posts

    def _bodies(self, topics: Sequence[Topic], method: Method, hits: int) -> Searches:
        field = self.layout.field_of(method, self._address)
        numeric_ids = self.manifest.numeric_ids
        limits = [id_limit(topic, numeric_ids, self._address) for topic in topics]
        texts = [well_formed(topic.text) for topic in topics]
        if self.layout.analyzer == CUT_HERE:
            texts = cut_words(texts, self.manifest.analyzer)
        for topic, text, limit in zip(topics, texts, limits, strict=True):
            # A query without words has no hits.
            if not text.strip():
                continue
            query = {"match": {field: {"query": text}}}
            up_to = None
            if limit is not None:
                up_to = {"range": {NUMBER: {"lte": limit}}}
            body = body_of(query, up_to, hits, self.layout.sort)
            # The values of the sort suffice, so stored fields need not be read.
            body["stored_fields"] = "_none_"
            yield topic.query_id, body

    def _scores(self, hits: Sequence[Hit], method: Method) -> dict[str, float]:
        scale = self.layout.scale(self._engine, method)
        keys = [hit["sort"] for hit in hits]
        engine_scores = single_precision(key[0] for key in keys)
        return {
            str(key[-1]): score / scale
            for key, score in zip(keys, engine_scores, strict=True)
        }

    @cached_property
    def id_range(self) -> tuple[str, str] | None:
        """See :attr:`EngineIndex.id_range`."""
        if not self.manifest.numeric_ids:
            return None
        bodies = {}
        for order in ("asc", "desc"):
            sort = [{NUMBER: order}, {ID: order}]
            bodies[order] = body_of({"match_all": {}}, None, 1, sort) | self._keys
        results = search(self._engine, bodies, self._page_size)
        lowest = results["asc"][0]["sort"][-1]
        highest = results["desc"][0]["sort"][-1]
        return lowest, highest

    def _post(self, hit: Hit) -> Post:
        return self.layout.post(hit["_source"])


class ForeignIndex(EngineIndex):
    """An index that somebody has made for other purposes.

    It has its own query and fields.
    """

    def __init__(self, engine: Engine, description: Json, directory: Path) -> None:
        address = engine.address
        settings = description["settings"]["index"]
        shards = int(settings["number_of_shards"])
        self._several = description["indexes"] > 1 or shards > 1
        self._types = dict(_fields(description["mappings"].get("properties", {})))
        _check_fields(address, self._types)
        self._query = {
            "query": {
                "match": {address.text_field: {"query": engine_queries.PLACEHOLDER}}
            }
        }
        if isinstance(address.query, Path):
            self._query = engine_queries.read_query(address.query)
        fields = (address.text_field, address.url_field, address.id_field)
        source = [name for name in fields if name]
        source += address.signals
        bypasses = _reranks(engine, settings)
        super().__init__(engine, settings, directory, bypasses, source)

    def change_numbers(self) -> Mapping[str, int] | None:
        """See :meth:`EngineIndex.change_numbers`. Other programs may write to it."""
        path = f"/{self._address.index}/_stats"
        try:
            stats = self._engine.patiently("GET", path, None, {"level": "shards"})
        except EngineError:
            # The user may lack the right.
            return None
        numbers = {}
        for name, index in stats["indices"].items():
            for shard, copies in index["shards"].items():
                numbers[f"{name}/{shard}"] = max(
                    copy["seq_no"]["max_seq_no"] for copy in copies
                )
        return numbers

    def _bodies(self, topics: Sequence[Topic], method: Method, hits: int) -> Searches:
        if not isinstance(method, EngineQuery):
            raise DataError(
                f"{self._address}: this index is ranked by its own query, expected no "
                f"method ({method.name}); only an index that this program built has "
                "those of its own"
            )
        sort = [{"_score": "desc"}]
        if self._address.id_field:
            sort.append({self._address.id_field: "desc"})
        for topic in topics:
            query = self._topic_query(topic)
            yield topic.query_id, body_of(query, self._limit(topic), hits, sort)

    def _scores(self, hits: Sequence[Hit], method: Method) -> dict[str, float]:
        if self._address.id_field:
            ids = [str(hit["sort"][1]) for hit in hits]
        else:
            ids = [str(hit["_id"]) for hit in hits]
        for doc_id in ids:
            if not is_doc_id(doc_id):
                raise DataError(
                    f"{self._address}: found the id {doc_id!r}, expected ids without "
                    "spaces, as a run has them; name a field of such ids by "
                    "`address.id_field`"
                )
        engine_scores = single_precision(hit["_score"] for hit in hits)
        scores = dict(zip(ids, engine_scores, strict=True))
        by_score_and_id = sorted(
            scores.items(), key=lambda item: (item[1], item[0]), reverse=True
        )
        return dict(by_score_and_id)

    def _topic_query(self, topic: Topic) -> Any:
        """Return the query of this index with a topic's text in it."""
        text = well_formed(topic.text)
        template = self._address.query
        if not isinstance(template, str):
            return engine_queries.filled(self._query, text)
        body = {"id": template, "params": {"query": text}}
        response = self._engine.patiently("POST", "/_render/template", body)
        return engine_queries.check_search(
            response["template_output"], f"the search template {template}"
        )

    def _limit(self, topic: Topic) -> dict[str, Any] | None:
        """Return the filter for a topic's time limit, None without a limit.

        Raises DataError if the limit does not fit the time field of the index.
        """
        field = self._address.time_field
        if topic.max_doc_id is None and (field is None or topic.time is None):
            return None
        if field is None:
            raise DataError(
                f"topic {topic.query_id} has a time limit, and {self._address} no "
                "field for it; name one by `address.time_field`, or remove the limit "
                "from the topic"
            )
        if self._types[field] not in _DATES:
            limit = id_limit(topic, True, self._address)
            return None if limit is None else {"range": {field: {"lte": limit}}}
        if topic.time is None:
            raise DataError(
                f"topic {topic.query_id} has the time limit {topic.max_doc_id}, and "
                f"{field} of {self._address} is a date; give the topic a <querytime>"
            )
        return engine_queries.until(field, topic.time, topic.query_id)

    def _post(self, hit: Hit) -> Post:
        """Return the post of a hit. Of several values of a field, the first counts.

        Raises DataError if the index does not keep its texts.
        """
        address = self._address
        source = hit.get("_source")
        if source is None:
            raise DataError(
                f"{address}: the index keeps no texts (_source is off); name one that "
                "does"
            )
        text = value_of(source, address.text_field)
        url = value_of(source, address.url_field)
        doc_id = hit["_id"]
        if address.id_field:
            doc_id = value_of(source, address.id_field)
        post = Post(
            str(doc_id), well_formed(str(text or "")), well_formed(str(url or ""))
        )
        return with_signals(post, source, address.signals)


def _check_fields(address: EngineAddress, types: Mapping[str, str]) -> None:
    """Raise DataError if the index lacks a field of the address, or one is unfit."""
    fields = []
    for option in ("text_field", "url_field", "id_field", "time_field"):
        name = getattr(address, option)
        if name:
            fields.append((f"`address.{option}`", name))
    fields += [("`signals`", name) for name in address.signals]
    unknown = [f"{option} {name}" for option, name in fields if name not in types]
    if unknown:
        raise DataError(
            f"{address}: found no field {', '.join(unknown)}, "
            f"expected one of {listed(list(types), 20)}"
        )
    if not address.time_field:
        return
    kind = types[address.time_field]
    if kind not in _NUMBERS | _DATES:
        raise DataError(
            f"{address}: found the time field {address.time_field} of type {kind}, "
            "expected a date or a whole number"
        )


def _reranks(engine: Engine, settings: Json) -> bool:
    """Return whether the search pipeline of an index reranks.

    A first stage must not rerank.
    """
    name = _pipeline(settings)
    if not name:
        return False
    content = engine.patiently("GET", f"/_search/pipeline/{name}")[name]
    processors = content.get("response_processors", ())
    return any("rerank" in processor for processor in processors)


def _pipeline(settings: Json) -> str | None:
    """Return the search pipeline that an index's settings name, None without one."""
    name: str | None = settings.get("search", {}).get("default_pipeline")
    return None if name == "_none" else name


def _fields(properties: Json, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, type) of all fields, including those inside objects and fields."""
    for name, field in properties.items():
        if "type" in field:
            yield prefix + name, field["type"]
        for inner in ("properties", "fields"):
            yield from _fields(field.get(inner, {}), f"{prefix}{name}.")
