#!/usr/bin/env python3
"""Train and measure the systems of the papers, and print their tables.

    python scripts/reproduce.py table3 --tests mb2011,mb2012,mb2013 --workers 2
    python scripts/reproduce.py all --output results/
    python scripts/reproduce.py table3 --systems "MP-HCNN (paper)" --tests mb2013 --device cuda
    python scripts/reproduce.py table3 --finished
    python scripts/reproduce.py answer-selection --seeds 1
    python scripts/reproduce.py readme

table2 to table6 and figure2 to figure4 are those of Rao et al. (AAAI 2019), "all" means all of
these; "readme" updates the tables of scripts/README.md from the CSVs in scripts/results. Finished
cells are kept in $TWEETRERANK_HOME and not computed again; an interrupted run continues where it
stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.errors import DataError, UsageError
from pipeline.command.options import (
    argument,
    did_you_mean,
    existing_file,
    option,
    output_file,
    positive_int,
    run_command,
)
from pipeline.command.runtime import keep_allocations

if TYPE_CHECKING:
    from experiments.cells import Cell, Result, Setup
    from experiments.tables import Table

ALL, README = "all", "readme"


def output_folder(text: str) -> Path:
    """Path of an output folder, which need not exist."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise ValueError(f"found the file {text}, expected a folder")
    return path


