"""Read lines, JSON objects and rows of tables with their line numbers.

This module also checks and converts ids and texts, and makes texts for messages. The
message of a DataError names the file and the line.
"""

import bz2
import csv
import gzip
import html
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any

from tweetrerank.indexes.data_error import DataError

Lines = Iterable[tuple[int, str]]
Records = Iterator[tuple[int, dict[str, Any]]]

_ENTITY = re.compile(r"&(#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")

_ARCHIVE = "window.YTD."
"""How a file of Twitter's archive begins, as in ``window.YTD.tweets.part0 = [``."""

_SEPARATORS = re.compile(r"(?:[\s,;]|window\.YTD\.[\w.]+\s*=)*")
"""Pattern of the text between the values of an array or of a file."""

_ROUNDED = re.compile(r"[0-9][.,][0-9]+[eE]\+?[0-9]+")
"""Pattern of a long id that a spreadsheet has rounded."""

_EXCERPT = 99  # Number of characters of a file that a message may quote

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}


def numbered_lines(path: Path | str) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line without its line end) for each line of a file.

    Only ``\\n`` and ``\\r\\n`` end a line. ``.gz`` and ``.bz2`` files are decompressed.
    A byte order mark is skipped. Raises DataError if the file cannot be read, is
    damaged or is not UTF-8.
    """
    opener = _OPENERS.get(Path(path).suffix.lower(), open)
    number = 0
    try:
        with opener(path, "rb") as stream:
            for number, raw in enumerate(stream, start=1):
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, text.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{number}: found the byte 0x{error.object[error.start]:02x} at "
            f"column {error.start + 1}, expected UTF-8 text (a compressed file must "
            "have a name that ends in .gz or .bz2)"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, number, error) from None


def _unreadable(path: Path | str, last_line: int, error: Exception) -> DataError:
    """Return the error for a file that cannot be read after its line ``last_line``."""
    # Errors of damaged data, even OSErrors of gzip and bz2, have no errno.
    if isinstance(error, OSError) and error.errno is not None:
        return DataError(f"{path}: cannot be read: {error.strerror}")
    after = f" after line {last_line}" if last_line else ""
    return DataError(
        f"{path}: the compressed data are broken or cut off{after} ({error}); "
        "get a whole copy of the file"
    )


def read_records(path: Path | str) -> Records:
    """Yield (number of its first line, record) for each record of a file.

    The file may be compressed (``.gz``, ``.bz2``). ``.csv`` and ``.tsv`` files are
    tables with a header. Other files hold JSON: one object on each line, an array of
    objects, or objects that take several lines. Raises DataError for a line of another
    form.
    """
    lines = numbered_lines(path)
    if is_table(path):
        yield from table_rows(path, lines)
        return
    first = _first_filled(lines)
    lines = chain([first], lines)
    if _is_incomplete(first[1]):
        yield from _values(path, lines)
        return
    for number, line in lines:
        if line.strip():
            yield number, parsed(line, f"{path}:{number}")


def _first_filled(lines: Lines) -> tuple[int, str]:
    """Return (number, line) of the next line that is not blank, else (1, "")."""
    return next((line for line in lines if line[1].strip()), (1, ""))


def is_table(path: Path | str) -> bool:
    """Return whether a file is a table by its name. It may be compressed."""
    return re.search(r"\.[ct]sv(\.gz|\.bz2)?$", str(path), re.IGNORECASE) is not None


def table_rows(path: Path | str, lines: Lines) -> Records:
    """Yield (number of its first line, row) for each row of a table with a header.

    Fields are separated by a tab, a comma or a semicolon. If the first line has a
    number and a text, it is no header, and the columns are ``id`` and ``text``. Raises
    DataError for a repeated column, a row of another length or a misplaced quote.
    """
    lines = iter(lines)
    first, header = _first_filled(lines)
    delimiter = max("\t,;", key=header.count)
    rows = _csv_rows(path, first, chain([(first, header)], lines), delimiter)
    number, fields = next(rows)
    columns = [name.strip() for name in fields]
    if len(columns) == 2 and columns[0].isdecimal():
        rows = chain([(number, columns)], rows)
        columns = ["id", "text"]
    _check_columns(columns, f"{path}:{first}")
    for number, row in rows:
        if not any(row):
            continue
        if len(row) != len(columns):
            raise DataError(
                f"{path}:{number}: found {len(row)} columns in "
                f"{short(delimiter.join(row))}, expected {len(columns)}: "
                f"{', '.join(columns)}"
            )
        yield number, dict(zip(columns, row, strict=True))


def _check_columns(columns: Sequence[str], where: str) -> None:
    """Raise DataError if two columns have the same name. Several may have none."""
    counts = Counter(filter(None, columns))
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise DataError(
            f"{where}: found more than one column {', '.join(repeated)}, expected one"
        )


def _csv_rows(
    path: Path | str, first: int, lines: Lines, delimiter: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of its first line, fields) for each row.

    ``first`` is the number of the first of the lines.
    """
    quoting: Any = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    texts = (f"{line}\n" for _, line in lines)
    rows = csv.reader(texts, delimiter=delimiter, quoting=quoting, strict=True)
    before = first - 1
    last = before  # Number of the last line of the previous row
    try:
        for row in rows:
            begin = last + 1
            last = max(begin, before + rows.line_num)
            yield begin, row
    except csv.Error as error:
        raise DataError(
            f"{path}:{last + 1}: found no row of a table ({error}), expected quotes "
            "around a whole field, and those inside it doubled"
        ) from None


