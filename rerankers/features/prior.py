"""Rank of a post in the runs that are reranked."""

import numpy as np
import numpy.typing as npt

from rerankers.features._candidates import CandidateList
from rerankers.pairs import PRIOR

NAMES = ("rank",)
"""``rank``: mean over the runs of 1 / ln(rank + 1), 0 for a run without the post; in [0, 1.44].
Severyn & Moschitti (2015), section 5, "submission run as a feature"."""

SIGNALS = (PRIOR,)


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 1]."""
    return candidates.signal(PRIOR).reshape(-1, 1).astype(np.float32)
