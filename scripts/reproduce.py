#!/usr/bin/env python3
"""Print the tables of the papers, of the fusion and of window, or train their systems.

    python scripts/reproduce.py table3                      # from its CSV
    python scripts/reproduce.py table3 --train --workers 2  # compute all cells
    python scripts/reproduce.py table3 --train --systems "MP-HCNN (paper)" \\
        --tests mb2013 --output scripts/results             # add a row's cells
    python scripts/reproduce.py table5                      # from finished cells

The tables table2 to table6 and the figures figure2 to figure4 are those of Rao et al.
(AAAI 2019), and "all" stands for all of them. The CSVs are in scripts/results, and
--write makes the README there from them. Finished cells are kept in $TWEETRERANK_HOME
and are not computed again. The rows of all tables are defined in
scripts/experiments/tables.toml.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import write_bytes
from tweetrerank.pipeline.collections.folders import home_directory
from tweetrerank.pipeline.command.options import (
    argument,
    option,
    positive_int,
    run_command,
)
from tweetrerank.pipeline.runtime import keep_allocations, provenance
from tweetrerank.pipeline.text import did_you_mean
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers.reranker_error import RerankerError

if TYPE_CHECKING:
    from experiments.cells import Cell, Result, Setup
    from experiments.tables import Table

ALL = "all"
PAPER_TABLES = ("table", "figure")  # Beginnings of the names that ``all`` stands for
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Options:
    """Table, data and output."""

    table: str | None = argument("name of a table, or all", required=False)
    train: bool = option("compute the missing cells", flag=True)
    write: bool = option("write scripts/results/README.md from the CSVs", flag=True)
    tests: tuple[str, ...] | None = option(
        "collections to report, separated by commas (default: all of the table)",
        parse=lambda text: tuple(name.strip() for name in text.split(",")),
        metavar="NAMES",
    )
    systems: tuple[str, ...] = option(
        "rows to show, by their names in the table (default: all)",
        many=True,
        metavar="NAME",
    )
    seeds: int | None = option(
        "seeds per system (default: the table's)", parse=positive_int
    )
    workers: int = option("cells at a time", default=1, parse=positive_int)
    device: str = option(
        "device of the models", default="auto", choices=("auto", "cpu", "cuda")
    )
    output: Path | None = option(
        "folder for NAME.md or NAME.csv, and NAME.png, of each table; an existing CSV "
        "keeps its other cells",
        parse=Path,
        metavar="DIR",
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)

    def tested(self, table: Table) -> list[str]:
        """Return the table's collections, limited to ``--tests`` if it is given."""
        if not self.tests:
            return list(table.collections)
        return [name for name in table.collections if name in self.tests]

    def has(self, cell: Cell) -> bool:
        """Whether the options select the row and the seed of a cell."""
        has_row = not self.systems or cell.system in self.systems
        return has_row and cell.seed <= (self.seeds or cell.seed)


def main(options: Options) -> None:
    """Print the tables and write their files, and train missing cells on request.

    Raises UsageError if the options are wrong, and DataError at the end if some cells
    or tables have failed.
    """
    from experiments import cell_runs, cells

    tables = check(options)
    if options.write:
        write_bytes(RESULTS / "README.md", readme().encode())
        print(f"wrote {RESULTS / 'README.md'}")
    folder = home_directory() / "experiments"
    setup = cells.Setup(
        folder,
        options.data,
        options.device,
        options.workers,
    )
    cells_of = cells_to_run(tables, setup, options)
    distinct: dict[Cell, None] = {}
    for of_table in cells_of.values():
        distinct |= dict.fromkeys(of_table)
    computed, failures = cell_runs.run_cells(list(distinct), setup)
    for table in tables:
        try:
            results = results_of(
                table,
                cells_of.get(table.name),
                computed,
                setup,
            )
            show(table, selected(results, table, options), setup, options)
        except (DataError, RerankerError, OSError) as error:
            failures.append(f"{table.name}: {error}")
    if failures:
        raise DataError("\n".join([f"{len(failures)} failed:", *failures]))


def cells_to_run(
    tables: Sequence[Table], setup: Setup, options: Options
) -> dict[str, list[Cell]]:
    """Return for each table the cells to compute or to read.

    Finished cells of rows that are not requested are included, because requested rows
    are compared with them. A table that is printed from its CSV is left out.
    """
    from experiments.cell_runs import is_finished

    cells_of = {}
    for table in tables:
        if not options.train and not table.report:
            continue
        cells = []
        for cell in table.cells(options.tested(table), options.seeds):
            is_requested = options.train and options.has(cell)
            if is_requested or is_finished(cell, setup):
                cells.append(cell)
        cells_of[table.name] = cells
    return cells_of


def selected(
    results: Sequence[Result],
    table: Table,
    options: Options,
) -> list[Result]:
    """Return those results whose collection, row and seed the options select."""
    names = options.tested(table)
    return [
        result
        for result in results
        if result.cell.collection in names and options.has(result.cell)
    ]


def results_of(
    table: Table,
    cells: list[Cell] | None,
    computed: Sequence[Result],
    setup: Setup,
) -> list[Result]:
    """Return the results of a table's cells, with the marks and measures it adds.

    If ``cells`` is None, the results are read from the table's CSV. There are none if
    the CSV does not exist.
    """
    from experiments.reports import FINISHES
    from experiments.results_csv import read_csv

    if cells is None:
        path = RESULTS / table.csv
        return read_csv(path) if path.exists() else []
    results = [result for result in computed if result.cell in cells]
    if table.finish:
        return FINISHES[table.finish](table, results, setup)
    return results


