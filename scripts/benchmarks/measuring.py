"""Times of alternative ways, measured in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

Row = tuple[str, str]  # Row of the final table: what was measured, and the outcome


@dataclass
class Timing:
    """Seconds of each round of one way, and the last round's result."""

    seconds: list[float] = field(default_factory=list)
    result: Any = None

    @property
    def median(self) -> float:
        """Median of the rounds' seconds."""
        return statistics.median(self.seconds)

    def ratio(self, other: Timing) -> float:
        """Speed as a multiple of ``other``'s: median of the rounds' ratios."""
        pairs = zip(other.seconds, self.seconds, strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)


def alternate(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Timing]:
    """Time each way once per round, so that a slower phase of the machine affects all of them."""
    timings = {name: Timing() for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            timings[name].result = way()
            timings[name].seconds.append(time.perf_counter() - started)
    return timings


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run PyTorch with ``count`` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compared(title: str, timings: Mapping[str, Timing], text: Callable[[Timing], str]) -> list[Row]:
    """A row per timing, printed; with its speed as a multiple of the first one's."""
    first, *_ = timings.values()
    rows = []
    for name, timing in timings.items():
        ratio = "" if timing is first else f" ({timing.ratio(first):.2f} ×)"
        rows.append((f"{title}, {name}", f"{text(timing)}{ratio}"))
    return printed(rows)


def printed(rows: list[Row]) -> list[Row]:
    """The rows, after printing them."""
    for row in rows:
        print(": ".join(row), flush=True)
    return rows
