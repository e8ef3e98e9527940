"""Results as CSV: a line per cell and measure, with date, commit and machine."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.cells import Cell, Result
from indexes.files import atomic_file

MADE = ("date", "commit", "machine")
SEPARATOR = "; "  # Separator of the systems in a column of marks
Key = tuple[str, str, int]  # System, collection and seed


def key_of(result: Result) -> Key:
    """What tells a table's results apart."""
    return result.cell.system, result.cell.collection, result.cell.seed


def add_to_csv(path: Path, results: Sequence[Result]) -> None:
    """Write results: those of a file's cells are replaced in their place, others come last."""
    rows = {key_of(result): result for result in read_csv(path)} if path.exists() else {}
    rows |= {key_of(result): result for result in results}
    lines = [line for result in rows.values() for line in _lines(result)]
    with atomic_file(path) as stream:
        writer = csv.DictWriter(stream, list(lines[0]) if lines else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _lines(result: Result) -> Iterator[dict[str, object]]:
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
    results: dict[Key, Result] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            cell = Cell(row["system"], "", (), row["collection"], int(row["seed"]))
            weight = float(row["lambda"]) if row["lambda"] else None
            costs = float(row["development_ap"]), int(row["epochs"]), float(row["seconds"])
            new = Result(cell, {}, {}, weight, *costs, {name: row[name] for name in MADE})
            result, measure = results.setdefault(key_of(new), new), row["measure"]
            if measure:
                result.measures[measure] = float(row["value"])
            if row["interpolated"]:
                result.interpolated[measure] = float(row["interpolated"])
            for column, systems in _marks(result).items():
                # CSVs of tables without marks may lack these columns.
                if names := row.get(column):
                    systems[measure] = tuple(names.split(SEPARATOR))
    return list(results.values())


def _marks(result: Result) -> dict[str, dict[str, tuple[str, ...]]]:
    """Column -> measure -> systems."""
    return {
        "better_than": result.better_than,
        "worse_than": result.worse_than,
        "interpolated_better_than": result.mixture_better_than,
    }
