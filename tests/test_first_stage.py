"""Which candidates a command ranks, and with which weight their scores are mixed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.command.errors import UsageError
from pipeline.first_stage import UNTUNED_WEIGHT, FirstStage

GIVEN: Any = SimpleNamespace(name="trecqa-raw", given={"1": {"a": 0.0}}, runs={})
SEARCHED: Any = SimpleNamespace(name="mb2012", given=None, runs={})


def test_given_candidates_have_no_scores_to_mix() -> None:
    stage = FirstStage(GIVEN)
    assert stage.is_unscored and stage.name == "given, by id"
    assert stage.weight(None, Path("nowhere"), "minmax")[0] == 1
    assert stage.weight(0.25, Path("nowhere"), "minmax") == (0.25, "given")
    scores = {"1": {"a": 0.5}}
    assert stage.mix(None, scores, 1.0, "minmax") is scores  # type: ignore[arg-type]


def test_given_candidates_are_not_searched() -> None:
    flags = {"--method": "ql", "--mu": None, "--set": [], "--index": None}
    with pytest.raises(UsageError) as problems:
        FirstStage(GIVEN, hits=5).check(flags, idf="index")
    found = problems.value.problems
    assert [problem.split(":")[0] for problem in found] == ["--method", "--hits", "--idf index"]
    assert all("trecqa-raw" in problem for problem in found)
    FirstStage(SEARCHED, hits=5).check(flags, idf="index")
    # A run that is named has ranks, and so has best candidates.
    FirstStage(GIVEN, candidates="my.run", hits=5).check({}, idf=None)


def test_an_untuned_weight_says_how_to_tune_it(tmp_path: Path) -> None:
    weight, origin = FirstStage(SEARCHED).weight(None, tmp_path, "minmax")
    assert weight == UNTUNED_WEIGHT
    assert "scripts/tune_lambda.py" in origin
    _, origin = FirstStage(GIVEN, candidates="my.run").weight(None, tmp_path, "minmax")
    assert "--lambda" in origin
