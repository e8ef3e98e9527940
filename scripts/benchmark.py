#!/usr/bin/env python3
"""Measure speed. Alternatives take turns, as their ratio is steadier than each rate.

    python scripts/benchmark.py
    python scripts/benchmark.py --parts scoring search --rounds 2 --pairs 49879

Parts:

scoring  MP-HCNN as shipped: its own forward pass, the fast one, and the one on --device
search   seconds and peak memory of the process "python -m pipeline.search"
stages   stages of a request of 100 posts, new and known, to the model window, on one
         core
service  start, latency, load and overload (--minutes) of the rerank service, compared
         with in-process scoring

Each figure is a median over the rounds, and each ratio the median of their ratios.
"""

import os
from dataclasses import replace
from importlib import import_module

from benchmarks import Options

from tweetrerank.pipeline.command.options import run_command
from tweetrerank.pipeline.runtime import keep_allocations


def main(options: Options) -> None:
    """Measure the requested parts, and print a table for each of them."""
    from tweetrerank.pipeline.collections import named
    from tweetrerank.pipeline.runtime import choose_device

    name = named.find(options.collection, options.data).name
    device = choose_device(options.device)
    options = replace(options, collection=name, device=device)
    print(f"machine: {machine()}; {name}, on {device}", flush=True)
    for part in options.parts:
        # The part "stages" limits PyTorch to one thread, so each part starts by undoing
        # this.
        choose_device("cpu", len(os.sched_getaffinity(0)))
        print(f"\n== {part}", flush=True)
        module = import_module(f"benchmarks.measure_{part}")
        rows = list(module.measure(options))
        print("| what | measured |\n|---|---|")
        for title, figure in rows:
            print(f"| {title} | {figure} |", flush=True)


def machine() -> str:
    """Return the machine and the versions of the packages, as text."""
    from tweetrerank.pipeline.runtime import provenance

    record = provenance()
    versions = [f"{package} {number}" for package, number in record["versions"].items()]
    return f"{record['machine']}, {', '.join(versions)}"


if __name__ == "__main__":
    keep_allocations()
    run_command(Options, main, "scripts/benchmark.py", __doc__)
