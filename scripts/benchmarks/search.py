"""The whole process ``pipeline.search``: seconds and peak memory."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.measuring import Row, printed
from benchmarks.workload import Workload
from pipeline.collections import named
from pipeline.command.errors import DataError

WAYS = {
    "": [],
    " --reranker mp_hcnn": ["--reranker", "mp_hcnn"],
    " --reranker none": ["--reranker", "none"],
}
SEARCH = [sys.executable, "-m", "pipeline.search"]

_MEASURED = Path(__file__).with_name("measured_process.py")


def measure(workload: Workload) -> list[Row]:
    """Each way in turn; before that once, which builds a missing index and fills the file cache."""
    common = ["--topics", workload.collection, "--show=none", "--device", workload.device]
    if workload.data:
        common += ["--data", str(workload.data)]
    ways = WAYS
    if workload.collection in named.ANSWERS:
        name = " --reranker mp_hcnn"
        ways = {name: [*WAYS[name], "--checkpoint", str(workload.directory)]}
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(workload.rounds + 1):
            for name, words in ways.items():
                command = [*SEARCH, *common, *words, "--output", f"{folder}/run.txt"]
                figures[name].append(measured(command))
    rows = []
    for name, (_, *rounds) in figures.items():
        seconds = median(figure["seconds"] for figure in rounds)
        peak = max(figure["peak"] for figure in rounds) / 2**20
        what = f"`pipeline.search --topics {workload.collection}{name}`"
        title = f"{what}, {len(workload.source.topics)} topics"
        rows.append((title, f"{seconds:.1f} s, {peak:,.0f} MiB at most"))
    return printed(rows)


def measured(command: list[str]) -> dict[str, float]:
    """``seconds``, those of the ``processor`` and the ``peak`` of memory in bytes of a process.

    Raises:
        DataError: it failed; the message ends with its last lines.
    """
    launch = [sys.executable, "-S", str(_MEASURED), *command]
    done = subprocess.run(launch, capture_output=True, text=True, errors="replace", check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    if figures["status"]:
        last = done.stderr.strip().splitlines()[-3:]
        raise DataError(f"{' '.join(command[1:5])} … failed:\n  " + "\n  ".join(last))
    return figures
