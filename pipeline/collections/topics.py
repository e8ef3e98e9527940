"""Topics: the queries of a collection, and the readers of their files.

A topic has

* a ``query_id``, one word, which judgments and runs name it by;
* its ``text``, as somebody would type it;
* optionally its ``time`` as in the file, for an index whose posts have dates;
* optionally ``max_doc_id``, the id of the newest post before that time, a whole number: the topic
  sees no later post, in the rounds of feedback neither (``querytweettime`` of TREC Microblog).

Files are TREC Microblog's XML, lines of ``query_id<TAB>text``, or JSON lines, BEIR's
``queries.jsonl`` among them. They may be compressed (``.gz``, ``.bz2``). Malformed input raises a
:class:`DataError` that begins with ``file:line``.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from indexes.lines import numbered_lines, short
from indexes.methods import Topic
from indexes.posts import id_under, is_doc_id, keys_of, parsed, short_json, well_formed
from pipeline.errors import DataError

_STARTS_AS_XML = re.compile(r"\s*<(\?xml|!--|top)", re.IGNORECASE)
_TOPIC = re.compile(r"<top>(.*?)</top>", re.IGNORECASE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_OTHER_TAG = re.compile(r"<(?!/?top>)[^<>]*>", re.IGNORECASE)
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&amp;": "&"}


__all__ = ["Topic", "normalize", "query_id", "read_topics", "topic_of"]


def read_topics(path: Path | str) -> list[Topic]:
    """Read topics in TREC Microblog's XML, as ``query_id<TAB>text`` or JSON lines, in file order.

    JSON objects are as :func:`topic_of` reads them. In XML the id is in ``<num>`` (``Number:
    MB051`` becomes ``51``, as in official qrels), the query in ``<title>`` or ``<query>``.
    """
    lines = list(numbered_lines(path, DataError))
    first = next((line for _, line in lines if line.strip()), "")
    parse = _json_topics if first.lstrip().startswith("{") else _tsv_topics
    if _STARTS_AS_XML.match(first):
        parse = _xml_topics
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
        raise DataError(
            f"{path}: found no topic, expected <top>…</top>, query_id<TAB>text lines or JSON lines"
        )
    return [topic for _, topic in topics.values()]


def topic_of(record: Mapping[str, Any], where: str) -> Topic:
    """The topic of a JSON object or of a row of a table.

    It has the id under ``query_id``, ``qid``, ``_id`` or ``id``, the text under ``text`` or
    ``query``, and optionally ``time`` and ``max_doc_id``; see :mod:`pipeline.collections.topics`.

    Raises:
        DataError: it has another form; begins with ``where``.
    """
    query_id = id_under(("query_id", "qid", "_id", "id"), record, where, DataError)
    text = next((v for key in ("text", "query") if (v := record.get(key)) is not None), None)
    if text is None:
        raise DataError(
            f'{where}: found {keys_of(record)}, expected a text under "text" or "query"'
        )
    time, limit = record.get("time"), record.get("max_doc_id")
    for name, value in (("text", text), ("time", time)):
        if not isinstance(value, str | None):
            raise DataError(f"{where}: found {name} {short_json(value)}, expected a text")
    if limit is not None:
        limit = id_under(("max_doc_id",), record, where, DataError)
    return Topic(query_id, _one_line(text), time, limit)


def _json_topics(path: Path | str, lines: list[tuple[int, str]]) -> Iterator[tuple[int, Topic]]:
    for number, line in lines:
        if line.strip():
            where = f"{path}:{number}"
            yield number, topic_of(parsed(line, where, DataError), where)


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


def normalize(text: str) -> str:
    """The form in which texts of one query are the same."""
    return " ".join(unicodedata.normalize("NFKC", well_formed(text)).casefold().split())


def query_id(normalized: str) -> str:
    """Id of a normalized text: the same in all logs."""
    return f"q{hashlib.sha256(normalized.encode()).hexdigest()[:16]}"
