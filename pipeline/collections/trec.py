"""Read TREC's judgments and runs, write runs, and rank posts as trec_eval does.

Files are in UTF-8. They may be compressed (``.gz``, ``.bz2``), may begin with a byte
order mark, and may have either line end. For malformed input, the functions raise a
:class:`DataError` whose message begins with ``file:line``.

Tie rule: trec_eval keeps scores in single precision and ignores the rank. It sorts by
descending score, and breaks ties by descending doc_id. So :func:`ranked` compares
scores in single precision. :func:`format_run` writes them with nine digits, which
distinguish any two single-precision numbers. Whoever reads the file, in single or
double precision, therefore sees the order in which it was written. A run has the same
measures in memory and in its file.
"""

import bz2
import gzip
import io
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO, TypeVar, cast

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import atomic_file
from tweetrerank.indexes.records import is_doc_id, numbered_lines, short
from tweetrerank.pipeline.text import say
from tweetrerank.pipeline.usage_error import UsageError

Run = dict[str, dict[str, float]]  # query_id -> doc_id -> score
Qrels = dict[str, dict[str, int]]  # query_id -> doc_id -> relevance
Value = TypeVar("Value")

QRELS_COLUMNS = "query_id 0 doc_id relevance"
RUN_COLUMNS = "query_id Q0 doc_id rank score tag"
NAMES = (
    ("query_id", "query-id", "qid", "topic", "topic_id"),
    ("doc_id", "corpus-id", "docno", "docid", "doc-id", "id"),
    ("relevance", "label", "score", "rel", "grade"),
)
"""Allowed names of the columns of a table of judgments, including the names of BEIR.

The columns are the query's id, the post's id and the grade.
"""

# The limit saves memory: trec_eval allocates an entry for each grade up to the highest.
HIGHEST_GRADE = 1_000_000

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TRACK = re.compile(r"(?:[A-Za-z]{1,6}|[A-Za-z]+[0-9]*[-_:])?0*([0-9]+)")


class _Columns(NamedTuple):
    """The columns of a table that has a value for each query and post."""

    names: str  # Names of all columns for messages, separated by spaces
    query: int  # Index of the query_id's column
    doc: int  # Index of the doc_id's column
    value: int  # Index of the value's column
    comma: str | None = None  # Separator of columns; None means spaces and tabs


_QRELS = _Columns(QRELS_COLUMNS, query=0, doc=2, value=3)
_RUN = _Columns(RUN_COLUMNS, query=0, doc=2, value=4)


def read_qrels(path: Path | str) -> Qrels:
    """Read judgments from a file.

    The file has either lines of ``query_id 0 doc_id relevance`` or a table with a
    header, as BEIR's files have. A header has one of the :data:`NAMES` of each column.
    The columns of a table are separated by spaces, tabs, commas or semicolons. Raises
    DataError if the file is malformed or has no judgments.
    """
    lines = numbered_lines(path)
    first = next(lines, (1, ""))
    columns = _header(first[1])
    if columns is None:
        qrels = _read_table(path, chain([first], lines), _QRELS, grade_of)
    else:
        qrels = _read_table(path, lines, columns, grade_of)
    if not qrels:
        raise DataError(f"{path}: found no judgment, expected lines of {QRELS_COLUMNS}")
    return qrels


def _header(line: str) -> _Columns | None:
    """Return the columns of a header of judgments, None if the line is no header."""
    comma = None
    if "\t" not in line:
        comma = next((mark for mark in ",;" if mark in line), None)
    header = [name.strip(' "').lower() for name in line.split(comma)]
    places = []
    for names in NAMES:
        present = [name for name in names if name in header]
        if not present:
            return None
        places.append(header.index(present[0]))
    query, doc, value = places
    return _Columns(" ".join(header), query, doc, value, comma)


def joined_qrels(
    paths: Sequence[Path], query_ids: Iterable[str] | None = None
) -> Qrels:
    """Return the judgments of several files together.

    With ``query_ids``, topics are renamed to these ids by :func:`aligned`. If files
    give a post different grades, the last one counts, and the number of such grades is
    printed on stderr.
    """
    joined: Qrels = {}
    changed = 0
    known_ids = None if query_ids is None else list(query_ids)
    for path in paths:
        qrels = read_qrels(path)
        if known_ids is not None:
            qrels = aligned(qrels, known_ids, str(path))
        for query_id, grades in qrels.items():
            earlier = joined.setdefault(query_id, {})
            for doc_id, grade in grades.items():
                changed += earlier.get(doc_id, grade) != grade
            earlier.update(grades)
    if changed:
        files = ", ".join(map(str, paths))
        say(f"{files}: {changed} grades differ, those of the later file count")
    return joined


