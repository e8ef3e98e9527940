"""Results as CSV, and the tables inside a README that are made from them.

In a README a table stands between ``<!-- NAME: PATH -->`` and ``<!-- end -->``: NAME is a key of
:data:`experiments.tables.TABLES`, PATH a CSV relative to the README's folder.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.cells import Cell, Result
from experiments.tables import TABLES, ResultTable
from indexes.files import atomic_file
from pipeline.command.errors import DataError

MADE = ("date", "commit", "machine")
SEPARATOR = "; "
"""Separator of the systems in a column of marks."""

START = re.compile(r"<!-- (\S+): (\S+) -->\n")
END = "<!-- end -->"


def write_csv(path: Path, results: Sequence[Result]) -> None:
    """Write a line per cell and measure, with date, commit and machine."""
    rows = [row for result in results for row in _rows(result)]
    with atomic_file(path) as stream:
        writer = csv.DictWriter(stream, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _rows(result: Result) -> Iterator[dict[str, object]]:
    # Without judgments: one line without a measure.
    for measure in result.measures or ("",):
        yield {
            "system": result.cell.system,
            "collection": result.cell.collection,
            "seed": result.cell.seed,
            "measure": measure,
            "value": result.measures.get(measure, ""),
            "interpolated": result.interpolated.get(measure, ""),
            "lambda": result.weight,
            "development_ap": result.development,
            "epochs": result.epochs,
            "seconds": result.seconds,
            **{name: result.made[name] for name in MADE},
            **{name: SEPARATOR.join(m.get(measure, ())) for name, m in _marks(result).items()},
        }


def read_csv(path: Path) -> list[Result]:
    """Read results back, without the model and training options of their cells."""
    found: dict[tuple[str, ...], Result] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            key = row["system"], row["collection"], row["seed"]
            if key not in found:
                cell = Cell(row["system"], "", (), row["collection"], int(row["seed"]))
                weight = float(row["lambda"]) if row["lambda"] else None
                costs = float(row["development_ap"]), int(row["epochs"]), float(row["seconds"])
                made = {name: row[name] for name in MADE}
                found[key] = Result(cell, {}, {}, weight, *costs, made)
            result, measure = found[key], row["measure"]
            if measure:
                result.measures[measure] = float(row["value"])
            if row["interpolated"]:
                result.interpolated[measure] = float(row["interpolated"])
            for column, systems in _marks(result).items():
                # CSVs of tables without marks may lack these columns.
                if names := row.get(column):
                    systems[measure] = tuple(names.split(SEPARATOR))
    return list(found.values())


def _marks(result: Result) -> dict[str, dict[str, tuple[str, ...]]]:
    """Column -> measure -> systems."""
    return {
        "better_than": result.better_than,
        "worse_than": result.worse_than,
        "interpolated_better_than": result.mixture_better_than,
    }


def fill_tables(text: str, folder: Path) -> tuple[str, list[str]]:
    """Make all tables of a README in ``folder`` from their CSVs.

    Returns:
        The new text, and the missing CSVs, whose tables are left as they are.

    Raises:
        DataError: unknown table, a table that cannot be made from a CSV, or a missing end mark.
    """
    missing: list[str] = []
    parts, rest = [], text
    while start := START.search(rest):
        name, path = start.groups()
        content, end, after = rest[start.end() :].partition(END)
        if not end or START.search(content):
            raise DataError(f"{start[0].strip()}: found no {END} after it, expected one")
        if (folder / path).exists():
            content = f"{_result_table(name).markdown(read_csv(folder / path))}\n"
        else:
            missing.append(path)
        parts += [rest[: start.end()], content, end]
        rest = after
    return "".join([*parts, rest]), missing


def _result_table(name: str) -> ResultTable:
    table = TABLES.get(name)
    if not isinstance(table, ResultTable):
        known = [name for name, table in TABLES.items() if isinstance(table, ResultTable)]
        raise DataError(
            f"<!-- {name}: … -->: found {name!r}, expected a table from a CSV, one of "
            f"{', '.join(known)}"
        )
    return table
