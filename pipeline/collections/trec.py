"""TREC files: strict readers of topics, qrels and runs, a writer of runs, and the one tie rule.

Readers take plain, ``.gz`` and ``.bz2`` files in UTF-8, with or without a byte order mark, with
either line end. What they cannot use is a :class:`DataError` that starts with ``file:line``.

The tie rule: trec_eval keeps scores in single precision, sorts by score and breaks ties by doc_id,
both descending; it never looks at the rank. So a score here *is* its nearest single-precision
number: :func:`ranked` compares those, :func:`format_run` prints those, with the nine digits that
tell any two of them apart. Whatever reads the file, in single or in double precision, sees the
order in which it was written, and evaluating a run in memory or from its file is the same.
"""

import bz2
import gzip
import io
import math
import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

from indexes.files import atomic_file
from indexes.posts import is_doc_id
from pipeline.collections.lines import numbered_lines, short
from pipeline.collections.topics import Topic, read_topics
from pipeline.command.errors import DataError, UsageError

__all__ = [
    "Qrel", "Qrels", "Run", "ScoredDoc", "Topic", "format_run", "ranked", "read_qrels",
    "read_run", "read_topics", "single_precision", "write_run",
]  # fmt: skip

Run = dict[str, dict[str, float]]  # query_id -> doc_id -> score
Qrels = dict[str, dict[str, int]]  # query_id -> doc_id -> relevance
Value = TypeVar("Value", int, float)

QRELS_COLUMNS = "query_id 0 doc_id relevance"
RUN_COLUMNS = "query_id Q0 doc_id rank score tag"
# trec_eval makes a table with an entry for each grade up to the highest one.
HIGHEST_GRADE = 1_000_000

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Qrel(NamedTuple):
    """One judgment; a relevance of 1 or more is relevant, 0 or less is not."""

    query_id: str
    doc_id: str
    relevance: int


class ScoredDoc(NamedTuple):
    """One line of a run, without the rank, which follows from the scores."""

    query_id: str
    doc_id: str
    score: float


def read_qrels(path: Path | str) -> Qrels:
    """Read judgments: ``query_id 0 doc_id relevance`` lines; grades below 0 are allowed.

    Raises:
        DataError: there is no judgment, a line is malformed, or a document is judged twice.
    """
    qrels = _read_table(path, QRELS_COLUMNS, lambda fields, where: _grade(fields[3], where))
    if not qrels:
        raise DataError(f"{path}: found no judgment, expected lines of {QRELS_COLUMNS}")
    return qrels


def read_run(path: Path | str) -> Run:
    """Read a run: ``query_id Q0 doc_id rank score tag`` lines.

    As for trec_eval only the score decides: the rank must be a number, but is ignored. A run
    without a line is a run without results.

    Raises:
        DataError: a line is malformed, a score is NaN or infinite, or a document comes twice.
    """
    return _read_table(path, RUN_COLUMNS, lambda fields, where: _score(fields[3:5], where))


def single_precision(scores: Mapping[str, float], query_id: str = "?") -> "array[float]":
    """One topic's scores as trec_eval keeps them, in the same order.

    Raises:
        DataError: a score is NaN, or infinite in single precision.
    """
    singles = array("f", scores.values())
    if not all(map(math.isfinite, singles)):
        doc_id, score = next(
            item for item, single in zip(scores.items(), singles, strict=True)
            if not math.isfinite(single)
        )  # fmt: skip
        raise DataError(
            f"topic {query_id}, document {doc_id}: found the score {score}, "
            "expected a number between -3.4e38 and 3.4e38"
        )
    return singles


def ranked(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """(doc_id, score) of one topic, best first: by score, ties by doc_id, both descending.

    Scores are compared in single precision, as trec_eval does.

    Raises:
        DataError: a score is NaN or infinite.
    """
    return [(doc_id, scores[doc_id]) for _, doc_id in _ranked(scores)]


def best_of(run: Run, hits: int) -> Run:
    """The best ``hits`` of each topic, best first; see :func:`ranked`."""
    return {query_id: dict(ranked(scores)[:hits]) for query_id, scores in run.items()}


def format_run(run: Mapping[str, Mapping[str, float]], tag: str) -> Iterator[str]:
    """Yield a run's lines, without line ends: topics as given, documents by the tie rule.

    Raises:
        UsageError: the tag is not one word.
        DataError: a score is NaN or infinite, or an id cannot stand in a run file.
    """
    if not is_doc_id(tag):
        raise UsageError(f"the tag of a run: found {short(tag)}, expected one word")
    for query_id, scores in run.items():
        for name in (query_id, *scores):
            if not is_doc_id(name):
                raise DataError(
                    f"topic {short(query_id)}: found the id {short(name)}, "
                    "expected one word, as columns of a run are split at spaces"
                )
        for rank, (score, doc_id) in enumerate(_ranked(scores, query_id), start=1):
            # Adding 0 turns -0 into 0.
            yield f"{query_id} Q0 {doc_id} {rank} {score + 0.0:.9g} {tag}"


def write_run(path: Path | str, run: Mapping[str, Mapping[str, float]], tag: str) -> None:
    """Write a run file, compressed if its name ends in ``.gz`` or ``.bz2``.

    It appears whole or not at all, whatever was there before stays until then.

    Raises:
        UsageError, DataError: as :func:`format_run` does.
    """
    with atomic_file(path) as stream, _packed(stream, Path(path).suffix.lower()) as packed:
        packed.writelines(f"{line}\n" for line in format_run(run, tag))


@contextmanager
def _packed(stream: IO[str], suffix: str) -> Iterator[IO[str]]:
    """A text stream that goes into ``stream`` compressed as the name's suffix says."""
    packer: IO[bytes]
    if suffix == ".gz":
        # Without a time stamp the same run gives the same bytes.
        packer = gzip.GzipFile(filename="", mode="wb", fileobj=stream.buffer, mtime=0)  # type: ignore
    elif suffix == ".bz2":
        packer = bz2.BZ2File(stream.buffer, "wb")  # type: ignore
    else:
        yield stream
        return
    with io.TextIOWrapper(packer, encoding="utf-8", newline="\n") as packed:
        yield packed


def _ranked(scores: Mapping[str, float], query_id: str = "?") -> list[tuple[float, str]]:
    # Strings compare by code point, which is the order of their UTF-8 bytes, trec_eval's.
    return sorted(zip(single_precision(scores, query_id), scores, strict=True), reverse=True)


def _read_table(
    path: Path | str, columns: str, parse: Callable[[list[str], str], Value]
) -> dict[str, dict[str, Value]]:
    """Read lines that have the query_id first and the doc_id third; blank lines are skipped."""
    expected = len(columns.split())
    table: dict[str, dict[str, Value]] = {}
    numbers: dict[tuple[str, str], int] = {}
    for number, line in numbered_lines(path):
        fields = line.split()
        if not fields:
            continue
        where = f"{path}:{number}"
        if len(fields) != expected or "\0" in line:
            found = "a NUL byte" if "\0" in line else f"{len(fields)} columns"
            raise DataError(f"{where}: found {found} in {short(line)}, expected {columns}")
        query_id, doc_id = fields[0], fields[2]
        if (first := numbers.setdefault((query_id, doc_id), number)) != number:
            raise DataError(
                f"{where}: found document {doc_id} of topic {query_id} again, "
                f"expected it once; it is on line {first} already"
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
