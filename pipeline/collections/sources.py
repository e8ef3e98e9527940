"""What a search works on: a named collection, or files of one's own."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.collections import named
from pipeline.collections.trec import Qrels, Run, Topic, read_qrels, read_topics
from pipeline.command.errors import UsageError
from pipeline.evaluation.measures import DEFAULT_MEASURES
from pipeline.reranking import posts_of

if TYPE_CHECKING:
    from indexes.lucene import LuceneIndex
    from indexes.posts import Post
    from rerankers.text.vocabulary import Idf


@dataclass(frozen=True)
class Source:
    """Topics, and where their posts and judgments are.

    Attributes:
        name: of the collection, or the topic file's name without its ending.
        topics: in the order of their file.
        qrels: judgments, or None where there are none.
        missing_judgments: for reports, why there are none.
        measures: what reports show.
        given: candidates without scores that come with the topics; None where they are searched.
        runs: name -> official first-stage run.
        find_posts: doc_ids -> the posts that are known of them.
        index: opens the index, building that of a named collection the first time; raises
            UsageError where there is none.
        index_directory: where it lies, or would; None where there is none.
    """

    name: str
    topics: Sequence[Topic]
    qrels: Qrels | None
    missing_judgments: str
    measures: Sequence[str]
    given: Run | None
    runs: Mapping[str, Path]
    find_posts: "Callable[[Sequence[str]], Mapping[str, Post]]"
    index: "Callable[[], LuceneIndex]"
    index_directory: Path | None = None

    def idf(self) -> "Idf":
        """IDF of the topics' words as counted in the index."""
        from rerankers.text.vocabulary import Idf
        from rerankers.text.words import words

        index = self.index()
        vocabulary = sorted({word for topic in self.topics for word in words(topic.text)})
        return Idf.from_document_frequencies(
            index.document_frequencies(vocabulary), max(1, index.size), f"index of {self.name}"
        )


def open_source(topics: str, index: Path | None, qrels: Path | None, data: Path | None) -> Source:
    """A named collection, or a file of topics with the index of one's own posts.

    Raises:
        UsageError: neither a known name nor a file, or a file of topics without an index.
        DataError: files are missing or malformed.
    """
    path = Path(topics)
    if path.is_file():
        return _own(path, index, qrels)
    return _named(named.find(topics, data), index, qrels, data)


def _own(path: Path, index: Path | None, qrels: Path | None) -> Source:
    if index is None:
        raise UsageError(
            f"--topics {path}: a file of topics needs the posts to search: name their --index "
            "(python -m pipeline.index --posts FILE --index DIR makes one)"
        )

    def open_index() -> "LuceneIndex":
        from indexes.lucene import LuceneIndex

        return LuceneIndex.open(index)

    return Source(
        path.name.split(".")[0],
        read_topics(path),
        read_qrels(qrels) if qrels else None,
        f"{path} has no judgments; name them by --qrels to see how good the ranking is",
        DEFAULT_MEASURES,
        None,
        {},
        lambda doc_ids: open_index().posts.get_many(doc_ids),
        open_index,
        index,
    )


def _named(
    collection: named.Collection, index: Path | None, qrels: Path | None, data: Path | None
) -> Source:
    def open_index() -> "LuceneIndex":
        from indexes.lucene import LuceneIndex

        directory = index or _built_index(collection, data)
        return LuceneIndex.open(directory, collection.post_sources())

    return Source(
        collection.name,
        collection.topics(),
        read_qrels(qrels) if qrels else collection.qrels(),
        collection.missing_judgments(),
        collection.measures,
        collection.candidates(),
        collection.runs,
        lambda doc_ids: posts_of(collection)(doc_ids),
        open_index,
        index or named.index_directory(collection),
    )


def _built_index(collection: named.Collection, data: Path | None) -> Path:
    """The folder of the collection's index, which is built if it is not there."""
    from pipeline.collections.collection_indexes import build_collection, collection_directory

    directory = collection_directory(collection)
    if not directory.exists():
        print(f"building the index {directory} (once)", file=sys.stderr)
        build_collection(collection, directory, data)
    return directory
