"""What the first stage thinks of a post: query likelihood, where that found the candidates.

The feature "QL" of Rao et al. (2019), section 4.2. The paper does not say how scores of different
topics were made comparable, so the place in the topic's list comes along.
"""

import numpy as np
import numpy.typing as npt

from rerankers.base import FIRST_STAGE
from rerankers.features._candidates import CandidateList, higher

NAMES = ("score", "minmax", "reciprocal_rank")
"""
``score``: s, as the run has it, in its own unit.
``minmax``: (s − min) / (max − min) over the topic's candidates, in [0, 1]; 0 if all are equal.
``reciprocal_rank``: 1 / (1 + number of the topic's candidates with a higher score), in (0, 1].
"""

SIGNALS = (FIRST_STAGE,)


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 3]."""
    scores = candidates.signal(FIRST_STAGE)
    minmax, reciprocal_rank = candidates.minmax(FIRST_STAGE), 1.0 / (1 + higher(scores))
    return np.stack([scores, minmax, reciprocal_rank], axis=1).astype(np.float32)
