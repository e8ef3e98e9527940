"""Make collections from values in memory and from data sets of ir_datasets.

They are written as users' collections into the folder ``collections`` of the home
folder. For posts in memory, the name of the folder depends on their content. So the
same posts are written and indexed only once, whatever topics they are used with.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import atomic_file, sha256_of, write_bytes
from tweetrerank.indexes.posts import Post, as_post
from tweetrerank.indexes.records import id_under, rows_of, short, well_formed
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.folders import home_directory
from tweetrerank.pipeline.collections.own import ENDING, read_collection
from tweetrerank.pipeline.collections.topics import (
    Rows,
    Topic,
    TopicsLike,
    as_topics,
)
from tweetrerank.pipeline.collections.trec import (
    NAMES,
    QRELS_COLUMNS,
    Qrels,
    grade_of,
    joined_qrels,
)
from tweetrerank.pipeline.text import did_you_mean, say
from tweetrerank.pipeline.usage_error import UsageError

JudgmentsLike = (
    str
    | Path
    | Sequence[str | Path]
    | Mapping[str, Mapping[str, int]]
    | Mapping[int, Mapping[int, int]]
    | Rows
)
"""Judgments as a file, several files, nested mappings, rows, or a data frame.

Nested mappings are query_id -> doc_id -> grade.
"""


class IrDataset(Protocol):
    """A data set of ir_datasets."""

    def has_docs(self) -> bool:
        """Return whether it has documents."""

    def has_queries(self) -> bool:
        """Return whether it has queries."""

    def has_qrels(self) -> bool:
        """Return whether it has judgments."""


def collection_of(
    posts: Rows,
    topics: TopicsLike | None,
    qrels: JudgmentsLike | None,
    name: str = "",
    signals: Sequence[str] = (),
) -> Collection:
    """Return the collection of posts, topics and judgments that are in memory.

    For the forms of posts see :func:`tweetrerank.indexes.posts.post_of`, for those of
    topics :func:`tweetrerank.pipeline.collections.topics.as_topics`, and for those of
    judgments :func:`qrels_of`. Without a name, the name depends on the posts. Raises
    DataError naming a malformed row.
    """
    rows = rows_of(posts, "posts", Post)
    records = [as_post(row, where, signals) for where, row in rows]
    digest = hashlib.sha256("".join(map(_line, records)).encode()).hexdigest()
    content = {"name": name or None, "signals": list(signals)}
    return _stored(f"posts-{digest[:12]}", records, topics, qrels, content, digest)


def topics_file(topics: TopicsLike, folder: Path | None = None) -> Path:
    """Write topics to a file in a folder, by default in the home folder.

    Returns the file, which is named after its content.
    """
    lines = map(_line, as_topics(topics))
    return _written(folder, "topics", ".jsonl", "".join(lines))


def qrels_file(qrels: JudgmentsLike, folder: Path | None = None) -> Path:
    """Write judgments to a file in a folder, by default in the home folder.

    Returns the file, which is named after its content.
    """
    lines = []
    for query_id, grades in qrels_of(qrels).items():
        lines += [
            f"{query_id} 0 {doc_id} {grade}\n" for doc_id, grade in grades.items()
        ]
    return _written(folder, "qrels", ".txt", "".join(lines))


def qrels_of(qrels: JudgmentsLike) -> Qrels:
    """Return the judgments that a caller passes in any form of :data:`JudgmentsLike`.

    Rows have the columns :data:`tweetrerank.pipeline.collections.trec.NAMES`, each
    under one of its names. Raises DataError if a row is malformed, or if there is no
    judgment.
    """
    files = _as_files(qrels)
    if files is not None:
        return joined_qrels(files)
    table: Any = qrels
    if isinstance(qrels, Mapping):
        table = _rows_of_mapping(qrels)
    result: Qrels = {}
    query_names, doc_names, grade_names = NAMES
    for where, row in rows_of(table, "qrels", Post):
        query_id = id_under(query_names, row, where)
        doc_id = id_under(doc_names, row, where)
        values = (row[name] for name in grade_names if row.get(name) is not None)
        grade = grade_of(next(values, None), where)
        result.setdefault(query_id, {})[doc_id] = grade
    if not result:
        raise DataError(f"qrels: found no judgment, expected rows of {QRELS_COLUMNS}")
    return result


def _as_files(qrels: JudgmentsLike) -> list[Path] | None:
    """Return the files of judgments, or None if they have another form such as rows."""
    if isinstance(qrels, str | Path):
        return [Path(qrels)]
    if not isinstance(qrels, list | tuple):
        return None
    paths = [Path(path) for path in qrels if isinstance(path, str | Path)]
    return paths if len(paths) == len(qrels) else None


def _rows_of_mapping(qrels: Mapping[Any, Any]) -> list[dict[str, Any]]:
    """Return the rows of judgments that are nested mappings.

    Raises DataError if a topic has no mapping.
    """
    for query_id, grades in qrels.items():
        if not isinstance(grades, Mapping):
            raise DataError(
                f"qrels: found topic {query_id} without doc_id -> grade, expected it"
            )
    rows = []
    for query_id, grades in qrels.items():
        for doc_id, grade in grades.items():
            rows.append({"query_id": query_id, "doc_id": doc_id, "relevance": grade})
    return rows


def collection_of_ir_dataset(dataset: str | IrDataset) -> Collection:
    """Return the collection of a data set of ir_datasets.

    ``dataset`` is its id or the object. Its documents are read only once, and data sets
    with the same documents share an index. Raises UsageError if there is no such data
    set. Raises DataError if ir_datasets is not installed or cannot read the data set.
    """
    try:
        import ir_datasets
    except ImportError:
        raise DataError(
            "found no ir_datasets; install it by\n  pip install "
            "'tweetrerank[ir-datasets]'"
        ) from None
    source: Any = dataset
    if isinstance(dataset, str):
        try:
            source = ir_datasets.load(dataset)
        except KeyError:
            similar = did_you_mean(dataset, list(ir_datasets.registry))
            raise UsageError(
                f"found no data set {dataset!r} in ir_datasets{similar}"
            ) from None
    if not source.has_docs():
        raise DataError(f"{source}: found no documents, expected a data set with them")
    try:
        return _stored_ir_dataset(source)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{source}: ir_datasets cannot read or download it ({short(str(error))}); "
            "try again where its source can be reached, or put its files where "
            "ir_datasets looks for them"
        ) from error


def _stored_ir_dataset(dataset: Any) -> Collection:
    import ir_datasets

    topics = None
    qrels = None
    if dataset.has_queries():
        topics = [
            Topic(query.query_id, query.default_text())
            for query in dataset.queries_iter()
        ]
    if dataset.has_qrels():
        qrels = list(dataset.qrels_iter())
    posts = _posts_of_ir_dataset(dataset)
    if not hasattr(dataset, "dataset_id"):
        return collection_of(posts, topics, qrels)
    dataset_id = dataset.dataset_id()
    name = ir_datasets.docs_parent_id(dataset_id) or dataset_id
    content = {"skip_own_id": name.startswith("beir/")}
    return _stored(name.replace("/", "-"), posts, topics, qrels, content)


def _posts_of_ir_dataset(dataset: Any) -> Iterator[Post]:
    for doc in dataset.docs_iter():
        text = well_formed(doc.default_text())
        yield Post(doc.doc_id, text, getattr(doc, "url", None) or "")


def _stored(
    folder_name: str,
    posts: Iterable[Post],
    topics: TopicsLike | None,
    qrels: JudgmentsLike | None,
    content: dict[str, Any],
    digest: str = "",
) -> Collection:
    """Write a collection into the home folder, and return it.

    The posts are written only if their file is missing or has been changed.
    ``content`` has further keys for the collection's file. ``digest`` is the SHA-256
    that the file of posts must have. If it is "", a present file counts as unchanged.
    """
    folder = home_directory() / "collections" / folder_name
    path = folder / "posts.jsonl"
    is_changed = bool(digest) and path.is_file() and sha256_of(path) != digest
    if is_changed:
        say(f"note: {path} was changed; it is written again")
    if is_changed or not path.is_file():
        with atomic_file(path) as stream:
            stream.writelines(map(_line, posts))
    content["posts"] = path.name
    if topics is not None:
        content["topics"] = topics_file(topics, folder).name
    if qrels is not None:
        content["qrels"] = qrels_file(qrels, folder).name
    file = folder / f"{folder_name}{ENDING}"
    # Commands read this file, so they use the latest topics.
    with atomic_file(file) as stream:
        for key, value in content.items():
            if value:
                stream.write(f"{key} = {json.dumps(value)}\n")
    return read_collection(file)


def _written(folder: Path | None, stem: str, ending: str, text: str) -> Path:
    """Write a text to a file named after its content, and return the file.

    If the file exists with this content, it is not written again.
    """
    content = text.encode()
    digest = hashlib.sha256(content).hexdigest()
    folder = folder or home_directory() / "collections"
    path = folder / f"{stem}-{digest[:12]}{ending}"
    if not path.is_file() or path.read_bytes() != content:
        write_bytes(path, content)
    return path


def _line(record: Post | Topic) -> str:
    """Return the JSON line of a topic, or of a post with its signals."""
    fields = record._asdict()
    fields |= fields.pop("signals", {})
    return json.dumps(fields, ensure_ascii=False, default=str) + "\n"
