"""Trees: LightGBM's values by bit vectors, their growing, and cached posts."""

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


def assert_same_values(booster: lightgbm.Booster, values: np.ndarray) -> None:
    """The forest has LightGBM's values, bit for bit."""
    [sums] = Forest([booster.model_to_string()]).sums(values)
    np.testing.assert_array_equal(sums, booster.predict(values, num_threads=1))


@pytest.mark.parametrize(
    "options", [{}, {"zero_as_missing": True}, {"use_missing": False}]
)
@pytest.mark.parametrize("leaves", [2, 8, 9, 33, MOST_LEAVES])
def test_trees_of_any_size_that_miss_values(
    leaves: int, options: dict[str, bool]
) -> None:
    assert_same_values(grown(leaves, **options), random_features(300, 6))


def test_a_value_at_a_threshold_goes_to_the_left() -> None:
    booster = grown(8)
    splits = booster.trees_to_dataframe().query("abs(threshold) < 1e30")
    columns = splits["split_feature"].str.removeprefix("Column_").astype(int)
    values = np.zeros((len(columns), 6), np.float32)
    values[np.arange(len(columns)), columns] = splits["threshold"]
    above = np.nextafter(values, np.float32(9))
    assert_same_values(booster, np.concatenate([values, above]))


def test_several_lists_are_summed_apart() -> None:
    boosters = [grown(4), grown(2, min_gain_to_split=1e9), grown(7)]
    forest = Forest([booster.model_to_string() for booster in boosters])
    values = random_features(5, 6)
    expected = [booster.predict(values, num_threads=1) for booster in boosters]
    np.testing.assert_array_equal(forest.sums(values), expected)
    assert forest.sums(values[:0]).shape == (3, 0)


def test_trees_without_a_split() -> None:
    """A training on few pairs splits nothing."""
    assert_same_values(grown(2, min_gain_to_split=1e9), random_features(5, 6))


def test_a_list_without_trees() -> None:
    header = grown(2).model_to_string().partition("Tree=0")[0]
    sums = Forest([f"{header}end of trees"]).sums(random_features(5, 6))
    assert sums.tolist() == [[0.0] * 5]


def test_a_setting_of_too_many_leaves_is_an_error() -> None:
    message = r"leaves: found 65, expected .*, 64 at most"
    with pytest.raises(RerankerError, match=message):
        BoostingConfig(leaves=65, families="links")


