"""Report measures before and after reranking many runs, as a table and as CSV.

The table has the form of tables 6 and 7 of Severyn & Moschitti (SIGIR 2015).
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tweetrerank.indexes.files import atomic_file
from tweetrerank.pipeline.evaluation.measures import Values, mean
from tweetrerank.pipeline.text import print_table

# Means are compared after rounding to this number of decimals, because sums of the same
# numbers in another order differ in the last bits.
_SAME = 9


class Change(NamedTuple):
    """Means of a measure before and after reranking, and p of the t-test."""

    before: float
    after: float
    p: float

    @property
    def percent(self) -> float | None:
        """The change in % of ``before``, or None if that is 0."""
        if not self.before:
            return None
        return 100 * (self.after - self.before) / self.before

    @property
    def mark(self) -> str:
        """Mark of a significant change, or "" if p is .05 or more.

        ▲ and ▼ stand for p < .01, △ and ▽ for p < .05. They point up for a gain and
        down for a loss.
        """
        if self.p >= 0.05:
            return ""
        is_gain = self.after > self.before
        if self.p < 0.01:
            return "▲" if is_gain else "▼"
        return "△" if is_gain else "▽"


class Row(NamedTuple):
    """The changes of a run by measure, and its places by the first measure.

    ``place_after`` is its place if this run alone is reranked.
    """

    name: str
    changes: Mapping[str, Change]
    place: int
    place_after: int

    @property
    def gain(self) -> int:
        """Number of places that the run gains by reranking."""
        return self.place - self.place_after


def compare(results: Mapping[str, tuple[Values, Values]]) -> list[Row]:
    """Return a row for each run, by its first measure before reranking, then by name.

    A place is 1 + the number of other runs with a larger value.

    Args:
        results: name of a run -> (values before reranking, values after it).
    """
    changes = {
        name: _changes(before, after) for name, (before, after) in results.items()
    }
    leading = {name: next(iter(by_name.values())) for name, by_name in changes.items()}

    def place(name: str, value: float) -> int:
        rivals = [change.before for rival, change in leading.items() if rival != name]
        return 1 + sum(round(rival, _SAME) > round(value, _SAME) for rival in rivals)

    rows = []
    for name, change in leading.items():
        before = place(name, change.before)
        after = place(name, change.after)
        rows.append(Row(name, changes[name], before, after))
    return sorted(rows, key=lambda row: (row.place, row.name))


def _changes(before: Values, after: Values) -> dict[str, Change]:
    from tweetrerank.pipeline.evaluation.significance import paired_t_test

    changes = {}
    for measure, values in before.items():
        values_after = [after[measure][topic] for topic in values]
        changes[measure] = Change(
            mean(values),
            mean(after[measure]),
            paired_t_test(values_after, list(values.values())),
        )
    return changes


def groups(rows: Sequence[Row], size: int) -> dict[str, Sequence[Row]]:
    """Return the top, middle and bottom ``size`` runs, as in table 7.

    The result is empty if there are fewer than 3 · size runs.

    Args:
        rows: the rows that :func:`compare` returned.
        size: number of runs in a group.
    """
    if len(rows) < 3 * size:
        return {}
    middle = (len(rows) - size) // 2
    return {
        "top": rows[:size],
        "middle": rows[middle : middle + size],
        "bottom": rows[-size:],
    }


# The table


def print_report(rows: Sequence[Row], group_size: int) -> None:
    """Print each run, the average changes of the groups and of all runs, and notes."""
    measures = list(rows[0].changes)
    header = ["run"]
    for heading in [*measures, "R"]:
        header += [heading, "reranked", "change"]
    lines = [_run_cells(row) for row in rows]
    for group, members in groups(rows, group_size).items():
        title = f"average of {group} {group_size}"
        lines.append(_average_cells(title, members, measures))
    lines.append(_average_cells("average change", rows, measures))
    # Align on the left the columns in which some numbers have a mark.
    marked = [2 + 3 * index for index in range(len(measures))]
    print_table(header, lines, left=[0, *marked])
    print(
        "▲ ▼ p < .01, △ ▽ p < .05: two-sided paired t-test over topics, before against "
        "after reranking, not corrected for the number of runs\n"
        f"R: place among the {len(rows)} runs by {measures[0]}, and place after "
        "reranking this run alone; equal runs share a place, + is a gain"
    )
    for measure in measures:
        zeros = [row.name for row in rows if row.changes[measure].percent is None]
        if zeros:
            note = f"{measure} was 0 before; left out of the average"
            print(f"-: {note}: {', '.join(zeros)}")


def _run_cells(row: Row) -> list[str]:
    cells = [row.name]
    for change in row.changes.values():
        cells += [
            f"{change.before:.4f}",
            f"{change.after:.4f}{change.mark}",
            _percent(change.percent),
        ]
    return [*cells, str(row.place), str(row.place_after), f"{row.gain:+d}"]


def _average_cells(
    title: str, rows: Sequence[Row], measures: Sequence[str]
) -> list[str]:
    """Return the cells of average changes.

    Runs with 0 before reranking are left out, because their change in % is undefined.
    """
    cells = [title]
    for measure in measures:
        percents = [row.changes[measure].percent for row in rows]
        defined = [percent for percent in percents if percent is not None]
        cells += ["", "", _percent(mean(defined) if defined else None)]
    gain = mean(row.gain for row in rows)
    return [*cells, "", "", f"{_unsigned_zero(gain):+.1f}"]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{_unsigned_zero(value):+.1f}%"


def _unsigned_zero(value: float) -> float:
    """Round to one decimal. Adding 0 turns -0 into 0."""
    return round(value, 1) + 0.0


# The CSV file


def write_csv(
    path: Path, rows: Sequence[Row], origin: Mapping[str, object], group_size: int
) -> None:
    """Write a CSV file with a line for each run. Numbers are not rounded.

    Args:
        origin: column -> value for further columns, which have the same value in all
            lines.
    """
    group_of = {}
    for group, members in groups(rows, group_size).items():
        for row in members:
            group_of[row.name] = group
    header = ["run", "group"]
    for measure in rows[0].changes:
        header += [
            measure,
            f"{measure} reranked",
            f"{measure} change %",
            f"{measure} p",
        ]
    header += ["R", "R reranked", "R change"]
    with atomic_file(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header + list(origin))
        for row in rows:
            cells: list[object] = [row.name, group_of.get(row.name, "")]
            for change in row.changes.values():
                # An undefined percentage is an empty cell.
                cells += [change.before, change.after, change.percent, change.p]
            cells += [row.place, row.place_after, row.gain]
            writer.writerow(cells + list(origin.values()))
