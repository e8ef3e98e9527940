"""Training of boosted trees, with figures on topics held out in folds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.collections.trec import Run
from pipeline.training.folds import Outcome, split_topics
from pipeline.training.training_set import TrainingSet
from rerankers import features, models
from rerankers.text.ragged import Rows
from rerankers.text.vocabulary import Idf
from rerankers.trees.boosting import Trees
from rerankers.trees.fit import grow


def train(
    name: str,
    config: Any,
    idf: Idf,
    training_set: TrainingSet,
    folds: int,
    seed: int,
    start: Trees | None,
    progress: Callable[[str, str], object],
) -> Outcome:
    """Grow trees on the topics of a training set; those of its development part are held out.

    Without such a part there are trees for each of the folds, whose topics they have not seen; of
    several folds, the trees that are kept are grown on all topics.

    Args:
        name: of the model.
        config: its hyperparameters.
        start: trees to extend.
        progress: called with the part and a message.
    """
    data, development = training_set.training, training_set.development
    pairs, relevant = data.candidates.pairs(), data.relevant()
    table = features.table(pairs, config.families.split(","), idf)

    def grown(part: str, rows: Rows) -> Trees:
        rows = data.to_train(rows)
        lists = grow(
            config,
            table.names,
            table.values[rows],
            relevant[rows],
            pairs.query_index[rows],
            start,
            lambda message: progress(part, message),
        )
        trees: Trees = models.find(name)(name=name, config=config, idf=idf, lists=lists)
        return trees

    everything = np.arange(len(relevant))
    if development:
        model, others = grown("training", everything), development.candidates.pairs()
        run = development.run_of(np.arange(len(others)), model.score(others))
        return Outcome(model, run, {"development": development.mean_of("AP", run)})
    held_out_run: Run = {}
    figures = {}
    for fold, training, held_out in split_topics(pairs.query_index, folds, seed, twins=data.twins):
        model = grown(fold, training)
        run = data.run_of(held_out, model.evaluate(table.values[held_out]))
        held_out_run |= run
        figures[fold] = data.mean_of("AP", run)
    if folds > 1:
        model = grown("all topics", everything)
    return Outcome(model, held_out_run, figures, folds)
