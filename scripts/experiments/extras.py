"""Functions that a table names as ``finish``: marks of significance and additional measures."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import numpy as np
import numpy.typing as npt

from experiments.answers import QUESTIONS, question_curve
from experiments.cells import BETTER, MIXTURE_BETTER, WORSE, Cell, Result, Setup, means
from experiments.left_out import Judged, judgments, reliability
from experiments.rendering import results_of
from experiments.tables import CLEAN, Table
from pipeline.collections import named
from pipeline.collections.collection import default_vectors
from pipeline.collections.trec import Qrels, Run, best_of, read_run
from pipeline.evaluation.measures import Evaluator
from pipeline.evaluation.significance import randomization_test
from pipeline.explanation.contributions import shares
from rerankers import checkpoint as checkpoints
from rerankers.network import Network
from rerankers.text.vectors import read_vectors
from rerankers.text.words import words
from rerankers.trees.boosting import Trees

Finish = Callable[[Table, Sequence[Result], Setup], list[Result]]

LEVEL = 0.05
PERMUTATIONS = 20_000  # Enough to tell p to within .003 around the level
Values = Mapping[str, npt.NDArray[np.float64]]  # Measure -> a value per topic


def finished(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with the table's marks and additional measures."""
    return FINISH[table.finish](table, results, setup) if table.finish else list(results)


def _with(result: Result, measures: Mapping[str, float]) -> Result:
    return replace(result, measures={**result.measures, **measures})


