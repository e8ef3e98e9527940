"""JSON lines and Parquet: parts of files, their rows, and files of rows with scores."""

from __future__ import annotations

import bz2
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple

from indexes.files import write_bytes
from pipeline.batches.rows import OF_POST, OF_QUERY, POSTS, SCORE, Form, Rejected, Row, check
from pipeline.command.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

JSON_LINES, COMPRESSED, PARQUET = "jsonl", "jsonl.gz", "parquet"
SAMPLE = 1000  # First rows of a Parquet file, whose size in memory is taken for that of all
ENDINGS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), JSON_LINES),
    **dict.fromkeys((".jsonl.gz", ".ndjson.gz", ".json.gz"), COMPRESSED),
    **dict.fromkeys((".jsonl.bz2", ".ndjson.bz2", ".json.bz2"), COMPRESSED),
    ".parquet": PARQUET,
}
"""End of a file's name -> format of it, and of the output."""


def format_of(path: Path) -> str | None:
    """The format that a file's name tells, None for other files."""
    name = path.name.lower()
    return next((found for ending, found in ENDINGS.items() if name.endswith(ending)), None)


class Span(NamedTuple):
    """Adjacent rows of a file.

    Attributes:
        start: of JSON lines the first byte, after decompression; of Parquet the first row, from 0.
        stop: the byte, or the row, behind the last.
        first: number of the first line or row, from 1.
        rows: number of rows.
    """

    start: int
    stop: int
    first: int
    rows: int


class Content(NamedTuple):
    """Rows of a span: those that can be read, the others, and of Parquet the former as a table."""

    rows: list[Row]
    rejected: list[Rejected]
    table: pa.Table | None = None


def _spans(
    rows: Iterable[tuple[int, Any]], size: int, query_of: Callable[[Any], Any] | None
) -> Iterator[Span]:
    """Spans of about ``size`` bytes or rows, of rows with the place behind each.

    An empty row does not count. ``query_of`` gives the query of a row where spans end with a query;
    None is of one that cannot be read, which belongs to any.
    """
    start, stop, first, count, last, query = 0, 0, 1, 0, None, None
    for number, (end, row) in enumerate(rows, start=1):
        if count and stop - start >= size:
            before, now = (query or query_of(last), query_of(row)) if query_of else (0, 1)
            query = now or before
            if None not in (before, now) and before != now:
                yield Span(start, stop, first, count)
                start, first, count, query = stop, number, 0, None
        stop, count, last = end, count + bool(row), row
    if count:
        yield Span(start, stop, first, count)


def _keeps_queries(form: Form | None) -> bool:
    return form is not None and not form.is_nested


_OPEN = {".gz": gzip.open, ".bz2": bz2.open}
_DAMAGE = (EOFError, zlib.error, OSError)


