"""Interpolation of neural and first-stage scores.

    score = λ · NN + (1 − λ) · LM

J. Rao et al., Multi-Perspective Relevance Matching with Hierarchical ConvNets for Social Media
Search, AAAI 2019, equation 2. The two scales differ, so each topic's scores are scaled to [0, 1]
first (:func:`rerankers.interpolation.minmax`). λ is tuned on training topics by
:mod:`pipeline.training.tuning`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.collections.trec import Run, single_precision
from pipeline.errors import DataError, UsageError
from rerankers import interpolation

Scores = Mapping[str, float]
ManyScores = Mapping[str, Scores]


def normalize(scores: Scores, query_id: str = "?") -> dict[str, float]:
    """One topic's scores, scaled to [0, 1]; raises DataError for NaN and infinite ones."""
    single_precision(scores, query_id)
    return dict(zip(scores, interpolation.minmax([*scores.values()]), strict=True))


def interpolate(lexical: ManyScores, neural: ManyScores, weight: float) -> Run:
    """``weight`` · neural + (1 − ``weight``) · lexical, for each document of the lexical run.

    Neural scores of other documents are ignored, also by the normalisation.

    Raises:
        UsageError: the weight is not from 0 to 1.
        DataError: a document has no neural score, or a score is NaN or infinite.
    """
    if not 0 <= weight <= 1:
        raise UsageError(f"λ: found {weight}, expected a number from 0 to 1")
    return {
        query_id: mix(*normalized_pair(query_id, scores, neural), weight)
        for query_id, scores in lexical.items()
    }


def normalized_pair(
    query_id: str, lexical: Scores, neural: ManyScores
) -> tuple[dict[str, float], dict[str, float]]:
    """One topic's lexical and neural scores, normalised, for the same documents in one order.

    Raises:
        DataError: a document has no neural score, or a score is NaN or infinite.
    """
    found = neural.get(query_id, {})
    if missing := [doc_id for doc_id in lexical if doc_id not in found]:
        raise DataError(
            f"topic {query_id}: found no neural score for {len(missing)} of its {len(lexical)} "
            f"documents (the first is {missing[0]}), expected one for each"
        )
    return (
        normalize(lexical, query_id),
        normalize({doc_id: found[doc_id] for doc_id in lexical}, query_id),
    )


def mix(lexical: Scores, neural: Scores, weight: float) -> dict[str, float]:
    """Equation 2 for one topic, from normalised scores of the same documents."""
    new = [neural[doc_id] for doc_id in lexical]
    return dict(zip(lexical, interpolation.mix([*lexical.values()], new, weight), strict=True))
