"""What a table or a figure of a paper is asked for."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from experiments.cells import Cell, Result
from experiments.published.system import System
from pipeline.collections import named
from pipeline.command.errors import UsageError


@dataclass(frozen=True)
class Workshop:
    """Where what is not in the results is found.

    Attributes:
        directory: of the experiments: their runs and checkpoints.
        data: folder of the data; None is the usual one.
        device: of models.
        asked: collections that are asked for; none if a table is to show what there is.
    """

    directory: Path
    data: Path | None
    device: str = "auto"
    asked: tuple[str, ...] = ()


class Table(ABC):
    """A table or a figure."""

    seeds: int = 1
    """Of every system, where nothing else is asked for."""

    draws: ClassVar[bool] = False
    """Whether :meth:`draw` makes a picture."""

    named: Sequence[str]
    """Those that it can have, in their order."""

    systems: Sequence[System]
    """Those whose cells it needs."""

    @abstractmethod
    def report(self, results: Sequence[Result], workshop: Workshop) -> str:
        """Our figures beside the paper's, as Markdown; a dash is what is not there."""

    def finish(self, results: Sequence[Result], workshop: Workshop) -> list[Result]:
        """The results with all that :meth:`report` and a CSV are to have of them."""
        return list(results)

    def draw(self, path: Path, results: Sequence[Result], workshop: Workshop) -> None:
        """Draw it as PNG."""
        raise UsageError("--plot: this table has no picture")

    def chosen(self, tests: Sequence[str], data: Path | None) -> Sequence[str]:
        """The collections to report: ``tests``, or those that are usual.

        Raises:
            UsageError: a collection that the table does not have.
        """
        if unknown := [name for name in tests if name not in self.collections]:
            raise UsageError(
                f"--tests: found {', '.join(unknown)}, expected some of "
                f"{', '.join(self.collections)}"
            )
        return tests or self.usual(data)

    def usual(self, data: Path | None) -> Sequence[str]:
        """Collections that are reported when none is named."""
        return self.collections

    def cells(self, names: Sequence[str], seeds: int) -> list[Cell]:
        """Every system on the collections ``names`` by seed 1, 2, …"""
        return [
            cell for system in self.systems for cell in system.cells(names, range(1, seeds + 1))
        ]


class ResultTable(Table):
    """A table for which the results are enough, so that a CSV of them gives it again."""

    @abstractmethod
    def markdown(self, results: Sequence[Result]) -> str:
        """Our figures beside the paper's; a dash is what was not computed or not printed."""

    def report(self, results: Sequence[Result], workshop: Workshop) -> str:
        """The same."""
        return self.markdown(results)


def judged(names: Sequence[str], data: Path | None) -> list[str]:
    """The collections of ``names`` whose judgments are here."""
    return [name for name in names if named.find(name, data).qrels is not None]


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the header."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def results_of(
    system: System, results: Sequence[Result], collection: str | None = None
) -> list[Result]:
    """The results of a system, on one collection or on all."""
    return [
        result
        for result in results
        if result.cell.system == system.name and collection in (None, result.cell.collection)
    ]