def _is_incomplete(line: str) -> bool:
    """Return whether a line begins an array, or a value that ends on a later line."""
    beginning = line.lstrip()
    if not beginning.startswith("{"):
        return beginning.startswith(("[", _ARCHIVE))
    try:
        json.loads(line)
    except (ValueError, RecursionError) as error:
        return getattr(error, "pos", 0) >= len(line.rstrip())
    return False


def _values(path: Path | str, lines: Lines) -> Records:
    """Yield (number of its first line, object) for each object, in an array or not.

    Raises DataError if the text is not JSON.
    """
    numbered = list(lines)
    number = numbered[0][0]
    text = "\n".join([line for _, line in numbered])
    decode = json.JSONDecoder().raw_decode
    position = 0
    begin = 0  # Position of the current value; lines are counted up to there
    in_array = False
    while True:
        position = _SEPARATORS.match(text, position).end()  # type: ignore[union-attr]
        number += text.count("\n", begin, position)
        begin = position
        if position == len(text) and not in_array:
            return
        if text.startswith("]" if in_array else "[", position):
            in_array = not in_array
            position += 1
            continue
        where = f"{path}:{number}"
        try:
            record, position = decode(text, position)
        except (ValueError, RecursionError) as error:
            excerpt = short(text[begin : begin + _EXCERPT])
            raise DataError(
                f"{where}: found {excerpt}, expected JSON ({error})"
            ) from None
        excerpt = text[begin : min(position, begin + _EXCERPT)]
        yield number, _checked_object(record, excerpt, where)


