"""Build an index in a search engine, and fill it with posts.

Posts are created and never overwritten. If a response is lost, a post may be sent
twice. The second time changes nothing and leaves no deleted copy, which would count in
the statistics of words.
"""

import sqlite3
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.engines.client import Engine, encoded, repeated
from tweetrerank.indexes.engines.engine_error import EngineError, reason_of, refusal
from tweetrerank.indexes.engines.engine_search import all_hits
from tweetrerank.indexes.engines.kept_posts import posts_file
from tweetrerank.indexes.engines.layout import (
    CUT_HERE,
    ID,
    Layout,
    cut_words,
    new_layout,
)
from tweetrerank.indexes.manifest import IndexManifest, Source, software_versions
from tweetrerank.indexes.posts import Post
from tweetrerank.indexes.store import POSTS_FILE, PostStore

CHUNK = 1_000_000  # Approximate size of the posts in a request, in bytes
IN_FLIGHT = 3  # Number of requests that are under way at the same time

_BATCH = 1000  # Number of posts whose words are cut together

_EXISTS = 409
_TOO_LARGE = 413

_REFUSED = (400, 413)
"""Statuses of a post that the engine will never take. Others concern the index."""

_Line = tuple[str, bytes]  # Id of a post, and its two lines of a bulk request

_RESPONSE_FILTER = "items.*._id,items.*.status,items.*.error"


def build(
    address: EngineAddress,
    posts: Iterable[Post],
    sources: Sequence[Path | str],
    directory: Path,
    rebuild: str,
    language: str | None = None,
) -> tuple[IndexManifest, int]:
    """Build an index in a search engine, or complete one that lacks posts.

    Returns the manifest of the index, and the number of posts that were sent. An
    existing index gets only the posts that it lacks. Copies of the posts are kept in
    ``directory``, see :class:`tweetrerank.indexes.engines.kept_posts.KeptPosts`. For
    the other arguments see :func:`tweetrerank.indexes.lucene_index.build`.

    Raises DataError if there are no posts, if an id is repeated, if the engine refuses
    posts or does not respond, or if the existing index has other posts or fields. Posts
    that were sent before the error stay in the index. Another call sends the others.
    """
    from tweetrerank.indexes.analysis import analyzer_name
    from tweetrerank.indexes.lucene_index import progress

    engine = Engine(address)
    descriptions = tuple(Source.read(Path(source)) for source in sources)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".posts.", dir=directory) as folder:
        path = Path(folder) / POSTS_FILE
        summary = PostStore.build(path, progress(posts, None, "reading"), sources)
        with PostStore(path) as store:
            version = ".".join(map(str, engine.version)) or "unknown"
            manifest = IndexManifest(
                posts=summary.posts,
                empties=summary.empties,
                numeric_ids=summary.numeric_ids,
                analyzer=analyzer_name(language, (post.text for post in store)),
                sources=descriptions,
                files={},
                rebuild=rebuild,
                versions=software_versions(**{engine.kind: version}),
            )
            plain_ids = summary.numeric_ids and _has_plain_ids(store)
            wanted_layout = new_layout(engine, manifest, plain_ids)
            layout = _prepared(engine, wanted_layout)
            sent = _complete(engine, layout, store)
        _mark_as_whole(path)
        uuid = engine.describe()["settings"]["index"]["uuid"]
        path.replace(posts_file(directory, uuid, address))
    return layout.manifest, sent


def _has_plain_ids(store: PostStore) -> bool:
    """Return whether no id of a store has leading zeros. All ids must be numbers."""
    return all(post.doc_id == str(int(post.doc_id)) for post in store)


def _mark_as_whole(path: Path) -> None:
    """Mark a file of posts as having all posts of its index."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA user_version = 1")


def _prepared(engine: Engine, wanted_layout: Layout) -> Layout:
    """Return the layout of the index, and create the index unless it exists.

    Raises DataError if an existing index has other posts or another layout.
    """
    address = engine.address
    try:
        layout = Layout.read(address, engine.describe())
    except EngineError as error:
        if error.kind != "index_not_found_exception":
            raise
        return _created(engine, wanted_layout)
    differences = wanted_layout.differences(layout)
    if differences:
        raise DataError(
            f"{address}: there is an index with {' and with '.join(differences)}; "
            "choose another `address.index`, or delete that index if nobody needs it "
            f"(DELETE /{address.index}) and try again"
        )
    return layout


def _created(engine: Engine, layout: Layout) -> Layout:
    address = engine.address
    try:
        engine.patiently("PUT", f"/{address.index}", layout.body())
    except EngineError as error:
        # An earlier attempt may have created it, and its response was lost.
        if error.kind != "resource_already_exists_exception":
            raise
    return Layout.read(address, engine.describe())


def _complete(engine: Engine, layout: Layout, store: PostStore) -> int:
    """Send the posts that the index lacks, and return their number.

    Then the index is marked as complete. The engine does not refresh the index
    meanwhile. The interval of refreshes is restored at the end, also after an error.
    """
    interval = engine.describe()["settings"]["index"].get("refresh_interval")
    if interval == "-1":
        # An earlier run was killed before it could restore the interval.
        interval = None
    _set_refresh_interval(engine, "-1")
    try:
        sent = _send_missing(engine, layout, store)
        if not layout.complete:
            meta = {"_meta": replace(layout, complete=True).meta()}
            engine.patiently("PUT", f"/{engine.address.index}/_mapping", meta)
    finally:
        _set_refresh_interval(engine, interval)
    return sent


def _set_refresh_interval(engine: Engine, interval: str | None) -> None:
    settings = {"index": {"refresh_interval": interval}}
    engine.patiently("PUT", f"/{engine.address.index}/_settings", settings)


def _send_missing(engine: Engine, layout: Layout, store: PostStore) -> int:
    """Send the posts that the index lacks, and return their number.

    Raises DataError if the index has another number of posts at the end.
    """
    refresh = f"/{engine.address.index}/_refresh"
    engine.patiently("POST", refresh)
    count = engine.count()
    if count == len(store):
        return 0
    present = set()
    if 0 < count < len(store):
        present = _ids_in(engine)
    missing = (post for post in store if post.doc_id not in present)
    number = len(store) - len(present)
    _send_all(engine, _chunks(layout, missing), number)
    engine.patiently("POST", refresh)
    count = engine.count()
    if count != len(store):
        raise DataError(
            f"{engine.address}: found {count:,} posts after sending all, expected "
            f"{len(store):,}; somebody else writes into this index: choose another "
            "`address.index`"
        )
    return number


def _ids_in(engine: Engine) -> set[str]:
    """Return the ids of the posts in the index."""
    body = {"_source": False, "stored_fields": "_none_", "docvalue_fields": [ID]}
    return {hit["fields"][ID][0] for hit in all_hits(engine, body)}


def _lines(layout: Layout, posts: Iterable[Post]) -> Iterator[_Line]:
    """Yield (id, lines of a bulk request) for each post."""
    remaining = iter(posts)
    while batch := list(islice(remaining, _BATCH)):
        words = [""] * len(batch)
        if layout.analyzer == CUT_HERE:
            words = cut_words([post.text for post in batch], layout.manifest.analyzer)
        for post, post_words in zip(batch, words, strict=True):
            action = encoded({"create": {"_id": post.doc_id}})
            document = encoded(layout.document(post, post_words))
            yield post.doc_id, action + b"\n" + document + b"\n"


def _chunks(layout: Layout, posts: Iterable[Post]) -> Iterator[list[_Line]]:
    """Yield lists of the posts' lines, of about :data:`CHUNK` bytes each."""
    chunk: list[_Line] = []
    size = 0
    for doc_id, lines in _lines(layout, posts):
        if chunk and size + len(lines) > CHUNK:
            yield chunk
            chunk = []
            size = 0
        chunk.append((doc_id, lines))
        size += len(lines)
    if chunk:
        yield chunk


