"""Build, open and search a Lucene index of posts.

An index is a folder that has Lucene's files, ``manifest.json``, and ``posts.sqlite``
with the posts themselves. The number of a post in Lucene is its place in
``posts.sqlite``. Ids and texts are read from there, which is several times faster than
reading Lucene's stored fields. Lucene stores ids only so that Pyserini can use the
index.
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
from tweetrerank.indexes.lucene_ranker import CONTENTS, ID, PLACE, Ranker
from tweetrerank.indexes.manifest import (
    IndexManifest,
    Source,
    build_call,
    check_replaceable,
    software_versions,
)
from tweetrerank.indexes.methods import METHODS, Method, Topic, id_limit
from tweetrerank.indexes.posts import Post, as_post
from tweetrerank.indexes.records import parsed, rows_of
from tweetrerank.indexes.store import POSTS_FILE, Closing, PostStore

# Sizes of an index from which on it pays to start Java's optimising compiler
_LARGE = 1_000_000  # Posts
_LARGE_BYTES = 150_000_000  # Bytes of the posts' files


def build(
    posts: Iterable[Post],
    directory: Path | str,
    sources: Sequence[Path | str] = (),
    rebuild: str | None = None,
    language: str | None = None,
) -> IndexManifest:
    """Build an index in a folder, and return its manifest.

    An older index is replaced at the very end, in one step. The memory needed does not
    grow with the number of posts. One thread adds the posts, so that the same posts
    give the same index.

    Each of ``posts`` is a Post or a row for
    :func:`tweetrerank.indexes.posts.post_of`. ``sources`` are the files that the posts
    come from. ``rebuild`` is the command that builds this index, for messages. For
    ``language`` see :func:`tweetrerank.indexes.analysis.analyzer_name`.

    Raises DataError if there are no posts, if an id is repeated, if the folder holds
    something other than an index, if Java is missing, or if the disk is full.
    """
    directory = Path(directory)
    check_replaceable(directory)
    descriptions = tuple(Source.read(Path(source)) for source in sources)
    rebuild = rebuild or build_call(directory.absolute())
    start(sum(source.size for source in descriptions) >= _LARGE_BYTES)
    posts = (as_post(row, where) for where, row in rows_of(posts, "posts", Post))
    with atomic_directory(directory) as folder:
        path = folder / POSTS_FILE
        summary = PostStore.build(path, progress(posts, None, "reading"), sources)
        java_failure = java_errors(f"{directory}: Lucene cannot write the index")
        with JAVA_LOCK, PostStore(path) as store, java_failure:
            version = java_class("org.apache.lucene.util.Version").LATEST.toString()
            name = analyzer_name(language, (post.text for post in store))
            _write_posts(folder, progress(store, summary.posts, "indexing"), name)
        files = sorted(folder.iterdir())
        manifest = IndexManifest(
            posts=summary.posts,
            empties=summary.empties,
            numeric_ids=summary.numeric_ids,
            analyzer=name,
            sources=descriptions,
            files={file.name: file.stat().st_size for file in files},
            rebuild=rebuild,
            versions=software_versions(lucene=version),
            sha256={file.name: sha256_of(file) for file in files},
        )
        manifest.write(folder)
    return manifest


def _write_posts(folder: Path, posts: Iterable[Post], analyzer_name: str) -> None:
    """Write Lucene's files, one segment that numbers the posts 0, 1, … in this order.

    Anserini's own indexer is not used. It would drop empty posts, report a full disk
    only in its log, and store no numbers.
    """
    document, fields = _reused_document()
    text, place, doc_id, order = fields
    # Bound once, because pyjnius looks a method up at each use.
    set_text = text.setStringValue
    set_place = place.setIntValue
    set_id = doc_id.setStringValue
    set_order = order.setBytesValue
    bytes_of = java_class("org.apache.lucene.util.BytesRef")
    writer = _index_writer(folder, analyzer_name)
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
    # Lucene leaves this empty file behind.
    (folder / "write.lock").unlink(missing_ok=True)


def _index_writer(folder: Path, analyzer_name: str) -> Any:
    """Open Lucene's IndexWriter in a folder."""
    # Files are read through small buffers. Mapped files would fill the memory when they
    # are merged.
    directory = java_class("org.apache.lucene.store.NIOFSDirectory")(_java_path(folder))
    config = java_class("org.apache.lucene.index.IndexWriterConfig")(
        analyzer(analyzer_name)
    )
    # A segment is written after this many megabytes of terms. Java has 1024 in all.
    config.setRAMBufferSizeMB(256.0)
    config.setUseCompoundFile(False)
    # This policy merges only adjacent segments, which keeps the order of the posts.
    config.setMergePolicy(java_class("org.apache.lucene.index.LogDocMergePolicy")())
    config.setMergeScheduler(
        java_class("org.apache.lucene.index.SerialMergeScheduler")()
    )
    return java_class("org.apache.lucene.index.IndexWriter")(directory, config)