@dataclass(frozen=True)
class Options:
    """What to reproduce, and where."""

    table: str = argument(
        "table2 … table6, figure2 … figure4, all, mp-hcnn-forms, answer-selection, sampling, cntn, "
        "question-retrieval, microblog, fusion, fusion-ablation or readme"
    )
    tests: tuple[str, ...] = option(
        "collections to report, separated by commas (default: those of the table with judgments)",
        many=True,
        names=("--tests",),
        metavar="NAMES",
    )
    systems: tuple[str, ...] = option(
        "rows to compute, by their names in the table (default: all)",
        many=True,
        names=("--systems",),
        metavar="NAME",
    )
    finished: bool = option("show the finished cells alone, and compute nothing", flag=True)
    seeds: int | None = option("seeds per system (default: the table's)", parse=positive_int)
    workers: int = option("cells at a time", default=1, parse=positive_int)
    device: str = option("device of the models", default="auto", choices=("auto", "cpu", "cuda"))
    vectors: Path | None = option(
        "word vectors of all trainings that name none, as in pipeline.train; cells of each file "
        "are kept in a folder of their own",
        parse=existing_file,
        metavar="FILE",
    )
    csv: Path | None = option("CSV file for the figures of all cells", parse=output_file)
    plot: Path | None = option("PNG file for the figure", parse=output_file, metavar="PNG")
    output: Path | None = option(
        "folder for NAME.md, NAME.csv and NAME.png of each table",
        parse=output_folder,
        metavar="DIR",
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Compute the missing cells, print the tables and write the requested files."""
    from experiments.cells import Setup, is_finished

    from indexes.files import sha256_of
    from pipeline.collections.collection import home_directory
    from rerankers.errors import RerankerError

    if options.table == README:
        fill_readme(options, Path(__file__).parent / "README.md")
        return
    tables, collections = check(options)
    cells = {
        name: [
            cell
            for cell in table.cells(collections[name], options.seeds or table.seeds)
            if cell.system in (options.systems or [cell.system])
        ]
        for name, table in tables.items()
    }
    directory = home_directory() / "experiments"
    if options.vectors:
        directory /= f"vectors-{sha256_of(options.vectors)[:12]}"
    setup = Setup(directory, options.data, options.device, options.vectors)
    # Tables share cells.
    distinct = list(dict.fromkeys(cell for of_table in cells.values() for cell in of_table))
    if options.finished:
        distinct = [cell for cell in distinct if is_finished(cell, setup)]
    results, failures = compute(distinct, setup, options.workers)
    for name, table in tables.items():
        try:
            show(name, table, [r for r in results if r.cell in cells[name]], setup, options)
        except (DataError, RerankerError, OSError) as error:
            failures.append(f"{name}: {error}")
    if failures:
        raise DataError("\n".join([f"{len(failures)} failed:", *failures]))


def fill_readme(options: Options, path: Path) -> None:
    """Update the tables of a README from the CSVs beside it."""
    from experiments.tables.results import fill_tables

    from indexes.files import atomic_file

    if options != Options(README):
        raise UsageError("readme: found other options, expected none: it reads the CSVs alone")
    text, missing = fill_tables(path.read_text(encoding="utf-8"), path.parent)
    with atomic_file(path) as stream:
        stream.write(text)
    print(f"wrote {path}" + (f"; not there yet: {', '.join(missing)}" if missing else ""))


def check(options: Options) -> tuple[dict[str, Table], dict[str, Sequence[str]]]:
    """The requested tables, and the collections of each.

    A table without any of the requested collections is left out.

    Raises:
        UsageError: all problems of the options.
    """
    from experiments.tables import MP_HCNN, TABLES

    known = [*TABLES, ALL, README]
    tables: Mapping[str, Table] = {}
    problems = []
    if options.table == ALL:
        tables = MP_HCNN
        if options.csv or options.plot:
            problems.append("--csv and --plot are for one table; use --output DIR for all")
    elif options.table in TABLES:
        tables = {options.table: TABLES[options.table]}
    else:
        problems.append(
            f"table: found {options.table!r}, expected one of {', '.join(known)}"
            + did_you_mean(options.table, known)
        )
    has_figure = any(table.has_figure for table in tables.values())
    if options.plot and tables and not has_figure:
        problems.append(f"--plot: {options.table} has no picture; leave it out")
    # Checked before hours of training.
    if (options.plot or options.output) and has_figure and find_spec("matplotlib") is None:
        problems.append(
            "--plot, --output: found no matplotlib, which draws the figures; install it with "
            "`pip install 'tweetrerank[plot]'`"
        )
    tests = [name.strip() for names in options.tests for name in names.split(",") if name.strip()]
    usable = list(dict.fromkeys(name for table in tables.values() for name in table.collections))
    if tables and (unknown := [name for name in tests if name not in usable]):
        problems.append(
            f"--tests: found {', '.join(unknown)}, expected some of {', '.join(usable)}"
        )
    rows = list(dict.fromkeys(s.name for table in tables.values() for s in table.systems))
    problems += [
        f"--systems: found {name!r}, expected one of {'; '.join(rows)}" + did_you_mean(name, rows)
        for name in options.systems
        if tables and name not in rows
    ]
    if problems:
        raise UsageError(problems)
    chosen: dict[str, Sequence[str]] = {}
    for name, table in tables.items():
        if not tests:
            chosen[name] = table.default_collections(options.data)
        elif requested := [name for name in table.collections if name in tests]:
            chosen[name] = requested
    return {name: tables[name] for name in chosen}, chosen


def compute(cells: Sequence[Cell], setup: Setup, workers: int) -> tuple[list[Result], list[str]]:
    """Results of all cells; the progress bar counts the missing ones."""
    from experiments.cells import is_finished, run_cells
    from tqdm import tqdm

    missing = {cell.key for cell in cells if not is_finished(cell, setup)}
    with tqdm(total=len(missing), unit="cell", disable=None if missing else True) as bar:

        def progress(cell: Cell, message: str) -> None:
            if cell.key in missing:
                tqdm.write(message, file=sys.stderr)
                bar.update()

        return run_cells(cells, setup, workers, progress)


def show(
    name: str, table: Table, results: Sequence[Result], setup: Setup, options: Options
) -> None:
    """Print a table and write its files."""
    from experiments.tables.results import write_csv

    from indexes.files import atomic_file

    results = table.finish(results, setup)
    text = table.report(results, setup)
    print(f"## {name}\n\n{text}\n" if options.table == ALL else text)
    folder = options.output
    csv = options.csv or (folder / f"{name}.csv" if folder and results else None)
    plot = options.plot or (folder / f"{name}.png" if folder and table.has_figure else None)
    if folder:
        with atomic_file(folder / f"{name}.md") as stream:
            stream.write(f"{text}\n")
    if csv:
        write_csv(csv, results)
    if plot:
        table.draw(plot, results, setup)


if __name__ == "__main__":
    keep_allocations()
    run_command(Options, main, "scripts/reproduce.py", __doc__)
