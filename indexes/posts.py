"""Posts, and the readers of their files: our own form, BEIR's, tables, platforms', pairs.

A folder of pairs has parallel files (``a.toks``, ``b.toks``, ``id.txt``), one line a (query, post)
pair.
"""

import contextlib
import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from indexes.errors import CollectionError
from indexes.platforms import own_form, posts_in
from indexes.records import (
    id_under,
    is_doc_id,
    keys_of,
    numbered_lines,
    read_records,
    short,
    short_json,
    value_of,
    well_formed,
)

_IDS = ("id_str", "id", "_id", "doc_id", "docno")
"""Keys of a post's id; id_str first, as programs that read numbers as floats round the others."""

_TEXTS = ("full_text", "text", "contents", "content")

FIELDS = ("id", "text", "url", "title")  # Fields of a post that columns may be named for

FILES, LABELS = ("a.toks", "b.toks", "id.txt"), "sim.txt"
"""Required files of a folder of pairs, and the optional one of relevance labels."""


class Post(NamedTuple):
    """One post: id, text, and the expanded form of its first link ("" without a link)."""

    doc_id: str
    text: str
    url: str = ""
    signals: Mapping[str, Any] = {}  # Name -> value of a further field

    def __hash__(self) -> int:
        return hash(self.doc_id)  # A mapping has no hash.


def read_posts(
    path: Path | str, columns: Mapping[str, str] | None = None, signals: Sequence[str] = ()
) -> Iterator[Post]:
    """Read posts from a file, plain or compressed (``.gz``, ``.bz2``), in the file's order.

    It has JSON objects as :func:`post_of` reads them, one a line or in an array, pages of a
    platform's API, or is a table (``.csv``, ``.tsv``) whose header has the keys of these objects.
    Blank lines are skipped, notices of streaming APIs (``delete``, ``limit``, …) are skipped and
    counted. A repeated id is an error of the index (:mod:`indexes.store`), not of this reader.

    Args:
        columns: field (:data:`FIELDS`) -> its column or key, where it has another name.
        signals: further fields to read; see :func:`indexes.records.value_of`.

    Raises:
        CollectionError: a line has another form, or the file cannot be read.
    """
    for _, post in numbered_posts(path, columns, signals):
        yield post


def numbered_posts(
    path: Path | str, columns: Mapping[str, str] | None = None, signals: Sequence[str] = ()
) -> Iterator[tuple[int, Post]]:
    """The posts of :func:`read_posts` with the numbers of their lines, from 1."""
    notices = 0
    for number, value in read_records(path):
        where = f"{path}:{number}"
        for record in [value] if columns else posts_in(value):
            if record is None:
                notices += 1
                continue
            post = post_of(_chosen(record, columns, where) if columns else record, where)
            yield number, with_signals(post, record, signals)
    if notices:
        print(f"{path}: {notices:,} notices without a post, passed over", file=sys.stderr)


def _chosen(record: Mapping[str, Any], columns: Mapping[str, str], where: str) -> Mapping[str, Any]:
    """The record with the fields of other names under their own."""
    if lacking := [name for name in columns.values() if name not in record]:
        raise CollectionError(
            f"{where}: found {keys_of(record)}, expected the columns {', '.join(lacking)}"
        )
    return {field: record.get(columns.get(field, field)) for field in FIELDS}


def post_of(record: Mapping[str, Any], where: str) -> Post:
    """The post of a JSON object or of a row of a table.

    Keys:
        id: or ``id_str``, ``_id``, ``doc_id``, ``docno``.
        text: or ``contents``, ``full_text``, ``content``; may be empty.
        title: optional; put before a text that does not begin with it.
        url: optional.

    Objects of platforms are understood as they are (:mod:`indexes.platforms`): longer texts and the
    originals of retweets are preferred, the link is the first expanded one, escapes are decoded.
    Raises CollectionError, which begins with ``where``, for another form.
    """
    own = own_form(record)
    title, url = (_text(own, key, where) for key in ("title", "url"))
    key = next((key for key in _TEXTS if not _is_missing(own.get(key))), None)
    doc_id = id_under(_IDS, own, where)
    if key is None:
        expected = 'expected a text under "text", "contents" or "full_text"'
        raise CollectionError(f"{where}: found {keys_of(record)}, {expected}")
    text = _text(own, key, where)
    if title and not text.startswith(title):
        text = f"{title} {text}"
    return Post(doc_id, well_formed(text), well_formed(url))


def with_signals(post: Post, record: Any, signals: Sequence[str]) -> Post:
    """A post with the values of further fields of its record, where there are any."""
    if not signals:
        return post
    found = {name: value_of(record, name) for name in signals}
    return post._replace(
        signals={name: value for name, value in found.items() if value is not None}
    )


