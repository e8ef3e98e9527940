"""Base classes of tables and figures, and their common parts."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from experiments.cells import Cell, Result, Setup
from experiments.systems import CHOSEN_ON, System
from indexes.files import atomic_file

if TYPE_CHECKING:
    from io import TextIOWrapper

    from matplotlib.figure import Figure


class Table(ABC):
    """A table or a figure.

    Attributes:
        systems: systems whose cells it needs.
        collections: collections that it can show, in order.
        seeds: default number of seeds per system.
        only_judged: whether collections without judgments are shown only on request.
        has_figure: whether :meth:`draw` is implemented.
    """

    systems: Sequence[System]
    collections: Sequence[str]
    seeds: int = 1
    only_judged: ClassVar[bool] = False
    has_figure: ClassVar[bool] = False

    @abstractmethod
    def report(self, results: Sequence[Result], setup: Setup) -> str:
        """Our figures beside the paper's, as Markdown; "-" for a missing figure."""

    def finish(self, results: Sequence[Result], setup: Setup) -> list[Result]:
        """The results with marks and additional measures for the report and the CSV."""
        return list(results)

    def draw(self, path: Path, results: Sequence[Result], setup: Setup) -> None:
        """Write the figure as PNG."""
        raise NotImplementedError

    def default_collections(self, data: Path | None) -> Sequence[str]:
        """Collections of a report without ``--tests``."""
        if not self.only_judged:
            return self.collections
        setup = Setup(Path(), data)
        return [name for name in self.collections if setup.collection(name).qrels is not None]

    def cells(self, collections: Sequence[str], seeds: int) -> list[Cell]:
        """Cells of all systems with the seeds 1, 2, …"""
        numbers = range(1, seeds + 1)
        return [cell for system in self.systems for cell in system.cells(collections, numbers)]


class ResultTable(Table):
    """A table from results alone, with ``notes`` below it."""

    notes: ClassVar[str] = ""

    @abstractmethod
    def markdown(self, results: Sequence[Result]) -> str:
        """The table without notes."""

    def report(self, results: Sequence[Result], setup: Setup) -> str:
        """The table and its notes."""
        return f"{self.markdown(results)}\n\n{self.notes}" if self.notes else self.markdown(results)

    def present(self, results: Sequence[Result]) -> list[str]:
        """Collections of the results, in the table's order."""
        found = {result.cell.collection for result in results}
        return [name for name in self.collections if name in found]


def results_of(
    system: System, results: Sequence[Result], collection: str | None = None
) -> list[Result]:
    """Results of a system on one collection or, by default, on all."""
    found = [result for result in results if result.cell.system == system.name]
    return [result for result in found if collection in (None, result.cell.collection)]


def mean_of(results: Sequence[Result], measure: str, *, is_mixture: bool = False) -> float | None:
    """Mean of a measure over results; None if no result has it."""
    found = [result.interpolated if is_mixture else result.measures for result in results]
    return mean([values[measure] for values in found if measure in values])


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


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, atomically."""
    content = BytesIO()
    figure.savefig(content, dpi=150, bbox_inches="tight", format="png")
    with atomic_file(path) as stream:
        cast("TextIOWrapper", stream).buffer.write(content.getvalue())
