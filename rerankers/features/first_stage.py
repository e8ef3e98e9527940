"""Score of the first stage, which is query likelihood by default.

The feature "QL" of Rao et al. (2019), section 4.2. The paper leaves open how scores of different
topics become comparable; here the rank in the topic's list is a feature, too.
"""

import numpy as np
import numpy.typing as npt

from rerankers.features._candidates import CandidateList, higher
from rerankers.pairs import FIRST_STAGE

NAMES = ("score", "minmax", "reciprocal_rank")
"""
``score``: s, as in the run.
``minmax``: (s − min) / (max − min) over the topic's candidates, in [0, 1]; 0 if all are equal.
``reciprocal_rank``: 1 / (1 + number of the topic's candidates with a higher score), in (0, 1].
"""

SIGNALS = (FIRST_STAGE,)


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 3]."""
    scores = candidates.signal(FIRST_STAGE)
    minmax, reciprocal_rank = candidates.minmax(FIRST_STAGE), 1.0 / (1 + higher(scores))
    return np.stack([scores, minmax, reciprocal_rank], axis=1).astype(np.float32)
