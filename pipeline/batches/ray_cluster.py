"""Score batch jobs on a Ray cluster.

This module imports Ray and PyArrow, which not every installation has.
"""

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray.data
from pyarrow import csv
from ray.data.datasource import BlockBasedFileDatasink
from ray.util.queue import Queue

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.batches.batch_rows import (
    Row,
    is_parquet,
    line_of,
    with_score,
)
from tweetrerank.pipeline.batches.batch_scores import Job, add_scores
from tweetrerank.pipeline.runtime import ALLOCATOR

# Column that holds the lines of a JSON file
LINE = "line"
# Resources of tasks that do not score. All cores are left to those that do.
LIGHT = {"num_cpus": 0}
# Number of rows in a batch of queries with their posts, and in a batch of pairs
NESTED_ROWS = 20
PAIRS = 2000


def score(address: str, job: Job, output: Path) -> list[Row]:
    """Score a job on the cluster at an address, and return the unreadable rows.

    The scored rows are written into the folder ``output``. Raises DataError if the
    cluster cannot be reached, is too small, or fails.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": 200_000_000}
    try:
        ray.init(address, runtime_env={"env_vars": ALLOCATOR}, **options)
        # Ray Data does not work through a client's connection, so the cluster runs it.
        return ray.get(ray.remote(**LIGHT)(_score).remote(job, output))
    except (
        ConnectionError,
        RuntimeError,
        ValueError,
        ray.exceptions.RayError,
    ) as error:
        last_line = "".join(str(error).strip().splitlines()[-1:])
        raise DataError(f"--address {address}: {last_line}") from error
    finally:
        ray.shutdown()


def _score(job: Job, output: Path) -> list[Row]:
    """Score a job with Ray Data, and return the unreadable rows.

    This runs on the cluster.
    """
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    rejected = Queue(0, LIGHT)
    # Ray chooses the GPU of each process.
    device = "cuda" if job.loader.device.startswith("cuda") else "cpu"
    threads = job.loader.threads or 1
    scored = _read(job).map_batches(
        _Scorer,
        fn_constructor_args=(job, device, rejected),
        batch_size=NESTED_ROWS if job.form.is_nested else PAIRS,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=_process_count(device, threads)),
        num_cpus=threads,
        num_gpus=int(device == "cuda"),
    )
    if is_parquet(job.files[0]):
        scored.write_parquet(str(output), ray_remote_args=LIGHT)
    else:
        sink = _LinesSink(str(output), file_format="jsonl")
        scored.write_datasink(sink, ray_remote_args=LIGHT)
    return rejected.get_nowait_batch(rejected.size())


def _process_count(device: str, threads: int) -> int:
    """Return the number of scoring processes that fit on the cluster.

    Raises ValueError if none fits.
    """
    resources = ray.cluster_resources()
    cores = resources.get("CPU", 0)
    if device == "cuda":
        count = int(resources.get("GPU", 0))
        expected = "a GPU"
    else:
        # Ray's own reader of Parquet needs a core, so one is left to it.
        count = (int(cores) - 1) // threads
        expected = f"{threads + 1} cores or more, one of them for reading"
    if count < 1:
        raise ValueError(f"found {cores:g} cores, expected {expected}")
    return count


def _read(job: Job) -> Any:
    """Return the rows of the files as a data set of Ray."""
    paths = [str(path) for path in job.files]
    if is_parquet(job.files[0]):
        return ray.data.read_parquet(paths, ray_remote_args=LIGHT)
    # A JSON reader would change values, so each line is read as a text. The separator
    # is a character that JSON escapes.
    return ray.data.read_csv(
        paths,
        ray_remote_args=LIGHT,
        read_options=csv.ReadOptions(
            use_threads=False, block_size=2**26, column_names=[LINE]
        ),
        parse_options=csv.ParseOptions(delimiter="\x1f", quote_char=False),
        convert_options=csv.ConvertOptions(column_types={LINE: pa.binary()}),
    )


class _Scorer:
    """Scores batches of rows in a process of the cluster."""

    def __init__(self, job: Job, device: str, rejected: Queue) -> None:
        from tweetrerank.rerankers.mixed import Mixed
        from tweetrerank.rerankers.reranker import Reranker

        self.form = job.form
        self.is_parquet = is_parquet(job.files[0])
        self.rejected = rejected
        loader = replace(job.loader, threads=job.loader.threads or 1)
        self.reranker = Reranker(Mixed.of(loader.load(device), job.weight))

    def __call__(self, table: pa.Table) -> pa.Table:
        rows: list[Row] = []
        contents = table.to_pylist() if self.is_parquet else table[LINE].to_pylist()
        for content in contents:
            try:
                rows.append(self.form.read(content))
            except ValueError as error:
                self.rejected.put({"reason": str(error), "row": str(content)})
        add_scores(rows, self.form, self.reranker)
        if self.is_parquet:
            return pa.Table.from_pylist(rows, with_score([table.schema], self.form))
        return pa.table({LINE: pa.array(map(line_of, rows), pa.binary())})


class _LinesSink(BlockBasedFileDatasink):
    """Writes rows as JSON lines."""

    def write_block_to_file(self, block: Any, file: Any) -> None:
        """Write the lines of a block to a file."""
        file.writelines(block.to_arrow()[LINE].to_pylist())
