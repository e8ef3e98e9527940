"""Part 3: a whole search as a process, and the time of its stages."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.measuring import Row, printed
from benchmarks.staged_search import ENDED, STAGES
from benchmarks.workload import Workload
from pipeline.checkpoints import with_precomputed
from pipeline.collections.named import ANSWERS
from pipeline.command.errors import DataError
from pipeline.reranking import NeuralReranker

EXIT = "leaving the process"

_STAGED = Path(__file__).with_name("staged_search.py")
_MEASURED = Path(__file__).with_name("measured_process.py")
_SEARCH = [sys.executable, "-m", "pipeline.search"]


def measure(workload: Workload) -> list[Row]:
    """Seconds and peak memory of ``pipeline.search``, and seconds of its stages.

    The timed process is the real one; a second one, with a clock around its functions, measures the
    stages (``staged_search.py``). They take turns.
    """
    title = f"`pipeline.search --topics {workload.collection}`"
    seconds, peaks, staged = [], [], []
    stages: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "stages.json"
        search = [*arguments(workload), "--output", str(Path(folder) / "run.txt")]
        without = [*search, "--precomputed", "none"]
        # Builds a missing index, and fills the system's file cache.
        run([*_SEARCH, *without])
        for _ in range(workload.rounds):
            whole, peak = run([*_SEARCH, *without])
            seconds.append(whole)
            peaks.append(peak)
            started = str(time.time())
            staged.append(run([sys.executable, str(_STAGED), str(result), started, *without])[0])
            found = json.loads(result.read_text(encoding="utf-8"))
            stages.append({**found, EXIT: time.time() - found[ENDED]})
        has_precomputed = _has_precomputed(workload)
        rounds = range(workload.rounds if has_precomputed else 0)
        with_posts = [run([*_SEARCH, *search])[0] for _ in rounds]
    print(f"{title}: {median(staged):.1f} s with a clock in it")
    medians = {name: median(found[name] for found in stages) for name in (*STAGES, EXIT)}
    medians["the rest"] = max(0.0, median(staged) - sum(medians.values()))
    measured = f"{median(seconds):.1f} s, {max(peaks) / 2**20:,.0f} MiB at most"
    rows = [(f"{title}, {len(workload.source.topics)} topics", measured)]
    rows += [(f"– {stage}", f"{value:.2f} s") for stage, value in medians.items()]
    if with_posts:
        rows.append(("– the whole, with precomputed posts", f"{median(with_posts):.1f} s"))
    return printed(rows)


def _has_precomputed(workload: Workload) -> bool:
    """Whether the index has precomputed posts for the checkpoint."""
    reranker = NeuralReranker(workload.checkpoint)
    return with_precomputed(reranker, None, workload.source.index_directory) is not reranker


def arguments(workload: Workload) -> list[str]:
    """Arguments of ``pipeline.search``."""
    found = ["--topics", workload.collection, "--show=none", "--device", workload.device]
    if workload.data:
        found += ["--data", str(workload.data)]
    if workload.collection in ANSWERS:
        found += ["--checkpoint", str(workload.directory)]
    return found


def run(command: list[str]) -> tuple[float, int]:
    """Seconds and peak memory in bytes of a child process.

    Raises:
        DataError: it failed; the message ends with its last lines.
    """
    launch = [sys.executable, "-S", str(_MEASURED), *command]
    measured = subprocess.run(launch, capture_output=True, text=True, errors="replace", check=True)
    found = json.loads(measured.stdout)
    if found["status"]:
        last = measured.stderr.strip().splitlines()[-3:]
        raise DataError(f"{' '.join(command[1:5])} … failed:\n  " + "\n  ".join(last))
    return found["seconds"], found["peak"]
