"""What a training step sees."""

from collections import Counter

import numpy as np
import pytest

from rerankers.negatives import TopicRows, random_lists, topics_of

# Topic 0 has both kinds, 1 only negatives, 2 only positives, 3 one of each, 4 many; mixed up.
QUERY_INDEX = np.array([4, 0, 0, 1, 2, 3, 3, 0, 1, *[4] * 30])
RELEVANT = np.array([0, 1, 0, 0, 1, 1, 0, 0, 0, *[1] * 25, *[0] * 5], dtype=bool)


@pytest.fixture
def topics() -> list[TopicRows]:
    return topics_of(QUERY_INDEX, RELEVANT)


def test_topics_are_those_with_both_kinds(topics: list[TopicRows]) -> None:
    rows = [(topic.positives.tolist(), topic.negatives.tolist()) for topic in topics]
    assert rows == [
        ([1], [2, 7]),
        ([5], [6]),
        (list(range(9, 34)), [0, 34, 35, 36, 37, 38]),
    ]


def test_no_topics() -> None:
    assert topics_of(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)) == []
    assert topics_of(np.array([0, 0]), np.array([True, True])) == []


def test_positives_are_relevant_and_negatives_are_not(topics: list[TopicRows]) -> None:
    rows = random_lists(topics, 40, 3, 8, np.random.default_rng(0))
    assert rows.shape == (40, 11)
    assert RELEVANT[rows[:, :3]].all()
    assert not RELEVANT[rows[:, 3:]].any()
    queries = QUERY_INDEX[rows]
    assert (queries == queries[:, :1]).all(), "a list mixes topics"


def test_lists_are_of_different_topics_while_there_are_enough(topics: list[TopicRows]) -> None:
    for seed in range(10):
        rows = random_lists(topics, 3, 1, 1, np.random.default_rng(seed))
        assert len(set(QUERY_INDEX[rows[:, 0]])) == 3


def test_topics_are_drawn_evenly_however_many_posts_they_have(topics: list[TopicRows]) -> None:
    rows = random_lists(topics, 3000, 1, 1, np.random.default_rng(1))
    counts = Counter(QUERY_INDEX[rows[:, 0]].tolist())
    assert set(counts) == {0, 3, 4}
    assert all(900 < count < 1100 for count in counts.values())


def test_posts_of_a_topic_are_drawn_evenly(topics: list[TopicRows]) -> None:
    rows = random_lists(topics[2:], 500, 5, 6, np.random.default_rng(1))
    positives = Counter(rows[:, :5].ravel().tolist())
    assert len(positives) == 25
    assert all(60 < count < 140 for count in positives.values())
    negatives = Counter(rows[:, 5:].ravel().tolist())
    assert len(negatives) == 6
    assert all(420 < count < 580 for count in negatives.values())


def test_seeds(topics: list[TopicRows]) -> None:
    def draw(*seed: int) -> np.ndarray:
        return random_lists(topics, 8, 2, 4, np.random.default_rng(seed))

    np.testing.assert_array_equal(draw(1, 2), draw(1, 2))
    assert (draw(1, 2) != draw(1, 3)).any()
    assert (draw(1, 2) != draw(2, 2)).any()
