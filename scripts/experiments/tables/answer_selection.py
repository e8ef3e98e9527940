"""Tables of means over seeds beside the papers' figures; the figure of negative sampling."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from experiments.cells import Result, Setup
from experiments.systems import System
from experiments.tables.base import (
    ResultTable,
    markdown_table,
    mean,
    results_of,
    save_figure,
    shown,
)
from pipeline.collections import named


@dataclass(frozen=True)
class Means(ResultTable):
    """A row per system: mean ± standard deviation over seeds, and seconds of training."""

    systems: Sequence[System]
    collections: Sequence[str]
    seeds: int = 1

    def markdown(self, results: Sequence[Result]) -> str:
        """Our figures, with the paper's in a column beside them."""
        present = self.present(results)
        published = {name for system in self.systems for name in system.published}
        header = ["system"]
        for name in present:
            header.append(f"{name} {'/'.join(named.find(name).measures)}")
            header += ["paper"] if name in published else []
        rows = [[*header, "training, s"]]
        for system in self.systems:
            row = [system.name]
            for name in present:
                row.append(_ours(results_of(system, results, name)))
                row += [_published(system, name)] if name in published else []
            seconds = mean(result.seconds for result in results_of(system, results))
            rows.append([*row, shown(seconds, ".0f")])
        return markdown_table(rows)


@dataclass(frozen=True)
class Sampling(Means):
    """The table for samplings of negatives, and a bar chart."""

    has_figure: ClassVar[bool] = True

    def draw(self, path: Path, results: Sequence[Result], setup: Setup) -> None:
        """A bar per sampling and number of negatives: mean AP."""
        from matplotlib.figure import Figure

        values = {
            system.name: [result.measures["AP"] for result in found]
            for system in self.systems
            if (found := results_of(system, results))
        }
        means = [statistics.mean(found) for found in values.values()]
        spreads = [statistics.pstdev(found) for found in values.values()]
        figure = Figure(figsize=(8, 4))
        axes = figure.subplots()
        axes.bar(range(len(values)), means, yerr=spreads, capsize=3)
        axes.set_xticks(range(len(values)), list(values), rotation=40, ha="right")
        axes.set_ylim(max(0.0, min(means) - 0.05), max(means) + 0.03)
        axes.set_ylabel("AP, mean and standard deviation over seeds")
        save_figure(figure, path)


def _ours(found: Sequence[Result]) -> str:
    if not found:
        return "-"
    if not found[0].measures:
        development = _means([{"AP": result.development} for result in found])
        return f"no judgments here; development AP {development}"
    neural = _means([result.measures for result in found])
    if not found[0].interpolated:
        return neural
    return f"{neural}, interpolated {_means([result.interpolated for result in found])}"


def _means(figures: Sequence[Mapping[str, float]]) -> str:
    texts = []
    for measure in figures[0]:
        values = [of_seed[measure] for of_seed in figures]
        spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        texts.append(f"{statistics.mean(values):.4f}{spread}")
    return " / ".join(texts)


def _published(system: System, collection: str) -> str:
    figures = system.published.get(collection)
    return " / ".join(f"{value:.3f}" for value in figures) if figures else "-"
