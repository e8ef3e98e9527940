"""Collections from posts, topics and judgments in memory, and from data sets of ir_datasets.

They become own collections below ``collections`` in the home folder: posts and topics in JSON
lines, judgments as trec_eval reads them, and the file that describes them. The folder is named by
the posts' content, so posts are written and indexed once, whatever topics search them.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from indexes.files import atomic_file, sha256_of, write_bytes
from indexes.posts import Post, as_post
from indexes.records import id_under, rows_of, short, well_formed
from pipeline.collections.collection import ENDING, Collection, home_directory
from pipeline.collections.own import read_collection
from pipeline.collections.topics import Topic, as_topics
from pipeline.collections.trec import NAMES, QRELS_COLUMNS, Qrels, grade_of, joined_qrels
from pipeline.errors import DataError, UsageError
from pipeline.text import did_you_mean

Table = Any
"""Rows with names: an iterable of dictionaries or named tuples, or a data frame of pandas."""


def collection_of(
    posts: Table,
    topics: Mapping[str, str] | Table = None,
    qrels: Any = None,
    name: str = "",
    signals: Sequence[str] = (),
) -> Collection:
    """The collection of posts, topics and judgments.

    Args:
        posts: rows as :func:`indexes.posts.post_of` reads them.
        topics: as :func:`pipeline.collections.topics.as_topics` takes them.
        qrels: as in :func:`qrels_of`.
        name: under which what is trained is kept, also for other posts; else one of these posts.
        signals: further fields of the rows, see :mod:`pipeline.collections.own`.

    Raises:
        DataError, CollectionError: a row has another form; names the row.
    """
    rows = rows_of(posts, "posts", Post, DataError)
    found = [as_post(row, where, signals) for where, row in rows]
    digest = hashlib.sha256("".join(map(_line, found)).encode()).hexdigest()
    folder = f"posts-{digest[:12]}"
    return _stored(folder, found, topics, qrels, name=name, digest=digest, signals=signals)


def topics_file(topics: Mapping[str, str] | Table, folder: Path | None = None) -> Path:
    """A file of topics, in a folder or in the home folder."""
    return _written(folder, "topics", ".jsonl", "".join(map(_line, as_topics(topics))))


def qrels_file(qrels: Any, folder: Path | None = None) -> Path:
    """A file of judgments as :func:`qrels_of` reads them, in a folder or in the home folder."""
    found = qrels_of(qrels).items()
    lines = [f"{q} 0 {doc_id} {grade}\n" for q, grades in found for doc_id, grade in grades.items()]
    return _written(folder, "qrels", ".txt", "".join(lines))


def qrels_of(qrels: Any) -> Qrels:
    """Judgments: query_id -> doc_id -> grade, or rows with ``query_id`` or ``qid``, ``doc_id`` or
    ``docno``, and ``relevance`` or ``label``; or the name of a file, or a list of names.

    DataError: a row has another form.
    """
    files = [qrels] if isinstance(qrels, str | Path) else qrels
    if isinstance(files, list | tuple) and all(isinstance(one, str | Path) for one in files):
        return joined_qrels([Path(one) for one in files])
    if isinstance(qrels, Mapping):
        if wrong := [q for q, grades in qrels.items() if not isinstance(grades, Mapping)]:
            raise DataError(f"qrels: found topic {wrong[0]} without doc_id -> grade, expected it")
        rows = [(q, d, grade) for q, grades in qrels.items() for d, grade in grades.items()]
        qrels = [{"query_id": q, "doc_id": d, "relevance": grade} for q, d, grade in rows]
    found: Qrels = {}
    for where, row in rows_of(qrels, "qrels", Post, DataError):
        query_id, doc_id = (id_under(names, row, where, DataError) for names in NAMES[:2])
        grade = next((row[name] for name in NAMES[2] if row.get(name) is not None), None)
        found.setdefault(query_id, {})[doc_id] = grade_of(grade, where)
    if not found:
        raise DataError(f"qrels: found no judgment, expected rows of {QRELS_COLUMNS}")
    return found


def collection_of_ir_dataset(dataset: Any) -> Collection:
    """The collection of a data set of ir_datasets, by its id or as an object.

    Its documents are read once; later calls read topics and judgments only. Data sets that share
    their documents share the index.

    UsageError: there is no such data set. DataError: it has no documents, or cannot be read.
    """
    try:
        import ir_datasets
    except ImportError:
        raise DataError(
            "found no ir_datasets; install it by\n  pip install 'tweetrerank[ir-datasets]'"
        ) from None
    if isinstance(name := dataset, str):
        try:
            dataset = ir_datasets.load(name)
        except KeyError:
            similar = did_you_mean(name, list(ir_datasets.registry))
            raise UsageError(f"found no data set {name!r} in ir_datasets{similar}") from None
    if not dataset.has_docs():
        raise DataError(f"{dataset}: found no documents, expected a data set with them")
    topics, qrels = None, None
    try:
        if dataset.has_queries():
            topics = [Topic(q.query_id, q.default_text()) for q in dataset.queries_iter()]
        if dataset.has_qrels():
            qrels = list(dataset.qrels_iter())
        posts = (
            Post(doc.doc_id, well_formed(doc.default_text()), getattr(doc, "url", None) or "")
            for doc in dataset.docs_iter()
        )
        if not hasattr(dataset, "dataset_id"):
            return collection_of(posts, topics, qrels)
        name = ir_datasets.docs_parent_id(dataset.dataset_id()) or dataset.dataset_id()
        return _stored(name.replace("/", "-"), posts, topics, qrels, name.startswith("beir/"))
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{dataset}: ir_datasets cannot read or download it ({short(str(error))}); try again "
            "where its source can be reached, or put its files where ir_datasets looks for them"
        ) from error


def _stored(
    folder_name: str,
    posts: Iterable[Post],
    topics: Any,
    qrels: Any,
    is_beir: bool = False,
    name: str = "",
    digest: str = "",
    signals: Sequence[str] = (),
) -> Collection:
    """The own collection of this folder in the home folder, whose posts are written once."""
    folder = home_directory() / "collections" / folder_name
    file, path = folder / f"{folder_name}{ENDING}", folder / "posts.jsonl"
    if is_changed := digest and path.is_file() and sha256_of(path) != digest:
        print(f"note: {path} was changed; it is written anew", file=sys.stderr)
    if is_changed or not path.is_file():
        with atomic_file(path) as stream:
            stream.writelines(map(_line, posts))
    content = {
        "posts": path.name,
        "topics": topics_file(topics, folder).name if topics is not None else None,
        "qrels": qrels_file(qrels, folder).name if qrels is not None else None,
        "skip_own_id": is_beir or None,
        "name": name or None,
        "signals": [*signals],
    }
    # The latest topics are those that a command sees.
    with atomic_file(file) as stream:
        lines = (f"{key} = {json.dumps(value)}\n" for key, value in content.items() if value)
        stream.writelines(lines)
    return read_collection(file)


def _written(folder: Path | None, stem: str, ending: str, text: str) -> Path:
    """The file with this text, named by it; what is there already is kept."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    path = (folder or home_directory() / "collections") / f"{stem}-{digest[:12]}{ending}"
    if not path.is_file() or path.read_bytes() != text.encode():
        write_bytes(path, text.encode())
    return path


def _line(record: Post | Topic) -> str:
    fields = record._asdict()
    fields |= fields.pop("signals", {})
    return json.dumps(fields, ensure_ascii=False, default=str) + "\n"
