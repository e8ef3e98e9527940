"""An index of ours in a search engine: its settings and fields, and how it is filled.

A text is indexed once for each similarity, as an engine's similarity belongs to a field. Where the
engine lacks the language's analyzer (a bare Elasticsearch), words are cut by Lucene here and
indexed as they are; both give the words of :mod:`tweetrerank.indexes.analysis`, but for Thai.

Posts are created, never overwritten: a post that is sent twice, because its answer was lost,
changes nothing and leaves no deleted copy behind that would count in the statistics of words.
"""

import sqlite3
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self
from zlib import crc32

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.client import (
    Engine,
    EngineAddress,
    EngineError,
    encoded,
    reason_of,
    repeated,
)
from tweetrerank.indexes.engines.engine_search import all_hits
from tweetrerank.indexes.manifest import IndexManifest, Source, software_versions
from tweetrerank.indexes.methods import BM25, Method, QueryLikelihood
from tweetrerank.indexes.posts import Post
from tweetrerank.indexes.store import POSTS_FILE, PostStore

TEXT, WORDS, URL, ID, NUMBER = "contents", "words", "url", "id", "number"
"""Fields: the text, its words where they are cut here, the link, the id as a text, as a number."""

SIGNALS = (
    "signals"  # Object of further numbers, whose fields the engine makes as they come
)

CUT_HERE = "whitespace"
"""Analyzer of words that are cut here."""

Ranked = QueryLikelihood | BM25  # Methods of an engine: similarities of its fields

RANKED: Mapping[str, Ranked] = {
    method.name: method for method in (QueryLikelihood(), BM25())
}
"""These methods by their names."""

_META = "tweetrerank"

CHUNK = 1_000_000  # Bytes of posts in a request, about
IN_FLIGHT = 3  # Requests that are under way at a time

_CONFLICT, _TOO_LARGE = 409, 413

_REFUSED = (400, 413)
"""Status of a post that the engine will never take; others concern the whole index."""


_TYPES = {QueryLikelihood.name: "LMDirichlet", BM25.name: "BM25"}  # Of similarities


def _similarity(method: Ranked) -> dict[str, Any]:
    """The engine's settings of a method's similarity."""
    return {"type": _TYPES[method.name], **vars(method)}


