"""Part 8: shares of the engine's time by operation, for two sizes of MP-HCNN."""

import cProfile
import pstats

from benchmarks.measuring import Row, printed, threads
from benchmarks.workload import Workload
from rerankers.base import Reranker
from rerankers.engine.scoring import score_tokenized
from rerankers.engine.tokenized import Tokenized
from rerankers.text.inputs import TextEncoder

SHOWN = 8
"""Number of operations in the table; all others are one row."""


def measure(workload: Workload) -> list[Row]:
    """Shares of the time spent in each function itself, on one thread.

    Python's profiler counts a function of PyTorch or NumPy as one call, so the shares are those of
    operations and of Python between them.
    """
    rows = []
    for title, (model, encoder) in workload.mp_hcnns.items():
        rows += _shares(title, model, encoder, workload)
    return rows


def _shares(title: str, model: Reranker, encoder: TextEncoder, workload: Workload) -> list[Row]:
    tokenized = Tokenized.from_pairs(workload.pairs, encoder, model)
    with threads(1):
        score_tokenized(model, tokenized)  # computes and caches the model's tables
        profile = cProfile.Profile()
        profile.runcall(score_tokenized, model, tokenized)
    seconds: dict[str, float] = {}
    for (_, _, function), (_, _, own, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        name = _operation(function)
        seconds[name] = seconds.get(name, 0.0) + own
    total = sum(seconds.values())
    largest = sorted(seconds, key=lambda name: -seconds[name])[:SHOWN]
    rows = [(f"{title}: {name}", f"{seconds[name] / total:.0%}") for name in largest]
    rest = 1 - sum(seconds[name] for name in largest) / total
    rows.append((f"{title}: the rest ({len(seconds) - len(largest)} functions)", f"{rest:.0%}"))
    return printed(rows)


def _operation(function: str) -> str:
    """Short name of a profiled function."""
    words = function.strip("<>").split()
    if "method" in words:
        return words[words.index("method") + 1].strip("'").rpartition(".")[2]
    return words[0]
