"""Interpolation of neural and first-stage scores of runs.

    score = λ · NN + (1 − λ) · LM

For the source and the scaling of each topic's scores to [0, 1] see
:mod:`rerankers.interpolation`. λ is tuned on training topics by :mod:`pipeline.training.tuning`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.collections.trec import Run, single_precision
from pipeline.errors import DataError, UsageError
from rerankers.interpolation import minmax, mix

Scores = Mapping[str, float]
ManyScores = Mapping[str, Scores]


def normalize(scores: Scores, query_id: str = "?") -> dict[str, float]:
    """One topic's scores, scaled to [0, 1]; raises DataError for NaN and infinite ones."""
    single_precision(scores, query_id)
    return dict(zip(scores, minmax([*scores.values()]), strict=True))


def interpolate(lexical: ManyScores, neural: ManyScores, weight: float) -> Run:
    """``weight`` · neural + (1 − ``weight``) · lexical, for each document of the lexical run.

    Neural scores of other documents are ignored, also by the normalisation.

    Raises:
        UsageError: the weight is not from 0 to 1.
        DataError: a document has no neural score, or a score is NaN or infinite.
    """
    if not 0 <= weight <= 1:
        raise UsageError(f"λ: found {weight}, expected a number from 0 to 1")
    run: Run = {}
    for query_id, scores in lexical.items():
        first, new = normalized_pair(query_id, scores, neural)
        mixed = mix([*first.values()], [*new.values()], weight)
        run[query_id] = dict(zip(scores, mixed, strict=True))
    return run


def normalized_pair(
    query_id: str, lexical: Scores, neural: ManyScores
) -> tuple[dict[str, float], dict[str, float]]:
    """One topic's lexical and neural scores, normalised, for the same documents in one order."""
    found = neural.get(query_id, {})
    if missing := [doc_id for doc_id in lexical if doc_id not in found]:
        raise DataError(
            f"topic {query_id}: found no neural score for {len(missing)} of its {len(lexical)} "
            f"documents (the first is {missing[0]}), expected one for each"
        )
    new = {doc_id: found[doc_id] for doc_id in lexical}
    return normalize(lexical, query_id), normalize(new, query_id)
