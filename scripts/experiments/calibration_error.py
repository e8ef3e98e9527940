"""Error margins of gains, and calibration errors, for the forms of ``left_out.py``."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from experiments.added_measures import with_measures
from experiments.cells import Judged, Result, Setup
from experiments.left_out import FIRST_STAGES
from experiments.tables import Table
from tweetrerank.pipeline.collections.trec import Qrels, Run
from tweetrerank.pipeline.evaluation.measures import evaluate
from tweetrerank.pipeline.ranking.interpolation import Calibration
from tweetrerank.pipeline.training.cross_validation import calibrate

BINS = 10  # Number of equal parts of [0, 1]


def calibration(
    table: Table,
    results: Sequence[Result],
    setup: Setup,
) -> list[Result]:
    """Return the results with a margin of error, and for models a calibration error.

    A model is calibrated on all collections except the one that it is measured on.
    """
    rankings = {result.cell: setup.judged(result.cell) for result in results}
    ranking_of_form = {}
    for cell, ranking in rankings.items():
        ranking_of_form[cell.reranker, cell.collection] = ranking

    @cache
    def calibration_without(collection: str, is_fusion: bool) -> Calibration:
        others = []
        for cell, ranking in rankings.items():
            is_alike = (cell.reranker == "fusion") == is_fusion
            is_model = first_stage_of(cell.reranker) is not None
            if is_alike and is_model and cell.collection != collection:
                others.append(ranking)
        return calibrated(others)

    def measures(result: Result) -> dict[str, float]:
        form, collection = result.cell.reranker, result.cell.collection
        ranking = rankings[result.cell]
        first_stage = first_stage_of(form)
        if first_stage is None:
            return {"±": margin(ranking, None)}
        first = ranking_of_form.get((first_stage, collection))
        model_calibration = calibration_without(collection, form == "fusion")
        error = calibration_error(ranking, model_calibration)
        return {"±": margin(ranking, first), "ECE": error}

    return with_measures(results, measures)


def margin(ranking: Judged, first: Judged | None) -> float:
    """Return half the width of the 95 % interval of the mean gain in AP.

    The gain is over the ranking ``first``. If that is None, the interval is that of the
    mean AP itself. It is a normal approximation over topics.
    """
    run, qrels = ranking
    base_run = first[0] if first else {}
    values = evaluate(qrels, run, ["AP"])["AP"]
    base = evaluate(qrels, base_run, ["AP"])["AP"]
    gains = [value - base[topic] for topic, value in values.items()]
    return round(1.96 * float(np.std(gains, ddof=1)) / len(gains) ** 0.5, 4)


def first_stage_of(form: str) -> str | None:
    """Return the first stage of a form, or None if the form is a first stage itself."""
    if form in FIRST_STAGES:
        return None
    return form.rpartition("/")[0] or "bm25"


def calibrated(rankings: Sequence[Judged]) -> Calibration:
    """Return the calibration fitted to several rankings together."""
    scores: Run = {}
    grades: Qrels = {}
    for number, (run, qrels) in enumerate(rankings):
        for query_id, of_topic in run.items():
            scores[f"{number}/{query_id}"] = of_topic
        for query_id, judgments in qrels.items():
            grades[f"{number}/{query_id}"] = judgments
    return calibrate(scores, grades) or Calibration()


def calibration_error(ranking: Judged, model_calibration: Calibration) -> float:
    """Return the expected calibration error of a ranking's probabilities.

    The probabilities are divided into :data:`BINS`. The error is the mean, over all
    pairs, of |share of relevant pairs - mean probability| in the bin of the pair.
    """
    run, qrels = ranking
    slope, intercept = model_calibration
    scores: list[float] = []
    is_relevant: list[bool] = []
    for query_id, of_topic in run.items():
        grades = qrels[query_id]
        scores += of_topic.values()
        is_relevant += [grades.get(doc_id, 0) > 0 for doc_id in of_topic]
    relevant = np.array(is_relevant, dtype=np.float64)  # [P]
    logits = slope * np.array(scores, dtype=np.float64) + intercept
    probabilities = 1 / (1 + np.exp(-logits))
    bins = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    differences = np.bincount(bins, relevant - probabilities, BINS)
    return round(float(np.abs(differences).sum()) / len(scores), 4)
