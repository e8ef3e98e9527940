"""An index of ours in a search engine: its settings and fields, and how it is filled.

A text is indexed once for each similarity, as an engine's similarity belongs to a field. Where the
engine lacks the language's analyzer (a bare Elasticsearch), words are cut by Lucene here and
indexed as they are; both give the words of :mod:`indexes.analysis`, but for Thai.

Posts are created, never overwritten: a post that is sent twice, because its answer was lost,
changes nothing and leaves no deleted copy behind that would count in the statistics of words.
"""

import sqlite3
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

from indexes.engines.client import (
    Engine,
    EngineAddress,
    EngineError,
    encoded,
    reason_of,
    refusal,
    repeated,
)
from indexes.engines.search import all_hits
from indexes.errors import CollectionError
from indexes.manifest import IndexManifest, Source, software_versions
from indexes.methods import BM25, Method, QueryLikelihood
from indexes.posts import Post
from indexes.store import POSTS_FILE, PostStore

TEXT, WORDS, URL, ID, NUMBER = "contents", "words", "url", "id", "number"
"""Fields: the text, its words where they are cut here, the link, the id as a text, as a number."""

SIGNALS = "signals"  # Object of further numbers, whose fields the engine makes as they come

CUT_HERE = "whitespace"
"""Analyzer of words that are cut here."""

Ranked = QueryLikelihood | BM25  # Methods of an engine: similarities of its fields

RANKED: Mapping[str, Ranked] = {method.name: method for method in (QueryLikelihood(), BM25())}
"""These methods by their names."""

_META = "tweetrerank"

CHUNK = 1_000_000  # Bytes of posts in a request, about
IN_FLIGHT = 3  # Requests that are under way at a time

_CONFLICT, _TOO_LARGE = 409, 413

_REFUSED = (400, 413)
"""Status of a post that the engine will never take; others concern the whole index."""


def _similarity(method: Ranked) -> dict[str, Any]:
    """The engine's settings of a method's similarity."""
    if isinstance(method, BM25):
        return {"type": "BM25", "k1": method.k1, "b": method.b}
    return {"type": "LMDirichlet", "mu": method.mu}


def _parameters(found: Mapping[str, Any]) -> str:
    named = [f"{k}={v:g}" for k, v in sorted(found.items()) if k != "type"]
    return ", ".join(named) or "no parameters"


