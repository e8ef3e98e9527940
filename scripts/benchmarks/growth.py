"""Part 4: time per topic by number of candidates and of threads."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from benchmarks.measuring import Row, Timing, alternate, by_threads, compared
from benchmarks.workload import Workload
from rerankers.base import Pairs
from rerankers.engine.scoring import score

SIZES = (10, 100, 1000, 10_000)
TOPICS = 3


def measure(workload: Workload, sizes: Sequence[int] | None = None) -> list[Row]:
    """Seconds per topic of the shipped MP-HCNN, from strings to scores.

    :data:`TOPICS` topics are scored in one call, so each bears a third of the fixed costs.
    """
    loaded, rows = workload.checkpoint, []
    for size in sizes or SIZES:
        pairs = enlarged(workload.all_pairs, size)
        topics, posts = len(pairs.queries), len(pairs.texts)
        print(f"{size:,} candidates a topic, {posts:,} distinct ones in {topics} topics")
        ways = by_threads(partial(score, loaded.model, pairs, loaded.encoder), workload.device)
        timings = alternate(ways, workload.rounds)
        per_topic = partial(_seconds, topics=topics)
        rows += compared(f"a topic of {size:,} candidates", timings, per_topic)
    return rows


def _seconds(timing: Timing, topics: int) -> str:
    return f"{timing.median / topics:.3f} s"


def enlarged(pairs: Pairs, size: int, topics: int = TOPICS) -> Pairs:
    """The first topics with ``size`` candidates each.

    A topic's own candidates come first, then those of other topics, then all of them again.
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
