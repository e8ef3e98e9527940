"""What a ranker thinks of a post: ``signal:NAME`` has the scores that it calls NAME.

Scores of two rankers, or of two topics, have no common scale. Each of these features gives them
one, as runs are made comparable before they are fused: min-max and the standard score (Montague &
Aslam 2001, "Relevance score normalization for metasearch", which calls them standard and ZMUV).
"""

import re

import numpy as np
import numpy.typing as npt

from rerankers.errors import RerankerError
from rerankers.features._candidates import CandidateList, higher, minmax

NAMES = ("gap", "minmax", "z", "log_rank")
"""
Over the topic's candidates that have a score:
``gap``: highest score − s, in the run's own unit; 0 or more.
``minmax``: (s − min) / (max − min), in [0, 1]; 0 if all are equal.
``z``: (s − mean) / standard deviation (of the candidates, no estimate from them); 0 if all are
equal.
``log_rank``: ln(1 + number of candidates with a higher score), 0 or more.
All are NaN for a candidate without a score, whose signal is NaN, and where there is no such signal.
"""

PARAMETER = "NAME"


def family(parameter: str) -> "Family":
    """The family of the scores of this name.

    Raises:
        RerankerError: it is no name.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", parameter):
        raise RerankerError(
            f"found the feature family signal with the name {parameter!r}, expected signal:NAME, "
            "NAME that of a ranker's scores, in letters, digits, _ and -, as in signal:rm3"
        )
    return Family(parameter)


class Family:
    """Features of the scores ``name``; see :class:`rerankers.features.Family`."""

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
            values[known] = _features(signal[known].astype(np.float64))
        return values


def _features(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """[N, 4] of N scores, at least one."""
    z = (scores - scores.mean()) / (scores.std() or np.inf)
    columns = [scores.max() - scores, minmax(scores), z, np.log1p(higher(scores))]
    return np.stack(columns, axis=1)
