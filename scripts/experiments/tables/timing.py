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
from pipeline.collections.named import open_collection
from pipeline.command.runtime import choose_device, provenance
from pipeline.precomputed import precomputed_for

if TYPE_CHECKING:
    from pipeline.collections.collection import Collection
    from pipeline.collections.trec import Run
    from pipeline.reranking import Candidates, NeuralReranker

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
    collection = open_collection(cell.collection, data=workshop.data)
    with TemporaryDirectory() as directory:
        candidates, *ways = _ways(cell, workshop, collection, Path(directory))
        times = [_quickest(way, candidates) for way in ways]
    found = dict(zip((FROM_TEXTS, FROM_ENCODED), times, strict=True))
    with atomic_file(path) as stream:
        stream.write(json.dumps({"times": found, **provenance()}, indent=1) + "\n")
    return found


def _ways(
    cell: Cell, workshop: Workshop, collection: "Collection", directory: Path
) -> "tuple[Candidates, Way, Way]":
    """Candidates, and how they are scored: from texts, and with posts encoded in a folder."""
    from pipeline.checkpoints import load_reranker
    from pipeline.fusion import Fusion, UnionRetriever
    from pipeline.reranking import retriever_for

    device = choose_device(workshop.device)
    topics = collection.topics[:TOPICS]

    def load(name: str, checkpoint: Path) -> "NeuralReranker":
        return load_reranker(name, collection, checkpoint, device)

    reranker = load(cell.reranker, checkpoint_of(cell, workshop.directory))
    if cell.is_fusion:
        fusion = Fusion.load(collection, reranker, load)
        candidates = UnionRetriever(collection, fusion.rankers).search(topics)
        ready = fusion.precomputed_for(list(candidates.posts.values()), directory)
        return (
            candidates,
            lambda found: fusion.score(fusion.read(found)),
            lambda found: ready.score(ready.read(found)),
        )
    candidates = retriever_for(collection, "ql").search(topics)
    encoded = precomputed_for(reranker, list(candidates.posts.values()), directory / "precomputed")
    return candidates, reranker.score, encoded.score


def _quickest(way: "Way", candidates: "Candidates") -> float:
    """Milliseconds for 1000 candidates."""
    seconds = []
    for _ in range(REPEATS):
        fresh = dataclasses.replace(candidates, memo={})
        started = time.perf_counter()
        way(fresh)
        seconds.append(time.perf_counter() - started)
    count = sum(map(len, candidates.run.values()))
    return round(1e6 * min(seconds) / max(1, count), 1)
