"""Draws the figures of tables, as PNG files."""

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells import Result, Setup
from experiments.rendering import Row, titled
from experiments.tables import Table
from experiments.year_reports import years
from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import write_bytes


def draw(
    path: Path,
    table: Table,
    results: Sequence[Result],
    setup: Setup,
) -> None:
    """Draw the figure of a table, and write it to a PNG file."""
    from matplotlib.figure import Figure

    width = 12.0 if table.figure == "gains" else 6.0
    figure = Figure(figsize=(width, 4.0))
    DRAWINGS[table.figure](figure, table, results, setup)
    content = BytesIO()
    figure.savefig(
        content,
        dpi=150,
        bbox_inches="tight",
        format="png",
    )
    write_bytes(path, content.getvalue())


def draw_depths(
    figure: Any,
    table: Table,
    results: Sequence[Result],
    setup: Setup,
) -> None:
    """Draw the AP for each depth, with a line for each year."""
    lines: dict[str, dict[int, float]] = {}
    for name in table.collections:
        points = {}
        for depth, system in enumerate(table.systems):
            ap = Row(table, system, results).mean("AP", name)
            if ap:
                points[depth] = ap
        lines[titled(name)] = points
    axes = _draw_lines(figure, lines, "o")
    axes.set(xlabel="convolutional layers N", xticks=range(len(table.systems)))


def draw_curves(
    figure: Any,
    table: Table,
    results: Sequence[Result],
    setup: Setup,
) -> None:
    """Draw the AP for each α, with a line for each collection of questions."""
    curves = Row(
        table,
        table.systems[0],
        results,
    ).curves()
    _draw_lines(figure, curves, ".").set(xlabel="α")


def _draw_lines(
    figure: Any,
    lines: Mapping[str, Mapping[Any, float]],
    marker: str,
) -> Any:
    if not any(lines.values()):
        raise DataError("found no result with judgments, expected some to draw")
    axes = figure.subplots()
    for name, points in lines.items():
        if points:
            axes.plot(
                list(points),
                list(points.values()),
                marker=marker,
                label=name,
            )
    axes.set(ylabel="AP")
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    return axes


def draw_gains(
    figure: Any,
    table: Table,
    results: Sequence[Result],
    setup: Setup,
) -> None:
    """Draw two bars for each topic, ordered by decreasing gain of MP-HCNN."""
    (year,) = years(table, results, setup)
    query_ids = list(year.neural_gains)
    axes = figure.subplots()
    positions = np.arange(len(query_ids))
    for shift, (name, values) in zip((-0.2, 0.2), year.gains.items(), strict=True):
        axes.bar(
            positions + shift,
            list(values.values()),
            0.4,
            label=name,
        )
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(positions, query_ids, rotation=90, fontsize=7)
    axes.set(xlim=(-1, len(query_ids)), xlabel=f"topics of {year.collection.name}")
    axes.set(ylabel="AP - AP of QL")
    axes.legend()


DRAWINGS: Mapping[str, Callable[[Any, Table, Sequence[Result], Setup], None]] = {
    "depths": draw_depths,
    "curves": draw_curves,
    "gains": draw_gains,
}
"""The functions that draw a figure, by the name in a table's ``figure``."""
