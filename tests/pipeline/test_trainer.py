"""Folds of topics, and the rerankers of a fusion."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from indexes.posts import Post
from pipeline.collections.topics import Topic
from pipeline.ranking.retrievers import Candidates
from pipeline.training.folds import FoldModel, Outcome, Schedule, cross_train, split_topics
from pipeline.training.trainer import FusionPartTrainer, TrainingOptions, with_long_epochs
from pipeline.training.training_set import JudgedCandidates, TrainingSet
from rerankers.models.sm_cnn import Model as SmCnn
from rerankers.training.examples import Examples
from rerankers.training.settings import Settings

RUN = {"1": {"a": 1.0, "b": 1.0}, "2": {"x": 1.0}}
CANDIDATES = Candidates(
    [Topic("1", "storm"), Topic("2", "quake")], RUN, {name: Post(name, name) for name in "abx"}
)


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


def test_topics_are_scored_by_models_that_have_not_seen_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def score(model: Any, pairs: Any, encoder: Any) -> Any:
        return np.full(len(pairs), model, dtype=np.float32)

    monkeypatch.setattr("pipeline.training.folds.score", score)
    models: Any = [
        SimpleNamespace(model=7.0, held_out=frozenset("2")),
        FoldModel(5.0, frozenset("1")),  # type: ignore[arg-type]
    ]
    model: Any = None
    outcome = Outcome(model, {}, {}, 1, {}, models)
    scores = outcome.unseen_scores(CANDIDATES.pairs(), ["1", "2"], model)
    assert scores.tolist() == [5.0, 5.0, 7.0]


def test_rerankers_of_a_fusion_are_trained_without_run_features(tmp_path: Path) -> None:
    training_set = TrainingSet(
        ["mb2011"], "mb2012", "runs", JudgedCandidates(CANDIDATES, {}), None, [], 5
    )
    options = TrainingOptions(5, tmp_path / "vectors.bin", "wordfreq", "cpu", False)
    trainer = FusionPartTrainer(training_set, options, 3, tmp_path).trainer("sm_cnn")
    assert trainer.training_set.training.candidates.priors == {}
    assert training_set.training.candidates.priors is None
    assert trainer.options is options
    assert trainer.settings.seed == 3
    assert trainer.settings.steps == with_long_epochs(SmCnn.training_settings).steps
    assert trainer.config == next(iter(SmCnn.configurations.values()))


def test_short_epochs_are_joined() -> None:
    short = with_long_epochs(Settings(steps=10, epochs=235, patience=47))
    assert (short.steps, short.epochs, short.patience) == (50, 47, 10)
    long = Settings(steps=60, epochs=12, patience=4)
    assert with_long_epochs(long) == long


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
