"""Experiments as cells: one system, one collection, one seed; trained, run, measured and kept.

A finished cell is a JSON file in the experiments' folder and is not computed again; an interrupted
one goes on from its last epoch. A cell that fails names itself and does not stop the others.
"""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from indexes.files import atomic_file
from pipeline.collections import named
from pipeline.collections.collection import Collection
from pipeline.collections.trec import Qrels, Run, read_run, write_run
from pipeline.command.errors import DataError
from pipeline.command.ranking import FUSIONS
from pipeline.command.runtime import provenance
from pipeline.evaluation.measures import evaluate, mean
from pipeline.interpolation import interpolate
from pipeline.training.tuning import HELD_OUT_FILE, HeldOut

RUN, SHIPPED, HELD_OUT = "run", "shipped", "held-out"
"""What may stand with a colon before a cell's model."""


@dataclass(frozen=True)
class Cell:
    """What is trained and measured.

    Attributes:
        system: row of the table.
        model: name of the reranker, or ``run:NAME`` for an official run, which is only measured;
            ``shipped:NAME`` is the reranker with the weights and the λ that ship, mixed with query
            likelihood; ``held-out:NAME`` is measured on held-out training topics, so that the
            collection is not looked at.
        training: options of ``pipeline.train`` besides data, seed and output; without ``--folds``
            one part of the topics is held out once, where nothing else depends on held-out topics.
        collection: that is reported. One with a training part is trained on that; a microblog year
            is left out of training.
        seed: of every random choice.
    """

    system: str
    model: str
    training: tuple[str, ...]
    collection: str
    seed: int = 1

    @property
    def key(self) -> str:
        """Name of the cell's files; another model, option, collection or seed gives another."""
        content = json.dumps([self.model, self.training, self.collection, self.seed])
        name = f"{self.model}-{self.collection}".replace(":", "-")
        return f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"

    @property
    def kind(self) -> str:
        """What stands before the colon of ``model``; "" if the cell is trained and searched."""
        return self.model.rpartition(":")[0]

    @property
    def reranker(self) -> str:
        """Name of the reranker, or of the official run."""
        return self.model.rpartition(":")[2]

    @property
    def official_run(self) -> str | None:
        """Name of the collection's run that is measured instead of a trained model's."""
        return self.reranker if self.kind == RUN else None

    @property
    def is_fusion(self) -> bool:
        """Whether the model finds candidates of its own, by all rankers that it reads."""
        return self.reranker in FUSIONS


@dataclass(frozen=True)
class Result:
    """What came of a cell.

    Attributes:
        cell: which one.
        measures: measure -> mean on the collection; empty where there are no judgments.
        interpolated: the same for the neural score mixed with query likelihood; empty where
            candidates have no scores, and of what is mixed already.
        weight: λ of the mixture, tuned on training topics.
        development: AP on the development part, or on held-out training topics.
        epochs: that the kept model was trained for.
        seconds: of wall time that training took.
        made: date, commit and machine.
        better_than: measure -> systems that this one is significantly above.
        worse_than: measure -> systems that it is significantly below.
        mixture_better_than: the same as ``better_than`` for the mixture.
    """

    cell: Cell
    measures: dict[str, float]
    interpolated: dict[str, float]
    weight: float | None
    development: float
    epochs: int
    seconds: float
    made: dict[str, Any]
    better_than: dict[str, tuple[str, ...]] = field(default_factory=dict)
    worse_than: dict[str, tuple[str, ...]] = field(default_factory=dict)
    mixture_better_than: dict[str, tuple[str, ...]] = field(default_factory=dict)


