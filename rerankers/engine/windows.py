"""Distinct windows of terms.

Posts of one topic repeat one another: retweets, words of the query, common phrases. The output of a
convolution depends only on the terms under its filter, so it is computed once for each distinct
window and looked up for every position that holds it.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from rerankers.text.ragged import Ragged

Ids = npt.NDArray[np.int64]


def windows_of(texts: Ragged, values: Ids, width: int) -> list[Ids]:
    """The windows of ``width`` places that start at each of the T places of texts.

    Args:
        values: [T] number above 0 of each place.

    Returns:
        Columns: ``values`` [T] at the windows' first place, second place, …; 0 beyond the end.
    """
    columns = [values]
    for shift in range(1, width):
        later = np.zeros_like(values)
        later[: max(0, len(values) - shift)] = values[shift:]
        later[texts.remaining <= shift] = 0
        columns.append(later)
    return columns


def used_ids(inputs: Iterable[Ragged]) -> Ids:
    """Every identifier above 0 in ``inputs``, ascending."""
    inputs = list(inputs)
    highest = max((int(ids.values.max(initial=0)) for ids in inputs), default=0)
    is_used = np.zeros(highest + 1, dtype=np.bool_)
    for ids in inputs:
        is_used[ids.values] = True
    is_used[0] = False
    return np.flatnonzero(is_used)
