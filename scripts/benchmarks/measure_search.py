"""Measures the time and memory of the process ``python -m pipeline.search``."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from benchmarks import Options
from benchmarks.workload import Row, in_turn
from tweetrerank.indexes.data_error import DataError

SEARCHES = ("", " --reranker mp_hcnn", " --reranker none")

MEASURED = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
unit = 2 ** (20 if sys.platform == "darwin" else 10)
print(json.dumps([status, seconds, peak / unit]))
"""
"""A program that starts and measures another process.

It runs in a small process of its own, because the peak memory of a process includes
the memory that its parent used when it started it.
"""


class Usage(NamedTuple):
    """The resources that a process has used."""

    seconds: float
    peak: float  # MiB of memory


def measure(options: Options) -> Iterator[Row]:
    """Yield the seconds and the peak memory, in MiB, of each search.

    An additional first round, which is not counted, builds a missing index and fills
    caches.
    """
    common = ["-m", "pipeline.search", "--topics", options.collection, "--show=none"]
    common += ["--device", options.device]
    if options.data:
        common += ["--data", str(options.data)]
    with tempfile.TemporaryDirectory() as folder:
        common += ["--output", f"{folder}/run.txt"]
        ways = {way: partial(usage_of, common + way.split()) for way in SEARCHES}
        results = in_turn(ways, options.rounds + 1)
    for way, usages in results.items():
        rounds = usages[1:]
        seconds = median(usage.seconds for usage in rounds)
        peak = max(usage.peak for usage in rounds)
        title = f"`pipeline.search --topics {options.collection}{way}`"
        yield title, f"{seconds:.1f} s, {peak:,.0f} MiB at most"


def usage_of(arguments: Sequence[str]) -> Usage:
    """Run Python with these arguments, and return the resources that it has used.

    Raises DataError if the process fails.
    """
    command = [sys.executable, "-S", "-c", MEASURED, sys.executable]
    command += arguments
    process = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=True
    )
    status, seconds, peak = json.loads(process.stdout)
    if status:
        program = " ".join(arguments[:4])
        last_lines = process.stderr.strip().splitlines()[-3:]
        raise DataError(f"{program} … failed:\n  " + "\n  ".join(last_lines))
    return Usage(seconds, peak)
