"""Score files of queries and posts, in one process or on a Ray cluster.

    python -m pipeline.batch --input night.jsonl --output scored.jsonl
    python -m pipeline.batch --input in.jsonl --output out.jsonl --collection mine.toml
    python -m pipeline.batch --input night/ --output scored/ --address ray://head:10001

Each row holds a query with its posts, or one pair of a query and a post. A query has
the keys query_id, query and posts. "posts" is a list of objects with doc_id, text and
optionally url, first_stage_score and signals that the model reads. A pair has the keys
query_id and query, and those of a post. Each post gets a score.

If the first row has a first_stage_score, the model window reads it. The score of
another model is mixed with it. Rows that cannot be read are written with the reason to
OUTPUT.rejected.jsonl.
"""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isnan
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from typing import Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import atomic_directory, atomic_file
from tweetrerank.pipeline.batches.batch_rows import (
    Form,
    Row,
    form_of,
    is_parquet,
    open_writer,
    readable_rows,
)
from tweetrerank.pipeline.batches.batch_scores import Job, ModelLoader, add_scores
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import non_negative_int, option
from tweetrerank.pipeline.defaults import DEFAULT_WINDOW
from tweetrerank.pipeline.ranking.ranking_options import ScoringOptions
from tweetrerank.pipeline.runtime import bar
from tweetrerank.pipeline.text import counted, did_you_mean, listed, say
from tweetrerank.pipeline.usage_error import UsageError

# Posts are scored together in chunks of at least this number.
TOGETHER = 5000
DATA = re.compile(r"[^._].*\.((jsonl|ndjson|json)(\.gz)?|parquet)", re.IGNORECASE)
LISTS = "ranked as a list; or score each by itself: --reranker mp_hcnn --lambda 1"


@dataclass(frozen=True)
class Options(ScoringOptions):
    """The input, the model, the output, and the machines to use."""

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
        "first stage: first_stage_score, the order of a query's posts, or nothing "
        "(default: scores if the first row has them, else the order of a row's posts)",
        choices=("scores", "order", "unknown"),
    )
    address: str | None = option(
        "Ray cluster: ray://HOST:PORT, HOST:PORT, auto (that of this machine) or local "
        "(started here); each process has --threads cores (default there: 1), or a GPU "
        "with --device cuda"
    )


def main(options: Options) -> None:
    """Score all rows, and write the rows that cannot be read to a file of their own.

    Raises DataError if more rows cannot be read than --max-rejected allows, or if a
    package is missing.
    """
    files = _files(options)
    try:
        rejected = _score(options, files)
    except ModuleNotFoundError as error:
        extra = "ray" if options.address else "parquet"
        raise DataError(
            f"found no package {error.name}; install the extra: "
            f"pip install 'tweetrerank[{extra}]'"
        ) from None
    say(f"wrote {options.output}")
    path = options.output.with_name(f"{options.output.name}.rejected.jsonl")
    path.unlink(missing_ok=True)
    if not rejected:
        return
    with atomic_file(path) as stream:
        stream.writelines(f"{json.dumps(row)}\n" for row in rejected)
    count = counted(len(rejected), "row")
    problem = f"{count} cannot be read, see {path}; the rest is scored"
    if len(rejected) > options.max_rejected:
        raise DataError(problem)
    say(problem)


# Options


def _files(options: Options) -> list[Path]:
    """Return the absolute paths of the input files, sorted by name.

    Files in a folder that are not data are passed over with a note. Raises UsageError
    listing every problem found in the options.
    """
    source = options.input
    entries = sorted(source.iterdir()) if source.is_dir() else [source]
    files = list(filter(_is_data, entries))
    problems = _input_problems(options, files)
    problems += _output_problems(options, files)
    problems += _model_problems(options)
    if problems:
        raise UsageError(problems)
    names = [path.name for path in entries if path not in files]
    ignored = [name for name in names if name[0] not in "._"]
    if ignored:
        say(f"{source}: passed over {len(ignored)} by their names: {listed(ignored)}")
    return [path.absolute() for path in files]


def _is_data(path: Path) -> bool:
    return DATA.fullmatch(path.name) is not None and path.is_file()


def _input_problems(options: Options, files: Sequence[Path]) -> list[str]:
    formats = {is_parquet(path) for path in files}
    if len(formats) == 1:
        return []
    source = options.input
    reason = f"found {source}" if source.exists() else f"there is no {source}"
    return [f"--input: {reason}, expected JSON lines or Parquet, or a folder"]


def _output_problems(options: Options, files: Sequence[Path]) -> list[str]:
    output = options.output
    if options.address:
        is_wrong = output.exists()
        expected = "a new folder"
    else:
        formats = {is_parquet(path) for path in files}
        is_wrong = (
            output.is_dir()
            or output.suffix == ".gz"
            or (bool(formats) and is_parquet(output) not in formats)
            or output.absolute() in [path.absolute() for path in files]
        )
        expected = "another file, of the input's format"
    return [f"--output: found {output}, expected {expected}"] if is_wrong else []


def _model_problems(options: Options) -> list[str]:
    from tweetrerank.rerankers.registry import names

    problems = []
    if options.reranker not in names():
        expected = f"expected one of {', '.join(names())}"
        similar = did_you_mean(options.reranker, names())
        problems.append(f"--reranker: found {options.reranker!r}, {expected}{similar}")
    if options.checkpoint and not options.checkpoint.is_dir():
        problems.append(f"--checkpoint: there is no folder {options.checkpoint}")
    names_model = options.checkpoint or options.reranker != DEFAULT_WINDOW
    if options.collection and names_model:
        problems.append(
            "--collection: it names the model; leave --reranker and --checkpoint out"
        )
    return problems


