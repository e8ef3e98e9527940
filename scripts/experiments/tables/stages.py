"""The learned fusion by stages: what each is worth, and what it costs."""

import dataclasses
import statistics
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from experiments.cells import Result, find_runs
from experiments.published import fusion
from experiments.published.answer_selection import YEARS
from experiments.published.system import System
from experiments.tables.contract import ResultTable, Workshop, judged, markdown_table, results_of
from experiments.tables.marks import marked
from experiments.tables.timing import FROM_ENCODED, FROM_TEXTS, milliseconds
from pipeline.collections import named
from pipeline.collections.trec import Qrels, Run, best_of, read_run

RECALL = "recall"
"""What a result has here beside its measures and times."""

DEPTH = 1000
"""Posts of each topic that count for recall."""

NOTES = f"""\
▲▼: significantly better or worse than the row above, by Fisher's two-sided paired randomization
test over topics, p < .05, not corrected. Recall is the share of all relevant posts of the judgments
that are among the first {DEPTH} of their topic. {FROM_TEXTS} candidates: from their texts to their
scores, the neural one that a fusion reads included, by all cores, also where pipeline.index
--precompute has seen the posts; the searches come before it."""


class Stages(ResultTable):
    """A row for each stage, compared with the one before."""

    named = YEARS

    @cached_property
    def systems(self) -> Sequence[System]:  # type: ignore[override]
        """The stages; the models' settings that they depend on are not read before."""
        return fusion.stages()

    def usual(self, data: Path | None) -> Sequence[str]:
        """The years whose judgments are here."""
        return judged(self.collections, data)

    def report(self, results: Sequence[Result], workshop: Workshop) -> str:
        """The table, and what its columns mean."""
        return f"{self.markdown(results)}\n\n{NOTES}"

    def markdown(self, results: Sequence[Result]) -> str:
        """Measures and recall of each year, seconds of training, milliseconds of reranking."""
        present = {result.cell.collection for result in results}
        columns = [
            (name, measure)
            for name in self.collections
            if name in present
            for measure in (*named.find(name).measures, RECALL)
        ]
        rows = [["stage", *map(" ".join, columns), "training, s", FROM_TEXTS, FROM_ENCODED]]
        for system in self.systems:
            found = results_of(system, results)
            cells = [_cell(results_of(system, found, name), measure) for name, measure in columns]
            seconds = [result.seconds for result in found if result.seconds]
            times = [
                _mean([r.measures[name] for r in found if name in r.measures], ".1f")
                for name in (FROM_TEXTS, FROM_ENCODED)
            ]
            rows.append([system.name, *cells, _mean(seconds, ".0f"), *times])
        return markdown_table(rows)

    def finish(self, results: Sequence[Result], workshop: Workshop) -> list[Result]:
        """The results with recall, milliseconds, and marks against the stage before."""
        measured = [_with_costs(result, workshop) for result in results]
        first = self.systems[0]
        done = results_of(first, measured)
        for before, system in pairwise(self.systems):
            both = [*results_of(before, measured), *results_of(system, measured)]
            done += results_of(system, marked(both, [before.name], workshop))
        return done


def recall(qrels: Qrels, run: Run, depth: int = DEPTH) -> float:
    """Share of all relevant posts of ``qrels`` that are among the first ``depth`` of their topic.

    Every post counts alike, whatever its topic (0 if there is none).
    """
    relevant = {(q, d) for q, grades in qrels.items() for d, grade in grades.items() if grade > 0}
    found = {(q, d) for q, scores in best_of(run, depth).items() for d in scores}
    return len(relevant & found) / max(1, len(relevant))


def _with_costs(result: Result, workshop: Workshop) -> Result:
    cell = result.cell
    qrels = named.find(cell.collection, workshop.data).qrels
    added = {}
    if qrels is not None:
        run = read_run(find_runs(cell, workshop.directory, workshop.data)[0])
        added[RECALL] = round(recall(qrels, run), 4)
    if not cell.official_run:
        added |= milliseconds(cell, workshop)
    return dataclasses.replace(result, measures=result.measures | added)


def _cell(found: Sequence[Result], measure: str) -> str:
    values = [result.measures[measure] for result in found if measure in result.measures]
    if not values:
        return "-"
    mark = "▲" * bool(found[0].better_than.get(measure))
    mark += "▼" * bool(found[0].worse_than.get(measure))
    return f"{statistics.mean(values):.4f}{mark}"


def _mean(values: Sequence[float], form: str) -> str:
    return format(statistics.mean(values), form) if values else "-"
