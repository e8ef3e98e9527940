"""Renders the results of a table as Markdown."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from experiments.cells import BETTER, MIXTURE_BETTER, WORSE, Result
from experiments.tables import System, Table, published
from tweetrerank.pipeline.collections import named

# Settings were chosen on the topics of these years (†)
CHOSEN_ON = ("mb2011", "mb2012")


class Row(NamedTuple):
    """A system of a table or its mixture, together with all results of the table."""

    table: Table
    system: System
    results: Sequence[Result]

    @property
    def title(self) -> str:
        """The name of the row, with the mark that stands for it in better rows."""
        if self.system.is_mixture:
            return self.system.mixture
        mark = self.table.better.get(self.system.name, "")
        return f"{self.system.name} {mark}".strip()

    def results_on(self, collection: str) -> list[Result]:
        """Return the results of the system on one collection."""
        results = self.system_results()
        return [result for result in results if result.cell.collection == collection]

    def system_results(self) -> list[Result]:
        """Return the results of the system on all collections."""
        name = self.system.name
        return [result for result in self.results if result.cell.system == name]

    def mean(
        self,
        measure: str,
        collection: str | None = None,
    ) -> float | None:
        """Return the mean of a measure over the results, or None if none has it."""
        results = self.results_on(collection) if collection else self.system_results()
        if self.system.is_mixture:
            return mean_of(result.interpolated.get(measure) for result in results)
        return mean_of(result.measures.get(measure) for result in results)

    def published(self, collection: str) -> Sequence[float]:
        """Return the published figures for one collection."""
        return self.system.published.get(collection, ())

    def curves(self) -> dict[str, dict[float, float]]:
        """Return the points of each curve, as the mean at each x.

        They come from measures with names of the form ``CURVE X``, such as ``stackfaq
        0.05``.
        """
        curves: dict[str, dict[float, float]] = {}
        for result in self.system_results():
            for measure in result.measures:
                name, space, x = measure.rpartition(" ")
                if space:
                    curve = curves.setdefault(name, {})
                    curve[float(x)] = self.mean(measure) or 0.0
        return curves


def _no_gain(row: Row, base: Row) -> str:
    return ""


@dataclass(frozen=True)
class Column:
    """A column: its title, and the functions that return its cells."""

    title: str
    text: Callable[[Row], str]
    gain: Callable[[Row, Row], str] = _no_gain


def render(table: Table, results: Sequence[Result]) -> str:
    """Return a table as Markdown, without its title."""
    tested = {result.cell.collection for result in results}
    names = [name for name in table.collections if name in tested]
    first = Row(table, table.systems[0], results)
    if table.columns == ["sizes"]:
        return _table_of_sizes(first, names)
    if table.columns == ["curves"]:
        return _table_of_curves(first)
    columns: list[Column] = []
    for kind in table.columns:
        columns += COLUMNS[kind](first, names)
    return _table_of_systems(table, results, columns)


def _table_of_sizes(row: Row, names: Sequence[str]) -> str:
    lines = [["", *names]]
    for size in row.table.measures:
        line = [size]
        for name in names:
            paper = published()[size][name][0]
            line.append(f"{formatted(row.mean(size, name), ',.0f')} ({paper:,.0f})")
        lines.append(line)
    return markdown_table(lines)


def _table_of_curves(row: Row) -> str:
    curves = row.curves()
    alphas: dict[float, None] = {}
    for curve in curves.values():
        alphas |= dict.fromkeys(curve)
    lines = [["α", *curves]]
    for alpha in alphas:
        values = [formatted(curve.get(alpha)) for curve in curves.values()]
        lines.append([f"{alpha:.2f}", *values])
    return markdown_table(lines)


def _table_of_systems(
    table: Table, results: Sequence[Result], columns: Sequence[Column]
) -> str:
    lines = [["system"] + [column.title for column in columns]]
    for previous, line in pairwise(["", *table.lines]):
        if isinstance(line, str):
            lines.append([f"**{line}**"] + [""] * len(columns))
            continue
        row = Row(table, line, results)
        lines.append([row.title] + [column.text(row) for column in columns])
        follows_system = previous == replace(line, is_mixture=False)
        if line.is_mixture and follows_system and table.gain_over:
            base = Row(table, _system(table, table.gain_over), results)
            gains = [column.gain(row, base) for column in columns]
            lines.append([f"– gain over {table.gain_over}", *gains])
    return markdown_table(lines)


def _system(table: Table, name: str) -> System:
    return next(system for system in table.systems if system.name == name)


# Kinds of columns


def _figures(
    first: Row,
    names: Sequence[str],
) -> list[Column]:
    columns = []
    for name in names:
        for place, measure in enumerate(_measures(first.table, name)):
            text = partial(
                _figure,
                name=name,
                measure=measure,
                place=place,
            )
            gain = partial(
                _gain,
                name=name,
                measure=measure,
                place=place,
            )
            columns.append(Column(f"{titled(name)} {measure}", text, gain))
    return columns


def _figure(
    row: Row,
    name: str,
    measure: str,
    place: int,
) -> str:
    """Return a mean with its marks of significance and the paper's figure."""
    text = formatted(row.mean(measure, name))
    if row.system.is_mixture:
        signs_of_mark = {MIXTURE_BETTER: row.table.better}
    else:
        signs_of_mark = {BETTER: row.table.better, WORSE: row.table.worse}
    for result in row.results_on(name)[:1]:
        for mark, signs in signs_of_mark.items():
            for system in result.marks.get(mark, {}).get(measure, ()):
                text += signs.get(system, signs.get("*", ""))
    figures = row.published(name)
    if place < len(figures):
        text += f" ({figures[place]:.4f})"
    return text


