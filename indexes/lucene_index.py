"""Building, opening and searching a Lucene index of posts.

An index is a folder: Lucene's files, ``posts.sqlite`` with the posts themselves, and
``manifest.json``. A post's number in Lucene is its place in ``posts.sqlite``, where ids and texts
are found several times faster than in Lucene's stored fields. Lucene has ids for Pyserini alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from tweetrerank.indexes.analysis import analyzer, analyzer_name, searchable
from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import atomic_directory, sha256_of
from tweetrerank.indexes.jvm import JAVA_LOCK, detached, java_class, java_errors, start
from tweetrerank.indexes.manifest import (
    IndexManifest,
    Source,
    check_replaceable,
    software_versions,
)
from tweetrerank.indexes.methods import (
    CONTENTS,
    ID,
    METHODS,
    PLACE,
    Method,
    Ranker,
    Topic,
    id_limit,
)
from tweetrerank.indexes.posts import Post, as_post
from tweetrerank.indexes.records import parsed, rows_of
from tweetrerank.indexes.store import POSTS_FILE, Closing, PostStore

# Posts of an index, and bytes of their files, from which on Java's optimising compiler pays
_LARGE, _LARGE_BYTES = 1_000_000, 150_000_000


def build(
    posts: Iterable[Post],
    directory: Path | str,
    sources: Sequence[Path | str] = (),
    rebuild: str | None = None,
    language: str | None = None,
) -> IndexManifest:
    """Build an index; an older one is replaced at the very end, atomically.

    Memory does not grow with the number of posts. One thread adds them, so that the same posts give
    the same index. ``posts`` are records, or rows as of :func:`tweetrerank.indexes.posts.post_of`; ``rebuild``
    is the command that builds this index, for messages; for ``language`` see
    :func:`tweetrerank.indexes.analysis.analyzer_name`. Raises DataError if there are no posts, an id is
    repeated, the folder is something else than an index, there is no Java, or the disk is full.
    """
    directory = Path(directory)
    check_replaceable(directory)
    described = tuple(Source.read(Path(source)) for source in sources)
    rebuild = rebuild or f"indexes.build(posts, {str(directory.absolute())!r})"
    start(sum(source.size for source in described) >= _LARGE_BYTES)
    posts = (as_post(row, where) for where, row in rows_of(posts, "posts", Post))
    with atomic_directory(directory) as folder:
        path = folder / POSTS_FILE
        summary = PostStore.build(path, progress(posts, None, "reading"), sources)
        failed = java_errors(f"{directory}: Lucene cannot write the index")
        with JAVA_LOCK, PostStore(path) as store, failed:
            version = java_class("org.apache.lucene.util.Version").LATEST.toString()
            name = analyzer_name(language, (post.text for post in store))
            _write_posts(folder, progress(store, summary.posts, "indexing"), name)
        files = sorted(folder.iterdir())
        manifest = IndexManifest(
            **summary._asdict(),
            analyzer=name,
            sources=described,
            files={file.name: file.stat().st_size for file in files},
            rebuild=rebuild,
            versions=software_versions(lucene=version),
            sha256={file.name: sha256_of(file) for file in files},
        )
        manifest.write(folder)
    return manifest


def _write_posts(folder: Path, posts: Iterable[Post], name: str) -> None:
    """Write Lucene's files: one segment with the posts numbered 0, 1, … in the given order.
    Anserini's indexer drops empty posts, reports a full disk only in its log, and stores no
    numbers."""
    document, (text, place, doc_id, order) = _document()
    # Each bound once, as pyjnius looks methods up.
    set_text, set_place = text.setStringValue, place.setIntValue
    set_id, set_order = doc_id.setStringValue, order.setBytesValue
    bytes_of = java_class("org.apache.lucene.util.BytesRef")
    # Files are read through small buffers: when they are merged, mapped ones would fill the memory.
    directory = java_class("org.apache.lucene.store.NIOFSDirectory")(_java_path(folder))
    config = java_class("org.apache.lucene.index.IndexWriterConfig")(analyzer(name))
    config.setRAMBufferSizeMB(
        256.0
    )  # Of terms before a segment is written; Java has 1024 in all.
    config.setUseCompoundFile(False)
    # Only adjacent segments are merged, to keep the posts' order.
    config.setMergePolicy(java_class("org.apache.lucene.index.LogDocMergePolicy")())
    config.setMergeScheduler(
        java_class("org.apache.lucene.index.SerialMergeScheduler")()
    )
    writer = java_class("org.apache.lucene.index.IndexWriter")(directory, config)
    try:
        for number, post in enumerate(posts):
            set_text(searchable(post.text))
            set_place(number)
            set_id(post.doc_id)
            set_order(bytes_of(post.doc_id, signature="(Ljava/lang/CharSequence;)V"))
            writer.addDocument(document)
        writer.forceMerge(1)
        writer.commit()
    except BaseException:
        writer.rollback()
        raise
    writer.close()
    (folder / "write.lock").unlink(
        missing_ok=True
    )  # Lucene leaves the empty file behind.


def _document() -> tuple[Any, list[Any]]:
    """A document that is reused for every post; its fields: text, place, and for Pyserini the id,
    stored and as a value to sort equal scores by."""
    package, string = "org.apache.lucene.document.", java_class("java.lang.String")("-")
    kind = java_class(package + "FieldType")()
    # The methods read terms and their frequencies only; feedback reads them by post.
    kind.setIndexOptions(
        java_class("org.apache.lucene.index.IndexOptions").DOCS_AND_FREQS
    )
    kind.setStoreTermVectors(True)
    text = "Ljava/lang/String;"
    of_text = (
        f"({text}Ljava/lang/CharSequence;Lorg/apache/lucene/index/IndexableFieldType;)V"
    )
    no_bytes = java_class("org.apache.lucene.util.BytesRef")()
    fields = [
        java_class(package + "Field")(CONTENTS, string, kind, signature=of_text),
        java_class(package + "IntPoint")(PLACE, 0),
        java_class(package + "StoredField")(ID, string, signature=f"({text}{text})V"),
        java_class(package + "BinaryDocValuesField")(ID, no_bytes),
    ]
    document = java_class(package + "Document")()
    for field in fields:
        document.add(field)
    return document, fields


def _java_path(path: Path) -> Any:
    return java_class("java.nio.file.Paths").get(str(path.absolute()))


def _reader_of(path: Path) -> Any:
    """Lucene's DirectoryReader of a folder, mapped into memory: processes share its pages."""
    files = java_class("org.apache.lucene.store.MMapDirectory")(_java_path(path))
    return java_class("org.apache.lucene.index.DirectoryReader").open(files)


