"""Experiments as cells: one system on one collection with one seed, trained, run and measured.

A finished cell is a JSON file in the experiments' folder and is not computed again; an interrupted
training continues from its last epoch. A failing cell does not stop the others.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from experiments import answers
from indexes.files import atomic_file
from pipeline.collections import named
from pipeline.collections.collection import Collection
from pipeline.collections.trec import Qrels, Run, read_run, write_run
from pipeline.command.runtime import provenance
from pipeline.evaluation.measures import evaluate, mean
from pipeline.ranking.interpolation import interpolate
from pipeline.training.tuning import HeldOut
from rerankers import checkpoint as checkpoints
from rerankers import models
from rerankers.training.settings import Settings

RUN, SHIPPED, HELD_OUT, DRAWN = "run", "shipped", "held-out", "drawn"
"""Kinds of cells: the prefixes of ``Cell.model``."""

OKAPI = f"{DRAWN}:okapi"  # The model of a cell of Okapi BM25


AUTHORS_RUN = f"{RUN}:authors"
"""The model of a cell of MP-HCNN's published run (github.com/jinfengr/neural-tweet-search)."""


@dataclass(frozen=True)
class Cell:
    """A system to train and measure."""

    system: str  # Row of the table
    model: str
    """Name of the reranker, possibly with a kind before it: ``run:NAME`` is an official run,
    measured only; ``shipped:NAME`` is the reranker with the shipped weights and λ, mixed with query
    likelihood; ``held-out:NAME`` is measured on held-out training topics, without a look at the
    collection; ``drawn:NAME`` picks right answers among drawn ones (:mod:`experiments.answers`),
    with ``drawn:okapi`` for BM25."""
    training: tuple[str, ...]  # Options of ``pipeline.train`` besides data, seed and output
    collection: str
    """Reported collection. One with a training part is trained on that part; a microblog year is
    left out of training."""
    seed: int = 1  # Seed of all random choices

    @property
    def key(self) -> str:
        """Name of the cell's files, different for each model, options, collection and seed."""
        content = json.dumps([self.model, self.training, self.collection, self.seed])
        name = f"{self.model}-{self.collection}".replace(":", "-")
        return f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"

    @property
    def kind(self) -> str:
        """Prefix of ``model``; "" for a cell that is trained and searched."""
        return self.model.rpartition(":")[0]

    @property
    def reranker(self) -> str:
        """Name of the reranker, or of the official run."""
        return self.model.rpartition(":")[2]

    @property
    def is_untrained(self) -> bool:
        """Whether the cell is only measured; it then has one seed, and its result is not kept."""
        return self.kind == RUN or self.model == OKAPI

    @property
    def is_fusion(self) -> bool:
        """Whether the model retrieves its own candidates with several rankers."""
        return models.reads_rankers(self.reranker)

    @property
    def is_retrieved(self) -> bool:
        """Whether a first stage retrieved and scored the collection's candidates."""
        return named.find(self.collection).index_directory is not None

    @property
    def is_mixed(self) -> bool:
        """Whether the neural scores are mixed with query likelihood, with λ tuned here."""
        return self.is_retrieved and not self.kind and not self.is_fusion

    def __str__(self) -> str:
        return f"{self.system} on {self.collection}, seed {self.seed}"


