"""Experiments as cells: one system on one collection with one seed, trained, run and measured.

A finished cell is a JSON file, which is not computed again; a failing one does not stop others. A
table's results are a CSV: a line per cell and measure.
"""

import csv
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm
from tqdm.contrib.concurrent import thread_map

from experiments import left_out
from tweetrerank.indexes.files import atomic_file, write_bytes
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Qrels, Run, read_run, write_run
from tweetrerank.pipeline.defaults import DEFAULT_FUSION
from tweetrerank.pipeline.evaluation.measures import evaluate, mean
from tweetrerank.pipeline.ranking.interpolation import interpolate
from tweetrerank.pipeline.runtime import provenance
from tweetrerank.pipeline.training.cross_validation import HeldOut
from tweetrerank.pipeline.training.memory_retrievers import bm25
from tweetrerank.pipeline.training.training_set import draw_answers
from tweetrerank.rerankers import checkpoint as checkpoints
from tweetrerank.rerankers.text.words import words

# Kinds of models; ``tables.toml`` describes them.
RUN, SHIPPED, HELD_OUT, DRAWN, LEFT_OUT = (
    "run",
    "shipped",
    "held-out",
    "drawn",
    "left-out",
)
OKAPI = f"{DRAWN}:okapi"  # The model of a cell of Okapi BM25
AUTHORS_RUN = f"{RUN}:authors"  # MP-HCNN's (github.com/jinfengr/neural-tweet-search)
BETTER, WORSE, MIXTURE_BETTER = MARKS = (
    "better_than",
    "worse_than",
    "interpolated_better_than",
)
SEPARATOR = "; "  # Of systems in such a column
REPEATS = 10  # Draws for each right answer: of a few hundred one would decide too much


@dataclass(frozen=True)
class Cell:
    """A system to train and measure."""

    system: str  # Row of the table
    model: str  # Name of the reranker, possibly with a kind before it
    training: tuple[
        str, ...
    ]  # Options of ``pipeline.train``; NAME=VALUE stands for one of --set
    collection: (
        str  # Trained on its training part; a microblog year is left out of training
    )
    seed: int = 1

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
    def topics(self) -> int:
        """Topics of a collection that a cell of ``left_out.py`` is measured on, at most."""
        return int(dict(word.split("=") for word in self.training)["topics"])

    @property
    def is_untrained(self) -> bool:
        """Whether the cell is only measured; it then has one seed, and its result is not kept."""
        return self.kind == RUN or self.model == OKAPI

    @property
    def is_retrieved(self) -> bool:
        """Whether a first stage retrieved and scored the collection's candidates."""
        return named.find(self.collection).index_directory is not None

    @property
    def is_mixed(self) -> bool:
        """Whether the neural scores are mixed with query likelihood, with λ tuned here."""
        return self.is_retrieved and not self.kind and self.reranker != DEFAULT_FUSION


@dataclass(frozen=True)
class Result:
    """Measures of a cell."""

    cell: Cell
    measures: dict[str, float]  # Means on the collection; empty without judgments
    interpolated: dict[
        str, float
    ]  # Those of the mixture with query likelihood, if it is mixed
    weight: float | None  # λ of the mixture, tuned on training topics
    development: float  # AP on the development part, or on held-out training topics
    epochs: int  # Of the kept model
    seconds: float  # Wall time of training
    made: dict[str, Any]  # Date, commit and machine
    marks: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    """Column of a CSV -> measure -> systems; one of :data:`MARKS`, the last one of the mixture."""


