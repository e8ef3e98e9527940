"""Sampling of the pairs of a training step."""

import sys
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rerankers.errors import RerankerError
from rerankers.training.examples import Examples, TopicRows
from rerankers.training.negatives import (
    corrupted_pairs,
    mined_lists,
    nearest_negatives,
    random_lists,
    shuffled_pairs,
)
from rerankers.training.settings import Settings

# Topic 0 has both kinds, 1 only negatives, 2 only positives, 3 one of each, 4 many; mixed up.
QUERY_INDEX = np.array([4, 0, 0, 1, 2, 3, 3, 0, 1, *[4] * 30])
RELEVANT = np.array([0, 1, 0, 0, 1, 1, 0, 0, 0, *[1] * 25, *[0] * 5], dtype=bool)


def topics_of(query_index: np.ndarray, relevant: np.ndarray) -> list[TopicRows]:
    pairs: Any = SimpleNamespace(query_index=query_index)
    return Examples(pairs, relevant).topics()


@pytest.fixture
def topics() -> list[TopicRows]:
    return topics_of(QUERY_INDEX, RELEVANT)


def test_positives_are_relevant_and_negatives_are_not(topics: list[TopicRows]) -> None:
    rows = random_lists(topics, 40, 3, 8, np.random.default_rng(0))
    assert rows.shape == (40, 11)
    assert RELEVANT[rows[:, :3]].all()
    assert not RELEVANT[rows[:, 3:]].any()
    queries = QUERY_INDEX[rows]
    assert (queries == queries[:, :1]).all(), "a list mixes topics"


REPRESENTATIONS = torch.from_numpy(np.random.default_rng(3).normal(size=(len(QUERY_INDEX), 5)))


def naive_nearest(positive: int, negatives: list[int]) -> list[int]:
    """Negatives by descending cosine with the positive, all as rows."""

    def cosine(row: int) -> float:
        a, b = REPRESENTATIONS[positive].tolist(), REPRESENTATIONS[row].tolist()
        product = sum(x * y for x, y in zip(a, b, strict=True))
        return product / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5

    return sorted(negatives, key=cosine, reverse=True)


@pytest.mark.parametrize("count", [1, 4, 50])
def test_nearest_negatives_are_those_of_highest_cosine(topics: list[TopicRows], count: int) -> None:
    before = REPRESENTATIONS.clone()
    found = nearest_negatives(REPRESENTATIONS.float(), topics, count)
    assert torch.equal(REPRESENTATIONS, before)
    assert set(found) == {row for topic in topics for row in topic.positives.tolist()}
    for topic in topics:
        for positive in topic.positives.tolist():
            expected = naive_nearest(positive, topic.negatives.tolist())[:count]
            assert found[positive].tolist() == expected


@pytest.mark.parametrize("sampling", ["max", "mix"])
@pytest.mark.parametrize("negatives", [1, 5])
def test_mined_lists_hold_the_nearest(
    topics: list[TopicRows], sampling: str, negatives: int
) -> None:
    settings = Settings(sampling=sampling, batch_topics=30, positives=2, negatives=negatives)
    nearest = nearest_negatives(REPRESENTATIONS.float(), topics, negatives)
    lists = mined_lists(topics, settings, nearest, np.random.default_rng(2))
    assert lists.shape == (30, 2 + 2 * negatives)
    mined = {"max": negatives, "mix": (negatives + 1) // 2}[sampling]
    own = {row: topic.negatives.tolist() for topic in topics for row in topic.positives.tolist()}
    others = Counter[int]()
    for row in lists.tolist():
        assert QUERY_INDEX[row[0]] == QUERY_INDEX[row[1]]
        for number, positive in enumerate(row[:2]):
            block = row[2 + number * negatives : 2 + (number + 1) * negatives]
            expected = naive_nearest(positive, own[positive])
            while len(expected) < mined:  # a topic with few negatives gives them again
                expected += naive_nearest(positive, own[positive])
            assert block[:mined] == expected[:mined]
            assert set(block) <= set(own[positive])
            others.update(block[mined:])
    assert others.total() == 60 * (negatives - mined)
    if others.total() >= 60:
        assert set(others) == {row for topic in topics for row in topic.negatives.tolist()}


def test_missing_faiss_is_explained(
    topics: list[TopicRows], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(RerankerError, match=r"pip install 'tweetrerank\[cpu\]'.*`sampling` random"):
        nearest_negatives(REPRESENTATIONS.float(), topics, 3)


POST_INDEX = 100 + np.arange(len(QUERY_INDEX))  # every pair has a post of its own


@pytest.mark.parametrize("count", [1, 4])
def test_corrupted_pairs_have_posts_of_other_topics(topics: list[TopicRows], count: int) -> None:
    queries, posts, corrupted = corrupted_pairs(
        QUERY_INDEX, POST_INDEX, topics, count, np.random.default_rng(1)
    )
    assert len(queries) == len(posts) == count * (1 + 1 + 25)
    query_of_post = dict(zip(POST_INDEX.tolist(), QUERY_INDEX.tolist(), strict=True))
    rows: list[int] = []
    for before, after in zip(topics, corrupted, strict=True):
        query = QUERY_INDEX[before.positives[0]]
        assert after.positives.tolist() == before.positives.tolist()
        assert len(after.negatives) == count * len(before.positives)
        for row in after.negatives.tolist():
            assert queries[row - len(QUERY_INDEX)] == query
            of_post = query_of_post[int(posts[row - len(QUERY_INDEX)])]
            assert of_post != query and of_post in {0, 3, 4}
        rows += after.negatives.tolist()
    assert rows == list(range(len(QUERY_INDEX), len(QUERY_INDEX) + len(queries)))


@pytest.mark.parametrize(("pairs", "batch"), [(10, 4), (7, 7), (5, 12), (1, 3)])
def test_every_pair_comes_once_in_a_pass(pairs: int, batch: int) -> None:
    """Steps follow each other through the passes, across their borders too."""
    steps = [shuffled_pairs(pairs, batch, step, seed=3) for step in range(4 * pairs)]
    assert {len(step) for step in steps} == {batch}
    rows = np.concatenate(steps).tolist()
    passes = [rows[first : first + pairs] for first in range(0, len(rows), pairs)]
    assert len(passes) == 4 * batch
    assert all(sorted(one) == list(range(pairs)) for one in passes)
    if pairs > 6:
        assert all(one != following for one, following in pairwise(passes))
