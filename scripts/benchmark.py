#!/usr/bin/env python3
"""Measure speed, each figure against another in the same run.

    python scripts/benchmark.py --collection mb2012
    python scripts/benchmark.py --collection mb2012 --parts 1,5 --rounds 1 --pairs 256

1. MP-HCNN at the paper's size, random weights: a plain forward pass over padded pairs, as the
   authors' code does it, against the engine, with and without posts encoded beforehand;
2. the shipped MP-HCNN, SM-CNN and K-NRM, both ways, and the K-NRM of matchzoo-py if it is there;
3. the whole process ``python -m pipeline.search --topics NAME``: its stages, its peak memory;
4. how time grows with the candidates of a topic, and what a second thread gives;
5. the multiply-adds that the model needs against those that the machine can do;
6. indexing, and the time that each command's ``--help`` takes;
7. steps of training MP-HCNN, with fixed filters, with trained ones and at the paper's size, against
   padded pairs and dense Adam, and the AP that both reach on held-out topics;
8. the operations that the engine's time goes into;
9. the learned fusion, with posts that are read now and that were read beforehand, on one thread
   and on two, and its trees against LightGBM's own way.

Ways to do the same are measured in turn; a figure is the median over the rounds, a ratio the
median of the rounds' ratios.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path

from pipeline.command.options import option, positive_int, run_command
from pipeline.command.runtime import keep_allocations

PARTS = {
    1: "paper_size", 2: "other_models", 3: "process", 4: "growth", 5: "floor", 6: "surroundings",
    7: "training_step", 8: "operations", 9: "fused",
}  # fmt: skip
"""Number -> module of ``benchmarks``, each with a function ``measure``."""


def part_numbers(text: str) -> tuple[int, ...]:
    """Numbers of parts, in the order in which they are to run, each once."""
    numbers = [part.strip() for part in text.split(",")]
    known = [str(number) for number in PARTS]
    if wrong := [number for number in numbers if number not in known]:
        raise ValueError(f"found {wrong[0]!r}, expected some of {','.join(known)}")
    return tuple(dict.fromkeys(int(number) for number in numbers))


@dataclass(frozen=True)
class Options:
    """What to measure."""

    collection: str = option("named collection", default="mb2012", metavar="NAME")
    pairs: int = option("pairs for the parts 1, 2 and 5", default=4096, parse=positive_int)
    rounds: int = option("times that each way is measured", default=5, parse=positive_int)
    parts: tuple[int, ...] | None = option(
        "what to measure, as 1,2,3 (default: everything)", parse=part_numbers, metavar="N,…"
    )
    device: str = option("where the model runs", default="auto", choices=("auto", "cpu", "cuda"))
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Measure the parts that are asked for, then print their main figures as one table."""
    # What takes long to import is imported once it is known that the arguments are good.
    from benchmarks.measuring import machine
    from benchmarks.workload import Workload

    from pipeline.collections import named
    from pipeline.command.runtime import choose_device

    device = choose_device(options.device)
    name = named.find(options.collection, options.data).name
    workload = Workload(name, options.pairs, options.rounds, device, options.data)
    print(f"machine: {machine()}; {name}, on {device}", flush=True)
    rows: list[tuple[str, str]] = []
    for number in options.parts or tuple(PARTS):
        print(f"\n== part {number}", flush=True)
        rows += importlib.import_module(f"benchmarks.{PARTS[number]}").measure(workload)
    print("\n| what | measured |\n|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    keep_allocations()
    run_command(Options, main, "scripts/benchmark.py", __doc__)
