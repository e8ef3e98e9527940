"""Results of experiments as CSV: what was measured, when, at which commit, on which machine."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.cells import Cell, Result
from indexes.files import atomic_file

COLUMNS = (
    "system", "collection", "seed", "measure", "value", "interpolated", "lambda", "development_ap",
    "epochs", "seconds", "date", "commit", "machine", "better_than", "worse_than",
    "interpolated_better_than",
)  # fmt: skip
SEPARATOR = "; "
"""Between the names of systems in a column."""


def write_csv(path: Path, results: Sequence[Result]) -> None:
    """A line for each cell and measure, with where it was made."""
    with atomic_file(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for result in results:
            made = [result.made[name] for name in ("date", "commit", "machine")]
            # A collection without judgments has a line, too: without a measure.
            values: Mapping[str, float | str] = result.measures or {"": ""}
            for measure, value in values.items():
                marks = [
                    SEPARATOR.join(marked.get(measure, ()))
                    for marked in (
                        result.better_than, result.worse_than, result.mixture_better_than
                    )
                ]  # fmt: skip
                writer.writerow(
                    [result.cell.system, result.cell.collection, result.cell.seed, measure, value,
                     result.interpolated.get(measure, ""), result.weight, result.development,
                     result.epochs, result.seconds, *made, *marks]
                )  # fmt: skip


def read_csv(path: Path) -> list[Result]:
    """The results that :func:`write_csv` wrote, as far as tables need them."""
    found: dict[tuple[str, ...], Result] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            key = row["system"], row["collection"], row["seed"]
            if key not in found:
                made = {name: row[name] for name in ("date", "commit", "machine")}
                found[key] = Result(
                    Cell(row["system"], "", (), row["collection"], int(row["seed"])), {}, {},
                    float(row["lambda"]) if row["lambda"] else None,
                    float(row["development_ap"]), int(row["epochs"]), float(row["seconds"]), made,
                )  # fmt: skip
            if row["measure"]:
                found[key].measures[row["measure"]] = float(row["value"])
            if row["interpolated"]:
                found[key].interpolated[row["measure"]] = float(row["interpolated"])
            for column, marked in (
                ("better_than", found[key].better_than),
                ("worse_than", found[key].worse_than),
                ("interpolated_better_than", found[key].mixture_better_than),
            ):
                # Tables without marks were written without these columns.
                if names := row.get(column):
                    marked[row["measure"]] = tuple(names.split(SEPARATOR))
    return list(found.values())
