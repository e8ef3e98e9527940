"""Lines, JSON objects and rows of tables in files, with their line numbers; texts for messages.

DataError names file and line.
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
_ARCHIVE = "window.YTD."  # Beginning of a file of Twitter's archive: window.YTD.tweets.part0 = [
_BETWEEN = re.compile(
    r"(?:[\s,;]|window\.YTD\.[\w.]+\s*=)*"
)  # Values of an array, or of a file
_ROUNDED = re.compile(
    r"[0-9][.,][0-9]+[eE]\+?[0-9]+"
)  # A long id that a spreadsheet has changed
_OPEN: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}


def numbered_lines(path: Path | str) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line without its line end); only ``\\n`` and ``\\r\\n`` end a line.
    ``.gz`` and ``.bz2`` files are decompressed; a byte order mark is skipped."""
    number = 0
    try:
        with _OPEN.get(Path(path).suffix.lower(), open)(path, "rb") as stream:
            for number, raw in enumerate(stream, start=1):
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, text.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{number}: found the byte 0x{error.object[error.start]:02x} at column "
            f"{error.start + 1}, expected UTF-8 text (a compressed file must have a name that ends "
            "in .gz or .bz2)"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        # The errors of damaged data, among them gzip's and bz2's OSErrors, have no errno.
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        after = f" after line {number}" if number else ""
        raise DataError(
            f"{path}: the compressed data are broken or cut off{after} ({error}); "
            "get a whole copy of the file"
        ) from None


def read_records(path: Path | str) -> Records:
    """Yield (number of its first line, record) from a file, plain or compressed (.gz, .bz2).
    ``.csv`` and ``.tsv`` files are tables with a header. Others are JSON: an object a line, an
    array of objects, or objects over several lines."""
    lines = numbered_lines(path)
    if is_table(path):
        yield from table_rows(path, lines)
        return
    first = next((line for line in lines if line[1].strip()), (1, ""))
    lines = chain([first], lines)
    if _goes_on(first[1]):
        yield from _values(path, lines)
        return
    for number, line in lines:
        if line.strip():
            yield number, parsed(line, f"{path}:{number}")


def is_table(path: Path | str) -> bool:
    """Whether a file's name is that of a table, compressed or not."""
    return re.search(r"\.[ct]sv(\.gz|\.bz2)?$", str(path), re.IGNORECASE) is not None


def table_rows(path: Path | str, lines: Lines) -> Records:
    """The rows of a table under its header; fields are separated by a tab, comma or semicolon. Two
    columns without a header, of which the first is a number, are ``id`` and ``text``."""
    lines = iter(lines)
    first, header = next((line for line in lines if line[1].strip()), (1, ""))
    comma, number = max("\t,;", key=header.count), first - 1
    quoting: Any = csv.QUOTE_NONE if comma == "\t" else csv.QUOTE_MINIMAL
    texts = (f"{line}\n" for _, line in chain([(first, header)], lines))
    rows = csv.reader(texts, delimiter=comma, quoting=quoting, strict=True)
    try:
        names, ahead = [name.strip() for name in next(rows, [])], []
        if len(names) == 2 and names[0].isdecimal():  # No header, but id and text
            names, ahead = ["id", "text"], [names]
        if twice := [
            name for name, count in Counter(filter(None, names)).items() if count > 1
        ]:
            raise DataError(
                f"{path}:{first}: found more than one column {', '.join(twice)}, expected one"
            )
        number = first - len(ahead)
        for row in chain(ahead, rows):
            begin, number = number + 1, max(number + 1, first - 1 + rows.line_num)
            if not any(row):
                continue
            if len(row) != len(names):
                raise DataError(
                    f"{path}:{begin}: found {len(row)} columns in {short(comma.join(row))}, "
                    f"expected {len(names)}: {', '.join(names)}"
                )
            yield begin, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise DataError(
            f"{path}:{number + 1}: found no row of a table ({error}), expected quotes around a "
            "whole field, and those inside it doubled"
        ) from None


def _goes_on(line: str) -> bool:
    """Whether a file's first line is the beginning of a value over several lines, or an array."""
    if not line.lstrip().startswith("{"):
        return line.lstrip().startswith(("[", _ARCHIVE))
    try:
        json.loads(line)
    except (ValueError, RecursionError) as error:
        return getattr(error, "pos", 0) >= len(line.rstrip())
    return False