@pytest.mark.parametrize(
    ("leaves", "options", "message"),
    [
        (65, {}, "65 leaves, 64 at most"),
        (4, {"linear_tree": True}, "linear leaves"),
    ],
)
def test_larger_trees_and_other_kinds_are_errors(
    leaves: int, options: dict[str, bool], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Forest([grown(leaves, **options).model_to_string()])


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


def test_training_needs_a_topic_with_both_grades() -> None:
    pairs, relevant = samples.pairs_that_rm3_orders()
    with pytest.raises(RerankerError, match="found no training topic with both"):
        fitted(pairs, np.zeros_like(relevant))


def test_parts_choose_few_trees_for_random_labels() -> None:
    pairs, _ = samples.pairs_that_rm3_orders()
    noise = np.random.default_rng(1).random(len(pairs)) < 0.3
    [chosen] = fitted(pairs, noise, trees=40, parts=3).boosters
    [all_trees] = fitted(pairs, noise, trees=40, parts=0).boosters
    assert 1 <= chosen.num_trees() < all_trees.num_trees() == 40


def test_every_tree_is_progress() -> None:
    messages: list[str] = []
    pairs, relevant = samples.pairs_that_rm3_orders()
    fitted(pairs, relevant, messages.append, trees=3, parts=2)
    assert messages[:3] == [
        "lambdarank, its number of trees: 1 of 3",
        "lambdarank, its number of trees: 2 of 3",
        "lambdarank, its number of trees: 3 of 3",
    ]
    growing = messages[3:]
    assert growing
    assert all(message.startswith("lambdarank, trees: ") for message in growing)


IDF = samples.encoder().idf
OTHER_IDF = Idf.from_document_frequencies(
    {"bbc": 3, "cuts": 1}, 10, "counted elsewhere"
)
AWKWARD = [(text, text) for text in samples.AWKWARD.values()]
POSTS = [*samples.POSTS, *AWKWARD, ("", "")]
PAIRS = samples.all_pairs([*samples.QUERIES, "zzz new"], POSTS)


def values(
    pairs: Pairs, idf: Idf = IDF, cache: RecentPosts | None = None
) -> list[object]:
    """Features of each list, with -1 for unknown ones."""
    lists = features.CandidateLists(pairs, WINDOW_FAMILIES, idf, cache)
    return [
        np.nan_to_num(lists.features(rows), nan=-1.0).tolist() for rows in lists.rows
    ]


def pairs_of_query(number: int) -> Pairs:
    return PAIRS.take(np.flatnonzero(PAIRS.query_index == number))


@pytest.mark.parametrize("max_bytes", [0, 40_000, 10**6])
def test_cached_posts_do_not_change_features(max_bytes: int) -> None:
    """With new and cached posts, and with posts that are dropped."""
    cache = RecentPosts(max_bytes)
    for number in [*range(len(samples.QUERIES)), 0]:
        pairs = pairs_of_query(number)
        half = pairs.take(np.arange(len(pairs) // 2))
        assert values(half, cache=cache) == values(half)
        assert values(pairs, cache=cache) == values(pairs)
        assert cache.bytes <= max_bytes
    assert (cache.hits > 0) == (cache.bytes > 0) == (max_bytes > 0)


def test_posts_of_another_source_of_frequencies_are_not_used() -> None:
    cache = RecentPosts(10**6)
    pairs = pairs_of_query(0)
    for idf in (IDF, OTHER_IDF, IDF):
        assert values(pairs, idf, cache) == values(pairs, idf)
    assert not cache.hits


def test_a_call_that_began_before_a_change_of_source_caches_nothing() -> None:
    cache = RecentPosts(10**6)
    words = cache.words(OTHER_IDF)
    older = cache.reader(pairs_of_query(0), cache.words(IDF))
    assert words is not cache.words(IDF)
    cache.words(OTHER_IDF)
    older(np.arange(len(POSTS)))
    assert not cache.bytes


def test_threads_share_the_posts() -> None:
    cache = RecentPosts(40_000)
    numbers = range(len(samples.QUERIES))
    expected = [values(pairs_of_query(number)) for number in numbers]
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(
            lambda number: values(pairs_of_query(number), cache=cache),
            list(numbers) * 5,
        )
        assert list(results) == expected * 5
    assert 0 < cache.bytes <= cache.max_bytes


def test_a_model_with_a_cache_counts_hits() -> None:
    plain = checkpoint.load(checkpoint.SHIPPED / "window" / "all")
    remembering = plain.remembering(10**6)
    pairs = pairs_of_query(0)
    expected = plain.score(pairs).tolist()
    assert remembering.score(pairs).tolist() == expected
    assert remembering.counts["hits"] == 0
    assert remembering.score(pairs).tolist() == expected
    assert remembering.counts["hits"] == len(POSTS)
    assert remembering.counts["misses"] == len(POSTS)
    assert 0 < remembering.counts["bytes"] <= 10**6


def failing(number: int) -> Iterator[int]:
    yield number
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    raise RerankerError("found 2")


def test_processes_share_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = features.table(PAIRS, WINDOW_FAMILIES, IDF).values
    monkeypatch.setattr(features, "MANY", 2)
    monkeypatch.setattr(features, "processes", lambda: 3)
    shared = features.table(PAIRS, WINDOW_FAMILIES, IDF).values
    assert np.array_equal(shared, alone, equal_nan=True)

    def process_of(values: np.ndarray) -> np.ndarray:
        return np.array([os.getpid()])

    lists = features.of_lists(PAIRS, ["links"], IDF, None, process_of)
    processes = {int(pid[0]) for _, pid in lists}
    assert len(processes | {os.getpid()}) == 4


@pytest.mark.parametrize(
    ("number", "message"),
    [(2, "found 2"), (3, "has ended early")],
    ids=["its error is raised", "it is killed"],
)
def test_a_failing_process_is_an_error(number: int, message: str) -> None:
    with pytest.raises(RerankerError, match=message):
        list(devices.in_processes(failing, [number]))
