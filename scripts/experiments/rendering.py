"""Tables of results as Markdown; ``tables.toml`` describes the kinds of columns."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.cells import BETTER, MIXTURE_BETTER, WORSE, Result
from experiments.tables import CHOSEN_ON, System, Table, published
from pipeline.collections import named


class Row(NamedTuple):
    """A system of a table, or its mixture with query likelihood, and the table's results."""

    table: Table
    system: System
    results: Sequence[Result]
    is_mixture: bool = False

    @property
    def title(self) -> str:
        """Name of the row, with the mark of other rows that are significantly better."""
        name = self.system.name
        mark = self.table.better.get(name, "")
        return self.system.mixture if self.is_mixture else f"{name} {mark}".strip()

    def own(self, collection: str | None = None) -> list[Result]:
        """The system's results on one collection or on all."""
        own = [result for result in self.results if result.cell.system == self.system.name]
        return [result for result in own if collection in (None, result.cell.collection)]

    def mean(self, measure: str, collection: str | None = None) -> float | None:
        """Mean of a measure over the system's results; None if no result has it."""
        own = self.own(collection)
        return mean_of(
            (r.interpolated if self.is_mixture else r.measures).get(measure) for r in own
        )

    def published(self, collection: str) -> Sequence[float]:
        """Published figures for one collection."""
        return self.system.published(self.is_mixture).get(collection, ())

    def curves(self, collection: str | None = None) -> dict[str, dict[float, float]]:
        """Curve -> x -> mean of a measure of this curve, ``stackfaq 0.05``."""
        curves: dict[str, dict[float, float]] = {}
        names = (m for result in self.own(collection) for m in result.measures if " " in m)
        for measure in dict.fromkeys(names):
            name, _, x = measure.rpartition(" ")
            curves.setdefault(name, {})[float(x)] = self.mean(measure, collection) or 0.0
        return curves


Column = tuple[str, Callable[..., str], tuple[Any, ...]]
"""Title, the function that gives the text for a row and some arguments, and these."""


def render(table: Table, results: Sequence[Result]) -> str:
    """The table without its title."""
    names = [n for n in table.collections if any(r.cell.collection == n for r in results)]
    first = Row(table, table.systems[0], results)
    if table.columns == ["sizes"]:
        lines = [["", *names]]
        for size in table.measures:
            own = {name: shown(first.mean(size, name), ",.0f") for name in names}
            papers = published()[size]
            lines.append([size, *(f"{own[name]} ({papers[name][0]:,.0f})" for name in names)])
        return markdown_table(lines)
    if table.columns == ["curves"]:
        curves = first.curves()
        alphas = dict.fromkeys(alpha for curve in curves.values() for alpha in curve)
        lines = [[f"{a:.2f}", *(shown(of.get(a)) for of in curves.values())] for a in alphas]
        return markdown_table([["α", *curves], *lines])
    columns = [column for kind in table.columns for column in _columns(kind, first, names)]
    lines = [["system", *(title for title, *_ in columns)]]
    for place, line in enumerate(table.lines):
        if isinstance(line, str):
            lines.append([f"**{line}**", *[""] * len(columns)])
            continue
        row = Row(table, line[0], results, line[1])
        lines.append([row.title, *(text(row, *of) for _, text, of in columns)])
        if row.is_mixture and table.gain_over and table.lines[place - 1] == (row.system, False):
            (base,) = (Row(table, s, results) for s in table.systems if s.name == table.gain_over)
            gains = [_gain(row, base, *of) if text is _figure else "" for _, text, of in columns]
            lines.append([f"– gain over {table.gain_over}", *gains])
    return markdown_table(lines)


def _columns(kind: str, first: Row, names: Sequence[str]) -> list[Column]:
    table, systems = first.table, first.table.systems
    measures = {name: table.measures or named.find(name).measures for name in table.collections}
    papers = dict.fromkeys(n for s in systems for n in s.published() if n not in measures)
    columns: dict[str, list[Column]] = {
        "figures": [
            (f"{titled(name)} {measure}", _figure, (name, measure, place))
            for name in names
            for place, measure in enumerate(measures[name])
        ],
        "means": [(f"{titled(n)} {'/'.join(measures[n])}", _means, (n,)) for n in names],
        "papers": [(f"paper, {name}", _paper, (name,)) for name in papers],
        "differences": [
            column
            for m in measures[table.collections[0]]
            for column in (
                (m, lambda row, m: shown(row.mean(m)), (m,)),
                ("difference", _difference, (m, first)),
            )
        ],
        "seeds": [(kind, _seeds, ())],
        "training, s": [
            (kind, lambda row: shown(mean_of(r.seconds or None for r in row.own()), ".0f"), ())
        ],
        "importance, %": [
            (kind, lambda row: shown(row.mean("importance"), ".1%", "").rstrip("%"), ())
        ],
    }
    return columns[kind]


def _figure(row: Row, name: str, measure: str, place: int) -> str:
    text, figures, table = shown(row.mean(measure, name)), row.published(name), row.table
    marks = {BETTER: table.better, WORSE: table.worse}
    for result in row.own(name)[:1]:
        for column, signs in ({MIXTURE_BETTER: table.better} if row.is_mixture else marks).items():
            systems = result.marks.get(column, {}).get(measure, ())
            text += "".join(signs.get(system, signs.get("*", "")) for system in systems)
    return text + (f" ({figures[place]:.4f})" if place < len(figures) else "")


def _gain(row: Row, base: Row, name: str, measure: str, place: int) -> str:
    """A row's gain over another in percent, and the paper's."""
    published = [*zip(row.published(name), base.published(name), strict=False)][place : place + 1]
    ours, *papers = (
        "-" if value is None or not other else f"{100 * (value / other - 1):+.1f} %"
        for value, other in ((row.mean(measure, name), base.mean(measure, name)), *published)
    )
    return ours + "".join(f" ({gain})" for gain in papers)


def _means(row: Row, name: str) -> str:
    own = row.own(name)
    text = _spread([result.measures for result in own], row.table.measures)
    text += f" ({_paper(row, name)})" if row.published(name) else ""
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


def _paper(row: Row, name: str) -> str:
    return " / ".join(f"{value:.3f}" for value in row.published(name)) or "-"


def _difference(row: Row, measure: str, first: Row) -> str:
    value, base = row.mean(measure), first.mean(measure)
    return "" if value is None or base is None or row == first else f"{value - base:+.4f}"


def _seeds(row: Row) -> str:
    counts = sorted({*Counter(result.cell.collection for result in row.own()).values()})
    return " to ".join(map(str, counts[:: max(1, len(counts) - 1)])) or "-"


def mean_of(values: Iterable[float | None]) -> float | None:
    """Mean of those that are there, None without any."""
    present = [value for value in values if value is not None]
    return statistics.mean(present) if present else None


def shown(value: float | None, form: str = ".4f", missing: str = "-") -> str:
    """A formatted value."""
    return missing if value is None else format(value, form)


def titled(collection: str) -> str:
    """Name of a collection in a header; † marks the years on whose topics settings were chosen."""
    return f"{collection} †" if collection in CHOSEN_ON else collection


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as Markdown; the first one is the header."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