def _values(path: Path | str, lines: Lines) -> Records:
    """The objects one after the other, alone or in arrays."""
    (number, first), *rest = lines
    text = "\n".join([first, *(line for _, line in rest)])
    decode, place, seen, in_array = json.JSONDecoder().raw_decode, 0, 0, False
    while True:
        place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]
        number, seen = number + text.count("\n", seen, place), place
        if place == len(text) and not in_array:
            return
        if text.startswith("]" if in_array else "[", place):
            in_array, place = not in_array, place + 1
            continue
        where = f"{path}:{number}"
        try:
            record, place = decode(text, place)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{where}: found {short(text[seen : seen + 99])}, expected JSON ({error})"
            ) from None
        yield number, _object(record, text[seen : min(place, seen + 99)], where)


def parsed(
    line: str, where: str, error_type: type[Exception] = DataError
) -> dict[str, Any]:
    """The JSON object of a line; raises ``error_type`` for anything else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise error_type(
            f"{where}: found {short(line)}, expected one JSON object a line ({error})"
        ) from None
    return _object(record, line, where, error_type)


def _object(
    record: Any, text: str, where: str, error: type[Exception] = DataError
) -> dict[str, Any]:
    if isinstance(record, dict):
        return record
    raise error(f"{where}: found {short(text)}, expected a JSON object {{…}}")


def id_under(keys: Sequence[str], record: Mapping[str, Any], where: str) -> str:
    """The id under the first of these keys that the record has."""
    if (
        key := next((key for key in keys if record.get(key) is not None), None)
    ) is None:
        expected = " or ".join(", ".join(f'"{key}"' for key in keys).rsplit(", ", 1))
        raise DataError(
            f"{where}: found {keys_of(record)}, expected an id under {expected}"
        )
    value, expected = record[key], ", expected a whole number or a text without spaces"
    if isinstance(value, str) and _ROUNDED.fullmatch(value):
        expected = (
            ", a long id that a spreadsheet has rounded; export the column as text"
        )
    # In Python JSON's true and false are integers.
    elif (
        not isinstance(value, bool)
        and isinstance(value, str | Integral)
        and is_doc_id(str(value))
    ):
        return str(value)
    raise DataError(f"{where}: found {key} {short_json(value)}{expected}")


def value_of(record: Any, name: str | None) -> Any:
    """The first value of a field, None without one; its name may lead into objects by dots."""
    if isinstance(record, list):
        return next(
            (v for one in record if (v := value_of(one, name)) is not None), None
        )
    if name is None or not isinstance(record, Mapping):
        return None
    if name in record:
        value = record[name]
        return value[0] if isinstance(value, list) and value else value
    first, dot, rest = name.partition(".")
    return value_of(record.get(first), rest) if dot else None


def rows_of(table: Any, what: str, ready: Any) -> Iterator[tuple[str, Any]]:
    """(name for messages, row) of an iterable of dictionaries or named tuples, or a data frame;
    rows that are ``ready`` stay as they are."""
    if hasattr(table, "to_dict") and hasattr(table, "columns"):
        table = table.astype(object).where(table.notna(), None).to_dict("records")
    if isinstance(table, str | bytes | Mapping | ready) or not isinstance(
        table, Iterable
    ):
        raise DataError(f"{what}: found {short_json(table)}, expected rows in a list")
    for number, row in enumerate(table):
        where = f"{what}[{number}]"
        if (
            isinstance(row, tuple)
            and hasattr(row, "_asdict")
            and not isinstance(row, ready)
        ):
            row = row._asdict()
        if not isinstance(row, Mapping | ready):
            raise DataError(f"{where}: found {short_json(row)}, expected a dictionary")
        yield where, row


def is_doc_id(text: str) -> bool:
    """Whether a run file can hold this id: not empty, without white space and NUL."""
    return text.split() == [text] and "\0" not in text and is_encodable(text)


def well_formed(text: str) -> str:
    """The text with unpaired surrogates replaced."""
    if is_encodable(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def unescaped(text: str) -> str:
    """The text with ``&amp;``, ``&#39;``, ``&#x27;`` and so on decoded, once."""
    return _ENTITY.sub(lambda match: html.unescape(match[0]), text)


def is_encodable(text: str) -> bool:
    """Whether a text has no unpaired surrogates, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first of some names, and the number of the others, for messages."""
    return ", ".join(names[:most]) + (
        f" and {len(names) - most:,} more" if names[most:] else ""
    )


def short(text: str) -> str:
    """The beginning of a text in quotes, for messages."""
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:59] + "…")
