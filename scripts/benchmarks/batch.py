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

from benchmarks.measuring import Row, Timing, printed
from benchmarks.workload import Workload
from pipeline.command.errors import DataError

POSTS = 200_000  # Posts of a job, at least: candidates are repeated under other ids of queries

SCORED = re.compile(r"scored ([\d,]+) posts? in ([\d.]+) s .* after ([\d.]+) s to begin")
"""The command's last line."""


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
    timings = {name: Timing() for name in ways}
    starts: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "candidates.jsonl"
        write(workload, source)
        # In turn, as the machine's speed varies.
        for number in range(workload.rounds):
            for name, words in ways.items():
                command = [sys.executable, "-m", "pipeline.batch", "--input", str(source)]
                command += ["--reranker", "mp_hcnn"]
                command += ["--output", f"{folder}/{name}-{number}", *words]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                scored = SCORED.search(done.stderr)
                if done.returncode or not scored:
                    raise DataError(f"the job failed:\n{done.stderr[-1000:]}")
                posts, seconds, start = (float(text.replace(",", "")) for text in scored.groups())
                timings[name].seconds.append(seconds)
                starts[name].append(start)
    title = f"batch job of {posts:,.0f} posts"
    rows = [
        (
            f"{title}, {name}",
            f"{posts / timing.median:,.0f} posts/s after {median(starts[name]):.1f} s",
        )
        for name, timing in timings.items()
    ]
    alone, ray = timings.values()
    overhead = alone.ratio(ray) - 1
    return printed([*rows, ("– Ray's overhead after the start", f"{overhead:.1%}")])


def write(workload: Workload, path: Path) -> None:
    """Write the collection's candidates as often as needed."""
    candidates, count = workload.candidates, 0
    with path.open("w", encoding="utf-8") as stream:
        while count < POSTS:
            for topic in candidates.topics:
                posts = [
                    {**candidates.posts[doc_id]._asdict(), "first_stage_score": score}
                    for doc_id, score in candidates.run.get(topic.query_id, {}).items()
                ]
                row = {"query_id": f"{topic.query_id}-{count}", "query": topic.text, "posts": posts}
                stream.write(json.dumps(row) + "\n")
                count += len(posts)
