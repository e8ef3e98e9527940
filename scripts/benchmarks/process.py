"""Part 3: a whole search, as a user starts it, and where its time goes."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measuring import Row, Timing
from benchmarks.staged_search import ENDED, STAGES
from benchmarks.workload import Workload
from pipeline.collections.named import ANSWERS
from pipeline.command.errors import DataError
from pipeline.precomputed import with_precomputed
from pipeline.reranking import NeuralReranker

LEAVING = "leaving the process"

_STAGED = Path(__file__).with_name("staged_search.py")
_MEASURED = Path(__file__).with_name("measured_process.py")


def measure(workload: Workload) -> list[Row]:
    """Seconds and peak memory of ``pipeline.search``, and seconds of its stages.

    The process that is timed is the real one; a second, whose functions are wrapped with a clock,
    gives the stages (see ``staged_search.py``). The two take turns.
    """
    title = f"`pipeline.search --topics {workload.collection}`"
    search = [*_arguments(workload), "--precomputed", "none"]
    with tempfile.TemporaryDirectory() as folder:
        search += ["--output", str(Path(folder) / "run.txt")]
        result = Path(folder) / "stages.json"
        # Builds the index if it is not there, and fills the system's file cache.
        _run([sys.executable, "-m", "pipeline.search", *search])
        whole, staged, peaks = Timing(), Timing(), []
        stages: list[dict[str, float]] = []
        for _ in range(workload.rounds):
            seconds, peak = _run([sys.executable, "-m", "pipeline.search", *search])
            whole.seconds.append(seconds)
            peaks.append(peak)
            started = str(time.time())
            seconds, _ = _run([sys.executable, str(_STAGED), str(result), started, *search])
            staged.seconds.append(seconds)
            found = json.loads(result.read_text(encoding="utf-8"))
            stages.append({**found, LEAVING: time.time() - found[ENDED]})
        encoded = _with_precomputed(search, workload)
    measured = f"{whole.median:.1f} s, {max(peaks) / 2**20:,.0f} MiB at most"
    print(f"{title}: {measured}; with a clock in it {staged.median:.1f} s, of which")
    rows = [(f"{title}, {len(workload.source.topics)} topics", measured)]
    medians = {
        stage: Timing([found[stage] for found in stages]).median for stage in (*STAGES, LEAVING)
    }
    medians["the rest"] = max(0.0, staged.median - sum(medians.values()))
    for stage, seconds in medians.items():
        print(f"  {stage:32} {seconds:6.2f} s")
        rows.append((f"– {stage}", f"{seconds:.2f} s"))
    return rows + encoded


def _with_precomputed(search: list[str], workload: Workload) -> list[Row]:
    """The same where the index has its posts' vectors, if it has them."""
    search = [word for word in search if word not in ("--precomputed", "none")]
    folder = workload.source.index_directory
    reranker = NeuralReranker(workload.checkpoint)
    if with_precomputed(reranker, None, folder).checkpoint.precomputed is None:
        print("the posts have not been encoded (pipeline.index --precompute)")
        return []
    seconds = Timing([
        _run([sys.executable, "-m", "pipeline.search", *search])[0] for _ in range(workload.rounds)
    ])  # fmt: skip
    print(f"with encoded posts: {seconds.median:.1f} s")
    return [("– the whole, with encoded posts", f"{seconds.median:.1f} s")]


def _arguments(workload: Workload) -> list[str]:
    """What is asked of ``pipeline.search``."""
    arguments = ["--topics", workload.collection, "--show=none", "--device", workload.device]
    if workload.data:
        arguments += ["--data", str(workload.data)]
    if workload.collection in ANSWERS:
        arguments += ["--checkpoint", str(workload.directory)]
    return arguments


def _run(command: list[str]) -> tuple[float, int]:
    """Seconds, and bytes of memory at the peak, of a process of its own.

    Raises:
        DataError: it failed; the message ends with what it said last.
    """
    launch = [sys.executable, "-S", str(_MEASURED), *command]
    measured = subprocess.run(launch, capture_output=True, text=True, errors="replace", check=True)
    found = json.loads(measured.stdout)
    if found["status"]:
        last = measured.stderr.strip().splitlines()[-3:]
        raise DataError(f"{' '.join(command[1:5])} … failed:\n  " + "\n  ".join(last))
    return found["seconds"], found["peak"]
