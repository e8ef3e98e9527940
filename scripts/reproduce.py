#!/usr/bin/env python3
"""Train and measure the systems of the papers, and print their tables.

    python scripts/reproduce.py table3 --tests mb2011,mb2012,mb2013 --workers 2
    python scripts/reproduce.py all --output results/
    python scripts/reproduce.py answer-selection --seeds 1
    python scripts/reproduce.py readme

table2 … table6 and figure2 … figure4 are those of Rao et al. (AAAI 2019), and all is all of them;
readme writes the tables of scripts/README.md anew from the CSVs that it names. Finished
cells are kept under $TWEETRERANK_HOME and not computed again; an interrupted run goes on where it
stopped.
"""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.errors import DataError, UsageError
from pipeline.command.options import (
    argument,
    did_you_mean,
    option,
    output_file,
    positive_int,
    run_command,
)
from pipeline.command.runtime import keep_allocations

if TYPE_CHECKING:
    from experiments.cells import Cell, Result
    from experiments.tables import Table
    from experiments.tables.contract import Workshop

ALL, README = "all", "readme"


def output_folder(text: str) -> Path:
    """The path of a folder to write into; it is made when something is written."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise ValueError(f"found the file {text}, expected a folder")
    return path


@dataclass(frozen=True)
class Options:
    """What to reproduce, and where."""

    table: str = argument(
        "table2 … table6, figure2 … figure4, all, answer-selection, sampling, microblog, fusion, "
        "fusion-ablation or readme"
    )
    tests: tuple[str, ...] = option(
        "collections to report, separated by commas (default: all of the table that have "
        "judgments)", many=True, names=("--tests",), metavar="NAMES",
    )  # fmt: skip
    seeds: int | None = option("seeds of every system (default: the table's)", parse=positive_int)
    workers: int = option("cells at a time", default=1, parse=positive_int)
    device: str = option("where models run", default="auto", choices=("auto", "cpu", "cuda"))
    csv: Path | None = option("also write every cell's figures here", parse=output_file)
    plot: Path | None = option("draw the figure here", parse=output_file, metavar="PNG")
    output: Path | None = option(
        "write NAME.md, NAME.csv and NAME.png of every table into this folder",
        parse=output_folder, metavar="DIR",
    )  # fmt: skip
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Compute the missing cells, print the tables, write what is asked for."""
    from experiments.tables.contract import Workshop

    from pipeline.collections.locations import home_directory
    from rerankers.errors import RerankerError

    if options.table == README:
        _fill(options, Path(__file__).parent / "README.md")
        return
    tables, collections = _check(options)
    cells = {
        name: tables[name].cells(chosen, options.seeds or tables[name].seeds)
        for name, chosen in collections.items()
    }
    workshop = Workshop(home_directory() / "experiments", options.data, options.device)
    # Tables share cells, and each cell has one result.
    distinct = list(dict.fromkeys(cell for some in cells.values() for cell in some))
    results, failures = _compute(distinct, workshop, options)
    for name, table in tables.items():
        wanted = set(cells[name])
        workshop = dataclasses.replace(workshop, asked=tuple(collections[name]))
        try:
            _show(name, table, [r for r in results if r.cell in wanted], workshop, options)
        except (DataError, RerankerError, OSError) as error:
            failures.append(f"{name}: {error}")
    if failures:
        raise DataError("\n".join([f"{len(failures)} failed:", *failures]))


def _fill(options: Options, path: Path) -> None:
    """Write the tables of a README anew from the CSVs beside it."""
    from experiments.tables.readme import filled

    from indexes.files import atomic_file

    if options != Options(README):
        raise UsageError("readme: found other options, expected none: it reads the CSVs alone")
    text, absent = filled(path.read_text(encoding="utf-8"), path.parent)
    with atomic_file(path) as stream:
        stream.write(text)
    print(f"wrote {path}" + (f"; not there yet: {', '.join(absent)}" if absent else ""))


def _check(options: Options) -> "tuple[dict[str, Table], dict[str, Sequence[str]]]":
    """The tables and the collections of each; refuse what makes no sense, all at once.

    Of all tables those are left out that have none of the collections asked for.
    """
    from experiments.tables import MP_HCNN, TABLES

    tables = dict(MP_HCNN) if options.table == ALL else {}
    if options.table in TABLES:
        tables = {options.table: TABLES[options.table]}
    problems = _problems(options, tables)
    tests = [name.strip() for names in options.tests for name in names.split(",") if name.strip()]
    known = list(dict.fromkeys(name for table in tables.values() for name in table.collections))
    if tables and (unknown := [name for name in tests if name not in known]):
        problems.append(f"--tests: found {', '.join(unknown)}, expected some of {', '.join(known)}")
    if problems:
        raise UsageError(problems)
    chosen = {
        name: table.chosen(asked, options.data)
        for name, table in tables.items()
        if (asked := [c for c in table.collections if c in tests]) or not tests
    }
    return {name: tables[name] for name in chosen}, chosen


def _problems(options: Options, tables: "dict[str, Table]") -> list[str]:
    """What is wrong with the table's name and with the files that are asked for."""
    from importlib.util import find_spec

    from experiments.tables import TABLES

    problems = []
    known = [*TABLES, ALL, README]
    if not tables:
        problems.append(
            f"table: found {options.table!r}, expected one of {', '.join(known)}"
            + did_you_mean(options.table, known)
        )
    if options.table == ALL and (options.csv or options.plot):
        problems.append("--csv and --plot are for one table; use --output DIR for all")
    draws = any(table.draws for table in tables.values())
    if options.csv and tables and not any(table.systems for table in tables.values()):
        problems.append(f"--csv: {options.table} has no cells to write; leave it out")
    if options.plot and tables and not draws:
        problems.append(f"--plot: {options.table} has no picture; leave it out")
    # Told now, and not after hours of training.
    if (options.plot or options.output) and draws and find_spec("matplotlib") is None:
        problems.append(
            "--plot, --output: found no matplotlib, which draws; install it with "
            "`pip install matplotlib`"
        )
    return problems


def _compute(
    cells: "Sequence[Cell]", workshop: "Workshop", options: Options
) -> "tuple[list[Result], list[str]]":
    """Results of all cells; the bar counts those that were missing, so its estimate holds."""
    from experiments.cells import is_finished, run_cells
    from tqdm import tqdm

    missing = {cell.key for cell in cells if not is_finished(cell, workshop.directory)}
    with tqdm(total=len(missing), unit="cell", disable=None if missing else True) as bar:

        def progress(cell: "Cell", message: str) -> None:
            if cell.key in missing:
                tqdm.write(message, file=sys.stderr)
                bar.update()

        return run_cells(
            cells, workshop.directory, options.data, options.workers, options.device, progress
        )


def _show(
    name: str, table: "Table", results: "Sequence[Result]", workshop: "Workshop", options: Options
) -> None:
    """Print one table, and write its files."""
    from experiments.tables.results import write_csv

    from indexes.files import atomic_file

    results = table.finish(results, workshop)
    text = table.report(results, workshop)
    print(f"## {name}\n\n{text}\n" if options.table == ALL else text)
    folder = options.output
    csv = options.csv or (folder / f"{name}.csv" if folder and results else None)
    plot = options.plot or (folder / f"{name}.png" if folder and table.draws else None)
    if folder:
        with atomic_file(folder / f"{name}.md") as stream:
            stream.write(f"{text}\n")
    if csv:
        write_csv(csv, results)
    if plot:
        table.draw(plot, results, workshop)


if __name__ == "__main__":
    keep_allocations()
    run_command(Options, main, "scripts/reproduce.py", __doc__)
