"""Functions that a table names as ``figure``."""

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from experiments.cells import Result
from experiments.rendering import curves_of, mean_of, results_of, titled
from experiments.tables import Table
from indexes.files import write_bytes
from pipeline.command.errors import DataError

Draw = Callable[[Any, Table, Sequence[Result]], None]


def draw(path: Path, table: Table, results: Sequence[Result]) -> None:
    """Write the table's figure as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.0, 5.4) if table.figure == "reliability" else (6.0, 4.0))
    FIGURES[table.figure](figure, table, results)
    content = BytesIO()
    figure.savefig(content, dpi=150, bbox_inches="tight", format="png")
    write_bytes(path, content.getvalue())


def depths(figure: Any, table: Table, results: Sequence[Result]) -> None:
    """AP by depth, a line per year."""
    lines = {}
    for name in table.collections:
        values = [mean_of(results_of(system, results, name), "AP") for system in table.systems]
        lines[titled(name)] = {float(n): ap for n, ap in enumerate(values) if ap is not None}
    if not any(lines.values()):
        raise DataError("found no result with judgments, expected some to draw")
    axes = _lines(figure, {name: of for name, of in lines.items() if of}, "o")
    axes.set(xlabel="convolutional layers N", xticks=range(len(table.systems)))


def curves(figure: Any, table: Table, results: Sequence[Result]) -> None:
    """AP by α, a line per collection of questions."""
    _lines(figure, curves_of(results), ".").set(xlabel="α")


def _lines(figure: Any, lines: Mapping[str, Mapping[float, float]], marker: str) -> Any:
    axes = figure.subplots()
    for name, points in lines.items():
        axes.plot(list(points), list(points.values()), marker=marker, label=name)
    axes.set(ylabel="AP")
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    return axes


def reliability(figure: Any, table: Table, results: Sequence[Result]) -> None:
    """Share of relevant posts by their probability: a panel per system, a line per collection."""
    systems = [s for s in table.systems if any(curves_of(results_of(s, results)))]
    for axes, system in zip(figure.subplots(1, len(systems), sharey=True), systems, strict=True):
        axes.plot([0, 1], [0, 1], color="0.7", linestyle="--", label="right")
        for name in table.collections:
            bins = curves_of(results_of(system, results, name))
            x, y, pairs = (list(bins[key].values()) for key in ("probability", "relevant", "pairs"))
            (line,) = axes.plot(x, y, linewidth=1, label=name)
            axes.scatter(x, y, [4 * count**0.35 for count in pairs], color=line.get_color())
        axes.set(title=system.name, xlabel="probability", aspect="equal")
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("share of relevant posts")
    figure.legend(*axes.get_legend_handles_labels(), loc="lower center", ncols=5)


FIGURES: Mapping[str, Draw] = {f.__name__: f for f in (depths, curves, reliability)}
