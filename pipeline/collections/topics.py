"""Readers of topics, the queries of a collection.

See :class:`tweetrerank.indexes.methods.Topic`. Files, plain or compressed (``.gz``,
``.bz2``), have one of these forms:

* TREC's XML: ``<top>`` with ``<num>`` and ``<title>`` or ``<query>``, ``<topic
  number="…">`` with ``<query>``, ``<topic>`` with ``<number>`` or ``<identifier>``,
  ``<query>`` with ``<number>`` and ``<text>``; TREC 4's topics have only a ``<desc>``
* lines of ``query_id<TAB>text`` or ``query_id:text``, or a table with a header
  (``.csv``, too)
* JSON lines or an array, such as BEIR's ``queries.jsonl`` and TREC RTS's profiles

Malformed input raises a :class:`DataError` that begins with ``file:line``.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tweetrerank.indexes import records
from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.methods import Topic


class DataFrame(Protocol):
    """Data frame, such as pandas'."""

    @property
    def columns(self) -> object:
        """Names of the columns."""

    def notna(self) -> object:
        """Which values are present."""


Row = Mapping[str, object] | tuple[object, ...]
"""Dictionary or named tuple."""

Rows = Iterable[Row] | DataFrame

TopicsLike = (
    str
    | Topic
    | Mapping[str, str]
    | Mapping[int, str]
    | Iterable[str | Row]
    | DataFrame
)
"""One topic or text, query_id -> text, texts, rows, or a data frame."""

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
_TOPIC_TAG = re.compile(r"<(top|topic)\b", re.IGNORECASE)
_OTHER_TAG = re.compile(r"<(?!/?(?:top|topic)\b)[^<>]*>", re.IGNORECASE)
_ID_ATTRIBUTE = re.compile(
    r"\b(?:number|num|id|qid)\s*=\s*[\"']([^\"']*)", re.IGNORECASE
)
_TRACK_NUMBER = re.compile(r"^(?:Number\s*:\s*(?:MB)?|MB)0*([0-9]+)$", re.IGNORECASE)
_NUMBER_LABEL = re.compile(r"^Number\s*:\s*", re.IGNORECASE)
_COLON = re.compile(r"([\w.-]*\d):\s*(\S.*)")


class _Location(NamedTuple):
    """Topic and its place in a file."""

    number: int  # Line number, from 1
    where: str  # ``file:line``
    topic: Topic


def read_topics(path: Path | str, *more: Path | str) -> list[Topic]:
    """Read the topics of one or several files, in the order of the files.

    Several files may have the same topics. In XML ``Number: MB051`` and ``Number: 051``
    become ``51``, as in official judgments. DataError: a file is malformed, or two
    topics have one id.
    """
    topics: dict[str, _Location] = {}
    for source in (path, *more):
        for location in _topics_of_file(source):
            query_id = location.topic.query_id
            first = topics.setdefault(query_id, location)
            if first.topic.text != location.topic.text:
                raise DataError(
                    f"{location.where}: found topic {query_id} as "
                    f"{records.short(location.topic.text)}, expected "
                    f"{records.short(first.topic.text)} as in {first.where}"
                )
    return [location.topic for location in topics.values()]


def _topics_of_file(path: Path | str) -> Iterator[_Location]:
    """Yield the topics of a file; their ids differ."""
    topics: dict[str, _Location] = {}
    for number, topic in _topics_in(path):
        query_id = topic.query_id
        location = _Location(number, f"{path}:{number}", topic)
        if not records.is_doc_id(query_id):
            raise DataError(
                f"{location.where}: found {records.short(query_id)}, expected a "
                "query_id of one word"
            )
        first = topics.setdefault(query_id, location)
        if first is not location:
            raise DataError(
                f"{location.where}: found a second topic {query_id}, expected every "
                f"id once; the first is on line {first.number}"
            )
        yield location
    if not topics:
        raise DataError(
            f"{path}: found no topic, expected <top>…</top>, query_id<TAB>text lines "
            "or JSON lines"
        )


