"""Marks for significant differences between the systems of a table.

The test is Fisher's two-sided paired randomization test over topics with p < .05,
uncorrected as in the papers' tables. If a system has several seeds, the value of a
topic is the mean over the seeds.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from experiments.added_measures import with_measures
from experiments.cells import BETTER, MIXTURE_BETTER, WORSE, Result, Setup
from experiments.tables import Table
from tweetrerank.pipeline.collections.trec import best_of, read_run
from tweetrerank.pipeline.evaluation.measures import evaluate
from tweetrerank.pipeline.evaluation.significance import randomization_test

LEVEL = 0.05
# Enough to estimate p with an error of at most .003 near the level
PERMUTATIONS = 20_000

Values = Mapping[str, npt.NDArray[np.float64]]
"""The values of each measure, one for each judged topic."""

Groups = Mapping[tuple[str, str], Sequence[Result]]
"""The results of all seeds, by (collection, system)."""


def significance(
    table: Table,
    results: Sequence[Result],
    setup: Setup,
) -> list[Result]:
    """Return the results with marks for differences from the table's marked systems.

    Prints to stderr which marked systems have no result.
    """
    references = list(dict.fromkeys([*table.better, *table.worse]))
    groups = _groups(results)
    for collection in dict.fromkeys(collection for collection, _ in groups):
        missing = [name for name in references if (collection, name) not in groups]
        if missing:
            print(
                f"{table.name}: {collection}: found no finished cell of "
                f"{', '.join(missing)}, so no row is compared with it; --train "
                "computes it",
                file=sys.stderr,
            )
    systems = [system for _, system in groups]
    return _marked(results, setup, dict.fromkeys(systems, references))


def stages(
    table: Table,
    results: Sequence[Result],
    setup: Setup,
) -> list[Result]:
    """Return the results with the recall, and with marks against the row above."""
    results = with_measures(results, lambda result: _recall(result, setup))
    rows = pairwise(table.systems)
    references = {system.name: [previous.name] for previous, system in rows}
    return _marked(results, setup, references)


def _recall(
    result: Result,
    setup: Setup,
) -> dict[str, float]:
    """Return the share of the relevant posts among the first 1000 of their topic."""
    run, qrels = setup.judged(result.cell)
    if not qrels:
        return {}
    best = best_of(run, 1000)
    relevant = 0
    retrieved = 0
    for query_id, grades in qrels.items():
        doc_ids = [doc_id for doc_id, grade in grades.items() if grade > 0]
        relevant += len(doc_ids)
        retrieved += len(best.get(query_id, {}).keys() & doc_ids)
    return {"recall": round(retrieved / max(1, relevant), 4)}


def _groups(results: Sequence[Result]) -> Groups:
    groups = defaultdict(list)
    for result in results:
        groups[result.cell.collection, result.cell.system].append(result)
    return groups


def _marked(
    results: Sequence[Result],
    setup: Setup,
    references: Mapping[str, Sequence[str]],
) -> list[Result]:
    """Return the results with marks.

    ``references`` names the systems that each system is compared with.
    """
    groups = _groups(results)
    values = {key: values_by_topic(group, setup) for key, group in groups.items()}
    marks = {}
    for (collection, system), group in groups.items():
        others = {}
        for name in references.get(system, ()):
            if (collection, name) in values:
                others[name] = values[collection, name]
        # Only a mixture is compared with the system itself, which is the neural score.
        without_itself = dict(others)
        without_itself.pop(system, None)
        alone = values[collection, system]
        mixture = values_by_topic(group, setup, is_mixture=True)
        marks[collection, system] = {
            BETTER: _different(alone, without_itself, 1),
            WORSE: _different(alone, without_itself, -1),
            MIXTURE_BETTER: _different(mixture, others, 1),
        }
    marked = []
    for result in results:
        key = result.cell.collection, result.cell.system
        marked.append(replace(result, marks=marks[key]))
    return marked


def _different(
    values: Values, others: Mapping[str, Values], sign: int
) -> dict[str, tuple[str, ...]]:
    """Return for each measure the systems that are significantly lower.

    With ``sign`` -1, return those that are significantly higher.
    """
    systems = defaultdict(list)
    for measure, of_topics in values.items():
        for name, other in others.items():
            others_topics = other[measure]
            if not sign * (of_topics.mean() - others_topics.mean()) > 0:
                continue
            p = randomization_test(
                of_topics.tolist(), others_topics.tolist(), permutations=PERMUTATIONS
            )
            if p < LEVEL:
                systems[measure].append(name)
    return {measure: tuple(names) for measure, names in systems.items()}


def values_by_topic(
    results: Sequence[Result],
    setup: Setup,
    *,
    is_mixture: bool = False,
) -> Values:
    """Return the values of a system or its mixture for each topic, averaged over seeds.

    There are none if there are no runs or no judgments.
    """
    collection = setup.collection(results[0].cell.collection)
    file_of = setup.mixture_file if is_mixture else setup.run_file
    if collection.qrels is None:
        return {}
    runs = []
    for result in results:
        path = file_of(result.cell)
        if path is not None:
            run = read_run(path)
            runs.append(evaluate(collection.qrels, run, collection.measures))
    if not runs:
        return {}
    return {
        measure: np.mean([list(run[measure].values()) for run in runs], axis=0)
        for measure in runs[0]
    }