def parsed(
    line: str, where: str, error_type: type[Exception] = DataError
) -> dict[str, Any]:
    """Return the JSON object of a line. Raises ``error_type`` for anything else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise error_type(
            f"{where}: found {short(line)}, expected one JSON object a line ({error})"
        ) from None
    return _checked_object(record, line, where, error_type)


def _checked_object(
    record: Any, text: str, where: str, error_type: type[Exception] = DataError
) -> dict[str, Any]:
    """Return the value of a text. Raises ``error_type`` if it is not an object."""
    if isinstance(record, dict):
        return record
    raise error_type(f"{where}: found {short(text)}, expected a JSON object {{…}}")


def id_under(keys: Sequence[str], record: Mapping[str, Any], where: str) -> str:
    """Return the id under the first of these keys that the record has.

    Raises DataError, with a message that begins with ``where``, if there is no id, or
    if it is not a whole number or a text without spaces.
    """
    key = next((key for key in keys if record.get(key) is not None), None)
    if key is None:
        quoted = ", ".join([f'"{key}"' for key in keys])
        names = " or ".join(quoted.rsplit(", ", 1))
        raise DataError(
            f"{where}: found {keys_of(record)}, expected an id under {names}"
        )
    value = record[key]
    remedy = "expected a whole number or a text without spaces"
    if isinstance(value, str) and _ROUNDED.fullmatch(value):
        remedy = "a long id that a spreadsheet has rounded; export the column as text"
    elif _is_id(value):
        return str(value)
    raise DataError(f"{where}: found {key} {short_json(value)}, {remedy}")


def _is_id(value: Any) -> bool:
    # JSON's true and false are integers in Python.
    if isinstance(value, bool) or not isinstance(value, str | Integral):
        return False
    return is_doc_id(str(value))


def value_of(record: Any, name: str | None) -> Any:
    """Return the first value of a field, None if the field has no value.

    A name with dots, such as ``user.name``, leads into objects within the record.
    """
    if isinstance(record, list):
        return _first_value(record, name)
    if name is None or not isinstance(record, Mapping):
        return None
    if name in record:
        value = record[name]
        has_items = isinstance(value, list) and value
        return value[0] if has_items else value
    outer, dot, inner = name.partition(".")
    if not dot:
        return None
    return value_of(record.get(outer), inner)


def _first_value(records: Iterable[Any], name: str | None) -> Any:
    for record in records:
        value = value_of(record, name)
        if value is not None:
            return value
    return None


def rows_of(table: Any, what: str, ready: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name for messages, row) for each row of a table that a caller passes.

    The table is an iterable of dictionaries or named tuples, or a data frame. Rows are
    yielded as dictionaries. Rows of the type ``ready`` stay as they are. ``what`` names
    the table in messages. Raises DataError for other tables and rows.
    """
    if hasattr(table, "to_dict") and hasattr(table, "columns"):
        table = table.astype(object).where(table.notna(), None).to_dict("records")
    is_single = isinstance(table, str | bytes | Mapping | ready)
    if is_single or not isinstance(table, Iterable):
        raise DataError(f"{what}: found {short_json(table)}, expected rows in a list")
    for number, row in enumerate(table):
        where = f"{what}[{number}]"
        if isinstance(row, ready):
            yield where, row
            continue
        if isinstance(row, tuple) and hasattr(row, "_asdict"):
            row = row._asdict()
        if not isinstance(row, Mapping):
            raise DataError(f"{where}: found {short_json(row)}, expected a dictionary")
        yield where, row


def is_doc_id(text: str) -> bool:
    """Return whether a run file can hold this id.

    It must not be empty, and must have no white space, NUL or unpaired surrogate.
    """
    return text.split() == [text] and "\0" not in text and is_encodable(text)


def well_formed(text: str) -> str:
    """Return the text with unpaired surrogates replaced."""
    if is_encodable(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def unescaped(text: str) -> str:
    """Return the text with HTML's escapes, such as ``&amp;``, decoded once."""
    return _ENTITY.sub(lambda match: html.unescape(match[0]), text)


def is_encodable(text: str) -> bool:
    """Return whether UTF-8 can encode a text, which has no unpaired surrogates then."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def keys_of(record: Mapping[str, Any]) -> str:
    """Return the record's keys for a message, with null values marked."""
    keys = []
    for key, value in list(record.items())[:8]:
        mark = " (null)" if value is None else ""
        keys.append(json.dumps(key) + mark)
    return f"the keys {', '.join(keys)}" if keys else "an empty object"


def short_json(value: object) -> str:
    """Return the beginning of a value for a message, as JSON or by ``repr``."""
    return short(json.dumps(value, ensure_ascii=False, default=repr))


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names and the number of the others, for messages."""
    text = ", ".join(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most:,} more"
    return text


def short(text: str) -> str:
    """Return the beginning of a text in quotes, for messages."""
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:59] + "…")
