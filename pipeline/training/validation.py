"""Validate a training: its plan, the folds of its topics, and its outcome.

A collection with a development part is trained on its training part and validated on
the development part. Other collections are validated by topic. With K folds, each topic
is held out once and scored by a model that has not seen its judgments, and the final
model is trained on all topics. With one fold, a share of the topics is held out once,
and that model is the final one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tweetrerank.pipeline.collections.trec import Run
from tweetrerank.pipeline.training.training_set import JudgedCandidates, TrainingSet
from tweetrerank.rerankers.model import Model
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.text.ragged import Rows
from tweetrerank.rerankers.text.vocabulary import Idf


class Plan(NamedTuple):
    """A training: a model, its settings, and its training set."""

    model: str  # Name of the model
    settings: Settings
    folds: int  # Number of folds of topics if there is no development part
    idf: Idf
    # Name of the configuration. None is the model's first one
    configuration: str | None
    config: Any  # The configuration with the changes of ``--set``
    data: TrainingSet
    first_stage: TrainingSet  # Baseline for a model trained on a user's collection
    start: Path | None = None  # Checkpoint with the trees to extend


Fit = Callable[
    [str, Rows, JudgedCandidates, Rows], tuple[Model, npt.NDArray[np.float32]]
]
"""Takes the name of a part, the rows to train on, candidates, and the rows of these
candidates to hold out, of which there may be none. Returns a model and its scores of
the held-out rows."""


@dataclass(frozen=True)
class Outcome:
    """A trained model with its validation figures."""

    model: Model
    held_out_run: Run  # Scores of held-out topics, by models that had not seen them
    validation_map: Mapping[str, float]  # Fold -> MAP of its held-out topics
    folds: int  # Number of folds of topics; 0 with a development part
    record: Mapping[str, Any]  # Facts of the training, for ``metrics.json``


def validated(plan: Plan, record: Mapping[str, Any], fit: Fit) -> Outcome:
    """Train by ``fit`` on the parts of a training set.

    Return the model and its figures.
    """
    development = plan.data.development
    if development:
        return _by_development(plan.data.training, development, record, fit)
    return _by_folds(plan, record, fit)


def _by_development(
    training: JudgedCandidates,
    development: JudgedCandidates,
    record: Mapping[str, Any],
    fit: Fit,
) -> Outcome:
    """Train on the training part, and validate on the development part."""
    rows = training.to_train(np.arange(len(training.candidates)))
    held_out = np.arange(len(development.candidates))
    model, scores = fit("training", rows, development, held_out)
    run = development.run_of(held_out, scores)
    figures = {"development": development.mean_of("AP", run)}
    return Outcome(model, run, figures, 0, record)


def _by_folds(plan: Plan, record: Mapping[str, Any], fit: Fit) -> Outcome:
    """Train without each fold of topics, and then on all topics.

    With a single fold, there is no training on all topics.
    """
    data = plan.data.training
    settings = plan.settings
    run: Run = {}
    figures: dict[str, float] = {}
    folds = split_topics(
        data.candidates.texts.query_index,
        plan.folds,
        settings.seed,
        settings.held_out,
        data.groups if settings.held_out_of == "each" else (),
        data.twins,
    )
    for number, is_held_out in enumerate(folds, start=1):
        part = f"fold {number}"
        rows = data.to_train(np.flatnonzero(~is_held_out))
        held_out = np.flatnonzero(is_held_out)
        model, scores = fit(part, rows, data, held_out)
        fold_run = data.run_of(held_out, scores)
        run |= fold_run
        figures[part] = data.mean_of("AP", fold_run)
    if plan.folds > 1:
        all_rows = np.arange(len(data.candidates))
        model, _ = fit("all topics", data.to_train(all_rows), data, all_rows[:0])
    return Outcome(model, run, figures, plan.folds, record)


def split_topics(
    query_index: Rows,
    count: int,
    seed: int,
    share: float = 0.15,
    groups: Sequence[str] = (),
    twins: Sequence[str] = (),
) -> list[npt.NDArray[np.bool_]]:
    """Return for each fold of topics whether it holds out each pair, as [P].

    Args:
        query_index: [P], the row of each pair's topic.
        count: number of folds.
        seed: seed of the random folds.
        share: share of the topics that a single fold holds out.
        groups: [Q], the group of each topic. A single fold then holds out this share of
            the topics of each group.
        twins: [Q], names of the topics. Topics with the same name count as one topic.
    """
    if twins:
        query_index = np.unique(twins, return_inverse=True)[1][query_index]
    queries = np.random.default_rng(seed).permutation(np.unique(query_index))
    if count > 1:
        return [np.isin(query_index, part) for part in np.array_split(queries, count)]
    group_of = np.array([groups[query] if groups else "" for query in queries.tolist()])
    held_out = []
    for name in np.unique(group_of):
        of_group = queries[group_of == name]
        held_out.append(of_group[: max(1, round(share * len(of_group)))])
    return [np.isin(query_index, np.concatenate(held_out))]
