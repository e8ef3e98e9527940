"""Tables of results as Markdown, and pictures that a table names as ``figure``.

The papers' figures are in parentheses, "-" is a missing one.

Kinds of columns:

figures       one for each collection and measure, with marks of significance
means         one for each collection: mean ± standard deviation over seeds of its measures
papers        published figures for collections that are not here
differences   each measure, and its difference to that of the first row
seeds         number of seeds of a row
training, s   mean seconds of training
importance, % the measure of this name in percent
curves        a row for each α in place of one for each system
sizes         a row for each measure, with the paper's
"""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from experiments.cells import BETTER, MIXTURE_BETTER, WORSE, Result
from experiments.tables import CHOSEN_ON, System, Table, published
from indexes.files import write_bytes
from pipeline.collections import named
from pipeline.command.errors import DataError


class Row(NamedTuple):
    """A system of a table with its results, or its mixture with query likelihood."""

    table: Table
    system: System
    results: Sequence[Result]
    is_mixture: bool = False

    def on(self, collection: str) -> Sequence[Result]:
        """The results on one collection."""
        return [result for result in self.results if result.cell.collection == collection]

    def mean(self, measure: str, collection: str = "") -> float | None:
        """Mean of a measure over the results."""
        results = self.on(collection) if collection else self.results
        return mean_of(results, measure, is_mixture=self.is_mixture)


Column = tuple[str, Callable[[Row], str]]  # Title, and text of a row


def render(table: Table, results: Sequence[Result]) -> str:
    """The table without its title."""
    if table.columns == ["sizes"]:
        own = {n: [r for r in results if r.cell.collection == n] for n in table.collections}
        present, lines = [name for name in own if own[name]], []
        for size, of in published("rao2019_table2").items():
            ours = [shown(mean_of(own[name], size), ",.0f") for name in present]
            texts = [f"{n} ({of[name][0]:,.0f})" for n, name in zip(ours, present, strict=True)]
            lines.append([size, *texts])
        return markdown_table([["", *present], *lines])
    if table.columns == ["curves"]:
        curves = curves_of(results)
        alphas = dict.fromkeys(alpha for curve in curves.values() for alpha in curve)
        lines = [[f"{a:.2f}", *(shown(of.get(a)) for of in curves.values())] for a in alphas]
        return markdown_table([["α", *curves], *lines])
    columns = [column for kind in table.columns for column in _columns(kind, table, results)]
    rows = [["system", *(title for title, _ in columns)]]
    for place, line in enumerate(table.lines):
        if isinstance(line, str):
            rows.append([f"**{line}**", *[""] * len(columns)])
            continue
        system, is_mixture = line
        row = Row(table, system, results_of(system, results), is_mixture)
        name = system.mixture if is_mixture else system.name
        if not is_mixture and name in table.better:
            name = f"{name} {table.better[name]}"
        rows.append([name, *(text(row) for _, text in columns)])
        if is_mixture and table.gain_over and table.lines[place - 1] == (system, False):
            gains = _gains(row, results)
            titles = [title for title, _ in columns]
            rows.append([f"– gain over {table.gain_over}", *(gains.get(t, "") for t in titles)])
    return markdown_table(rows)


def _gains(row: Row, results: Sequence[Result]) -> dict[str, str]:
    """Title -> a mixture's gain over another system in percent, and the paper's."""
    other = next(system for system in row.table.systems if system.name == row.table.gain_over)
    base, texts = Row(row.table, other, results_of(other, results)), {}
    for name in row.table.collections:
        ours, theirs = row.system.published(True).get(name, ()), other.published().get(name, ())
        published = [f" ({_gain(*pair)})" for pair in zip(ours, theirs, strict=False)]
        measures = named.find(name).measures
        for measure, figure in zip(measures, published or [""] * len(measures), strict=True):
            gain = _gain(row.mean(measure, name), base.mean(measure, name))
            texts[f"{titled(name)} {measure}"] = gain + figure
    return texts


def _gain(value: float | None, base: float | None) -> str:
    return "-" if value is None or not base else f"{100 * (value / base - 1):+.1f} %"


