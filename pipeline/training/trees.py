"""Training of boosted trees: the features of all training lists -> trees."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tweetrerank.pipeline.runtime import part_bar
from tweetrerank.pipeline.training.training_set import (
    JudgedCandidates,
    Outcome,
    Plan,
    validated,
)
from tweetrerank.rerankers import checkpoint, features, registry
from tweetrerank.rerankers.features import FeatureTable
from tweetrerank.rerankers.pairs import NUMBER
from tweetrerank.rerankers.text.ragged import Rows
from tweetrerank.rerankers.trees.boosting import Trees
from tweetrerank.rerankers.trees.growth import Report, grow

Floats = npt.NDArray[np.float32]

LOST, LOST_MEANING = 0.08, 0.25
"""Share of the lists in which a family of features is missing, and one of meaning. Of a single
collection only numbers beside the text are: what ranks it has all else."""

MEANING, GIVEN = "meaning:", "given"
"""Families of word vectors, and the one that windows come without in forms of their own."""


def train(plan: Plan) -> Outcome:
    """Grow trees, which may extend those of a checkpoint."""
    data, config, folds = plan.data.training, plan.config, plan.folds
    start = checkpoint.load(plan.start, plan.model) if plan.start else None
    record = {"training": {"seed": plan.settings.seed}}
    with part_bar(1 if plan.data.development else folds + (folds > 1)) as progress:
        table = features.table(
            data.candidates.pairs(), config.families.split(","), plan.idf
        )
        grow_on = grower(config, data, table, start)

        def fit(
            part: str, rows: Rows, known: JudgedCandidates, others: Rows
        ) -> tuple[Trees, Floats]:
            lists = grow_on(rows, partial(progress, part))
            kind = registry.find(plan.model)
            model: Trees = kind(
                name=plan.model, config=config, idf=plan.idf, lists=lists
            )
            if known is data:
                return model, model.evaluate(table.values[others])
            return model, model.score(known.candidates.pairs())

        return validated(plan, record, fit)


def grower(
    config: Any, data: JudgedCandidates, table: FeatureTable, start: Any = None
) -> Callable[..., list[str]]:
    """A function that grows trees on some pairs [B] of ``data``, whose features are ``table``. Of
    mixed collections all have the same weight, and lists lack families at random."""
    lists, relevant, values = (
        data.candidates.texts.query_index,
        data.relevant(),
        table.values,
    )
    wholes = _numbered(data.wholes)[lists] if data.wholes else lists
    if data.groups or any(name.startswith(NUMBER) for name in table.names):
        values = _with_losses(
            values, table.names, wholes, "" if data.groups else NUMBER
        )

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
    weights: npt.NDArray[np.float64] = 1 / np.bincount(collections)[collections]
    return weights / weights.mean()


def _with_losses(
    values: Floats, names: Sequence[str], lists: Rows, prefix: str = ""
) -> Floats:
    """Features [P, K] that lack families, whose names begin with ``prefix``, in some lists [P]."""
    families = np.array([name.rpartition(".")[0] for name in names])
    rng, count, found = (
        np.random.default_rng(1),
        int(lists.max(initial=-1)) + 1,
        values.copy(),
    )
    for family in dict.fromkeys(families.tolist()):
        if family != GIVEN and family.startswith(prefix):
            is_lost = rng.random(count) < (
                LOST_MEANING if family.startswith(MEANING) else LOST
            )
            found[np.ix_(is_lost[lists], families == family)] = np.nan
    return found