def stored_posts(directory: Path) -> Iterator[Post]:
    """The posts of an index by Pyserini or Anserini: id, and text as stored, ``raw`` first; raises
    DataError if a post has no stored text, or the index cannot be read."""
    with java_errors(f"{directory}: not a readable index of Lucene"):
        with JAVA_LOCK:
            reader = _reader_of(directory)
            stored = reader.storedFields()
            living = java_class("org.apache.lucene.index.MultiBits").getLiveDocs(reader)
            places = range(reader.maxDoc())
        for place in places:
            with JAVA_LOCK:
                if living and not living.get(place):
                    continue
                doc_id, raw, text = map(
                    stored.document(place).get, (ID, "raw", CONTENTS)
                )
            where = f"{directory}: post {doc_id or place}"
            if doc_id is None or (raw is None and text is None):
                raise DataError(
                    f"{where}: found no stored {'text' if doc_id else 'id'}, expected a field id, "
                    "and the text in the field raw or contents (Pyserini's options --storeRaw and "
                    "--storeContents)"
                )
            if (raw or "").lstrip().startswith("{"):
                yield as_post({**parsed(raw, where), "id": doc_id}, where)
            else:
                yield Post(doc_id, raw if text is None else text)
        with JAVA_LOCK:
            reader.close()


