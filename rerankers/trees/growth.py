"""Growing of boosted trees, by LightGBM."""

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
"""Trees without a better AP on held-out topics after which the search for their number
ends."""

Report = Callable[[str], object]
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
    """Grow trees for each objective; the result is in LightGBM's text format.

    Args:
        config: hyperparameters.
        names: [K] names of the features.
        values: [P, K] features of the pairs.
        relevant: [P] whether a pair is relevant.
        query_index: [P] query of each pair; posts of a query are ranked together.
        start: trees to extend, by half as many as are grown otherwise. Lessons of many
            collections stay where a few topics of a collection say nothing.
        progress: callback with a message for each tree.
        weights: [P] weights of the pairs.

    Raises:
        RerankerError: LightGBM cannot grow any tree, no topic has both a relevant and
            another post, or ``start`` has other objectives or does not begin with the
            same features.
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
            # LightGBM refuses colons.
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
    """The number of trees with the best AP on held-out topics, mean over the parts."""
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
    """Parameters of LightGBM."""
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
        # Trees that are extended may have been grown without the last features.
        "predict_disable_shape_check": is_extended,
    }


def _counting(progress: Report, label: str) -> Callback:
    """A callback of LightGBM that reports each tree."""

    def report(state: Any) -> None:
        count = state.iteration + 1 - state.begin_iteration
        total = state.end_iteration - state.begin_iteration
        progress(f"{label}{count} of {total}")

    return report