def _topics_in(path: Path | str) -> Iterator[tuple[int, Topic]]:
    """Return (line number, topic) of each topic in a file."""
    lines = list(records.numbered_lines(path))
    first = next((line for _, line in lines if line.strip()), "")
    if _STARTS_AS_XML.match(first):
        return _xml_topics(path, lines)
    if first.lstrip().startswith(("{", "[")):
        return _row_topics(path, records.read_records(path))
    if _is_header(first, path):
        return _row_topics(path, records.table_rows(path, lines))
    return _tsv_topics(path, lines)


def _is_header(line: str, path: Path | str) -> bool:
    """Whether a file's first line is the header of a table."""
    if "\t" not in line and not records.is_table(path):
        return False
    names = {name.strip().lower() for name in re.split(r"[\t,;]", line)}
    return not names.isdisjoint(_IDS) and not names.isdisjoint(_TEXTS)


def _row_topics(path: Path | str, rows: records.Records) -> Iterator[tuple[int, Topic]]:
    for number, row in rows:
        yield number, topic_of(row, f"{path}:{number}")


def topic_of(record: Mapping[str, Any], where: str) -> Topic:
    """Return the topic of a JSON object or of a row of a table.

    The id is under one of :data:`_IDS`, the text under one of :data:`_TEXTS`; ``time``
    and ``max_doc_id`` are optional. DataError begins with ``where``.
    """
    query_id = records.id_under(_IDS, record, where)
    texts = (record.get(key) for key in _TEXTS)
    text = next((text for text in texts if text is not None), None)
    if text is None:
        raise DataError(
            f"{where}: found {records.keys_of(record)}, expected a text under "
            '"text" or "query"'
        )
    time = record.get("time")
    for name, value in (("text", text), ("time", time)):
        if not isinstance(value, str | None):
            raise DataError(
                f"{where}: found {name} {records.short_json(value)}, expected a text"
            )
    limit = record.get("max_doc_id")
    if limit is not None:
        limit = records.id_under(("max_doc_id",), record, where)
    return Topic(query_id, _one_line(text), time or None, limit)


def as_topics(topics: TopicsLike) -> list[Topic]:
    """Return topics from Python.

    These are query_id -> text, one topic, texts, rows as of :func:`topic_of`, or a data
    frame of these. Texts without an id are ``q1``, ``q2``, …. DataError: a row is
    malformed, or two topics have one id.
    """
    table: Any = topics
    if isinstance(topics, str | Topic):
        table = [topics]
    elif isinstance(topics, Mapping):
        table = [
            {"query_id": query_id, "text": text} for query_id, text in topics.items()
        ]
    by_id: dict[str, Topic] = {}
    rows = records.rows_of(table, "topics", Topic | str)
    for number, (where, row) in enumerate(rows, start=1):
        topic = _as_topic(row, number, where)
        if by_id.setdefault(topic.query_id, topic) is not topic:
            raise DataError(
                f"{where}: found a second topic {topic.query_id}, expected every id "
                "once"
            )
    return list(by_id.values())


def _as_topic(row: Any, number: int, where: str) -> Topic:
    """Return the topic of a row, the ``number``-th, from 1."""
    if isinstance(row, str):
        topic = Topic(f"q{number}", row)
    elif isinstance(row, Topic):
        topic = row
    else:
        topic = topic_of(row, where)
    topic = topic._replace(query_id=str(topic.query_id))
    if not isinstance(topic.text, str) or not records.is_doc_id(topic.query_id):
        raise DataError(
            f"{where}: found {topic!r}, expected an id of one word and a text"
        )
    return topic


def _tsv_topics(
    path: Path | str, lines: list[tuple[int, str]]
) -> Iterator[tuple[int, Topic]]:
    for number, line in lines:
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) == 1:
            with_colon = _COLON.fullmatch(line.strip())
            if with_colon:
                fields = list(with_colon.groups())
        if len(fields) != 2:
            raise DataError(
                f"{path}:{number}: found {len(fields) - 1} tabs in "
                f"{records.short(line)}, expected query_id<TAB>text"
            )
        yield number, Topic(fields[0].strip(), _one_line(fields[1]))


