"""Tables: rows from ``tables.toml``, the papers' figures, and results as Markdown."""

import math
import statistics
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

from experiments.cells import BETTER, MIXTURE_BETTER, WORSE, Cell, Result
from tweetrerank.pipeline.collections import named
from tweetrerank.rerankers.trees.fusion import ADAPTED_FAMILY
from tweetrerank.rerankers.trees.fusion import Model as Fusion

FOLDER = Path(__file__).parent

CHOSEN_ON = ("mb2011", "mb2012")  # Years on whose topics settings were chosen (†)
CLEAN = {"trecqa-raw": "trecqa-clean", "trecqa-all-raw": "trecqa-all-clean"}
"""Collection -> the one with the same training part and a part of the same test questions."""
FORMS = (
    " (paper)",
    " (paper's training)",
    " (ours)",
    " (authors' code)",
    " (authors' run)",
)
"""As published; trained so, but smaller; ours; the authors' code, and the run they published."""
Figures = Mapping[
    str, Sequence[float]
]  # Collection -> published figures of its measures


@cache
def published() -> Mapping[str, Figures]:
    """Row -> the papers' figures."""
    return tomllib.loads((FOLDER / "published.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class System:
    """A row of a table; ``tables.toml`` describes the other fields."""

    name: str
    model: str
    training: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    collections: Sequence[str] = ()
    seeds: int | None = None
    is_mixture: bool = (
        False  # Whether the row is that of its mixture with query likelihood
    )

    @property
    def plain(self) -> str:
        """The name without its form."""
        return self.name.removesuffix(next(filter(self.name.endswith, FORMS), ""))

    @property
    def mixture(self) -> str:
        """Name of the row of the mixture."""
        return self.name.replace(self.plain, f"{self.plain}+", 1)

    @property
    def published(self) -> Figures:
        """Published figures of the row."""
        names = [f"{self.plain}+"] if self.is_mixture else [self.name, self.plain]
        return next((published()[name] for name in names if name in published()), {})


@dataclass(frozen=True)
class Table:
    """A section of ``tables.toml``, which describes the fields."""

    name: str
    title: str
    lines: Sequence[str | System]  # Titles of blocks, and rows
    collections: Sequence[str]
    caption: str = ""
    seeds: int = 1
    columns: Sequence[str] = ()
    measures: Sequence[str] = ()
    finish: str = ""
    report: str = ""
    figure: str = ""
    csv_only: bool = False
    gain_over: str = ""
    paper: Mapping[str, Sequence[int]] = field(default_factory=dict)
    better: Mapping[str, str] = field(default_factory=dict)
    worse: Mapping[str, str] = field(default_factory=dict)

    @property
    def systems(self) -> list[System]:
        """Its systems, each once."""
        return [s for s in self.lines if isinstance(s, System) and not s.is_mixture]

    @property
    def csv(self) -> str:
        """File of its results."""
        return f"{self.name.replace('-', '_')}.csv"

    def cells(self, collections: Sequence[str], seeds: int | None = None) -> list[Cell]:
        """Cells of all systems with the seeds 1, 2, …; clean questions share the raw ones'."""
        raw_of = {clean: raw for raw, clean in CLEAN.items()}
        names = list(dict.fromkeys(raw_of.get(name, name) for name in collections))
        cells = []
        for system, name in product(self.systems, names):
            training = (*system.training.split(), *system.more.get(name, "").split())
            numbers = range(1, (seeds or self.seeds) + 1)[: system.seeds]
            if name in (system.collections or names):
                cells += [
                    Cell(system.name, system.model, training, name, n) for n in numbers
                ]
        return [cell for cell in cells if cell.seed == 1 or not cell.is_untrained]


def read_tables() -> tuple[str, dict[str, Table]]:
    """Introduction of the results' README, and name -> table."""
    content = tomllib.loads((FOLDER / "tables.toml").read_text(encoding="utf-8"))
    introduction, words, shared = (
        content.pop(n) for n in ("introduction", "settings", "systems")
    )
    tables = {
        name: _table(name, section, words, shared) for name, section in content.items()
    }
    return introduction.strip(), tables


def _table(
    name: str, section: Any, words: Mapping[str, Any], shared: Mapping[str, Any]
) -> Table:
    lines: list[str | System] = []
    for block in section.pop("blocks", [{"rows": section.pop("rows", [])}]):
        systems = [s for row in block["rows"] for s in _systems(row, words, shared)]
        mixtures = block.get("mixtures")
        mixed = [replace(system, is_mixture=True) for system in systems]
        lines += [block["title"]] if "title" in block else []
        lines += chain(*zip(systems, mixed, strict=True)) if mixtures == "" else systems
        lines += [mixtures, *mixed] if mixtures else []
    section["caption"] = section.get("caption", "").strip()
    return Table(name, lines=lines, **section)


def _systems(
    row: Any, words: Mapping[str, Any], shared: Mapping[str, Any]
) -> Iterator[System]:
    """The row's systems: one, or one for each combination of its variables."""
    row = {"name": row, **shared[row]} if isinstance(row, str) else dict(row)
    variables = row.pop("for", {})
    if isinstance(row.get("more"), str):
        row["more"] = words[row["more"]]
    fusion = Fusion.configurations["microblog"].families
    for values in product(*variables.values()):
        chosen = dict(zip(variables, values, strict=True))
        without = chosen.get("without", "")
        families = [*fusion.split(","), ADAPTED_FAMILY]
        kept = [
            name for name in families if without not in (name, name.partition(":")[0])
        ]
        known = {**words, "fusion": fusion, "families": ",".join(kept), **chosen}
        yield System(**{key: _filled(value, known) for key, value in row.items()})


def _filled(value: Any, known: Mapping[str, str]) -> Any:
    """A text with its {words} replaced; other values as they are."""
    while isinstance(value, str) and "{" in value:
        value = value.format_map(known)
    return value


# Markdown


class Row(NamedTuple):
    """A system of a table, or its mixture, and the table's results."""

    table: Table
    system: System
    results: Sequence[Result]

    @property
    def title(self) -> str:
        """Name of the row, with the mark of other rows that are significantly better."""
        name, mark = self.system.name, self.table.better.get(self.system.name, "")
        return (
            self.system.mixture if self.system.is_mixture else f"{name} {mark}".strip()
        )

    def own(self, collection: str | None = None) -> list[Result]:
        """The system's results on one collection or on all."""
        own = [
            result for result in self.results if result.cell.system == self.system.name
        ]
        return [
            result for result in own if collection in (None, result.cell.collection)
        ]

    def mean(self, measure: str, collection: str | None = None) -> float | None:
        """Mean of a measure over the system's results; None if no result has it."""
        measures = "interpolated" if self.system.is_mixture else "measures"
        return mean_of(getattr(r, measures).get(measure) for r in self.own(collection))

    def published(self, collection: str) -> Sequence[float]:
        """Published figures for one collection."""
        return self.system.published.get(collection, ())

    def curves(self) -> dict[str, dict[float, float]]:
        """Curve -> x -> mean of a measure of this curve, ``stackfaq 0.05``."""
        curves: dict[str, dict[float, float]] = {}
        for measure in (
            m for result in self.own() for m in result.measures if " " in m
        ):
            name, _, x = measure.rpartition(" ")
            curves.setdefault(name, {})[float(x)] = self.mean(measure) or 0.0
        return curves


Column = tuple[str, Callable[..., str], tuple[Any, ...]]
"""Title, the function that gives the text for a row and some arguments, and these."""


def render(table: Table, results: Sequence[Result]) -> str:
    """The table without its title."""
    names = [
        n for n in table.collections if any(r.cell.collection == n for r in results)
    ]
    first = Row(table, table.systems[0], results)
    if table.columns == ["sizes"]:
        lines = [["", *names]]
        for size in table.measures:
            own = {name: shown(first.mean(size, name), ",.0f") for name in names}
            papers = published()[size]
            lines.append(
                [size, *(f"{own[name]} ({papers[name][0]:,.0f})" for name in names)]
            )
        return markdown_table(lines)
    if table.columns == ["curves"]:
        curves = first.curves()
        alphas = dict.fromkeys(alpha for curve in curves.values() for alpha in curve)
        lines = [
            [f"{a:.2f}", *(shown(of.get(a)) for of in curves.values())] for a in alphas
        ]
        return markdown_table([["α", *curves], *lines])
    columns = [
        column for kind in table.columns for column in _columns(kind, first, names)
    ]
    lines = [["system", *(title for title, *_ in columns)]]
    for before, line in pairwise(["", *table.lines]):
        if isinstance(line, str):
            lines.append([f"**{line}**", *[""] * len(columns)])
            continue
        row = Row(table, line, results)
        lines.append([row.title, *(text(row, *of) for _, text, of in columns)])
        if (
            line.is_mixture
            and table.gain_over
            and before == replace(line, is_mixture=False)
        ):
            (base,) = (
                Row(table, s, results)
                for s in table.systems
                if s.name == table.gain_over
            )
            gains = [
                _gain(row, base, *of) if text is _figure else ""
                for _, text, of in columns
            ]
            lines.append([f"– gain over {table.gain_over}", *gains])
    return markdown_table(lines)


def _columns(kind: str, first: Row, names: Sequence[str]) -> list[Column]:
    table = first.table
    measures = {
        name: table.measures or named.find(name).measures for name in table.collections
    }
    if kind == "figures":
        places = [
            (name, measure, n)
            for name in names
            for n, measure in enumerate(measures[name])
        ]
        return [(f"{titled(place[0])} {place[1]}", _figure, place) for place in places]
    if kind == "means":
        return [(f"{titled(n)} {'/'.join(measures[n])}", _means, (n,)) for n in names]
    if kind == "papers":
        papers = dict.fromkeys(
            n for s in table.systems for n in s.published if n not in measures
        )
        return [(f"paper, {name}", _paper, (name,)) for name in papers]
    if kind == "differences":
        columns: list[Column] = []
        for m in measures[table.collections[0]]:
            columns += [(m, lambda row, m: shown(row.mean(m)), (m,))]
            columns += [("difference", _difference, (m, first))]
        return columns
    of_row: dict[str, Callable[[Row], str]] = {
        "seeds": _seeds,
        "training, s": lambda row: shown(
            mean_of(r.seconds or None for r in row.own()), ".0f"
        ),
        "importance, %": lambda row: shown(row.mean("importance"), ".1%", "").rstrip(
            "%"
        ),
    }
    return [(kind, of_row[kind], ())]


def _figure(row: Row, name: str, measure: str, place: int) -> str:
    text, figures, table = (
        shown(row.mean(measure, name)),
        row.published(name),
        row.table,
    )
    marks = {BETTER: table.better, WORSE: table.worse}
    if row.system.is_mixture:
        marks = {MIXTURE_BETTER: table.better}
    for result, (column, signs) in product(row.own(name)[:1], marks.items()):
        systems = result.marks.get(column, {}).get(measure, ())
        text += "".join(signs.get(system, signs.get("*", "")) for system in systems)
    return text + (f" ({figures[place]:.4f})" if place < len(figures) else "")


def _gain(row: Row, base: Row, name: str, measure: str, place: int) -> str:
    """A row's gain over another in percent, and the paper's, both cut as the paper does."""
    published = [*zip(row.published(name), base.published(name), strict=False)][
        place : place + 1
    ]
    pairs = [(row.mean(measure, name), base.mean(measure, name)), *published]
    gains = [
        1000 * (value / other - 1) if value and other else math.nan
        for value, other in pairs
    ]
    ours, *papers = (
        "-" if math.isnan(g) else f"{int(round(g, 6)) / 10:+.1f} %" for g in gains
    )
    return ours + "".join(f" ({gain})" for gain in papers)


def _means(row: Row, name: str) -> str:
    own = row.own(name)
    text = _spread([result.measures for result in own], row.table.measures)
    text += f" ({_paper(row, name)})" if row.published(name) else ""
    mixed = [result.interpolated for result in own if result.interpolated]
    return text + (f", interpolated {_spread(mixed)}" if mixed else "")


def _spread(figures: Sequence[Mapping[str, float]], wanted: Sequence[str] = ()) -> str:
    """Mean ± standard deviation of each measure over results; "-" without any."""
    texts = []
    for measure in (m for m in (figures[0] if figures else ()) if m in (wanted or [m])):
        values = [of_seed[measure] for of_seed in figures]
        deviation = f"±{statistics.stdev(values):.3f}" if len(values) > 1 else ""
        texts.append(f"{statistics.mean(values):.4f}{deviation}")
    return " / ".join(texts) or "-"


def _paper(row: Row, name: str) -> str:
    return " / ".join(f"{value:.3f}" for value in row.published(name)) or "-"


def _difference(row: Row, measure: str, first: Row) -> str:
    value, base = row.mean(measure), first.mean(measure)
    return (
        "" if value is None or base is None or row == first else f"{value - base:+.4f}"
    )


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
