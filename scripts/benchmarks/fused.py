"""Part 9: the learned fusion, with posts read now and beforehand."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.growth import threads_in_words, threads_of
from benchmarks.measuring import Row, alternate
from benchmarks.workload import Workload
from pipeline.checkpoints import load_reranker
from pipeline.fusion import Fusion, UnionRetriever
from pipeline.reranking import Candidates

TOPICS = 20

NOW, BEFOREHAND = "posts read now", "posts read beforehand"


def measure(workload: Workload) -> list[Row]:
    """Milliseconds for 1000 candidates of the fusion for the collection, from texts to scores.

    The scores of neural models that it reads are in it, searches come before it.
    """
    source = workload.source
    reranker = load_reranker("fusion", source)
    fused = Fusion.load(source, reranker, lambda name, part: load_reranker(name, source, part))
    candidates = UnionRetriever(source, fused.rankers).search(source.topics[:TOPICS])
    with TemporaryDirectory() as directory:
        encoded = fused.precomputed_for(list(candidates.posts.values()), Path(directory))
        size = sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())
        print(f"reading {len(candidates.posts):,} posts: {size / 1e6:,.0f} MB on the disk")
        return _compare({NOW: fused, BEFOREHAND: encoded}, candidates, workload)


def _compare(ready: dict[str, Fusion], candidates: Candidates, workload: Workload) -> list[Row]:
    """Each way on one thread and on several, in turn."""
    threads, pairs = threads_of("cpu"), len(candidates.keys())

    def way(fused: Fusion, count: int) -> Callable[[], object]:
        def run() -> object:
            torch.set_num_threads(count)
            return fused.score(fused.read(replace(candidates, memo={})))

        return run

    before = torch.get_num_threads()
    try:
        timings = alternate(
            {f"{name} {n}": way(fused, n) for name, fused in ready.items() for n in threads},
            workload.rounds,
        )
    finally:
        torch.set_num_threads(before)
    first, rows = timings[f"{NOW} {threads[0]}"], []
    for name in ready:
        measured = []
        for count in threads:
            timing = timings[f"{name} {count}"]
            text = f"{threads_in_words(count)} {1e6 * timing.median / pairs:.1f} ms"
            measured.append(text if timing is first else f"{text} ({timing.ratio(first):.2f} ×)")
        print(f"fusion, {name}: {', '.join(measured)} for 1000 candidates")
        rows.append((f"fusion, 1000 candidates, {name}", ", ".join(measured)))
    return rows