def _reused_document() -> tuple[Any, list[Any]]:
    """Return a document that is reused for every post, and its fields.

    The fields are the text, the place, and the id twice: as a stored field, and as a
    value that breaks ties. The ids are only for Pyserini.
    """
    package = "org.apache.lucene.document"
    string = java_class("java.lang.String")("-")
    kind = java_class(f"{package}.FieldType")()
    # The methods read only terms and their frequencies. Feedback reads those of a post.
    options = java_class("org.apache.lucene.index.IndexOptions")
    kind.setIndexOptions(options.DOCS_AND_FREQS)
    kind.setStoreTermVectors(True)
    no_bytes = java_class("org.apache.lucene.util.BytesRef")()
    java_string = "Ljava/lang/String;"
    text_signature = (
        f"({java_string}Ljava/lang/CharSequence;"
        "Lorg/apache/lucene/index/IndexableFieldType;)V"
    )
    id_signature = f"({java_string}{java_string})V"
    fields = [
        java_class(f"{package}.Field")(
            CONTENTS, string, kind, signature=text_signature
        ),
        java_class(f"{package}.IntPoint")(PLACE, 0),
        java_class(f"{package}.StoredField")(ID, string, signature=id_signature),
        java_class(f"{package}.BinaryDocValuesField")(ID, no_bytes),
    ]
    document = java_class(f"{package}.Document")()
    for field in fields:
        document.add(field)
    return document, fields


def _java_path(path: Path) -> Any:
    return java_class("java.nio.file.Paths").get(str(path.absolute()))


def _reader_of(path: Path) -> Any:
    """Open a folder as Lucene's DirectoryReader, in memory that processes share."""
    files = java_class("org.apache.lucene.store.MMapDirectory")(_java_path(path))
    return java_class("org.apache.lucene.index.DirectoryReader").open(files)


def stored_posts(directory: Path) -> Iterator[Post]:
    """Yield the posts that an index by Pyserini or Anserini has stored.

    Deleted posts are left out. The text is that of the field ``raw`` if it holds JSON,
    else that of the field ``contents`` or, without one, of ``raw``. Raises DataError if
    a post has no stored text, or if the index cannot be read.
    """
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
                value_of = stored.document(place).get
                doc_id = value_of(ID)
                raw = value_of("raw")
                text = value_of(CONTENTS)
            yield _stored_post(
                f"{directory}: post {doc_id or place}", doc_id, raw, text
            )
        with JAVA_LOCK:
            reader.close()


def _stored_post(
    where: str, doc_id: str | None, raw: str | None, text: str | None
) -> Post:
    """Return the post of a document's stored fields.

    Raises DataError, with a message that begins with ``where``, if a field is missing.
    """
    if doc_id is None or (raw is None and text is None):
        missing = "text" if doc_id else "id"
        raise DataError(
            f"{where}: found no stored {missing}, expected a field id, and the text in "
            "the field raw or contents (Pyserini's options --storeRaw and "
            "--storeContents)"
        )
    if raw is not None and raw.lstrip().startswith("{"):
        record = parsed(raw, where)
        record["id"] = doc_id
        return as_post(record, where)
    return Post(doc_id, raw if text is None else text)  # type: ignore[arg-type]