# Scoring


def _score(options: Options, files: Sequence[Path]) -> list[Row]:
    """Score all rows, and return those that cannot be read."""
    from tweetrerank.rerankers.pairs import FIRST_STAGE

    job, model = _prepare(options, files)
    say(f"{model.name}, {model.description}")
    is_list = job.form.has_first_stage or FIRST_STAGE in model.signals
    reads_lists = is_list and not job.form.is_nested
    if options.address is None:
        return _score_here(options.output, job, model, reads_lists)
    if reads_lists:
        raise DataError(
            f"--address: found pairs, expected rows with posts, which are {LISTS}"
        )
    from tweetrerank.pipeline.batches import ray_cluster

    with atomic_directory(options.output) as folder:
        return ray_cluster.score(options.address, job, folder)


def _prepare(options: Options, files: Sequence[Path]) -> tuple[Job, Any]:
    """Return the job and the model for this process.

    The model is loaded before the files are read, so that mistakes in the options are
    reported before mistakes in the files. Raises DataError if --order scores is given
    and the first row has no score.
    """
    from tweetrerank.pipeline.ranking.build import mixed
    from tweetrerank.rerankers.pairs import FIRST_STAGE, PRIOR

    loader, key = _loader(options)
    # On a cluster, this process does not score. It only reads what the model needs.
    loaded = loader.load("cpu" if options.address else options.device)
    form = form_of(files)
    if options.order == "scores" and not form.has_first_stage:
        raise DataError(
            "--order: found no first_stage_score in the first row, expected one"
        )
    if options.order in ("order", "unknown"):
        in_order = options.order == "order"
        form = form._replace(has_first_stage=False, in_order=in_order)
    model = mixed(loaded, form.has_first_stage, options.weight, key)
    reads_scores = bool(model.signals & {PRIOR, FIRST_STAGE})
    form = form._replace(has_first_stage=form.has_first_stage and reads_scores)
    return Job(files, form, loader, getattr(model, "weight", 1.0)), model


def _loader(options: Options) -> tuple[ModelLoader, str]:
    """Return the loader of the model, and the key of the collection that has its λ.

    The key is "" without a collection.
    """
    from tweetrerank.pipeline.collections.named import open_collection
    from tweetrerank.pipeline.ranking.build import Source, best_source
    from tweetrerank.rerankers import checkpoint as checkpoints

    name = options.reranker
    key = ""
    if options.collection:
        collection = open_collection(options.collection)
        source = best_source(collection)
        name = ""
        key = collection.key
    else:
        folder = options.checkpoint or checkpoints.find(name)
        source = Source(folder.absolute())
    loader = ModelLoader(
        source, name, options.batch_size, options.device, options.threads
    )
    return loader, key


def _score_here(output: Path, job: Job, model: Any, reads_lists: bool) -> list[Row]:
    """Score the rows in this process, and return those that cannot be read."""
    from tweetrerank.rerankers.reranker import Reranker

    form = job.form
    reranker = Reranker(model)
    rejected: list[Row] = []
    unknown_numbers: Counter[str] = Counter()
    post_count = 0
    started = perf_counter()
    # The posts without a number are counted below instead.
    warnings.filterwarnings("ignore", ".* reads numbers")
    with (
        bar(0, "scoring", "row") as progress,
        open_writer(output, job.files, form) as write,
    ):
        rows_of_files = readable_rows(job.files, form, rejected)
        for rows in _chunks(rows_of_files, form, reads_lists):
            add_scores(rows, form, reranker)
            write(rows)
            progress(len(rows))
            posts = form.all_posts(rows)
            post_count += len(posts)
            unknown_numbers.update(_unknown_numbers(posts, model.numbers))
    for name, count in unknown_numbers.items():
        say(f"{name}: unknown of {counted(count, 'post')}")
    say(f"scored {counted(post_count, 'post')} in {perf_counter() - started:.1f} s")
    return rejected


def _unknown_numbers(posts: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """Yield a name for each post and each number that the post lacks."""
    from tweetrerank.rerankers.pairs import number_of

    for post in posts:
        for name in names:
            if isnan(number_of(post.get(name))):
                yield name


def _chunks(rows: Iterator[Row], form: Form, reads_lists: bool) -> Iterator[list[Row]]:
    """Yield lists of rows to score together, of about :data:`TOGETHER` posts each.

    Adjacent rows of a query stay in one list. Raises DataError if the model ranks lists
    and the pairs of a query are not all adjacent.
    """
    chunk: list[Row] = []
    post_count = 0
    seen: set[Any] = set()
    for (query_id, _), group in groupby(rows, itemgetter("query_id", "query")):
        if reads_lists and query_id in seen:
            raise DataError(
                f"--input: found the query {query_id} again after others, expected its "
                f"pairs together, which are {LISTS}"
            )
        seen.add(query_id if reads_lists else "")
        rows_of_query = list(group)
        chunk += rows_of_query
        post_count += len(form.all_posts(rows_of_query))
        if post_count >= TOGETHER:
            yield chunk
            chunk = []
            post_count = 0
    yield chunk


if __name__ == "__main__":
    run("batch")