@dataclass(frozen=True)
class Setup:
    """Folders and device of the experiments; ``directory`` holds all that they keep."""

    directory: Path
    data: Path | None = None
    device: str = "auto"
    workers: int = 1  # Cells at a time

    def command(self, module: str, *arguments: str) -> None:
        """Run a command of the pipeline on this setup's share of the cores."""
        threads = max(1, len(os.sched_getaffinity(0)) // self.workers)
        data = ["--data", str(self.data)] if self.data else []
        _command(
            module,
            *arguments,
            "--threads",
            str(threads),
            "--device",
            self.device,
            *data,
        )

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
        return (
            self.run_file(cell).with_suffix(".interpolated.txt")
            if cell.is_mixed
            else None
        )

    def judged(self, cell: Cell) -> left_out.Judged:
        """Run and judgments of a cell, for the topics that it is measured on."""
        collection = self.collection(cell.collection)
        qrels = collection.qrels or {}
        if cell.kind == LEFT_OUT:
            grades, topics = collection.training_qrels or {}, collection.training_topics
            qrels = {
                topic.query_id: grades[topic.query_id]
                for topic in topics[: cell.topics]
            }
        return read_run(self.run_file(cell)), qrels


def run_cells(cells: Sequence[Cell], setup: Setup) -> tuple[list[Result], list[str]]:
    """Results of the cells, and a line for each that failed."""
    failures: list[str] = []
    # Cells with the same key, under different names in two tables, are computed once.
    distinct = {cell.key: cell for cell in reversed(cells)}

    def run(cell: Cell) -> Result | None:
        try:
            return run_cell(cell, setup)
        except Exception as error:
            failures.append(
                f"{cell.system} on {cell.collection}, seed {cell.seed}: {error}"
            )
            tqdm.write(failures[-1], file=sys.stderr)
            return None

    is_quiet = all(is_finished(cell, setup) for cell in distinct.values())
    bar: Any = {"unit": "cell", "disable": is_quiet or None}
    done = thread_map(run, distinct.values(), max_workers=setup.workers, **bar)
    of_key = {key: result for key, result in zip(distinct, done, strict=True) if result}
    return [replace(of_key[c.key], cell=c) for c in cells if c.key in of_key], failures


def is_finished(cell: Cell, setup: Setup) -> bool:
    """Whether the cell has a result or, without training, needs none."""
    return cell.is_untrained or setup.result_file(cell).exists()


def run_cell(cell: Cell, setup: Setup) -> Result:
    """Train, run and measure one cell, or read its finished result."""
    path, started = setup.result_file(cell), time.perf_counter()
    if path.exists():
        return Result(**json.loads(path.read_text(encoding="utf-8")) | {"cell": cell})
    if cell.is_untrained:
        # Not kept: measuring is cheap, and the run file may be replaced.
        return Result(cell, *_measure(cell, setup), 0.0, 0, 0.0, provenance())
    made, trained = provenance(), _train(cell, setup)
    seconds = round(time.perf_counter() - started, 1)
    if cell.kind in ("", SHIPPED):
        how = ["--reranker", cell.reranker, "--checkpoint", str(setup.checkpoint(cell))]
        how += ["--candidates", "ql"] * (cell.is_mixed or cell.kind == SHIPPED)
        how += ["--lambda", "1"] * cell.is_mixed
        how += ["--output", str(setup.run_file(cell))]
        setup.command("pipeline.search", "--topics", cell.collection, *how)
    result = Result(cell, *_measure(cell, setup), *trained, seconds, made)
    content = json.dumps(asdict(result), indent=1, ensure_ascii=False)
    write_bytes(path, f"{content}\n".encode())
    return result


def _train(cell: Cell, setup: Setup) -> tuple[float, int]:
    """AP on the development part, and epochs of the kept model; a form's run is written."""
    if cell.kind == LEFT_OUT:
        run = left_out.run_of(cell.reranker, cell.collection, cell.topics, setup.data)
        write_run(setup.run_file(cell), run, cell.reranker)
        return 0.0, 0
    checkpoint = setup.checkpoint(cell)
    if not (checkpoint / "config.json").exists():
        options = ["--test" if cell.is_retrieved else "--collection", cell.collection]
        # One held-out part suffices for early stopping and λ, at a fifth of the cost.
        options += ["--folds", "1"] * (cell.is_mixed and "--folds" not in cell.training)
        for word in cell.training:
            options += ["--set", word] if "=" in word else [word]
        options += ["--seed", str(cell.seed), "--output", str(checkpoint)]
        setup.command("pipeline.train", cell.reranker, *options)
    metrics = json.loads((checkpoint / "metrics.json").read_text(encoding="utf-8"))
    return metrics["validation"]["AP"], metrics.get("epochs", 0)


def _command(module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        lines = finished.stderr.strip().splitlines() or [
            f"exit code {finished.returncode}"
        ]
        raise RuntimeError(f"python -m {module} {' '.join(arguments)}: {lines[-1]}")


def _measure(
    cell: Cell, setup: Setup
) -> tuple[dict[str, float], dict[str, float], float | None]:
    """Measures of the run, measures of its mixture with query likelihood, and λ."""
    checkpoint, mixture = setup.checkpoint(cell), setup.mixture_file(cell)
    if cell.kind == DRAWN:
        part = named.find_answers(cell.collection, setup.data)
        return measure_drawn(part, None if cell.is_untrained else checkpoint), {}, None
    collection = setup.collection(cell.collection)
    measures = ["AP"] if cell.kind == LEFT_OUT else collection.measures
    if cell.kind == HELD_OUT or mixture:
        held_out = HeldOut.read(checkpoint, cell.collection, setup.data)
    if cell.kind == HELD_OUT:
        return means(held_out.qrels, held_out.neural, measures), {}, None
    scores, qrels = setup.judged(cell)
    if mixture is None:
        return means(qrels, scores, measures), {}, None
    weight = held_out.tune("AP", min(5, len(held_out.qrels))).weight
    mixed = interpolate(read_run(collection.runs["ql"]), scores, weight)
    write_run(mixture, mixed, "interpolated")
    return means(qrels, scores, measures), means(qrels, mixed, measures), weight


def means(qrels: Qrels | None, run: Run, measures: Sequence[str]) -> dict[str, float]:
    """Measure -> mean; empty without judgments."""
    values = evaluate(qrels, run, measures) if qrels else {}
    return {name: round(mean(of_topics), 4) for name, of_topics in values.items()}


def measure_drawn(part: Collection, checkpoint: Path | None) -> dict[str, float]:
    """Means over all draws, of a trained model or, without one, of Okapi."""
    drawn = draw_answers(part, REPEATS)
    if checkpoint is None:
        scores, given = (
            okapi({p.doc_id: p.text for p in part.posts()}),
            drawn.candidates,
        )
        run = {t.query_id: scores(t.text, given.run[t.query_id]) for t in given.topics}
    else:
        run = drawn.candidates.scored_by(checkpoints.load(checkpoint))
    return means(drawn.qrels, run, ("P@1", "RR"))


def okapi(texts: Mapping[str, str]) -> Callable[[str, Iterable[str]], dict[str, float]]:
    """BM25 (Robertson et al. 1994): scores of a query and doc_ids of ``texts``, by doc_id."""
    rows = {doc_id: row for row, doc_id in enumerate(texts)}
    score = bm25([" ".join(words(text)) for text in texts.values()])

    def scores(query: str, doc_ids: Iterable[str]) -> dict[str, float]:
        found = score(Topic("", " ".join(words(query)))).tolist()
        return {doc_id: found[rows[doc_id]] for doc_id in doc_ids}

    return scores


def add_to_csv(path: Path, results: Sequence[Result]) -> None:
    """Write results: those of a file's cells are replaced in their place, others come last."""
    known = read_csv(path) if path.exists() else []
    rows = {
        (r.cell.system, r.cell.collection, r.cell.seed): r for r in [*known, *results]
    }
    # Without judgments: one line without a measure.
    lines = [
        _line(result, name)
        for result in rows.values()
        for name in result.measures or ("",)
    ]
    with atomic_file(path) as stream:
        writer = csv.DictWriter(stream, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _line(result: Result, measure: str) -> dict[str, object]:
    return {
        **{
            name: getattr(result.cell, name)
            for name in ("system", "collection", "seed")
        },
        "measure": measure,
        "value": result.measures.get(measure, ""),
        "interpolated": result.interpolated.get(measure, ""),
        "lambda": result.weight,
        "development_ap": result.development,
        "epochs": result.epochs,
        "seconds": result.seconds,
        **{name: result.made[name] for name in ("date", "commit", "machine")},
        **{
            name: SEPARATOR.join(result.marks.get(name, {}).get(measure, ()))
            for name in MARKS
        },
    }


def read_csv(path: Path) -> list[Result]:
    """Read results back, without the model and training options of their cells."""
    results: dict[Cell, Result] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            cell = Cell(row["system"], "", (), row["collection"], int(row["seed"]))
            weight, measure = (
                float(row["lambda"]) if row["lambda"] else None,
                row["measure"],
            )
            costs = (
                float(row["development_ap"]),
                int(row["epochs"]),
                float(row["seconds"]),
            )
            result = results.setdefault(cell, Result(cell, {}, {}, weight, *costs, row))
            result.measures.update({measure: float(row["value"])} if measure else {})
            if row["interpolated"]:
                result.interpolated[measure] = float(row["interpolated"])
            for name in filter(row.get, MARKS):
                result.marks.setdefault(name, {})[measure] = tuple(
                    row[name].split(SEPARATOR)
                )
    return list(results.values())
