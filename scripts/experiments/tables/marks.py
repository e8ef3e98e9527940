"""Which systems are significantly better or worse than others, from the runs of their cells.

Fisher's two-sided paired randomization test over topics, p < .05, without correction: as the
paper marks its tables. Where there are several seeds a topic's value is their mean.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from experiments.cells import Result, find_runs
from experiments.tables.contract import Workshop
from pipeline.collections import named
from pipeline.collections.trec import read_run
from pipeline.evaluation.measures import Evaluator
from pipeline.evaluation.significance import randomization_test

LEVEL = 0.05
PERMUTATIONS = 20_000
"""Enough to tell p to within .003 around the level."""

Values = Mapping[str, npt.NDArray[np.float64]]
"""Measure -> a value for each topic."""
Names = dict[str, tuple[str, ...]]
"""Measure -> names of systems."""


def marked(
    results: Sequence[Result], references: Sequence[str], workshop: Workshop
) -> list[Result]:
    """The same results, told apart from the systems ``references`` wherever these are there.

    A collection without judgments has no marks.
    """
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.cell.collection, []).append(result)
    new: dict[tuple[str, str, int], Result] = {}
    for name, of_collection in found.items():
        qrels = named.find(name, workshop.data).qrels
        if qrels is not None:
            evaluator = Evaluator(qrels, named.find(name, workshop.data).measures)
            new |= _mark(of_collection, references, evaluator, workshop)
    return [new.get(_key(result), result) for result in results]


def values_of(results: Sequence[Result], evaluator: Evaluator, workshop: Workshop) -> Values:
    """A value for each topic of the neural runs of one system's seeds: their mean."""
    return _values([_runs(result, workshop)[0] for result in results], evaluator)


def mixture_values_of(
    results: Sequence[Result], evaluator: Evaluator, workshop: Workshop
) -> Values | None:
    """The same of the mixtures with query likelihood, None if there are none."""
    paths = [path for result in results if (path := _runs(result, workshop)[1])]
    return _values(paths, evaluator) if paths else None


def _mark(
    results: Sequence[Result], references: Sequence[str], evaluator: Evaluator, workshop: Workshop
) -> dict[tuple[str, str, int], Result]:
    systems: dict[str, list[Result]] = {}
    for result in results:
        systems.setdefault(result.cell.system, []).append(result)
    others = {
        name: values_of(systems[name], evaluator, workshop)
        for name in references
        if name in systems
    }
    new = {}
    for name, seeds in systems.items():
        ours = values_of(seeds, evaluator, workshop)
        mixture = mixture_values_of(seeds, evaluator, workshop)
        rest = {other: values for other, values in others.items() if other != name}
        for result in seeds:
            new[_key(result)] = dataclasses.replace(
                result,
                better_than=_names(ours, rest, lambda a, b: a > b),
                worse_than=_names(ours, rest, lambda a, b: a < b),
                # A mixture may well be compared with the neural score that is in it.
                mixture_better_than=_names(mixture, others, lambda a, b: a > b) if mixture else {},
            )
    return new


def _names(
    ours: Values, others: Mapping[str, Values], is_so: Callable[[float, float], bool]
) -> Names:
    names = {}
    for measure, values in ours.items():
        names[measure] = tuple(
            other
            for other, theirs in others.items()
            if is_so(float(values.mean()), float(theirs[measure].mean()))
            and randomization_test(
                values.tolist(), theirs[measure].tolist(), permutations=PERMUTATIONS
            ) < LEVEL
        )  # fmt: skip
    return {measure: found for measure, found in names.items() if found}


def _values(paths: Sequence[Path], evaluator: Evaluator) -> Values:
    runs = [evaluator(read_run(path)) for path in paths]
    return {
        measure: np.mean([list(run[measure].values()) for run in runs], axis=0)
        for measure in runs[0]
    }


def _runs(result: Result, workshop: Workshop) -> tuple[Path, Path | None]:
    return find_runs(result.cell, workshop.directory, workshop.data)


def _key(result: Result) -> tuple[str, str, int]:
    return result.cell.system, result.cell.collection, result.cell.seed