def _send_all(engine: Engine, chunks: Iterable[Sequence[_Line]], total: int) -> None:
    """Send posts in several threads. Raises DataError naming posts that are refused."""
    from tqdm import tqdm

    sender = Sender(engine)
    pool = ThreadPoolExecutor(IN_FLIGHT)
    pending = deque[Future[int]]()
    bar = tqdm(
        total=total, desc="indexing", unit=" posts", disable=None, mininterval=0.5
    )
    try:
        with bar:
            for chunk in chunks:
                if len(pending) == IN_FLIGHT:
                    bar.update(pending.popleft().result())
                pending.append(pool.submit(sender.send, chunk))
            for future in pending:
                bar.update(future.result())
    finally:
        sender.stop()
        pool.shutdown(cancel_futures=True)
    if sender.refused:
        raise _refused_posts(engine.address, sender.refused, total)


def _refused_posts(
    address: EngineAddress, refused: dict[str, str], total: int
) -> DataError:
    reasons = [f"post {key}: {text}" for key, text in refused.items()]
    more = f" and {len(refused) - 3:,} more" if len(refused) > 3 else ""
    return DataError(
        f"{address}: the engine has refused {len(refused):,} of {total:,} posts: "
        f"{'; '.join(reasons[:3])}{more}; the others are there: correct these and try "
        "again"
    )


class Sender:
    """Sends chunks of posts to an index, from several threads."""

    def __init__(self, engine: Engine) -> None:
        self.refused: dict[str, str] = {}
        """Id of each post that the engine will never take -> reason."""
        self._engine = engine
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Make all threads give up at their next attempt."""
        self._stopped.set()

    def send(self, chunk: Sequence[_Line]) -> int:
        """Send posts until each is stored or refused, and return their number."""
        remaining = dict(chunk)
        repeated(lambda: self._attempt(remaining), self._pause)
        return len(chunk)

    def _pause(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise EngineError("interrupted")

    def _attempt(self, remaining: dict[str, bytes]) -> None:
        """Send posts in one request, and remove those that are stored or refused.

        Raises EngineError if some posts remain.
        """
        self._pause(0)
        address = self._engine.address
        content = b"".join(remaining.values())
        params = {"filter_path": _RESPONSE_FILTER}
        try:
            response = self._engine.request(
                "POST", f"/{address.index}/_bulk", content, params
            )
        except EngineError as error:
            if error.status != _TOO_LARGE or len(remaining) == 1:
                raise
            self._send_halves(remaining)
            return
        for item in response.get("items", []):
            # Its only key is the action.
            self._take(next(iter(item.values())), remaining)
        if remaining:
            raise EngineError(
                f"{address}: the engine is too busy to take {len(remaining):,} posts "
                f"(such as {next(iter(remaining))}); try again, which sends only what "
                "is missing",
                429,
            )

    def _send_halves(self, remaining: dict[str, bytes]) -> None:
        lines = list(remaining.items())
        half = len(lines) // 2
        self.send(lines[:half])
        self.send(lines[half:])
        remaining.clear()

    def _take(self, item: dict[str, Any], remaining: dict[str, bytes]) -> None:
        """Remove a post from the remaining ones if it is stored or refused.

        Raises EngineError if the error of the post lasts and concerns the whole index.
        """
        status = item["status"]
        doc_id = item["_id"]
        if status in _REFUSED:
            self.refused[doc_id] = reason_of(item)[1]
            del remaining[doc_id]
        elif status < 300 or status == _EXISTS:
            del remaining[doc_id]
        else:
            error = refusal(self._engine.address, status, item)
            if not error.is_passing:
                raise error
