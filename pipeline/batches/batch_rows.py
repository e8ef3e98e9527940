"""Read and check the rows of a batch job, and write them with scores."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import atomic_file
from tweetrerank.indexes.records import parsed, short

Row = dict[str, Any]
Write = Callable[[Sequence[Row]], object]

POSTS = "posts"
FIRST_SCORE = "first_stage_score"
SCORE = "score"

# Number of rows of a Parquet file that are in memory together
PARQUET_ROWS = 5000
# Largest score of a first stage. It is limited because scores are mixed in single
# precision.
LARGEST_SCORE = 3.4e38

_ID = (str | int, "a text or a whole number")
_TEXT = (str, "a text")
_TYPES: dict[str, tuple[Any, str]] = {
    "query_id": _ID,
    "doc_id": _ID,
    "query": _TEXT,
    "text": _TEXT,
    "url": (str | None, "a text"),
    FIRST_SCORE: (int | float, "a number, as the first row has one"),
}
"""Column -> its type, and the name of the type in messages."""


class RawRow(NamedTuple):
    """A row of a file before it is checked."""

    file: Path
    number: int  # In the file, from 1
    # A line of JSON, a row of Parquet, or the error of a file damaged from here on
    content: bytes | Row | ValueError


class Form(NamedTuple):
    """The properties that all rows of a job share."""

    # Whether a row is a query with its posts. Otherwise it is one pair.
    is_nested: bool
    # Whether every post has a score of the first stage, and the model reads it
    has_first_stage: bool = False
    # Whether the posts of a query are in the order of a first stage. If there are
    # scores, these take precedence.
    in_order: bool = False

    def posts(self, row: Row) -> Sequence[Row]:
        """Return the posts of a row. A pair is its own only post."""
        return row[POSTS] if self.is_nested else [row]

    def all_posts(self, rows: Sequence[Row]) -> list[Row]:
        """Return the posts of all rows."""
        return list(chain.from_iterable(map(self.posts, rows)))

    def read(self, content: bytes | Row | ValueError) -> Row:
        """Return the row that a file has as ``content``, after checking it.

        Raises ValueError with the reason if the row cannot be used.
        """
        row = _parsed(content)
        if self.is_nested:
            _check(POSTS, row.get(POSTS), list, "a list, as in the first row")
        else:
            expected = "nothing, as in the first row"
            _check(POSTS, row.get(POSTS), type(None), expected)
        for name in ("query_id", "query"):
            _check_column(name, row)
        for index, post in enumerate(self.posts(row)):
            place = f"{POSTS}[{index}]" if self.is_nested else ""
            self._check_post(place, post)
        return row

    def _check_post(self, place: str, post: Any) -> None:
        """Raise ValueError if a post cannot be used.

        ``place`` names the post in messages. It is empty for a pair.
        """
        _check(place, post, dict, "an object")
        prefix = f"{place}." if place else ""
        for name in ("doc_id", "text", "url"):
            _check_column(name, post, prefix)
        if self.has_first_stage:
            _check_column(FIRST_SCORE, post, prefix)
        if SCORE in post:
            expected = "no column of this name: rename it"
            _check(prefix + SCORE, post[SCORE], (), expected)


def _parsed(content: bytes | Row | ValueError) -> Row:
    if isinstance(content, ValueError):
        raise content
    if isinstance(content, dict):
        return content
    try:
        line = content.decode("utf-8-sig", "surrogatepass")
    except UnicodeDecodeError:
        raise ValueError(
            "row: found no UTF-8, expected JSON lines, or *.gz if packed"
        ) from None
    return parsed(line, "row", ValueError)


def _check_column(name: str, row: Row, prefix: str = "") -> None:
    kind, expected = _TYPES[name]
    _check(prefix + name, row.get(name), kind, expected)


def _check(name: str, value: Any, kind: Any, expected: str) -> None:
    """Raise ValueError if a value is not of a kind. A bool is of no kind."""
    is_kind = isinstance(value, kind) and not isinstance(value, bool)
    if is_kind and kind == int | float:
        # A whole number may be too large for a float.
        is_kind = -LARGEST_SCORE <= value <= LARGEST_SCORE
    if not is_kind:
        actual = "nothing" if value is None else short(str(value))
        raise ValueError(f"{name}: found {actual}, expected {expected}")


# Reading


def is_parquet(path: Path) -> bool:
    """Return whether a file is a Parquet file by its name."""
    return path.suffix.lower() == ".parquet"


def form_of(files: Sequence[Path]) -> Form:
    """Return the form of the first row that can be read and has a post.

    Raises DataError if there is no such row.
    """
    first_problem = ""
    for raw in _raw_rows(files):
        try:
            is_nested = _parsed(raw.content).get(POSTS) is not None
            form = Form(is_nested, in_order=is_nested)
            posts = form.posts(form.read(raw.content))
        except ValueError as error:
            first_problem = first_problem or f"{raw.file}:{raw.number}: {error}"
            continue
        if posts:
            has_scores = all(post.get(FIRST_SCORE) is not None for post in posts)
            return form._replace(has_first_stage=has_scores)
    no_row = f"{files[0]}: found no row with a post, expected some"
    raise DataError(first_problem or no_row)


def readable_rows(
    files: Sequence[Path], form: Form, rejected: list[Row]
) -> Iterator[Row]:
    """Yield the rows that can be read.

    For each other row, its file, line and reason are appended to ``rejected``.
    """
    for raw in _raw_rows(files):
        try:
            yield form.read(raw.content)
        except ValueError as error:
            rejected.append(
                {
                    "file": str(raw.file),
                    "line": raw.number,
                    "reason": str(error),
                }
            )


def _raw_rows(files: Sequence[Path]) -> Iterator[RawRow]:
    """Yield the rows of all files. The last row of a damaged file has an error."""
    for path in files:
        number = 0
        try:
            for number, content in enumerate(_contents(path), 1):
                if isinstance(content, dict) or content.strip():
                    yield RawRow(path, number, content)
        except (
            EOFError,
            OSError,
            ValueError,  # Also the errors of pyarrow
            zlib.error,
        ) as error:
            problem = f"the file is broken or cut off from about here on ({error})"
            yield RawRow(path, number + 1, ValueError(problem))


def _contents(path: Path) -> Iterator[Any]:
    """Yield the rows of a Parquet file, or the lines of another file."""
    if is_parquet(path):
        import pyarrow.parquet as pq

        for batch in pq.ParquetFile(path).iter_batches(PARQUET_ROWS):
            yield from batch.to_pylist()
        return
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    with opener(path, "rb") as stream:
        yield from stream


# Writing


@contextmanager
def open_writer(path: Path, files: Sequence[Path], form: Form) -> Iterator[Write]:
    """Open an output file, and yield a function that writes rows to it.

    The file appears only when it is complete. Raises DataError if the columns of the
    input files do not fit together.
    """
    with atomic_file(path) as text:
        stream = cast(TextIO, text).buffer
        if not is_parquet(path):
            yield lambda rows: stream.writelines(map(line_of, rows))
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            schema = with_score([pq.read_schema(file) for file in files], form)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            expected = "expected columns of different names, of one type in all files"
            raise DataError(f"--input: {expected}: {error}") from None
        with pq.ParquetWriter(stream, schema) as writer:
            yield lambda rows: writer.write_table(pa.Table.from_pylist(rows, schema))


def line_of(row: Row) -> bytes:
    """Return a row as a line of JSON. Halves of surrogate pairs are escaped."""
    return f"{json.dumps(row, ensure_ascii=False)}\n".encode(errors="backslashreplace")


def with_score(schemas: Sequence[Any], form: Form) -> Any:
    """Return the Parquet schema of rows with scores, given the schemas of all files."""
    import pyarrow as pa

    score = pa.schema([(SCORE, pa.float64())])
    if form.is_nested:
        score = pa.schema([(POSTS, pa.list_(pa.struct(score)))])
    return pa.unify_schemas([*schemas, score], promote_options="permissive")
