"""Part 8: which operations the engine's time goes into, for two sizes of MP-HCNN."""

import cProfile
import pstats

import torch

from benchmarks.measuring import Row
from benchmarks.paper_size import paper_model
from benchmarks.workload import Workload
from rerankers.base import Reranker
from rerankers.engine.scoring import score_tokenized
from rerankers.engine.tokenized import Tokenized
from rerankers.text.inputs import TextEncoder

SHOWN = 8
"""Operations in the table; the others are one row."""


def measure(workload: Workload) -> list[Row]:
    """Shares of the seconds spent in each function itself, on one thread.

    Python's own profiler sees PyTorch's and NumPy's functions as one call each, so a share is an
    operation's, and what Python does between them.
    """
    loaded = workload.checkpoint
    return [
        *_shares("shipped", loaded.model, loaded.encoder, workload),
        *_shares("paper's size", *paper_model(workload), workload),
    ]


def _shares(title: str, model: Reranker, encoder: TextEncoder, workload: Workload) -> list[Row]:
    encoded = Tokenized.of(workload.pairs, encoder, model)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        score_tokenized(model, encoded)  # what is made once is made here
        profile = cProfile.Profile()
        profile.runcall(score_tokenized, model, encoded)
    finally:
        torch.set_num_threads(threads)
    seconds: dict[str, float] = {}
    for (_, _, function), (_, _, own, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        name = _plain(function)
        seconds[name] = seconds.get(name, 0.0) + own
    total = sum(seconds.values())
    largest = sorted(seconds, key=lambda name: -seconds[name])[:SHOWN]
    rows = [(f"{title}: {name}", f"{seconds[name] / total:.0%}") for name in largest]
    rest = 1 - sum(seconds[name] for name in largest) / total
    rows.append((f"{title}: the rest ({len(seconds) - len(largest)} functions)", f"{rest:.0%}"))
    for row in rows:
        print(" ".join(row))
    return rows


def _plain(function: str) -> str:
    """A function's name as it is written in a program."""
    words = function.strip("<>").split()
    if "method" in words:
        return words[words.index("method") + 1].strip("'").rpartition(".")[2]
    return words[0]
