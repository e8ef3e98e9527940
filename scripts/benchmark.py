#!/usr/bin/env python3
"""Measure speed, each figure against another in the same run.

    python scripts/benchmark.py --collection mb2012

1. pairs/s of the engine against a plain forward pass over pairs in the order of the run, each
   text padded to the model's full length (as the papers' code does), same weights;
2. posts/s of indexing;
3. the whole process ``python -m pipeline.search --topics NAME``, and its peak memory;
4. the time that each command's ``--help`` takes.
"""

import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.cli import option, positive_int, run_command
from pipeline.runtime import keep_allocations

COMMANDS = ("search", "index", "train", "evaluate")


@dataclass(frozen=True)
class Options:
    """What to measure."""

    collection: str = option("named collection", default="mb2012", metavar="NAME")
    pairs: int = option("pairs for the comparison of engine and plain", default=4096,
                        parse=positive_int)  # fmt: skip
    rounds: int = option("times that each way is measured", default=5, parse=positive_int)
    device: str = option("where the model runs", default="auto", choices=("auto", "cpu", "cuda"))
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Run all measurements."""
    print(f"machine: {_machine()}\n")
    _compare_engine(options)
    _measure_indexing(options)
    _measure_process(options)
    _measure_help(options)


def _compare_engine(options: Options) -> None:
    """Engine against plain forward, in turn."""
    import numpy as np

    from pipeline import collections
    from pipeline.checkpoints import default_directory
    from pipeline.reranking import RunRetriever, posts_of
    from pipeline.runtime import choose_device
    from pipeline.trec import read_run
    from rerankers import checkpoint

    collection = collections.find(options.collection, options.data)
    loaded = checkpoint.load(
        default_directory("mp_hcnn", collection.name), device=choose_device(options.device)
    )
    path = collection.runs["ql"]
    candidates = RunRetriever(read_run(path), posts_of(collection), str(path)).search(
        collection.topics()
    )
    pairs = candidates.pairs()
    pairs = type(pairs)(
        pairs.queries, pairs.texts, pairs.urls,
        pairs.query_index[: options.pairs], pairs.post_index[: options.pairs],
    )  # fmt: skip
    count = len(pairs)
    plain = _plain_forward(loaded, pairs)
    engine = _engine_forward(loaded, pairs)
    difference = float(np.abs(plain() - engine()).max())
    times = _alternate([plain, engine], options.rounds)
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    for name, seconds in zip(("plain forward", "engine"), times, strict=True):
        print(f"{name:14} {count / statistics.median(seconds):10,.0f} pairs/s (texts already read)")
    print(f"engine / plain {ratio:10.2f} x; largest difference of a score {difference:.1e}\n")


def _engine_forward(loaded: Any, pairs: Any) -> Callable[[], Any]:
    from rerankers.scoring import Encoded, score_encoded

    encoded = Encoded.of(pairs, loaded.encoder, loaded.model)
    return lambda: score_encoded(loaded.model, encoded)


def _plain_forward(loaded: Any, pairs: Any, batch_size: int = 256) -> Callable[[], Any]:
    """Batches in the order of the run; each pair carries its own copy of the query."""
    import numpy as np
    import torch
    import torch.nn.functional as F  # noqa: N812

    from rerankers.base import TRIGRAMS, URL_TRIGRAMS, WORDS, Terms
    from rerankers.scoring import Encoded

    config, model = loaded.model.config, loaded.model
    encoded = Encoded.of(pairs, loaded.encoder, model)
    query_lengths = {WORDS: config.query_words, TRIGRAMS: config.query_trigrams}
    post_lengths = {WORDS: config.post_words, TRIGRAMS: config.post_trigrams,
                    URL_TRIGRAMS: config.url_trigrams}  # fmt: skip

    def full(terms: Terms, length: int) -> Terms:
        return Terms(*(
            F.pad(part[:, :length], (0, length - min(length, part.shape[1])))
            if part.shape[1] else part for part in terms
        ))  # fmt: skip

    def run() -> Any:
        scores = np.zeros(len(pairs), dtype=np.float32)
        device = model.device_of()
        with torch.inference_mode():
            for start in range(0, len(pairs), batch_size):
                rows = np.arange(start, min(start + batch_size, len(pairs)))
                queries = {
                    view: full(packed.padded(pairs.query_index[rows], device), query_lengths[view])
                    for view, packed in encoded.queries.items()
                }
                posts = {
                    view: full(packed.padded(pairs.post_index[rows], device), post_lengths[view])
                    for view, packed in encoded.posts.items()
                }
                own = torch.arange(len(rows), device=device)
                scores[rows] = model(queries, posts, own).cpu().numpy()
        return scores

    return run


def _alternate(ways: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Seconds of each way in each round, the ways in turn."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, seconds in zip(ways, times, strict=True):
            started = time.perf_counter()
            way()
            seconds.append(time.perf_counter() - started)
    return times


def _measure_indexing(options: Options) -> None:
    from indexes import lucene
    from pipeline import collections

    collection = collections.find(options.collection, options.data)
    posts = list(collection.posts())
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        lucene.build(posts, Path(folder) / "index", collection.post_sources())
        seconds = time.perf_counter() - started
    print(f"indexing {len(posts):,} posts: {len(posts) / seconds:,.0f} posts/s\n")


def _measure_process(options: Options) -> None:
    command = [sys.executable, "-m", "pipeline.search", "--topics", options.collection,
               "--show", "none", "--device", options.device]  # fmt: skip
    command += ["--data", str(options.data)] if options.data else []
    with tempfile.TemporaryDirectory() as folder:
        command += ["--output", str(Path(folder) / "run.txt")]
        subprocess.run(command, check=True, capture_output=True)
        seconds = []
        for _ in range(3):
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{' '.join(command[1:5])}: {statistics.median(seconds):.1f} s, {peak:.0f} MB\n")


def _measure_help(options: Options) -> None:
    for name in COMMANDS:
        command = [sys.executable, "-m", f"pipeline.{name}", "--help"]
        (seconds,) = _alternate(
            [lambda command=command: subprocess.run(command, check=True, capture_output=True)],
            options.rounds,
        )
        print(f"{name} --help: {statistics.median(seconds):.2f} s")


def _machine() -> str:
    """The processor's name as the system tells it, and the number of cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    keep_allocations()
    run_command(Options, main, "scripts/benchmark.py", __doc__)