def _gain(
    row: Row,
    base: Row,
    name: str,
    measure: str,
    place: int,
) -> str:
    """Return the gain of a row over another one, and the paper's gain."""
    text = _percent(row.mean(measure, name), base.mean(measure, name))
    figures = row.published(name)
    base_figures = base.published(name)
    if place < min(len(figures), len(base_figures)):
        text += f" ({_percent(figures[place], base_figures[place])})"
    return text


def _percent(
    value: float | None,
    base: float | None,
) -> str:
    """Return a gain in percent, cut off after one digit as in the paper."""
    if not value or not base:
        return "-"
    gain = 1000 * (value / base - 1)
    return f"{int(round(gain, 6)) / 10:+.1f} %"


def _means(
    first: Row,
    names: Sequence[str],
) -> list[Column]:
    columns = []
    for name in names:
        measures = "/".join(_measures(first.table, name))
        title = f"{titled(name)} {measures}"
        columns.append(Column(title, partial(_means_on, name=name)))
    return columns


def _means_on(row: Row, name: str) -> str:
    results = row.results_on(name)
    text = _spread([result.measures for result in results], row.table.measures)
    if row.published(name):
        text += f" ({_paper_figures(row, name)})"
    mixed = [result.interpolated for result in results if result.interpolated]
    return f"{text}, interpolated {_spread(mixed)}" if mixed else text


def _spread(
    results: Sequence[Mapping[str, float]],
    measures: Sequence[str] = (),
) -> str:
    """Return mean ± standard deviation over the results, for some or all measures."""
    if not results:
        return "-"
    texts = []
    for measure in results[0]:
        if measures and measure not in measures:
            continue
        values = [result[measure] for result in results]
        text = f"{statistics.mean(values):.4f}"
        if len(values) > 1:
            text += f"±{statistics.stdev(values):.3f}"
        texts.append(text)
    return " / ".join(texts) or "-"


def _papers(
    first: Row,
    names: Sequence[str],
) -> list[Column]:
    """Return columns for the papers' collections that the table does not have."""
    collections: dict[str, None] = {}
    for system in first.table.systems:
        collections |= dict.fromkeys(system.published)
    return [
        Column(f"paper, {name}", partial(_paper_figures, name=name))
        for name in collections
        if name not in first.table.collections
    ]


def _paper_figures(row: Row, name: str) -> str:
    return " / ".join(f"{value:.3f}" for value in row.published(name)) or "-"


def _differences(
    first: Row,
    names: Sequence[str],
) -> list[Column]:
    columns = []
    for measure in _measures(first.table, first.table.collections[0]):
        difference = partial(_difference, measure=measure, first=first)
        columns.append(Column(measure, partial(_mean, measure=measure)))
        columns.append(Column("difference", difference))
    return columns


def _mean(row: Row, measure: str) -> str:
    return formatted(row.mean(measure))


def _difference(
    row: Row,
    measure: str,
    first: Row,
) -> str:
    value = row.mean(measure)
    base = first.mean(measure)
    if value is None or base is None or row == first:
        return ""
    return f"{value - base:+.4f}"


def _seeds(row: Row) -> str:
    """Return the number of seeds, or its range if it differs between collections."""
    seeds = Counter(result.cell.collection for result in row.system_results())
    if not seeds:
        return "-"
    least = min(seeds.values())
    greatest = max(seeds.values())
    return str(least) if least == greatest else f"{least} to {greatest}"


def _training_seconds(row: Row) -> str:
    results = row.system_results()
    return formatted(mean_of(result.seconds or None for result in results), ".0f")


def _importance(row: Row) -> str:
    return formatted(
        row.mean("importance"),
        ".1%",
        "",
    ).rstrip("%")


COLUMNS: Mapping[str, Callable[[Row, Sequence[str]], list[Column]]] = {
    "figures": _figures,
    "means": _means,
    "papers": _papers,
    "differences": _differences,
    "seeds": lambda first, names: [Column("seeds", _seeds)],
    "training, s": lambda first, names: [Column("training, s", _training_seconds)],
    "importance, %": lambda first, names: [Column("importance, %", _importance)],
}
"""For each kind, the function that returns its columns.

It gets the first row and the collections that have results.
"""


def _measures(table: Table, collection: str) -> Sequence[str]:
    return table.measures or named.find(collection).measures


# Text


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None if all of them are."""
    present = [value for value in values if value is not None]
    return statistics.mean(present) if present else None


def formatted(
    value: float | None,
    form: str = ".4f",
    missing: str = "-",
) -> str:
    """Return a value as text, or ``missing`` if it is None."""
    return missing if value is None else format(value, form)


def titled(collection: str) -> str:
    """Return the name of a collection for a header. † marks :data:`CHOSEN_ON`."""
    return f"{collection} †" if collection in CHOSEN_ON else collection


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table. The first row is the header."""
    lines = [rows[0], ["---"] * len(rows[0])]
    lines += rows[1:]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
