"""Features of how rankers score a candidate, and of a post's numeric fields.

Scores of different rankers or topics have no common scale, so they are normalised.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np

from tweetrerank.rerankers.features import candidates as lists
from tweetrerank.rerankers.features.candidates import CandidateList
from tweetrerank.rerankers.features.family import (
    Columns,
    Family,
    family,
    parametric_family,
)
from tweetrerank.rerankers.features.scaling import (
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
    """Return the first stage's score, raw and normalised.

    It is the feature "QL" of Rao et al. (2019), section 4.2. The paper does not say how
    scores of different topics become comparable, so the score is also normalised.

    ``score``: the score s, as in the run.
    ``minmax``: (s − min) / (max − min) over the topic's candidates, in [0, 1]; 0 if all
    are equal.
    ``reciprocal_rank``: 1 / (1 + number of candidates with a higher score), in (0, 1].
    """
    scores = candidates.signal(FIRST_STAGE)
    return [scores, minmax(scores), 1.0 / (1 + higher(scores))]


@family("minmax z log_rank rank_share log_size", FIRST_STAGE)
def given(candidates: CandidateList) -> Columns:
    """Return features of the first stage's scores, or of the order of the list.

    The features do not depend on the unit of the scores, because search engines have no
    common scale. The order of an engine's list (``ORDER``) is worth nearly as much as
    its scores.

    ``minmax``: (s − min) / (max − min) of the first-stage score s, in [0, 1].
    ``z``: (s − mean) / standard deviation (with the divisor N).
    ``log_rank``: ln(1 + number of candidates before this one). The candidates are in
    the order of the scores, or in the given order if there are no scores.
    ``rank_share``: the same number divided by N, in [0, 1).
    ``log_size``: ln N. All short lists have the same value.
    The first two are NaN without scores. The next two are NaN if there are neither
    scores nor an order. The order of a list of fewer than ``FEWEST_COMPARED``
    candidates is not used.
    """
    columns = np.full((5, len(candidates)), np.nan)
    scores = candidates.known_signal(FIRST_STAGE)
    order = candidates.known_signal(ORDER)
    if scores is not None:
        order = -scores
        exact_scores = scores.astype(np.float64)
        columns[0] = minmax(exact_scores)
        columns[1] = z_score(exact_scores)
    if order is not None:
        before = higher(-order)
        columns[2] = np.log1p(before)
        columns[3] = before / max(1, len(before))
    size = max(len(candidates), lists.FEWEST_COMPARED - 1, 1)
    columns[4] = np.log(size)
    return list(columns)


@family("rank", PRIOR)
def prior(candidates: CandidateList) -> Columns:
    """Return the prior of a post by its ranks in the runs that are reranked.

    ``rank``: mean over the runs of 1 / ln(rank + 1), in [0, 1.44]. A run without the
    post counts as 0. This is the "submission run as a feature" of Severyn & Moschitti
    (2015), section 5.
    """
    return [candidates.signal(PRIOR)]


@parametric_family("NAME")
def signal(name: str) -> Family:
    """Return the family of features of the scores s of the ranker ``name``.

    Each score is compared with those of the topic's other candidates that have one.

    ``gap``: highest score − s, in the unit of the scores; 0 or more.
    ``minmax``: (s − min) / (max − min), in [0, 1]; 0 if all are equal.
    ``z``: the standard score; 0 if all are equal.
    ``log_rank``: ln(1 + number of candidates with a higher score), 0 or more.
    All are NaN for a candidate whose signal is NaN, and for all candidates if the
    signal is missing.

    Raises RerankerError if ``name`` is empty or has other characters than letters,
    digits, _ and -.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise _unnamed(
            "signal", name, "ranker in letters, digits, _ and -, as in signal:rm3"
        )

    def compare(scores: Floats, _: float) -> Columns:
        return [scores.max() - scores, *normalised(scores)]

    return _of_known(("gap", "minmax", "z", "log_rank"), name, compare)


@parametric_family("NAME")
def number(name: str) -> Family:
    """Return the family of features of the posts' numeric field ``name``.

    ``value``: the number, in single precision.
    ``rank_share``: share of the candidates' known numbers that are higher, in [0, 1).
    ``z``: standard score among the candidates; 0 if all are equal.
    All are NaN for a post without the number. The last two are NaN in a list that is
    too short to compare its candidates.

    Raises RerankerError if ``name`` is empty or has other characters than letters,
    digits, _, - and the period.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise _unnamed(
            "number", name, "field in letters, digits, _, - and ., as in number:likes"
        )

    def compare(numbers: Floats, comparison_factor: float) -> Columns:
        return [
            numbers,
            comparison_factor * higher(numbers) / len(numbers),
            comparison_factor * z_score(numbers),
        ]

    return _of_known(("value", "rank_share", "z"), NUMBER + name, compare)


def _unnamed(
    kind: str,
    name: str,
    expected: str,
) -> RerankerError:
    """Return the error for a family with a malformed name."""
    return RerankerError(
        f"found the feature family {kind} with the name {name!r}, "
        f"expected {kind}:NAME with the name of a {expected}"
    )


def _of_known(
    names: Sequence[str],
    key: str,
    compare: Callable[[Floats, float], Columns],
) -> Family:
    """Return a family whose features are NaN for candidates without the signal ``key``.

    ``compare`` computes the features ``names`` of the others. It gets the known values
    of the signal and :attr:`CandidateList.comparison_factor`.
    """

    def columns(candidates: CandidateList) -> Columns:
        shape = (len(names), len(candidates))
        features = np.full(shape, np.nan)
        values = candidates.signals.get(key)
        if values is not None:
            is_known = ~np.isnan(values)
            if is_known.any():
                known_values = values[is_known].astype(np.float64)
                features[:, is_known] = compare(
                    known_values, candidates.comparison_factor
                )
        return list(features)

    return Family(names, (key,), columns)
