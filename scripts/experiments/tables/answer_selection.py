"""Tables of means over seeds beside the papers' figures."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.cells import Result
from experiments.systems import System
from experiments.tables.base import (
    ResultTable,
    markdown_table,
    mean,
    results_of,
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
                if name in published:
                    figures = system.published.get(name)
                    row.append(" / ".join(f"{value:.3f}" for value in figures) if figures else "-")
            seconds = mean([result.seconds for result in results_of(system, results)])
            rows.append([*row, shown(seconds, ".0f")])
        return markdown_table(rows)


def _ours(found: Sequence[Result]) -> str:
    if not found:
        return "-"
    if not found[0].measures:
        development = means([{"AP": result.development} for result in found])
        return f"no judgments here; development AP {development}"
    neural = means([result.measures for result in found])
    if not found[0].interpolated:
        return neural
    return f"{neural}, interpolated {means([result.interpolated for result in found])}"


def means(figures: Sequence[Mapping[str, float]]) -> str:
    """Mean ± standard deviation of each measure over results; "-" without any."""
    if not figures:
        return "-"
    texts = []
    for measure in figures[0]:
        values = [of_seed[measure] for of_seed in figures]
        spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        texts.append(f"{statistics.mean(values):.4f}{spread}")
    return " / ".join(texts)