def merged(
    tables: Iterable[Mapping[str, Mapping[str, Value]]],
) -> dict[str, dict[str, Value]]:
    """Return several runs or judgments as one.

    If a document has several values for a topic, the last one counts.
    """
    result: dict[str, dict[str, Value]] = {}
    for table in tables:
        for query_id, values in table.items():
            result.setdefault(query_id, {}).update(values)
    return result


def read_run(path: Path | str) -> Run:
    """Read a run, a file with lines of ``query_id Q0 doc_id rank score tag``.

    Only the score counts and not the rank, as in trec_eval. The file may be empty.
    Raises DataError if it is malformed.
    """
    return _read_table(path, numbered_lines(path), _RUN, _score)


def aligned(
    table: Mapping[str, Value], query_ids: Iterable[str], what: str
) -> dict[str, Value]:
    """Return a run or judgments with the topics' own ids.

    ``MB051``, ``051`` and ``51`` count as the same topic. So if the topics have one of
    these ids and ``table`` has another, the id in the table is replaced. Unless
    ``what`` is empty, a message on stderr tells this, with ``what`` as the name of the
    table.
    """
    renamed = _other_forms(table, dict.fromkeys(query_ids))
    if renamed and what:
        example, topic_id = next(iter(renamed.items()))
        say(
            f"{what}: {len(renamed)} ids of topics have another form than the topics', "
            f"and are taken for theirs ({example} for {topic_id})"
        )
    return {renamed.get(query_id, query_id): value for query_id, value in table.items()}


def _other_forms(
    table: Mapping[str, object], topic_ids: Mapping[str, None]
) -> dict[str, str]:
    """Return the ids of a table that have to be replaced, with the topics' own ids.

    The result is empty if two ids of the table would become the same, because then it
    is not clear which topic is meant.
    """
    forms: dict[str, list[str]] = {}
    for query_id in topic_ids:
        forms.setdefault(_bare(query_id), []).append(query_id)
    renamed: dict[str, str] = {}
    for query_id in table:
        same_number = forms.get(_bare(query_id), [])
        if query_id in topic_ids or len(same_number) != 1 or same_number[0] in table:
            continue
        # If both ids have a prefix, the prefixes differ and belong to different tracks.
        if same_number[0].isdecimal() or query_id.isdecimal():
            renamed[query_id] = same_number[0]
    if len(set(renamed.values())) < len(renamed):
        return {}
    return renamed


def _bare(query_id: str) -> str:
    """Return the number in a topic's id, without the prefix of a track.

    An id of another form is returned as it is.
    """
    number = _TRACK.fullmatch(query_id)
    return number[1] if number else query_id


def run_of(run: Any) -> Run:
    """Return the run that a caller passes as a mapping or as a ranking.

    A mapping is query_id -> doc_id -> score. Its ids may be whole numbers, which become
    texts. Raises UsageError if the run has another form.
    """
    run = getattr(run, "run", run)
    try:
        return {
            _checked_id(query_id): _scores_of(scores)
            for query_id, scores in run.items()
        }
    except (AttributeError, TypeError) as error:
        raise UsageError(
            f"`run`: found {short(repr(run))} ({error}), expected query_id -> doc_id "
            "-> score"
        ) from None


def _scores_of(scores: Any) -> dict[str, float]:
    """Return the scores of one topic, by ids that are texts."""
    types = set(map(type, scores)).union(map(type, scores.values()))
    if types == {str, float}:  # The fast path for the project's runs
        return dict(scores)
    return {
        _checked_id(doc_id): _checked_score(score) for doc_id, score in scores.items()
    }


def _checked_id(value: Any) -> str:
    # In Python bool is a kind of int.
    if isinstance(value, bool) or not isinstance(value, str | Integral):
        raise TypeError(f"{value!r} is no id")
    return str(value)