def as_post(row: Any, where: str, signals: Sequence[str] = ()) -> Post:
    """A post that is one, or the post of a row; see :func:`post_of` and :func:`with_signals`."""
    return row if isinstance(row, Post) else with_signals(post_of(row, where), row, signals)


def _text(record: Mapping[str, Any], key: str, where: str) -> str:
    """A text, "" for one that is absent, null or NaN."""
    value = record.get(key)
    if _is_missing(value):
        return ""
    if not isinstance(value, str):
        raise CollectionError(f"{where}: found {key} {short_json(value)}, expected a text")
    return value


def _is_missing(value: Any) -> bool:
    return value is None or bool(value != value)  # NaN


def places_of(doc_id: str, paths: Iterable[Path | str]) -> list[str]:
    """``FILE:LINE`` of the posts with an id, in those files that :func:`read_posts` reads."""
    found = []
    for path in paths:
        with contextlib.suppress(CollectionError):
            posts = numbered_posts(path)
            found += [f"{path}:{number}" for number, post in posts if post.doc_id == doc_id]
    return found


class Answer(NamedTuple):
    """One candidate answer of a question; relevance 1 or 0, or None without a file of labels."""

    query_id: str
    question: str
    post: Post
    relevance: int | None


def _pairs(folder: Path, optional: str) -> Iterator[tuple[int, list[str]]]:
    """The lines of each pair with their number, from 1: those of :data:`FILES` and, if it is there,
    of an ``optional`` file; raises CollectionError for a missing or a shorter file."""
    if missing := [name for name in FILES if not (folder / name).exists()]:
        raise CollectionError(f"{folder}: found no {', no '.join(missing)}; expected {[*FILES]}")
    present = [*FILES, *([optional] if (folder / optional).exists() else [])]
    streams = [numbered_lines(folder / name) for name in present]
    for number, lines in enumerate(itertools.zip_longest(*streams), start=1):
        if None in lines:
            ended = present[lines.index(None)]
            raise CollectionError(
                f"{folder / ended}: found {number - 1} lines, expected as many as in the parallel "
                "files beside it"
            )
        yield number, [line for _, line in lines]


def read_pair_folder(folder: Path | str) -> Iterator[tuple[str, Post]]:
    """Read (query_id, post), in the order of the files; a post is yielded once per query.

    ``a.toks`` holds queries, ``b.toks`` posts, the optional ``url.txt`` links or empty lines,
    ``id.txt`` lines of a run: ``query_id Q0 doc_id rank score tag``. Raises CollectionError if a
    file is missing or has another number of lines, or a line of ``id.txt`` has another form.
    """
    for number, (_, text, name, *url) in _pairs(Path(folder), "url.txt"):
        columns = name.split()
        if len(columns) != 6:
            raise CollectionError(
                f"{Path(folder) / 'id.txt'}:{number}: found {short(name)}, "
                "expected `query_id Q0 doc_id rank score tag`"
            )
        yield columns[0], Post(columns[2], text, "".join(url).strip())


def read_answer_folder(folder: Path | str) -> Iterator[Answer]:
    """Read questions with their given answers, in the order of the files.

    ``a.toks`` holds questions, ``b.toks`` answers, the optional ``sim.txt`` 1 for relevant answers
    and 0 for others. ``id.txt`` holds either the id of the answer, ``Q11-D11-0``, which begins
    with the question's id and ``-``; or the id of the question, ``32.1``, whose answers then get
    the ids ``32.1-0``, ``32.1-1``, …

    Raises:
        CollectionError: a file is missing or has another number of lines; a line of ``id.txt`` or
            ``sim.txt`` has another form; or an id is repeated.
    """
    folder, counts = Path(folder), Counter[str]()
    lines_of: dict[str, int] = {}
    for number, (question, text, name, *labels) in _pairs(folder, LABELS):
        where = f"{folder / 'id.txt'}:{number}"
        name = name.strip()
        query_id, dash, _ = name.partition("-")
        if not is_doc_id(name) or not query_id:
            raise CollectionError(
                f"{where}: found {short(name)}, expected one word: the id of a question (32.1), or "
                "the id of an answer (Q11-D11-0), which begins with its question's"
            )
        doc_id = name if dash else f"{query_id}-{counts[query_id]}"
        counts[query_id] += 1
        if (first := lines_of.setdefault(doc_id, number)) != number:
            raise CollectionError(
                f"{where}: found the answer {doc_id!r} again, expected every id once; "
                f"the first is on line {first}"
            )
        for label in labels:
            if label.strip() not in ("0", "1"):
                raise CollectionError(
                    f"{folder / LABELS}:{number}: found {short(label)}, expected 0 or 1"
                )
        yield Answer(query_id, question, Post(doc_id, text), int(labels[0]) if labels else None)
