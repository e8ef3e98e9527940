"""Figure 2 of Rao et al. (AAAI 2019): AP by the number of convolutional layers."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from experiments.cells import Result
from experiments.published import mp_hcnn
from experiments.tables.contract import ResultTable, Workshop, judged, markdown_table, results_of
from experiments.tables.pictures import save
from pipeline.command.errors import DataError


class Depths(ResultTable):
    """A row for each depth; the paper has the figure only as a picture."""

    systems = mp_hcnn.DEPTHS
    collections = mp_hcnn.YEARS
    draws: ClassVar[bool] = True

    def usual(self, data: Path | None) -> Sequence[str]:
        """The years whose judgments are here."""
        return judged(self.collections, data)

    def markdown(self, results: Sequence[Result]) -> str:
        """AP of MP-HCNN alone, for each depth and year."""
        names = self._present(results)
        rows = [["N", *names]]
        for depth, system in enumerate(self.systems):
            row = [str(depth)]
            for name in names:
                ap = _ap(results_of(system, results, name))
                row.append("-" if ap is None else f"{ap:.4f}")
            rows.append(row)
        return markdown_table(rows)

    def draw(self, path: Path, results: Sequence[Result], workshop: Workshop) -> None:
        """A line for each year. Raises DataError if there is none."""
        from matplotlib.figure import Figure

        if not self._present(results):
            raise DataError("found no result with judgments, expected some to draw")
        figure = Figure(figsize=(6, 4))
        axes = figure.subplots()
        for name in self._present(results):
            points = [
                (depth, ap)
                for depth, system in enumerate(self.systems)
                if (ap := _ap(results_of(system, results, name))) is not None
            ]
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.set_xticks(range(len(self.systems)))
        axes.set_xlabel("convolutional layers N")
        axes.set_ylabel("AP")
        axes.grid(axis="y", alpha=0.3)
        axes.legend()
        save(figure, path)

    def _present(self, results: Sequence[Result]) -> list[str]:
        measured = {result.cell.collection for result in results if result.measures}
        return [name for name in self.collections if name in measured]


def _ap(found: Sequence[Result]) -> float | None:
    values = [result.measures["AP"] for result in found if "AP" in result.measures]
    return statistics.mean(values) if values else None
