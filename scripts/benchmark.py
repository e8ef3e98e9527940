#!/usr/bin/env python3
"""Measure speed, each figure against another in the same run.

    python scripts/benchmark.py --collection mb2012
    python scripts/benchmark.py --collection mb2012 --parts 1,5 --rounds 1 --pairs 256

1. MP-HCNN at the paper's size, random weights: a plain forward pass over padded pairs, as in the
   authors' code, against the engine, with and without precomputed posts;
2. the shipped MP-HCNN, SM-CNN and K-NRM, in the same ways;
3. the whole process "python -m pipeline.search --topics NAME": its stages, its peak memory;
4. time by the number of candidates per topic, on one thread and on two;
5. the multiply-adds that the model needs against those that the machine can do;
6. indexing, and the time of each command's --help;
7. training steps of the shipped MP-HCNN against padded pairs and dense AdamW, and the AP that both
   reach on held-out topics;
8. the operations that the engine's time goes into;
9. the learned fusion, with posts read now and with precomputed ones, on one thread and on two;
10. the rerank service: latency, load and overload (``--minutes``), against its engine in-process
    and against a cross-encoder of MiniLM-L6's size;
11. collections of ``--sizes``, made of the posts of this one: indexing, memory, disk, searching and
    reranking. It runs only if it is asked for, and needs 800 bytes of disk a post, and 46,000 for
    encodings (``--encoded``).
12. a search engine (``--engine``) as first stage: filling its index, the topics' searches, and a
    search of 100 posts by each way of reranking it: inside, in front of the engine, in the client;
13. a batch job in one process, and on a Ray cluster of this machine.

Alternative ways are measured in turn; a figure is the median over the rounds, a ratio the median of
the rounds' ratios.
"""

import importlib
import os
from dataclasses import dataclass
from pathlib import Path

from pipeline.command.options import option, positive_int, run_command
from pipeline.command.runtime import keep_allocations

PARTS = {
    1: "scoring.measure_paper_size",
    2: "scoring.measure_models",
    3: "processes.measure_search",
    4: "scoring.measure_growth",
    5: "operations.measure_floor",
    6: "processes.measure_surroundings",
    7: "training_step.measure",
    8: "operations.measure_operations",
    9: "scoring.measure_fusion",
    10: "service.measure",
    11: "growth.measure",
    12: "engines.measure",
    13: "batch.measure",
}
"""Number -> module of ``benchmarks`` and function."""

ON_REQUEST = 11


def part_numbers(text: str) -> tuple[int, ...]:
    """Numbers of the requested parts, in their order, each once."""
    numbers = [part.strip() for part in text.split(",")]
    known = [str(number) for number in PARTS]
    if wrong := [number for number in numbers if number not in known]:
        raise ValueError(f"found {wrong[0]!r}, expected some of {','.join(known)}")
    return tuple(dict.fromkeys(int(number) for number in numbers))


def sizes_of(text: str) -> tuple[int, ...]:
    """Numbers separated by commas."""
    return tuple(positive_int(number) for number in text.split(","))


@dataclass(frozen=True)
class Options:
    """What to measure."""

    collection: str = option("collection to rank", default="mb2012", metavar="NAME")
    pairs: int = option("pairs of parts 1, 2, 5 and 8", default=4096, parse=positive_int)
    rounds: int = option("measurements of each way", default=5, parse=positive_int)
    minutes: int = option("minutes of part 10's overload", default=1, parse=positive_int)
    parts: tuple[int, ...] | None = option(
        "parts, as 1,2,3 (default: all)", parse=part_numbers, metavar="N,…"
    )
    sizes: tuple[int, ...] = option(
        "posts of part 11's collections",
        default=(100_000, 1_000_000, 10_000_000),
        parse=sizes_of,
        metavar="N,…",
    )
    encoded: int = option(
        "the largest of them whose posts are encoded", default=100_000, parse=positive_int
    )
    plot: Path | None = option("file for part 11's plot (.svg or .png)", parse=Path)
    device: str = option("device of the models", default="auto", choices=("auto", "cpu", "cuda"))
    engine: str | None = option(
        "address of OpenSearch or Elasticsearch for part 12 (default: $OPENSEARCH_URL)",
        metavar="URL",
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Measure the parts, then print their figures as one table."""
    from benchmarks.measuring import machine
    from benchmarks.workload import Workload

    from pipeline.collections import named
    from pipeline.command.runtime import choose_device

    device = choose_device(options.device)
    name = named.find(options.collection, options.data).name
    engine = options.engine or os.environ.get("OPENSEARCH_URL")
    workload = Workload(
        name,
        options.pairs,
        options.rounds,
        device,
        options.data,
        options.minutes,
        options.sizes,
        options.encoded,
        options.plot,
        engine,
    )
    print(f"machine: {machine()}; {name}, on {device}", flush=True)
    rows: list[tuple[str, str]] = []
    for number in options.parts or tuple(part for part in PARTS if part != ON_REQUEST):
        print(f"\n== part {number}", flush=True)
        module, function = PARTS[number].split(".")
        rows += getattr(importlib.import_module(f"benchmarks.{module}"), function)(workload)
    if rows:
        print("\n| what | measured |\n|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    keep_allocations()
    run_command(Options, main, "scripts/benchmark.py", __doc__)
