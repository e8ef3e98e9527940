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

PATIENCE = 30  # Trees without a better AP on held-out topics that end the search for their number

Report = Callable[[str], object]
Callback = Callable[[Any], None]  # Of LightGBM


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
    """Trees for each objective, in LightGBM's text format, from the features ``values`` [P, K] of
    pairs, with ``names`` [K]; some pairs are ``relevant`` [P]. Posts of a query, ``query_index``
    [P], are ranked together; ``weights`` [P] are those of the pairs. Trees to ``start`` from are
    extended, by half as many as are grown otherwise: what many collections taught them is kept
    where a few topics of one's own say nothing. Raises RerankerError if LightGBM cannot grow any,
    no topic has both a relevant and another post, or ``start`` has other objectives or features
    that are not the first ones here."""
    positives, queries = set(query_index[relevant]), set(query_index[~relevant])
    if not positives & queries:
        raise RerankerError(
            "found no training topic with both a relevant and another post among its candidates"
        )
    if start:
        starts_alike = tuple(names[: len(start.names)]) == tuple(start.names)
        if not starts_alike or start.config.objectives != config.objectives:
            raise RerankerError(
                "found a model of other features or objectives to start from"
            )
    order = np.argsort(query_index, kind="stable")
    _, sizes = np.unique(query_index, return_counts=True)

    def data(options: Mapping[str, Any]) -> Any:
        return lightgbm().Dataset(
            values[order],
            label=relevant[order].astype(np.int32),
            weight=None if weights is None else weights[order],
            group=sizes,
            feature_name=[
                name.replace(":", "/") for name in names
            ],  # It refuses colons.
            params=dict(options),
            free_raw_data=False,
        )

    lists = []
    try:
        for row, objective in enumerate(config.objectives.split(",")):
            options = _options(config, objective, config.seed + row, bool(start))
            report = _counting(progress, f"{objective}, its number of trees: ")
            count, first = (
                _best_count(config, options, data(options), sizes, report),
                None,
            )
            if start:
                count, first = -(-config.trees // 2), start.boosters[row]
            how = {
                "init_model": first,
                "callbacks": [_counting(progress, f"{objective}, trees: ")],
            }
            lists.append(
                lightgbm().train(options, data(options), count, **how).model_to_string()
            )
    except lightgbm().basic.LightGBMError as error:
        raise RerankerError(
            f"LightGBM cannot grow trees over these pairs ({error}); "
            "train with a greater `minimum_leaf`"
        ) from None
    return lists


def _best_count(
    config: BoostingConfig,
    options: dict[str, Any],
    data: Any,
    sizes: Rows,
    report: Callback,
) -> int:
    """The number of trees with the best AP on held-out topics, mean over the parts."""
    if (parts := min(config.parts, len(sizes))) < 2:
        return config.trees
    topics = np.random.default_rng(config.seed).permutation(len(sizes))
    owners = np.repeat(np.arange(len(sizes)), sizes)
    held_out = [np.isin(owners, part) for part in np.array_split(topics, parts)]
    folds = [(np.flatnonzero(~each), np.flatnonzero(each)) for each in held_out]
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
        grown = state.iteration + 1 - state.begin_iteration
        progress(f"{label}{grown} of {state.end_iteration - state.begin_iteration}")

    return report
