"""How long reranking takes once the candidates and the scores that it reads are there."""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from experiments.cells import Cell, checkpoint_of
from experiments.tables.contract import Workshop
from indexes.files import atomic_file
from pipeline import fusion
from pipeline.collections.sources import open_source
from pipeline.command.runtime import choose_device, provenance
from pipeline.first_stage import FirstStage
from pipeline.precomputed import precomputed_for

if TYPE_CHECKING:
    from pipeline.collections.sources import Source
    from pipeline.collections.trec import Run
    from pipeline.reranking import Candidates

TOPICS = 20
"""First topics of a collection that are timed."""

REPEATS = 10
"""The quickest of so many counts: whatever else the machine does only adds."""

FROM_TEXTS, FROM_ENCODED = "ms for 1000", "ms for 1000, posts encoded"
"""What is measured: see :func:`milliseconds`."""


Way = Callable[["Candidates"], "Run"]
"""Candidates to their scores."""


def milliseconds(cell: Cell, workshop: Workshop) -> Mapping[str, float]:
    """Milliseconds for 1000 candidates, from their texts to their scores by the cell's model.

    ``FROM_TEXTS``, and ``FROM_ENCODED`` where ``pipeline.index --precompute`` has seen the posts.
    The scores of other models that a fusion reads are in it, the searches are not. They are
    measured once on all cores, while no cell is computed, and kept beside the results.

    Raises:
        DataError: the collection's files, or the checkpoint of a model that is read, are missing.
        RerankerError: a checkpoint is damaged.
    """
    path = workshop.directory / "timings" / f"{cell.key}.json"
    kept: dict[str, float] | None = None
    if path.exists():  # What older versions measured was something else.
        kept = json.loads(path.read_text(encoding="utf-8")).get("times")
    if kept is not None:
        return kept
    source = open_source(cell.collection, None, None, workshop.data)
    source = dataclasses.replace(source, topics=source.topics[:TOPICS])
    with TemporaryDirectory() as directory:
        candidates, *ways = _ways(cell, workshop, source, Path(directory))
        times = [_quickest(way, candidates) for way in ways]
    found = dict(zip((FROM_TEXTS, FROM_ENCODED), times, strict=True))
    with atomic_file(path) as stream:
        stream.write(json.dumps({"times": found, **provenance()}, indent=1) + "\n")
    return found


def _ways(
    cell: Cell, workshop: Workshop, source: "Source", directory: Path
) -> "tuple[Candidates, Way, Way]":
    """Candidates, and how they are scored: from texts, and with posts encoded in a folder."""
    from pipeline.checkpoints import load_reranker
    from pipeline.reranking import NeuralReranker

    device = choose_device(workshop.device)
    reranker = NeuralReranker.load(checkpoint_of(cell, workshop.directory), cell.reranker, device)
    if cell.is_fusion:
        fused = fusion.Fusion.of(
            reranker, lambda name, part: load_reranker(name, source, part, device)
        )
        candidates = fused.search(source)
        ready = fused.precomputed_for(list(candidates.posts.values()), directory)
        return (
            candidates,
            lambda found: fused.score(found).run(),
            lambda found: ready.score(found).run(),
        )
    candidates = FirstStage(source, "ql").search(source.topics)
    encoded = precomputed_for(reranker, list(candidates.posts.values()), directory / "precomputed")
    return candidates, reranker.score, encoded.score


def _quickest(way: "Way", candidates: "Candidates") -> float:
    """Milliseconds for 1000 candidates."""
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        way(candidates)
        seconds.append(time.perf_counter() - started)
    count = sum(map(len, candidates.run.values()))
    return round(1e6 * min(seconds) / max(1, count), 1)