@dataclass(frozen=True)
class Result:
    """Measures of a cell.

    Attributes:
        measures: measure -> mean on the collection; empty without judgments.
        interpolated: measure -> mean of the mixture with query likelihood; empty if the candidates
            have no scores, or if the scores are mixed already.
        weight: λ of the mixture, tuned on training topics.
        development: AP on the development part, or on held-out training topics.
        epochs: training epochs of the kept model.
        seconds: wall time of training.
        made: date, commit and machine.
        better_than, worse_than: measure -> systems with significantly lower or higher values.
        mixture_better_than: ``better_than`` for the mixture.
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


@dataclass(frozen=True)
class Setup:
    """Folders and device of the experiments; ``directory`` holds all that they keep."""

    directory: Path
    data: Path | None = None
    device: str = "auto"

    def collection(self, name: str) -> Collection:
        """The named collection in the data folder."""
        return named.find(name, self.data)

    def result_file(self, cell: Cell) -> Path:
        """JSON file of a finished cell."""
        return self.directory / "results" / f"{cell.key}.json"

    def checkpoint(self, cell: Cell) -> Path:
        """Checkpoint folder of a cell."""
        if cell.kind == SHIPPED:
            return checkpoints.SHIPPED / cell.reranker / cell.collection
        return self.directory / "checkpoints" / cell.key

    def run_file(self, cell: Cell) -> Path:
        """Run file of a finished cell."""
        if cell.model == AUTHORS_RUN:
            name = f"mphcnn_trec_{cell.collection.removeprefix('mb')}_pred.txt"
            return named.data_directory(self.data) / "microblog" / "runs" / name
        if cell.kind == RUN:
            return self.collection(cell.collection).runs[cell.reranker]
        return self.directory / "runs" / f"{cell.key}.txt"

    def mixture_file(self, cell: Cell) -> Path | None:
        """Run file of the cell's mixture with query likelihood, None if it is not mixed."""
        return self.run_file(cell).with_suffix(".interpolated.txt") if cell.is_mixed else None


