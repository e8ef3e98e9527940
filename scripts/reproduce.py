#!/usr/bin/env python3
"""Print the tables of the papers, of the fusion and of window; train and measure their systems.

    python scripts/reproduce.py table3                      # from its CSV in scripts/results
    python scripts/reproduce.py table3 --train --workers 2  # compute all cells
    python scripts/reproduce.py table3 --train --systems "MP-HCNN (paper)" --tests mb2013 \\
        --output scripts/results                            # add a row's cells to its CSV
    python scripts/reproduce.py table5                      # from finished cells

table2 to table6 and figure2 to figure4 are those of Rao et al. (AAAI 2019), "all" is all of these.
--write makes scripts/results/README.md from the CSVs beside it. Finished cells are kept in
$TWEETRERANK_HOME and not computed again. Rows of tables are data: scripts/experiments/tables.toml.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
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
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Options:
    """Table, data and output."""

    table: str | None = argument("name of a table, or all", required=False)
    train: bool = option("compute the missing cells", flag=True)
    write: bool = option(
        "write scripts/results/README.md from the CSVs beside it", flag=True
    )
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
        "folder for NAME.md or NAME.csv, and NAME.png, of each table; a CSV that is there keeps "
        "its other cells",
        parse=Path,
        metavar="DIR",
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)

    def tested(self, table: Table) -> list[str]:
        """The table's collections, or those of them that ``--tests`` names."""
        return [
            name
            for name in table.collections
            if name in (self.tests or table.collections)
        ]

    def has(self, cell: Cell) -> bool:
        """Whether a cell's row and seed are wanted."""
        has_row = not self.systems or cell.system in self.systems
        return has_row and cell.seed <= (self.seeds or cell.seed)


def main(options: Options) -> None:
    """Print the tables, after computing their missing cells on request, and write their files."""
    from experiments import cells, reports

    tables = check(options)
    if options.write:
        write_bytes(RESULTS / "README.md", readme().encode())
        print(f"wrote {RESULTS / 'README.md'}")
    folder = home_directory() / "experiments"
    setup = cells.Setup(folder, options.data, options.device, options.workers)
    # Finished cells of other rows are there to be compared with.
    of_tables = {
        table.name: [
            cell
            for cell in table.cells(options.tested(table), options.seeds)
            if (options.train and options.has(cell)) or cells.is_finished(cell, setup)
        ]
        for table in tables
        if options.train or table.report
    }
    computed, failures = cells.run_cells(
        [*dict.fromkeys(chain(*of_tables.values()))], setup
    )
    for table in tables:
        try:
            if table.name in of_tables:
                results = [
                    result
                    for result in computed
                    if result.cell in of_tables[table.name]
                ]
                if table.finish:
                    results = getattr(reports, table.finish)(table, results, setup)
            else:
                path = RESULTS / table.csv
                results = cells.read_csv(path) if path.exists() else []
            tested = [r for r in results if r.cell.collection in options.tested(table)]
            show(table, [r for r in tested if options.has(r.cell)], setup, options)
        except (DataError, RerankerError, OSError) as error:
            failures.append(f"{table.name}: {error}")
    if failures:
        raise DataError("\n".join([f"{len(failures)} failed:", *failures]))


def check(options: Options) -> list[Table]:
    """The requested tables with any of the requested collections; UsageError for all problems."""
    from experiments.tables import read_tables

    known = read_tables()[1]
    tables = [known[options.table]] if options.table in known else []
    if options.table == ALL:
        tables = [
            t for name, t in known.items() if name.startswith(("table", "figure"))
        ]
    checks = [("table", (options.table,), [*known, ALL])] * bool(
        options.table or not options.write
    )
    if tables:
        collections = [name for table in tables for name in table.collections]
        systems = [system.name for table in tables for system in table.systems]
        checks += [("--tests", options.tests or (), collections)]
        checks += [("--systems", options.systems, systems)]
    problems = [
        f"{option}: found {name!r}, expected one of {'; '.join(dict.fromkeys(expected))}"
        + did_you_mean(name or "", expected)
        for option, chosen, expected in checks
        for name in chosen
        if name not in expected
    ]
    commit = provenance()["commit"] if options.train else None
    if commit and commit.endswith("-dirty"):
        problems.append(
            f"--train: found changes after the commit {commit.removesuffix('-dirty')}, expected a "
            "clean one, which results name; commit the changes, or put them away by `git stash`"
        )
    if options.output and options.output.exists() and not options.output.is_dir():
        problems.append(f"--output: found the file {options.output}, expected a folder")
    # Checked before hours of training.
    if (
        options.output
        and any(t.figure for t in tables)
        and find_spec("matplotlib") is None
    ):
        problems.append(
            "--output: found no matplotlib, which draws the figures; install it with "
            "`pip install 'tweetrerank[plot]'`"
        )
    if problems:
        raise UsageError(problems)
    return [table for table in tables if options.tested(table)]


def show(
    table: Table, results: Sequence[Result], setup: Setup, options: Options
) -> None:
    """Print a table and write its files."""
    from experiments import cells, reports, tables

    report = getattr(reports, table.report) if table.report else None
    text = report(table, results, setup) if report else tables.render(table, results)
    text += f"\n\n{table.caption}" * bool(table.caption)
    known = {(r.cell.system, r.cell.collection, r.cell.seed) for r in results}
    every = [
        c for c in table.cells(options.tested(table), options.seeds) if options.has(c)
    ]
    if empty := [c for c in every if (c.system, c.collection, c.seed) not in known]:
        told = f"{len(empty)} of {len(every)} cells were not computed; --train computes them"
        print(f"{table.name}: {told}", file=sys.stderr)
    print(f"## {table.title}\n\n{text}\n" if options.table == ALL else text)
    if folder := options.output:
        if report:
            write_bytes(folder / f"{table.name}.md", f"{text}\n".encode())
        elif results:
            cells.add_to_csv(folder / table.csv, results)
        if table.figure:
            reports.draw(folder / f"{table.name}.png", table, results, setup)


def readme() -> str:
    """The README of the results: tables of the CSVs, and pictures."""
    from experiments import cells, tables

    introduction, known = tables.read_tables()
    sections = [introduction]
    for table in known.values():
        parts = [
            f"## {table.title}: `{table.name}`",
            table.caption * (not table.report),
        ]
        csv, is_short = RESULTS / table.csv, bool(table.figure or table.csv_only)
        if csv.exists() and not is_short:
            parts.append(tables.render(table, cells.read_csv(csv)))
        for name in (
            f"{table.name}.md",
            f"{table.name}.png",
            *([table.csv] if is_short else []),
        ):
            if (RESULTS / name).exists():
                parts.append(f"{'!' * name.endswith('png')}[{name}]({name})")
        sections.append("\n\n".join(filter(None, parts)))
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    keep_allocations()
    run_command(Options, main, "scripts/reproduce.py", __doc__)
