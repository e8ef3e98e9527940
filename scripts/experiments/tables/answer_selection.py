"""Tables of means over seeds beside the papers' figures."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from experiments.cells import Cell, Result, Setup
from experiments.systems import CLEAN, System
from experiments.tables.base import (
    ResultTable,
    markdown_table,
    mean,
    results_of,
    shown,
    titled,
)
from pipeline.collections import named
from pipeline.collections.trec import read_run
from pipeline.evaluation.measures import evaluate
from pipeline.evaluation.measures import mean as mean_of_topics


@dataclass(frozen=True)
class Means(ResultTable):
    """A row per system: mean ± standard deviation over seeds, and seconds of training."""

    systems: Sequence[System]
    collections: Sequence[str]
    seeds: int = 1

    def cells(self, collections: Sequence[str], seeds: int) -> list[Cell]:
        """Cells of the systems; clean collections are measured by the raw ones' runs."""
        raw_of = {clean: raw for raw, clean in CLEAN.items()}
        return super().cells(list(dict.fromkeys(raw_of.get(n, n) for n in collections)), seeds)

    def finish(self, results: Sequence[Result], setup: Setup) -> list[Result]:
        """The results, and those of the same runs on the clean questions alone.

        The clean parts lack questions with no relevant answer or nothing else. These change
        neither the training nor the choice of the epoch: every ranking of them is worth the same.
        """
        found = list(results)
        for result in results:
            clean = CLEAN.get(result.cell.collection, "")
            if result.measures and clean in self.collections:
                found.append(_on(result, setup, clean))
        return found

    def markdown(self, results: Sequence[Result]) -> str:
        """Our figures, with the paper's in a column beside them."""
        present = self.present(results)
        published = {name for system in self.systems for name in system.published}
        header = ["system"]
        for name in present:
            header.append(f"{titled(name)} {'/'.join(named.find(name).measures)}")
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


def _on(result: Result, setup: Setup, name: str) -> Result:
    """The result's run on the questions of another collection."""
    collection = setup.collection(name)
    qrels = collection.qrels or {}
    run = {key: run for key, run in read_run(setup.run_file(result.cell)).items() if key in qrels}
    measures = evaluate(qrels, run, collection.measures)
    return replace(
        result,
        cell=replace(result.cell, collection=name),
        measures={measure: round(mean_of_topics(v), 4) for measure, v in measures.items()},
    )


def _ours(found: Sequence[Result]) -> str:
    if not found:
        return "-"
    if not found[0].measures:
        development = means([{"AP": result.development} for result in found])
        return f"not measured; development AP {development}"
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
