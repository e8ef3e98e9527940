"""Tables of means over seeds, ours beside the papers', and the figure of samplings."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from experiments.cells import Result
from experiments.published.system import System
from experiments.tables.contract import ResultTable, Workshop, markdown_table, results_of
from experiments.tables.pictures import save
from pipeline.collections.named import find as find_collection


@dataclass(frozen=True)
class Means(ResultTable):
    """A row for each system: mean ± standard deviation over seeds, and seconds of training."""

    systems: Sequence[System]
    collections: Sequence[str]
    seeds: int = 1

    def markdown(self, results: Sequence[Result]) -> str:
        """Ours beside the paper's."""
        present = {result.cell.collection for result in results}
        shown = [name for name in self.collections if name in present]
        printed = {name for s in self.systems for name in s.published or {}}
        header = ["system"]
        for name in shown:
            measures = "/".join(find_collection(name).measures)
            header += [f"{name} {measures}", *(["paper"] if name in printed else [])]
        header.append("training, s")
        rows = [header]
        for system in self.systems:
            row = [system.name]
            for name in shown:
                row.append(_ours(results_of(system, results, name)))
                row += [_papers(system, name)] if name in printed else []
            rows.append([*row, _seconds(results_of(system, results))])
        return markdown_table(rows)


@dataclass(frozen=True)
class Sampling(Means):
    """The same for samplings of negatives, with a picture."""

    draws: ClassVar[bool] = True

    def draw(self, path: Path, results: Sequence[Result], workshop: Workshop) -> None:
        """Mean AP by sampling and number of negatives, a bar for each."""
        from matplotlib.figure import Figure

        values = {
            system.name: [result.measures["AP"] for result in found]
            for system in self.systems
            if (found := results_of(system, results))
        }
        figure = Figure(figsize=(8, 4))
        axes = figure.subplots()
        means = [statistics.mean(found) for found in values.values()]
        spreads = [statistics.pstdev(found) for found in values.values()]
        axes.bar(range(len(values)), means, yerr=spreads, capsize=3)
        axes.set_xticks(range(len(values)), list(values), rotation=40, ha="right")
        axes.set_ylim(max(0.0, min(means) - 0.05), max(means) + 0.03)
        axes.set_ylabel("AP, mean and standard deviation over seeds")
        save(figure, path)


def _ours(chosen: Sequence[Result]) -> str:
    if not chosen:
        return "-"
    if not chosen[0].measures:
        development = _means([{"AP": result.development} for result in chosen])
        return f"no judgments here; development AP {development}"
    neural = _means([result.measures for result in chosen])
    if not chosen[0].interpolated:
        return neural
    return f"{neural}, interpolated {_means([result.interpolated for result in chosen])}"


def _seconds(chosen: Sequence[Result]) -> str:
    """Mean wall time of training."""
    return f"{statistics.mean(result.seconds for result in chosen):.0f}" if chosen else "-"


def _means(measures: Sequence[Mapping[str, float]]) -> str:
    texts = []
    for name in measures[0]:
        values = [figures[name] for figures in measures]
        spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        texts.append(f"{statistics.mean(values):.4f}{spread}")
    return " / ".join(texts)


def _papers(system: System, collection: str) -> str:
    figures = (system.published or {}).get(collection)
    return " / ".join(f"{value:.3f}" for value in figures) if figures else "-"
