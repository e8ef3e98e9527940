"""Part 6: indexing, and the commands' ``--help``."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measuring import Row, Timing, alternate
from benchmarks.workload import Workload
from indexes import lucene
from pipeline.collections import named
from pipeline.collections.collection import SearchedCollection

COMMANDS = ("search", "rerank", "index", "train", "evaluate", "explain")


def measure(workload: Workload) -> list[Row]:
    """Posts/s of indexing, and seconds of ``--help``."""
    return [*indexing(workload), *_help(workload)]


def indexing(workload: Workload) -> list[Row]:
    """Posts/s of indexing; nothing for a collection without an index."""
    collection = named.find(workload.collection, workload.data)
    if not isinstance(collection, SearchedCollection):
        print(f"indexing: {collection.name} is not searched, so there is nothing to index")
        return []
    posts, timing = list(collection.posts()), Timing()
    for _ in range(workload.rounds):
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            lucene.build(posts, Path(folder) / "index", collection.post_files())
            timing.seconds.append(time.perf_counter() - started)
    measured = f"{len(posts) / timing.median:,.0f} posts/s"
    print(f"indexing {len(posts):,} posts: {measured}", flush=True)
    return [(f"indexing {len(posts):,} posts", measured)]


def _help(workload: Workload) -> list[Row]:
    def ask(name: str) -> None:
        command = [sys.executable, "-m", f"pipeline.{name}", "--help"]
        subprocess.run(command, check=True, capture_output=True)

    ways = {name: lambda name=name: ask(name) for name in COMMANDS}
    timings = alternate(ways, workload.rounds)
    for name, timing in timings.items():
        print(f"{name} --help: {timing.median:.2f} s")
    slowest = max(timing.median for timing in timings.values())
    return [("`--help` of the slowest command", f"{slowest:.2f} s")]
