"""Part 9: the learned fusion's features and trees, with posts read now and beforehand."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.growth import threads_in_words, threads_of
from benchmarks.measuring import Row, alternate
from benchmarks.workload import Workload
from pipeline.checkpoints import load_reranker
from pipeline.fusion import MODELS, Fusion
from rerankers.base import Pairs
from rerankers.checkpoint import Checkpoint
from rerankers.encoding import encode, open_encodings

TOPICS = 20

NOW, BEFOREHAND = "posts read now", "posts read beforehand"


def measure(workload: Workload) -> list[Row]:
    """Milliseconds for 1000 candidates of the fusion for the collection, from texts to scores.

    Searches, and the scores of neural models that it reads, come before it.
    """
    source = replace(workload.source, topics=workload.source.topics[:TOPICS])
    reranker = load_reranker(MODELS["learned"], source)
    learned = Fusion.of(reranker, lambda name, part: load_reranker(name, source, part))
    candidates = learned.read(learned.search(source))
    pairs, loaded = candidates.pairs(), reranker.checkpoint
    with TemporaryDirectory() as directory:
        folder = Path(directory) / "encodings"
        size = encode(folder, loaded, pairs.texts, pairs.urls)
        print(f"reading {len(pairs.texts):,} posts: {size / 1e6:,.0f} MB on the disk")
        ready = {
            NOW: loaded,
            BEFOREHAND: replace(loaded, encodings=open_encodings(folder, loaded, "measure again")),
        }
        return _compare(ready, pairs, workload)


def _compare(ready: dict[str, Checkpoint], pairs: Pairs, workload: Workload) -> list[Row]:
    """Each way on one thread and on several, in turn."""
    threads = threads_of("cpu")

    def way(fused: Checkpoint, count: int) -> Callable[[], object]:
        def run() -> object:
            torch.set_num_threads(count)
            return fused.score(pairs)

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
            text = f"{threads_in_words(count)} {1e6 * timing.median / len(pairs):.1f} ms"
            measured.append(text if timing is first else f"{text} ({timing.ratio(first):.2f} ×)")
        print(f"fusion, {name}: {', '.join(measured)} for 1000 candidates")
        rows.append((f"fusion, 1000 candidates, {name}", ", ".join(measured)))
    return rows
