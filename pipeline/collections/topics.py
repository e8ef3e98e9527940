"""Topics in TREC Microblog's XML, and in lines of ``query_id<TAB>text``.

Files may be compressed (``.gz``, ``.bz2``). Malformed input raises a :class:`DataError` that begins
with ``file:line``.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from indexes.lines import numbered_lines, short
from indexes.posts import is_doc_id
from pipeline.command.errors import DataError

_STARTS_AS_XML = re.compile(r"\s*<(\?xml|!--|top)", re.IGNORECASE)
_TOPIC = re.compile(r"<top>(.*?)</top>", re.IGNORECASE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_OTHER_TAG = re.compile(r"<(?!/?top>)[^<>]*>", re.IGNORECASE)
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&amp;": "&"}


class Topic(NamedTuple):
    """One query, with its time as in the file, and the newest post (a whole number) before it."""

    query_id: str
    text: str
    time: str | None = None
    max_doc_id: str | None = None


def read_topics(path: Path | str) -> list[Topic]:
    """Read topics in TREC Microblog's XML, or as ``query_id<TAB>text`` lines, in file order.

    In XML the id is in ``<num>`` (``Number: MB051`` becomes ``51``, as in official qrels), the
    query in ``<title>`` or ``<query>``.
    """
    lines = list(numbered_lines(path, DataError))
    first = next((line for _, line in lines if line.strip()), "")
    parse = _xml_topics if _STARTS_AS_XML.match(first) else _tsv_topics
    topics: dict[str, tuple[int, Topic]] = {}
    for number, topic in parse(path, lines):
        if not is_doc_id(topic.query_id):
            raise DataError(
                f"{path}:{number}: found {short(topic.query_id)}, expected a query_id of one word"
            )
        line, known = topics.setdefault(topic.query_id, (number, topic))
        if known is not topic:
            raise DataError(
                f"{path}:{number}: found a second topic {topic.query_id}, expected every id once; "
                f"the first is on line {line}"
            )
    if not topics:
        raise DataError(f"{path}: found no topic, expected <top>…</top> or query_id<TAB>text lines")
    return [topic for _, topic in topics.values()]


def _tsv_topics(path: Path | str, lines: list[tuple[int, str]]) -> Iterator[tuple[int, Topic]]:
    for number, line in lines:
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 2:
            raise DataError(
                f"{path}:{number}: found {len(fields) - 1} tabs in {short(line)}, "
                "expected query_id<TAB>text"
            )
        yield number, Topic(fields[0].strip(), _one_line(fields[1]))


def _xml_topics(path: Path | str, lines: list[tuple[int, str]]) -> Iterator[tuple[int, Topic]]:
    text = _blanked(_COMMENT, "\n".join(line for _, line in lines))
    end, number = 0, 1
    for match in _TOPIC.finditer(text):
        _check_outside(text[end : match.start()], path, number)
        number += text.count("\n", end, match.start())
        yield number, _xml_topic(match[1], f"{path}:{number}")
        number += match[0].count("\n")
        end = match.end()
    _check_outside(text[end:], path, number)


def _blanked(pattern: re.Pattern[str], text: str) -> str:
    """The text without matches of the pattern, but with all line ends."""
    return pattern.sub(lambda match: "\n" * match[0].count("\n"), text)


def _check_outside(text: str, path: Path | str, number: int) -> None:
    """Raise DataError for text between topics, except the tags of a wrapping element."""
    rest = _blanked(_OTHER_TAG, text)
    if found := rest.strip():
        number += rest[: rest.index(found)].count("\n")
        raise DataError(f"{path}:{number}: found {short(_one_line(found))}, expected <top>…</top>")


def _xml_topic(block: str, where: str) -> Topic:
    """Parse the text between ``<top>`` and ``</top>``."""
    if "<top>" in block.lower():
        raise DataError(f"{where}: found a second <top> before the </top> of this topic")
    number = _field(block, "num", where)
    query = _field(block, "query", where)
    if query is None:
        query = _field(block, "title", where)
    if number is None or query is None:
        missing = "<num>" if number is None else "<title> or <query>"
        raise DataError(f"{where}: found a topic without {missing}, expected one")
    ceiling = _field(block, "querytweettime", where)
    if ceiling is not None and not (ceiling.isascii() and ceiling.isdigit()):
        raise DataError(
            f"{where}: found {short(ceiling)} in <querytweettime>, expected the id of a tweet"
        )
    query_id = re.sub(r"^number\s*:\s*", "", number, flags=re.IGNORECASE)
    query_id = re.sub(r"^MB0*([0-9]+)$", r"\1", query_id, flags=re.IGNORECASE)
    return Topic(query_id, query, _field(block, "querytime", where) or None, ceiling)


def _field(block: str, name: str, where: str) -> str | None:
    """A tag's text on one line, up to its closing tag or, in old files, the next tag."""
    found = re.split(f"<{name}>", block, flags=re.IGNORECASE)[1:]
    if not found:
        return None
    if len(found) > 1:
        raise DataError(f"{where}: found {len(found)} <{name}> in one topic, expected one")
    closed = re.split(f"</{name}>", found[0], flags=re.IGNORECASE)
    text = closed[0] if len(closed) > 1 else re.split(r"<[A-Za-z]+>", found[0])[0]
    return _one_line(re.sub("|".join(_ENTITIES), lambda match: _ENTITIES[match[0]], text))


def _one_line(text: str) -> str:
    return " ".join(text.split())
