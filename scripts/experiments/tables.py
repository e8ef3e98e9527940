"""Tables as data: ``tables.toml`` has their systems, ``published/`` the papers' figures."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from experiments.cells import Cell
from rerankers.trees.families import ADAPTED_FAMILY
from rerankers.trees.fusion import Model as Fusion

FOLDER = Path(__file__).parent

CHOSEN_ON = ("mb2011", "mb2012")  # Years on whose topics settings were chosen (†)

CLEAN = {"trecqa-raw": "trecqa-clean", "trecqa-all-raw": "trecqa-all-clean"}
"""Collection -> the one with the same training part and a part of the same test questions."""

FORMS = (" (paper)", " (paper's training)", " (ours)", " (authors' code)", " (authors' run)")
"""As published; trained so, but smaller; ours; the authors' code, and the run they published."""

Figures = Mapping[str, tuple[float, ...]]
"""Collection -> published figures, in the order of the collection's measures."""


@cache
def published() -> Mapping[str, Figures]:
    """Row -> figures of the CSVs in ``published/``.

    A column is named by collection and measure; an empty field means no published figure.
    """
    figures: dict[str, dict[str, tuple[float, ...]]] = {}
    for path in sorted(FOLDER.glob("published/*.csv")):
        with path.open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                of_row = figures.setdefault(row.pop("system"), {})
                row.pop("source", None)
                for name, value in ((c.partition(" ")[0], v) for c, v in row.items() if v):
                    of_row[name] = (*of_row.get(name, ()), float(value))
    return figures


@dataclass(frozen=True)
class System:
    """A row of a table; ``tables.toml`` describes the fields."""

    name: str
    model: str
    training: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    collections: Sequence[str] = ()
    seeds: int | None = None

    @property
    def plain(self) -> str:
        """The name without its form."""
        return self.name.removesuffix(next(filter(self.name.endswith, FORMS), ""))

    @property
    def mixture(self) -> str:
        """Name of the row of the mixture with query likelihood."""
        return self.name.replace(self.plain, f"{self.plain}+", 1)

    def published(self, is_mixture: bool = False) -> Figures:
        """Published figures of the row, or of its mixture with query likelihood."""
        names = [f"{self.plain}+"] if is_mixture else [self.name, self.plain]
        return next((published()[name] for name in names if name in published()), {})

    def cells(self, collections: Sequence[str], seeds: Sequence[int]) -> Iterator[Cell]:
        """A cell per collection and seed; an untrained system has the first seed only."""
        for name in collections:
            training = (*self.training.split(), *self.more.get(name, "").split())
            for seed in seeds[: self.seeds] if name in (self.collections or collections) else ():
                cell = Cell(self.name, self.model, training, name, seed)
                if seed == seeds[0] or not cell.is_untrained:
                    yield cell


@dataclass(frozen=True)
class Table:
    """A section of ``tables.toml``, which describes the fields."""

    name: str
    title: str
    lines: Sequence[str | tuple[System, bool]]
    """Titles of blocks, and rows: a system, and whether it is its mixture."""
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
        return [line[0] for line in self.lines if not isinstance(line, str) and not line[1]]

    @property
    def csv(self) -> str:
        """File of its results."""
        return f"{self.name.replace('-', '_')}.csv"

    def cells(self, collections: Sequence[str], seeds: int | None = None) -> list[Cell]:
        """Cells of all systems with the seeds 1, 2, …; clean questions share the raw ones'."""
        raw_of = {clean: raw for raw, clean in CLEAN.items()}
        names = list(dict.fromkeys(raw_of.get(name, name) for name in collections))
        numbers = range(1, (seeds or self.seeds) + 1)
        return [cell for system in self.systems for cell in system.cells(names, numbers)]


def read_tables() -> tuple[str, dict[str, Table]]:
    """Introduction of the results' README, and name -> table."""
    content = tomllib.loads((FOLDER / "tables.toml").read_text(encoding="utf-8"))
    introduction, words, shared = (content.pop(n) for n in ("introduction", "settings", "systems"))
    tables = {name: _table(name, section, words, shared) for name, section in content.items()}
    return introduction.strip(), tables


def _table(name: str, section: Any, words: Mapping[str, Any], shared: Mapping[str, Any]) -> Table:
    lines: list[str | tuple[System, bool]] = []
    for block in section.pop("blocks", [{"rows": section.pop("rows", [])}]):
        systems = [s for row in block["rows"] for s in _systems(row, words, shared)]
        mixtures = block.get("mixtures")
        lines += [block["title"]] if "title" in block else []
        for system in systems:
            lines += [(system, False), (system, True)] if mixtures == "" else [(system, False)]
        if mixtures:
            lines += [mixtures, *((system, True) for system in systems)]
    section["caption"] = section.get("caption", "").strip()
    return Table(name, lines=lines, **section)


def _systems(row: Any, words: Mapping[str, Any], shared: Mapping[str, Any]) -> Iterator[System]:
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
        kept = [name for name in families if without not in (name, name.partition(":")[0])]
        known = {**words, "fusion": fusion, "families": ",".join(kept), **chosen}
        yield System(**{key: _filled(value, known) for key, value in row.items()})


def _filled(value: Any, known: Mapping[str, str]) -> Any:
    """A text with its {words} replaced; other values as they are."""
    while isinstance(value, str) and "{" in value:
        value = value.format_map(known)
    return value
