"""The learned fusion: from texts to scores, with posts read now and with precomputed ones."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measuring import Row, alternate, compared, threads
from benchmarks.workload import Workload
from pipeline.collections.collection import Collection
from pipeline.ranking.checkpoints import load_reranker
from pipeline.ranking.fusion import Fusion, UnionRetriever
from pipeline.ranking.ranker import Candidates, NeuralReranker

TOPICS = 20
"""First topics of the collection."""


def scorers(
    collection: Collection, reranker: NeuralReranker, directory: Path, device: str = "cpu"
) -> tuple[Candidates, dict[str, Callable[[], Any]]]:
    """Candidates, and their scoring with posts read now and precomputed in a folder.

    Searches are excluded, neural scores that the fusion reads are included.
    """

    def load(name: str, folder: Path) -> NeuralReranker:
        return load_reranker(name, collection, folder, device)

    now = Fusion.load(collection, reranker, load)
    candidates = UnionRetriever(collection, now.rankers).search(collection.topics[:TOPICS])
    ready = now.precomputed_for(list(candidates.posts.values()), directory)

    def score(fusion: Fusion) -> Any:
        return fusion.score(fusion.read(replace(candidates, memo={})))

    ways = {"posts read now": partial(score, now), "posts precomputed": partial(score, ready)}
    return candidates, ways


def measure(workload: Workload) -> list[Row]:
    """Milliseconds for 1000 candidates, on one thread and on two."""
    collection = workload.source

    def on(count: int, way: Callable[[], Any]) -> Any:
        with threads(count):
            return way()

    with TemporaryDirectory() as directory:
        reranker = load_reranker("fusion", collection)
        candidates, ways = scorers(collection, reranker, Path(directory))
        timings = alternate(
            {
                f"{name}, {count} thread{'s' * (count > 1)}": partial(on, count, way)
                for name, way in ways.items()
                for count in range(1, min(2, os.cpu_count() or 1) + 1)
            },
            workload.rounds,
        )
    pairs = len(candidates.keys())
    return compared(
        "fusion, 1000 candidates", timings, lambda timing: f"{1e6 * timing.median / pairs:.1f} ms"
    )
