"""Trains and measures cells.

The result of a finished cell is kept in a JSON file, and the cell is not computed
again. If a cell fails, the others still run.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm
from tqdm.contrib.concurrent import thread_map

from experiments import left_out
from experiments.cells import DRAWN, HELD_OUT, LEFT_OUT, SHIPPED, Cell, Result, Setup
from tweetrerank.indexes.files import write_bytes
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Qrels, Run, read_run, write_run
from tweetrerank.pipeline.evaluation.measures import evaluate, mean
from tweetrerank.pipeline.ranking.interpolation import interpolate
from tweetrerank.pipeline.runtime import provenance
from tweetrerank.pipeline.training.cross_validation import HeldOut
from tweetrerank.pipeline.training.memory_retrievers import bm25
from tweetrerank.pipeline.training.training_set import draw_answers
from tweetrerank.rerankers import checkpoint as checkpoints
from tweetrerank.rerankers.text.words import words

REPEATS = 10  # Draws for each right answer, as results of a single draw vary too much


class Training(NamedTuple):
    """The outcome of a cell's training."""

    development: float = 0.0  # AP on the development part of the collection
    epochs: int = 0  # Epochs until the best one


@dataclass(frozen=True)
class Measured:
    """The mean measures of a cell's run, and of its mixture with query likelihood."""

    measures: dict[str, float]
    interpolated: dict[str, float] = field(default_factory=dict)
    weight: float | None = None  # λ of the mixture


def run_cells(
    cells: Sequence[Cell],
    setup: Setup,
) -> tuple[list[Result], list[str]]:
    """Return the results of the cells, and a line for each cell that failed."""
    failures: list[str] = []
    # Two tables may contain the same cell under different names.
    distinct = {cell.key: cell for cell in reversed(cells)}

    def run(cell: Cell) -> Result | None:
        try:
            return run_cell(cell, setup)
        except Exception as error:
            place = f"{cell.system} on {cell.collection}, seed {cell.seed}"
            failures.append(f"{place}: {error}")
            tqdm.write(failures[-1], file=sys.stderr)
            return None

    is_quiet = all(is_finished(cell, setup) for cell in distinct.values())
    results = thread_map(
        run,
        distinct.values(),
        max_workers=setup.workers,
        unit="cell",
        disable=is_quiet or None,
    )
    result_of_key = dict(zip(distinct, results, strict=True))
    completed = []
    for cell in cells:
        result = result_of_key[cell.key]
        if result is not None:
            completed.append(replace(result, cell=cell))
    return completed, failures


def is_finished(cell: Cell, setup: Setup) -> bool:
    """Whether the cell has a result, or needs none because nothing is trained."""
    return cell.is_untrained or setup.result_file(cell).exists()


def run_cell(cell: Cell, setup: Setup) -> Result:
    """Train, run and measure a cell, or read its result if it is finished."""
    started = time.perf_counter()
    path = setup.result_file(cell)
    if path.exists():
        fields = json.loads(path.read_text(encoding="utf-8"))
        return Result(**fields | {"cell": cell})
    if cell.is_untrained:
        # The result is not kept, as measuring is cheap and the run file may change.
        return _result(
            cell,
            _measure(cell, setup),
            Training(),
            0.0,
            provenance(),
        )
    record = provenance()
    training = _train(cell, setup)
    seconds = round(time.perf_counter() - started, 1)
    if cell.kind in ("", SHIPPED):
        _search(cell, setup)
    result = _result(
        cell,
        _measure(cell, setup),
        training,
        seconds,
        record,
    )
    content = json.dumps(
        asdict(result),
        indent=1,
        ensure_ascii=False,
    )
    write_bytes(path, f"{content}\n".encode())
    return result


def _result(
    cell: Cell,
    measured: Measured,
    training: Training,
    seconds: float,
    record: dict[str, object],
) -> Result:
    return Result(
        cell,
        measured.measures,
        measured.interpolated,
        measured.weight,
        training.development,
        training.epochs,
        seconds,
        record,
    )


def _train(cell: Cell, setup: Setup) -> Training:
    """Train the model of a cell, unless its checkpoint exists.

    For a cell of ``left_out.py``, write its run instead.
    """
    if cell.kind == LEFT_OUT:
        run = left_out.run_of(
            cell.reranker,
            cell.collection,
            cell.topics,
            setup.data,
        )
        write_run(setup.run_file(cell), run, cell.reranker)
        return Training()
    checkpoint = setup.checkpoint(cell)
    if not (checkpoint / "config.json").exists():
        setup.command("pipeline.train", _training_arguments(cell, checkpoint))
    metrics = json.loads((checkpoint / "metrics.json").read_text(encoding="utf-8"))
    return Training(metrics["validation"]["AP"], metrics.get("epochs", 0))


