"""Part 4: how the time of a topic grows with its candidates, and with the threads."""

import os
from collections.abc import Callable, Sequence

import numpy as np
import torch

from benchmarks.measuring import Row, alternate
from benchmarks.workload import Workload
from rerankers.base import Pairs
from rerankers.engine.scoring import score

SIZES = (10, 100, 1000, 10_000)
THREADS = (1, 2)
TOPICS = 3


def measure(workload: Workload, sizes: Sequence[int] | None = None) -> list[Row]:
    """Seconds a topic of the shipped MP-HCNN, from texts as strings to scores.

    The candidates of :data:`TOPICS` topics are scored at once, so what is done once for all
    topics counts for a third in each.
    """
    loaded, sizes = workload.checkpoint, sizes or SIZES
    pools = {size: enlarged(workload.all_pairs, size) for size in sizes}
    threads = threads_of(workload.device)

    def way(count: int, pairs: Pairs) -> Callable[[], object]:
        def run() -> object:
            torch.set_num_threads(count)
            return score(loaded.model, pairs, loaded.encoder)

        return run

    before = torch.get_num_threads()
    try:
        timings = alternate(
            {f"{size} {count}": way(count, pools[size]) for size in sizes for count in threads},
            workload.rounds,
        )
    finally:
        torch.set_num_threads(before)
    rows = []
    for size in sizes:
        pairs = pools[size]
        topics = len(pairs.queries)
        first = timings[f"{size} {threads[0]}"]
        measured = []
        for count in threads:
            timing = timings[f"{size} {count}"]
            text = f"{threads_in_words(count)} {timing.median / topics:.3f} s"
            if timing is not first:
                text += f" ({timing.ratio(first):.2f} ×)"
            measured.append(text)
        print(
            f"{size:6,} candidates a topic ({len(pairs.texts):,} distinct in {topics} topics): "
            f"{', '.join(measured)} a topic, {len(pairs) / first.median:,.0f} pairs/s"
        )
        rows.append((f"a topic of {size:,} candidates", ", ".join(measured)))
    return rows


def enlarged(pairs: Pairs, size: int, topics: int = TOPICS) -> Pairs:
    """The first topics with ``size`` candidates each.

    First a topic's own, then those of the other topics, then all of these again.
    """
    rows = []
    queries = list(dict.fromkeys(pairs.query_index.tolist()))[:topics]
    for query in queries:
        own = pairs.post_index[pairs.query_index == query]
        others = np.setdiff1d(pairs.post_index, own)
        rows.append(np.resize(np.concatenate([own, others]), size))
    posts, post_index = np.unique(np.concatenate(rows), return_inverse=True)
    return Pairs(
        [pairs.queries[query] for query in queries],
        [pairs.texts[post] for post in posts],
        [pairs.urls[post] for post in posts],
        np.repeat(np.arange(len(queries)), size),
        post_index.astype(np.int64),
    )


def threads_of(device: str) -> Sequence[int]:
    """Numbers of threads to measure: those that there are cores for; on a GPU one."""
    cores = os.cpu_count() or 1
    return [count for count in THREADS if count <= cores] if device == "cpu" else THREADS[:1]


def threads_in_words(count: int) -> str:
    """``2 threads``."""
    return f"{count} thread{'s' if count > 1 else ''}"
