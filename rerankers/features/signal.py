"""Scores of a ranker: ``signal:NAME`` reads the signal NAME.

Scores of different rankers or topics have no common scale, so they are normalised.
"""

import re

import numpy as np
import numpy.typing as npt

from rerankers.errors import RerankerError
from rerankers.features._candidates import CandidateList, normalised

NAMES = ("gap", "minmax", "z", "log_rank")
"""
Over the topic's candidates with a score:
``gap``: highest score − s, in the run's own unit; 0 or more.
``minmax``: (s − min) / (max − min), in [0, 1], and ``z``: the standard score; 0 if all are equal.
``log_rank``: ln(1 + number of candidates with a higher score), 0 or more.
All are NaN for a candidate whose signal is NaN, and for all candidates if the signal is missing.
"""

PARAMETER = "NAME"


def family(parameter: str) -> "Family":
    """The family of the signal with this name.

    Raises:
        RerankerError: this is no name.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", parameter):
        raise RerankerError(
            f"found the feature family signal with the name {parameter!r}, expected signal:NAME "
            "with the name of a ranker in letters, digits, _ and -, as in signal:rm3"
        )
    return Family(parameter)


class Family:
    """Features of the signal ``name``; see :class:`rerankers.features.Family`."""

    NAMES: tuple[str, ...] = NAMES

    def __init__(self, name: str) -> None:
        self.SIGNALS: tuple[str, ...] = (name,)

    def compute(self, candidates: CandidateList) -> npt.NDArray[np.float32]:
        """[N, 4]."""
        values = np.full((len(candidates), len(NAMES)), np.nan, dtype=np.float32)
        signal = candidates.signals.get(self.SIGNALS[0])
        if signal is None:
            return values
        known = ~np.isnan(signal)
        if known.any():
            scores = signal[known].astype(np.float64)
            values[known] = np.stack([scores.max() - scores, *normalised(scores)], axis=1)
        return values
