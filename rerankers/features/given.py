"""What a first stage says of given candidates: by scores, by their order, or not at all.

The scores of search engines have no common scale, so none of their own unit is read, and a list in
the order of an engine without its scores is worth nearly as much.
"""

import numpy as np
import numpy.typing as npt

from rerankers.features._candidates import FEWEST_COMPARED, CandidateList, higher, minmax, z_score
from rerankers.pairs import FIRST_STAGE, ORDER

NAMES = ("minmax", "z", "log_rank", "rank_share", "log_size")
"""
``minmax``: (s − min) / (max − min) of the first-stage score s, in [0, 1].
``z``: (s − mean) / standard deviation (with the divisor N).
``log_rank``: ln(1 + number of candidates before this one), by scores or by the given order.
``rank_share``: this number / N, in [0, 1).
``log_size``: ln N, the same for all short lists.
The first two are NaN without scores, the next two without an order as well. The order of a
list of fewer than ``FEWEST_COMPARED`` candidates is none.
"""

SIGNALS = (FIRST_STAGE,)
"""It also reads ``ORDER``, and does without either."""


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 5]."""
    columns = np.full((len(NAMES), len(candidates)), np.nan)
    scores, order = candidates.known(FIRST_STAGE), candidates.known(ORDER)
    if scores is not None:
        known = scores.astype(np.float64)
        columns[:2] = minmax(known), z_score(known)
        order = -scores
    if order is not None:
        before = higher(-order)
        columns[2:4] = np.log1p(before), before / max(1, len(before))
    columns[4] = np.log(max(len(candidates), FEWEST_COMPARED - 1, 1))
    return columns.T.astype(np.float32)
