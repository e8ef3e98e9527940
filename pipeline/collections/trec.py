"""TREC files: strict readers of qrels and runs, a writer of runs, and the tie rule.

Readers take plain, ``.gz`` and ``.bz2`` files in UTF-8, with or without a byte order mark, with
either line end. Malformed input raises a :class:`DataError` that begins with ``file:line``.

The tie rule: trec_eval keeps scores in single precision, sorts by score and breaks ties by doc_id,
both descending; it ignores the rank. So :func:`ranked` compares scores in single precision, and
:func:`format_run` writes them with nine digits, which distinguish any two single-precision numbers.
Every reader of the file, in single or double precision, sees the order in which it was written, and
a run has the same measures in memory and in its file.
"""

import bz2
import gzip
import io
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

from indexes.files import atomic_file
from indexes.lines import numbered_lines, short
from indexes.posts import is_doc_id
from pipeline.errors import DataError, UsageError

Run = dict[str, dict[str, float]]  # query_id -> doc_id -> score
Qrels = dict[str, dict[str, int]]  # query_id -> doc_id -> relevance
Value = TypeVar("Value", int, float)

QRELS_COLUMNS = "query_id 0 doc_id relevance"
BEIR_COLUMNS = "query-id corpus-id score"  # Header of BEIR's judgments
RUN_COLUMNS = "query_id Q0 doc_id rank score tag"
# trec_eval allocates a table with an entry for each grade up to the highest one.
HIGHEST_GRADE = 1_000_000

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def read_qrels(path: Path | str) -> Qrels:
    """Read judgments; grades above 0 are relevant.

    Lines are ``query_id 0 doc_id relevance``, or as in BEIR's files ``query_id doc_id relevance``
    after the header :data:`BEIR_COLUMNS`.
    """
    lines = numbered_lines(path, DataError)
    first = next(lines, (1, ""))
    columns = BEIR_COLUMNS if first[1].split() == BEIR_COLUMNS.split() else QRELS_COLUMNS
    rest = lines if columns == BEIR_COLUMNS else chain([first], lines)
    qrels = _read_table(path, rest, columns, lambda fields, where: _grade(fields[-1], where))
    if not qrels:
        raise DataError(f"{path}: found no judgment, expected lines of {QRELS_COLUMNS}")
    return qrels


def read_run(path: Path | str) -> Run:
    """Read a run: ``query_id Q0 doc_id rank score tag`` lines, possibly none.

    As in trec_eval only the score counts: the rank must be a number, but is ignored.
    """
    lines = numbered_lines(path, DataError)
    return _read_table(path, lines, RUN_COLUMNS, lambda fields, where: _score(fields[3:5], where))


def single_precision(scores: Mapping[str, float], query_id: str = "?") -> "array[float]":
    """One topic's scores in single precision, as in trec_eval, in the same order.

    Raises:
        DataError: a score is NaN, or infinite in single precision.
    """
    singles = array("f", scores.values())
    if not all(map(math.isfinite, singles)):
        pairs = zip(scores, singles, strict=True)
        doc_id = next(name for name, single in pairs if not math.isfinite(single))
        raise DataError(
            f"topic {query_id}, document {doc_id}: found the score {scores[doc_id]}, "
            "expected a number between -3.4e38 and 3.4e38"
        )
    return singles


