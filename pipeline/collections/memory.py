"""Collections from posts, topics and judgments in memory, and from data sets of ir_datasets.

They become own collections below ``collections`` in the home folder: posts and topics in JSON
lines, judgments as trec_eval reads them, and the file that describes them. The folder is named by
the posts' content, so posts are written and indexed once, whatever topics search them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from indexes.files import atomic_directory, atomic_file
from indexes.posts import Post, post_of
from indexes.records import id_under, short_json, well_formed
from pipeline.collections.collection import ENDING, SearchedCollection, home_directory
from pipeline.collections.own import read_collection
from pipeline.collections.topics import Topic, topic_of
from pipeline.collections.trec import QRELS_COLUMNS, Qrels
from pipeline.errors import DataError, UsageError
from pipeline.text import did_you_mean

Record = TypeVar("Record")

Table = Any
"""Rows with names: an iterable of dictionaries or named tuples, or a data frame of pandas."""


def collection_of(
    posts: Table, topics: Mapping[str, str] | Table = None, qrels: Any = None
) -> SearchedCollection:
    """The collection of posts, topics and judgments.

    Args:
        posts: rows as :func:`indexes.posts.post_of` reads them.
        topics: query_id -> text, or rows as :func:`pipeline.collections.topics.topic_of` reads
            them.
        qrels: as in :func:`qrels_of`.

    Raises:
        DataError, CollectionError: a row has another form; names the row.
    """
    found = list(_read(posts, "posts", Post, post_of))
    digest = hashlib.sha256("".join(map(_line, found)).encode()).hexdigest()
    return _stored(f"posts-{digest[:12]}", found, topics, qrels)


def topics_file(topics: Mapping[str, str] | Table, folder: Path | None = None) -> Path:
    """A file of topics, in a folder or in the home folder."""
    if isinstance(topics, Mapping):
        topics = [{"query_id": query_id, "text": text} for query_id, text in topics.items()]
    lines = map(_line, _read(topics, "topics", Topic, topic_of))
    return _written(folder, "topics", ".jsonl", "".join(lines))


def qrels_file(qrels: Any, folder: Path | None = None) -> Path:
    """A file of judgments as :func:`qrels_of` reads them, in a folder or in the home folder."""
    found = qrels_of(qrels).items()
    lines = [f"{q} 0 {doc_id} {grade}\n" for q, grades in found for doc_id, grade in grades.items()]
    return _written(folder, "qrels", ".txt", "".join(lines))


def qrels_of(qrels: Mapping[str, Mapping[str, int]] | Table) -> Qrels:
    """Judgments: query_id -> doc_id -> grade, or rows with ``query_id`` or ``qid``, ``doc_id`` or
    ``docno``, and ``relevance`` or ``label``.

    Raises:
        DataError: a row has another form.
    """
    if isinstance(qrels, Mapping):
        rows = [(q, d, grade) for q, grades in qrels.items() for d, grade in grades.items()]
        qrels = [{"query_id": q, "doc_id": d, "relevance": grade} for q, d, grade in rows]
    found: Qrels = {}
    for where, row in _rows(qrels, "qrels"):
        query_id = id_under(("query_id", "qid", "query-id"), row, where, DataError)
        doc_id = id_under(("doc_id", "docno", "corpus-id"), row, where, DataError)
        grade = id_under(("relevance", "label", "score"), row, where, DataError)
        try:
            found.setdefault(query_id, {})[doc_id] = int(grade)
        except ValueError:
            raise DataError(
                f"{where}: found the relevance {short_json(grade)}, expected a whole number"
            ) from None
    if not found:
        raise DataError(f"qrels: found no judgment, expected rows of {QRELS_COLUMNS}")
    return found


def collection_of_ir_dataset(dataset: Any) -> SearchedCollection:
    """The collection of a data set of ir_datasets, by its id or as an object.

    Its documents are read once; later calls read topics and judgments only. Data sets that share
    their documents share the index.

    Raises:
        UsageError: there is no data set of this id.
        DataError: ir_datasets is not installed, or the data set has no documents.
    """
    try:
        import ir_datasets
    except ImportError:
        raise DataError(
            "found no ir_datasets; install it by\n  pip install 'tweetrerank[ir-datasets]'"
        ) from None
    if isinstance(dataset, str):
        name = dataset
        try:
            dataset = ir_datasets.load(name)
        except KeyError:
            similar = did_you_mean(name, list(ir_datasets.registry))
            raise UsageError(f"found no data set {name!r} in ir_datasets{similar}") from None
    if not dataset.has_docs():
        raise DataError(f"{dataset}: found no documents, expected a data set with them")
    posts = (
        Post(doc.doc_id, well_formed(doc.default_text()), getattr(doc, "url", None) or "")
        for doc in dataset.docs_iter()
    )
    topics, qrels = None, None
    if dataset.has_queries():
        topics = [Topic(q.query_id, q.default_text()) for q in dataset.queries_iter()]
    if dataset.has_qrels():
        qrels = list(dataset.qrels_iter())
    if not hasattr(dataset, "dataset_id"):
        return collection_of(posts, topics, qrels)
    name = ir_datasets.docs_parent_id(dataset.dataset_id()) or dataset.dataset_id()
    return _stored(name.replace("/", "-"), posts, topics, qrels)


def _stored(name: str, posts: Iterable[Post], topics: Any, qrels: Any) -> SearchedCollection:
    """The own collection of this name in the home folder, whose posts are written once."""
    folder = home_directory() / "collections" / name
    if not folder.exists():
        with (
            atomic_directory(folder) as new,
            (new / "posts.jsonl").open("w", encoding="utf-8") as stream,
        ):
            stream.writelines(map(_line, posts))
    files = {"posts": "posts.jsonl"}
    if topics is not None:
        files["topics"] = topics_file(topics, folder).name
    if qrels is not None:
        files["qrels"] = qrels_file(qrels, folder).name
    path = folder / f"{name}{ENDING}"
    # The latest topics are those that a command sees.
    with atomic_file(path) as stream:
        stream.writelines(f"{key} = {json.dumps(value)}\n" for key, value in files.items())
    return read_collection(path)


def _written(folder: Path | None, stem: str, ending: str, text: str) -> Path:
    """The file with this text, named by it; what is there already is kept."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    path = (folder or home_directory() / "collections") / f"{stem}-{digest[:12]}{ending}"
    if not path.exists():
        with atomic_file(path) as stream:
            stream.write(text)
    return path


def _line(record: Post | Topic) -> str:
    return json.dumps(record._asdict(), ensure_ascii=False) + "\n"


def _read(
    table: Table, what: str, record: type[Record], read: Callable[[Mapping[str, Any], str], Record]
) -> Iterator[Record]:
    """The records of a table: ready ones as they are, other rows read."""
    for where, row in _rows(table, what, record):
        yield row if isinstance(row, record) else read(row, where)


def _rows(table: Any, what: str, ready: type[Any] = Post) -> Iterator[tuple[str, Any]]:
    """(name for messages, row) of a table."""
    if hasattr(table, "to_dict") and hasattr(table, "notna"):
        table = table.astype(object).where(table.notna(), None).to_dict("records")
    for number, row in enumerate(table):
        where = f"{what}[{number}]"
        if isinstance(row, tuple) and hasattr(row, "_asdict") and not isinstance(row, ready):
            row = row._asdict()
        if not isinstance(row, Mapping | ready):
            raise DataError(f"{where}: found {short_json(row)}, expected a dictionary")
        yield where, row
