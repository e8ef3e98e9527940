"""Trees: LightGBM's values by bit vectors, their growing, and posts that are kept between calls."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lightgbm
import numpy as np
import pytest
from helpers import reranking_samples as samples

from tweetrerank.rerankers import checkpoint, devices, features
from tweetrerank.rerankers.features.recent import RecentPosts
from tweetrerank.rerankers.pairs import Pairs
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.vocabulary import Idf
from tweetrerank.rerankers.trees.boosting import BoostingConfig, Trees
from tweetrerank.rerankers.trees.forest import MOST_LEAVES, Forest
from tweetrerank.rerankers.trees.window import WINDOW_FAMILIES


def random_features(rows: int, columns: int) -> np.ndarray:
    """Random features, a tenth of them zero and a tenth missing."""
    random = np.random.default_rng(1)
    values = random.normal(size=(rows, columns)).round(1)
    values[random.random(values.shape) < 0.1] = np.nan
    values[random.random(values.shape) < 0.1] = 0.0
    return values.astype(np.float32)


def grown(leaves: int, **options: Any) -> lightgbm.Booster:
    values = random_features(4000, 6)
    labels = np.nan_to_num(values) @ np.arange(6) + 3 * np.isnan(values[:, 0])
    options |= {
        "num_leaves": leaves,
        "min_data_in_leaf": 1,
        "verbosity": -1,
        "num_threads": 1,
    }
    return lightgbm.train(options, lightgbm.Dataset(values, label=labels), 20)


@pytest.mark.parametrize(
    "options", [{}, {"zero_as_missing": True}, {"use_missing": False}]
)
@pytest.mark.parametrize("leaves", [2, 8, 9, 33, MOST_LEAVES])
def test_trees_of_any_size_that_miss_values(
    leaves: int, options: dict[str, bool]
) -> None:
    booster, values = grown(leaves, **options), random_features(300, 6)
    (found,) = Forest([booster.model_to_string()]).sums(values)
    np.testing.assert_array_equal(found, booster.predict(values, num_threads=1))


def test_a_value_at_a_threshold_goes_to_the_left() -> None:
    booster = grown(8)
    thresholds = booster.trees_to_dataframe().query("abs(threshold) < 1e30")
    columns = thresholds["split_feature"].str.removeprefix("Column_").astype(int)
    values = np.zeros((len(columns), 6), np.float32)
    values[np.arange(len(columns)), columns] = thresholds["threshold"]
    values = np.concatenate([values, np.nextafter(values, np.float32(9))])
    (found,) = Forest([booster.model_to_string()]).sums(values)
    np.testing.assert_array_equal(found, booster.predict(values, num_threads=1))


def test_several_lists_and_trees_without_a_split() -> None:
    lists = [grown(4), grown(2, min_gain_to_split=1e9), grown(7)]
    trees, values = (
        Forest([each.model_to_string() for each in lists]),
        random_features(5, 6),
    )
    expected = [each.predict(values, num_threads=1) for each in lists]
    np.testing.assert_array_equal(trees.sums(values), expected)
    assert trees.sums(values[:0]).shape == (3, 0)
    # A training of few pairs splits nothing.
    constant = lists[1].model_to_string()
    np.testing.assert_array_equal(Forest([constant]).sums(values), expected[1:2])
    nothing = constant.partition("Tree=0")[0] + "end of trees"
    assert Forest([nothing]).sums(values).tolist() == [[0.0] * 5]


def test_larger_trees_and_other_kinds_are_errors() -> None:
    with pytest.raises(
        RerankerError, match=r"leaves: found 65, expected .*, 64 at most"
    ):
        BoostingConfig(leaves=65, families="links")
    with pytest.raises(ValueError, match="65 leaves, 64 at most"):
        Forest([grown(65).model_to_string()])
    with pytest.raises(ValueError, match="linear leaves"):
        Forest([grown(4, linear_tree=True).model_to_string()])


def fitted(
    pairs: Pairs, relevant: np.ndarray, progress: Any = print, **changes: Any
) -> Trees:
    config = samples.small_config("lambdamart", "all", **changes)
    return samples.fitted("lambdamart", config, pairs, relevant, progress=progress)


def test_training_is_independent_of_the_order_of_topics() -> None:
    pairs, relevant = samples.pairs_that_rm3_orders()
    order = np.argsort(-pairs.query_index, kind="stable")
    turned = fitted(pairs.take(order), relevant[order])
    assert turned.files() == fitted(pairs, relevant).files()
    with pytest.raises(RerankerError, match="found no training topic with both"):
        fitted(pairs, np.zeros_like(relevant))


def test_parts_choose_few_trees_for_random_labels() -> None:
    pairs, _ = samples.pairs_that_rm3_orders()
    noise = np.random.default_rng(1).random(len(pairs)) < 0.3
    ((few,), (every,)) = (
        fitted(pairs, noise, trees=40, parts=n).boosters for n in (3, 0)
    )
    assert 1 <= few.num_trees() < every.num_trees() == 40


def test_every_tree_is_progress() -> None:
    told: list[str] = []
    fitted(*samples.pairs_that_rm3_orders(), told.append, trees=3, parts=2)
    counts = [f"lambdarank, its number of trees: {tree} of 3" for tree in (1, 2, 3)]
    assert told[:3] == counts
    assert told[3:] and all(text.startswith("lambdarank, trees: ") for text in told[3:])


IDF = samples.encoder().idf
OTHER_IDF = Idf.from_document_frequencies(
    {"bbc": 3, "cuts": 1}, 10, "counted elsewhere"
)
EVERY = [*samples.POSTS, *((text, text) for text in samples.AWKWARD.values()), ("", "")]
PAIRS = samples.all_pairs([*samples.QUERIES, "zzz new"], EVERY)


def values(
    pairs: Pairs, idf: Idf = IDF, known: RecentPosts | None = None
) -> list[object]:
    lists = features.CandidateLists(pairs, WINDOW_FAMILIES, idf, known)
    return [
        np.nan_to_num(lists.features(rows), nan=-1.0).tolist() for rows in lists.rows
    ]


def of_query(number: int) -> Pairs:
    return PAIRS.take(np.flatnonzero(PAIRS.query_index == number))


@pytest.mark.parametrize("max_bytes", [0, 40_000, 10**6])
def test_features_are_those_of_posts_that_are_read(max_bytes: int) -> None:
    """With new and known posts, and with posts that are dropped."""
    kept = RecentPosts(max_bytes)
    for number in [*range(len(samples.QUERIES)), 0]:
        pairs = of_query(number)
        half = pairs.take(np.arange(len(pairs) // 2))
        for part in (half, pairs):
            assert values(part, known=kept) == values(part)
            assert kept.bytes <= max_bytes
    assert (kept.hits > 0) == (kept.bytes > 0) == (max_bytes > 0)


def test_posts_of_another_source_are_not_used() -> None:
    kept, pairs = RecentPosts(10**6), of_query(0)
    for idf in (IDF, OTHER_IDF, IDF):
        assert values(pairs, idf, kept) == values(pairs, idf)
    assert not kept.hits
    words = kept.words(OTHER_IDF)
    older = kept.reader(pairs, kept.words(IDF))
    assert words is not kept.words(IDF)
    kept.words(OTHER_IDF)
    older(np.arange(len(EVERY)))  # of a call that began before
    assert not kept.bytes


def test_threads_share_the_posts() -> None:
    kept, expected = (
        RecentPosts(40_000),
        [values(of_query(n)) for n in range(len(samples.QUERIES))],
    )
    with ThreadPoolExecutor(4) as pool:
        numbers = [*range(len(samples.QUERIES))] * 5
        found = pool.map(lambda number: values(of_query(number), known=kept), numbers)
        assert [*found] == expected * 5
    assert 0 < kept.bytes <= kept.max_bytes


def test_a_model_keeps_posts() -> None:
    ready = checkpoint.load(checkpoint.SHIPPED / "window" / "all")
    scorer = ready.remembering(10**6)
    pairs = of_query(0)
    for hits in (0, len(EVERY)):
        assert scorer.score(pairs).tolist() == ready.score(pairs).tolist()
        assert (scorer.counts["hits"], scorer.counts["misses"]) == (hits, len(EVERY))
    assert 0 < scorer.counts["bytes"] <= 10**6


def failing(number: int) -> Iterator[int]:
    yield number
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    raise RerankerError("found 2")


def test_processes_share_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = features.table(PAIRS, WINDOW_FAMILIES, IDF).values
    monkeypatch.setattr(features, "MANY", 2)
    monkeypatch.setattr(features, "processes", lambda: 3)
    assert np.array_equal(
        features.table(PAIRS, WINDOW_FAMILIES, IDF).values, alone, equal_nan=True
    )
    told = features.of_lists(
        PAIRS, ["links"], IDF, None, lambda _: np.array([os.getpid()])
    )
    assert len({os.getpid(), *(int(pid[0]) for _, pid in told)}) == 4
    for number, problem in ((2, "found 2"), (3, "has ended early")):
        with pytest.raises(RerankerError, match=problem):
            list(devices.in_processes(failing, [number]))