def significance(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with marks against the table's marked systems.

    By Fisher's two-sided paired randomization test over topics, p < .05, uncorrected as in the
    papers' tables. With several seeds, a topic's value is the mean over them.
    """
    return marked(results, [*table.better, *table.worse], setup)


def marked(results: Sequence[Result], references: Sequence[str], setup: Setup) -> list[Result]:
    """The results with marks against some systems, as far as these have results and judgments."""
    systems: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        systems.setdefault((result.cell.collection, result.cell.system), []).append(result)
    collections = [setup.collection(name) for name in dict.fromkeys(name for name, _ in systems)]
    judges = {c.name: Evaluator(c.qrels, c.measures) for c in collections if c.qrels is not None}
    values = {
        (name, system): values_of(seeds, judges[name], setup)
        for (name, system), seeds in systems.items()
        if name in judges
    }
    marks = {}
    for name, system in values:
        others = {other: values[name, other] for other in references if (name, other) in values}
        mixture = values_of(systems[name, system], judges[name], setup, is_mixture=True)
        marks[name, system] = {MIXTURE_BETTER: _compare(mixture, others, operator.gt)}
        # Only a mixture is compared with its own neural score.
        others.pop(system, None)
        marks[name, system][BETTER] = _compare(values[name, system], others, operator.gt)
        marks[name, system][WORSE] = _compare(values[name, system], others, operator.lt)
    return [
        replace(result, marks=marks.get((result.cell.collection, result.cell.system), {}))
        for result in results
    ]


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
    """Values per topic of a system, or of its mixture if it has one; means over seeds."""
    file_of = setup.mixture_file if is_mixture else setup.run_file
    runs = [evaluator(read_run(path)) for r in results if (path := file_of(r.cell))]
    return {
        measure: np.mean([list(run[measure].values()) for run in runs], axis=0)
        for measure in (evaluator.measures if runs else ())
    }


_HASHTAG = re.compile(r"(?:^|\s)##?\s?\w")


def sizes(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """Sizes of the collections, counted over the official run, as measures."""
    known = set(read_vectors(default_vectors(setup.data)).words)
    done = []
    for result in results:
        collection = setup.collection(result.cell.collection)
        run, qrels = read_run(collection.runs["ql"]), collection.qrels
        posts = {post.doc_id: post for post in collection.posts()}
        pairs = [(query_id, posts[doc_id]) for query_id, of in run.items() for doc_id in of]
        distinct = {word for _, post in pairs for word in words(post.text)}
        measures: dict[str, float] = {
            "topics": len(run),
            "query-document pairs": len(pairs),
            "unique words": len(distinct),
            "unique OOV words": len(distinct - known),
            "URLs": sum(bool(post.url) for _, post in pairs),
            "hashtags": sum(bool(_HASHTAG.search(post.text)) for _, post in pairs),
        }
        if qrels is not None:
            relevant = (qrels.get(query_id, {}).get(post.doc_id, 0) > 0 for query_id, post in pairs)
            measures["relevant documents"] = sum(relevant)
        done.append(replace(result, measures=measures))
    return done


def clean_questions(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results, and those of the same runs on the clean questions alone.

    The others change neither training nor the choice of the epoch: any ranking is worth the same.
    """
    done = list(results)
    for result in results:
        clean = CLEAN.get(result.cell.collection, "")
        if result.measures and clean in table.collections:
            collection = setup.collection(clean)
            qrels, run = collection.qrels or {}, read_run(setup.run_file(result.cell))
            judged = {query_id: scores for query_id, scores in run.items() if query_id in qrels}
            cell = replace(result.cell, collection=clean)
            measures = means(qrels, judged, collection.measures)
            done.append(replace(result, cell=cell, measures=measures))
    return done


def question_curves(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with AP by α as measures, ``stackfaq 0.05`` and so on."""
    folder = named.data_directory(setup.data) / "general"
    done = []
    for result in results:
        model = cast(Network, checkpoints.load(setup.checkpoint(result.cell)))
        curves: dict[str, float] = {}
        for name, judged_only in QUESTIONS.items():
            curve = question_curve(folder / name, judged_only, model)
            curves |= {f"{name} {alpha:.2f}": round(value, 4) for alpha, value in curve.items()}
        done.append(replace(result, measures=curves))
    return done


def stages(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with recall and marks against the row before."""
    measured = []
    for result in results:
        qrels = setup.collection(result.cell.collection).qrels
        run = read_run(setup.run_file(result.cell))
        added = {} if qrels is None else {"recall": round(recall(qrels, run), 4)}
        measured.append(_with(result, added))
    done = results_of(table.systems[0], measured)
    for before, system in pairwise(table.systems):
        both = [*results_of(before, measured), *results_of(system, measured)]
        done += results_of(system, marked(both, [before.name], setup))
    return done


def recall(qrels: Qrels, run: Run) -> float:
    """Share of all relevant posts of all topics among the first 1000 of their topic, or 0."""
    relevant = {(q, d) for q, grades in qrels.items() for d, grade in grades.items() if grade > 0}
    best = {(q, d) for q, scores in best_of(run, 1000).items() for d in scores}
    return len(relevant & best) / max(1, len(relevant))


def importances(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with the importance of the family that each leaves out."""
    by_seed = {}
    for whole in results_of(table.systems[0], results):
        model = cast(Trees, checkpoints.load(setup.checkpoint(whole.cell)))
        by_seed[whole.cell.seed] = shares(model.importances())
    done = []
    for result in results:
        share = by_seed.get(result.cell.seed, {}).get(result.cell.system.removeprefix("- "))
        done.append(_with(result, {} if share is None else {"importance": round(share, 4)}))
    return done


def calibration(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results of models with their reliability, calibrated on the other collections."""
    judged: dict[Cell, Judged] = {}
    for cell in (result.cell for result in results):
        if cell.system != table.systems[0].name:
            qrels = judgments(setup.collection(cell.collection))
            judged[cell] = read_run(setup.run_file(cell)), qrels
    done = []
    for result in results:
        own, name = judged.get(result.cell), result.cell.collection
        others = [of for cell, of in judged.items() if cell.collection != name]
        done.append(_with(result, reliability(own, others)) if own and others else result)
    return done


_ALL = sizes, significance, clean_questions, question_curves, stages, importances, calibration
FINISH: Mapping[str, Finish] = {function.__name__: function for function in _ALL}
