"""Scores and ranks of given candidates by their first stage, runs and other rankers; their numbers.

Scores of different rankers or topics have no common scale, so they are normalised.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np

from tweetrerank.rerankers.features import candidates as lists
from tweetrerank.rerankers.features.candidates import (
    PARAMETRIC,
    CandidateList,
    Columns,
    Family,
    family,
    higher,
    minmax,
    normalised,
    z_score,
)
from tweetrerank.rerankers.features.text_tables import Floats
from tweetrerank.rerankers.pairs import FIRST_STAGE, NUMBER, ORDER, PRIOR
from tweetrerank.rerankers.reranker_error import RerankerError


@family("score minmax reciprocal_rank", FIRST_STAGE)
def first_stage(candidates: CandidateList) -> Columns:
    """Score of the first stage, the feature "QL" of Rao et al. (2019), section 4.2.

    The paper leaves open how scores of different topics become comparable.

    ``score``: s, as in the run.
    ``minmax``: (s − min) / (max − min) over the topic's candidates, in [0, 1]; 0 if all are equal.
    ``reciprocal_rank``: 1 / (1 + number of candidates with a higher score), in (0, 1].
    """
    scores = candidates.signal(FIRST_STAGE)
    return scores, minmax(scores), 1.0 / (1 + higher(scores))


@family("minmax z log_rank rank_share log_size", FIRST_STAGE)
def given(candidates: CandidateList) -> Columns:
    """The first stage's scores without their unit, their order alone (``ORDER``), or nothing.

    The scores of search engines have no common scale, and a list in the order of an engine without
    its scores is worth nearly as much.

    ``minmax``: (s − min) / (max − min) of the first-stage score s, in [0, 1].
    ``z``: (s − mean) / standard deviation (with the divisor N).
    ``log_rank``: ln(1 + number of candidates before this one), by scores or by the given order.
    ``rank_share``: this number / N, in [0, 1).
    ``log_size``: ln N, the same for all short lists.
    The first two are NaN without scores, the next two without an order as well. The order of a
    list of fewer than ``FEWEST_COMPARED`` candidates is none.
    """
    columns = np.full((5, len(candidates)), np.nan)
    scores, order = candidates.known(FIRST_STAGE), candidates.known(ORDER)
    if scores is not None:
        known, order = scores.astype(np.float64), -scores
        columns[:2] = minmax(known), z_score(known)
    if order is not None:
        before = higher(-order)
        columns[2:4] = np.log1p(before), before / max(1, len(before))
    columns[4] = np.log(max(len(candidates), lists.FEWEST_COMPARED - 1, 1))
    return [*columns]


@family("rank", PRIOR)
def prior(candidates: CandidateList) -> Columns:
    """Rank in the runs that are reranked.

    ``rank``: mean over the runs of 1 / ln(rank + 1), 0 for a run without the post; in [0, 1.44].
    Severyn & Moschitti (2015), section 5, "submission run as a feature".
    """
    return [candidates.signal(PRIOR)]


def signal(name: str) -> Family:
    """Scores of a ranker, over the topic's candidates with a score.

    ``gap``: highest score − s, in the run's own unit; 0 or more.
    ``minmax``: (s − min) / (max − min), in [0, 1]; ``z``: the standard score; 0 if all are equal.
    ``log_rank``: ln(1 + number of candidates with a higher score), 0 or more.
    All are NaN for a candidate whose signal is NaN, and for all candidates if it is missing.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise _unnamed(
            "signal", name, "ranker in letters, digits, _ and -, as in signal:rm3"
        )

    def compare(scores: Floats, _: float) -> Columns:
        return scores.max() - scores, *normalised(scores)

    return _of_known(("gap", "minmax", "z", "log_rank"), name, compare)


def _unnamed(kind: str, name: str, expected: str) -> RerankerError:
    """The error for the name of a family with another form."""
    found = f"found the feature family {kind} with the name {name!r}"
    return RerankerError(f"{found}, expected {kind}:NAME with the name of a {expected}")


def _of_known(
    names: Sequence[str], key: str, compare: Callable[..., Columns]
) -> Family:
    """Features of the candidates whose signal is known, NaN for the others; ``compare`` gets the
    signal and :attr:`CandidateList.compared`."""

    def columns(candidates: CandidateList) -> Columns:
        found, values = (
            np.full((len(names), len(candidates)), np.nan),
            candidates.signals.get(key),
        )
        if values is not None and (known := ~np.isnan(values)).any():
            found[:, known] = compare(
                values[known].astype(np.float64), candidates.compared
            )
        return [*found]

    return Family(names, (key,), columns)


def number(name: str) -> Family:
    """A number beside the text, and how it compares with those of the other candidates.

    ``value``: as it is, in single precision.
    ``rank_share``: share of the known numbers that are higher, in [0, 1).
    ``z``: standard score; 0 if all are equal.
    All are NaN for a post without the number, the last two for all posts of a short list.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise _unnamed(
            "number", name, "field in letters, digits, _, - and ., as in number:likes"
        )

    def compare(numbers: Floats, compared: float) -> Columns:
        return (
            numbers,
            compared * higher(numbers) / len(numbers),
            compared * z_score(numbers),
        )

    return _of_known(("value", "rank_share", "z"), NUMBER + name, compare)


PARAMETRIC.update(signal=("NAME", signal), number=("NAME", number))
