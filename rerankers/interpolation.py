"""Interpolation of neural and first-stage scores: λ · NN + (1 − λ) · LM.

J. Rao et al., Multi-Perspective Relevance Matching with Hierarchical ConvNets for Social Media
Search, AAAI 2019, equation 2. The two scales differ, so each list's scores are normalised first.
"""

from collections.abc import Sequence


def minmax(scores: Sequence[float]) -> list[float]:
    """(s − min) / (max − min) of each score, from 0 to 1; 0.5 if all are equal. Libraries choose 0,
    0.5 or 1 then; a constant does not change a ranking."""
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    if low == high:
        return [0.5] * len(scores)
    return [(score - low) / (high - low) for score in scores]


def mix(lexical: Sequence[float], neural: Sequence[float], weight: float) -> list[float]:
    """``weight`` · neural + (1 − ``weight``) · lexical, of normalised scores in the same order."""
    both = zip(lexical, neural, strict=True)
    return [weight * new + (1 - weight) * first for first, new in both]
