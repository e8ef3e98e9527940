"""Grow boosted trees by LightGBM."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.devices import threads
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.ragged import Rows
from tweetrerank.rerankers.trees.boosting import (
    OBJECTIVES,
    BoostingConfig,
    Trees,
    lightgbm,
)

PATIENCE = 30
"""The search for the best number of trees ends when so many more trees have not
improved AP on held-out topics."""

Report = Callable[[str], object]  # Callback that gets a message
Callback = Callable[[Any], None]  # Callback of LightGBM


def grow(
    config: BoostingConfig,
    names: Sequence[str],
    values: npt.NDArray[np.float32],
    relevant: npt.NDArray[np.bool_],
    query_index: Rows,
    start: Trees | None = None,
    progress: Report = lambda message: None,
    weights: npt.NDArray[np.float64] | None = None,
) -> list[str]:
    """Grow a list of trees for each objective; return them in LightGBM's text format.

    Args:
        config: hyperparameters.
        names: names of the K features.
        values: features of the pairs [P, K].
        relevant: whether each pair is relevant [P].
        query_index: number of each pair's query [P]. The posts of a query are ranked
            together.
        start: a model to extend, by half of ``config.trees``. It keeps what it learned
            from many collections wherever the few topics of this one say nothing. Its
            features must be the first of ``names``.
        progress: callback that gets a message for each tree.
        weights: weights of the pairs [P]. None: all are equal.

    Raises:
        RerankerError: LightGBM cannot grow any tree, no topic has both a relevant post
            and another one, or ``start`` has other objectives or features.
    """
    _check_topics(relevant, query_index)
    if start:
        _check_start(config, names, start)
    order = np.argsort(query_index, kind="stable")
    _, sizes = np.unique(query_index, return_counts=True)
    ordered_weights = None if weights is None else weights[order]

    def data(options: Mapping[str, Any]) -> Any:
        return lightgbm().Dataset(
            values[order],
            label=relevant[order].astype(np.int32),
            weight=ordered_weights,
            group=sizes,
            # LightGBM refuses colons in names.
            feature_name=[name.replace(":", "/") for name in names],
            params=dict(options),
            free_raw_data=False,
        )

    lists = []
    try:
        for row, objective in enumerate(config.objectives.split(",")):
            options = _options(config, objective, config.seed + row, bool(start))
            report = _counting(progress, f"{objective}, its number of trees: ")
            count = _best_count(config, options, data(options), sizes, report)
            first = None
            if start:
                count = -(-config.trees // 2)  # Half, rounded up
                first = start.boosters[row]
            booster = lightgbm().train(
                options,
                data(options),
                count,
                init_model=first,
                callbacks=[_counting(progress, f"{objective}, trees: ")],
            )
            lists.append(booster.model_to_string())
    except lightgbm().basic.LightGBMError as error:
        raise RerankerError(
            f"LightGBM cannot grow trees over these pairs ({error}); "
            "train with a greater `minimum_leaf`"
        ) from None
    return lists


def _check_topics(relevant: npt.NDArray[np.bool_], query_index: Rows) -> None:
    with_relevant = set(query_index[relevant])
    with_others = set(query_index[~relevant])
    if not with_relevant & with_others:
        raise RerankerError(
            "found no training topic with both a relevant and another post among its "
            "candidates"
        )


def _check_start(config: BoostingConfig, names: Sequence[str], start: Trees) -> None:
    has_names = tuple(names[: len(start.names)]) == tuple(start.names)
    if not has_names or start.config.objectives != config.objectives:
        raise RerankerError(
            "found a model of other features or objectives to start from"
        )


def _best_count(
    config: BoostingConfig,
    options: dict[str, Any],
    data: Any,
    sizes: Rows,
    report: Callback,
) -> int:
    """Return the number of trees with the best AP on held-out topics.

    The AP is the mean over a cross-validation on ``config.parts`` parts of the topics.
    If these are fewer than two, all ``config.trees`` are grown. ``sizes`` has the
    number of pairs of each topic.
    """
    parts = min(config.parts, len(sizes))
    if parts < 2:
        return config.trees
    topics = np.random.default_rng(config.seed).permutation(len(sizes))
    owners = np.repeat(np.arange(len(sizes)), sizes)  # [P] topic of each pair
    folds = []
    for part in np.array_split(topics, parts):
        is_held_out = np.isin(owners, part)
        folds.append((np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)))
    figures = lightgbm().cv(
        options | {"metric": "map", "eval_at": [int(sizes.max())]},
        data,
        num_boost_round=config.trees,
        folds=folds,
        callbacks=[report, lightgbm().early_stopping(PATIENCE, verbose=False)],
    )
    means = next(values for name, values in figures.items() if name.endswith("-mean"))
    return int(np.argmax(np.asarray(means))) + 1


def _options(
    config: BoostingConfig, objective: str, seed: int, is_extended: bool
) -> dict[str, Any]:
    """Return the parameters of LightGBM.

    ``is_extended`` says whether the trees extend a model.
    """
    return {
        **OBJECTIVES[objective],
        "lambdarank_truncation_level": config.truncation,
        "learning_rate": config.learning_rate,
        "num_leaves": config.leaves,
        "min_data_in_leaf": config.minimum_leaf,
        "lambda_l2": config.penalty,
        "feature_fraction": config.feature_fraction,
        "bagging_fraction": config.bagging,
        "bagging_freq": int(config.bagging < 1),
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": threads(),
        "verbosity": -1,
        # The model that is extended may lack the last features.
        "predict_disable_shape_check": is_extended,
    }


def _counting(progress: Report, label: str) -> Callback:
    """Return a callback for LightGBM that reports each tree as a message."""

    def report(state: Any) -> None:
        count = state.iteration + 1 - state.begin_iteration
        total = state.end_iteration - state.begin_iteration
        progress(f"{label}{count} of {total}")

    return report
