"""Numbers beside the text: likes, stars, a price, a time."""

from __future__ import annotations

import re

import numpy as np

from rerankers.errors import RerankerError
from rerankers.features.candidates import (
    PARAMETRIC,
    CandidateList,
    Columns,
    Family,
    higher,
    z_score,
)
from rerankers.pairs import NUMBER


def number(name: str) -> Family:
    """A number of each post, and how it compares with those of the other candidates.

    ``value``: as it is, in single precision.
    ``rank_share``: share of the known numbers that are higher, in [0, 1).
    ``z``: standard score; 0 if all are equal.
    All are NaN for a post without the number, the last two for all posts of a short list.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise RerankerError(
            f"found the feature family number with the name {name!r}, expected number:NAME with "
            "the name of a field in letters, digits, _, - and ., as in number:likes"
        )

    def columns(candidates: CandidateList) -> Columns:
        found = np.full((3, len(candidates)), np.nan)
        values = candidates.signals.get(NUMBER + name)
        if values is not None and (known := ~np.isnan(values)).any():
            numbers = values[known].astype(np.float64)
            shares = higher(numbers) / len(numbers)
            found[:, known] = numbers, shares, z_score(numbers)
            found[1:] *= candidates.compared
        return [*found]

    return Family(("value", "rank_share", "z"), (NUMBER + name,), columns)


PARAMETRIC["number"] = "NAME", number
