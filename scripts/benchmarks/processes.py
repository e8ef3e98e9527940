"""Scoring by MP-HCNN as shipped, and the whole process ``pipeline.search``."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch

from pipeline.collections.named import open_collection
from pipeline.errors import DataError
from pipeline.ranking.checkpoints import default_directory
from pipeline.ranking.retrievers import Candidates, retriever_for
from rerankers import checkpoint
from rerankers.networks.base import Reranker
from rerankers.networks.batches import BATCH_SIZE, batches_of, score_tokenized
from rerankers.networks.inputs import Tokenized
from rerankers.networks.network import Network

if TYPE_CHECKING:
    from benchmark import Options

Row = tuple[str, str]  # What was measured, and the outcome

OWN = "own forward pass"  # On the CPU, as the fast one is
SEARCHES = ("", " --reranker mp_hcnn", " --reranker none")

MEASURED = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps([status, seconds, peak / 2 ** (20 if sys.platform == "darwin" else 10)]))
"""
"""A small process: a process's peak includes its parent's memory at the time of the start."""


@cache
def candidates_of(options: Options) -> Candidates:
    """All candidates: of the official query-likelihood run, or of our own."""
    source = open_collection(options.collection, data=options.data)
    retriever = retriever_for(source, "ql" if "ql" in source.runs else None)
    return retriever.search(source.topics)


def in_turn(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Any]]:
    """Results of the rounds of each way: a slower phase of the machine affects all of them."""
    results = defaultdict(list)
    for name, way in [*ways.items()] * rounds:
        results[name].append(way())
    return results


def measure_scoring(options: Options) -> Iterable[Row]:
    """Pairs/s of tokenized texts by each way; prints the differences of the scores."""
    pairs = candidates_of(options).pairs()
    pairs = pairs.take(np.arange(min(options.pairs, len(pairs))))
    folder = default_directory("mp_hcnn", options.collection)
    trained = cast(Network, checkpoint.load(folder, "mp_hcnn"))
    model, tokenized = trained.model, Tokenized.from_pairs(pairs, trained.encoder, trained.model)
    scorers = {OWN: partial(own_scores, model), "fast": partial(score_tokenized, model)}
    if options.device != "cpu":
        other = copy.deepcopy(model).to(options.device)
        name = f"{options.device} ({torch.cuda.get_device_name(options.device)})"
        scorers[name] = partial(score_tokenized, other)
        scorers[name](tokenized)  # Kernels are loaded at first.

    def timed(name: str) -> tuple[float, npt.NDArray[np.float32]]:
        started, scores = time.perf_counter(), scorers[name](tokenized)
        return time.perf_counter() - started, scores

    results = in_turn({name: partial(timed, name) for name in scorers}, options.rounds)
    for name, of in results.items():
        (seconds, scores), (own_seconds, own) = (zip(*r, strict=True) for r in (of, results[OWN]))
        difference = float(np.abs(scores[-1] - own[-1]).max(initial=0.0))
        print(f"MP-HCNN, {name}: scores differ by at most {difference:.1e}")
        ratio = median(own / new for own, new in zip(own_seconds, seconds, strict=True))
        rate = f"{len(pairs) / median(seconds):,.0f} pairs/s"
        yield f"MP-HCNN, {name}", rate + f" ({ratio:.2f} ×)" * (name != OWN)


def own_scores(model: Reranker, tokenized: Tokenized) -> npt.NDArray[np.float32]:
    """Scores [P] by the model's forward pass, batch by batch."""
    scores = np.zeros(len(tokenized.query_index), dtype=np.float32)
    with torch.inference_mode():
        for rows in batches_of(tokenized, BATCH_SIZE):
            scores[rows] = tokenized.scores_of(model, rows).numpy()
    return scores


def measure_search(options: Options) -> Iterable[Row]:
    """Seconds and peak MiB; one more round at first builds a missing index and fills caches."""
    common = ["-m", "pipeline.search", "--topics", options.collection, "--show=none"]
    common += ["--device", options.device]
    common += ["--data", str(options.data)] if options.data else []
    with tempfile.TemporaryDirectory() as folder:
        common += ["--output", f"{folder}/run.txt"]
        ways = {way: partial(_measured, *common, *way.split()) for way in SEARCHES}
        results = in_turn(ways, options.rounds + 1)
    for way, (_, *rounds) in results.items():
        seconds, peaks = zip(*rounds, strict=True)
        title = f"`pipeline.search --topics {options.collection}{way}`"
        yield title, f"{median(seconds):.1f} s, {max(peaks):,.0f} MiB at most"


def _measured(*words: str) -> tuple[float, float]:
    """Seconds of a Python process, and its peak memory in MiB."""
    launch = [sys.executable, "-S", "-c", MEASURED, sys.executable, *words]
    done = subprocess.run(launch, capture_output=True, text=True, errors="replace", check=True)
    status, seconds, peak = json.loads(done.stdout)
    if status:
        last = done.stderr.strip().splitlines()[-3:]
        raise DataError(f"{' '.join(words[:4])} … failed:\n  " + "\n  ".join(last))
    return seconds, peak
