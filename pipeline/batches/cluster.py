"""Scoring of the parts of a batch job by Ray Data: a pool of actors, each with a model."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from indexes.errors import CollectionError
from pipeline.batches.formats import Span
from pipeline.batches.job import BatchJob, Part
from pipeline.batches.worker import Done, Worker
from pipeline.command.errors import DataError
from pipeline.command.runtime import ALLOCATOR
from rerankers.errors import RerankerError

MOST_BLOCKS = 2000  # Tasks of a job: with more, Ray's own work for each begins to count
OBJECT_STORE = 200_000_000
"""Bytes of Ray's object store where it is started here: results of parts, not rows, go there."""
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
"""Of Ray in this process, unless the user has others: nothing is reported to its makers, and its
libraries write no notes for their developers between our lines."""


class _Actor:
    """A worker for Ray Data: a batch is one part as JSON."""

    def __init__(self, job: BatchJob) -> None:
        self._job = job

    @cached_property
    def _worker(self) -> Worker:
        # Not loaded with the actor: a problem is a result like any other.
        return Worker(self._job)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        (text,) = batch["part"]
        number, file, *span = json.loads(str(text))
        try:
            done = self._worker.run(Part(number, file, Span(*span)))
            return {**{name: [value] for name, value in done._asdict().items()}, "problem": [""]}
        except (DataError, CollectionError, RerankerError, OSError) as error:
            nothing: dict[str, list[Any]] = {name: [0] for name in Done._fields}
            return {**nothing, "began": [0.0], "problem": [str(error) or repr(error)]}


def score(
    job: BatchJob, parts: Sequence[Part], address: str, workers: int | None, gpus: float
) -> Iterator[Done]:
    """Score parts on a cluster; each when it is done, in any order.

    A part whose machine dies is given to another. What is written is not scored again. The job's
    files and its output are on a disk that all machines share.

    Args:
        address: of the cluster, or ``local``.
        workers: processes; None is one for each ``job.threads`` cores, or ``gpus`` GPUs.
        gpus: of each process.

    Raises DataError if Ray is not installed or not reached, or a process found a problem.
    """
    os.environ.update({name: os.environ.get(name, value) for name, value in SETTINGS.items()})
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise DataError(
            f"found no package {error.name}; install the extra: pip install 'tweetrerank[ray]'"
        ) from None
    threads = job.threads or 1
    here = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
    environment = {**ALLOCATOR, "OMP_NUM_THREADS": str(threads)}
    try:
        ray.init(
            address,
            runtime_env={"env_vars": environment},
            log_to_driver=False,
            logging_level=logging.ERROR,
            **(here if address == "local" else {}),
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise DataError(f"--address {address}: found no Ray cluster: {error}") from None
    try:
        size = workers or _fitting(ray.nodes(), threads, gpus)
        results = _results if not address.startswith("ray://") else _from_afar
        for done, problem in results(job, parts, size, gpus):
            if problem:
                raise DataError(problem)
            yield done
    except ray.exceptions.RayError as error:
        last = str(error).strip().splitlines()[-1:]
        raise DataError(f"--address {address}: a process failed: {' '.join(last)}") from error
    finally:
        ray.shutdown()


def _results(
    job: BatchJob, parts: Sequence[Part], workers: int, gpus: float
) -> Iterator[tuple[Done, str]]:
    """Each part when it is done, with the problem that there was, if any."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    items = [{"part": json.dumps([part.number, part.file, *part.span])} for part in parts]
    blocks = min(len(items), MOST_BLOCKS)
    results = ray.data.from_items(items, override_num_blocks=blocks).map_batches(
        _Actor,
        fn_constructor_args=(job,),
        batch_size=1,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=job.threads or 1,
        num_gpus=gpus,
    )
    for row in results.iter_rows():
        yield Done(*(row[name] for name in Done._fields)), str(row["problem"])


class _Coordinator:
    """Runs Ray Data on the cluster, as it does not work through a client's connection."""

    def __init__(self, *arguments: Any) -> None:
        self._results = _results(*arguments)

    def next(self) -> tuple[Done, str] | None:
        """The next result, None behind the last."""
        return next(self._results, None)


def _from_afar(*arguments: Any) -> Iterator[tuple[Done, str]]:
    """:func:`_results` for a client of the cluster."""
    import ray

    coordinator = ray.remote(num_cpus=0)(_Coordinator).remote(*arguments)
    while (found := ray.get(coordinator.next.remote())) is not None:
        yield found


def _fitting(nodes: Sequence[Mapping[str, Any]], threads: int, gpus: float) -> int:
    """Processes that the machines of a cluster have room for; raises DataError for none."""
    size = 0
    for resources in (node["Resources"] for node in nodes if node["Alive"]):
        fitting = int(resources.get("CPU", 0)) // threads
        size += min(fitting, int(resources.get("GPU", 0) / gpus)) if gpus else fitting
    if not size:
        needed = f"{threads} cores" + (f" and {gpus:g} GPUs" if gpus else "")
        raise DataError(f"found no machine with {needed} on the cluster, which a process needs")
    return size