def run_cells(
    cells: Sequence[Cell], setup: Setup, workers: int = 1
) -> tuple[list[Result], list[str]]:
    """Compute the missing cells, ``workers`` at a time on equal shares of the cores, with a bar.

    Returns:
        Results of the successful cells in their order, and a line for each failed one.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    results: dict[str, Result] = {}
    failures: list[str] = []
    # Cells with the same key, under different names in two tables, are computed once.
    distinct = {cell.key: cell for cell in reversed(cells)}
    missing = {key for key, cell in distinct.items() if not is_finished(cell, setup)}
    bar = tqdm(total=len(missing), unit="cell", disable=None if missing else True)
    with bar, ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(run_cell, distinct[key], setup, threads): key for key in distinct}
        try:
            for future in as_completed(futures):
                key = futures[future]
                try:
                    results[key] = future.result()
                except Exception as error:
                    failures.append(f"{distinct[key]}: {error}")
                    tqdm.write(failures[-1], file=sys.stderr)
                bar.update(key in missing)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return [replace(results[c.key], cell=c) for c in cells if c.key in results], failures


def is_finished(cell: Cell, setup: Setup) -> bool:
    """Whether the cell has a result or, without training, needs none."""
    return cell.is_untrained or setup.result_file(cell).exists()


def run_cell(cell: Cell, setup: Setup, threads: int = 1) -> Result:
    """Train, run and measure one cell, or read its finished result.

    Raises:
        RuntimeError: a command failed; the message is the command's own.
    """
    path = setup.result_file(cell)
    if path.exists():
        return replace(read_result(path), cell=cell)
    if cell.is_untrained:
        # Not kept: measuring is cheap, and the run file may be replaced.
        return Result(cell, *_measure(cell, setup), 0.0, 0, 0.0, provenance())
    common = ["--threads", str(threads), "--device", setup.device]
    common += ["--data", str(setup.data)] if setup.data else []
    started = time.perf_counter()
    _train(cell, setup, common)
    seconds = time.perf_counter() - started
    if cell.kind not in (HELD_OUT, DRAWN):
        _search(cell, setup, common)
    measured = _measure(cell, setup)
    metrics = json.loads((setup.checkpoint(cell) / "metrics.json").read_text(encoding="utf-8"))
    development, epochs = metrics["validation"]["AP"], metrics["epochs"]
    result = Result(cell, *measured, development, epochs, round(seconds, 1), provenance())
    with atomic_file(path) as stream:
        stream.write(json.dumps(asdict(result), indent=1, ensure_ascii=False) + "\n")
    return result


def read_result(path: Path) -> Result:
    """Read the JSON file of a finished cell."""
    content = json.loads(path.read_text(encoding="utf-8"))
    cell = content.pop("cell")
    return Result(Cell(**(cell | {"training": tuple(cell["training"])})), **content)


def _train(cell: Cell, setup: Setup, common: Sequence[str]) -> None:
    checkpoint = setup.checkpoint(cell)
    if cell.kind == SHIPPED or (checkpoint / "config.json").exists():
        return
    options = ["--test" if cell.is_retrieved else "--collection", cell.collection]
    if cell.is_mixed and "--folds" not in cell.training:
        # One held-out part suffices for early stopping and λ, at a fifth of the cost. A fusion
        # needs five: it is trained on neural scores of held-out topics.
        options += ["--folds", "1"]
    options += [*_options(cell.training), "--seed", str(cell.seed)]
    output = ["--output", str(checkpoint), "--resume"]
    _command("pipeline.train", cell.reranker, *options, *output, *common)


def _options(training: Sequence[str]) -> list[str]:
    """Options of a training, with ``--set training.NAME=VALUE`` for ``--NAME VALUE`` of a setting.

    Finished results are named by hashes of the short form.
    """
    settings = {f"--{setting.name.replace('_', '-')}" for setting in fields(Settings)}
    options, words = [], iter(training)
    for word in words:
        setting = f"training.{word[2:].replace('-', '_')}"
        options += ["--set", f"{setting}={next(words)}"] if word in settings else [word]
    return options


def _search(cell: Cell, setup: Setup, common: Sequence[str]) -> None:
    how = ["--reranker", cell.reranker]
    how += ["--candidates", "ql"] if cell.is_retrieved and not cell.is_fusion else []
    how += ["--lambda", "1"] if cell.is_mixed else []
    paths = ["--checkpoint", str(setup.checkpoint(cell)), "--output", str(setup.run_file(cell))]
    _command("pipeline.search", "--topics", cell.collection, *how, *paths, *common)


def _command(module: str, *arguments: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True
    )
    if finished.returncode:
        lines = finished.stderr.strip().splitlines() or [f"exit code {finished.returncode}"]
        raise RuntimeError(f"python -m {module} {' '.join(arguments)}: {lines[-1]}")


def _measure(cell: Cell, setup: Setup) -> tuple[dict[str, float], dict[str, float], float | None]:
    """Measures of the run, measures of its mixture with query likelihood, and λ."""
    collection = setup.collection(cell.collection)
    qrels, measures = collection.qrels, collection.measures
    if cell.kind == DRAWN:
        part = named.find_answers(cell.collection, setup.data)
        checkpoint = None if cell.is_untrained else setup.checkpoint(cell)
        return answers.measure_drawn(part, checkpoint), {}, None
    if cell.kind == HELD_OUT:
        held_out = HeldOut.read(setup.checkpoint(cell), cell.collection, setup.data)
        return _means(held_out.qrels, held_out.neural, measures), {}, None
    scores = read_run(setup.run_file(cell))
    mixture = setup.mixture_file(cell)
    if mixture is None:
        return _means(qrels, scores, measures), {}, None
    held_out = HeldOut.read(setup.checkpoint(cell), cell.collection, setup.data)
    folds = min(5, len(held_out.qrels))
    weight = held_out.tune("AP", folds, seed=1).weight
    mixed = interpolate(read_run(collection.runs["ql"]), scores, weight)
    write_run(mixture, mixed, "interpolated")
    return _means(qrels, scores, measures), _means(qrels, mixed, measures), weight


def _means(qrels: Qrels | None, run: Run, measures: Sequence[str]) -> dict[str, float]:
    """Measure -> mean; empty without judgments."""
    if qrels is None:
        return {}
    return {name: round(mean(values), 4) for name, values in evaluate(qrels, run, measures).items()}