def _raise_unless_damage(error: Exception) -> None:
    """Raise errors of the system, which have a number; those of damaged data have none."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error


@dataclass
class _JsonLines:
    place: ClassVar[str] = "line"  # What the numbers of rows count
    _path: Path | None = None
    _stream: IO[bytes] | None = None

    def spans(self, path: Path, size: int, form: Form | None) -> Iterator[Span]:
        return _spans(_lines_of(path), size, _query_of if _keeps_queries(form) else None)

    def read(self, path: Path, span: Span, form: Form | None) -> Content:
        found = Content([], [])
        try:
            for number, line in self._lines(path, span):
                try:
                    row = _parse(line, number)
                    if form:
                        check(row, form)
                    found.rows.append(row)
                except (ValueError, RecursionError) as error:
                    text = line.decode("utf-8", "replace").rstrip("\r\n")
                    found.rejected.append(Rejected(number, str(error), text))
        except _DAMAGE as error:
            _raise_unless_damage(error)
            self._path, number = None, span.first + len(found.rows) + len(found.rejected)
            reason = f"the compressed data are broken or cut off from about here on ({error})"
            found.rejected.append(Rejected(number, reason))
        return found

    def _lines(self, path: Path, span: Span) -> Iterator[tuple[int, bytes]]:
        """Number and content of each line that is not blank."""
        if path != self._path or self._stream is None:
            if self._stream:
                self._stream.close()
            self._path, self._stream = path, _open(path)
        # A compressed stream goes forward to its place, or begins again.
        self._stream.seek(span.start)
        number, place = span.first, span.start
        while place < span.stop and (line := self._stream.readline()):
            if line.strip():
                yield number, line
            number, place = number + 1, place + len(line)


def _open(path: Path) -> IO[bytes]:
    return _OPEN.get(path.suffix.lower(), open)(path, "rb")  # type: ignore[operator]


def _lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """The byte behind each line, and the line without blanks around it."""
    place = 0
    try:
        with _open(path) as stream:
            for line in stream:
                place += len(line)
                yield place, line.strip()
    except _DAMAGE as error:
        _raise_unless_damage(error)
        # Reading the row finds it to be damaged.
        yield sys.maxsize, b"?"


def _parse(line: bytes, number: int) -> Any:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(f"found the byte 0x{byte:02x}, expected UTF-8 text") from None
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"found no JSON: {error}") from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _query_of(line: bytes) -> Any:
    """The query of a line in a tuple, None if it cannot be read."""
    try:
        return (json.loads(line)["query_id"],)
    except (ValueError, RecursionError, KeyError, TypeError):
        return None


class _Parquet:
    place: ClassVar[str] = "row"

    def __init__(self) -> None:
        import pyarrow.parquet

        self._damage = (pyarrow.ArrowException, OSError)
        self._opened: tuple[Path, Any] | None = None
        self._batches: Iterator[tuple[int, Any]] = iter(())
        self._held: tuple[int, Any] | None = None

    def spans(self, path: Path, size: int, form: Form | None) -> Iterator[Span]:
        file = self._file(path)
        rows, count = file.metadata.num_rows, self._rows_of(file, size)
        if _keeps_queries(form) and "query_id" in file.schema_arrow.names:
            return _spans(enumerate(self._query_ids(file), start=1), count, tuple)
        ends = ((first, min(first + count, rows)) for first in range(0, rows, count))
        return (Span(first, stop, first + 1, stop - first) for first, stop in ends)

    def _rows_of(self, file: Any, size: int) -> int:
        """How many rows have about ``size`` bytes in memory; in the file they are encoded."""
        try:
            sample = next(file.iter_batches(SAMPLE, row_groups=[0]), None)
        except self._damage:
            sample = None
        return max(1, size * len(sample) // max(1, sample.nbytes)) if sample else SAMPLE

    def _query_ids(self, file: Any) -> Iterator[tuple[Any]]:
        for group in range(file.metadata.num_row_groups):
            try:
                table = file.read_row_group(group, ["query_id"])
                yield from zip(table.column(0).to_pylist(), strict=True)
            except self._damage:
                # Reading the rows says so.
                yield from repeat((None,), file.metadata.row_group(group).num_rows)

    def read(self, path: Path, span: Span, form: Form | None) -> Content:
        import pyarrow as pa

        parts, found, kept = [self._file(path).schema_arrow.empty_table()], Content([], []), []
        try:
            for batch in self._slices(path, span):
                parts.append(pa.Table.from_batches([batch]))
        except self._damage as error:
            _raise_unless_damage(error)
            self._held = None
            read = sum(map(len, parts))
            reason = f"this row and the next, {span.rows - read} in all, are damaged ({error})"
            found.rejected.append(Rejected(span.first + read, reason))
        table = pa.concat_tables(parts)
        names = [name for name in (*OF_QUERY, *OF_POST, POSTS) if name in table.column_names]
        for place, row in enumerate(table.select(names).to_pylist()):
            try:
                if form:
                    check(row, form)
                found.rows.append(row)
                kept.append(place)
            except ValueError as error:
                found.rejected.append(Rejected(span.first + place, str(error)))
        if len(kept) < len(table):
            table = table.take(pa.array(kept, pa.int64()))
        return found._replace(table=table)

    def _file(self, path: Path) -> Any:
        import pyarrow.parquet as pq

        if self._opened is None or self._opened[0] != path:
            self._held = None
            try:
                self._opened = path, pq.ParquetFile(path)
            except self._damage as error:
                _raise_unless_damage(error)
                raise DataError(f"{path}: found no whole Parquet file ({error})") from None
        return self._opened[1]

    def _slices(self, path: Path, span: Span) -> Iterator[Any]:
        """The rows of a span in batches; goes on from the last span, if it can."""
        file = self._file(path)
        if self._held is None or span.start < self._held[0]:
            self._batches, self._held = _batches_from(file, span.start, span.rows), None
        while True:
            self._held = self._held or next(self._batches, None)
            if self._held is None:
                raise DataError(f"{path}: found fewer rows than when the job was begun")
            first, batch = self._held
            start, stop = max(0, span.start - first), min(len(batch), span.stop - first)
            if start < stop:
                yield batch.slice(start, stop - start)
            if first + len(batch) >= span.stop:
                return
            self._held = None


def _batches_from(file: Any, row: int, size: int) -> Iterator[tuple[int, Any]]:
    """Batches of at most ``size`` rows from the row group with a row on, and their first rows."""
    first = 0
    for group in range(file.metadata.num_row_groups):
        if first + file.metadata.row_group(group).num_rows <= row:
            first += file.metadata.row_group(group).num_rows
            continue
        for batch in file.iter_batches(size, row_groups=[group]):
            yield first, batch
            first += len(batch)


Reader = _JsonLines | _Parquet
"""Reads spans of files; fast for spans in their order, as it keeps its place.

