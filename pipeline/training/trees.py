"""Training of boosted trees, with figures on topics held out in folds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.collections.trec import Run
from pipeline.runtime import part_bar
from pipeline.training.folds import Outcome, split_topics
from pipeline.training.training_set import JudgedCandidates, TrainingSet
from rerankers import checkpoint, features, models
from rerankers.features import FeatureTable
from rerankers.pairs import NUMBER
from rerankers.text.ragged import Rows
from rerankers.text.vocabulary import Idf
from rerankers.trees.boosting import Trees
from rerankers.trees.fit import Report, grow

Floats = npt.NDArray[np.float32]

LOST, LOST_MEANING = 0.08, 0.25
"""Share of the lists in which a family of features is missing, and one of meaning. Of a single
collection only numbers beside the text are: what ranks it has all else."""

MEANING, GIVEN = "meaning:", "given"
"""Families of word vectors, and the one that windows come without in forms of their own."""


def train(
    name: str,
    config: Any,
    training_set: TrainingSet,
    idf: Idf,
    seed: int,
    folds: int,
    start: Path | None,
) -> Outcome:
    """Grow trees on the topics of a training set; those of its development part are held out.

    Without such a part there are trees for each of the folds, whose topics they have not seen; of
    several folds, the trees that are kept are grown on all topics. ``start`` is the checkpoint of
    trees to extend.
    """
    data, development = training_set.training, training_set.development
    record = {"training": {"seed": seed}}
    with part_bar(1 if development else folds + (folds > 1)) as progress:
        pairs = data.candidates.pairs()
        table = features.table(pairs, config.families.split(","), idf)
        grow_on = grower(config, data, table, checkpoint.load(start, name) if start else None)

        def grown(part: str, rows: Rows) -> Trees:
            lists = grow_on(data.to_train(rows), partial(progress, part))
            trees: Trees = models.find(name)(name=name, config=config, idf=idf, lists=lists)
            return trees

        everything = np.arange(len(pairs))
        if development:
            model, others = grown("training", everything), development.candidates.pairs()
            run = development.run_of(np.arange(len(others)), model.score(others))
            return Outcome(model, run, {"development": development.mean_of("AP", run)}, record)
        held_out_run: Run = {}
        figures = {}
        for fold in split_topics(pairs.query_index, folds, seed, twins=data.twins):
            model = grown(fold.name, fold.training)
            run = data.run_of(fold.held_out, model.evaluate(table.values[fold.held_out]))
            held_out_run |= run
            figures[fold.name] = data.mean_of("AP", run)
        if folds > 1:
            model = grown("all topics", everything)
    return Outcome(model, held_out_run, figures, record, folds)


def grower(
    config: Any, data: JudgedCandidates, table: FeatureTable, start: Any = None
) -> Callable[..., list[str]]:
    """A function that grows trees on some pairs [B] of ``data``, whose features are ``table``.

    Of mixed collections all have the same weight, and lists lack families at random.
    """
    lists, relevant, values = data.candidates.texts().query_index, data.relevant(), table.values
    wholes = _numbered(data.wholes)[lists] if data.wholes else lists
    if data.groups or any(name.startswith(NUMBER) for name in table.names):
        values = _with_losses(values, table.names, wholes, "" if data.groups else NUMBER)

    def grow_on(rows: Rows, progress: Report = lambda message: None) -> list[str]:
        weights = _weights(_numbered(data.groups)[lists[rows]]) if data.groups else None
        part = values[rows], relevant[rows], wholes[rows]
        return grow(config, table.names, *part, start, progress, weights)

    return grow_on


def _numbered(names: Sequence[str]) -> Rows:
    """[Q] a number for each name."""
    return np.unique(names, return_inverse=True)[1]


def _weights(collections: Rows) -> npt.NDArray[np.float64]:
    """[P] weights of pairs; all collections have the same weight."""
    counts = np.bincount(collections)
    weights: npt.NDArray[np.float64] = 1 / counts[collections]
    return weights / weights.mean()


def _with_losses(values: Floats, names: Sequence[str], lists: Rows, prefix: str = "") -> Floats:
    """Features [P, K] without some families in some lists, given by the number of each pair [P].

    So trees learn to miss each of those whose names begin with ``prefix``.
    """
    families = np.array([name.rpartition(".")[0] for name in names])
    rng, count, found = np.random.default_rng(1), int(lists.max(initial=-1)) + 1, values.copy()
    for family in dict.fromkeys(families.tolist()):
        if family != GIVEN and family.startswith(prefix):
            share = LOST_MEANING if family.startswith(MEANING) else LOST
            is_lost = rng.random(count) < share
            found[np.ix_(is_lost[lists], families == family)] = np.nan
    return found