@dataclass(frozen=True)
class Layout:
    """An index of ours, as it is to be or as it is."""

    manifest: IndexManifest  # Description of its posts and where they are from
    analyzer: str  # That of the manifest, or :data:`CUT_HERE`
    similarities: Mapping[
        str, Mapping[str, Any]
    ]  # Method's name -> settings of its similarity
    complete: bool = False  # Whether all posts have been sent
    plain_ids: bool = False
    """Whether ids are whole numbers without zeros before them, so that the number tells the id; to
    sort by a text and to give it back takes an engine most of a search's time."""

    @classmethod
    def read(cls, address: EngineAddress, description: Mapping[str, Any]) -> Self:
        """Layout of an index, from the engine's ``GET /index``. Raises DataError if it is not
        of ours, or of another version of this program."""
        mappings = description["mappings"]
        if not isinstance(meta := mappings.get("_meta", {}).get(_META), dict):
            fields = ", ".join(list(mappings.get("properties", {}))[:8]) or "none"
            raise DataError(
                f"{address}: this index was not made by this program; to search it as it is, "
                f"name its field of texts by `address.text_field` (its fields: {fields}); to make "
                "one, choose another `address.index`"
            )
        manifest = IndexManifest.from_fields(str(address), meta["manifest"])
        similarities = {
            # The engines give back numbers as texts.
            name: {k: v if k == "type" else float(v) for k, v in one.items()}
            for name, one in description["settings"]["index"]
            .get("similarity", {})
            .items()
        }
        flags = meta["complete"], meta.get("plain_ids", False)
        return cls(manifest, meta["analyzer"], similarities, *flags)

    @property
    def field(self) -> str:
        """The field of the words."""
        return WORDS if self.analyzer == CUT_HERE else TEXT

    def field_of(self, method: Method, index: EngineAddress) -> str:
        """The field whose similarity is the method's. Raises DataError if none has these
        parameters, or the engine lacks the method."""
        if not isinstance(method, Ranked):
            raise DataError(
                f"{index}: a search engine does not offer {method.name}; use one of "
                f"{', '.join(RANKED)}, or a local index"
            )
        found, wanted = self.similarities.get(method.name, {}), _similarity(method)
        if found != wanted:
            has, expected = (
                ", ".join(f"{k}={v:g}" for k, v in sorted(part.items()) if k != "type")
                for part in (found, wanted)
            )
            raise DataError(
                f"{index}: this index ranks {method.name} with {has or 'no parameters'}, expected "
                f"{expected}; search with the former, or in a local index"
            )
        return (
            self.field
            if isinstance(method, QueryLikelihood)
            else f"{self.field}.{method.name}"
        )

    def body(self) -> dict[str, Any]:
        """The body that creates the index: its settings, fields and description."""
        words: dict[str, Any] = {
            "type": "text",
            "analyzer": self.analyzer,
            "index_options": "freqs",
            "similarity": QueryLikelihood.name,
        }
        words["fields"] = {BM25.name: {**words, "similarity": BM25.name}}
        return {
            "settings": {
                "number_of_shards": 1,  # Word statistics are those of a shard.
                # On one node no replica is missing, on several no post is lost with one of them.
                "auto_expand_replicas": "0-1",
                "refresh_interval": "-1",
                "similarity": {
                    name: dict(one) for name, one in self.similarities.items()
                },
            },
            "mappings": {
                "_meta": self.meta(),
                "dynamic": "strict",
                "properties": {
                    ID: {"type": "keyword"},
                    NUMBER: {"type": "long"},
                    URL: {"type": "keyword", "index": False, "doc_values": False},
                    # Also where its words are beside it: callers search it by their own queries.
                    TEXT: {"type": "text"},
                    self.field: words,
                    SIGNALS: {"type": "object", "dynamic": True},
                },
            },
        }

    def meta(self) -> dict[str, Any]:
        """The description that the engine keeps with the index."""
        flags = {
            name: getattr(self, name) for name in ("analyzer", "complete", "plain_ids")
        }
        return {_META: {"manifest": self.manifest.fields(), **flags}}

    def document(self, post: Post, words: str) -> dict[str, Any]:
        """A post as the engine stores it; ``words`` where they are cut here."""
        found: dict[str, Any] = {ID: post.doc_id, TEXT: post.text, URL: post.url}
        if self.manifest.numeric_ids:
            found[NUMBER] = int(post.doc_id)
        if self.analyzer == CUT_HERE:
            found[WORDS] = words
        return found | ({SIGNALS: dict(post.signals)} if post.signals else {})

    def post(self, found: Mapping[str, Any]) -> Post:
        """The post of a :meth:`document`."""
        return Post(found[ID], found[TEXT], found[URL], found.get(SIGNALS, {}))

    def scale(self, engine: Engine, method: Method) -> float:
        """Divisor that makes the engine's scores Lucene's. Elasticsearch and OpenSearch before
        version 3 have BM25 with the constant factor k1 + 1."""
        is_old = engine.kind == "elasticsearch" or engine.version[:1] < (3,)
        return 1.0 + method.k1 if isinstance(method, BM25) and is_old else 1.0

    @property
    def sort(self) -> list[dict[str, str]]:
        """Best first; posts of equal score from the highest id to the lowest, as in Lucene."""
        number = [{NUMBER: "desc"}] if self.manifest.numeric_ids else []
        return [
            {"_score": "desc"},
            *number,
            *([] if self.plain_ids else [{ID: "desc"}]),
        ]

    def differences(self, other: "Layout") -> list[str]:
        """Differences between this layout and that of an index that is there (``other``)."""
        found = []
        mine, theirs = self.manifest, other.manifest
        if {s[3] for s in mine.sources} != {s[3] for s in theirs.sources}:
            files = [[source.name for source in one.sources] for one in (theirs, mine)]
            more = " of another content" if files[0] == files[1] else ""
            found.append(
                f"posts of {', '.join(files[0])}, expected {', '.join(files[1])}{more}"
            )
        elif mine.posts != theirs.posts:
            found.append(
                f"a collection of {theirs.posts:,} posts, expected {mine.posts:,}"
            )
        if self.similarities != other.similarities:
            found.append("other parameters of its methods")
        for ours, other_one in (
            (self.analyzer, other.analyzer),
            (mine.analyzer, theirs.analyzer),
        ):
            if ours != other_one and not found:
                found.append(f"the analyzer {other_one}, expected {ours}")
        return found


def new_layout(engine: Engine, manifest: IndexManifest, plain_ids: bool) -> Layout:
    """The layout of a new index in this engine, with the manifest's analyzer if it has that."""
    analyzer = manifest.analyzer
    try:
        engine.request("POST", "/_analyze", {"analyzer": analyzer, "text": "tests"})
    except EngineError as error:
        if error.status != 400:
            raise
        analyzer = CUT_HERE
    similarities = {name: _similarity(method) for name, method in RANKED.items()}
    return Layout(manifest, analyzer, similarities, False, plain_ids)