def _training_arguments(cell: Cell, checkpoint: Path) -> list[str]:
    role = "--test" if cell.is_retrieved else "--collection"
    arguments = [cell.reranker, role, cell.collection]
    if cell.is_mixed and "--folds" not in cell.training:
        # One held-out part is enough for early stopping and λ, and costs a fifth.
        arguments += ["--folds", "1"]
    for word in cell.training:
        if "=" in word:
            arguments.append("--set")
        arguments.append(word)
    arguments += ["--seed", str(cell.seed), "--output", str(checkpoint)]
    return arguments


def _search(cell: Cell, setup: Setup) -> None:
    """Write the run that the checkpoint of a cell makes."""
    arguments = ["--topics", cell.collection, "--reranker", cell.reranker]
    arguments += ["--checkpoint", str(setup.checkpoint(cell))]
    if cell.is_mixed or cell.kind == SHIPPED:
        arguments += ["--candidates", "ql"]
    if cell.is_mixed:
        arguments += ["--lambda", "1"]
    arguments += ["--output", str(setup.run_file(cell))]
    setup.command("pipeline.search", arguments)


def _measure(cell: Cell, setup: Setup) -> Measured:
    checkpoint = setup.checkpoint(cell)
    if cell.kind == DRAWN:
        part = named.find_answers(cell.collection, setup.data)
        source = None if cell.is_untrained else checkpoint
        return Measured(measure_drawn(part, source))
    collection = setup.collection(cell.collection)
    if cell.kind == HELD_OUT:
        held_out = HeldOut.read(checkpoint, cell.collection, setup.data)
        return Measured(
            means(
                held_out.qrels,
                held_out.neural,
                collection.measures,
            )
        )
    scores, qrels = setup.judged(cell)
    measures = ["AP"] if cell.kind == LEFT_OUT else collection.measures
    measured = Measured(means(qrels, scores, measures))
    mixture = setup.mixture_file(cell)
    if mixture is None:
        return measured
    held_out = HeldOut.read(checkpoint, cell.collection, setup.data)
    weight = held_out.tune("AP", min(5, len(held_out.qrels))).weight
    mixed = interpolate(
        read_run(collection.runs["ql"]),
        scores,
        weight,
    )
    write_run(mixture, mixed, "interpolated")
    return replace(
        measured,
        interpolated=means(
            qrels,
            mixed,
            measures,
        ),
        weight=weight,
    )


def means(
    qrels: Qrels | None,
    run: Run,
    measures: Sequence[str],
) -> dict[str, float]:
    """Return the mean of each measure, or nothing if there are no judgments."""
    if not qrels:
        return {}
    values = evaluate(qrels, run, measures)
    return {name: round(mean(of_topics), 4) for name, of_topics in values.items()}


def measure_drawn(
    part: Collection,
    checkpoint: Path | None,
) -> dict[str, float]:
    """Return the means over all draws, for a trained model or else for Okapi."""
    drawn = draw_answers(part, REPEATS)
    candidates = drawn.candidates
    if checkpoint is None:
        scores = okapi({post.doc_id: post.text for post in part.posts()})
        run = {
            topic.query_id: scores(topic.text, candidates.run[topic.query_id])
            for topic in candidates.topics
        }
    else:
        run = candidates.scored_by(checkpoints.load(checkpoint))
    return means(drawn.qrels, run, ("P@1", "RR"))


def okapi(texts: Mapping[str, str]) -> Callable[[str, Iterable[str]], dict[str, float]]:
    """Return a function that scores texts by BM25 (Robertson et al. 1994).

    It takes a query and some doc_ids of ``texts``, and returns their scores.
    """
    rows = {doc_id: row for row, doc_id in enumerate(texts)}
    score = bm25([" ".join(words(text)) for text in texts.values()])

    def scores(
        query: str,
        doc_ids: Iterable[str],
    ) -> dict[str, float]:
        values = score(Topic("", " ".join(words(query)))).tolist()
        return {doc_id: values[rows[doc_id]] for doc_id in doc_ids}

    return scores