class LuceneIndex(Closing):
    """An index that is open for searching; made by :meth:`open`."""

    @classmethod
    def open(
        cls, directory: Path | str, sources: Sequence[Path | str] | None = None
    ) -> Self:
        """Open an index and, if given, check that ``sources`` are its files of posts.

        If another process replaces the index meanwhile, the new one is opened. An open index is
        read to its end as it was, whatever happens to its folder. Raises DataError if the
        folder is missing, damaged, of another version or of other posts (the message has the
        command that rebuilds), or there is no Java.
        """
        directory = Path(directory)
        while True:
            folder = _identity(directory)
            try:
                index = cls(directory, sources)
            except (DataError, OSError):
                if _identity(directory) == folder:
                    raise
                continue
            if _identity(directory) == folder:
                return index
            index.close()

    def __init__(self, directory: Path, sources: Sequence[Path | str] | None) -> None:
        """Open an index, whose folder must stay the same meanwhile."""
        self.directory, self.manifest = (
            directory,
            (manifest := IndexManifest.read(directory)),
        )
        manifest.check(directory, None if sources is None else [*map(Path, sources)])
        start(manifest.posts >= _LARGE)
        self.size, self.posts = manifest.posts, PostStore(directory / POSTS_FILE)
        with java_errors(
            f"{directory}: damaged index; build it again with\n  {manifest.rebuild}"
        ):
            self._analyzer, self._reader = (
                analyzer(manifest.analyzer),
                _reader_of(directory),
            )
            with JAVA_LOCK:
                found = self._reader.maxDoc()
        if not len(self.posts) == found == self.size:
            problem = (
                f"found {found} posts in Lucene and {len(self.posts)} in {POSTS_FILE}"
            )
            raise manifest.unusable(directory, f"{problem}, expected {self.size}")

    def search(
        self,
        topics: Iterable[Topic],
        method: Method,
        hits: int = 1000,
        threads: int = 2,
    ) -> dict[str, dict[str, float]]:
        """Query_id -> doc_id -> score, best first, at most ``hits`` posts a topic.

        For a topic with a ``max_doc_id`` only posts whose id, as a number, is at most that exist,
        for feedback too; raises DataError if that is no number, or the ids of this index are
        not. A topic without any indexed word gets no posts. Posts of equal score come from the
        highest id to the lowest.
        """
        topics = _checked(topics, method, hits)
        limits = [
            id_limit(topic, self.manifest.numeric_ids, self.directory)
            for topic in topics
        ]
        # The place of the newest post within each topic's time limit
        places = [
            0 if limit is None else self.posts.first_up_to(limit) for limit in limits
        ]
        failed = java_errors(f"{self.directory}: the search failed")
        with failed, ThreadPoolExecutor(threads) as pool:
            rank = partial(
                detached, Ranker(self._reader, self._analyzer, method, hits).rank
            )
            # Cancels what is left if one raises
            ranked = [*pool.map(rank, [topic.text for topic in topics], places)]
        return {
            topic.query_id: dict(zip(self.posts.ids_at(found), scores, strict=True))
            for topic, (found, scores) in zip(topics, ranked, strict=True)
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled index is its folder, which is opened again."""
        return _reopened, (self.directory.absolute(),)

    @property
    def id_range(self) -> tuple[str, str] | None:
        """The lowest and the highest id, None if the ids are not all whole numbers."""
        if not self.manifest.numeric_ids:
            return None
        return self.posts.ids_at([self.size - 1])[0], self.posts.ids_at([0])[0]

    def close(self) -> None:
        """Close the files."""
        with JAVA_LOCK:
            self._reader.close()
        self.posts.close()


open_index = LuceneIndex.open


def _checked(topics: Iterable[Topic], method: object, hits: object) -> list[Topic]:
    """The topics of a search; raises DataError if they, the method or the hits are none."""
    found = [topics] if isinstance(topics, Topic) else [*topics]
    parts = [
        getattr(each, name, None) for each in found for name in ("query_id", "text")
    ]
    if not all(isinstance(part, str) for part in parts):
        raise DataError(
            f"topics: found {found[:1]!r}, expected a list of indexes.Topic"
        )
    if not isinstance(method, tuple(METHODS.values())):
        raise DataError(
            f"method: found {method!r}, expected one such as indexes.BM25()"
        )
    if isinstance(hits, bool) or not isinstance(hits, int) or hits < 1:
        raise DataError(f"hits: found {hits!r}, expected a whole number of at least 1")
    return found


@dataclass
class _Unusable:
    """In place of an index that a process cannot open: an error in the middle of unpickling would
    end the worker of a pool, which starts others for ever."""

    error: DataError

    def __getattr__(self, name: str) -> Any:
        raise self.error


def _reopened(directory: Path) -> "LuceneIndex | _Unusable":
    try:
        return open_index(directory)
    except DataError as error:
        return _Unusable(error)


def _identity(directory: Path) -> tuple[int, int, int] | None:
    """Identity of a folder, whatever its name; None if there is none."""
    try:
        status = directory.stat()
    except OSError:
        return None
    # With the time, as a new folder may get the number of one that was removed.
    return status.st_dev, status.st_ino, status.st_ctime_ns


def progress(posts: Iterable[Post], total: int | None, what: str) -> Iterable[Post]:
    """The posts, with a progress bar on stderr where that is a terminal."""
    from tqdm import tqdm

    return tqdm(posts, what, total, unit=" posts", disable=None, mininterval=0.5)
