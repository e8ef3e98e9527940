"""The learned fusion: from texts to scores, with posts read now and with precomputed ones."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measuring import Row, alternate, compared, threads
from benchmarks.workload import Workload
from pipeline.ranking.checkpoints import load_scorer
from pipeline.ranking.fusion import Fusion, UnionRetriever
from pipeline.ranking.scorers import ModelScorer

TOPICS = 20
"""First topics of the collection."""


def measure(workload: Workload) -> list[Row]:
    """Milliseconds for 1000 candidates, on one thread and on two.

    Searches are excluded, neural scores that the fusion reads are included.
    """
    collection = workload.source

    def load(name: str, folder: Path | None = None) -> ModelScorer:
        return load_scorer(name, collection, folder)

    now = Fusion.load(collection, load("fusion"), load)
    candidates = UnionRetriever(collection, now.retriever.rankers).search(
        collection.topics[:TOPICS]
    )

    def score(fusion: Fusion, count: int) -> Any:
        with threads(count):
            return fusion.score(fusion.read(replace(candidates, memo={})))

    with TemporaryDirectory() as folder:
        ready = now.precomputed_for(list(candidates.posts.values()), Path(folder))
        ways = {
            f"{name}, {count} thread{'s' * (count > 1)}": partial(score, fusion, count)
            for name, fusion in {"posts read now": now, "posts precomputed": ready}.items()
            for count in range(1, min(2, os.cpu_count() or 1) + 1)
        }
        timings = alternate(ways, workload.rounds)
    pairs = len(candidates.keys())
    return compared(
        "fusion, 1000 candidates", timings, lambda timing: f"{1e6 * timing.median / pairs:.1f} ms"
    )
