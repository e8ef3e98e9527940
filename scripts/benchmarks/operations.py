"""Parts 5 and 8: multiply-adds that MP-HCNN needs, and operations that the engine's time goes into.

PyTorch counts the multiply-adds of its matrix products in forward passes of single pairs (section
3); look-ups, activations, softmax, pooling and the scaling by IDF are not counted. The engine can
do with less, as it encodes a text once for many pairs, and a repeated window of terms once.
"""

import cProfile
import pstats
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measuring import Row, alternate, printed, threads
from benchmarks.plain import PaddedPairs
from benchmarks.workload import Workload
from rerankers.base import Reranker
from rerankers.scoring.batches import score_tokenized
from rerankers.scoring.tokenized import Tokenized
from rerankers.text.inputs import TextEncoder

SIDES = {"cpu": (2048, 1024, 1024), "cuda": (8192, 8192, 8192)}
"""Device -> sizes of the matrix product that measures its rate."""

SAMPLE = 256
"""Pairs whose multiply-adds are counted, spread over the topics."""

SHOWN = 8
"""Operations in the table of part 8; all others are one row."""


def measure_floor(workload: Workload) -> list[Row]:
    """Part 5: the engine's share of the machine's rate, at the paper's size and as shipped."""
    rows = []
    for title, (model, encoder) in workload.mp_hcnns.items():
        rows += _share(title, model, encoder, workload)
    return rows


def _share(title: str, model: Reranker, encoder: TextEncoder, workload: Workload) -> list[Row]:
    tokenized = Tokenized.from_pairs(workload.pairs, encoder, model)
    needed, padding = multiply_adds(model, tokenized)
    count = len(workload.pairs)
    least = needed * count
    ways: dict[str, Callable[[], Any]] = {
        "product": _product(workload.device),
        "engine": lambda: score_tokenized(model, tokenized),
    }
    timings = alternate(ways, workload.rounds)
    product, engine = timings["product"], timings["engine"]
    size = float(np.prod(SIDES[workload.device]))
    rate, share = size / product.median, least / size * engine.ratio(product)
    print(
        f"{title}: {count:,} pairs take {least / rate:.3f} s at the rate of large matrix products, "
        f"the engine takes {engine.median:.3f} s (a share above 100% is possible as the engine "
        "computes repeated texts and windows once)"
    )
    per_pair = f"{needed / 1e6:,.2f} million ({padding / needed:.1f} times as many with padding)"
    of_rate = f"{share:.0%} of {rate / 1e9:,.1f} billion multiply-adds/s"
    return printed(
        [
            (f"{title}, multiply-adds a pair", per_pair),
            (f"{title}, engine's share of the rate of large matrix products", of_rate),
        ]
    )


def _product(device: str) -> Callable[[], None]:
    """A large matrix product in single precision, finished on return."""
    rows, inner, columns = SIDES[device]
    left = torch.ones(rows, inner, device=device)
    right = torch.ones(inner, columns, device=device)

    def run() -> None:
        with torch.inference_mode():
            result = left @ right
            result[0, 0].item()  # waits for a GPU

    return run


def multiply_adds(model: Reranker, tokenized: Tokenized) -> tuple[float, float]:
    """Multiply-adds of a pair without and with padding.

    Without padding: the mean of a sample, and the query, which a topic's pairs share, is not
    encoded again.
    """
    rows = np.linspace(0, len(tokenized.query_index) - 1, SAMPLE).astype(np.int64)
    device, padded = model.device_of(), PaddedPairs(tokenized, model)
    counter, needed = FlopCounterMode(display=False), 0
    with torch.inference_mode():
        for row in rows[:, None]:
            queries, posts, own = tokenized.batch(row, device)
            encoded = model.encode_queries(queries)
            with counter:
                features = tokenized.features_of(row, device)
                model.integrate(model.compare(encoded, model.encode_posts(posts), own, features))
            needed += counter.get_total_flops()
        with counter:
            padded.scores_of(model, rows[:1], device)
    # PyTorch counts a multiply-add as two.
    return needed / 2 / SAMPLE, counter.get_total_flops() / 2


def measure_operations(workload: Workload) -> list[Row]:
    """Part 8: shares of the time spent in each function itself, on one thread.

    Python's profiler counts a function of PyTorch or NumPy as one call, so the shares are those of
    operations and of Python between them.
    """
    rows = []
    for title, (model, encoder) in workload.mp_hcnns.items():
        tokenized = Tokenized.from_pairs(workload.pairs, encoder, model)
        with threads(1):
            score_tokenized(model, tokenized)  # computes and caches the model's tables
            profile = cProfile.Profile()
            profile.runcall(score_tokenized, model, tokenized)
        seconds: Counter[str] = Counter()
        for (_, _, function), (_, _, own, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
            seconds[_operation(function)] += own
        total, largest = sum(seconds.values()), seconds.most_common(SHOWN)
        rows += [(f"{title}: {name}", f"{own / total:.0%}") for name, own in largest]
        rest = f"{title}: the rest ({len(seconds) - len(largest)} functions)"
        rows.append((rest, f"{1 - sum(own for _, own in largest) / total:.0%}"))
    return printed(rows)


def _operation(function: str) -> str:
    """Short name of a profiled function."""
    words = function.strip("<>").split()
    if "method" in words:
        return words[words.index("method") + 1].strip("'").rpartition(".")[2]
    return words[0]
