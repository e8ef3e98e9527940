"""The whole process ``pipeline.search``: seconds and peak memory."""

import json
import subprocess
import sys
import tempfile
from statistics import median

from benchmarks import Options, Row
from pipeline.errors import DataError

WAYS = ("", " --reranker mp_hcnn", " --reranker none")

MEASURED = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps([status, seconds, peak / 2 ** (20 if sys.platform == "darwin" else 10)]))
"""
"""A small process: a process's peak includes its parent's memory at the time of the start."""


def measure(options: Options) -> list[Row]:
    """Each way in turn; before that once, which builds a missing index and fills the file cache."""
    common = ["--topics", options.collection, "--show=none", "--device", options.device]
    common += ["--data", str(options.data)] if options.data else []
    figures: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds + 1):
            for way in WAYS:
                words = [*common, *way.split(), "--output", f"{folder}/run.txt"]
                figures[way].append(_measured("-m", "pipeline.search", *words))
    rows = []
    for way, (_, *rounds) in figures.items():
        seconds, peaks = zip(*rounds, strict=True)
        title = f"`pipeline.search --topics {options.collection}{way}`"
        rows.append((title, f"{median(seconds):.1f} s, {max(peaks):,.0f} MiB at most"))
    return rows


def _measured(*words: str) -> tuple[float, float]:
    """Seconds of a Python process, and its peak memory in MiB."""
    launch = [sys.executable, "-S", "-c", MEASURED, sys.executable, *words]
    done = subprocess.run(launch, capture_output=True, text=True, errors="replace", check=True)
    status, seconds, peak = json.loads(done.stdout)
    if status:
        last = done.stderr.strip().splitlines()[-3:]
        raise DataError(f"{' '.join(words[:4])} … failed:\n  " + "\n  ".join(last))
    return seconds, peak