@dataclass(frozen=True)
class Layout:
    """An index of ours, as it is to be or as it is."""

    manifest: IndexManifest  # Description of its posts and where they are from
    analyzer: str  # That of the manifest, or :data:`CUT_HERE`
    similarities: Mapping[str, Mapping[str, Any]]  # Method's name -> settings of its similarity
    complete: bool = False  # Whether all posts have been sent
    plain_ids: bool = False
    """Whether ids are whole numbers without zeros before them, so that the number tells the id; to
    sort by a text and to give it back takes an engine most of a search's time."""
    uuid: str = ""  # The engine's own id of the index; "" for one that is to be
    window: int = 10_000  # Hits of a search, at most; more are read page by page
    pipeline: str | None = None
    """Search pipeline of every search that names none (OpenSearch); None without one."""

    @classmethod
    def read(cls, address: EngineAddress, description: Mapping[str, Any]) -> Self:
        """Layout of an index, from the engine's ``GET /index``.

        Raises:
            CollectionError: it is not an index of ours, or of another version of this program.
        """
        settings, mappings = description["settings"]["index"], description["mappings"]
        meta = mappings.get("_meta", {}).get(_META)
        if not isinstance(meta, dict):
            fields = ", ".join(list(mappings.get("properties", {}))[:8]) or "none"
            raise CollectionError(
                f"{address}: this index was not made by this program; to search it as it is, "
                f"name its field of texts by `address.text_field` (its fields: {fields}); to make "
                "one, choose another `address.index`"
            )
        manifest = IndexManifest.from_fields(str(address), meta["manifest"])
        similarities = {
            # The engines give back numbers as texts.
            name: {k: v if k == "type" else float(v) for k, v in one.items()}
            for name, one in settings.get("similarity", {}).items()
        }
        return cls(
            *(manifest, meta["analyzer"], similarities, meta["complete"]),
            plain_ids=meta.get("plain_ids", False),
            uuid=settings["uuid"],
            window=int(settings.get("max_result_window", 10_000)),
            pipeline=default_pipeline(settings),
        )

    @property
    def field(self) -> str:
        """The field of the words."""
        return WORDS if self.analyzer == CUT_HERE else TEXT

    def field_of(self, method: Method, index: EngineAddress) -> str:
        """The field whose similarity is the method's.

        Raises:
            CollectionError: there is none with these parameters, or the engine lacks the method.
        """
        if not isinstance(method, Ranked):
            raise CollectionError(
                f"{index}: a search engine does not offer {method.name}; use one of "
                f"{', '.join(RANKED)}, or a local index"
            )
        found, wanted = self.similarities.get(method.name, {}), _similarity(method)
        if found != wanted:
            raise CollectionError(
                f"{index}: this index ranks {method.name} with {_parameters(found)}, expected "
                f"{_parameters(wanted)}; search with the former, or in a local index"
            )
        return self.field if isinstance(method, QueryLikelihood) else f"{self.field}.{method.name}"

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
                "similarity": {name: dict(one) for name, one in self.similarities.items()},
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
        flags = {name: getattr(self, name) for name in ("analyzer", "complete", "plain_ids")}
        return {_META: {"manifest": self.manifest.fields(), **flags}}

    def document(self, post: Post, words: str) -> dict[str, Any]:
        """A post as the engine stores it; ``words`` where they are cut here."""
        found: dict[str, Any] = {ID: post.doc_id, TEXT: post.text, URL: post.url}
        if self.manifest.numeric_ids:
            found[NUMBER] = int(post.doc_id)
        if self.analyzer == CUT_HERE:
            found[WORDS] = words
        return found | ({SIGNALS: dict(post.signals)} if post.signals else {})

    @property
    def sort(self) -> list[dict[str, str]]:
        """Best first; posts of equal score from the highest id to the lowest, as in Lucene."""
        number = [{NUMBER: "desc"}] if self.manifest.numeric_ids else []
        return [{"_score": "desc"}, *number, *([] if self.plain_ids else [{ID: "desc"}])]

    def differences(self, other: "Layout") -> list[str]:
        """Differences between this layout and that of an index that is there (``other``)."""
        found = []
        mine, theirs = self.manifest, other.manifest
        if {s[3] for s in mine.sources} != {s[3] for s in theirs.sources}:
            files = [[source.name for source in one.sources] for one in (theirs, mine)]
            more = " of another content" if files[0] == files[1] else ""
            found.append(f"posts of {', '.join(files[0])}, expected {', '.join(files[1])}{more}")
        elif mine.posts != theirs.posts:
            found.append(f"a collection of {theirs.posts:,} posts, expected {mine.posts:,}")
        if self.similarities != other.similarities:
            found.append("other parameters of its methods")
        for ours, other_one in ((self.analyzer, other.analyzer), (mine.analyzer, theirs.analyzer)):
            if ours != other_one and not found:
                found.append(f"the analyzer {other_one}, expected {ours}")
        return found


def default_pipeline(settings: Mapping[str, Any]) -> str | None:
    """The search pipeline that an index has by its settings, None without one."""
    found = settings.get("search", {}).get("default_pipeline")
    return None if found in (None, "_none") else str(found)


def new_layout(engine: Engine, manifest: IndexManifest) -> Layout:
    """The layout of a new index in this engine, with the manifest's analyzer if it has that."""
    analyzer = manifest.analyzer
    try:
        engine.request("POST", "/_analyze", {"analyzer": analyzer, "text": "tests"})
    except EngineError as error:
        if error.status != 400:
            raise
        analyzer = CUT_HERE
    similarities = {name: _similarity(method) for name, method in RANKED.items()}
    return Layout(manifest, analyzer, similarities)


def without_scale(engine: Engine, method: Method) -> float:
    """Divisor that makes the engine's scores Lucene's.

    Elasticsearch and OpenSearch before version 3 have BM25 with the constant factor k1 + 1.
    """
    is_old = engine.kind == "elasticsearch" or engine.version[:1] < (3,)
    return 1.0 + method.k1 if isinstance(method, BM25) and is_old else 1.0


