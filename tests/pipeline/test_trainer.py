"""Folds of topics, and the rerankers of a fusion."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from pipeline.collections.topics import Topic
from pipeline.ranking.retrievers import Candidates
from pipeline.training.folds import Schedule, cross_train, split_topics
from pipeline.training.training_set import JudgedCandidates
from rerankers.training.examples import Examples
from rerankers.training.settings import Settings


def test_folds_hold_every_topic_out_once() -> None:
    query_index = np.repeat(np.arange(11), 3)
    folds = list(split_topics(query_index, 4, seed=1))
    held_out = np.concatenate([np.unique(query_index[fold.held_out]) for fold in folds])
    assert sorted(held_out.tolist()) == list(range(11))
    for fold in folds:
        assert not set(query_index[fold.held_out]) & set(query_index[fold.training])
        assert len(fold.held_out) + len(fold.training) == len(query_index)
    groups = ["a"] * 10 + ["b"] * 10
    (each,) = split_topics(np.arange(20), 1, 1, 0.2, groups)
    assert sorted(each.held_out < 10) == [False] * 2 + [True] * 2
    (single,) = split_topics(query_index, 1, seed=1)
    assert len(np.unique(query_index[single.held_out])) == 2


@dataclasses.dataclass
class Rows:
    """Pairs known by their rows."""

    query_index: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]

    def take(self, rows: npt.NDArray[np.int64]) -> "Rows":
        return Rows(self.query_index[rows], self.rows[rows])


def test_judged_candidates_alone_are_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If only these count; all are scored. The others are negatives where all count."""
    run = {str(n): dict.fromkeys("abc", 1.0) for n in range(4)}
    qrels = {str(n): {"a": 1, "c": 0} for n in range(4)}
    topics = [Topic(query_id, "x") for query_id in run]
    pairs = Rows(np.repeat(np.arange(4), 3), np.arange(12))
    trained: dict[str, list[int]] = {}

    def train(_: Schedule, name: str, model: Any, training: Any, *held_out: Any) -> Any:
        trained[name] = training.pairs.rows.tolist()
        return SimpleNamespace(best=1)

    monkeypatch.setattr(Schedule, "train", train)
    monkeypatch.setattr(
        "pipeline.training.folds.score_tokenized", lambda _, found: found.rows.astype(np.float32)
    )
    schedule = Schedule(Settings(), tmp_path, False, cast(Any, None))
    examples = Examples(cast(Any, pairs), np.tile([True, False, False], 4))
    for judged_only, columns in ((True, {0, 2}), (False, {0, 1, 2})):
        data = JudgedCandidates(Candidates(topics, run, {}, {}), qrels, judged_only)
        model: Any = SimpleNamespace
        outcome = cross_train(model, examples, data, schedule, 2)
        assert {row % 3 for row in trained["all topics"]} == columns
        assert trained["all topics"] == sorted(trained["fold 1"] + trained["fold 2"])
        scores = {q: [*found.values()] for q, found in outcome.held_out_run.items()}
        assert scores == {str(n): [3.0 * n, 3.0 * n + 1, 3.0 * n + 2] for n in range(4)}
