"""Tables of results as Markdown: our figures, the papers' in parentheses, "-" for a missing one.

Kinds of columns:

figures       one for each collection and measure, with marks of significance
means         one for each collection: mean ± standard deviation over seeds of all its measures
papers        published figures for collections that are not here
differences   each measure, and its difference to that of the first row
seeds         number of seeds of a row
training, s   mean seconds of training
importance, % the measure of this name in percent
curves        a row for each α in place of one for each system

Any other one is the measure of this name, as a mean over collections.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from experiments.cells import Result
from experiments.tables import CHOSEN_ON, System, Table
from pipeline.collections import named

Column = tuple[str, Callable[[System, Sequence[Result], bool], str]]
"""Title, and the text for a system, its results, and whether the row is its mixture."""


def render(table: Table, results: Sequence[Result]) -> str:
    """The table without its title."""
    if table.columns == ["curves"]:
        return markdown_table(_curves(results))
    columns = [column for kind in table.columns for column in _columns(kind, table, results)]
    rows = [["system", *(title for title, _ in columns)]]
    for place, line in enumerate(table.lines):
        if isinstance(line, str):
            rows.append([f"**{line}**", *[""] * len(columns)])
            continue
        system, is_mixture = line
        own = results_of(system, results)
        name = system.mixture if is_mixture else system.name
        if not is_mixture and name in table.better:
            name = f"{name} {table.better[name]}"
        rows.append([name, *(text(system, own, is_mixture) for _, text in columns)])
        if is_mixture and table.gain_over and table.lines[place - 1] == (system, False):
            rows.append(_gains(table, system, results, [title for title, _ in columns]))
    return markdown_table(rows)


def _gains(
    table: Table, system: System, results: Sequence[Result], titles: Sequence[str]
) -> list[str]:
    """The row of a mixture's gains over another system, in percent, and the paper's."""
    base = next(other for other in table.systems if other.name == table.gain_over)
    texts = {}
    for name in table.collections:
        ours = _on(results_of(system, results), name)
        theirs = _on(results_of(base, results), name)
        published = zip(
            system.published(True).get(name, ()), base.published().get(name, ()), strict=False
        )
        figures = [f" ({_gain(*pair)})" for pair in published] or ["", ""]
        for measure, figure in zip(named.find(name).measures, figures, strict=True):
            gain = _gain(mean_of(ours, measure, is_mixture=True), mean_of(theirs, measure))
            texts[f"{titled(name)} {measure}"] = gain + figure
    return [f"– gain over {base.name}", *(texts.get(title, "") for title in titles)]


def _gain(value: float | None, base: float | None) -> str:
    return "-" if value is None or not base else f"{100 * (value / base - 1):+.1f} %"


def _columns(kind: str, table: Table, results: Sequence[Result]) -> Iterator[Column]:
    present = {result.cell.collection for result in results}
    names = [name for name in table.collections if name in present]
    if kind == "figures":
        for name in names:
            own = table.measures or named.find(name).measures
            for place, measure in enumerate([*own, *table.extra]):
                yield f"{titled(name)} {measure}", partial(_figure, table, name, measure, place)
    elif kind == "means":
        for name in names:
            measures = table.measures or named.find(name).measures
            yield f"{titled(name)} {'/'.join(measures)}", partial(_means, name)
    elif kind == "papers":
        others = [name for system in table.systems for name in system.published()]
        for name in dict.fromkeys(others):
            if name not in table.collections:
                yield f"paper, {name}", partial(_paper, name)
    elif kind == "differences":
        first = results_of(table.systems[0], results)
        for measure in named.find(table.collections[0]).measures:
            yield measure, partial(_value, measure, ".4f")
            yield "difference", partial(_difference, first, measure)
    elif kind == "seeds":
        yield kind, _seeds
    elif kind == "training, s":
        yield kind, _seconds
    elif kind.endswith(", %"):
        yield kind, partial(_percent, kind.removesuffix(", %"))
    else:
        yield kind, partial(_value, kind, ".1f")


def _figure(
    table: Table,
    name: str,
    measure: str,
    place: int,
    system: System,
    own: Sequence[Result],
    is_mixture: bool,
) -> str:
    on_collection = _on(own, name)
    value = mean_of(on_collection, measure, is_mixture=is_mixture)
    text = shown(value)
    if value is not None:
        first = on_collection[0]
        better = first.mixture_better_than if is_mixture else first.better_than
        text += _marks(better.get(measure, ()), table.better)
        text += "" if is_mixture else _marks(first.worse_than.get(measure, ()), table.worse)
    figures = system.published(is_mixture).get(name, ())
    return text + (f" ({figures[place]:.4f})" if place < len(figures) else "")


def _marks(systems: Sequence[str], marks: Mapping[str, str]) -> str:
    """The mark of each system, or one of all of them."""
    if systems and "*" in marks:
        return marks["*"]
    return "".join(marks.get(name, "") for name in systems)


def _means(name: str, system: System, own: Sequence[Result], _: bool) -> str:
    on_collection = _on(own, name)
    text = spread([result.measures for result in on_collection])
    figures = system.published().get(name)
    if figures:
        text += f" ({' / '.join(f'{value:.3f}' for value in figures)})"
    if any(result.interpolated for result in on_collection):
        text += f", interpolated {spread([result.interpolated for result in on_collection])}"
    return text


def _paper(name: str, system: System, own: Sequence[Result], _: bool) -> str:
    figures = system.published().get(name)
    return " / ".join(f"{value:.3f}" for value in figures) if figures else "-"


def _value(measure: str, form: str, _: System, own: Sequence[Result], __: bool) -> str:
    return shown(mean_of(own, measure), form)


def _difference(
    first: Sequence[Result], measure: str, system: System, own: Sequence[Result], _: bool
) -> str:
    value, base = mean_of(own, measure), mean_of(first, measure)
    is_first = bool(first) and system.name == first[0].cell.system
    return "" if value is None or base is None or is_first else f"{value - base:+.4f}"


def _seeds(_: System, own: Sequence[Result], __: bool) -> str:
    names = [result.cell.collection for result in own]
    counts = sorted({names.count(name) for name in names})
    return " to ".join(map(str, counts[:: max(1, len(counts) - 1)])) or "-"


def _seconds(_: System, own: Sequence[Result], __: bool) -> str:
    return shown(mean([result.seconds for result in own if result.seconds]), ".0f")


def _percent(measure: str, _: System, own: Sequence[Result], __: bool) -> str:
    value = mean_of(own, measure)
    return "" if value is None else f"{100 * value:.1f}"


def _curves(results: Sequence[Result]) -> list[list[str]]:
    """A row per α, a column per collection of questions."""
    curves = curves_of(results)
    alphas = dict.fromkeys(alpha for curve in curves.values() for alpha in curve)
    rows = [["α", *curves]]
    for alpha in alphas:
        rows.append([f"{alpha:.2f}", *(shown(curve.get(alpha)) for curve in curves.values())])
    return rows


def curves_of(results: Sequence[Result]) -> dict[str, dict[float, float]]:
    """Collection of questions -> α -> mean AP over seeds; a measure is ``stackfaq 0.05``."""
    curves: dict[str, dict[float, float]] = {}
    for measure in dict.fromkeys(m for result in results for m in result.measures):
        name, _, alpha = measure.rpartition(" ")
        curves.setdefault(name, {})[float(alpha)] = mean_of(results, measure) or 0.0
    return curves


def spread(figures: Sequence[Mapping[str, float]]) -> str:
    """Mean ± standard deviation of each measure over results; "-" without any."""
    texts = []
    for measure in figures[0] if figures else ():
        values = [of_seed[measure] for of_seed in figures]
        deviation = f"±{statistics.stdev(values):.3f}" if len(values) > 1 else ""
        texts.append(f"{statistics.mean(values):.4f}{deviation}")
    return " / ".join(texts) or "-"


def results_of(
    system: System, results: Sequence[Result], collection: str | None = None
) -> list[Result]:
    """Results of a system on one collection or, by default, on all."""
    own = [result for result in results if result.cell.system == system.name]
    return own if collection is None else _on(own, collection)


def _on(results: Sequence[Result], collection: str) -> list[Result]:
    return [result for result in results if result.cell.collection == collection]


def mean_of(results: Sequence[Result], measure: str, *, is_mixture: bool = False) -> float | None:
    """Mean of a measure over results; None if no result has it."""
    measures = [result.interpolated if is_mixture else result.measures for result in results]
    return mean([values[measure] for values in measures if measure in values])


def mean(values: Sequence[float]) -> float | None:
    """Mean, None of no values."""
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
