"""The tables: their rows from ``tables.toml``, and the papers' figures."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from experiments.cells import Cell
from tweetrerank.rerankers.trees.fusion import ADAPTED_FAMILY
from tweetrerank.rerankers.trees.fusion import Model as Fusion

FOLDER = Path(__file__).parent

CLEAN = {"trecqa-raw": "trecqa-clean", "trecqa-all-raw": "trecqa-all-clean"}
"""For a raw collection, the clean one.

It has the same training part, and only some of the raw test questions.
"""

FORMS = (
    " (paper)",  # As published
    " (paper's training)",  # Trained as published, with a smaller model
    " (ours)",
    " (authors' code)",
    " (authors' run)",  # As published by the authors
)

Figures = Mapping[str, Sequence[float]]
"""The published figures for each collection, in the order of its measures."""


@cache
def published() -> Mapping[str, Figures]:
    """Return the figures of the papers by the names of rows."""
    return tomllib.loads((FOLDER / "published.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class System:
    """A row of a table. ``tables.toml`` describes the fields without a comment."""

    name: str
    model: str
    training: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    collections: Sequence[str] = ()
    seeds: int | None = None
    # Whether this is the system's mixture with query likelihood
    is_mixture: bool = False

    @property
    def plain(self) -> str:
        """The name without the ending that is one of :data:`FORMS`."""
        for form in FORMS:
            if self.name.endswith(form):
                return self.name.removesuffix(form)
        return self.name

    @property
    def mixture(self) -> str:
        """The name of the row that has the mixture."""
        return self.name.replace(self.plain, f"{self.plain}+", 1)

    @property
    def published(self) -> Figures:
        """The published figures for the row; empty if there are none."""
        names = [f"{self.plain}+"] if self.is_mixture else [self.name, self.plain]
        for name in names:
            if name in published():
                return published()[name]
        return {}


@dataclass(frozen=True)
class Table:
    """A table: a section of ``tables.toml``, which describes the fields."""

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
        """The systems of the table, without their mixtures."""
        rows = [line for line in self.lines if isinstance(line, System)]
        return [system for system in rows if not system.is_mixture]

    @property
    def csv(self) -> str:
        """The name of the file with the table's results."""
        return f"{self.name.replace('-', '_')}.csv"

    def cells(
        self,
        collections: Sequence[str],
        seeds: int | None = None,
    ) -> list[Cell]:
        """Return the cells of all systems, with the seeds 1, 2, …

        ``seeds`` replaces the table's number of seeds. Collections of clean questions
        have no cells of their own, but share those of the raw questions.
        """
        raw_of = {clean: raw for raw, clean in CLEAN.items()}
        names = list(dict.fromkeys(raw_of.get(name, name) for name in collections))
        numbers = range(1, (seeds or self.seeds) + 1)
        cells = []
        for system, name in product(self.systems, names):
            if name not in (system.collections or names):
                continue
            options = system.training.split() + system.more.get(name, "").split()
            for seed in numbers[: system.seeds]:
                cell = Cell(
                    system.name,
                    system.model,
                    tuple(options),
                    name,
                    seed,
                )
                if seed == 1 or not cell.is_untrained:
                    cells.append(cell)
        return cells


def read_tables() -> tuple[str, dict[str, Table]]:
    """Return the introduction of the results' README, and the tables by name."""
    content = tomllib.loads((FOLDER / "tables.toml").read_text(encoding="utf-8"))
    introduction = content.pop("introduction")
    settings = content.pop("settings")
    systems = content.pop("systems")
    tables = {}
    for name, section in content.items():
        tables[name] = _table(name, section, settings, systems)
    return introduction.strip(), tables


def _table(
    name: str,
    section: Any,
    settings: Mapping[str, Any],
    systems: Mapping[str, Any],
) -> Table:
    blocks = section.pop("blocks", None) or [{"rows": section.pop("rows", [])}]
    lines: list[str | System] = []
    for block in blocks:
        lines += _lines(block, settings, systems)
    section["caption"] = section.get("caption", "").strip()
    return Table(name, lines=lines, **section)


def _lines(
    block: Any,
    settings: Mapping[str, Any],
    systems: Mapping[str, Any],
) -> Iterator[str | System]:
    """Yield the title, the systems and the mixtures of a block."""
    if "title" in block:
        yield block["title"]
    mixtures_title = block.get("mixtures")
    mixtures = []
    for row in block["rows"]:
        for system in _systems(row, settings, systems):
            mixture = replace(system, is_mixture=True)
            yield system
            if mixtures_title == "":
                yield mixture
            else:
                mixtures.append(mixture)
    if mixtures_title:
        yield mixtures_title
        yield from mixtures


def _systems(
    row: Any,
    settings: Mapping[str, Any],
    systems: Mapping[str, Any],
) -> Iterator[System]:
    """Yield the systems of a row, one for each combination of its variables."""
    fields = {"name": row} | systems[row] if isinstance(row, str) else dict(row)
    variables = fields.pop("for", {})
    if isinstance(fields.get("more"), str):
        fields["more"] = settings[fields["more"]]
    for values in product(*variables.values()):
        chosen = dict(zip(variables, values, strict=True))
        fusion = Fusion.configurations["microblog"].families
        families = _families(fusion, chosen.get("without", ""))
        words = {**settings, "fusion": fusion, "families": families, **chosen}
        filled = {name: _filled(value, words) for name, value in fields.items()}
        yield System(**filled)


def _families(fusion: str, without: str) -> str:
    """Return the families of features without one family, or without a kind of them."""
    names = [name for name in [*fusion.split(","), ADAPTED_FAMILY] if name != without]
    return ",".join(name for name in names if name.partition(":")[0] != without)


def _filled(
    value: Any,
    words: Mapping[str, str],
) -> Any:
    """Return a text with its {words} replaced, or any other value as it is."""
    while isinstance(value, str) and "{" in value:
        value = value.format_map(words)
    return value
