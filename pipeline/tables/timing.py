"""How long reranking takes once the candidates and the scores that it reads are there."""

import dataclasses
import json
import time
from typing import TYPE_CHECKING

from indexes.files import atomic_file
from pipeline import fusion
from pipeline.experiments import Cell, checkpoint_of
from pipeline.first_stage import FirstStage
from pipeline.runtime import choose_device, provenance
from pipeline.sources import open_source
from pipeline.tables.contract import Workshop

if TYPE_CHECKING:
    from pipeline.reranking import Candidates, NeuralReranker
    from pipeline.sources import Source

TOPICS = 20
"""First topics of a collection that are timed."""

REPEATS = 3
"""The quickest of so many counts: whatever else the machine does only adds."""


def milliseconds(cell: Cell, workshop: Workshop) -> float:
    """Milliseconds a topic from the candidates' texts to their scores by the cell's model.

    Neither the search nor the scores of rankers and other models that a fusion reads are in it.
    It is measured once on all cores, while no cell is computed, and kept beside the results.

    Raises:
        DataError: the collection's files, or the checkpoint of a model that is read, are missing.
        RerankerError: a checkpoint is damaged.
    """
    path = workshop.directory / "timings" / f"{cell.key}.json"
    if path.exists():
        return float(json.loads(path.read_text(encoding="utf-8"))["milliseconds"])
    from pipeline.reranking import NeuralReranker

    device = choose_device(workshop.device)
    source = open_source(cell.collection, None, None, workshop.data)
    source = dataclasses.replace(source, topics=source.topics[:TOPICS])
    reranker = NeuralReranker.load(checkpoint_of(cell, workshop.directory), cell.reranker, device)
    candidates = _candidates(cell, source, reranker, device)
    seconds = min(_seconds(reranker, candidates) for _ in range(REPEATS))
    found = round(1000 * seconds / len(source.topics), 1)
    with atomic_file(path) as stream:
        stream.write(json.dumps({"milliseconds": found, **provenance()}, indent=1) + "\n")
    return found


def _candidates(
    cell: Cell, source: "Source", reranker: "NeuralReranker", device: str
) -> "Candidates":
    """Those that the cell's search had."""
    from pipeline.checkpoints import load_reranker

    if cell.is_fusion:
        return fusion.find(
            source, reranker, lambda name: load_reranker(name, source, device=device)
        )
    return FirstStage(source, "ql").search(source.topics)


def _seconds(reranker: "NeuralReranker", candidates: "Candidates") -> float:
    started = time.perf_counter()
    reranker.score(candidates)
    return time.perf_counter() - started