def cut_words(texts: Sequence[str], name: str) -> list[str]:
    """The words of texts as :mod:`indexes.analysis` has them, separated by blanks; needs Java.

    ``name`` is that of the analyzer.
    """
    from indexes.analysis import analyze, analyzer

    with_analyzer = analyzer(name)
    return [" ".join(analyze(text, with_analyzer)) for text in texts]


def kept_posts(directory: Path, uuid: str) -> Path:
    """File of an index's posts that are kept here; an index made anew has another."""
    return directory / f"posts-{uuid}.sqlite"


# --- Filling --------------------------------------------------------------------------------------


class Built(NamedTuple):
    """Description of a complete index, and the number of posts that were sent for it."""

    manifest: IndexManifest
    sent: int


def build(
    address: EngineAddress,
    posts: Iterable[Post],
    sources: Sequence[Path | str],
    directory: Path,
    rebuild: str,
    language: str | None = None,
) -> Built:
    """Fill an index; one that is there and incomplete gets the posts that it lacks.

    Posts are kept in ``directory`` (:class:`indexes.engines.index.KeptPosts`); the other arguments
    are those of :func:`indexes.index.build`.

    Raises:
        CollectionError: there are no posts, or an id is repeated; the engine refuses or is lost;
            the index that is there has other posts or fields. What was sent remains, and another
            call goes on from there.
    """
    from indexes.analysis import analyzer_name
    from indexes.index import progress

    engine = Engine(address)
    described = tuple(Source.read(Path(source)) for source in sources)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".posts.", dir=directory) as folder:
        path, are_plain = Path(folder) / POSTS_FILE, True

        def watched() -> Iterator[Post]:
            nonlocal are_plain
            for post in progress(posts, None, "reading"):
                are_plain = are_plain and (post.doc_id == "0" or not post.doc_id.startswith("0"))
                yield post

        summary = PostStore.build(path, watched())
        if not summary.posts:
            names = ", ".join(source.name for source in described) or "the input"
            raise CollectionError(f"{names}: found no posts, expected at least one")
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
            plain_ids = summary.numeric_ids and are_plain
            layout = _prepared(engine, replace(new_layout(engine, manifest), plain_ids=plain_ids))
            sent = _completed(engine, layout, store)
        # Complete: it becomes the file where the index's posts are kept.
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA user_version = 1")
        path.replace(kept_posts(directory, layout.uuid))
    return Built(layout.manifest, sent)


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
        raise CollectionError(
            f"{address}: there is an index with {' and with '.join(different)}; choose another "
            "`address.index`, or delete that index if nobody needs it (DELETE "
            f"/{address.index}) and try again"
        )
    return found


def _completed(engine: Engine, layout: Layout, store: PostStore) -> int:
    """Send the posts that the index lacks, and mark it as complete; the number sent."""
    path, sent = f"/{engine.address.index}", 0
    with _without_refresh(engine):
        engine.patiently("POST", f"{path}/_refresh")
        if (there := engine.count()) != len(store):
            known = set[str]()
            if 0 < there < len(store):
                body = {"_source": False, "stored_fields": "_none_", "docvalue_fields": [ID]}
                known = {hit["fields"][ID][0] for hit in all_hits(engine, body)}
            sent = len(store) - len(known)
            missing = (post for post in store if post.doc_id not in known)
            _Sender(engine).send_all(_lines(layout, missing), sent)
            engine.patiently("POST", f"{path}/_refresh")
            if (there := engine.count()) != len(store):
                raise CollectionError(
                    f"{engine.address}: found {there:,} posts after sending all, expected "
                    f"{len(store):,}; somebody else writes into this index: choose another "
                    "`address.index`"
                )
        if not layout.complete:
            meta = {"_meta": replace(layout, complete=True).meta()}
            engine.patiently("PUT", f"{path}/_mapping", meta)
    return sent


@contextmanager
def _without_refresh(engine: Engine) -> Iterator[None]:
    """No refresh of the index meanwhile; afterwards as it was before, whatever happened."""
    path = f"/{engine.address.index}/_settings"
    before = engine.describe()["settings"]["index"].get("refresh_interval")
    # An earlier run was killed before it could set it back.
    before = None if before == "-1" else before
    engine.patiently("PUT", path, {"index": {"refresh_interval": "-1"}})
    try:
        yield
    finally:
        engine.patiently("PUT", path, {"index": {"refresh_interval": before}})


