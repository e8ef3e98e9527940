"""Report of reranked runs, in the form of tables 6 and 7 of Severyn & Moschitti (SIGIR 2015)."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from indexes.files import atomic_file
from pipeline.evaluation.measures import Values, mean
from pipeline.evaluation.significance import paired_t_test
from pipeline.text import print_table

MEASURES = ("P@30", "AP")  # Measures of the report; places are by the first

_COMPRESSED = {".gz", ".bz2"}
_SAME = 9  # Decimals of means in comparisons: sums in another order differ in the last bits


class Change(NamedTuple):
    """Means over topics of a run's measure before and after reranking, and p of the t-test."""

    before: float
    after: float
    p: float

    @property
    def percent(self) -> float | None:
        """Difference in % of ``before``; None where that is 0."""
        return 100 * (self.after - self.before) / self.before if self.before else None

    @property
    def mark(self) -> str:
        """▲ or ▼ for p < .01, △ or ▽ for p < .05, up for a gain, else nothing."""
        if self.p >= 0.05:
            return ""
        up, down = "▲▼" if self.p < 0.01 else "△▽"
        return up if self.after > self.before else down


class Row(NamedTuple):
    """One run: its changes by measure, and its place, by the first measure, among the others."""

    name: str
    changes: Mapping[str, Change]
    place: int
    place_after: int


def reranked_name(name: str, model: str) -> str:
    """``a.run`` -> ``a.run.sm_cnn``; ``a.gz`` -> ``a.sm_cnn.gz``, still compressed."""
    path = Path(name)
    if path.suffix.lower() in _COMPRESSED:
        return f"{path.stem}.{model}{path.suffix}"
    return f"{name}.{model}"


def compare(results: Mapping[str, tuple[Values, Values]]) -> list[Row]:
    """A row for each run, by the first measure of the original run, then by name; a place is 1 +
    the number of the others with a larger value."""
    changes = {
        name: {
            measure: Change(
                mean(values),
                mean(after[measure]),
                paired_t_test([after[measure][topic] for topic in values], [*values.values()]),
            )
            for measure, values in before.items()
        }
        for name, (before, after) in results.items()
    }
    leading = {name: next(iter(of_run.values())) for name, of_run in changes.items()}

    def place(name: str, value: float) -> int:
        others = [of.before for rival, of in leading.items() if rival != name]
        return 1 + sum(round(other, _SAME) > round(value, _SAME) for other in others)

    rows = [
        Row(name, changes[name], place(name, change.before), place(name, change.after))
        for name, change in leading.items()
    ]
    return sorted(rows, key=lambda row: (row.place, row.name))


def groups(rows: Sequence[Row], size: int) -> dict[str, Sequence[Row]]:
    """The top, middle and bottom ``size`` runs of those of :func:`compare` (table 7); none of fewer
    than 3 · size."""
    if len(rows) < 3 * size:
        return {}
    middle = (len(rows) - size) // 2
    return {"top": rows[:size], "middle": rows[middle : middle + size], "bottom": rows[-size:]}


def print_report(rows: Sequence[Row], group_size: int) -> None:
    """Print the rows as a table, the average changes of groups and of all runs, and notes."""
    measures, lines = list(rows[0].changes), []
    header = ["run", *(part for m in (*measures, "R") for part in (m, "reranked", "change"))]
    for row in rows:
        cells = [row.name]
        for change in row.changes.values():
            after = f"{change.after:.4f}{change.mark}"
            cells += [f"{change.before:.4f}", after, _percent(change.percent)]
        places = [str(row.place), str(row.place_after), f"{row.place - row.place_after:+d}"]
        lines.append([*cells, *places])
    named = {f"average of {g} {group_size}": of for g, of in groups(rows, group_size).items()}
    for title, members in {**named, "average change": rows}.items():  # Of those with a known one
        cells = [title]
        for measure in measures:
            known = [p for row in members if (p := row.changes[measure].percent) is not None]
            cells += ["", "", _percent(mean(known) if known else None)]
        gained = mean(row.place - row.place_after for row in members)
        lines.append([*cells, "", "", f"{round(gained, 1) + 0.0:+.1f}"])
    # Numbers with and without a mark line up on the left.
    print_table(header, lines, left=[0, *(2 + 3 * index for index in range(len(measures)))])
    print(
        "▲ ▼ p < .01, △ ▽ p < .05: two-sided paired t-test over topics, before against after "
        "reranking, not corrected for the number of runs\n"
        f"R: place among the {len(rows)} runs by {measures[0]}, and place after reranking this run "
        "alone; equal runs share a place, + is a gain"
    )
    for measure in measures:
        if zeros := [row.name for row in rows if row.changes[measure].percent is None]:
            print(f"-: {measure} was 0 before; left out of the average: {', '.join(zeros)}")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{round(value, 1) + 0.0:+.1f}%"  # + 0.0: never -0


def write_csv(path: Path, rows: Sequence[Row], made: Mapping[str, object], group_size: int) -> None:
    """Write a CSV file with a line for each run, numbers unrounded, and the columns ``made``."""
    group_of = {
        row.name: group for group, members in groups(rows, group_size).items() for row in members
    }
    header = ["run", "group"]
    for measure in rows[0].changes:
        header += [measure, f"{measure} reranked", f"{measure} change %", f"{measure} p"]
    with atomic_file(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*header, "R", "R reranked", "R change", *made])
        for row in rows:
            cells: list[object] = [row.name, group_of.get(row.name, "")]
            for change in row.changes.values():
                # An unknown percentage is an empty cell.
                cells += [change.before, change.after, change.percent, change.p]
            cells += [row.place, row.place_after, row.place - row.place_after]
            writer.writerow([*cells, *made.values()])
