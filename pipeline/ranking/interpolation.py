"""Interpolation of neural and first-stage scores.

    score = λ · NN + (1 − λ) · LM

J. Rao et al., Multi-Perspective Relevance Matching with Hierarchical ConvNets for Social Media
Search, AAAI 2019, equation 2. The two scales differ, so each topic's scores are normalised first.
λ is tuned on training topics by :mod:`pipeline.training.tuning`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.collections.trec import Run, single_precision
from pipeline.command.errors import DataError, UsageError
from rerankers import interpolation

Scores = Mapping[str, float]
ManyScores = Mapping[str, Scores]


def _minmax(scores: Scores) -> dict[str, float]:
    return dict(zip(scores, interpolation.minmax([*scores.values()]), strict=True))


_METHODS: dict[str, Callable[[Scores], dict[str, float]]] = {
    "minmax": _minmax,
    "none": dict,
}
NORMALIZATIONS = tuple(_METHODS)


def normalize(scores: Scores, method: str = "minmax", query_id: str = "?") -> dict[str, float]:
    """One topic's scores, normalised.

    * ``minmax``: :func:`rerankers.interpolation.minmax`.
    * ``none``: unchanged.
    """
    check_normalization(method)
    single_precision(scores, query_id)
    return _METHODS[method](scores) if scores else {}


def interpolate(
    lexical: ManyScores, neural: ManyScores, weight: float, normalization: str = "minmax"
) -> Run:
    """``weight`` · neural + (1 − ``weight``) · lexical, for each document of the lexical run.

    Neural scores of other documents are ignored, also by the normalisation.

    Raises:
        UsageError: the weight is not from 0 to 1, or the normalisation is unknown.
        DataError: a document has no neural score, or a score is NaN or infinite.
    """
    if not 0 <= weight <= 1:
        raise UsageError(f"λ: found {weight}, expected a number from 0 to 1")
    check_normalization(normalization)
    return {
        query_id: mix(*normalized_pair(query_id, scores, neural, normalization), weight)
        for query_id, scores in lexical.items()
    }


def check_normalization(name: str) -> None:
    """Raise UsageError unless ``name`` is one of :data:`NORMALIZATIONS`."""
    if name not in NORMALIZATIONS:
        raise UsageError(
            f"normalisation: found {name!r}, expected one of {', '.join(NORMALIZATIONS)}"
        )


def normalized_pair(
    query_id: str, lexical: Scores, neural: ManyScores, normalization: str
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
        normalize(lexical, normalization, query_id),
        normalize({doc_id: found[doc_id] for doc_id in lexical}, normalization, query_id),
    )


def mix(lexical: Scores, neural: Scores, weight: float) -> dict[str, float]:
    """Equation 2 for one topic, from normalised scores of the same documents."""
    new = [neural[doc_id] for doc_id in lexical]
    return dict(zip(lexical, interpolation.mix([*lexical.values()], new, weight), strict=True))
