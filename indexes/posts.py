"""Posts, and the reader of JSON lines in our own form, BEIR's or Twitter's."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

from indexes.errors import CollectionError
from indexes.lines import numbered_lines, short

_IDS = ("id_str", "id", "_id", "doc_id", "docno")
"""Keys of a post's id; id_str first, as programs that read numbers as floats round the others."""

# Notices among the posts of Twitter's streaming API.
_NOTICES = {"delete", "disconnect", "limit", "scrub_geo", "status_withheld", "user_withheld"}


class Post(NamedTuple):
    """One post: id, text, and the expanded form of its first link ("" without a link)."""

    doc_id: str
    text: str
    url: str = ""


def read_posts(path: Path | str) -> Iterator[Post]:
    """Read posts from JSON lines, plain or compressed (``.gz``, ``.bz2``), in the file's order.

    Each line is an object as :func:`post_of` reads it. Blank lines and the notices of Twitter's
    streaming API (``delete``, ``limit``, …) are skipped. A repeated id is an error of the index
    (:mod:`indexes.store`), not of this reader.

    Raises:
        CollectionError: a line has another form, or the file cannot be read.
    """
    for _, post in numbered_posts(path):
        yield post


def numbered_posts(path: Path | str) -> Iterator[tuple[int, Post]]:
    """The posts of :func:`read_posts` with the numbers of their lines, from 1."""
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        record = parsed(line, f"{path}:{number}")
        if record.keys() and record.keys() <= _NOTICES:
            continue
        yield number, post_of(record, f"{path}:{number}")


def post_of(record: Mapping[str, Any], where: str) -> Post:
    """The post of a JSON object or of a row of a table.

    Keys:
        id: or ``id_str``, ``_id``, ``doc_id``, ``docno``.
        text: or ``contents``, ``full_text``; may be empty.
        title: optional; put before a text that does not begin with it.
        url: optional.

    In Twitter's form the link is the first of ``entities.urls[].expanded_url``, and longer texts in
    ``extended_tweet`` and, for truncated retweets, ``retweeted_status`` are preferred.

    Raises:
        CollectionError: it has another form; begins with ``where``.
    """
    return Post(
        id_under(_IDS, record, where),
        well_formed(_text(record, where)),
        well_formed(_url(record, where)),
    )


def places_of(doc_id: str, paths: Iterable[Path | str]) -> list[str]:
    """``FILE:LINE`` of the posts with an id, in those files that :func:`read_posts` reads."""
    found = []
    for path in paths:
        with contextlib.suppress(CollectionError):
            posts = numbered_posts(path)
            found += [f"{path}:{number}" for number, post in posts if post.doc_id == doc_id]
    return found


def is_doc_id(text: str) -> bool:
    """Whether a run file can hold this id: not empty, without white space and NUL."""
    return len(text.split()) == 1 and text.strip() == text and _encodable(text) and "\0" not in text


def well_formed(text: str) -> str:
    """The text with unpaired surrogates, which UTF-8 cannot encode, replaced."""
    if _encodable(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parsed(line: str, where: str, error_type: type[Exception] = CollectionError) -> dict[str, Any]:
    """The JSON object of a line; raises ``error_type`` for anything else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise error_type(
            f"{where}: found {short(line)}, expected one JSON object a line ({error})"
        ) from None
    if not isinstance(record, dict):
        raise error_type(f"{where}: found {short(line)}, expected a JSON object {{…}}")
    return record


def id_under(
    keys: Sequence[str],
    record: Mapping[str, Any],
    where: str,
    error_type: type[Exception] = CollectionError,
) -> str:
    """The id under the first of these keys that the record has; raises ``error_type`` without."""
    for key in keys:
        value = record.get(key)
        if isinstance(value, str) and is_doc_id(value):
            return value
        # In Python JSON's true and false are integers.
        if isinstance(value, Integral) and not isinstance(value, bool):
            return str(value)
        if value is not None:
            raise error_type(
                f"{where}: found {key} {short_json(value)}, expected a whole number or a text "
                "without spaces"
            )
    raise error_type(
        f"{where}: found {keys_of(record)}, expected an id under {_alternatives(keys)}"
    )


def _text(record: Mapping[str, Any], where: str) -> str:
    """Title and full text; a truncated retweet is completed from the original post."""
    title = record.get("title")
    if title is not None and not isinstance(title, str):
        raise CollectionError(f"{where}: found title {short_json(title)}, expected a text")
    text = _own_text(record, where)
    if title and not text.startswith(title):
        return f"{title} {text}"
    original = record.get("retweeted_status")
    if isinstance(original, dict) and text.startswith("RT @") and text.endswith(("…", "...")):
        head, colon, _ = text.partition(": ")
        if colon:
            return f"{head}: {_own_text(original, where)}"
    return text


def _own_text(record: Mapping[str, Any], where: str) -> str:
    extended = record.get("extended_tweet")
    places = [extended, record] if isinstance(extended, dict) else [record]
    for place in places:
        for key in ("full_text", "text", "contents"):
            value = place.get(key)
            if isinstance(value, str):
                return value
            if value is not None:
                raise CollectionError(f"{where}: found {key} {short_json(value)}, expected a text")
    raise CollectionError(
        f'{where}: found {keys_of(record)}, expected a text under "text", "contents" or "full_text"'
    )


def _url(record: Mapping[str, Any], where: str) -> str:
    """``url``, else the first expanded link of the post or of the post that it retweets."""
    url = record.get("url")
    if isinstance(url, str):
        return url
    if url is not None:
        raise CollectionError(f"{where}: found url {short_json(url)}, expected a text")
    extended, original = record.get("extended_tweet"), record.get("retweeted_status")
    for place in (extended, record):
        if isinstance(place, dict) and (found := _expanded(place)):
            return found
    return _url(original, where) if isinstance(original, dict) else ""


def _expanded(record: dict[str, Any]) -> str:
    """The first ``entities.urls[].expanded_url``, else its ``url``, else ""."""
    entities = record.get("entities")
    links = entities.get("urls") if isinstance(entities, dict) else None
    for link in links if isinstance(links, list) else []:
        for key in ("expanded_url", "url"):
            if isinstance(link, dict) and isinstance(link.get(key), str) and link[key]:
                return str(link[key])
    return ""


def keys_of(record: Mapping[str, Any]) -> str:
    """The record's keys for a message, with null values marked."""
    keys = ", ".join(
        json.dumps(key) + (" (null)" if value is None else "")
        for key, value in list(record.items())[:8]
    )
    return f"the keys {keys}" if keys else "an empty object"


def short_json(value: object) -> str:
    """The beginning of a value for a message, as JSON where it is."""
    return short(json.dumps(value, ensure_ascii=False, default=repr))


def _alternatives(keys: Sequence[str]) -> str:
    *others, last = (f'"{key}"' for key in keys)
    return f"{', '.join(others)} or {last}"
