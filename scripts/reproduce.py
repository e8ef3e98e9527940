#!/usr/bin/env python3
"""Train and measure the systems of the papers, and print their tables.

    python scripts/reproduce.py answer-selection
    python scripts/reproduce.py sampling --seeds 1
    python scripts/reproduce.py microblog --workers 2

Finished cells are kept and not computed again; an interrupted run goes on where it stopped.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.cli import argument, option, output_file, positive_int, run_command
from pipeline.errors import DataError, UsageError

TABLES = ("answer-selection", "sampling", "microblog")


@dataclass(frozen=True)
class Options:
    """What to reproduce, and where."""

    table: str = argument(f"one of {', '.join(TABLES)}")
    tests: tuple[str, ...] = option(
        "collection to report, may be repeated (default: all of the table)", many=True,
        names=("--tests",), metavar="NAME",
    )  # fmt: skip
    seeds: int = option("seeds of every system", default=3, parse=positive_int)
    workers: int = option("cells at a time", default=1, parse=positive_int)
    device: str = option("where models run", default="auto", choices=("auto", "cpu", "cuda"))
    csv: Path | None = option("also write every cell's figures here", parse=output_file)
    plot: Path | None = option("draw the figure of sampling here", parse=output_file, metavar="PNG")
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Compute the missing cells, print the table, write what is asked for."""
    from tqdm import tqdm

    from pipeline import tables
    from pipeline.collections import home_directory
    from pipeline.experiments import run_cells

    if options.table not in TABLES:
        raise UsageError(f"table: found {options.table!r}, expected one of {', '.join(TABLES)}")
    table = tables.find(options.table)
    cells = table.cells(options.tests, options.seeds)
    with tqdm(total=len(cells), unit="cell", disable=None) as bar:

        def progress(message: str) -> None:
            tqdm.write(message, file=sys.stderr)
            bar.update()

        results, failures = run_cells(
            cells, home_directory() / "experiments", options.data, options.workers,
            options.device, progress,
        )  # fmt: skip
    print(table.markdown(results))
    if options.csv:
        tables.write_csv(options.csv, results)
    if options.plot:
        tables.plot_sampling(options.plot, results)
    if failures:
        raise DataError("\n".join([f"{len(failures)} of {len(cells)} cells failed:", *failures]))


if __name__ == "__main__":
    run_command(Options, main, "scripts/reproduce.py", __doc__)
