"""Functions that a table names as ``finish``: marks of significance and additional measures."""

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import cast

import numpy as np
import numpy.typing as npt

from experiments.answers import QUESTIONS, question_curve
from experiments.cells import BETTER, MIXTURE_BETTER, WORSE, Cell, Result, Setup, means
from experiments.left_out import Judged, judgments, reliability
from experiments.tables import CLEAN, Table
from pipeline.collections import named
from pipeline.collections.collection import default_vectors
from pipeline.collections.trec import best_of, read_run
from pipeline.evaluation.measures import evaluate
from pipeline.evaluation.significance import randomization_test
from rerankers import checkpoint as checkpoints
from rerankers.networks.network import Network
from rerankers.text.vectors import read_vectors
from rerankers.text.words import words
from rerankers.trees.boosting import Trees
from rerankers.trees.contributions import shares

Finish = Callable[[Table, Sequence[Result], Setup], list[Result]]

LEVEL = 0.05
PERMUTATIONS = 20_000  # Enough to tell p to within .003 around the level
Values = Mapping[str, npt.NDArray[np.float64]]  # Measure -> a value per judged topic


def finished(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with the table's marks and additional measures."""
    return FINISH[table.finish](table, results, setup) if table.finish else list(results)


def significance(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with marks against the table's marked systems.

    By Fisher's two-sided paired randomization test over topics, p < .05, uncorrected as in the
    papers' tables. With several seeds, a topic's value is the mean over them.
    """
    references = [*table.better, *table.worse]
    return marked(results, {system.name: references for system in table.systems}, setup)


def marked(
    results: Sequence[Result], references: Mapping[str, Sequence[str]], setup: Setup
) -> list[Result]:
    """The results with marks against each system's references that have results and judgments."""
    seeds = defaultdict(list)
    for result in results:
        seeds[result.cell.collection, result.cell.system].append(result)
    values = {key: values_of(own, setup) for key, own in seeds.items()}
    marks = {}
    for (name, system), own in seeds.items():
        known = [other for other in references.get(system, ()) if (name, other) in values]
        others = {other: values[name, other] for other in known}
        mixture_better = _compare(values_of(own, setup, is_mixture=True), others, operator.gt)
        # Only a mixture is compared with its own neural score.
        others.pop(system, None)
        marks[name, system] = {
            BETTER: _compare(values[name, system], others, operator.gt),
            WORSE: _compare(values[name, system], others, operator.lt),
            MIXTURE_BETTER: mixture_better,
        }
    return [replace(r, marks=marks[r.cell.collection, r.cell.system]) for r in results]


def _compare(
    ours: Values, others: Mapping[str, Values], relation: Callable[[float, float], bool]
) -> dict[str, tuple[str, ...]]:
    """Measure -> the others to which the relation of the means holds significantly."""
    marks: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for (measure, values), (name, of) in product(ours.items(), others.items()):
        if relation(values.mean(), of[measure].mean()):
            pair = values.tolist(), of[measure].tolist()
            if randomization_test(*pair, permutations=PERMUTATIONS) < LEVEL:
                marks[measure] += (name,)
    return dict(marks)


def values_of(results: Sequence[Result], setup: Setup, *, is_mixture: bool = False) -> Values:
    """Values per topic of a system, or of its mixture if it has one; means over seeds."""
    collection = setup.collection(results[0].cell.collection)
    file_of = setup.mixture_file if is_mixture else setup.run_file
    runs = [
        evaluate(collection.qrels, read_run(path), collection.measures)
        for path in (file_of(result.cell) for result in results)
        if path and collection.qrels is not None
    ]
    return {
        measure: np.mean([list(run[measure].values()) for run in runs], axis=0)
        for measure in (runs[0] if runs else ())
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
            collection, run = setup.collection(clean), read_run(setup.run_file(result.cell))
            judged = {
                query_id: run[query_id] for query_id in collection.qrels or {} if query_id in run
            }
            measures = means(collection.qrels, judged, collection.measures)
            cell = replace(result.cell, collection=clean)
            done.append(replace(result, cell=cell, measures=measures))
    return done


def question_curves(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with AP by α as measures, ``stackfaq 0.05`` and so on."""
    folder = named.data_directory(setup.data) / "general"
    done = []
    for result in results:
        model = cast(Network, checkpoints.load(setup.checkpoint(result.cell)))
        curves = {
            f"{name} {alpha:.2f}": round(value, 4)
            for name, judged_only in QUESTIONS.items()
            for alpha, value in question_curve(folder / name, judged_only, model).items()
        }
        done.append(replace(result, measures=curves))
    return done


def stages(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with recall and marks against the row before."""
    measured = [_with(result, _recall(result, setup)) for result in results]
    before = {system.name: [other.name] for other, system in pairwise(table.systems)}
    return marked(measured, before, setup)


def _recall(result: Result, setup: Setup) -> dict[str, float]:
    """Share of all relevant posts of all topics among the first 1000 of their topic, or 0."""
    qrels = setup.collection(result.cell.collection).qrels
    if qrels is None:
        return {}
    run = best_of(read_run(setup.run_file(result.cell)), 1000)
    relevant = [
        doc_id in run.get(q, {})
        for q, grades in qrels.items()
        for doc_id, grade in grades.items()
        if grade > 0
    ]
    return {"recall": round(sum(relevant) / max(1, len(relevant)), 4)}


def importances(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with the importance of the family that each leaves out."""
    of_families = {}
    for whole in (r for r in results if r.cell.system == table.systems[0].name):
        model = cast(Trees, checkpoints.load(setup.checkpoint(whole.cell)))
        for name, share in shares(model.importances()).items():
            of_families[f"- {name}", whole.cell.seed] = {"importance": round(share, 4)}
    return [_with(r, of_families.get((r.cell.system, r.cell.seed), {})) for r in results]


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


def _with(result: Result, measures: Mapping[str, float]) -> Result:
    return replace(result, measures={**result.measures, **measures})


_ALL = sizes, significance, clean_questions, question_curves, stages, importances, calibration
FINISH: Mapping[str, Finish] = {function.__name__: function for function in _ALL}