def run_cells(
    cells: Sequence[Cell], directory: Path, data: Path | None, workers: int, device: str,
    progress: Callable[[Cell, str], None] = lambda cell, message: None,
) -> tuple[list[Result], list[str]]:  # fmt: skip
    """Compute what is missing, ``workers`` cells at a time, each on its share of the cores.

    Args:
        cells: in the order of the tables.
        directory: where results, checkpoints and runs are kept.
        data: folder of the data; None is the usual one.
        workers: cells at a time.
        device: of training and scoring.
        progress: called with each finished cell and a line about it.

    Returns:
        Results of the cells that succeeded, in their order, and a line for each that failed.
    """
    threads = max(1, (os.cpu_count() or 1) // workers)
    results: dict[str, Result] = {}
    failures: list[str] = []
    # The same work may be in a table twice, by two names; it goes by the first.
    distinct: dict[str, Cell] = {}
    for cell in cells:
        distinct.setdefault(cell.key, cell)
    with ThreadPoolExecutor(workers) as pool:
        waiting = {
            pool.submit(run_cell, cell, directory, data, threads, device): cell
            for cell in distinct.values()
        }
        try:
            for future in as_completed(waiting):
                cell = waiting[future]
                name = f"{cell.system} on {cell.collection}, seed {cell.seed}"
                try:
                    results[cell.key] = future.result()
                    progress(cell, f"{name}: done")
                except Exception as error:
                    failures.append(f"{name}: {error}")
                    progress(cell, failures[-1])
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    found = [dataclasses.replace(results[c.key], cell=c) for c in cells if c.key in results]
    return found, failures


def is_finished(cell: Cell, directory: Path) -> bool:
    """Whether the cell has a result, or needs no work to have one."""
    return cell.official_run is not None or _result_file(cell, directory).exists()


def _result_file(cell: Cell, directory: Path) -> Path:
    return directory / "results" / f"{cell.key}.json"


def run_cell(cell: Cell, directory: Path, data: Path | None, threads: int, device: str) -> Result:
    """Train, run and measure one cell, or read its result if it is there.

    Raises:
        RuntimeError: a command failed; the message is its own.
    """
    path = _result_file(cell, directory)
    if path.exists():
        return dataclasses.replace(read_result(path), cell=cell)
    if cell.official_run:
        # Quicker measured than looked up, and a better run may have taken its place.
        return _measure_official(cell, data)
    checkpoint = checkpoint_of(cell, directory)
    common = ["--threads", str(threads), "--device", device]
    common += ["--data", str(data)] if data else []
    started = time.perf_counter()
    _train(cell, checkpoint, common)
    seconds = time.perf_counter() - started
    run = directory / "runs" / f"{cell.key}.txt"
    if cell.kind != HELD_OUT:
        _search(cell, checkpoint, run, common)
    measures, interpolated, weight = _measure(cell, checkpoint, run, data)
    metrics = json.loads((checkpoint / "metrics.json").read_text(encoding="utf-8"))
    result = Result(
        cell, measures, interpolated, weight, metrics["validation"]["AP"], metrics["epochs"],
        round(seconds, 1), provenance(),
    )  # fmt: skip
    with atomic_file(path) as stream:
        stream.write(json.dumps(dataclasses.asdict(result), indent=1, ensure_ascii=False) + "\n")
    return result


def checkpoint_of(cell: Cell, directory: Path) -> Path:
    """Where the trained model of a cell lies, or will."""
    if cell.kind == SHIPPED:
        from rerankers import checkpoint

        return checkpoint.SHIPPED / cell.reranker / cell.collection
    return directory / "checkpoints" / cell.key


def read_result(path: Path) -> Result:
    """A result that :func:`run_cell` kept."""
    content = json.loads(path.read_text(encoding="utf-8"))
    cell = content.pop("cell")
    return Result(Cell(**(cell | {"training": tuple(cell["training"])})), **content)


def _is_searched(cell: Cell) -> bool:
    """Whether the collection is one whose candidates a first stage has found and scored."""
    return named.find(cell.collection).index_directory is not None


def _is_mixed(cell: Cell) -> bool:
    """Whether its scores are mixed with query likelihood once they are there, by λ tuned here."""
    return _is_searched(cell) and not cell.kind and not cell.is_fusion


def _train(cell: Cell, checkpoint: Path, common: Sequence[str]) -> None:
    if cell.kind == SHIPPED or (checkpoint / "config.json").exists():
        return
    is_year = _is_searched(cell)
    where = ["--test" if is_year else "--collection", cell.collection]
    if _is_mixed(cell) and "--folds" not in cell.training:
        # One held-out part is enough to stop early by and to tune λ on, and a fifth of the work.
        # But a fusion is trained on neural scores of topics that were held out.
        where += ["--folds", "1"]
    _command(
        "pipeline.train", cell.reranker, *where, *cell.training, "--seed", str(cell.seed),
        "--output", str(checkpoint), "--resume", *common,
    )  # fmt: skip


def _search(cell: Cell, checkpoint: Path, run: Path, common: Sequence[str]) -> None:
    if cell.is_fusion:
        how = ["--reranker", cell.reranker]
    else:
        how = ["--reranker", cell.reranker]
        how += ["--candidates", "ql"] if _is_searched(cell) else []
        how += ["--lambda", "1"] if _is_mixed(cell) else []
    _command(
        "pipeline.search", "--topics", cell.collection, *how, "--checkpoint", str(checkpoint),
        "--output", str(run), *common,
    )  # fmt: skip


def find_runs(cell: Cell, directory: Path, data: Path | None) -> tuple[Path, Path | None]:
    """Where a finished cell's run lies, and its mixture with query likelihood if there is one."""
    if cell.official_run:
        return named.find(cell.collection, data).runs[cell.official_run], None
    neural = directory / "runs" / f"{cell.key}.txt"
    return neural, _mixture(neural) if _is_mixed(cell) else None


def _mixture(neural: Path) -> Path:
    return neural.with_suffix(".interpolated.txt")


def _measure_official(cell: Cell, data: Path | None) -> Result:
    collection = named.find(cell.collection, data)
    path = collection.runs.get(cell.official_run or "")
    if path is None:
        raise DataError(f"{collection.name} has no official run {cell.official_run}")
    means = _means(collection, read_run(path))
    return Result(cell, means, {}, None, 0.0, 0, 0.0, provenance())


def _means(collection: Collection, run: Run) -> dict[str, float]:
    """Measure -> mean; nothing where there are no judgments."""
    qrels = collection.qrels
    return {} if qrels is None else _means_of(qrels, run, collection.measures)


def _means_of(qrels: Qrels, run: Run, measures: Sequence[str]) -> dict[str, float]:
    values = evaluate(qrels, run, measures)
    return {measure: round(mean(values[measure]), 4) for measure in measures}


def _held_out_means(cell: Cell, checkpoint: Path, data: Path | None) -> dict[str, float]:
    """Measure -> mean over the judged topics of the training collections, all held out once."""
    qrels: Qrels = {}
    for name in named.training_collections(cell.collection, data):
        qrels |= named.find(name, data).qrels or {}
    run = read_run(checkpoint / HELD_OUT_FILE)
    return _means_of(qrels, run, named.find(cell.collection).measures)


def _measure(
    cell: Cell, checkpoint: Path, neural: Path, data: Path | None
) -> tuple[dict[str, float], dict[str, float], float | None]:
    """Measures of the run and, if there is one, of its mixture with query likelihood, and λ."""
    if cell.kind == HELD_OUT:
        return _held_out_means(cell, checkpoint, data), {}, None
    collection = named.find(cell.collection, data)
    scores = read_run(neural)
    if not _is_mixed(cell):
        return _means(collection, scores), {}, None
    held_out = HeldOut.read(checkpoint, cell.collection, data)
    folds = min(5, len(held_out.qrels))
    weight = held_out.tune("AP", "minmax", folds, seed=1).weight
    mixed = interpolate(read_run(collection.runs["ql"]), scores, weight, "minmax")
    write_run(_mixture(neural), mixed, "interpolated")
    return _means(collection, scores), _means(collection, mixed), weight


def _command(module: str, *arguments: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True
    )
    if finished.returncode:
        said = finished.stderr.strip().splitlines() or [f"exit code {finished.returncode}"]
        raise RuntimeError(f"python -m {module} {' '.join(arguments)}: {said[-1]}")
