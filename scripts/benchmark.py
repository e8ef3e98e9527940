#!/usr/bin/env python3
"""Measure speed, alternative ways in one run and in turn: a ratio is steadier than a rate.

    python scripts/benchmark.py
    python scripts/benchmark.py --parts scoring,search --rounds 2 --pairs 49879
    python scripts/benchmark.py --parts growth --sizes 100000,1000000 --rounds 1

Parts:

scoring  MP-HCNN as shipped: its own forward pass, and the fast one
search   the whole process "python -m pipeline.search": seconds and peak memory
stages   a request of 100 posts, new and known, for the model window by stage, on one core
service  latency, load and overload (--minutes) of the rerank service, beside in-process scoring
batch    a batch job in one process, and on a Ray cluster of this machine
engines  a search engine (--engine) as first stage: filling, searching, and through the proxy
further  what further hits (serve --expand) of a search engine (--engine) gain and cost, on training
         topics; only on request
gpu      MP-HCNN, its paper's size and SM-CNN on a GPU beside the CPU, from texts to scores; its
         training; share of the peak of large matrix products; only on request
growth   collections of --sizes, made of this one's posts: indexing, memory, disk, searching,
         reranking; only on request, as it takes 800 bytes of disk a post

A figure is the median over the rounds, a ratio the median of the rounds' ratios.
"""

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from pipeline.command.options import did_you_mean, option, positive_int, run_command
from pipeline.command.runtime import keep_allocations

PARTS = ("scoring", "search", "stages", "service", "batch", "engines", "further", "gpu", "growth")
"""Modules of ``benchmarks``."""

ON_REQUEST = ("further", "gpu", "growth")


def part_names(text: str) -> tuple[str, ...]:
    """Names of the requested parts, in their order, each once."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PARTS:
            expected = f"found {name!r}, expected some of {','.join(PARTS)}"
            raise ValueError(expected + did_you_mean(name, PARTS))
    return tuple(dict.fromkeys(names))


def sizes_of(text: str) -> tuple[int, ...]:
    """Numbers separated by commas."""
    return tuple(positive_int(number) for number in text.split(","))


@dataclass(frozen=True)
class Options:
    """What to measure."""

    collection: str = option("collection to rank", default="mb2012", metavar="NAME")
    parts: tuple[str, ...] | None = option(
        "parts, separated by commas (default: all but further, gpu and growth)",
        parse=part_names,
        metavar="NAME,…",
    )
    pairs: int = option("pairs of the parts scoring and gpu", default=4096, parse=positive_int)
    rounds: int = option("measurements of each way", default=5, parse=positive_int)
    minutes: int = option("minutes of the service's overload", default=1, parse=positive_int)
    sizes: tuple[int, ...] = option(
        "posts of growth's collections",
        default=(100_000, 1_000_000, 10_000_000),
        parse=sizes_of,
        metavar="N,…",
    )
    device: str = option("device of the models", default="auto", choices=("auto", "cpu", "cuda"))
    engine: str | None = option(
        "address of OpenSearch or Elasticsearch (default: $OPENSEARCH_URL)", metavar="URL"
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Measure the parts, then print their figures as one table."""
    from benchmarks.workload import Workload

    from pipeline.collections import named
    from pipeline.command.runtime import choose_device, provenance

    workload = Workload(
        named.find(options.collection, options.data).name,
        options.pairs,
        options.rounds,
        choose_device(options.device),
        options.data,
        options.minutes,
        options.sizes,
        options.engine or os.environ.get("OPENSEARCH_URL"),
        options.device != "auto",
    )
    made = provenance()
    machine = f"{made['machine']}, PyTorch {made['versions']['torch']}"
    print(f"machine: {machine}; {workload.collection}, on {workload.device}", flush=True)
    rows: list[tuple[str, str]] = []
    for name in options.parts or [part for part in PARTS if part not in ON_REQUEST]:
        print(f"\n== {name}", flush=True)
        rows += import_module(f"benchmarks.{name}").measure(workload)
    if rows:
        print("\n| what | measured |\n|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    keep_allocations()
    run_command(Options, main, "scripts/benchmark.py", __doc__)
