"""Functions that a table names as ``finish``: marks of significance and additional measures."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from rerankers.models._feature_model import FeatureModel

from experiments.answers import QUESTIONS, question_curve
from experiments.cells import Cell, Result, Setup
from experiments.rendering import results_of
from experiments.tables import CLEAN, Table
from pipeline.collections import named
from pipeline.collections.trec import Qrels, Run, best_of, read_run
from pipeline.evaluation.measures import Evaluator, evaluate, mean
from pipeline.evaluation.significance import randomization_test
from pipeline.explanation.contributions import shares
from rerankers import checkpoint as checkpoints

Finish = Callable[[Table, Sequence[Result], Setup], list[Result]]

LEVEL = 0.05
PERMUTATIONS = 20_000  # Enough to tell p to within .003 around the level
DEPTH = 1000  # Depth of recall
Values = Mapping[str, npt.NDArray[np.float64]]  # Measure -> a value per topic


def finished(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with the table's marks and additional measures."""
    return FINISH[table.finish](table, results, setup) if table.finish else list(results)


# Significance: Fisher's two-sided paired randomization test over topics, p < .05, uncorrected as in
# the papers' tables. With several seeds, a topic's value is the mean over them.


def significance(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with marks against the table's marked systems."""
    return marked(results, [*table.better, *table.worse], setup)


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
        done |= {result.cell: replace(result, **marks) for result in seeds}
    return done


def _compare(
    ours: Values, others: Mapping[str, Values], relation: Callable[[float, float], bool]
) -> dict[str, tuple[str, ...]]:
    """Measure -> the others to which the relation of the means holds significantly."""
    marks: dict[str, tuple[str, ...]] = {}
    for measure, values in ours.items():
        for name, others_values in others.items():
            theirs = others_values[measure]
            if relation(values.mean(), theirs.mean()):
                p = randomization_test(values.tolist(), theirs.tolist(), permutations=PERMUTATIONS)
                if p < LEVEL:
                    marks[measure] = (*marks.get(measure, ()), name)
    return marks


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


# Answer selection


def clean_questions(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results, and those of the same runs on the clean questions alone.

    The clean parts lack questions with no relevant answer or nothing else. These change neither
    the training nor the choice of the epoch: every ranking of them is worth the same.
    """
    done = list(results)
    for result in results:
        clean = CLEAN.get(result.cell.collection, "")
        if result.measures and clean in table.collections:
            collection = setup.collection(clean)
            qrels, run = collection.qrels or {}, read_run(setup.run_file(result.cell))
            judged = {query_id: scores for query_id, scores in run.items() if query_id in qrels}
            values = evaluate(qrels, judged, collection.measures)
            measures = {name: round(mean(of_topics), 4) for name, of_topics in values.items()}
            cell = replace(result.cell, collection=clean)
            done.append(replace(result, cell=cell, measures=measures))
    return done


def question_curves(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with AP by α as measures, ``stackfaq 0.05`` and so on."""
    folder = named.data_directory(setup.data) / "general"
    done = []
    for result in results:
        model = checkpoints.load(setup.checkpoint(result.cell))
        curves = {
            f"{name} {alpha:.2f}": round(value, 4)
            for name, judged_only in QUESTIONS.items()
            for alpha, value in question_curve(folder / name, judged_only, model).items()
        }
        done.append(replace(result, measures=curves))
    return done


# The learned fusion


def stages(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with recall and marks against the row before."""
    measured = [_with_recall(result, setup) for result in results]
    done = results_of(table.systems[0], measured)
    for before, system in pairwise(table.systems):
        both = [*results_of(before, measured), *results_of(system, measured)]
        done += results_of(system, marked(both, [before.name], setup))
    return done


def _with_recall(result: Result, setup: Setup) -> Result:
    qrels = setup.collection(result.cell.collection).qrels
    if qrels is None:
        return result
    value = round(recall(qrels, read_run(setup.run_file(result.cell))), 4)
    return replace(result, measures=result.measures | {"recall": value})


def recall(qrels: Qrels, run: Run, depth: int = DEPTH) -> float:
    """Share of all relevant posts of all topics among the first ``depth`` of their topic, or 0."""
    relevant = {(q, d) for q, grades in qrels.items() for d, grade in grades.items() if grade > 0}
    best = {(q, d) for q, scores in best_of(run, depth).items() for d in scores}
    return len(relevant & best) / max(1, len(relevant))


def importances(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with the importance of the family that each leaves out."""
    by_seed = {}
    for whole in results_of(table.systems[0], results):
        model = cast(FeatureModel, checkpoints.load(setup.checkpoint(whole.cell)).model)
        by_seed[whole.cell.seed] = shares(model.importances())
    done = []
    for result in results:
        share = by_seed.get(result.cell.seed, {}).get(result.cell.system.removeprefix("- "))
        added = {} if share is None else {"importance": round(share, 4)}
        done.append(replace(result, measures=result.measures | added))
    return done


FINISH: Mapping[str, Finish] = {
    function.__name__: function
    for function in (significance, clean_questions, question_curves, stages, importances)
}
