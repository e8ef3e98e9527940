"""Score files of queries and posts, in one process or on a Ray cluster.

    python -m pipeline.batch --input night.jsonl --output scored.jsonl
    python -m pipeline.batch --input night/ --output scored/ --address ray://head:10001

A row is a query with its posts (query_id, query, posts: a list of doc_id, text and optionally url
and first_stage_score), or one pair (query_id, query, doc_id, text, …). The same rows come out with
a score for each post. Where the first row has first_stage_score, the model window reads it, and the
score of another is the mixture of both, from all posts of the query. Rows that cannot be read are
in OUTPUT.rejected.jsonl, with the reason. All machines of a cluster see the same files.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from indexes.files import atomic_directory, atomic_file
from pipeline.command.main import run
from pipeline.command.options import non_negative_int, option
from pipeline.command.ranking import ScoringOptions
from pipeline.defaults import DEFAULT_WINDOW
from pipeline.errors import DataError, UsageError
from pipeline.runtime import bar
from pipeline.text import counted, did_you_mean

if TYPE_CHECKING:
    from pipeline.batches import Form, Row

POSTS = 5000  # Posts that are scored together, at least
DATA = re.compile(r"[^._].*\.((jsonl|ndjson|json)(\.gz)?|parquet)", re.IGNORECASE)
LISTS = "ranked as a list; or score each by itself: --reranker mp_hcnn --lambda 1"


@dataclass(frozen=True)
class Options(ScoringOptions):
    """What to score, by what, and where."""

    input: Path = option(
        "JSON lines (.jsonl, .jsonl.gz), Parquet, or a folder of these", parse=Path, required=True
    )
    output: Path = option(
        "file of the same format; on a cluster a new folder", parse=Path, required=True
    )
    max_rejected: int = option(
        "unreadable rows without exit status 1, at most", default=0, parse=non_negative_int
    )
    reranker: str = option("model", default=DEFAULT_WINDOW)
    checkpoint: Path | None = option(
        "folder of a trained model (default: the shipped one)", parse=Path, metavar="DIR"
    )
    order: str | None = option(
        "what is known of the first stage: first_stage_score, the order of a query's posts, or "
        "nothing (default: scores if the first row has them, else the order of a row's posts)",
        choices=("scores", "order", "unknown"),
    )
    address: str | None = option(
        "Ray cluster: ray://HOST:PORT, HOST:PORT, auto (that of this machine) or local (started "
        "here); each process has --threads cores (default there: 1), or a GPU with --device cuda"
    )


def main(options: Options) -> None:
    """Score, and report rows that cannot be read."""
    files = _files(options)
    try:
        rejected = _score(options, files)
    except ModuleNotFoundError as error:
        remedy = f"pip install 'tweetrerank[{'ray' if options.address else 'parquet'}]'"
        raise DataError(f"found no package {error.name}; install the extra: {remedy}") from None
    print(f"wrote {options.output}", file=sys.stderr)
    path = options.output.with_name(f"{options.output.name}.rejected.jsonl")
    path.unlink(missing_ok=True)
    if rejected:
        with atomic_file(path) as stream:
            stream.writelines(f"{json.dumps(row)}\n" for row in rejected)
        problem = f"{counted(len(rejected), 'row')} cannot be read, see {path}; the rest is scored"
        if len(rejected) > options.max_rejected:
            raise DataError(problem)
        print(problem, file=sys.stderr)


def _files(options: Options) -> list[Path]:
    """The files of the input, in the order of their names; raises UsageError for all problems."""
    from rerankers.models import names

    path, output, problems = options.input, options.output, []
    found = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [one.absolute() for one in found if DATA.fullmatch(one.name) and one.is_file()]
    formats = {_is_parquet(one) for one in files}
    if len(formats) != 1:
        problems.append(f"--input: found {path}, expected JSON lines or Parquet, or a folder")
    # Compressed output is not written.
    is_other = output.is_dir() or output.suffix == ".gz" or _is_parquet(output) not in formats
    if output.exists() if options.address else is_other or output.absolute() in files:
        expected = "a new folder" if options.address else "another file, of the input's format"
        problems.append(f"--output: found {output}, expected {expected}")
    if options.reranker not in names():
        problem = f"--reranker: found {options.reranker!r}, expected one of {', '.join(names())}"
        problems.append(problem + did_you_mean(options.reranker, names()))
    if options.checkpoint and not options.checkpoint.is_dir():
        problems.append(f"--checkpoint: there is no folder {options.checkpoint}")
    if problems:
        raise UsageError(problems)
    return files


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def _score(options: Options, files: Sequence[Path]) -> list[Row]:
    """Score all rows; returns those that cannot be read."""
    from pipeline.batches import add_scores, load, score_on_cluster
    from pipeline.ranking.build import mixing_of
    from pipeline.ranking.ranker import ModelScorer
    from rerankers.pairs import PRIOR

    form = _form_of(files)
    if options.order == "scores" and not form.has_first_stage:
        raise DataError("--order: found no first_stage_score in the first row, expected one")
    if options.order in ("order", "unknown"):
        form = form._replace(has_first_stage=False, is_ordered=options.order == "order")
    folder = options.checkpoint and options.checkpoint.absolute()
    model = options.reranker, folder, options.batch_size
    # On a cluster the model is only looked at here.
    trained = load(*model, "cpu" if options.address else options.device, options.threads)
    mixing = mixing_of(trained, options.weight, form.has_first_stage)
    is_list = trained.reads == "lists"
    is_read = mixing.weight < 1 or PRIOR in trained.signals or is_list
    form = form._replace(has_first_stage=form.has_first_stage and is_read)
    reads_lists = not form.is_nested and (form.has_first_stage or is_list)
    print(f"{options.reranker}, {mixing}", file=sys.stderr)
    rejected: list[Row] = []
    if not options.address:
        scorer, posts, began = ModelScorer(trained), 0, time.perf_counter()
        with bar(0, "scoring", "row") as progress, _writer(options.output, files, form) as write:
            for rows in _chunks(files, form, reads_lists, rejected):
                add_scores(rows, form, scorer, mixing.weight)
                write(rows)
                progress(len(rows))
                posts += sum(len(form.posts(row)) for row in rows)
        seconds = time.perf_counter() - began
        print(f"scored {counted(posts, 'post')} in {seconds:.1f} s", file=sys.stderr)
        return rejected
    if reads_lists:
        raise DataError(f"--address: found pairs, expected rows with posts, which are {LISTS}")
    device = "cuda" if options.device.startswith("cuda") else "cpu"
    with atomic_directory(options.output) as output:
        how = (mixing.weight, *model, device, options.threads or 1)
        return score_on_cluster(options.address, files, output, form, *how)


def _form_of(files: Sequence[Path]) -> Form:
    """The form of the first row that can be read and has a post."""
    from pipeline.batches import FIRST_STAGE, Form

    problem = ""
    for path, number, raw in _rows_of(files):
        try:
            form, posts = Form.of(raw)
        except ValueError as error:
            problem = problem or f"{path}:{number}: {error}"
            continue
        if posts:
            has_scores = all(post.get(FIRST_STAGE) is not None for post in posts)
            return form._replace(has_first_stage=has_scores)
    raise DataError(problem or f"{files[0]}: found no row with a post, expected some")


def _chunks(
    files: Sequence[Path], form: Form, reads_lists: bool, rejected: list[Row]
) -> Iterator[list[Row]]:
    """Rows that are scored together: all pairs of a query."""
    chunk: list[Row] = []
    posts, seen = 0, set()
    rows = _readable(files, form, rejected)
    for (query_id, _), group in groupby(rows, itemgetter("query_id", "query")):
        if reads_lists and query_id in seen:
            problem = f"found the query {query_id} again after others, expected its pairs together"
            raise DataError(f"--input: {problem}, which are {LISTS}")
        seen.add(query_id if reads_lists else "")
        for row in group:
            chunk.append(row)
            posts += len(form.posts(row))
        if posts >= POSTS:
            yield chunk
            chunk, posts = [], 0
    yield chunk


def _readable(files: Sequence[Path], form: Form, rejected: list[Row]) -> Iterator[Row]:
    for path, number, raw in _rows_of(files):
        try:
            yield form.read(raw)
        except ValueError as error:
            rejected.append({"file": str(path), "line": number, "reason": str(error)})


def _rows_of(files: Sequence[Path]) -> Iterator[tuple[Path, int, bytes | Row | ValueError]]:
    """Each row with its file and its number there; of JSON lines those that are not blank.

    Where a file is damaged, its last row is an error.
    """
    for path in files:
        number = 0
        try:
            for number, row in (_table_rows if _is_parquet(path) else _lines)(path):
                yield path, number, row
        except (EOFError, OSError, ValueError, zlib.error) as error:  # also those of pyarrow
            problem = f"the file is broken or cut off from about here on ({error})"
            yield path, number + 1, ValueError(problem)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as stream:
        yield from ((number, line) for number, line in enumerate(stream, 1) if line.strip())


def _table_rows(path: Path) -> Iterator[tuple[int, Row]]:
    import pyarrow.parquet as pq

    batches = pq.ParquetFile(path).iter_batches(POSTS)
    yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)


@contextmanager
def _writer(
    path: Path, files: Sequence[Path], form: Form
) -> Iterator[Callable[[Sequence[Row]], object]]:
    """Write rows to a file that appears when it is complete."""
    from pipeline.batches import line_of, with_score

    with atomic_file(path) as text:
        stream = cast(TextIO, text).buffer
        if not _is_parquet(path):
            yield lambda rows: stream.writelines(map(line_of, rows))
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = with_score([pq.read_schema(one) for one in files], form)
        with pq.ParquetWriter(stream, schema) as table:
            yield lambda rows: table.write_table(pa.Table.from_pylist(rows, schema))


if __name__ == "__main__":
    run("batch")
