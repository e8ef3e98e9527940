"""Posts, and the reader of JSON lines in our own or Twitter's form."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from indexes.errors import CollectionError
from indexes.lines import numbered_lines, short

# Notices among the posts of Twitter's streaming API.
_NOTICES = {"delete", "disconnect", "limit", "scrub_geo", "status_withheld", "user_withheld"}


class Post(NamedTuple):
    """One post: id, text, and the expanded form of its first link ("" without a link)."""

    doc_id: str
    text: str
    url: str = ""


def read_posts(path: Path | str) -> Iterator[Post]:
    """Read posts from JSON lines, plain or compressed (``.gz``, ``.bz2``), in the file's order.

    Each line is an object with ``id_str`` or ``id``; ``full_text``, ``text`` or ``contents``; and
    optionally ``url``, or Twitter's ``entities.urls[].expanded_url``, of which the first is taken.
    Longer texts in Twitter's ``extended_tweet`` and, for truncated retweets, ``retweeted_status``
    are preferred. Blank lines and the streaming API's notices (``delete``, ``limit``, …) are
    skipped. A text may be empty. Whether an id is repeated is not checked here: who collects posts
    does it (:mod:`indexes.store`).

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
        where = f"{path}:{number}"
        record = _parse(line, where)
        if record.keys() and record.keys() <= _NOTICES:
            continue
        yield (
            number,
            Post(
                _doc_id(record, where),
                well_formed(_text(record, where)),
                well_formed(_url(record, where)),
            ),
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


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CollectionError(
            f"{where}: found {short(line)}, expected one JSON object a line ({error})"
        ) from None
    if not isinstance(record, dict):
        raise CollectionError(f"{where}: found {short(line)}, expected a JSON object {{…}}")
    return record


def _doc_id(record: dict[str, Any], where: str) -> str:
    # id_str first: programs that read numbers as floats have rounded some values of `id`.
    for key in ("id_str", "id"):
        value = record.get(key)
        if isinstance(value, str) and is_doc_id(value):
            return value
        # In Python JSON's true and false are integers.
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if value is not None:
            raise CollectionError(
                f"{where}: found {key} {short(json.dumps(value))}, "
                "expected a whole number or a text without spaces"
            )
    raise CollectionError(f'{where}: found {_keys(record)}, expected "id" or "id_str"')


def _text(record: dict[str, Any], where: str) -> str:
    """The full text; a truncated retweet is completed from the original post."""
    text = _own_text(record, where)
    original = record.get("retweeted_status")
    if isinstance(original, dict) and text.startswith("RT @") and text.endswith(("…", "...")):
        head, colon, _ = text.partition(": ")
        if colon:
            return f"{head}: {_own_text(original, where)}"
    return text


def _own_text(record: dict[str, Any], where: str) -> str:
    extended = record.get("extended_tweet")
    places = [extended, record] if isinstance(extended, dict) else [record]
    for place in places:
        for key in ("full_text", "text", "contents"):
            value = place.get(key)
            if isinstance(value, str):
                return value
            if value is not None:
                raise CollectionError(
                    f"{where}: found {key} {short(json.dumps(value))}, expected a text"
                )
    raise CollectionError(
        f'{where}: found {_keys(record)}, expected a text under "text", "contents" or "full_text"'
    )


def _url(record: dict[str, Any], where: str) -> str:
    """``url``, else the first expanded link of the post or of the post that it retweets."""
    url = record.get("url")
    if isinstance(url, str):
        return url
    if url is not None:
        raise CollectionError(f"{where}: found url {short(json.dumps(url))}, expected a text")
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


def _keys(record: dict[str, Any]) -> str:
    """The object's keys for a message, with null values marked."""
    keys = ", ".join(
        json.dumps(key) + (" (null)" if value is None else "")
        for key, value in list(record.items())[:8]
    )
    return f"the keys {keys}" if keys else "an empty object"