class LuceneIndex(Closing):
    """An index that is open for searching. Open one by :meth:`open`."""

    @classmethod
    def open(
        cls, directory: Path | str, sources: Sequence[Path | str] | None = None
    ) -> Self:
        """Open an index. If ``sources`` are given, check that it was built from them.

        If another process replaces the index meanwhile, the new one is opened. An open
        index stays readable as it was, whatever happens to its folder. Raises DataError
        if Java is missing, or if the index is missing, is damaged, is of another
        version or has other posts. The message has the command that rebuilds the index.
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
        """Open an index. Its folder must not be replaced meanwhile."""
        self.directory = directory
        self.manifest = manifest = IndexManifest.read(directory)
        paths = None if sources is None else [Path(source) for source in sources]
        manifest.check(directory, paths)
        start(manifest.posts >= _LARGE)
        self.size = manifest.posts
        self.posts = PostStore(directory / POSTS_FILE)
        damaged = f"{directory}: damaged index; build it again with\n"
        with java_errors(f"{damaged}  {manifest.rebuild}"):
            self._analyzer = analyzer(manifest.analyzer)
            self._reader = _reader_of(directory)
            with JAVA_LOCK:
                documents = self._reader.maxDoc()
        if not len(self.posts) == documents == self.size:
            raise manifest.unusable(
                directory,
                f"found {documents} posts in Lucene and {len(self.posts)} in "
                f"{POSTS_FILE}, expected {self.size}",
            )

    def search(
        self,
        topics: Iterable[Topic],
        method: Method,
        hits: int = 1000,
        threads: int = 2,
    ) -> dict[str, dict[str, float]]:
        """Return query_id -> doc_id -> score, with the best posts of each topic first.

        A topic has at most ``hits`` posts. A topic without any indexed word has none.
        Posts of equal score are sorted from the highest id to the lowest. If a topic
        has a ``max_doc_id``, posts with a higher id do not exist for it, not even for
        feedback. Raises DataError if an argument is invalid, or if a topic has a limit
        and the limit or an id of this index is not a whole number.
        """
        topics = _checked(topics, method, hits)
        numeric_ids = self.manifest.numeric_ids
        limits = [id_limit(topic, numeric_ids, self.directory) for topic in topics]
        # Place of the newest post within each topic's time limit
        first_places = [
            0 if limit is None else self.posts.first_up_to(limit) for limit in limits
        ]
        java_failure = java_errors(f"{self.directory}: the search failed")
        with java_failure, ThreadPoolExecutor(threads) as pool:
            ranker = Ranker(self._reader, self._analyzer, method, hits)
            rank = partial(detached, ranker.rank)
            texts = [topic.text for topic in topics]
            # After an error, the topics that still wait are cancelled.
            rankings = list(pool.map(rank, texts, first_places))
        run = {}
        for topic, (places, scores) in zip(topics, rankings, strict=True):
            doc_ids = self.posts.ids_at(places)
            run[topic.query_id] = dict(zip(doc_ids, scores, strict=True))
        return run

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path of the index, which unpickling opens again."""
        return _reopened, (self.directory.absolute(),)

    @property
    def id_range(self) -> tuple[str, str] | None:
        """The lowest and the highest id, or None unless all ids are whole numbers."""
        if not self.manifest.numeric_ids:
            return None
        lowest = self.posts.ids_at([self.size - 1])[0]
        highest = self.posts.ids_at([0])[0]
        return lowest, highest

    def close(self) -> None:
        """Close the files."""
        with JAVA_LOCK:
            self._reader.close()
        self.posts.close()


open_index = LuceneIndex.open


def _checked(topics: Iterable[Topic], method: object, hits: object) -> list[Topic]:
    """Return the topics as a list. Raises DataError if an argument is invalid."""
    checked = [topics] if isinstance(topics, Topic) else list(topics)
    if not all(_is_topic(topic) for topic in checked):
        raise DataError(
            f"topics: found {checked[:1]!r}, expected a list of tweetrerank.Topic"
        )
    if not isinstance(method, tuple(METHODS.values())):
        raise DataError(f"method: found {method!r}, expected one such as BM25()")
    if isinstance(hits, bool) or not isinstance(hits, int) or hits < 1:
        raise DataError(f"hits: found {hits!r}, expected a whole number of at least 1")
    return checked


def _is_topic(value: object) -> bool:
    query_id = getattr(value, "query_id", None)
    return isinstance(query_id, str) and isinstance(getattr(value, "text", None), str)


@dataclass
class _Unusable:
    """Stands in for an index that a process cannot open. Any use raises the error.

    If unpickling itself raised the error, the worker of a pool would end, and the pool
    would start new workers for ever.
    """

    error: DataError

    def __getattr__(self, name: str) -> Any:
        raise self.error


def _reopened(directory: Path) -> "LuceneIndex | _Unusable":
    try:
        return open_index(directory)
    except DataError as error:
        return _Unusable(error)


def _identity(directory: Path) -> tuple[int, int, int] | None:
    """Return the identity of a folder, None if it does not exist.

    It is the same after the folder is renamed.
    """
    try:
        status = directory.stat()
    except OSError:
        return None
    # The time is included because a new folder may get the number of a removed one.
    return status.st_dev, status.st_ino, status.st_ctime_ns


def progress(posts: Iterable[Post], total: int | None, what: str) -> Iterable[Post]:
    """Yield the posts, and show a progress bar on stderr if it is a terminal."""
    from tqdm import tqdm

    return tqdm(posts, what, total, unit=" posts", disable=None, mininterval=0.5)
