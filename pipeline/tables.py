"""Results of experiments as Markdown tables, CSV and figures."""

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from indexes.files import atomic_file
from pipeline import published
from pipeline.collections import find as find_collection
from pipeline.errors import UsageError
from pipeline.experiments import Cell, Result
from pipeline.published import System

COLUMNS = (
    "system", "collection", "seed", "measure", "value", "interpolated", "lambda", "development_ap",
    "epochs", "seconds", "date", "commit", "machine",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Systems, and the collections that they are reported on."""

    systems: Sequence[System]
    collections: Sequence[str]

    def cells(self, tests: Sequence[str], seeds: int) -> list[Cell]:
        """Every system on every collection of ``tests`` (all if there are none) by seed 1, 2, …

        Raises:
            UsageError: a collection that the table does not have.
        """
        if unknown := [name for name in tests if name not in self.collections]:
            raise UsageError(
                f"--tests: found {', '.join(unknown)}, expected some of "
                f"{', '.join(self.collections)}"
            )
        chosen = tests or self.collections
        return [
            cell for system in self.systems for cell in system.cells(chosen, range(1, seeds + 1))
        ]

    def markdown(self, results: Sequence[Result]) -> str:
        """A row for each system, ours (mean ± standard deviation over seeds) beside the paper's.

        A dash stands for what was not computed or not published.
        """
        present = {result.cell.collection for result in results}
        shown = [name for name in self.collections if name in present]
        printed = {name for s in self.systems for name in s.published or {}}
        header = ["system"]
        for name in shown:
            measures = "/".join(find_collection(name).measures)
            header += [f"{name} {measures}", *(["paper"] if name in printed else [])]
        header.append("training, s")
        lines = [header, ["---"] * len(header)]
        for system in self.systems:
            row = [system.name]
            for name in shown:
                row.append(_ours(system, name, results))
                row += [_papers(system, name)] if name in printed else []
            lines.append([*row, _seconds(system, results)])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def find(name: str) -> Table:
    """The table of a name: ``answer-selection``, ``sampling`` or ``microblog``."""
    return {
        "answer-selection": Table(published.ANSWER_SELECTION, published.ANSWERS),
        "sampling": Table(published.SAMPLING, published.ANSWERS[:1]),
        "microblog": Table(published.MICROBLOG, published.YEARS),
    }[name]


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
                writer.writerow(
                    [result.cell.system, result.cell.collection, result.cell.seed, measure, value,
                     result.interpolated.get(measure, ""), result.weight, result.development,
                     result.epochs, result.seconds, *made]
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
    return list(found.values())


def plot_sampling(path: Path, results: Sequence[Result]) -> None:
    """Mean AP by sampling and number of negatives, a group of bars for each model."""
    from matplotlib import pyplot

    values = _by_system(results)
    labels = [name for name in (s.name for s in published.SAMPLING) if name in values]
    figure, axes = pyplot.subplots(figsize=(8, 4))
    means = [statistics.mean(values[label]) for label in labels]
    spreads = [statistics.pstdev(values[label]) for label in labels]
    axes.bar(range(len(labels)), means, yerr=spreads, capsize=3)
    axes.set_xticks(range(len(labels)), labels, rotation=40, ha="right")
    axes.set_ylim(max(0.0, min(means) - 0.05), max(means) + 0.03)
    axes.set_ylabel("AP, mean and standard deviation over seeds")
    figure.savefig(path, dpi=150, bbox_inches="tight")
    pyplot.close(figure)


def _by_system(results: Sequence[Result]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for result in results:
        values.setdefault(result.cell.system, []).append(result.measures["AP"])
    return values


def _ours(system: System, collection: str, results: Sequence[Result]) -> str:
    chosen = [result for result in _of(system, results) if result.cell.collection == collection]
    if not chosen:
        return "-"
    if not chosen[0].measures:
        development = _means([{"AP": result.development} for result in chosen])
        return f"no judgments here; development AP {development}"
    neural = _means([result.measures for result in chosen])
    if not chosen[0].interpolated:
        return neural
    return f"{neural}, interpolated {_means([result.interpolated for result in chosen])}"


def _of(system: System, results: Sequence[Result]) -> list[Result]:
    return [result for result in results if result.cell.system == system.name]


def _seconds(system: System, results: Sequence[Result]) -> str:
    """Mean wall time of training."""
    seconds = [result.seconds for result in _of(system, results)]
    return f"{statistics.mean(seconds):.0f}" if seconds else "-"


def _means(measures: Sequence[Mapping[str, float]]) -> str:
    texts = []
    for name in measures[0]:
        values = [figures[name] for figures in measures]
        spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        texts.append(f"{statistics.mean(values):.4f}{spread}")
    return " / ".join(texts)


def _papers(system: System, collection: str) -> str:
    figures = (system.published or {}).get(collection)
    return " / ".join(f"{value:.3f}" for value in figures) if figures else "-"