def _columns(kind: str, table: Table, results: Sequence[Result]) -> list[Column]:
    present = {result.cell.collection for result in results}
    names = [name for name in table.collections if name in present]
    measures = {name: table.measures or named.find(name).measures for name in table.collections}
    if kind == "figures":
        return [
            (f"{titled(name)} {measure}", partial(_figure, name, measure, place))
            for name in names
            for place, measure in enumerate(measures[name])
        ]
    if kind == "means":
        return [(f"{titled(n)} {'/'.join(measures[n])}", partial(_means, n)) for n in names]
    if kind == "papers":
        others = dict.fromkeys(name for system in table.systems for name in system.published())
        return [(f"paper, {n}", partial(_paper, n)) for n in others if n not in table.collections]
    if kind == "differences":
        first = Row(table, table.systems[0], results_of(table.systems[0], results))
        return [
            column
            for m in measures[table.collections[0]]
            for column in ((m, partial(_value, m)), ("difference", partial(_difference, first, m)))
        ]
    return [(kind, {"seeds": _seeds, "training, s": _seconds, "importance, %": _importance}[kind])]


def _figure(name: str, measure: str, place: int, row: Row) -> str:
    value, table = row.mean(measure, name), row.table
    text = shown(value)
    if value is not None:
        columns = {BETTER: table.better, WORSE: table.worse}
        for column, marks in (
            {MIXTURE_BETTER: table.better} if row.is_mixture else columns
        ).items():
            systems = row.on(name)[0].marks.get(column, {}).get(measure, ())
            any_of_them = marks.get("*", "") if systems else ""
            text += any_of_them or "".join(marks.get(system, "") for system in systems)
    figures = row.system.published(row.is_mixture).get(name, ())
    return text + (f" ({figures[place]:.4f})" if place < len(figures) else "")


def _means(name: str, row: Row) -> str:
    own, figures = row.on(name), row.system.published().get(name)
    text = _spread([result.measures for result in own], row.table.measures)
    if figures:
        text += f" ({' / '.join(f'{value:.3f}' for value in figures)})"
    if any(result.interpolated for result in own):
        text += f", interpolated {_spread([result.interpolated for result in own])}"
    return text


def _spread(figures: Sequence[Mapping[str, float]], wanted: Sequence[str] = ()) -> str:
    """Mean ± standard deviation of each measure over results; "-" without any."""
    texts = []
    for measure in figures[0] if figures else ():
        if not wanted or measure in wanted:
            values = [of_seed[measure] for of_seed in figures]
            deviation = f"±{statistics.stdev(values):.3f}" if len(values) > 1 else ""
            texts.append(f"{statistics.mean(values):.4f}{deviation}")
    return " / ".join(texts) or "-"


def _paper(name: str, row: Row) -> str:
    return " / ".join(f"{value:.3f}" for value in row.system.published().get(name, ())) or "-"


def _value(measure: str, row: Row) -> str:
    return shown(row.mean(measure))


def _difference(first: Row, measure: str, row: Row) -> str:
    value, base = row.mean(measure), first.mean(measure)
    return "" if value is None or base is None or row == first else f"{value - base:+.4f}"


def _seeds(row: Row) -> str:
    counts = sorted({*Counter(result.cell.collection for result in row.results).values()})
    return " to ".join(map(str, counts[:: max(1, len(counts) - 1)])) or "-"


def _seconds(row: Row) -> str:
    return shown(_mean([result.seconds for result in row.results if result.seconds]), ".0f")


def _importance(row: Row) -> str:
    value = row.mean("importance")
    return "" if value is None else f"{100 * value:.1f}"


def curves_of(results: Sequence[Result]) -> dict[str, dict[float, float]]:
    """Curve -> x -> mean over results; a measure is ``stackfaq 0.05``."""
    curves: dict[str, dict[float, float]] = {}
    for measure in dict.fromkeys(m for result in results for m in result.measures if " " in m):
        name, _, x = measure.rpartition(" ")
        curves.setdefault(name, {})[float(x)] = mean_of(results, measure) or 0.0
    return curves


def results_of(
    system: System, results: Sequence[Result], collection: str | None = None
) -> list[Result]:
    """Results of a system on one collection or, by default, on all."""
    own = [result for result in results if result.cell.system == system.name]
    return [result for result in own if collection in (None, result.cell.collection)]


def mean_of(results: Sequence[Result], measure: str, *, is_mixture: bool = False) -> float | None:
    """Mean of a measure over results; None if no result has it."""
    measures = [result.interpolated if is_mixture else result.measures for result in results]
    return _mean([values[measure] for values in measures if measure in values])


def _mean(values: Sequence[float]) -> float | None:
    return statistics.mean(values) if values else None


def shown(value: float | None, form: str = ".4f") -> str:
    """A formatted value, "-" for None."""
    return "-" if value is None else format(value, form)


def titled(collection: str) -> str:
    """Name of a collection in a header; † marks the years on whose topics settings were chosen."""
    return f"{collection} †" if collection in CHOSEN_ON else collection


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as Markdown; the first one is the header."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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


FIGURES = {f.__name__: f for f in (depths, curves, reliability)}
