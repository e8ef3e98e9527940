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
"""Names of the query's id, the post's id and the grade in a table of judgments, BEIR's for one."""

HIGHEST_GRADE = (
    1_000_000  # trec_eval allocates a table with an entry for each grade up to it
)

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TRACK = re.compile(r"(?:[A-Za-z]{1,6}|[A-Za-z]+[0-9]*[-_:])?0*([0-9]+)")


def read_qrels(path: Path | str) -> Qrels:
    """Read judgments: lines of ``query_id 0 doc_id relevance``, or a header with one of
    :data:`NAMES` each, as in BEIR's files, and columns separated by spaces, tabs, commas or
    semicolons."""
    lines = numbered_lines(path)
    first = next(lines, (1, ""))
    comma = next(
        (mark for mark in ",;" if mark in first[1] and "\t" not in first[1]), None
    )
    header = [name.strip(' "').lower() for name in first[1].split(comma)]
    places = [
        next((header.index(n) for n in names if n in header), -1) for names in NAMES
    ]
    if -1 in places:
        qrels = _read_table(
            path, chain([first], lines), QRELS_COLUMNS, (0, 2, 3), grade_of
        )
    else:
        qrels = _read_table(path, lines, " ".join(header), places, grade_of, comma)
    if not qrels:
        raise DataError(f"{path}: found no judgment, expected lines of {QRELS_COLUMNS}")
    return qrels


def joined_qrels(
    paths: Sequence[Path], query_ids: Iterable[str] | None = None
) -> Qrels:
    """The judgments of several files, of which later ones count, :func:`aligned` with topics."""
    joined: Qrels = {}
    changed, known_ids = 0, None if query_ids is None else [*query_ids]
    for path in paths:
        found = read_qrels(path)
        if known_ids is not None:
            found = aligned(found, known_ids, str(path))
        for query_id, grades in found.items():
            known = joined.setdefault(query_id, {})
            changed += sum(
                known.get(doc_id, grade) != grade for doc_id, grade in grades.items()
            )
            known.update(grades)
    if changed:
        say(
            f"{', '.join(map(str, paths))}: {changed} grades differ, those of the later file count"
        )
    return joined


def merged(
    tables: Iterable[Mapping[str, Mapping[str, Value]]],
) -> dict[str, dict[str, Value]]:
    """Runs or judgments in one; of two values of a document that of the later table counts."""
    found: dict[str, dict[str, Value]] = {}
    for query_id, values in chain.from_iterable(table.items() for table in tables):
        found.setdefault(query_id, {}).update(values)
    return found


def read_run(path: Path | str) -> Run:
    """Read a run: ``query_id Q0 doc_id rank score tag`` lines, possibly none; as in trec_eval only
    the score counts."""
    return _read_table(path, numbered_lines(path), RUN_COLUMNS, (0, 2, 4), _score)


def aligned(
    table: Mapping[str, Value], query_ids: Iterable[str], what: str
) -> dict[str, Value]:
    """A run or judgments, named ``what``, under the topics' own ids, where one side alone has a
    track's prefix: ``MB051``, ``051`` and ``51`` are one topic if the topics have one of them and
    ``table`` has another, which is said on stderr."""
    known = dict.fromkeys(query_ids)
    forms: dict[str, list[str]] = {}
    for query_id in known:
        forms.setdefault(_bare(query_id), []).append(query_id)
    renamed: dict[str, str] = {}
    for query_id in table:
        own = forms.get(_bare(query_id), [])
        if query_id in known or len(own) != 1 or own[0] in table:
            continue
        if (
            own[0].isdecimal() or query_id.isdecimal()
        ):  # Of two prefixes, each is another track.
            renamed[query_id] = own[0]
    if len({*renamed.values()}) < len(renamed):
        renamed = {}
    if renamed and what:
        example = next(iter(renamed.items()))
        say(
            f"{what}: {len(renamed)} ids of topics have another form than the topics', and are "
            f"taken for theirs ({example[0]} for {example[1]})"
        )
    return {renamed.get(query_id, query_id): value for query_id, value in table.items()}


def _bare(query_id: str) -> str:
    found = _TRACK.fullmatch(query_id)
    return found[1] if found else query_id