_Line = tuple[str, bytes]  # Id of a post, and its two lines of a bulk request


def _lines(layout: Layout, posts: Iterable[Post]) -> Iterator[_Line]:
    """The posts as lines, in batches whose words are cut together."""
    left, name = iter(posts), layout.manifest.analyzer
    while batch := list(islice(left, 1000)):
        words = [""] * len(batch)
        if layout.analyzer == CUT_HERE:
            words = cut_words([post.text for post in batch], name)
        for post, cut in zip(batch, words, strict=True):
            parts = {"create": {"_id": post.doc_id}}, layout.document(post, cut)
            yield post.doc_id, b"".join(encoded(part) + b"\n" for part in parts)


def _chunks(lines: Iterable[_Line]) -> Iterator[list[_Line]]:
    """Lines of about :data:`CHUNK` bytes together."""
    chunk, size = list[_Line](), 0
    for line in lines:
        if chunk and size + len(line[1]) > CHUNK:
            yield chunk
            chunk, size = [], 0
        chunk.append(line)
        size += len(line[1])
    if chunk:
        yield chunk


class _Sender:
    """Sends posts, in several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._stopped = engine, threading.Event()
        self._refused: dict[str, str] = {}  # Id -> reason

    def send_all(self, lines: Iterable[_Line], total: int) -> None:
        """Send lines; raises CollectionError with the ids of those that were refused."""
        from tqdm import tqdm

        pool, pending = ThreadPoolExecutor(IN_FLIGHT), set[Future[None]]()
        bar = tqdm(total=total, desc="indexing", unit=" posts", disable=None, mininterval=0.5)
        try:
            with bar:
                for chunk in _chunks(lines):
                    pending.add(pool.submit(self.send, chunk, bar.update))
                    if len(pending) >= IN_FLIGHT:
                        done, pending = wait(pending, return_when=FIRST_COMPLETED)
                        for one in done:
                            one.result()
                for one in pending:
                    one.result()
        finally:
            self._stopped.set()
            pool.shutdown(cancel_futures=True)
        if refused := self._refused:
            reasons = "; ".join(f"post {key}: {text}" for key, text in [*refused.items()][:3])
            more = f" and {len(refused) - 3:,} more" if len(refused) > 3 else ""
            raise CollectionError(
                f"{self._engine.address}: the engine has refused {len(refused):,} of {total:,} "
                f"posts: {reasons}{more}; the others are there: correct these and try again"
            )

    def send(self, chunk: Sequence[_Line], report: Any) -> None:
        """Send a chunk until each post is there or refused."""
        left, address = dict(chunk), self._engine.address

        def attempt() -> None:
            before = len(left)
            try:
                items = self._answer(b"".join(left.values()))
            except EngineError as error:
                if error.status != _TOO_LARGE or before == 1:
                    raise
                lines = [*left.items()]
                for part in (lines[: before // 2], lines[before // 2 :]):
                    self.send(part, report)
                left.clear()
                return
            for item in items:
                status, doc_id = item["status"], item["_id"]
                if status in _REFUSED:
                    self._refused[doc_id] = reason_of(item)[1]
                if status < 300 or status in (_CONFLICT, *_REFUSED):
                    del left[doc_id]
                elif not (problem := refusal(address, status, item)).is_passing:
                    raise problem
            report(before - len(left))
            if left:
                raise EngineError(
                    f"{address}: the engine is too busy to take {len(left):,} posts (such as "
                    f"{next(iter(left))}); try again, which sends only what is missing",
                    429,
                )

        repeated(attempt, self._pause)

    def _pause(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise EngineError("interrupted")

    def _answer(self, body: bytes) -> list[dict[str, Any]]:
        self._pause(0)
        path, shown = f"/{self._engine.address.index}/_bulk", ("_id", "status", "error")
        params = {"filter_path": ",".join(f"items.*.{name}" for name in shown)}
        answer = self._engine.request("POST", path, body, params)
        return [next(iter(item.values())) for item in answer.get("items", [])]
