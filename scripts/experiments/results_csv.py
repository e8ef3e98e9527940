"""The results of a table in a CSV file, with a line for each cell and measure."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from experiments.cells import MARKS, Cell, Result
from tweetrerank.indexes.files import atomic_file

SEPARATOR = "; "  # Separates the systems in a column of marks


def add_to_csv(path: Path, results: Sequence[Result]) -> None:
    """Write results to a new file, or add them to an existing one.

    A result of a cell that the file already has is replaced in its place. Other results
    are added at the end.
    """
    combined = {}
    for result in (read_csv(path) if path.exists() else []) + list(results):
        cell = result.cell
        combined[cell.system, cell.collection, cell.seed] = result
    lines: list[dict[str, object]] = []
    for result in combined.values():
        lines += _lines(result)
    with atomic_file(path) as stream:
        writer = csv.DictWriter(
            stream,
            list(lines[0]),
            lineterminator="\n",
        )
        writer.writeheader()
        writer.writerows(lines)


def _lines(result: Result) -> Iterator[dict[str, object]]:
    """Yield the lines of a result, or one without a measure if it has no measures."""
    for measure in result.measures or ("",):
        line: dict[str, object] = {
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
        }
        for name in ("date", "commit", "machine"):
            line[name] = result.made[name]
        for name in MARKS:
            systems = result.marks.get(name, {}).get(measure, ())
            line[name] = SEPARATOR.join(systems)
        yield line


def read_csv(path: Path) -> list[Result]:
    """Read results back. Their cells lack the model and the training options."""
    results: dict[Cell, Result] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            cell = Cell(
                row["system"],
                "",
                (),
                row["collection"],
                int(row["seed"]),
            )
            if cell not in results:
                results[cell] = _empty_result(cell, row)
            _add_measure(results[cell], row)
    return list(results.values())


def _empty_result(
    cell: Cell,
    row: dict[str, str],
) -> Result:
    return Result(
        cell,
        measures={},
        interpolated={},
        weight=float(row["lambda"]) if row["lambda"] else None,
        development=float(row["development_ap"]),
        epochs=int(row["epochs"]),
        seconds=float(row["seconds"]),
        made=row,
    )


def _add_measure(
    result: Result,
    row: Mapping[str, str],
) -> None:
    measure = row["measure"]
    if measure:
        result.measures[measure] = float(row["value"])
    if row["interpolated"]:
        result.interpolated[measure] = float(row["interpolated"])
    for name in MARKS:
        if row.get(name):
            systems = row[name].split(SEPARATOR)
            result.marks.setdefault(name, {})[measure] = tuple(systems)