``spans`` gives all rows of a file, in spans of about ``size`` bytes of texts, not compressed; those
of pairs with first-stage scores end where a query ends. ``read`` checks rows for a form, if any.
"""


def reader_for(file_format: str) -> Reader:
    """A reader of a format."""
    if file_format != PARQUET:
        return _JsonLines()
    try:
        return _Parquet()
    except ModuleNotFoundError as error:
        raise DataError(
            f"found no package {error.name}, which reads and writes Parquet; install the extra: "
            "pip install 'tweetrerank[ray]'"
        ) from None


def write(
    path: Path, content: Content, scores: Sequence[float], form: Form, file_format: str
) -> None:
    """Write rows with a score for each post, in order, atomically; their other fields stay."""
    if content.table is not None:
        write_bytes(path, _as_parquet(_with_scores(content.table, scores, form)))
        return
    given = iter(scores)
    for row in content.rows:
        for post in form.posts(row):
            post[SCORE] = next(given)  # type: ignore[index]
    lines = b"".join(map(_line, content.rows))
    write_bytes(path, gzip.compress(lines, 6, mtime=0) if file_format == COMPRESSED else lines)


def _line(row: Row) -> bytes:
    text = json.dumps(row, ensure_ascii=False) + "\n"
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return (json.dumps(row) + "\n").encode()


def _as_parquet(table: pa.Table) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    stream = pa.BufferOutputStream()
    pq.write_table(table, stream)
    return stream.getvalue().to_pybytes()


def _with_scores(table: pa.Table, scores: Sequence[float], form: Form) -> pa.Table:
    import pyarrow as pa

    values = pa.array(scores, pa.float64())
    if not form.is_nested:
        if SCORE in table.column_names:
            table = table.drop_columns([SCORE])
        return table.append_column(SCORE, values)
    place = table.column_names.index(POSTS)
    column = table.column(place).combine_chunks()
    posts = column.flatten()
    parts = zip(posts.type, posts.flatten(), strict=True)
    fields = {field.name: (field, part) for field, part in parts}
    fields[SCORE] = pa.field(SCORE, pa.float64()), values
    kinds, arrays = zip(*fields.values(), strict=True)
    offsets = pa.array(accumulate(column.value_lengths().to_pylist(), initial=0), pa.int32())
    structs = pa.StructArray.from_arrays(arrays, fields=kinds)
    return table.set_column(place, POSTS, pa.ListArray.from_arrays(offsets, structs))
