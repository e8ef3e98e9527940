"""Score files of queries and posts, in one process or on a Ray cluster.

    python -m pipeline.batch --input night.jsonl --output scored.jsonl
    python -m pipeline.batch --input night.jsonl --output scored.jsonl --collection my-posts.toml
    python -m pipeline.batch --input night/ --output scored/ --address ray://head:10001

A row is a query with its posts (query_id, query, posts: a list of doc_id, text and optionally url,
first_stage_score and signals of the model), or one pair (query_id, query, doc_id, text, …); it gets
a score for each post. Where the first row has first_stage_score, window reads it, and the score of
another model is mixed with it. OUTPUT.rejected.jsonl has unreadable rows with reasons.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from math import isnan
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TextIO, cast

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import atomic_directory, atomic_file
from tweetrerank.indexes.records import parsed, short
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import non_negative_int, option
from tweetrerank.pipeline.defaults import DEFAULT_WINDOW
from tweetrerank.pipeline.ranking.ranking_options import ScoringOptions
from tweetrerank.pipeline.runtime import ALLOCATOR, bar, choose_device
from tweetrerank.pipeline.text import counted, did_you_mean, listed, say
from tweetrerank.pipeline.usage_error import UsageError

Row = dict[str, Any]
Write = Callable[[Sequence[Row]], object]
POSTS, FIRST_SCORE, SCORE = "posts", "first_stage_score", "score"
TOGETHER = 5000  # Posts that are scored together, at least
LARGEST_SCORE = 3.4e38  # Of a first stage: scores are mixed in single precision
DATA = re.compile(r"[^._].*\.((jsonl|ndjson|json)(\.gz)?|parquet)", re.IGNORECASE)
KINDS = {
    **dict.fromkeys(("query_id", "doc_id"), (str | int, "a text or a whole number")),
    **dict.fromkeys(("query", "text"), (str, "a text")),
    "url": (str | None, "a text"),
    FIRST_SCORE: (int | float, "a number, as the first row has one"),
}
LISTS = "ranked as a list; or score each by itself: --reranker mp_hcnn --lambda 1"


@dataclass(frozen=True)
class Options(ScoringOptions):
    """Input, model, output and machines."""

    input: Path = option(
        "JSON lines (.jsonl, .jsonl.gz), Parquet, or a folder of these",
        parse=Path,
        required=True,
    )
    output: Path = option(
        "file of the same format; on a cluster a new folder", parse=Path, required=True
    )
    max_rejected: int = option(
        "unreadable rows without exit status 1, at most",
        default=0,
        parse=non_negative_int,
    )
    reranker: str = option("model", default=DEFAULT_WINDOW)
    checkpoint: Path | None = option(
        "folder of a trained model (default: the shipped one)",
        parse=Path,
        metavar="DIR",
    )
    collection: str | None = option(
        "collection whose best model is used", metavar="NAME|FILE"
    )
    order: str | None = option(
        "first stage: first_stage_score, the order of a query's posts, or "
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
        raise DataError(
            f"found no package {error.name}; install the extra: {remedy}"
        ) from None
    say(f"wrote {options.output}")
    path = options.output.with_name(f"{options.output.name}.rejected.jsonl")
    path.unlink(missing_ok=True)
    if rejected:
        with atomic_file(path) as stream:
            stream.writelines(f"{json.dumps(row)}\n" for row in rejected)
        problem = f"{counted(len(rejected), 'row')} cannot be read, see {path}; the rest is scored"
        if len(rejected) > options.max_rejected:
            raise DataError(problem)
        say(problem)


def _files(options: Options) -> list[Path]:
    """The files of the input, in the order of their names; raises UsageError for all problems."""
    from tweetrerank.rerankers.registry import names

    path, output, problems = options.input, options.output, []
    found = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [
        one.absolute() for one in found if DATA.fullmatch(one.name) and one.is_file()
    ]
    others = {one.name for one in found if one.name[0] not in "._"} - {
        one.name for one in files
    }
    formats = {_is_parquet(one) for one in files} or {False, True}
    if len(formats) != 1:
        found_one = f"found {path}" if path.exists() else f"there is no {path}"
        problems.append(
            f"--input: {found_one}, expected JSON lines or Parquet, or a folder"
        )
    is_other = (
        output.is_dir() or output.suffix == ".gz" or _is_parquet(output) not in formats
    )
    if output.exists() if options.address else is_other or output.absolute() in files:
        expected = (
            "a new folder" if options.address else "another file, of the input's format"
        )
        problems.append(f"--output: found {output}, expected {expected}")
    if options.reranker not in names():
        problem = f"--reranker: found {options.reranker!r}, expected one of {', '.join(names())}"
        problems.append(problem + did_you_mean(options.reranker, names()))
    if options.checkpoint and not options.checkpoint.is_dir():
        problems.append(f"--checkpoint: there is no folder {options.checkpoint}")
    if options.collection and (
        options.checkpoint or options.reranker != DEFAULT_WINDOW
    ):
        problems.append(
            "--collection: it names the model; leave --reranker and --checkpoint out"
        )
    if problems:
        raise UsageError(problems)
    if others:
        say(
            f"{path}: passed over {len(others)} by their names: {listed(sorted(others))}"
        )
    return files


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def _score(options: Options, files: Sequence[Path]) -> list[Row]:
    """Score all rows; returns those that cannot be read."""
    from tweetrerank.pipeline.collections.named import open_collection
    from tweetrerank.pipeline.ranking.build import Source, best_source, mixed
    from tweetrerank.rerankers import checkpoint as checkpoints
    from tweetrerank.rerankers.pairs import FIRST_STAGE, PRIOR, number_of

    form = _form_of(files)
    if options.order == "scores" and not form.has_first_stage:
        raise DataError(
            "--order: found no first_stage_score in the first row, expected one"
        )
    if options.order in ("order", "unknown"):
        form = form._replace(has_first_stage=False, is_ordered=options.order == "order")
    name, key = options.reranker, ""
    source = Source((options.checkpoint or checkpoints.find(name)).absolute())
    if options.collection:
        collection = open_collection(options.collection)
        source, name, key = best_source(collection), "", collection.key
    model = source, name, options.batch_size
    from tweetrerank.rerankers.reranker import Reranker

    # On a cluster the model is only looked at here.
    trained = load(
        *model, "cpu" if options.address else options.device, options.threads
    )
    trained = mixed(trained, form.has_first_stage, options.weight, key)
    is_read = bool(trained.signals & {PRIOR, FIRST_STAGE})
    form = form._replace(has_first_stage=form.has_first_stage and is_read)
    reads_lists = not form.is_nested and (
        form.has_first_stage or FIRST_STAGE in trained.signals
    )
    say(f"{trained.name}, {trained.description}")
    reranker = Reranker(trained)
    rejected: list[Row] = []
    if not options.address:
        posts, began, unknown = 0, perf_counter(), Counter[str]()
        warnings.filterwarnings("ignore", ".* reads numbers")  # They are counted below.
        with (
            bar(0, "scoring", "row") as progress,
            _writer(options.output, files, form) as write,
        ):
            for rows in _chunks(_readable(files, form, rejected), form, reads_lists):
                add_scores(rows, form, reranker)
                write(rows)
                progress(len(rows))
                every = [post for row in rows for post in form.posts(row)]
                posts += len(every)
                given = (
                    (name, post.get(name)) for post in every for name in trained.numbers
                )
                unknown.update(name for name, value in given if isnan(number_of(value)))
        for name, count in unknown.items():
            say(f"{name}: unknown of {counted(count, 'post')}")
        say(f"scored {counted(posts, 'post')} in {perf_counter() - began:.1f} s")
        return rejected
    if reads_lists:
        raise DataError(
            f"--address: found pairs, expected rows with posts, which are {LISTS}"
        )
    device = "cuda" if options.device.startswith("cuda") else "cpu"
    how = getattr(trained, "weight", 1.0), *model, device, options.threads or 1
    with atomic_directory(options.output) as output:
        return score_on_cluster(options.address, files, output, form, *how)


def _form_of(files: Sequence[Path]) -> Form:
    """The form of the first row that can be read and has a post."""
    problem = ""
    for path, number, raw in _rows_of(files):
        try:
            is_nested = _parsed(raw).get(POSTS) is not None
            form = Form(is_nested, is_ordered=is_nested)
            if posts := form.posts(form.read(raw)):
                has_scores = all(post.get(FIRST_SCORE) is not None for post in posts)
                return form._replace(has_first_stage=has_scores)
        except ValueError as error:
            problem = problem or f"{path}:{number}: {error}"
    raise DataError(problem or f"{files[0]}: found no row with a post, expected some")


def _chunks(rows: Iterator[Row], form: Form, reads_lists: bool) -> Iterator[list[Row]]:
    """Rows that are scored together: all pairs of a query."""
    chunk: list[Row] = []
    posts, seen = 0, set()
    for (query_id, _), group in groupby(rows, itemgetter("query_id", "query")):
        if reads_lists and query_id in seen:
            problem = f"found the query {query_id} again after others, expected its pairs together"
            raise DataError(f"--input: {problem}, which are {LISTS}")
        seen.add(query_id if reads_lists else "")
        chunk += (of_query := [*group])
        posts += sum(len(form.posts(row)) for row in of_query)
        if posts >= TOGETHER:
            yield chunk
            chunk, posts = [], 0
    yield chunk


def _readable(files: Sequence[Path], form: Form, rejected: list[Row]) -> Iterator[Row]:
    for path, number, raw in _rows_of(files):
        try:
            yield form.read(raw)
        except ValueError as error:
            rejected.append({"file": str(path), "line": number, "reason": str(error)})


def _rows_of(
    files: Sequence[Path],
) -> Iterator[tuple[Path, int, bytes | Row | ValueError]]:
    """Each row with its file and its number there; the last one of a damaged file is an error."""
    for path in files:
        number = 0
        try:
            if _is_parquet(path):
                import pyarrow.parquet as pq

                batches = pq.ParquetFile(path).iter_batches(TOGETHER)
                rows = (row for batch in batches for row in batch.to_pylist())
                for number, row in enumerate(rows, 1):
                    yield path, number, row
                continue
            with (gzip.open if path.suffix.lower() == ".gz" else open)(
                path, "rb"
            ) as stream:
                for number, line in enumerate(stream, 1):
                    if line.strip():
                        yield path, number, line
        except (
            EOFError,
            OSError,
            ValueError,
            zlib.error,
        ) as error:  # also those of pyarrow
            problem = f"the file is broken or cut off from about here on ({error})"
            yield path, number + 1, ValueError(problem)


@contextmanager
def _writer(path: Path, files: Sequence[Path], form: Form) -> Iterator[Write]:
    """Write rows to a file that appears when it is complete."""
    with atomic_file(path) as text:
        stream = cast(TextIO, text).buffer
        if not _is_parquet(path):
            yield lambda rows: stream.writelines(map(line_of, rows))
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            schema = with_score([pq.read_schema(one) for one in files], form)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            expected = "expected columns of different names, of one type in all files"
            raise DataError(f"--input: {expected}: {error}") from None
        with pq.ParquetWriter(stream, schema) as table:
            yield lambda rows: table.write_table(pa.Table.from_pylist(rows, schema))


class Form(NamedTuple):
    """Properties that all rows of a job share."""

    is_nested: bool  # A row is a query with its posts, else one pair
    has_first_stage: bool = (
        False  # Every post has a score of the first stage that is used
    )
    is_ordered: bool = (
        False  # Without scores a query's posts stand in the order of a first stage
    )

    def posts(self, row: Row) -> Sequence[Row]:
        """The posts of a row."""
        return row[POSTS] if self.is_nested else [row]

    def read(self, raw: bytes | Row | ValueError) -> Row:
        """The row of a line, or the row itself, checked; raises ValueError with the reason."""
        row = _parsed(raw)
        kind, expected = (list, "a list") if self.is_nested else (type(None), "nothing")
        _check(POSTS, row.get(POSTS), kind, f"{expected}, as in the first row")
        for name in ("query_id", "query"):
            _check(name, row.get(name), *KINDS[name])
        names = [
            "doc_id",
            "text",
            "url",
            *([FIRST_SCORE] if self.has_first_stage else []),
        ]
        for place, post in enumerate(self.posts(row)):
            where = f"{POSTS}[{place}]" if self.is_nested else ""
            _check(where, post, dict, "an object")
            where = where and f"{where}."
            for name in names:
                _check(where + name, post.get(name), *KINDS[name])
            if SCORE in post:
                _check(
                    where + SCORE, post[SCORE], (), "no column of this name: rename it"
                )
        return row


def _parsed(raw: bytes | Row | ValueError) -> Row:
    if isinstance(raw, ValueError):
        raise raw
    if isinstance(raw, dict):
        return raw
    try:
        return parsed(raw.decode("utf-8-sig", "surrogatepass"), "row", ValueError)
    except UnicodeDecodeError:
        raise ValueError(
            "row: found no UTF-8, expected JSON lines, or *.gz if packed"
        ) from None


def _check(name: str, value: Any, kind: Any, expected: str) -> None:
    is_kind = isinstance(value, kind) and not isinstance(value, bool)
    # Whole numbers may be too large for a float.
    if not is_kind or (
        kind == int | float and not -LARGEST_SCORE <= value <= LARGEST_SCORE
    ):
        found = "nothing" if value is None else short(str(value))
        raise ValueError(f"{name}: found {found}, expected {expected}")


def line_of(row: Row) -> bytes:
    """A row as JSON, in which halves of surrogate pairs are escaped."""
    return f"{json.dumps(row, ensure_ascii=False)}\n".encode(errors="backslashreplace")


def with_score(schemas: Sequence[Any], form: Form) -> Any:
    """The schema of Parquet rows with scores, from those of all files."""
    import pyarrow as pa

    score = pa.schema([(SCORE, pa.float64())])
    if form.is_nested:
        score = pa.schema([(POSTS, pa.list_(pa.struct(score)))])
    return pa.unify_schemas([*schemas, score], promote_options="permissive")


def load(source: Any, name: str, size: int, device: str, threads: int | None) -> Any:
    """A model of a checkpoint; raises RerankerError if it needs more than rows have."""
    from tweetrerank.pipeline.ranking.checkpoints import check_reads_given
    from tweetrerank.rerankers import registry

    device = choose_device(device, threads, not name or registry.is_network(name))
    trained = source.load(device, name or None, size)
    check_reads_given(trained)
    return trained


def add_scores(rows: Sequence[Row], form: Form, reranker: Any) -> None:
    """Add the score of each post, with as many digits as the service gives."""
    groups = groupby(rows, itemgetter("query_id", "query"))
    lists = [(query, list(pairs)) for (_, query), pairs in groups]
    if form.is_nested:
        lists = [(row["query"], row[POSTS]) for row in rows]
    seen, rounds = Counter[str](), defaultdict[int, list[tuple[str, Row]]](list)
    for query, posts in lists:  # Lists of one query are apart.
        rounds[seen[query]] += ((query, post) for post in posts)
        seen[query] += 1
    for pairs in rounds.values():
        first = (
            [post[FIRST_SCORE] for _, post in pairs] if form.has_first_stage else None
        )
        values = reranker.predict(pairs, first, in_order=form.is_ordered)
        # The scores of a mixture are in double precision.
        scores = values.astype(float).round(7 if values.itemsize == 4 else 12)
        for (_, post), score in zip(pairs, scores.tolist(), strict=True):
            post[SCORE] = score


def score_on_cluster(
    address: str,
    files: Sequence[Path],
    output: Path,
    form: Form,
    weight: float,
    *model: Any,
) -> list[Row]:
    """Score files by Ray Data, in order, with λ and :func:`load`'s arguments; unreadable rows."""
    import pyarrow as pa
    import ray.data
    from pyarrow import csv
    from ray.data.datasource import BlockBasedFileDatasink
    from ray.util.queue import Queue

    from tweetrerank.rerankers.mixed import Mixed
    from tweetrerank.rerankers.reranker import Reranker

    *_, device, threads = model
    is_parquet, line = _is_parquet(files[0]), "line"  # Column of JSON lines
    light = {"num_cpus": 0}  # Beside scoring, which has all cores

    class Lines(BlockBasedFileDatasink):
        def write_block_to_file(self, block: Any, file: Any) -> None:
            file.writelines(block.to_arrow()[line].to_pylist())

    class Scorer:
        def __init__(self, rejected: Queue) -> None:
            self.rejected = rejected
            self.reranker = Reranker(Mixed.of(load(*model), weight))

        def __call__(self, table: pa.Table) -> pa.Table:
            rows: list[Row] = []
            for raw in table.to_pylist() if is_parquet else table[line].to_pylist():
                try:
                    rows.append(form.read(raw))
                except ValueError as error:
                    self.rejected.put({"reason": str(error), "row": str(raw)})
            add_scores(rows, form, self.reranker)
            if is_parquet:
                return pa.Table.from_pylist(rows, with_score([table.schema], form))
            return pa.table({line: pa.array(map(line_of, rows), pa.binary())})

    def run() -> Any:
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order, context.enable_progress_bars = (
            True,
            False,
        )
        # Read as columns, JSON would change. JSON has the separator only escaped.
        options = csv.ReadOptions(
            use_threads=False, block_size=2**26, column_names=[line]
        )
        reading: dict[str, Any] = {
            "read_options": options,
            "parse_options": csv.ParseOptions(delimiter="\x1f", quote_char=False),
            "convert_options": csv.ConvertOptions(column_types={line: pa.binary()}),
        }
        read, how = (
            (ray.data.read_parquet, {}) if is_parquet else (ray.data.read_csv, reading)
        )
        room, gpus, rejected = (
            ray.cluster_resources(),
            int(device == "cuda"),
            Queue(0, light),
        )
        # One core stays for Ray's own reader of Parquet, which waits for one.
        size = (
            int(room.get("GPU", 0))
            if gpus
            else (int(room.get("CPU", 0)) - 1) // threads
        )
        if size < 1:
            expected = (
                "a GPU"
                if gpus
                else f"{threads + 1} cores or more, one of them for reading"
            )
            raise ValueError(f"found {room.get('CPU', 0):g} cores, expected {expected}")
        actors = ray.data.ActorPoolStrategy(size=size)
        pool = {"compute": actors, "num_cpus": threads, "num_gpus": gpus}
        batches = {
            "batch_size": 20 if form.is_nested else 2000,
            "batch_format": "pyarrow",
        }
        rows = read([*map(str, files)], ray_remote_args=light, **how)
        scored = rows.map_batches(
            Scorer, fn_constructor_args=(rejected,), **batches, **pool
        )
        write = scored.write_parquet if is_parquet else scored.write_datasink
        place = str(output) if is_parquet else Lines(str(output), file_format="jsonl")
        write(place, ray_remote_args=light)
        return rejected.get_nowait_batch(rejected.size())

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    how_to: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        how_to |= {"include_dashboard": False, "object_store_memory": 200_000_000}
    try:
        ray.init(address, runtime_env={"env_vars": ALLOCATOR}, **how_to)
        # There, as Ray Data does not work through a client's connection.
        return ray.get(ray.remote(**light)(run).remote())
    except (
        ConnectionError,
        RuntimeError,
        ValueError,
        ray.exceptions.RayError,
    ) as error:
        problem = "".join(str(error).strip().splitlines()[-1:])
        raise DataError(f"--address {address}: {problem}") from error
    finally:
        ray.shutdown()


if __name__ == "__main__":
    run("batch")