def run_of(run: Any) -> Run:
    """A run from Python: query_id -> doc_id -> score, or a ranking; ids may be whole numbers."""
    run = getattr(run, "run", run)

    def checked(value: Any, kind: Any, what: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, kind):
            raise TypeError(f"{value!r} is no {what}")
        return str(value) if what == "id" else float(value)

    def scores_of(of: Any) -> dict[str, float]:
        if {*map(type, of), *map(type, of.values())} == {
            str,
            float,
        }:  # As of our own runs
            return dict(of)
        return {
            checked(d, str | Integral, "id"): checked(s, Real, "score")
            for d, s in of.items()
        }

    try:
        return {
            checked(q, str | Integral, "id"): scores_of(of) for q, of in run.items()
        }
    except (AttributeError, TypeError) as error:
        raise UsageError(
            f"`run`: found {short(repr(run))} ({error}), expected query_id -> doc_id -> score"
        ) from None


def single_precision(
    scores: Mapping[str, float], query_id: str = "?"
) -> "array[float]":
    """One topic's scores in single precision, as in trec_eval, in the same order; DataError: one
    is NaN, or infinite in single precision."""
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


def places(scores: Mapping[str, float]) -> dict[str, Place]:
    """Place of each post by its score, best first."""
    return {
        doc_id: Place(rank, score)
        for rank, (doc_id, score) in enumerate(ranked(scores), 1)
    }


def best_of(run: Run, hits: int) -> Run:
    """The best ``hits`` of each topic, best first; see :func:`ranked`."""
    return {query_id: dict(ranked(scores)[:hits]) for query_id, scores in run.items()}


def format_run(run: Mapping[str, Mapping[str, float]], tag: str) -> Iterator[str]:
    """Yield a run's lines, without line ends: topics as given, documents by the tie rule.
    UsageError: the tag is not one word. DataError: a score is no number, or an id not one word."""
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
    """Write a run, see :func:`run_of`, atomically, compressed if it ends in ``.gz`` or ``.bz2``."""
    run = run_of(run)
    with written_file(path) as stream:
        stream.writelines(f"{line}\n" for line in format_run(run, tag))


@contextmanager
def written_file(path: Path | str) -> Iterator[IO[str]]:
    """:func:`~tweetrerank.indexes.files.atomic_file`, compressed if its name ends in ``.gz`` or ``.bz2``."""
    with atomic_file(path) as stream:
        suffix, file = Path(path).suffix.lower(), cast(TextIO, stream).buffer
        if suffix not in (".gz", ".bz2"):
            yield stream
            return
        # Without a time stamp the same run gives the same bytes.
        packed: Any = (
            bz2.BZ2File(file, "wb")
            if suffix == ".bz2"
            else gzip.GzipFile("", "wb", 9, file, 0)
        )
        with io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as text:
            yield text


def _ranked(
    scores: Mapping[str, float], query_id: str = "?"
) -> list[tuple[float, str]]:
    # Strings compare by code point, in the same order as trec_eval's UTF-8 bytes.
    return sorted(
        zip(single_precision(scores, query_id), scores, strict=True), reverse=True
    )


def _read_table(
    path: Path | str,
    lines: Iterable[tuple[int, str]],
    columns: str,
    places: Sequence[int],
    parse: Callable[[str, str], Value],
    comma: str | None = None,
) -> dict[str, dict[str, Value]]:
    """Read query_id, doc_id and a value at three ``places`` among ``columns``, between which stands
    ``comma``; None are spaces and tabs."""
    found: dict[str, dict[str, Value]] = {}
    numbers: dict[str, list[int]] = {}  # Query_id -> line of each of its documents
    width, (of_query, of_doc, of_value) = len(columns.split()), places
    for number, line in lines:
        fields = line.split(comma)
        if len(fields) != width or "\0" in line:
            if not line.strip():
                continue
            problem = "a NUL byte" if "\0" in line else f"{len(fields)} columns"
            where = f"{path}:{number}"
            raise DataError(
                f"{where}: found {problem} in {short(line)}, expected {columns}"
            )
        if comma:
            fields = [text.strip(' "') for text in fields]
        query_id, doc_id = fields[of_query], fields[of_doc]
        if comma and not (is_doc_id(query_id) and is_doc_id(doc_id)):
            raise DataError(
                f"{path}:{number}: found {short(line)}, expected ids of one word"
            )
        if (known := found.get(query_id)) is None:
            known, numbers[query_id] = found.setdefault(query_id, {}), []
        if doc_id in known:
            first = numbers[query_id][[*known].index(doc_id)]
            raise DataError(
                f"{path}:{number}: found document {doc_id} of topic {query_id} again, "
                f"expected it once; the first is on line {first}"
            )
        known[doc_id] = parse(fields[of_value], f"{path}:{number}")
        numbers[query_id].append(number)
    return found


def grade_of(value: object, where: str) -> int:
    """A grade of a file or a table; raises DataError if it is no whole number in its range."""
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
            f"{where}: found the score {short(score)}, expected a number between -3.4e38 and 3.4e38"
        )
    return float(score)
