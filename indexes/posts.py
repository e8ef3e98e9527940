"""Posts, and the readers of their files: our own form, BEIR's, tables, platforms'."""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.platforms import own_form, posts_in
from tweetrerank.indexes.records import (
    id_under,
    keys_of,
    read_records,
    short_json,
    value_of,
    well_formed,
)

_IDS = ("id_str", "id", "_id", "doc_id", "docno")
"""Keys of a post's id; id_str first, as programs that read numbers as floats round the others."""

_TEXTS = ("full_text", "text", "contents", "content")

FIELDS = (
    "id",
    "text",
    "url",
    "title",
)  # Fields of a post that columns may be named for


class Post(NamedTuple):
    """One post: id, text, and the expanded form of its first link ("" without a link)."""

    doc_id: str
    text: str
    url: str = ""
    signals: Mapping[str, Any] = {}  # Name -> value of a further field

    def __hash__(self) -> int:
        return hash(self.doc_id)  # A mapping has no hash.


def read_posts(
    path: Path | str,
    columns: Mapping[str, str] | None = None,
    signals: Sequence[str] = (),
) -> Iterator[Post]:
    """Read posts from a file, plain or compressed (``.gz``, ``.bz2``), in the file's order.

    It has JSON objects as :func:`post_of` reads them, one a line or in an array, pages of a
    platform's API, or is a table (``.csv``, ``.tsv``) whose header has the keys of these objects.
    ``columns`` maps :data:`FIELDS` to columns or keys of other names; ``signals`` are further
    fields (:func:`tweetrerank.indexes.records.value_of`). Blank lines are skipped, notices of streaming APIs
    are skipped and counted. DataError: a line has another form, or the file cannot be read.
    """
    return (post for _, post in numbered_posts(path, columns, signals))


def numbered_posts(
    path: Path | str,
    columns: Mapping[str, str] | None = None,
    signals: Sequence[str] = (),
) -> Iterator[tuple[int, Post]]:
    """The posts of :func:`read_posts` with the numbers of their lines, from 1."""
    notices = 0
    for number, value in read_records(path):
        where = f"{path}:{number}"
        for record in [value] if columns else posts_in(value):
            if record is None:
                notices += 1
                continue
            post = post_of(
                _chosen(record, columns, where) if columns else record, where
            )
            yield number, with_signals(post, record, signals)
    if notices:
        print(
            f"{path}: {notices:,} notices without a post, passed over", file=sys.stderr
        )


def _chosen(
    record: Mapping[str, Any], columns: Mapping[str, str], where: str
) -> Mapping[str, Any]:
    """The record with the fields of other names under their own."""
    if lacking := [name for name in columns.values() if name not in record]:
        raise DataError(
            f"{where}: found {keys_of(record)}, expected the columns {', '.join(lacking)}"
        )
    return {field: record.get(columns.get(field, field)) for field in FIELDS}


def post_of(record: Mapping[str, Any], where: str) -> Post:
    """The post of a JSON object or of a row of a table; DataError begins with ``where``.

    Its keys are one of :data:`_IDS`, one of :data:`_TEXTS`, whose text may be empty, and optionally
    ``url`` and ``title``, which is put before a text that does not begin with it. Objects of
    platforms are understood as they are (:mod:`tweetrerank.indexes.platforms`): longer texts and the originals
    of retweets are preferred, the link is the first expanded one, escapes are decoded.
    """
    own = own_form(record)
    title, url = (_text(own, key, where) for key in ("title", "url"))
    key = next((key for key in _TEXTS if not _is_missing(own.get(key))), None)
    doc_id = id_under(_IDS, own, where)
    if key is None:
        expected = 'expected a text under "text", "contents" or "full_text"'
        raise DataError(f"{where}: found {keys_of(record)}, {expected}")
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
        signals={name: v for name, v in found.items() if v is not None}
    )


def as_post(row: Any, where: str, signals: Sequence[str] = ()) -> Post:
    """A post that is one, or the post of a row; see :func:`post_of` and :func:`with_signals`."""
    return (
        row
        if isinstance(row, Post)
        else with_signals(post_of(row, where), row, signals)
    )


def _text(record: Mapping[str, Any], key: str, where: str) -> str:
    """A text, "" for one that is absent, null or NaN."""
    if _is_missing(value := record.get(key)):
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: found {key} {short_json(value)}, expected a text")
    return value


def _is_missing(value: Any) -> bool:
    return value is None or bool(value != value)  # NaN


def places_of(doc_id: str, paths: Iterable[Path | str]) -> list[str]:
    """``FILE:LINE`` of the posts with an id, in those files that :func:`read_posts` reads."""
    found = []
    for path in paths:
        with contextlib.suppress(DataError):
            posts = numbered_posts(path)
            found += [
                f"{path}:{number}" for number, post in posts if post.doc_id == doc_id
            ]
    return found
