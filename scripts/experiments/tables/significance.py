"""Marks of significance: systems that a system is significantly better or worse than.

Fisher's two-sided paired randomization test over topics, p < .05, uncorrected, as in the papers'
tables. With several seeds, a topic's value is the mean over them.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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
    done = {}
    for name, seeds in systems.items():
        others = {other: values[other] for other in references if other in systems}
        # Only a mixture is compared with its own neural score.
        mixture = mixture_values_of(seeds, evaluator, setup) or {}
        mixture_better_than = _compare(mixture, others, operator.gt)
        others.pop(name, None)
        better_than = _compare(values[name], others, operator.gt)
        worse_than = _compare(values[name], others, operator.lt)
        for result in seeds:
            done[result.cell] = dataclasses.replace(
                result,
                better_than=better_than,
                worse_than=worse_than,
                mixture_better_than=mixture_better_than,
            )
    return done


def _compare(
    ours: Values, others: Mapping[str, Values], relation: Callable[[float, float], bool]
) -> dict[str, tuple[str, ...]]:
    """Measure -> the others to which the relation of the means holds significantly."""
    found = {}
    for measure, values in ours.items():
        found[measure] = tuple(
            name
            for name, theirs in others.items()
            if relation(values.mean(), theirs[measure].mean())
            and _p_value(values, theirs[measure]) < LEVEL
        )
    return {measure: names for measure, names in found.items() if names}


def _p_value(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    return randomization_test(a.tolist(), b.tolist(), permutations=PERMUTATIONS)


def values_of(results: Sequence[Result], evaluator: Evaluator, setup: Setup) -> Values:
    """Values per topic of a system's neural runs, as means over seeds."""
    return _values([setup.run_file(result.cell) for result in results], evaluator)


def mixture_values_of(
    results: Sequence[Result], evaluator: Evaluator, setup: Setup
) -> Values | None:
    """The same of the mixtures with query likelihood, None without any."""
    paths = [path for result in results if (path := setup.mixture_file(result.cell))]
    return _values(paths, evaluator) if paths else None


def _values(paths: Sequence[Path], evaluator: Evaluator) -> Values:
    runs = [evaluator(read_run(path)) for path in paths]
    return {
        measure: np.mean([list(run[measure].values()) for run in runs], axis=0)
        for measure in runs[0]
    }
