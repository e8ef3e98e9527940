"""Read topics, the queries of a collection.

See :class:`tweetrerank.indexes.methods.Topic`. A file may be compressed (``.gz``,
``.bz2``). It has one of these forms:

* TREC's XML, in which a topic is one of the following: ``<top>`` with ``<num>`` and
  ``<title>`` or ``<query>``, ``<topic number="…">`` with ``<query>``, ``<topic>`` with
  ``<number>`` or ``<identifier>``, or ``<query>`` with ``<number>`` and ``<text>``. The
  topics of TREC 4 have only a ``<desc>``.
* Lines of ``query_id<TAB>text`` or ``query_id:text``, or a table with a header, which
  may be a ``.csv`` file.
* JSON lines or a JSON array, such as BEIR's ``queries.jsonl`` and the profiles of TREC
  RTS.

For malformed input, the functions raise a :class:`DataError` whose message begins with
``file:line``.
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
    """A data frame, such as one of pandas."""

    @property
    def columns(self) -> object:
        """Names of the columns."""

    def notna(self) -> object:
        """Return which values are present."""


Row = Mapping[str, object] | tuple[object, ...]
"""A dictionary or a named tuple."""

Rows = Iterable[Row] | DataFrame

TopicsLike = (
    str
    | Topic
    | Mapping[str, str]
    | Mapping[int, str]
    | Iterable[str | Row]
    | DataFrame
)
"""Topics as one topic, one text, texts, rows, a data frame, or query_id -> text."""

_IDS = ("query_id", "qid", "_id", "id", "topid", "topic_id", "number", "num")
_TEXTS = ("text", "query", "title")  # Keys of records and headers

_XML_IDS = ("num", "number", "identifier", "topid", "id")
_XML_TEXTS = {
    "query": r"Query\s*:",
    "title": r"(Topic|Title)\s*:",
    "text": "",
    "desc": r"Description\s*:",
}
"""Element of the text, the preferred one first -> label before it in old files."""

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
    """A topic and its place in a file."""

    number: int  # Line number, from 1
    where: str  # ``file:line``
    topic: Topic


def read_topics(path: Path | str, *more: Path | str) -> list[Topic]:
    """Read the topics of one or several files, in the order of the files.

    Several files may have the same topics. In XML, ``Number: MB051`` and ``Number:
    051`` become ``51``, as in official judgments. Raises DataError if a file is
    malformed, or if two different topics have the same id.
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
    """Yield the topics of a file.

    Raises DataError if an id is repeated or is not one word, or if there is no topic.
    """
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
    """Return whether a file's first line is the header of a table."""
    if "\t" not in line and not records.is_table(path):
        return False
    names = {name.strip().lower() for name in re.split(r"[\t,;]", line)}
    return not names.isdisjoint(_IDS) and not names.isdisjoint(_TEXTS)


def _row_topics(path: Path | str, rows: records.Records) -> Iterator[tuple[int, Topic]]:
    for number, row in rows:
        yield number, topic_of(row, f"{path}:{number}")


def topic_of(record: Mapping[str, Any], where: str) -> Topic:
    """Return the topic of a JSON object or of a row of a table.

    The id has one of the keys :data:`_IDS`, and the text one of :data:`_TEXTS`. The
    keys ``time`` and ``max_doc_id`` are optional. Raises DataError, with a message that
    begins with ``where``, if the record has another form.
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
    """Return the topics that a caller passes in any form of :data:`TopicsLike`.

    For the keys of rows and the columns of a data frame see :func:`topic_of`. Texts
    without an id get the ids ``q1``, ``q2``, … Raises DataError if a row is malformed,
    or if two topics have the same id.
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
    """Return the topic of a row. ``number`` is the number of the row, from 1."""
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
    """Raise DataError if anything but tags is left outside the topics."""
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
    """Return the text without the pattern's matches.

    The line ends in the matches stay, so that line numbers do not change.
    """
    return pattern.sub(lambda match: "\n" * match[0].count("\n"), text)


def _xml_topic(attributes: str, block: str, where: str) -> Topic:
    """Return the topic of an XML element, given its attributes and its content."""
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
    """Return the id of a topic from an attribute or from an inner element.

    The result is None without either.
    """
    attribute = _ID_ATTRIBUTE.search(attributes)
    if attribute:
        return attribute[1]
    for name in _XML_IDS:
        number = _field(block, name, where)
        if number is not None:
            return number
    return None


def _xml_text(block: str, where: str) -> str | None:
    """Return the text of a topic without an old label, None without a text."""
    for name, label in _XML_TEXTS.items():
        text = _field(block, name, where)
        if text is not None:
            # The text does not start with a space, so an empty label removes nothing.
            return re.sub(rf"^{label}\s*", "", text, flags=re.IGNORECASE)
    return None


def _field(block: str, name: str, where: str) -> str | None:
    """Return the text of an element on one line, None without the element.

    The text ends at the closing tag. In old files, which have no closing tags, it ends
    at the next tag. Raises DataError if the element occurs more than once.
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
    """Return a text in the form that all spellings of one query share.

    It is in Unicode's form NFKC, case-folded, and has single spaces.
    """
    composed = unicodedata.normalize("NFKC", records.well_formed(text))
    return _one_line(composed.casefold())


def query_id(normalized: str) -> str:
    """Return the id of a query, made from its normalized text.

    The same text has the same id in all logs.
    """
    return f"q{hashlib.sha256(normalized.encode()).hexdigest()[:16]}"
