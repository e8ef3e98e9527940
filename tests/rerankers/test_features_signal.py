"""The families ``signal:NAME`` against loops, and families with a parameter."""

import dataclasses
import math
import statistics

import numpy as np
import pytest
from helpers.feature_lists import computed, of_texts

from rerankers import features
from rerankers.errors import RerankerError
from rerankers.features._candidates import CandidateList

FEATURES = ("gap", "minmax", "z", "log_rank")
NAN = math.nan


def scored(scores: list[float], name: str = "rm3") -> CandidateList:
    candidates = of_texts("bbc", *(f"post {n}" for n in range(len(scores))))
    return dataclasses.replace(candidates, signals={name: np.array(scores, dtype=np.float32)})


def expected(scores: list[float]) -> dict[str, list[float]]:
    known = [score for score in scores if not math.isnan(score)]
    width = max(known) - min(known)
    deviation = statistics.pstdev(known)
    return {
        "gap": [max(known) - s for s in scores],
        "minmax": [(s - min(known)) / width if width else s * 0 for s in scores],
        "z": [(s - statistics.fmean(known)) / deviation if width else s * 0 for s in scores],
        "log_rank": [
            math.log(1 + sum(other > s for other in known)) if s == s else s for s in scores
        ],
    }


def random_scores(count: int, missing: float) -> list[float]:
    """With one decimal, so that some scores are equal."""
    random = np.random.default_rng(count)
    scores = (random.normal(size=count) * 3 - 8).round(1)
    return np.where(random.random(count) < missing, NAN, scores).tolist()


@pytest.mark.parametrize(
    "scores",
    [
        random_scores(2, 0.0),
        random_scores(9, 0.3),
        random_scores(200, 0.3),
        [0.1, NAN],
        [*[-7.3] * 10, NAN],
    ],
    ids=len,
)
def test_features_are_those_of_loops(scores: list[float]) -> None:
    found = computed("signal:rm3", scored(scores))
    for name, values in expected(scores).items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5, err_msg=name)
        assert np.isnan(found[name]).tolist() == np.isnan(scores).tolist()


def test_missing_scores_are_nan() -> None:
    for candidates in (scored([NAN, NAN]), scored([1.0, 2.0], "bm25")):
        assert np.isnan(list(computed("signal:rm3", candidates).values())).all()
    assert computed("signal:rm3", scored([])) == {name: [] for name in FEATURES}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("signal", "signal with the name ''"),
        ("signal:a.b", "with the name 'a.b'"),
        ("hashtag", r"'hashtag'.*hashtags.*overlap"),
        ("links:x", "links takes no parameter"),
        (":rm3", "found the feature family ':rm3', expected one of .*signal:NAME"),
    ],
)
def test_wrong_parameters_are_errors(name: str, message: str) -> None:
    with pytest.raises(RerankerError, match=message):
        features.names_of([name])
