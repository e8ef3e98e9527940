"""The learned fusion without each family of features, on held-out training topics."""

import dataclasses
import statistics
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, cast

from experiments.cells import Cell, Result, checkpoint_of
from experiments.published import fusion
from experiments.published.system import System
from experiments.tables.contract import ResultTable, Workshop, markdown_table, results_of
from pipeline.collections import named
from pipeline.explanation.contributions import shares

if TYPE_CHECKING:
    from rerankers.models._feature_model import FeatureModel

IMPORTANCE = "importance"
"""Name of what a result has here beside its measures: a family's share, where all are."""

NOTES = """\
AP and P@30 are those of training topics that the trees had not seen: five folds by topic, and no
topic of the year that is left out. A ranker's family is left out with the candidates that it alone
finds. Importance is a family's share of what all splits gained, in the trees over all families."""


class Families(ResultTable):
    """A row for each family: without it, the difference to all, and its importance; then others."""

    named = ("mb2013",)

    @cached_property
    def systems(self) -> Sequence[System]:  # type: ignore[override]
        """All families first; the model's settings that they depend on are not read before."""
        return (fusion.whole(), *fusion.ablations(), *fusion.changes())

    def report(self, results: Sequence[Result], workshop: Workshop) -> str:
        """The table, and what its columns mean."""
        return f"{self.markdown(results)}\n\n{NOTES}"

    def markdown(self, results: Sequence[Result]) -> str:
        """Each measure and its difference to that of all families; importance in percent."""
        measures = named.find(self.collections[0]).measures
        header = ["families"]
        for measure in measures:
            header += [measure, "difference"]
        rows = [[*header, "importance, %"]]
        whole = results_of(self.systems[0], results)
        for system in self.systems:
            found = results_of(system, results)
            row = [system.name]
            for measure in measures:
                ours, base = _mean(found, measure), _mean(whole, measure)
                row += ["-" if ours is None else f"{ours:.4f}", ""]
                if ours is not None and base is not None and system is not self.systems[0]:
                    row[-1] = f"{ours - base:+.4f}"
            importance = _mean(found, IMPORTANCE)
            rows.append([*row, "" if importance is None else f"{100 * importance:.1f}"])
        return markdown_table(rows)

    def finish(self, results: Sequence[Result], workshop: Workshop) -> list[Result]:
        """The results with the importance of the family that each leaves out."""
        # What a seed has no whole for has no importance.
        by_seed = {
            result.cell.seed: _importances(result.cell, workshop)
            for result in results_of(self.systems[0], results)
        }
        done = []
        for result in results:
            family = result.cell.system.removeprefix(fusion.WITHOUT)
            share = by_seed.get(result.cell.seed, {}).get(family)
            added = {} if share is None else {IMPORTANCE: round(share, 4)}
            done.append(dataclasses.replace(result, measures=result.measures | added))
        return done


def _importances(cell: Cell, workshop: Workshop) -> dict[str, float]:
    from rerankers import checkpoint

    model = checkpoint.load(checkpoint_of(cell, workshop.directory)).model
    return shares(cast("FeatureModel", model).importances())


def _mean(found: Sequence[Result], measure: str) -> float | None:
    values = [result.measures[measure] for result in found if measure in result.measures]
    return statistics.mean(values) if values else None
