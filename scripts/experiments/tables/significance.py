"""Marks of significance: systems that a system is significantly better or worse than.

Fisher's two-sided paired randomization test over topics, p < .05, uncorrected, as in the papers'
tables. With several seeds, a topic's value is the mean over them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
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
    by_collection = sorted(results, key=lambda result: result.cell.collection)
    for name, of_collection in groupby(by_collection, lambda result: result.cell.collection):
        collection = setup.collection(name)
        qrels = collection.qrels
        if qrels is not None:
            evaluator = Evaluator(qrels, collection.measures)
            done |= _mark(list(of_collection), references, evaluator, setup)
    return [done.get(result.cell, result) for result in results]


def _mark(
    results: Sequence[Result], references: Sequence[str], evaluator: Evaluator, setup: Setup
) -> dict[Cell, Result]:
    """Cell of one collection -> its result with marks."""
    systems: dict[str, list[Result]] = {}
    for result in results:
        systems.setdefault(result.cell.system, []).append(result)
    others = {
        name: values_of(systems[name], evaluator, setup) for name in references if name in systems
    }
    done = {}
    for name, seeds in systems.items():
        ours = values_of(seeds, evaluator, setup)
        mixture = mixture_values_of(seeds, evaluator, setup)
        rest = {other: values for other, values in others.items() if other != name}
        for result in seeds:
            done[result.cell] = dataclasses.replace(
                result,
                better_than=_compare(ours, rest, lambda a, b: a > b),
                worse_than=_compare(ours, rest, lambda a, b: a < b),
                # A mixture is also compared with its own neural score.
                mixture_better_than=_compare(mixture or {}, others, lambda a, b: a > b),
            )
    return done


def _compare(
    ours: Values, others: Mapping[str, Values], relation: Callable[[float, float], bool]
) -> dict[str, tuple[str, ...]]:
    """Measure -> the others to which the relation of the means holds significantly."""
    found = {}
    for measure, values in ours.items():
        names = tuple(
            name
            for name, theirs in others.items()
            if relation(float(values.mean()), float(theirs[measure].mean()))
            and _p_value(values, theirs[measure]) < LEVEL
        )
        if names:
            found[measure] = names
    return found


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
