"""Filling an index of ours in a search engine, whatever interrupts it.

Posts are created, never overwritten: a post that is sent twice, because its answer was lost,
changes nothing and leaves no deleted copy behind that would count in the statistics of words.
"""

import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from indexes.analysis import analyzer_name
from indexes.engines.address import EngineAddress
from indexes.engines.client import (
    Engine,
    EngineError,
    encoded,
    reason_of,
    refusal,
    repeated,
)
from indexes.engines.index import cache_file, count, describe
from indexes.engines.layout import CUT_HERE, ID, Layout, cut_words, new_layout
from indexes.engines.posts import adopt
from indexes.engines.searching import all_hits
from indexes.errors import CollectionError
from indexes.index import progress
from indexes.manifest import IndexManifest, Source, software_versions
from indexes.posts import Post
from indexes.store import POSTS_FILE, PostStore

CHUNK = 1_000_000  # Bytes of posts in a request, about
IN_FLIGHT = 3  # Requests that are under way at a time

_CONFLICT, _TOO_LARGE = 409, 413

_REFUSED = (400, 413)
"""Status of a post that the engine will never take; others concern the whole index."""


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
    shards: int = 1,
    language: str | None = None,
) -> Built:
    """Fill an index; one that is there and incomplete gets the posts that it lacks.

    Posts are kept in ``directory`` (:mod:`indexes.engines.posts`); the other arguments are those of
    :func:`indexes.index.build`.

    Raises:
        CollectionError: there are no posts, or an id is repeated; the engine refuses or is lost;
            the index that is there has other posts or fields. What was sent remains, and another
            call goes on from there.
    """
    engine = Engine.connect(address)
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
            name = analyzer_name(language, (post.text for post in store))
        version = ".".join(map(str, engine.version)) or "unknown"
        manifest = IndexManifest(
            **summary._asdict(),
            analyzer=name,
            sources=described,
            files={},
            rebuild=rebuild,
            versions=software_versions(**{engine.kind: version}),
        )
        plain_ids = summary.numeric_ids and are_plain
        wanted = replace(new_layout(engine, manifest), shards=shards, plain_ids=plain_ids)
        layout = _prepared(engine, wanted)
        with PostStore(path) as store:
            sent = _completed(engine, layout, store)
        adopt(path, cache_file(directory, layout.uuid))
    return Built(layout.manifest, sent)


def _prepared(engine: Engine, wanted: Layout) -> Layout:
    """The index as it is: made, or found with the same posts and fields."""
    address = engine.address
    try:
        found = Layout.read(address, describe(engine))
    except EngineError as error:
        if error.kind != "index_not_found_exception":
            raise
        try:
            engine.patiently("PUT", f"/{address.index}", wanted.body())
        except EngineError as refused:
            # The answer to an earlier attempt was lost.
            if refused.kind != "resource_already_exists_exception":
                raise
        return Layout.read(address, describe(engine))
    if different := wanted.differences(found):
        raise CollectionError(
            f"{address}: there is an index with {' and with '.join(different)}; choose another "
            "`address.index`, or delete that index if nobody needs it (DELETE "
            f"/{address.index}) and try again"
        )
    return found


def _completed(engine: Engine, layout: Layout, store: PostStore) -> int:
    """Send the posts that the index lacks, and mark it as complete; the number sent."""
    path = f"/{engine.address.index}"
    with _without_refresh(engine):
        engine.patiently("POST", f"{path}/_refresh")
        there = count(engine)
        known = _ids(engine) if 0 < there < len(store) else set()
        sent = 0
        if there != len(store):
            missing = (post for post in store if post.doc_id not in known)
            sent = len(store) - len(known)
            _send(engine, layout, missing, sent)
            engine.patiently("POST", f"{path}/_refresh")
            if (there := count(engine)) != len(store):
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
    settings = describe(engine)["settings"]["index"]
    before = settings.get("refresh_interval")
    # An earlier run was killed before it could set it back.
    before = None if before == "-1" else before
    engine.patiently("PUT", path, {"index": {"refresh_interval": "-1"}})
    try:
        yield
    finally:
        engine.patiently("PUT", path, {"index": {"refresh_interval": before}})


def _ids(engine: Engine) -> set[str]:
    """The ids of the posts that are there."""
    body = {"_source": False, "stored_fields": "_none_", "docvalue_fields": [ID]}
    return {hit["fields"][ID][0] for hit in all_hits(engine, body)}


class _Line(NamedTuple):
    """A post for the engine: its id, and the two lines of a bulk request."""

    doc_id: str
    content: bytes


