"""Readers of topics, the queries of a collection; see :class:`tweetrerank.indexes.methods.Topic`.

Files have one of these forms, and may be compressed (``.gz``, ``.bz2``):

* TREC's XML: ``<top>`` with ``<num>`` and ``<title>`` or ``<query>``, ``<topic number="…">`` with
  ``<query>``, ``<topic>`` with ``<number>`` or ``<identifier>``, ``<query>`` with ``<number>`` and
  ``<text>``; TREC 4's topics have only a ``<desc>``;
* lines of ``query_id<TAB>text`` or ``query_id:text``, or a table with a header (``.csv`` too);
* JSON lines or an array, BEIR's ``queries.jsonl`` and TREC RTS's profiles among them.

Malformed input raises a :class:`DataError` that begins with ``file:line``.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tweetrerank.indexes import records
from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.methods import Topic

_IDS = ("query_id", "qid", "_id", "id", "topid", "topic_id", "number", "num")
_TEXTS = ("text", "query", "title")  # Keys of records and headers

_XML_IDS = ("num", "number", "identifier", "topid", "id")
_XML_TEXTS = {
    "query": r"Query\s*:",
    "title": r"(Topic|Title)\s*:",
    "text": "",
    "desc": r"Description\s*:",
}
"""Elements of the text, the best first, and the label before it in old files."""

_STARTS_AS_XML = re.compile(r"\s*<[?!a-z]", re.IGNORECASE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_OTHER_TAG = re.compile(r"<(?!/?(?:top|topic)\b)[^<>]*>", re.IGNORECASE)
_COLON = re.compile(r"([\w.-]*\d):\s*(\S.*)")


def read_topics(path: Path | str, *more: Path | str) -> list[Topic]:
    """Read topics, in the order of the files, several of which may have the same topics; in XML
    ``Number: MB051`` and ``Number: 051`` become ``51``, as in official judgments."""
    topics: dict[str, tuple[str, Topic]] = {}
    for one in (path, *more):
        in_file: dict[str, tuple[int, Topic]] = {}
        for number, topic in _topics_in(one):
            name, where = topic.query_id, f"{one}:{number}"
            if not records.is_doc_id(name):
                raise DataError(
                    f"{where}: found {records.short(name)}, expected a query_id of one word"
                )
            line, known = in_file.setdefault(name, (number, topic))
            if known is not topic:
                raise DataError(
                    f"{where}: found a second topic {name}, expected every id once; the first is "
                    f"on line {line}"
                )
            place, known = topics.setdefault(name, (where, topic))
            if known.text != topic.text:
                raise DataError(
                    f"{where}: found topic {name} as {records.short(topic.text)}, expected "
                    f"{records.short(known.text)} as in {place}"
                )
        if not in_file:
            raise DataError(
                f"{one}: found no topic, expected <top>…</top>, query_id<TAB>text lines or JSON "
                "lines"
            )
    return [topic for _, topic in topics.values()]


def _topics_in(path: Path | str) -> Iterator[tuple[int, Topic]]:
    """Numbers of lines, and topics."""
    lines = list(records.numbered_lines(path))
    first = next((line for _, line in lines if line.strip()), "")
    if _STARTS_AS_XML.match(first):
        return _xml_topics(path, lines)
    names = {name.strip().lower() for name in re.split(r"[\t,;]", first)}
    has_header = (
        ("\t" in first or records.is_table(path))
        and names & {*_IDS}
        and names & {*_TEXTS}
    )
    if (is_json := first.lstrip().startswith(("{", "["))) or has_header:
        rows = (
            records.read_records(path) if is_json else records.table_rows(path, lines)
        )
        return ((number, topic_of(row, f"{path}:{number}")) for number, row in rows)
    return _tsv_topics(path, lines)


def topic_of(record: Mapping[str, Any], where: str) -> Topic:
    """The topic of a JSON object or of a row of a table, with its id under one of :data:`_IDS`,
    its text under one of :data:`_TEXTS`, and optionally ``time`` and ``max_doc_id``."""
    query_id = records.id_under(_IDS, record, where)
    text = next((v for key in _TEXTS if (v := record.get(key)) is not None), None)
    if text is None:
        raise DataError(
            f'{where}: found {records.keys_of(record)}, expected a text under "text" or "query"'
        )
    for name, value in (("text", text), ("time", time := record.get("time"))):
        if not isinstance(value, str | None):
            raise DataError(
                f"{where}: found {name} {records.short_json(value)}, expected a text"
            )
    if (limit := record.get("max_doc_id")) is not None:
        limit = records.id_under(("max_doc_id",), record, where)
    return Topic(query_id, _one_line(text), time or None, limit)


def as_topics(topics: Any) -> list[Topic]:
    """Topics from Python: query_id -> text, one topic, texts, rows as of :func:`topic_of`, or a
    data frame of these; texts without an id are ``q1``, ``q2``, …."""
    if isinstance(topics, str | Topic):
        topics = [topics]
    if isinstance(topics, Mapping):
        topics = [
            {"query_id": query_id, "text": text} for query_id, text in topics.items()
        ]
    found: dict[str, Topic] = {}
    for number, (where, row) in enumerate(
        records.rows_of(topics, "topics", Topic | str), 1
    ):
        topic = Topic(f"q{number}", row) if isinstance(row, str) else row
        topic = topic if isinstance(topic, Topic) else topic_of(topic, where)
        topic = topic._replace(query_id=str(topic.query_id))
        if not isinstance(topic.text, str) or not records.is_doc_id(topic.query_id):
            raise DataError(
                f"{where}: found {topic!r}, expected an id of one word and a text"
            )
        if found.setdefault(topic.query_id, topic) is not topic:
            raise DataError(
                f"{where}: found a second topic {topic.query_id}, expected every id once"
            )
    return [*found.values()]


def _tsv_topics(
    path: Path | str, lines: list[tuple[int, str]]
) -> Iterator[tuple[int, Topic]]:
    for number, line in ((number, line) for number, line in lines if line.strip()):
        colon = None if "\t" in line else _COLON.fullmatch(line.strip())
        fields = [*colon.groups()] if colon else line.split("\t")
        if len(fields) != 2:
            raise DataError(
                f"{path}:{number}: found {len(fields) - 1} tabs in {records.short(line)}, "
                "expected query_id<TAB>text"
            )
        yield number, Topic(fields[0].strip(), _one_line(fields[1]))


def _xml_topics(
    path: Path | str, lines: list[tuple[int, str]]
) -> Iterator[tuple[int, Topic]]:
    text = _blanked(_COMMENT, "\n".join(line for _, line in lines))
    tag = "top|topic" if re.search(r"<(top|topic)\b", text, re.IGNORECASE) else "query"
    topic = re.compile(rf"<({tag})(\s[^>]*)?>(.*?)</\1>", re.IGNORECASE | re.DOTALL)
    outside = _blanked(_OTHER_TAG, _blanked(topic, text))
    for number, line in enumerate(outside.split("\n"), start=1):
        if (
            found := line.strip()
        ):  # Neither a topic nor the tag of an element around topics
            rest = " ".join(outside[outside.index(found) :].split())
            raise DataError(
                f"{path}:{number}: found {records.short(rest)}, expected <top>…</top>"
            )
    number, end = 1, 0
    for match in topic.finditer(text):
        number += text.count("\n", end, match.start())
        end = match.start()
        yield number, _xml_topic(match[2] or "", match[3], f"{path}:{number}")


def _blanked(pattern: re.Pattern[str], text: str) -> str:
    """The text without matches of the pattern, but with all line ends."""
    return pattern.sub(lambda match: "\n" * match[0].count("\n"), text)


def _xml_topic(attributes: str, block: str, where: str) -> Topic:
    """Parse the attributes of a topic's element and the text within it."""
    if re.search(r"<(top|topic)\b", block, re.IGNORECASE):
        raise DataError(
            f"{where}: found a second <top> before the </top> of this topic"
        )
    given = re.search(
        r"\b(?:number|num|id|qid)\s*=\s*[\"']([^\"']*)", attributes, re.IGNORECASE
    )
    ids = (_field(block, name, where) for name in _XML_IDS)
    number = (
        given[1] if given else next((found for found in ids if found is not None), None)
    )
    texts = ((_field(block, name, where), label) for name, label in _XML_TEXTS.items())
    query, label = next((pair for pair in texts if pair[0] is not None), (None, ""))
    if number is None or query is None:
        missing = "<num>" if number is None else "<title> or <query>"
        raise DataError(f"{where}: found a topic without {missing}, expected one")
    ceiling = _field(block, "querytweettime", where)
    if ceiling is not None and not (ceiling.isascii() and ceiling.isdigit()):
        raise DataError(
            f"{where}: found {records.short(ceiling)} in <querytweettime>, expected the id of a "
            "tweet"
        )
    query_id = re.sub(
        r"^(?:Number\s*:\s*(?:MB)?|MB)0*([0-9]+)$", r"\1", number, flags=re.I
    )
    query_id = re.sub(r"^Number\s*:\s*", "", query_id, flags=re.IGNORECASE)
    query = re.sub(rf"^{label}\s*", "", query, flags=re.IGNORECASE) if label else query
    return Topic(query_id, query, _field(block, "querytime", where) or None, ceiling)


def _field(block: str, name: str, where: str) -> str | None:
    """A tag's text on one line, up to its closing tag or, in old files, the next tag."""
    found = re.split(rf"<{name}(?:\s[^>]*)?>", block, flags=re.IGNORECASE)[1:]
    if not found:
        return None
    if len(found) > 1:
        raise DataError(
            f"{where}: found {len(found)} <{name}> in one topic, expected one"
        )
    closed = re.split(f"</{name}>", found[0], flags=re.IGNORECASE)
    text = closed[0] if len(closed) > 1 else re.split(r"<[A-Za-z]+>", found[0])[0]
    return _one_line(records.unescaped(re.sub(r"<!\[CDATA\[|\]\]>", "", text)))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def normalize(text: str) -> str:
    """The form in which texts of one query are the same."""
    return " ".join(
        unicodedata.normalize("NFKC", records.well_formed(text)).casefold().split()
    )


def query_id(normalized: str) -> str:
    """Id of a normalized text: the same in all logs."""
    return f"q{hashlib.sha256(normalized.encode()).hexdigest()[:16]}"
