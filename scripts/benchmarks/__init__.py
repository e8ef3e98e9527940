"""Parts of ``scripts/benchmark.py``, their options, and candidates that they share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.options import option, positive_int

if TYPE_CHECKING:
    from pipeline.ranking.retrievers import Candidates

Row = tuple[str, str]  # What was measured, and the outcome

PARTS = ("scoring", "search", "stages", "service")  # Modules of ``benchmarks``


@dataclass(frozen=True)
class Options:
    """What to measure."""

    collection: str = option("collection to rank", default="mb2012", metavar="NAME")
    parts: tuple[str, ...] = option(
        "parts to measure", default=PARTS, choices=PARTS, many=True, following=True
    )
    pairs: int = option("pairs of the part scoring", default=4096, parse=positive_int)
    rounds: int = option("measurements of each way", default=5, parse=positive_int)
    minutes: int = option("minutes of the service's overload", default=1, parse=positive_int)
    device: str = option(
        "device of the part scoring, beside the CPU",
        default="auto",
        choices=("auto", "cpu", "cuda"),
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


@cache
def candidates_of(options: Options) -> Candidates:
    """All candidates: of the official query-likelihood run, or of our own."""
    from pipeline.collections.named import open_collection
    from pipeline.ranking.retrievers import retriever_for

    source = open_collection(options.collection, data=options.data)
    retriever = retriever_for(source, "ql" if "ql" in source.runs else None)
    return retriever.search(source.topics)
