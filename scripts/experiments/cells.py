"""The cells of experiments, their results, and the files and commands they need."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.trec import Qrels, Run, read_run
from tweetrerank.pipeline.defaults import DEFAULT_FUSION
from tweetrerank.rerankers import checkpoint as checkpoints

# The kinds of models, which ``tables.toml`` describes
RUN = "run"
SHIPPED = "shipped"
HELD_OUT = "held-out"
DRAWN = "drawn"
LEFT_OUT = "left-out"

OKAPI = f"{DRAWN}:okapi"  # Model of a cell that measures Okapi BM25
AUTHORS_RUN = f"{RUN}:authors"  # MP-HCNN's (github.com/jinfengr/neural-tweet-search)

BETTER = "better_than"
WORSE = "worse_than"
MIXTURE_BETTER = "interpolated_better_than"
MARKS = (BETTER, WORSE, MIXTURE_BETTER)  # Columns of a CSV file

Judged = tuple[Run, Qrels]


@dataclass(frozen=True)
class Cell:
    """A system to train and measure on one collection, with one seed."""

    system: str  # Name of the row in the table
    model: str  # Name of the reranker, perhaps with a kind before it
    training: tuple[str, ...]
    """Options for ``pipeline.train``; NAME=VALUE is short for ``--set NAME=VALUE``."""
    collection: str
    """The collection that is tested, and also trained on if it is no microblog year."""
    seed: int = 1

    @property
    def key(self) -> str:
        """Name of the cell's files, from its model, options, collection and seed."""
        content = json.dumps([self.model, self.training, self.collection, self.seed])
        name = f"{self.model}-{self.collection}".replace(":", "-")
        return f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"

    @property
    def kind(self) -> str:
        """The kind in ``model``; "" for a cell that is trained and searched."""
        return self.model.rpartition(":")[0]

    @property
    def reranker(self) -> str:
        """Name of the reranker, or of the official run."""
        return self.model.rpartition(":")[2]

    @property
    def topics(self) -> int:
        """The largest number of topics, for a cell of ``left_out.py``."""
        return int(dict(word.split("=") for word in self.training)["topics"])

    @property
    def is_untrained(self) -> bool:
        """Whether the cell is only measured, with one seed and no kept result."""
        return self.kind == RUN or self.model == OKAPI

    @property
    def is_retrieved(self) -> bool:
        """Whether a first stage has retrieved and scored the candidates."""
        return named.find(self.collection).index_directory is not None

    @property
    def is_mixed(self) -> bool:
        """Whether the neural scores are mixed with query likelihood, by a tuned λ."""
        return self.is_retrieved and not self.kind and self.reranker != DEFAULT_FUSION


@dataclass(frozen=True)
class Result:
    """The measures of a cell, and how they were made."""

    cell: Cell
    measures: dict[str, float]  # Means on the collection; empty without judgments
    interpolated: dict[str, float]
    """Means of the mixture with query likelihood; empty if the cell has no mixture."""
    weight: float | None  # λ of the mixture, tuned on training topics
    development: float  # AP on the development part, or on held-out training topics
    epochs: int  # Epochs until the best one
    seconds: float  # Time of training, by the clock
    made: dict[str, Any]  # The date, commit and machine
    marks: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    """For each of :data:`MARKS` and each measure, the systems that it is about."""


@dataclass(frozen=True)
class Setup:
    """The folders and the device of the experiments.

    ``directory`` has all files of cells.
    """

    directory: Path
    data: Path | None = None
    device: str = "auto"
    workers: int = 1  # Number of cells at a time

    def command(
        self,
        module: str,
        arguments: Sequence[str],
    ) -> None:
        """Run a command of the pipeline on one worker's share of the cores.

        Raises RuntimeError if the command fails.
        """
        threads = max(1, len(os.sched_getaffinity(0)) // self.workers)
        shared = ["--threads", str(threads), "--device", self.device]
        if self.data:
            shared += ["--data", str(self.data)]
        _run_module(module, list(arguments) + shared)

    def collection(self, name: str) -> Collection:
        """Return the named collection in the data folder."""
        return named.find(name, self.data)

    def result_file(self, cell: Cell) -> Path:
        """Return the path of the JSON file that a finished cell has."""
        return self.directory / "results" / f"{cell.key}.json"

    def checkpoint(self, cell: Cell) -> Path:
        """Return the folder of a cell's checkpoint."""
        if cell.kind == SHIPPED:
            return checkpoints.SHIPPED / cell.reranker / cell.collection
        return self.directory / "checkpoints" / cell.key

    def run_file(self, cell: Cell) -> Path:
        """Return the path of a cell's run file."""
        if cell.model == AUTHORS_RUN:
            name = f"mphcnn_trec_{cell.collection.removeprefix('mb')}_pred.txt"
            return named.data_directory(self.data) / "microblog" / "runs" / name
        if cell.kind == RUN:
            return self.collection(cell.collection).runs[cell.reranker]
        return self.directory / "runs" / f"{cell.key}.txt"

    def mixture_file(self, cell: Cell) -> Path | None:
        """Return the path of the mixture's run file, or None without a mixture."""
        if not cell.is_mixed:
            return None
        return self.run_file(cell).with_suffix(".interpolated.txt")

    def judged(self, cell: Cell) -> Judged:
        """Return a cell's run, and the judgments of the topics it is measured on."""
        collection = self.collection(cell.collection)
        if cell.kind == LEFT_OUT:
            grades = collection.training_qrels or {}
            topics = collection.training_topics[: cell.topics]
            qrels = {topic.query_id: grades[topic.query_id] for topic in topics}
        else:
            qrels = collection.qrels or {}
        return read_run(self.run_file(cell)), qrels


def _run_module(module: str, arguments: Sequence[str]) -> None:
    command = [sys.executable, "-m", module]
    command += arguments
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"exit code {process.returncode}"
        raise RuntimeError(f"python -m {module} {' '.join(arguments)}: {reason}")