def cut_words(texts: Sequence[str], name: str) -> list[str]:
    """The words of texts as :mod:`tweetrerank.indexes.analysis` has them, separated by blanks; needs Java.
    ``name`` is that of the analyzer."""
    from tweetrerank.indexes.analysis import analyze, analyzer

    with_analyzer = analyzer(name)
    return [" ".join(analyze(text, with_analyzer)) for text in texts]


def kept_posts(directory: Path, uuid: str, address: EngineAddress) -> Path:
    """File of the posts kept here; an index made anew, or with other signals, has another."""
    names = f"-{crc32(repr(address.signals).encode()):08x}" if address.signals else ""
    return directory / f"posts-{uuid}{names}.sqlite"


def build(
    address: EngineAddress,
    posts: Iterable[Post],
    sources: Sequence[Path | str],
    directory: Path,
    rebuild: str,
    language: str | None = None,
) -> tuple[IndexManifest, int]:
    """Fill an index; one that is there and incomplete gets the posts that it lacks. Returns its
    description and the number of posts that were sent for it. Posts are kept in ``directory``
    (:class:`tweetrerank.indexes.engines.engine_index.KeptPosts`); the other arguments are those of
    :func:`tweetrerank.indexes.lucene_index.build`. Raises DataError if there are no posts, or an id is repeated;
    the engine refuses or is lost; the index that is there has other posts or fields. What was sent
    remains, and another call goes on from there."""
    from tweetrerank.indexes.analysis import analyzer_name
    from tweetrerank.indexes.lucene_index import progress

    engine = Engine(address)
    described = tuple(Source.read(Path(source)) for source in sources)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".posts.", dir=directory) as folder:
        path = Path(folder) / POSTS_FILE
        summary = PostStore.build(path, progress(posts, None, "reading"), sources)
        with PostStore(path) as store:
            version = ".".join(map(str, engine.version)) or "unknown"
            manifest = IndexManifest(
                **summary._asdict(),
                analyzer=analyzer_name(language, (post.text for post in store)),
                sources=described,
                files={},
                rebuild=rebuild,
                versions=software_versions(**{engine.kind: version}),
            )
            is_plain = (post.doc_id == str(int(post.doc_id)) for post in store)
            plain_ids = summary.numeric_ids and all(is_plain)
            layout = _prepared(engine, new_layout(engine, manifest, plain_ids))
            sent = _completed(engine, layout, store)
        # Complete: it becomes the file where the index's posts are kept.
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA user_version = 1")
        uuid = engine.describe()["settings"]["index"]["uuid"]
        path.replace(kept_posts(directory, uuid, address))
    return layout.manifest, sent


def _prepared(engine: Engine, wanted: Layout) -> Layout:
    """The index as it is: made, or found with the same posts and fields."""
    address = engine.address
    try:
        found = Layout.read(address, engine.describe())
    except EngineError as error:
        if error.kind != "index_not_found_exception":
            raise
        try:
            engine.patiently("PUT", f"/{address.index}", wanted.body())
        except EngineError as refused:
            # The answer to an earlier attempt was lost.
            if refused.kind != "resource_already_exists_exception":
                raise
        return Layout.read(address, engine.describe())
    if different := wanted.differences(found):
        raise DataError(
            f"{address}: there is an index with {' and with '.join(different)}; choose another "
            "`address.index`, or delete that index if nobody needs it (DELETE "
            f"/{address.index}) and try again"
        )
    return found


