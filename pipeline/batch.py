"""Score files of queries and posts, in one process or on a Ray cluster.

    python -m pipeline.batch --input night.jsonl --output scored
    python -m pipeline.batch --input night/ --output scored --resume
    python -m pipeline.batch --input night.parquet --output scored --address ray://head:10001

A row is a query with its posts (query_id, query, posts: a list of doc_id, text and optionally url
and first_stage_score), or one pair (query_id, query, doc_id, text, …). The same rows come out with
a score for each post. Where the first row has first_stage_score, the model window reads it, and the
score of another is the mixture of both, from all posts of the query. The exit status is 1 if rows
cannot be read. All processes see input and output under the same paths.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.defaults import DEFAULT_WINDOW
from pipeline.command.errors import DataError, UsageError
from pipeline.command.main import run
from pipeline.command.options import (
    non_negative_float,
    non_negative_int,
    option,
    positive_int,
    size,
)
from pipeline.command.ranking import ScoringOptions
from pipeline.command.runtime import bar, choose_device, counted

if TYPE_CHECKING:
    from pipeline.batches.job import BatchJob, BatchManifest, Part
    from pipeline.batches.worker import Done
    from rerankers.reranker import Model


@dataclass(frozen=True)
class FileOptions:
    """Options of input and output."""

    input: Path = option(
        "file of JSON lines (.jsonl, .jsonl.gz, .jsonl.bz2) or Parquet, or a folder of such files",
        parse=Path,
        required=True,
        metavar="FILE|DIR",
    )
    output: Path = option(
        "new folder: one file for each part of the input, and _rejected for rows that cannot be "
        "read",
        parse=Path,
        required=True,
        metavar="DIR",
    )
    part_size: int = option(
        "bytes of the input in a part, or 500KB, 8MB, …: an interruption loses at most one part "
        "of each process",
        default=2_000_000,
        parse=size,
        metavar="SIZE",
    )
    resume: bool = option("go on with the job in the output folder, if there is one", flag=True)
    max_rejected: int = option(
        "rows that may be unreadable; with more the command ends with status 1",
        default=0,
        parse=non_negative_int,
    )


@dataclass(frozen=True)
class Options(ScoringOptions, FileOptions):
    """What to score, by what, and where."""

    reranker: str = option("model", default=DEFAULT_WINDOW)
    order: str | None = option(
        "what is known of the posts' first stage: their first_stage_score, the order of a query's "
        "posts, or nothing (default: the scores if the first row has them, else the order of a "
        "row's posts)",
        choices=("scores", "order", "unknown"),
    )
    checkpoint: Path | None = option(
        "folder of a trained model (default: the shipped one)", parse=Path, metavar="DIR"
    )
    threads: int | None = option(
        "CPU threads, of each process on a cluster (default: all cores; 1 on a cluster)",
        parse=positive_int,
    )
    address: str | None = option(
        "Ray cluster: ray://HOST:PORT, HOST:PORT, auto (that of this machine) or local (started "
        "here); without it one process scores",
        metavar="ADDRESS",
    )
    workers: int | None = option(
        "processes on the cluster, each with a model (default: as many as it has cores, or GPUs)",
        parse=positive_int,
    )
    gpus: float | None = option(
        "GPUs of each of them, as 1, or 0.25 for four on one (default: 0)", parse=non_negative_float
    )


def main(options: Options) -> None:
    """Check all, plan the parts or read the plan, score what is not done."""
    if problems := _problems(options):
        raise UsageError(problems)
    started = time.time()
    from pipeline.batches.job import BatchManifest

    job, trained, origin = _open(options)
    if options.resume and (options.output / "_manifest.json").exists():
        manifest = BatchManifest.read(options.output)
        manifest.check(job)
    else:
        manifest = BatchManifest.of(job, options.part_size)
        manifest.write(job.output)
    left = [part for part in manifest.parts if not job.output_of(part).exists()]
    print(f"{job.settings.reranker}, {origin}; {_plan(manifest, left)}", file=sys.stderr)
    if left:
        _score(options, job, left, trained, started)
    _report_rejected(job, options.max_rejected)


def _problems(options: Options) -> list[str]:
    from pipeline.batches.job import input_files
    from rerankers.models import names

    problems = []
    try:
        input_files(options.input)
    except (OSError, ValueError) as error:
        problems.append(f"--input: {error}")
    output = options.output
    if output.exists() and not output.is_dir():
        problems.append(f"--output: found the file {output}, expected a folder")
    elif output.is_dir() and any(output.iterdir()):
        if not options.resume:
            problems.append(
                f"--output: found files in {output}, expected an empty folder or none; --resume "
                "goes on with a job"
            )
        elif not (output / "_manifest.json").exists():
            problems.append(f"--resume: found no job in {output}, but other files")
    if options.reranker not in names():
        problems.append(
            f"--reranker: found {options.reranker!r}, expected one of {', '.join(names())}"
        )
    if options.checkpoint and not options.checkpoint.is_dir():
        problems.append(f"--checkpoint: there is no folder {options.checkpoint}")
    if not options.address:
        for name in ("workers", "gpus"):
            if getattr(options, name):
                problems.append(f"--{name}: found no --address, expected one (local starts Ray)")
    elif options.device != "auto":
        problems.append("--device: on a cluster --gpus decides; leave --device out")
    return problems


def _open(options: Options) -> tuple[BatchJob, Model, str]:
    """The job, its model, and where λ is from."""
    from rerankers.scoring.precomputed import version_of

    from pipeline.batches.formats import format_of
    from pipeline.batches.job import BatchJob, BatchSettings, form_of, input_files
    from pipeline.batches.worker import load
    from pipeline.ranking.build import mixing_of
    from rerankers import checkpoint as checkpoints
    from rerankers.pairs import PRIOR

    files = input_files(options.input)
    form = form_of(files)
    if options.order == "scores" and not form.has_first_stage:
        raise DataError("--order: found no first_stage_score in the first row, expected one")
    if options.order in ("order", "unknown"):
        form = form._replace(has_first_stage=False, is_ordered=options.order == "order")
    folder = options.checkpoint or checkpoints.find(options.reranker)
    # On a cluster the model is only looked at here.
    device = "cpu" if options.address else choose_device(options.device, options.threads)
    trained = load(folder, options.reranker, device)
    mixing = mixing_of(trained, options.weight, form.has_first_stage)
    if form.has_first_stage:
        reads_prior = PRIOR in trained.signals
        is_read = mixing.weight < 1 or reads_prior or trained.reads == "lists"
        form = form._replace(has_first_stage=is_read)
    settings = BatchSettings(
        options.reranker,
        version_of(folder),
        mixing.weight,
        options.precision,
        *form,
        str(format_of(files[0])),
    )
    on_cluster = "cuda" if options.gpus else "cpu"
    job = BatchJob(
        tuple(files),
        options.output.absolute(),
        settings,
        options.checkpoint and options.checkpoint.absolute(),
        options.batch_size,
        options.threads or (1 if options.address else None),
        on_cluster if options.address else device,
    )
    return job, trained, str(mixing)


def _plan(manifest: BatchManifest, left: Sequence[Part]) -> str:
    rows, parts = sum(part.span.rows for part in manifest.parts), len(manifest.parts)
    done = f", {parts - len(left)} of them done before" if len(left) < parts else ""
    return f"{counted(rows, 'row')} in {counted(parts, 'part')}{done}"


def _score(
    options: Options, job: BatchJob, left: Sequence[Part], trained: Model, started: float
) -> None:
    """Score the parts, with a progress bar, and say how long it took."""
    posts, began = 0, math.inf
    with bar(sum(part.span.rows for part in left), "scoring", "row") as progress:
        for done in _done(options, job, left, trained):
            progress(done.rows)
            posts, began = posts + done.posts, min(began, done.began)
    seconds = max(time.time() - began, 1e-9)
    print(
        f"scored {counted(posts, 'post')} in {seconds:.1f} s ({posts / seconds:,.0f} posts/s) "
        f"after {began - started:.1f} s to begin; wrote {counted(len(left), 'file')} to "
        f"{job.output}",
        file=sys.stderr,
    )


def _done(options: Options, job: BatchJob, left: Sequence[Part], trained: Model) -> Iterator[Done]:
    from pipeline.batches.worker import Worker

    if options.address:
        from pipeline.batches import cluster

        yield from cluster.score(job, left, options.address, options.workers, options.gpus or 0)
        return
    worker = Worker(job, trained)
    for part in left:
        yield worker.run(part)


def _report_rejected(job: BatchJob, most: int) -> None:
    """Report rows that could not be read; raises DataError if they are more than ``most``."""
    folder = job.output / "_rejected"
    count = sum(path.read_bytes().count(b"\n") for path in folder.glob("part-*.jsonl"))
    problem = f"{counted(count, 'row')} cannot be read; see {folder}; the others are scored"
    if count > most:
        raise DataError(problem)
    if count:
        print(problem, file=sys.stderr)


if __name__ == "__main__":
    run("batch")
