"""Marks of significance: systems that a system is significantly better or worse than.

Fisher's two-sided paired randomization test over topics, p < .05, uncorrected, as in the papers'
tables. With several seeds, a topic's value is the mean over them.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.cells import Cell, Result, Setup
from pipeline.collections.trec import read_run
from pipeline.evaluation.measures import Evaluator
from pipeline.evaluation.significance import randomization_test

LEVEL = 0.05
PERMUTATIONS = 20_000
"""Enough to tell p to within .003 around the level."""

Values = Mapping[str, npt.NDArray[np.float64]]
"""Measure -> a value per topic."""


def marked(results: Sequence[Result], references: Sequence[str], setup: Setup) -> list[Result]:
    """The results with marks against the systems ``references``, as far as these have results.

    A collection without judgments gets no marks.
    """
    done: dict[Cell, Result] = {}
    for name in dict.fromkeys(result.cell.collection for result in results):
        collection = setup.collection(name)
        if collection.qrels is not None:
            evaluator = Evaluator(collection.qrels, collection.measures)
            of_collection = [result for result in results if result.cell.collection == name]
            done |= _mark(of_collection, references, evaluator, setup)
    return [done.get(result.cell, result) for result in results]


def _mark(
    results: Sequence[Result], references: Sequence[str], evaluator: Evaluator, setup: Setup
) -> dict[Cell, Result]:
    """Cell of one collection -> its result with marks."""
    systems: dict[str, list[Result]] = {}
    for result in results:
        systems.setdefault(result.cell.system, []).append(result)
    values = {name: values_of(seeds, evaluator, setup) for name, seeds in systems.items()}
    done: dict[Cell, Result] = {}
    for name, seeds in systems.items():
        others = {other: values[other] for other in references if other in systems}
        # Only a mixture is compared with its own neural score.
        mixture = values_of(seeds, evaluator, setup, is_mixture=True)
        marks: dict[str, Any] = {"mixture_better_than": _compare(mixture, others, operator.gt)}
        others.pop(name, None)
        marks["better_than"] = _compare(values[name], others, operator.gt)
        marks["worse_than"] = _compare(values[name], others, operator.lt)
        done |= {result.cell: dataclasses.replace(result, **marks) for result in seeds}
    return done


def _compare(
    ours: Values, others: Mapping[str, Values], relation: Callable[[float, float], bool]
) -> dict[str, tuple[str, ...]]:
    """Measure -> the others to which the relation of the means holds significantly."""
    found: dict[str, tuple[str, ...]] = {}
    for measure, values in ours.items():
        for name, others_values in others.items():
            theirs = others_values[measure]
            if relation(values.mean(), theirs.mean()):
                p = randomization_test(values.tolist(), theirs.tolist(), permutations=PERMUTATIONS)
                if p < LEVEL:
                    found[measure] = (*found.get(measure, ()), name)
    return found


def values_of(
    results: Sequence[Result], evaluator: Evaluator, setup: Setup, *, is_mixture: bool = False
) -> Values:
    """Values per topic of a system, or of its mixture with query likelihood; means over seeds.

    Empty for a system that is not mixed.
    """
    file_of = setup.mixture_file if is_mixture else setup.run_file
    paths = [path for result in results if (path := file_of(result.cell))]
    runs = [evaluator(read_run(path)) for path in paths]
    return {
        measure: np.mean([list(run[measure].values()) for run in runs], axis=0)
        for measure in (evaluator.measures if runs else ())
    }
