"""Writing of an index's Lucene files."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from indexes.jvm import java_class
from indexes.ranking import CONTENTS, PLACE, analyzer

# Megabytes of terms that Lucene buffers before it writes a segment; Java has 1024 in all.
_BUFFER = 256.0


def lucene_directory(path: Path) -> Any:
    """Lucene's object for a folder."""
    paths = java_class("java.nio.file.Paths")
    return java_class("org.apache.lucene.store.FSDirectory").open(paths.get(str(path.absolute())))


def write_texts(folder: Path, texts: Iterable[str]) -> None:
    """Write Lucene's files: one segment with the texts numbered 0, 1, … in the given order.

    Lucene is called directly: Anserini's indexer is as fast, but it drops empty posts, reports a
    full disk only in its log, and cannot store numbers.
    """
    document, set_text, set_place = _document()
    with _writer(folder) as writer:
        for place, text in enumerate(texts):
            set_text(text)
            set_place(place)
            writer.addDocument(document)
        writer.forceMerge(1)
    # Lucene leaves its lock, an empty file, behind.
    (folder / "write.lock").unlink(missing_ok=True)


@contextlib.contextmanager
def _writer(folder: Path) -> Iterator[Any]:
    """Lucene's IndexWriter, merging only adjacent segments, which keeps the order of posts."""
    config = java_class("org.apache.lucene.index.IndexWriterConfig")(analyzer())
    config.setRAMBufferSizeMB(_BUFFER)
    config.setUseCompoundFile(False)
    config.setMergePolicy(java_class("org.apache.lucene.index.LogDocMergePolicy")())
    config.setMergeScheduler(java_class("org.apache.lucene.index.SerialMergeScheduler")())
    writer = java_class("org.apache.lucene.index.IndexWriter")(lucene_directory(folder), config)
    try:
        yield writer
        writer.commit()
    except BaseException:
        writer.rollback()
        raise
    writer.close()


def _document() -> tuple[Any, Any, Any]:
    """A document that is reused for every post, and the setters of its text and its place."""
    package = "org.apache.lucene.document."
    kind = java_class(package + "FieldType")()
    # The methods read terms and their frequencies only; feedback reads them by post.
    kind.setIndexOptions(java_class("org.apache.lucene.index.IndexOptions").DOCS_AND_FREQS)
    kind.setStoreTermVectors(True)
    text = java_class(package + "Field")(
        CONTENTS,
        java_class("java.lang.String")("-"),
        kind,
        signature="(Ljava/lang/String;Ljava/lang/CharSequence;"
        "Lorg/apache/lucene/index/IndexableFieldType;)V",
    )
    place = java_class(package + "IntPoint")(PLACE, 0)
    document = java_class(package + "Document")()
    document.add(text)
    document.add(place)
    return document, text.setStringValue, place.setIntValue
