"""Times of several ways to do the same, taken in turn, and the machine they were taken on."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

Row = tuple[str, str]
"""Of the table for the README: what, and what was measured."""


@dataclass
class Timing:
    """One way.

    Attributes:
        seconds: of each round.
        result: what it gave in the last round.
    """

    seconds: list[float] = field(default_factory=list)
    result: Any = None

    @property
    def median(self) -> float:
        """Seconds of the middle round."""
        return statistics.median(self.seconds)

    def ratio(self, other: "Timing") -> float:
        """How many times as fast this way is as ``other``: the median of the rounds' ratios."""
        pairs = zip(other.seconds, self.seconds, strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)


def alternate(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Timing]:
    """Time each way once in each round: a machine that slows down slows all of them down."""
    timings = {name: Timing() for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            timings[name].result = way()
            timings[name].seconds.append(time.perf_counter() - started)
    return timings


def machine() -> str:
    """The processor as the system names it, cores, PyTorch's threads, and the GPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return (
        f"{names[0] if names else platform.processor() or 'unknown processor'}, "
        f"{os.cpu_count()} cores ({torch.get_num_threads()} threads), {gpu}, "
        f"PyTorch {torch.__version__}"
    )
