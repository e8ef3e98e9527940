"""The parts that ``scripts/benchmark.py`` can measure.

Each part is a module ``measure_PART`` with a function ``measure``, which yields the
rows of a table.
"""

from dataclasses import dataclass
from pathlib import Path

from tweetrerank.pipeline.command.options import option, positive_int

PARTS = ("scoring", "search", "stages", "service")


@dataclass(frozen=True)
class Options:
    """Parts to measure."""

    collection: str = option("collection to rank", default="mb2012", metavar="NAME")
    parts: tuple[str, ...] = option(
        "parts to measure", default=PARTS, choices=PARTS, many=True, following=True
    )
    pairs: int = option("pairs of the part scoring", default=4096, parse=positive_int)
    rounds: int = option("measurements of each way", default=5, parse=positive_int)
    minutes: int = option(
        "minutes of the service's overload", default=1, parse=positive_int
    )
    device: str = option(
        "second device of the part scoring, after the CPU",
        default="auto",
        choices=("auto", "cpu", "cuda"),
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)
