"""Posts, and the two kinds of files that they are read from: JSON lines and parallel pair files."""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from indexes.errors import CollectionError
from indexes.lines import numbered_lines

# What Twitter's streaming API mixes in between the posts: notices that carry no post.
_NOTICES = {"delete", "disconnect", "limit", "scrub_geo", "status_withheld", "user_withheld"}


class Post(NamedTuple):
    """One post: its id, its text, and the expanded form of its first link ("" if it has none)."""

    doc_id: str
    text: str
    url: str = ""


def read_posts(path: Path | str) -> Iterator[Post]:
    """Read posts from JSON lines, plain or compressed (``.gz``, ``.bz2``), in the file's order.

    Each line is an object with ``id_str`` or ``id``; ``full_text``, ``text`` or ``contents``; and
    optionally ``url``, or Twitter's ``entities.urls[].expanded_url``, of which the first is taken.
    Twitter's ``extended_tweet`` and, for a retweet that was cut off, ``retweeted_status`` are used
    where they say more. Blank lines and the streaming API's notices (``delete``, ``limit``, …) are
    skipped. An empty text is a post like any other. About 100 bytes of memory a post go into
    watching for duplicate ids.

    Raises:
        CollectionError: with ``file:line``, what was found and what was expected; also for an id
            that has been seen (both lines are named) and for a compressed file that is cut off.
    """
    seen: dict[str, int] = {}
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        record = _parse(line, where)
        if record.keys() and record.keys() <= _NOTICES:
            continue
        post = _post(record, where)
        if (first := seen.setdefault(post.doc_id, number)) != number:
            raise CollectionError(
                f"{where}: found the id {post.doc_id!r}, which line {first} has already; "
                "expected every id once"
            )
        yield post


def _parse(line: str, where: str) -> dict[str, Any]:
    """One line as a JSON object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CollectionError(
            f"{where}: found {short(line)}, expected one JSON object a line ({error})"
        ) from None
    if not isinstance(record, dict):
        raise CollectionError(f"{where}: found {short(line)}, expected a JSON object {{…}}")
    return record


def _post(record: dict[str, Any], where: str) -> Post:
    """Take what we need out of a JSON object in our own or in Twitter's form."""
    return Post(
        _doc_id(record, where), well_formed(_text(record, where)), well_formed(_url(record, where))
    )


def _doc_id(record: dict[str, Any], where: str) -> str:
    # id_str first: programs that read ids as floating-point numbers have rounded some `id`s.
    for key in ("id_str", "id"):
        value = record.get(key)
        if isinstance(value, str) and is_doc_id(value):
            return value
        # JSON's true and false are whole numbers to Python.
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if value is not None:
            raise CollectionError(
                f"{where}: found {key} {short(json.dumps(value))}, "
                "expected a whole number or a text without spaces"
            )
    raise CollectionError(f'{where}: found {_keys(record)}, expected "id" or "id_str"')


def is_doc_id(text: str) -> bool:
    """Whether a run file can hold this id: some characters, none of them white space or NUL."""
    return len(text.split()) == 1 and text.strip() == text and _encodable(text) and "\0" not in text


def well_formed(text: str) -> str:
    """The text with halves of surrogate pairs, which no file can hold, replaced."""
    if _encodable(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text(record: dict[str, Any], where: str) -> str:
    """The post's full text; a retweet that was cut off is completed from the original post."""
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
    """The post's own ``url``, else the first expanded link of it or of the post it retweets."""
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
    """The first ``entities.urls[].expanded_url`` (``url`` where Twitter gave none), or ""."""
    entities = record.get("entities")
    links = entities.get("urls") if isinstance(entities, dict) else None
    for link in links if isinstance(links, list) else []:
        for key in ("expanded_url", "url"):
            if isinstance(link, dict) and isinstance(link.get(key), str) and link[key]:
                return str(link[key])
    return ""


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def short(text: str) -> str:
    """The beginning of what was found, in quotes, for a message."""
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:57] + "…")


def _keys(record: dict[str, Any]) -> str:
    """The object's keys, and which of them hold null, for a message."""
    keys = ", ".join(
        json.dumps(key) + (" (null)" if value is None else "")
        for key, value in list(record.items())[:8]
    )
    return f"the keys {keys}" if keys else "an empty object"


def read_pair_folder(folder: Path | str) -> Iterator[tuple[str, Post]]:
    """Read (query_id, post) from a folder of parallel files, one line a (query, post) pair.

    ``a.toks`` holds the query, ``b.toks`` the post, ``url.txt`` its link or an empty line (the
    file may be absent), ``id.txt`` a line of a run: ``query_id Q0 doc_id rank score tag``. A post
    comes as often as it is a candidate.

    Raises:
        CollectionError: a file is missing, has another number of lines than the others, or
            ``id.txt`` has a line of another form.
    """
    lines = parallel_lines(folder, ("a.toks", "b.toks", "id.txt"), ("url.txt",))
    for number, line in lines:
        columns = line["id.txt"].split()
        if len(columns) != 6:
            raise CollectionError(
                f"{Path(folder) / 'id.txt'}:{number}: found {short(line['id.txt'])}, "
                "expected `query_id Q0 doc_id rank score tag`"
            )
        yield columns[0], Post(columns[2], line["b.toks"], line.get("url.txt", "").strip())


def parallel_lines(
    folder: Path | str, required: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (number from 1, file name -> its line) from files of one folder that go together.

    Args:
        folder: where the files are.
        required: names of the files that must be there.
        optional: names of those that may be absent; they then have no lines.

    Raises:
        CollectionError: a file is missing, or has another number of lines than the others.
    """
    folder = Path(folder)
    missing = [name for name in required if not (folder / name).exists()]
    if missing:
        raise CollectionError(
            f"{folder}: found no {', no '.join(missing)}; expected {list(required)}"
        )
    present = [*required, *(name for name in optional if (folder / name).exists())]
    streams = [numbered_lines(folder / name) for name in present]
    for number, lines in enumerate(itertools.zip_longest(*streams), start=1):
        if None in lines:
            ended = present[lines.index(None)]
            raise CollectionError(
                f"{folder / ended}: found {number - 1} lines, expected as many as the files "
                "beside it have; the files are parallel"
            )
        yield number, {name: line for name, (_, line) in zip(present, lines, strict=True)}