def _xml_topics(
    path: Path | str, lines: list[tuple[int, str]]
) -> Iterator[tuple[int, Topic]]:
    text = _blanked(_COMMENT, "\n".join(line for _, line in lines))
    tag = "top|topic" if _TOPIC_TAG.search(text) else "query"
    element = re.compile(rf"<({tag})(\s[^>]*)?>(.*?)</\1>", re.IGNORECASE | re.DOTALL)
    _check_outside(path, _blanked(element, text))
    number = 1
    end = 0
    for match in element.finditer(text):
        number += text.count("\n", end, match.start())
        end = match.start()
        yield number, _xml_topic(match[2] or "", match[3], f"{path}:{number}")


def _check_outside(path: Path | str, text: str) -> None:
    """Check that the text around the topics has only tags of elements around them."""
    text = _blanked(_OTHER_TAG, text)
    for number, line in enumerate(text.split("\n"), start=1):
        stray = line.strip()
        if stray:
            following = _one_line(text[text.index(stray) :])
            raise DataError(
                f"{path}:{number}: found {records.short(following)}, expected "
                "<top>…</top>"
            )


def _blanked(pattern: re.Pattern[str], text: str) -> str:
    """Return the text without the pattern's matches, whose line ends stay."""
    return pattern.sub(lambda match: "\n" * match[0].count("\n"), text)


def _xml_topic(attributes: str, block: str, where: str) -> Topic:
    """Parse the attributes and the content of a topic's element."""
    if _TOPIC_TAG.search(block):
        raise DataError(
            f"{where}: found a second <top> before the </top> of this topic"
        )
    number = _xml_number(attributes, block, where)
    text = _xml_text(block, where)
    if number is None or text is None:
        missing = "<num>" if number is None else "<title> or <query>"
        raise DataError(f"{where}: found a topic without {missing}, expected one")
    limit = _field(block, "querytweettime", where)
    if limit is not None and not (limit.isascii() and limit.isdigit()):
        raise DataError(
            f"{where}: found {records.short(limit)} in <querytweettime>, expected the "
            "id of a tweet"
        )
    query_id = _NUMBER_LABEL.sub("", _TRACK_NUMBER.sub(r"\1", number))
    return Topic(query_id, text, _field(block, "querytime", where) or None, limit)


def _xml_number(attributes: str, block: str, where: str) -> str | None:
    """The id of a topic's element, by an attribute or by an element within it."""
    attribute = _ID_ATTRIBUTE.search(attributes)
    if attribute:
        return attribute[1]
    for name in _XML_IDS:
        number = _field(block, name, where)
        if number is not None:
            return number
    return None


def _xml_text(block: str, where: str) -> str | None:
    """The text of a topic's element, without an old file's label."""
    for name, label in _XML_TEXTS.items():
        text = _field(block, name, where)
        if text is not None:
            # Without a label the text starts with no space.
            return re.sub(rf"^{label}\s*", "", text, flags=re.IGNORECASE)
    return None


def _field(block: str, name: str, where: str) -> str | None:
    """A tag's text on one line, up to its closing tag.

    In old files it ends at the next tag.
    """
    texts = re.split(rf"<{name}(?:\s[^>]*)?>", block, flags=re.IGNORECASE)[1:]
    if not texts:
        return None
    if len(texts) > 1:
        raise DataError(
            f"{where}: found {len(texts)} <{name}> in one topic, expected one"
        )
    text, *after = re.split(f"</{name}>", texts[0], flags=re.IGNORECASE)
    if not after:
        text = re.split(r"<[A-Za-z]+>", text)[0]
    return _one_line(records.unescaped(re.sub(r"<!\[CDATA\[|\]\]>", "", text)))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def normalize(text: str) -> str:
    """Return the form that texts of one query share.

    NFKC, case folded, with single spaces.
    """
    composed = unicodedata.normalize("NFKC", records.well_formed(text))
    return _one_line(composed.casefold())


def query_id(normalized: str) -> str:
    """Return the id of a normalized text: the same in all logs."""
    return f"q{hashlib.sha256(normalized.encode()).hexdigest()[:16]}"