def check(options: Options) -> list[Table]:
    """Return the requested tables that have at least one requested collection.

    Raises UsageError listing every problem found in the options.
    """
    from experiments.tables import read_tables

    _, known_tables = read_tables()
    tables = requested_tables(options, known_tables)
    problems = name_problems(options, known_tables, tables)
    if options.train:
        problems += commit_problems()
    if options.output:
        # A problem must show up before hours of training.
        problems += output_problems(options.output, tables)
    if problems:
        raise UsageError(problems)
    return [table for table in tables if options.tested(table)]


def requested_tables(
    options: Options,
    tables: Mapping[str, Table],
) -> list[Table]:
    """Return the requested table, or all tables that ``all`` stands for.

    Returns no tables if the name is unknown or missing.
    """
    if options.table == ALL:
        return [
            table for name, table in tables.items() if name.startswith(PAPER_TABLES)
        ]
    if options.table in tables:
        return [tables[options.table]]
    return []


def name_problems(
    options: Options,
    known_tables: Mapping[str, Table],
    tables: Sequence[Table],
) -> list[str]:
    """Return a problem for each unknown name of a table, collection or system."""
    problems = []
    if options.table or not options.write:
        choices = [*known_tables, ALL]
        problems += unknown("table", [options.table], choices)
    if tables:
        collections: list[str] = []
        systems: list[str] = []
        for table in tables:
            collections += table.collections
            systems += [system.name for system in table.systems]
        problems += unknown("--tests", options.tests or (), collections)
        problems += unknown("--systems", options.systems, systems)
    return problems


def unknown(
    option: str,
    names: Iterable[str | None],
    choices: Iterable[str],
) -> list[str]:
    """Return a problem for each name of an option that is not among the choices."""
    distinct = list(dict.fromkeys(choices))
    problems = []
    for name in names:
        if name not in distinct:
            problems.append(
                f"{option}: found {name!r}, expected one of {'; '.join(distinct)}"
                f"{did_you_mean(name or '', distinct)}"
            )
    return problems


def commit_problems() -> list[str]:
    """Return a problem if results could not be attributed to a commit."""
    commit = provenance()["commit"]
    if not commit or not commit.endswith("-dirty"):
        return []
    return [
        f"--train: found changes after the commit {commit.removesuffix('-dirty')}, "
        "expected none, because results name the commit; commit the changes or put "
        "them away with `git stash`"
    ]


def output_problems(
    folder: Path,
    tables: Sequence[Table],
) -> list[str]:
    """Return the problems with the output folder, and with drawing the figures."""
    problems = []
    if folder.exists() and not folder.is_dir():
        problems.append(f"--output: found the file {folder}, expected a folder")
    if any(table.figure for table in tables) and find_spec("matplotlib") is None:
        problems.append(
            "--output: matplotlib, which draws the figures, is not installed; install "
            "it with `pip install 'tweetrerank[plot]'`"
        )
    return problems


def show(
    table: Table,
    results: Sequence[Result],
    setup: Setup,
    options: Options,
) -> None:
    """Print a table, and write its files if the options name a folder."""
    from experiments.figures import draw
    from experiments.rendering import render
    from experiments.reports import REPORTS
    from experiments.results_csv import add_to_csv

    if table.report:
        text = REPORTS[table.report](table, results, setup)
    else:
        text = render(table, results)
    if table.caption:
        text += f"\n\n{table.caption}"
    print_missing(table, results, options)
    print(f"## {table.title}\n\n{text}\n" if options.table == ALL else text)
    folder = options.output
    if folder is None:
        return
    if table.report:
        write_bytes(folder / f"{table.name}.md", f"{text}\n".encode())
    elif results:
        add_to_csv(folder / table.csv, results)
    if table.figure:
        draw(folder / f"{table.name}.png", table, results, setup)


def print_missing(
    table: Table,
    results: Sequence[Result],
    options: Options,
) -> None:
    """Print to stderr how many of the selected cells have no result."""
    computed = set()
    for result in results:
        cell = result.cell
        computed.add((cell.system, cell.collection, cell.seed))
    total = 0
    missing = 0
    for cell in table.cells(options.tested(table), options.seeds):
        if options.has(cell):
            total += 1
            missing += (cell.system, cell.collection, cell.seed) not in computed
    if missing:
        print(
            f"{table.name}: {missing} of {total} cells were not computed; --train "
            "computes them",
            file=sys.stderr,
        )


def readme() -> str:
    """Return the README of the results, with tables from the CSVs and pictures."""
    from experiments.tables import read_tables

    introduction, tables = read_tables()
    sections = [introduction]
    for table in tables.values():
        sections.append("\n\n".join(readme_section(table)))
    return "\n\n".join(sections) + "\n"


def readme_section(table: Table) -> list[str]:
    """Return the paragraphs about a table, with links to its files."""
    from experiments.rendering import render
    from experiments.results_csv import read_csv

    paragraphs = [f"## {table.title}: `{table.name}`"]
    if table.caption and not table.report:
        paragraphs.append(table.caption)
    files = [f"{table.name}.md", f"{table.name}.png"]
    csv = RESULTS / table.csv
    if table.figure or table.csv_only:
        files.append(table.csv)
    elif csv.exists():
        paragraphs.append(render(table, read_csv(csv)))
    for name in files:
        if (RESULTS / name).exists():
            link = f"[{name}]({name})"
            paragraphs.append(f"!{link}" if name.endswith("png") else link)
    return paragraphs


if __name__ == "__main__":
    keep_allocations()
    run_command(Options, main, "scripts/reproduce.py", __doc__)