def _lines(layout: Layout, posts: Iterable[Post]) -> Iterator[_Line]:
    """The posts as lines, in batches whose words are cut together."""
    left, name = iter(posts), layout.manifest.analyzer
    is_cut_here = layout.analyzer == CUT_HERE
    while batch := list(islice(left, 1000)):
        texts = [post.text for post in batch]
        words = cut_words(texts, name) if is_cut_here else [""] * len(batch)
        for post, cut in zip(batch, words, strict=True):
            action = encoded({"create": {"_id": post.doc_id}})
            content = encoded(layout.document(post, cut))
            yield _Line(post.doc_id, b"%s\n%s\n" % (action, content))


def _chunks(lines: Iterable[_Line]) -> Iterator[list[_Line]]:
    """Lines of about :data:`CHUNK` bytes together."""
    chunk: list[_Line] = []
    size = 0
    for line in lines:
        if chunk and size + len(line.content) > CHUNK:
            yield chunk
            chunk, size = [], 0
        chunk.append(line)
        size += len(line.content)
    if chunk:
        yield chunk


def _send(engine: Engine, layout: Layout, posts: Iterable[Post], total: int) -> None:
    """Send posts; raises CollectionError with the ids of those that were refused."""
    from tqdm import tqdm

    sender = _Sender(engine)
    pool = ThreadPoolExecutor(IN_FLIGHT)
    pending: set[Future[dict[str, str]]] = set()
    refused: dict[str, str] = {}
    with tqdm(total=total, desc="indexing", unit=" posts", disable=None, mininterval=0.5) as bar:
        try:
            for chunk in _chunks(_lines(layout, posts)):
                pending.add(pool.submit(sender.send, chunk, bar.update))
                if len(pending) >= IN_FLIGHT:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for one in done:
                        refused |= one.result()
            for one in pending:
                refused |= one.result()
        finally:
            sender.stopped.set()
            pool.shutdown(cancel_futures=True)
    if refused:
        reasons = "; ".join(f"post {doc_id}: {reason}" for doc_id, reason in [*refused.items()][:3])
        more = f" and {len(refused) - 3:,} more" if len(refused) > 3 else ""
        raise CollectionError(
            f"{engine.address}: the engine has refused {len(refused):,} of {total:,} posts: "
            f"{reasons}{more}; the others are there: correct these and try again"
        )


class _Sender:
    """Sends chunks, from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._path = f"/{engine.address.index}/_bulk"
        self.stopped = threading.Event()

    def send(self, chunk: list[_Line], report: Any) -> dict[str, str]:
        """Send a chunk until each post is there or refused; id -> reason of those refused."""
        refused: dict[str, str] = {}
        left = {line.doc_id: line for line in chunk}

        def attempt() -> None:
            try:
                items = self._answer(b"".join(line.content for line in left.values()))
            except EngineError as error:
                if error.status == _TOO_LARGE and len(left) > 1:
                    half = [*left.values()]
                    for part in (half[: len(half) // 2], half[len(half) // 2 :]):
                        refused.update(self.send(part, report))
                    left.clear()
                    return
                raise
            report(self._settle(items, left, refused))
            if left:
                first = next(iter(left))
                raise EngineError(
                    f"{self._engine.address}: the engine is too busy to take {len(left):,} posts "
                    f"(such as {first}); try again, which sends only what is missing",
                    429,
                )

        repeated(attempt, self._pause)
        return refused

    def _pause(self, seconds: float) -> None:
        if self.stopped.wait(seconds):
            raise EngineError("interrupted")

    def _answer(self, body: bytes) -> list[dict[str, Any]]:
        if self.stopped.is_set():
            raise EngineError("interrupted")
        shown = "items.*._id,items.*.status,items.*.error"
        answer = self._engine.request("POST", self._path, body, {"filter_path": shown})
        return [next(iter(item.values())) for item in answer.get("items", [])]

    def _settle(
        self, items: list[dict[str, Any]], left: dict[str, _Line], refused: dict[str, str]
    ) -> int:
        """Take the posts off ``left`` that are there or refused; their number."""
        before = len(left)
        for item in items:
            doc_id, status = item["_id"], item["status"]
            if status < 300 or status == _CONFLICT:
                del left[doc_id]
            elif status in _REFUSED:
                del left[doc_id]
                refused[doc_id] = reason_of(item)[1]
            else:
                problem = refusal(self._engine.address, status, item)
                if not problem.is_passing:
                    raise problem
        return before - len(left)