def _completed(engine: Engine, layout: Layout, store: PostStore) -> int:
    """Send the posts that the index lacks, and mark it as complete; the number sent. The index is
    not refreshed meanwhile; afterwards as it was before, whatever happened."""
    path, sent = f"/{engine.address.index}", 0
    before = engine.describe()["settings"]["index"].get("refresh_interval")
    # An earlier run was killed before it could set it back.
    before = None if before == "-1" else before
    engine.patiently("PUT", f"{path}/_settings", {"index": {"refresh_interval": "-1"}})
    try:
        engine.patiently("POST", f"{path}/_refresh")
        if (there := engine.count()) != len(store):
            known = set[str]()
            if 0 < there < len(store):
                body = {
                    "_source": False,
                    "stored_fields": "_none_",
                    "docvalue_fields": [ID],
                }
                known = {hit["fields"][ID][0] for hit in all_hits(engine, body)}
            sent = len(store) - len(known)
            missing = (post for post in store if post.doc_id not in known)
            _send_all(engine, _chunks(layout, missing), sent)
            engine.patiently("POST", f"{path}/_refresh")
            if (there := engine.count()) != len(store):
                raise DataError(
                    f"{engine.address}: found {there:,} posts after sending all, expected "
                    f"{len(store):,}; somebody else writes into this index: choose another "
                    "`address.index`"
                )
        if not layout.complete:
            meta = {"_meta": replace(layout, complete=True).meta()}
            engine.patiently("PUT", f"{path}/_mapping", meta)
    finally:
        engine.patiently(
            "PUT", f"{path}/_settings", {"index": {"refresh_interval": before}}
        )
    return sent


_Line = tuple[str, bytes]  # Id of a post, and its two lines of a bulk request


def _chunks(layout: Layout, posts: Iterable[Post]) -> Iterator[list[_Line]]:
    """The posts as lines, about :data:`CHUNK` bytes together; words of many are cut together."""
    left, name, chunk, size = iter(posts), layout.manifest.analyzer, list[_Line](), 0
    while batch := list(islice(left, 1000)):
        words = [""] * len(batch)
        if layout.analyzer == CUT_HERE:
            words = cut_words([post.text for post in batch], name)
        for post, cut in zip(batch, words, strict=True):
            parts = {"create": {"_id": post.doc_id}}, layout.document(post, cut)
            lines = b"".join(encoded(part) + b"\n" for part in parts)
            if chunk and size + len(lines) > CHUNK:
                yield chunk
                chunk, size = [], 0
            chunk.append((post.doc_id, lines))
            size += len(lines)
    if chunk:
        yield chunk


def _send_all(engine: Engine, chunks: Iterable[Sequence[_Line]], total: int) -> None:
    """Send posts in several threads; raises DataError with the ids of those refused."""
    from tqdm import tqdm

    refused, stopped = dict[str, str](), threading.Event()
    pool, pending = ThreadPoolExecutor(IN_FLIGHT), deque[Future[int]]()
    bar = tqdm(
        total=total, desc="indexing", unit=" posts", disable=None, mininterval=0.5
    )
    try:
        with bar:
            for chunk in chunks:
                if len(pending) == IN_FLIGHT:
                    bar.update(pending.popleft().result())
                pending.append(pool.submit(_send, engine, chunk, refused, stopped))
            for one in pending:
                bar.update(one.result())
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
    if refused:
        reasons = "; ".join(
            f"post {key}: {text}" for key, text in [*refused.items()][:3]
        )
        more = f" and {len(refused) - 3:,} more" if len(refused) > 3 else ""
        raise DataError(
            f"{engine.address}: the engine has refused {len(refused):,} of {total:,} posts: "
            f"{reasons}{more}; the others are there: correct these and try again"
        )


def _send(
    engine: Engine,
    chunk: Sequence[_Line],
    refused: dict[str, str],
    stopped: threading.Event,
) -> int:
    """Send posts until each is there or ``refused``, with the reason; their number."""
    left, address = dict(chunk), engine.address
    shown = ",".join(f"items.*.{name}" for name in ("_id", "status", "error"))

    def pause(seconds: float) -> None:
        if stopped.wait(seconds):
            raise EngineError("interrupted")

    def attempt() -> None:
        pause(0)
        path, body = f"/{address.index}/_bulk", b"".join(left.values())
        try:
            answer = engine.request("POST", path, body, {"filter_path": shown})
        except EngineError as error:
            if error.status != _TOO_LARGE or len(left) == 1:
                raise
            lines, half = [*left.items()], len(left) // 2
            for part in (lines[:half], lines[half:]):
                _send(engine, part, refused, stopped)
            left.clear()
            return
        for item in (next(iter(each.values())) for each in answer.get("items", [])):
            status, doc_id = item["status"], item["_id"]
            if status in _REFUSED:
                refused[doc_id] = reason_of(item)[1]
            if status < 300 or status in (_CONFLICT, *_REFUSED):
                del left[doc_id]
            elif not (problem := engine.refusal(status, item)).is_passing:
                raise problem
        if left:
            raise EngineError(
                f"{address}: the engine is too busy to take {len(left):,} posts (such as "
                f"{next(iter(left))}); try again, which sends only what is missing",
                429,
            )

    repeated(attempt, pause)
    return len(chunk)
