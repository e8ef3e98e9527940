"""Folds of topics, and the rerankers of a fusion."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from indexes.posts import Post
from pipeline.collections.topics import Topic
from pipeline.reranking import Candidates
from pipeline.training.folds import FoldModel, Outcome, split_topics
from pipeline.training.trainer import FusionPartTrainer, TrainingOptions, with_long_epochs
from pipeline.training.training_set import JudgedCandidates, TrainingSet
from rerankers.models.sm_cnn import Model as SmCnn
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
