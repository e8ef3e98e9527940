"""Parts 3 and 6: a whole search and the time of its stages; indexing; the commands' ``--help``."""

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.measuring import Row, alternate, printed
from benchmarks.staged_search import ENDED, STAGES
from benchmarks.workload import Workload
from indexes import lucene
from pipeline.collections import named
from pipeline.collections.collection import SearchedCollection
from pipeline.command.errors import DataError
from pipeline.ranking.checkpoints import with_precomputed
from pipeline.ranking.scorers import ModelScorer

EXIT = "leaving the process"
COMMANDS = ("search", "rerank", "index", "train", "evaluate", "explain")

_STAGED = Path(__file__).with_name("staged_search.py")
_MEASURED = Path(__file__).with_name("measured_process.py")
_SEARCH = [sys.executable, "-m", "pipeline.search"]


def measure_search(workload: Workload) -> list[Row]:
    """Part 3: seconds and peak memory of ``pipeline.search``, and seconds of its stages.

    The timed process is the real one; a second one, with a clock around its functions, measures the
    stages (``staged_search.py``). They take turns.
    """
    title = f"`pipeline.search --topics {workload.collection}`"
    whole, staged, with_posts = [], [], []
    stages: list[dict[str, float]] = []
    reranker = ModelScorer(workload.checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "stages.json"
        search = [*arguments(workload), "--output", str(Path(folder) / "run.txt")]
        without = [*search, "--precomputed", "none"]
        # Builds a missing index, and fills the system's file cache.
        run([*_SEARCH, *without])
        is_precomputed = (
            with_precomputed(reranker, None, workload.source.index_directory) is not reranker
        )
        for _ in range(workload.rounds):
            whole.append(run([*_SEARCH, *without]))
            started = str(time.time())
            staged.append(run([sys.executable, str(_STAGED), str(result), started, *without])[0])
            found = json.loads(result.read_text(encoding="utf-8"))
            stages.append({**found, EXIT: time.time() - found[ENDED]})
            if is_precomputed:
                with_posts.append(run([*_SEARCH, *search])[0])
    print(f"{title}: {median(staged):.1f} s with a clock in it")
    medians = {name: median(found[name] for found in stages) for name in (*STAGES, EXIT)}
    medians["the rest"] = max(0.0, median(staged) - sum(medians.values()))
    seconds, peaks = zip(*whole, strict=True)
    measured = f"{median(seconds):.1f} s, {max(peaks) / 2**20:,.0f} MiB at most"
    rows = [(f"{title}, {len(workload.source.topics)} topics", measured)]
    rows += [(f"– {stage}", f"{value:.2f} s") for stage, value in medians.items()]
    if with_posts:
        rows.append(("– the whole, with precomputed posts", f"{median(with_posts):.1f} s"))
    return printed(rows)


def arguments(workload: Workload) -> list[str]:
    """Arguments of ``pipeline.search`` for the workload."""
    found = ["--topics", workload.collection, "--show=none", "--device", workload.device]
    if workload.data:
        found += ["--data", str(workload.data)]
    if workload.collection in named.ANSWERS:
        found += ["--checkpoint", str(workload.directory)]
    return found


def run(command: list[str]) -> tuple[float, int]:
    """Seconds and peak memory in bytes of a child process; see :func:`measured`."""
    found = measured(command)
    return found["seconds"], int(found["peak"])


def measured(command: list[str]) -> dict[str, float]:
    """``seconds``, those of the ``processor`` and the ``peak`` of memory in bytes of a process.

    Raises:
        DataError: it failed; the message ends with its last lines.
    """
    launch = [sys.executable, "-S", str(_MEASURED), *command]
    done = subprocess.run(launch, capture_output=True, text=True, errors="replace", check=True)
    found: dict[str, float] = json.loads(done.stdout)
    if found["status"]:
        last = done.stderr.strip().splitlines()[-3:]
        raise DataError(f"{' '.join(command[1:5])} … failed:\n  " + "\n  ".join(last))
    return found


def measure_surroundings(workload: Workload) -> list[Row]:
    """Part 6: posts/s of indexing, and seconds of ``--help``."""

    def ask(name: str) -> None:
        command = [sys.executable, "-m", f"pipeline.{name}", "--help"]
        subprocess.run(command, check=True, capture_output=True)

    rows = indexing(workload)
    timings = alternate({name: partial(ask, name) for name in COMMANDS}, workload.rounds)
    for name, timing in timings.items():
        print(f"{name} --help: {timing.median:.2f} s")
    slowest = max(timing.median for timing in timings.values())
    return [*rows, ("`--help` of the slowest command", f"{slowest:.2f} s")]


def indexing(workload: Workload) -> list[Row]:
    """Posts/s of indexing; nothing for a collection without an index."""
    collection = named.find(workload.collection, workload.data)
    if not isinstance(collection, SearchedCollection):
        print(f"indexing: {collection.name} is not searched, so there is nothing to index")
        return []
    posts = list(collection.posts())

    def build() -> None:
        with tempfile.TemporaryDirectory() as folder:
            lucene.build(posts, Path(folder) / "index", collection.post_files())

    seconds = alternate({"": build}, workload.rounds)[""].median
    return printed([(f"indexing {len(posts):,} posts", f"{len(posts) / seconds:,.0f} posts/s")])
