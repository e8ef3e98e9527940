"""Normalisation and interpolation, against formulas and properties."""

import math

import pytest

from pipeline.collections.trec import Run
from pipeline.errors import DataError, UsageError
from pipeline.ranking.interpolation import interpolate, normalize


def test_normalization_by_hand() -> None:
    scores = {"a": 1.0, "b": 4.0, "c": 2.0, "d": 1.0}
    assert normalize(scores) == pytest.approx({"a": 0, "b": 1, "c": 1 / 3, "d": 0})
    assert normalize({}) == {}
    assert normalize({"a": 0.1, "b": 0.1}) == {"a": 0.5, "b": 0.5}
    assert normalize({"a": 0.1}) == {"a": 0.5}
    for widest in ({"a": -3.4e38, "b": 0.0, "c": 3.4e38}, {"a": 0.0, "b": 5e-324, "c": 1e-323}):
        assert all(map(math.isfinite, normalize(widest).values()))


LEXICAL: Run = {"1": {"a": 10.0, "b": 5.0, "c": 0.0}, "2": {"x": 3.0}, "3": {}}
NEURAL: Run = {"1": {"c": 0.9, "b": 0.6, "a": -0.1, "other": 99.0}, "2": {"x": -1.0}, "4": {}}


def test_mixing_by_hand() -> None:
    run = interpolate(LEXICAL, NEURAL, 0.25)
    # c 1, b 0.7, a 0 from the neural side: what is no candidate does not stretch the scale.
    expected = {"a": 0.75 * 1, "b": 0.25 * 0.7 + 0.75 * 0.5, "c": 0.25}
    assert run["1"] == pytest.approx(expected)
    assert run["2"] == {"x": 0.5}
    assert run["3"] == {}
    assert list(run) == ["1", "2", "3"]


@pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan])
def test_weights_outside_0_to_1(weight: float) -> None:
    with pytest.raises(UsageError, match=r"λ: found .*, expected a number from 0 to 1"):
        interpolate(LEXICAL, NEURAL, weight)


def test_every_document_needs_a_neural_score() -> None:
    with pytest.raises(
        DataError, match=r"topic 1: found no neural score for 2 of its 3 .*first is b"
    ):
        interpolate(LEXICAL, {**NEURAL, "1": {"a": 1.0}}, 0.0)
    with pytest.raises(DataError, match="topic 2: found no neural score for 1 of its 1"):
        interpolate(LEXICAL, {"1": NEURAL["1"]}, 0.5)


@pytest.mark.parametrize("score", [math.nan, math.inf, -1e39])
def test_scores_that_are_no_numbers_are_refused(score: float) -> None:
    """On either side, and such as single precision does not hold."""
    bad = {"1": {**NEURAL["1"], "b": score}, "2": {"x": 0.0}}
    for pair in ((LEXICAL, bad), ({"1": LEXICAL["1"] | {"b": score}}, NEURAL)):
        with pytest.raises(DataError, match="topic 1, document b: found the score"):
            interpolate(*pair, 0.5)