def ranked(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """(doc_id, score) of one topic, best first, by the tie rule."""
    return [(doc_id, scores[doc_id]) for _, doc_id in _ranked(scores)]


class Place(NamedTuple):
    """A post's rank, from 1, and score in a ranking."""

    rank: int
    score: float

    def __str__(self) -> str:
        return f"#{self.rank} ({self.score:.4f})"


def places(scores: Mapping[str, float]) -> dict[str, Place]:
    """Place of each post by its score, best first."""
    return {
        doc_id: Place(rank, score) for rank, (doc_id, score) in enumerate(ranked(scores), start=1)
    }


def best_of(run: Run, hits: int) -> Run:
    """The best ``hits`` of each topic, best first; see :func:`ranked`."""
    return {query_id: dict(ranked(scores)[:hits]) for query_id, scores in run.items()}


def format_run(run: Mapping[str, Mapping[str, float]], tag: str) -> Iterator[str]:
    """Yield a run's lines, without line ends: topics as given, documents by the tie rule.

    Raises:
        UsageError: the tag is not one word.
        DataError: a score is NaN or infinite, or an id is not one word.
    """
    if not is_doc_id(tag):
        raise UsageError(f"the tag of a run: found {short(tag)}, expected one word")
    for query_id, scores in run.items():
        for name in (query_id, *scores):
            if not is_doc_id(name):
                raise DataError(
                    f"topic {short(query_id)}: found the id {short(name)}, "
                    "expected one word, because spaces separate the columns of a run"
                )
        for rank, (score, doc_id) in enumerate(_ranked(scores, query_id), start=1):
            # Adding 0 turns -0 into 0.
            yield f"{query_id} Q0 {doc_id} {rank} {score + 0.0:.9g} {tag}"


def write_run(
    path: Path | str, run: Mapping[str, Mapping[str, float]], tag: str = "tweetrerank"
) -> None:
    """Write a run file atomically, compressed if its name ends in ``.gz`` or ``.bz2``."""
    with written_file(path) as stream:
        stream.writelines(f"{line}\n" for line in format_run(run, tag))


@contextmanager
def written_file(path: Path | str) -> Iterator[IO[str]]:
    """:func:`~indexes.files.atomic_file`, compressed if its name ends in ``.gz`` or ``.bz2``."""
    with atomic_file(path) as stream, _compressed(stream, Path(path).suffix.lower()) as compressed:
        yield compressed


@contextmanager
def _compressed(stream: IO[str], suffix: str) -> Iterator[IO[str]]:
    """A text stream that writes into ``stream``, compressed according to the suffix."""
    compressor: IO[bytes]
    if suffix == ".gz":
        # Without a time stamp the same run gives the same bytes.
        compressor = gzip.GzipFile(filename="", mode="wb", fileobj=stream.buffer, mtime=0)  # type: ignore
    elif suffix == ".bz2":
        compressor = bz2.BZ2File(stream.buffer, "wb")  # type: ignore
    else:
        yield stream
        return
    with io.TextIOWrapper(compressor, encoding="utf-8", newline="\n") as compressed:
        yield compressed


def _ranked(scores: Mapping[str, float], query_id: str = "?") -> list[tuple[float, str]]:
    # Strings compare by code point, in the same order as trec_eval's UTF-8 bytes.
    return sorted(zip(single_precision(scores, query_id), scores, strict=True), reverse=True)


def _read_table(
    path: Path | str,
    lines: Iterable[tuple[int, str]],
    columns: str,
    parse: Callable[[list[str], str], Value],
) -> dict[str, dict[str, Value]]:
    """Read lines with the query_id in the first column and the doc_id in the second or third."""
    expected = len(columns.split())
    doc_column = 1 if columns == BEIR_COLUMNS else 2
    table: dict[str, dict[str, Value]] = {}
    numbers: dict[tuple[str, str], int] = {}
    for number, line in lines:
        fields = line.split()
        if not fields:
            continue
        where = f"{path}:{number}"
        if len(fields) != expected or "\0" in line:
            found = "a NUL byte" if "\0" in line else f"{len(fields)} columns"
            raise DataError(f"{where}: found {found} in {short(line)}, expected {columns}")
        query_id, doc_id = fields[0], fields[doc_column]
        if (first := numbers.setdefault((query_id, doc_id), number)) != number:
            raise DataError(
                f"{where}: found document {doc_id} of topic {query_id} again, "
                f"expected it once; the first is on line {first}"
            )
        table.setdefault(query_id, {})[doc_id] = parse(fields, where)
    return table


def _grade(text: str, where: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text) or len(text) > 9 or abs(int(text)) > HIGHEST_GRADE:
        raise DataError(
            f"{where}: found the relevance {short(text)}, "
            f"expected a whole number from -{HIGHEST_GRADE} to {HIGHEST_GRADE}"
        )
    return int(text)


def _score(rank_and_score: list[str], where: str) -> float:
    rank, score = rank_and_score
    if not _WHOLE_NUMBER.fullmatch(rank):
        raise DataError(f"{where}: found the rank {short(rank)}, expected a whole number")
    if not _NUMBER.fullmatch(score) or not math.isfinite(array("f", [float(score)])[0]):
        raise DataError(
            f"{where}: found the score {short(score)}, expected a number between -3.4e38 and 3.4e38"
        )
    return float(score)
