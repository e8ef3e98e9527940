"""A batch job in one process, and on a Ray cluster of this machine."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.measuring import Row, printed
from benchmarks.workload import Workload
from pipeline.command.errors import DataError

POSTS = 200_000
"""Posts of a job, at least: candidates are repeated under other ids of queries."""

SCORED = re.compile(r"scored ([\d,]+) posts in ([\d.]+) s .* after ([\d.]+) s to begin")
"""In what the command says at its end."""


def measure(workload: Workload) -> list[Row]:
    """Posts/s after the start, seconds of the start, and the ratio of both ways."""
    if importlib.util.find_spec("ray") is None:
        print("a cluster needs the extra ray, so there is nothing to compare")
        return []
    cores = len(os.sched_getaffinity(0))
    ways = {
        "one process": ["--threads", str(cores)],
        f"Ray, {cores} processes of one thread": ["--address", "local", "--workers", str(cores)],
    }
    timings = {name: Way() for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "candidates.jsonl"
        posts = write(workload, source)
        # In turn, as the machine's speed varies.
        for _ in range(workload.rounds):
            for name, words in ways.items():
                timings[name].run(source, words)
    one, ray = timings.values()
    title = f"batch job of {posts:,} posts"
    rows = [
        (f"{title}, {name}", f"{median(way.rates):,.0f} posts/s after {median(way.starts):.1f} s")
        for name, way in timings.items()
    ]
    overhead = median(b / a for a, b in zip(ray.rates, one.rates, strict=True)) - 1
    return printed([*rows, ("– Ray's overhead after the start", f"{overhead:.1%}")])


class Way:
    """Runs of a way: posts/s after the start, and seconds of the start."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.starts: list[float] = []

    def run(self, source: Path, words: list[str]) -> None:
        """Score a file.

        Raises:
            DataError: the job failed.
        """
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pipeline.batch", "--input", str(source)]
            done = subprocess.run(
                [*command, "--output", folder, *words], capture_output=True, text=True
            )
        found = SCORED.search(done.stderr)
        if done.returncode or not found:
            raise DataError(f"the job failed:\n{done.stderr[-1000:]}")
        posts, seconds, start = (float(text.replace(",", "")) for text in found.groups())
        self.rates.append(posts / seconds)
        self.starts.append(start)


def write(workload: Workload, path: Path, least: int = POSTS) -> int:
    """Write the collection's candidates as often as needed; number of posts."""
    candidates, count = workload.candidates, 0
    with path.open("w", encoding="utf-8") as stream:
        while count < least:
            for topic in candidates.topics:
                found = candidates.run.get(topic.query_id, {})
                posts = [
                    {**candidates.posts[doc_id]._asdict(), "first_stage_score": score}
                    for doc_id, score in found.items()
                ]
                row = {"query_id": f"{topic.query_id}-{count}", "query": topic.text, "posts": posts}
                stream.write(json.dumps(row) + "\n")
                count += len(posts)
    return count
