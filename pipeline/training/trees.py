"""Train boosted trees on the features of all training lists."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tweetrerank.pipeline.runtime import part_bar
from tweetrerank.pipeline.training.training_set import JudgedCandidates
from tweetrerank.pipeline.training.validation import Outcome, Plan, validated
from tweetrerank.rerankers import checkpoint, features, registry
from tweetrerank.rerankers.features import FeatureTable
from tweetrerank.rerankers.pairs import NUMBER
from tweetrerank.rerankers.text.ragged import Rows
from tweetrerank.rerankers.trees.boosting import BoostingConfig, Trees
from tweetrerank.rerankers.trees.growth import Report, grow

Floats = npt.NDArray[np.float32]

LOST = 0.08  # Share of the lists in which a feature family is made missing
LOST_MEANING = 0.25
"""The same share for families of word vectors. If there is a single collection, only
numbers are made missing, because its searches have everything else."""

MEANING = "meaning:"  # Prefix of the families of word vectors
GIVEN = "given"  # A family that is never dropped, since windows have forms without it


def train(plan: Plan) -> Outcome:
    """Grow trees on each part of the training set, and validate them.

    The trees extend those of the checkpoint ``plan.start`` if there is one.
    """
    data = plan.data.training
    config = plan.config
    start: Any = checkpoint.load(plan.start, plan.model) if plan.start else None
    record = {"training": {"seed": plan.settings.seed}}
    with part_bar(_parts(plan)) as progress:
        pairs = data.candidates.pairs()
        table = features.table(pairs, config.families.split(","), plan.idf)
        grow_on = grower(config, data, table, start)

        def fit(
            part: str, rows: Rows, held_out: JudgedCandidates, held_out_rows: Rows
        ) -> tuple[Trees, Floats]:
            lists = grow_on(rows, partial(progress, part))
            kind = registry.find(plan.model)
            model: Trees = kind(
                name=plan.model, config=config, idf=plan.idf, lists=lists
            )
            if held_out is data:
                return model, model.evaluate(table.values[held_out_rows])
            return model, model.score(held_out.candidates.pairs())

        return validated(plan, record, fit)


def _parts(plan: Plan) -> int:
    """Return how many times trees are grown.

    They are grown once for each fold, and if there are several, once for all topics.
    """
    if plan.data.development:
        return 1
    return plan.folds + 1 if plan.folds > 1 else plan.folds


def grower(
    config: BoostingConfig,
    data: JudgedCandidates,
    table: FeatureTable,
    start: Trees | None = None,
) -> Callable[..., list[str]]:
    """Return a function that grows trees on some pairs [B] of ``data``.

    ``table`` holds the features of ``data``. Mixed collections all get the same weight,
    and their lists lack random feature families, so that the trees learn to do without
    them.
    """
    lists = data.candidates.texts.query_index  # [P]
    relevant = data.relevant()  # [P]
    values = table.values  # [P, K]
    wholes = _numbered(data.wholes)[lists] if data.wholes else lists  # [P]
    if data.groups:
        values = _with_losses(values, table.names, wholes)
    elif any(name.startswith(NUMBER) for name in table.names):
        values = _with_losses(values, table.names, wholes, NUMBER)

    def grow_on(rows: Rows, progress: Report = lambda message: None) -> list[str]:
        weights = None
        if data.groups:
            weights = _weights(_numbered(data.groups)[lists[rows]])
        return grow(
            config,
            table.names,
            values[rows],
            relevant[rows],
            wholes[rows],
            start,
            progress,
            weights,
        )

    return grow_on


def _numbered(names: Sequence[str]) -> Rows:
    """Return a number for each name, as [Q]. Equal names have the same number."""
    return np.unique(names, return_inverse=True)[1]


def _weights(collections: Rows) -> npt.NDArray[np.float64]:
    """Return weights of pairs [P] that have the same sum for each collection.

    ``collections`` [P] is the number of each pair's collection. The mean weight is 1.
    """
    weights: npt.NDArray[np.float64] = 1 / np.bincount(collections)[collections]
    return weights / weights.mean()


def _with_losses(
    values: Floats, names: Sequence[str], lists: Rows, prefix: str = ""
) -> Floats:
    """Return features [P, K] in which random lists lack families. Their values are NaN.

    ``lists`` [P] is the number of each pair's list. Only families with a name that
    begins with ``prefix`` may be missing.
    """
    families = np.array([name.rpartition(".")[0] for name in names])  # [K]
    rng = np.random.default_rng(1)
    count = int(lists.max(initial=-1)) + 1
    remaining = values.copy()
    for family in dict.fromkeys(families.tolist()):
        if family == GIVEN or not family.startswith(prefix):
            continue
        share = LOST_MEANING if family.startswith(MEANING) else LOST
        is_lost = rng.random(count) < share
        remaining[np.ix_(is_lost[lists], families == family)] = np.nan
    return remaining
