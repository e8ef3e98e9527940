#!/usr/bin/env python3
"""Measure speed, alternative ways in one run and in turn: a ratio is steadier than a rate.

    python scripts/benchmark.py
    python scripts/benchmark.py --parts scoring search --rounds 2 --pairs 49879

Parts:

scoring  MP-HCNN as shipped: its own forward pass, the fast one, and --device beside them
search   the whole process "python -m pipeline.search": seconds and peak memory
stages   a request of 100 posts, new and known, for the model window by stage, on one core
service  latency, load, overload (--minutes) and start of the rerank service, beside in-process
         scoring

A figure is the median over the rounds, a ratio the median of the rounds' ratios.
"""

import os
from dataclasses import replace

from benchmarks import Options

from tweetrerank.pipeline.command.options import run_command
from tweetrerank.pipeline.runtime import keep_allocations


def main(options: Options) -> None:
    """Measure the parts and print a table of each."""
    from benchmarks import parts

    from tweetrerank.pipeline.collections import named
    from tweetrerank.pipeline.runtime import choose_device, provenance

    name = named.find(options.collection, options.data).name
    options = replace(options, collection=name, device=choose_device(options.device))
    made = provenance()
    versions = ", ".join(
        f"{package} {version}" for package, version in made["versions"].items()
    )
    print(
        f"machine: {made['machine']}, {versions}; {name}, on {options.device}",
        flush=True,
    )
    for part in options.parts:
        choose_device("cpu", len(os.sched_getaffinity(0)))  # Stages are of one core.
        print(f"\n== {part}", flush=True)
        rows = [*getattr(parts, f"measure_{part}")(options)]
        print("| what | measured |\n|---|---|")
        for row in rows:
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    keep_allocations()
    run_command(Options, main, "scripts/benchmark.py", __doc__)
