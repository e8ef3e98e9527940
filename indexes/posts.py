"""Read posts from files: in our form, in BEIR's, as tables, or from platforms."""

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
"""Keys that a post's id may have, the preferred one first.

``id_str`` comes first because programs that read numbers as floats round the others.
"""

_TEXTS = ("full_text", "text", "contents", "content")

FIELDS = ("id", "text", "url", "title")
"""The fields of a post for which a caller may name columns."""


class Post(NamedTuple):
    """One post."""

    doc_id: str
    text: str
    url: str = ""  # The first link in its expanded form, "" without a link
    signals: Mapping[str, Any] = {}  # Name -> value of a further field

    def __hash__(self) -> int:
        # A mapping cannot be hashed.
        return hash(self.doc_id)


def read_posts(
    path: Path | str,
    columns: Mapping[str, str] | None = None,
    signals: Sequence[str] = (),
) -> Iterator[Post]:
    """Yield the posts of a file in its order.

    The file may be compressed (``.gz``, ``.bz2``). It has JSON objects, one on each
    line or in an array, or pages of a platform's API. See :func:`post_of` for the
    keys of an object. A table (``.csv``, ``.tsv``) has these keys in its header.

    ``columns`` maps :data:`FIELDS` to the columns or keys that have other names.
    ``signals`` names further fields to read, as
    :func:`tweetrerank.indexes.records.value_of` finds them. Blank lines are skipped. So
    are notices of streaming APIs, which are counted on stderr. Raises DataError if the
    file cannot be read, or if a line has another form.
    """
    return (post for _, post in numbered_posts(path, columns, signals))


def numbered_posts(
    path: Path | str,
    columns: Mapping[str, str] | None = None,
    signals: Sequence[str] = (),
) -> Iterator[tuple[int, Post]]:
    """Yield (line number from 1, post) for each post of :func:`read_posts`."""
    notices = 0
    for number, value in read_records(path):
        where = f"{path}:{number}"
        for record in [value] if columns else posts_in(value):
            if record is None:
                notices += 1
                continue
            fields = _renamed(record, columns, where) if columns else record
            yield number, with_signals(post_of(fields, where), record, signals)
    if notices:
        print(
            f"{path}: {notices:,} notices without a post, passed over", file=sys.stderr
        )


def _renamed(
    record: Mapping[str, Any], columns: Mapping[str, str], where: str
) -> Mapping[str, Any]:
    """Return the fields of a record whose columns have other names.

    Raises DataError if the record lacks one of the columns.
    """
    missing = [name for name in columns.values() if name not in record]
    if missing:
        raise DataError(
            f"{where}: found {keys_of(record)}, expected the columns "
            f"{', '.join(missing)}"
        )
    return {field: record.get(columns.get(field, field)) for field in FIELDS}


def post_of(record: Mapping[str, Any], where: str) -> Post:
    """Return the post of a JSON object or of a table's row.

    The id has one of the keys :data:`_IDS`. The text has one of the keys
    :data:`_TEXTS`, and may be empty. ``url`` and ``title`` are optional. The title is
    put before the text unless the text begins with it.

    Objects of platforms are converted by :mod:`tweetrerank.indexes.platforms`. It
    prefers complete texts and the originals of retweets, takes the first expanded link,
    and decodes escapes. Raises DataError, with a message that begins with ``where``, if
    the record has another form.
    """
    fields = own_form(record)
    title = _text(fields, "title", where)
    url = _text(fields, "url", where)
    key = next((key for key in _TEXTS if not _is_missing(fields.get(key))), None)
    doc_id = id_under(_IDS, fields, where)
    if key is None:
        raise DataError(
            f"{where}: found {keys_of(record)}, expected a text under "
            '"text", "contents" or "full_text"'
        )
    text = _text(fields, key, where)
    if title and not text.startswith(title):
        text = f"{title} {text}"
    return Post(doc_id, well_formed(text), well_formed(url))


def with_signals(post: Post, record: Any, signals: Sequence[str]) -> Post:
    """Return the post with the fields of its record that ``signals`` names.

    Fields that the record lacks are left out.
    """
    if not signals:
        return post
    values = {}
    for name in signals:
        value = value_of(record, name)
        if value is not None:
            values[name] = value
    return post._replace(signals=values)


def as_post(row: Any, where: str, signals: Sequence[str] = ()) -> Post:
    """Return the post of a row with its signals.

    A row that is a post already is returned as it is.

    See :func:`post_of` and :func:`with_signals`.
    """
    if isinstance(row, Post):
        return row
    return with_signals(post_of(row, where), row, signals)


def _text(record: Mapping[str, Any], key: str, where: str) -> str:
    """Return the text under a key, or "" if it is absent, null or NaN.

    Raises DataError if the value is not a text.
    """
    value = record.get(key)
    if _is_missing(value):
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: found {key} {short_json(value)}, expected a text")
    return value


def _is_missing(value: Any) -> bool:
    return value is None or bool(value != value)  # NaN


def places_of(doc_id: str, paths: Iterable[Path | str]) -> list[str]:
    """Return ``FILE:LINE`` of each post with this id in files of posts."""
    places = []
    for path in paths:
        with contextlib.suppress(DataError):
            posts = numbered_posts(path)
            # Nothing is added for a file that cannot be read to its end.
            places += [
                f"{path}:{number}" for number, post in posts if post.doc_id == doc_id
            ]
    return places
