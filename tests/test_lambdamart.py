"""LambdaMART: learning, configurations, and training by the command."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_samples import write_microblog
from reranking_samples import all_pairs, encoder, small_config, small_model, vocabulary

from pipeline import train
from pipeline.collections import named
from pipeline.command.errors import UsageError
from pipeline.reranking import NeuralReranker
from pipeline.training.training_set import load_training_data
from rerankers import checkpoint, features
from rerankers.base import FIRST_STAGE, Pairs
from rerankers.engine import scoring
from rerankers.engine.tokenized import Tokenized
from rerankers.errors import RerankerError
from rerankers.models.lambdamart import Config, Model
from rerankers.training.loop import Examples
from rerankers.training.loop import train as train_model
from rerankers.training.settings import Settings

NAME = "lambdamart"
TOPICS, POSTS = 12, 30


def unfitted(**changes: Any) -> Model:
    return Model(small_config(NAME, "all", **changes), vocabulary())


def pairs_with_a_rule() -> tuple[Pairs, np.ndarray]:
    """A post is relevant if it is high in the run and has a link; scores differ by topic."""
    random = np.random.default_rng(4)
    pairs = all_pairs(
        [f"storm {topic}" for topic in range(TOPICS)],
        [(f"post {n} storm", f"http://x.org/{n}" if n % 3 else "") for n in range(POSTS)],
    )
    scores = random.random(len(pairs)).astype(np.float32)
    relevant = (scores > 0.5) & (pairs.post_index % 3 > 0)
    shifted = scores * 3 + pairs.query_index.astype(np.float32)
    return dataclasses.replace(pairs, signals={FIRST_STAGE: shifted}), relevant


def fit(model: Model, pairs: Pairs, relevant: np.ndarray) -> Model:
    examples = Examples(Tokenized.from_pairs(pairs, encoder(), model), relevant)
    history = train_model(model, examples, None, lambda _: 0.0, Settings(), Path("unused"))
    assert (history.epochs, history.best) == ([], 0)
    return model


def average_precision(scores: np.ndarray, relevant: np.ndarray) -> float:
    places = np.flatnonzero(relevant[np.argsort(-scores, kind="stable")]) + 1
    return float(np.mean(np.arange(1, len(places) + 1) / places))


def test_a_rule_over_two_families_is_learnt_for_new_topics() -> None:
    pairs, relevant = pairs_with_a_rule()
    new = pairs.query_index >= TOPICS - 3
    split = [
        dataclasses.replace(
            pairs,
            query_index=pairs.query_index[rows],
            post_index=pairs.post_index[rows],
            signals={FIRST_STAGE: pairs.signals[FIRST_STAGE][rows]},
        )
        for rows in (~new, new)
    ]
    model = fit(unfitted(trees=60, minimum_leaf=5), split[0], relevant[~new])
    scores = scoring.score(model, split[1], encoder())
    of_query = split[1].query_index
    by_model, by_run = (
        np.mean(
            [
                average_precision(values[of_query == q], relevant[new][of_query == q])
                for q in np.unique(of_query)
            ]
        )
        for values in (scores, split[1].signals[FIRST_STAGE])
    )
    assert by_model > 0.95 > by_run


def test_training_is_deterministic_and_independent_of_the_order_of_topics() -> None:
    pairs, relevant = pairs_with_a_rule()
    first, again = (fit(unfitted(), pairs, relevant) for _ in range(2))
    assert first.files() == again.files()
    order = np.argsort(-pairs.query_index, kind="stable")
    turned = dataclasses.replace(
        pairs,
        query_index=pairs.query_index[order],
        post_index=pairs.post_index[order],
        signals={FIRST_STAGE: pairs.signals[FIRST_STAGE][order]},
    )
    assert fit(unfitted(), turned, relevant[order]).files() == first.files()


def test_parts_choose_few_trees_for_random_labels() -> None:
    pairs, _ = pairs_with_a_rule()
    noise = np.random.default_rng(1).random(len(pairs)) < 0.3
    chosen = fit(unfitted(trees=40, parts=3), pairs, noise)
    every = fit(unfitted(trees=40, parts=0), pairs, noise)
    ((few,), (all_of_them,)) = (chosen.boosters, every.boosters)
    assert 1 <= few.num_trees() < all_of_them.num_trees() == 40


def test_each_configuration_has_its_families() -> None:
    text = ("first_stage", "overlap")
    expected = {
        "all": (*text, "links", "hashtags"),
        "text": text,
        "text_url": (*text, "links"),
        "text_hashtag": (*text, "hashtags"),
    }
    assert next(iter(Model.configurations)) == "all"
    for name, families in expected.items():
        model = small_model(NAME, name)
        assert isinstance(model, Model)
        assert model.feature_families == families
        (booster,) = model.boosters
        assert tuple(booster.feature_name()) == features.names_of(families)
        assert not list(model.parameters()) and not model.state_dict()
        assert model.device_of() == torch.device("cpu")
    assert set(Model.configurations) == set(expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"leaves": 1}, "setting leaves: found 1, expected 2 or more"),
        ({"trees": 0}, "setting trees: found 0"),
        ({"parts": 1}, "setting parts: found 1"),
        ({"learning_rate": 0.0}, "setting learning_rate: found 0.0"),
        ({"families": "overlap,urls"}, "'urls', expected one of .*links"),
    ],
)
def test_impossible_settings_are_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RerankerError, match=message):
        Config(**changes)


def test_a_model_without_trees_neither_scores_nor_is_saved(tmp_path: Path) -> None:
    model = unfitted()
    with pytest.raises(RerankerError, match="without trees; train it before it is used"):
        scoring.score(model, all_pairs(), encoder())
    with pytest.raises(RerankerError, match="without trees"):
        checkpoint.save(tmp_path / "saved", NAME, model, encoder(), {})


def test_topics_without_relevant_posts_are_an_error() -> None:
    pairs, relevant = pairs_with_a_rule()
    with pytest.raises(RerankerError, match="found no training topic with both"):
        fit(unfitted(), pairs, np.zeros_like(relevant))


def test_options_of_training_steps_are_refused() -> None:
    options = train.Options(NAME, test="mb2012", epochs=3, learning_rate=0.1, seed=2)
    with pytest.raises(UsageError, match=r"--epochs, --learning-rate: found for lambdamart.*--set"):
        train.main(options)


def test_the_pipeline_can_use_what_the_command_trains(tmp_path: Path) -> None:
    """Three made-up years, one of them left out; the run's scores and texts reach the trees."""
    data, output = write_microblog(tmp_path / "data"), tmp_path / "trained"
    changes = ("minimum_leaf=1", "trees=10", "parts=2")
    train.main(
        train.Options(
            NAME,
            test="mb2012",
            configuration="text_url",
            set=changes,
            folds=2,
            device="cpu",
            threads=1,
            vectors=data / "vectors.txt",
            data=data,
            output=output,
        )
    )
    metrics = json.loads((output / "metrics.json").read_text())
    assert metrics["trained_on"] == ["mb2011", "mb2013"] and metrics["epochs"] == 0
    assert metrics["training"] == {"seed": 1}
    assert set(metrics["validation"]["by_fold"]) == {"fold 1", "fold 2"}
    assert (output / "held_out.run.gz").is_file()
    reranker = NeuralReranker(checkpoint.load(output, NAME))
    config = reranker.checkpoint.model.config
    assert (config.families, config.trees) == ("first_stage,overlap,links", 10)
    candidates = load_training_data([named.find("mb2012", data)])
    run = reranker.score(candidates.candidates)
    # In these years only relevant posts have links, and every one of them has.
    assert candidates.mean_of("AP", run) == pytest.approx(1.0)
    assert candidates.mean_of("AP", candidates.candidates.run) < 0.9
