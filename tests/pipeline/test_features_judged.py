"""The family ``judged``, and what judgments say (pipeline.ranking.judged_posts)."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from helpers.feature_lists import computed, of_texts

from pipeline.collections.topics import Topic
from pipeline.collections.trec import Qrels, Run
from pipeline.command.errors import DataError
from pipeline.ranking.judged_posts import JUDGMENTS, JudgedPosts
from rerankers.features.judged import NAMES, SIGNALS
from rerankers.text.spaces import general
from rerankers.text.words import words

JUDGED = [
    Topic("1", "storm damage in the harbour"),
    Topic("2", "harbour flooded by a storm"),
    Topic("3", "football results"),
    Topic("4", "ferry sinks"),
]
QRELS: Qrels = {
    "1": {"a": 2, "b": 0},
    "2": {"a": 1, "b": 1, "c": -1},
    "3": {"b": 0, "d": 1},
    "9": {"a": 1},
}
RUN: Run = {"q": {"a": 3.0, "b": 2.0, "c": 1.5, "e": 1.0}}


def cosine(one: str, other: str) -> float:
    first, second = (general().vectors(words(text)).sum(axis=0) for text in (one, other))
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


def signals_of(text: str) -> dict[str, Run]:
    found = JudgedPosts(JUDGED, QRELS).signals([Topic("q", text), Topic("r", "storm")], RUN)
    assert tuple(found) == SIGNALS
    return found


def test_counts_and_nearest_topics() -> None:
    """A topic without judgments and judgments without a topic say nothing."""
    query = "ship in a storm"
    near = {topic.query_id: cosine(query, topic.text) for topic in JUDGED}
    assert signals_of(query) == {
        "judged_relevant": {"q": {"a": 2.0, "b": 1.0}},
        "judged_relevant_cosine": {
            "q": {"a": pytest.approx(max(near["1"], near["2"])), "b": pytest.approx(near["2"])}
        },
        "judged_other": {"q": {"b": 2.0, "c": 1.0}},
        "judged_other_cosine": {
            "q": {"b": pytest.approx(max(near["1"], near["3"])), "c": pytest.approx(near["2"])}
        },
    }


def test_a_judged_query_is_ranked_as_a_new_one() -> None:
    """Whatever its query_id; the same words are the same query."""
    others = JudgedPosts(JUDGED[1:], QRELS).signals([Topic("q", JUDGED[0].text)], RUN)
    assert signals_of("Storm damage, in the harbour!") == others
    assert others["judged_relevant"] == {"q": {"a": 1.0, "b": 1.0}}


def test_a_query_without_words() -> None:
    assert signals_of("!")["judged_relevant_cosine"]["q"] == {"a": 0.0, "b": 0.0}


def test_a_checkpoint_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / JUDGMENTS
    path.write_bytes(JudgedPosts(JUDGED, QRELS).content())
    read = JudgedPosts.read(path).signals([Topic("q", "storm")], RUN)
    assert read == JudgedPosts(JUDGED, QRELS).signals([Topic("q", "storm")], RUN)
    for content in ("", "[]", '{"1": 3}', '{"1": ["storm"]}'):
        path.write_text(content)
        with pytest.raises(
            DataError, match=r"judgments\.json: found no judgments that can be read"
        ):
            JudgedPosts.read(path)


def test_features_are_the_signals() -> None:
    """A post that was never judged has counts of 0; without judgments all is unknown."""
    candidates = of_texts("storm", "one", "two")
    assert all(map(math.isnan, np.ravel([*computed("judged", candidates).values()])))
    values = {name: np.array([n, math.nan], np.float32) for n, name in enumerate(SIGNALS, start=1)}
    found = computed("judged", dataclasses.replace(candidates, signals=values))
    assert [found[name][0] for name in NAMES] == [1.0, 2.0, 3.0, 4.0]
    assert found["relevant"][1] == found["other"][1] == 0.0
    assert math.isnan(found["relevant_cosine"][1]) and math.isnan(found["other_cosine"][1])