def _checked_score(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{value!r} is no score")
    return float(value)


def single_precision(
    scores: Mapping[str, float], query_id: str = "?"
) -> "array[float]":
    """Return the scores of one topic in single precision and in the given order.

    Raises DataError if a score is NaN, or is infinite in single precision.
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
    """Return the pairs (doc_id, score) of one topic, best first, by the tie rule.

    Raises DataError if a score is not finite.
    """
    return [(doc_id, scores[doc_id]) for _, doc_id in _ranked(scores)]


class Place(NamedTuple):
    """The rank of a post in a ranking, from 1, and its score."""

    rank: int
    score: float


def places(scores: Mapping[str, float]) -> dict[str, Place]:
    """Return the place of each post by doc_id, best first."""
    return {
        doc_id: Place(rank, score)
        for rank, (doc_id, score) in enumerate(ranked(scores), 1)
    }


def best_of(run: Run, hits: int) -> Run:
    """Return the best ``hits`` posts of each topic, ordered by :func:`ranked`."""
    return {query_id: dict(ranked(scores)[:hits]) for query_id, scores in run.items()}


def format_run(run: Mapping[str, Mapping[str, float]], tag: str) -> Iterator[str]:
    """Yield a run's lines, without line ends.

    The topics keep their order. The documents of a topic are ordered by the tie rule.
    Raises UsageError if the tag is not one word. Raises DataError if a score is not
    finite, or if an id is not one word.
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


def write_run(path: Path | str, run: Run, tag: str = "tweetrerank") -> None:
    """Write a run to a file atomically. It is compressed if it ends in .gz or .bz2.

    For the forms of a run see :func:`run_of`, and for errors also :func:`format_run`.
    """
    run = run_of(run)
    with written_file(path) as stream:
        stream.writelines(f"{line}\n" for line in format_run(run, tag))


@contextmanager
def written_file(path: Path | str) -> Iterator[IO[str]]:
    """Open a text file for writing. It is compressed if it ends in .gz or .bz2.

    It is written atomically by :func:`tweetrerank.indexes.files.atomic_file`.
    """
    suffix = Path(path).suffix.lower()
    with atomic_file(path) as stream:
        if suffix not in (".gz", ".bz2"):
            yield stream
            return
        file = cast(TextIO, stream).buffer
        packed: Any
        if suffix == ".bz2":
            packed = bz2.BZ2File(file, "wb")
        else:
            # Without a time stamp the same run gives the same bytes.
            packed = gzip.GzipFile("", "wb", 9, file, 0)
        with io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as text:
            yield text


def _ranked(
    scores: Mapping[str, float], query_id: str = "?"
) -> list[tuple[float, str]]:
    """Return the pairs (score, doc_id) of one topic, best first, by the tie rule."""
    # Strings compare by code point, in the same order as trec_eval's UTF-8 bytes.
    singles = single_precision(scores, query_id)
    return sorted(zip(singles, scores, strict=True), reverse=True)


def _read_table(
    path: Path | str,
    lines: Iterable[tuple[int, str]],
    columns: _Columns,
    parse: Callable[[str, str], Value],
) -> dict[str, dict[str, Value]]:
    """Return query_id -> doc_id -> value from the lines of a table.

    ``parse`` converts the text of a value. It also takes ``file:line`` for messages.
    Raises DataError for a malformed line, and for a document that is repeated.
    """
    names, query_column, doc_column, value_column, comma = columns
    width = len(names.split())
    table: dict[str, dict[str, Value]] = {}
    numbers: dict[str, list[int]] = {}  # query_id -> line of each of its documents
    for number, line in lines:
        fields = line.split(comma)
        if len(fields) != width or "\0" in line:
            if not line.strip():
                continue
            problem = f"{_column_problem(line, len(fields))}, expected {names}"
            raise DataError(f"{path}:{number}: {problem}")
        if comma:
            fields = [text.strip(' "') for text in fields]
        query_id = fields[query_column]
        doc_id = fields[doc_column]
        if comma and not _are_ids(query_id, doc_id):
            raise DataError(
                f"{path}:{number}: found {short(line)}, expected ids of one word"
            )
        values = table.get(query_id)
        if values is None:
            values = table[query_id] = {}
            numbers[query_id] = []
        if doc_id in values:
            first = numbers[query_id][list(values).index(doc_id)]
            raise DataError(
                f"{path}:{number}: found document {doc_id} of topic {query_id} again, "
                f"expected it once; the first is on line {first}"
            )
        values[doc_id] = parse(fields[value_column], f"{path}:{number}")
        numbers[query_id].append(number)
    return table


def _column_problem(line: str, columns: int) -> str:
    problem = "a NUL byte" if "\0" in line else f"{columns} columns"
    return f"found {problem} in {short(line)}"


def _are_ids(query_id: str, doc_id: str) -> bool:
    return is_doc_id(query_id) and is_doc_id(doc_id)


def grade_of(value: object, where: str) -> int:
    """Return the grade that a file or a table has as ``value``.

    Raises DataError unless it is a whole number from -1,000,000 to 1,000,000.
    """
    text = str(value)
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not (abs(number) <= HIGHEST_GRADE and number.is_integer()):
        raise DataError(
            f"{where}: found the relevance {short(text)}, "
            f"expected a whole number from -{HIGHEST_GRADE} to {HIGHEST_GRADE}"
        )
    return int(number)


def _score(score: str, where: str) -> float:
    if not _NUMBER.fullmatch(score) or not math.isfinite(array("f", [float(score)])[0]):
        raise DataError(
            f"{where}: found the score {short(score)}, expected a number between "
            "-3.4e38 and 3.4e38"
        )
    return float(score)
