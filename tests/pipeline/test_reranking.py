"""Candidates: their priors and their pairs of texts."""

import math

import numpy as np
import pytest

from indexes.posts import Post
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Run
from pipeline.ranking.retrievers import Candidates, RunRetriever, priors_of
from rerankers.base import FIRST_STAGE, ORDER, PRIOR


def worth(rank: int) -> float:
    return 1 / math.log(rank + 1)


def test_prior_is_the_mean_over_runs() -> None:
    """Posts and topics missing from a run count 0 there."""
    first = {"1": {"a": 3.0, "b": 2.0, "c": 1.0}, "2": {"x": 0.5}}
    second = {"1": {"c": 0.9, "a": 0.1}, "3": {"y": 1.0}}
    priors = priors_of([first, second])
    assert priors["1"] == pytest.approx(
        {"a": (worth(1) + worth(2)) / 2, "b": worth(2) / 2, "c": (worth(3) + worth(1)) / 2}
    )
    assert priors["2"] == pytest.approx({"x": worth(1) / 2})
    assert priors["3"] == pytest.approx({"y": worth(1) / 2})
    assert set(priors) == {"1", "2", "3"}
    assert priors_of([]) == {}


def test_priors_rank_as_trec_eval_does() -> None:
    """Equal scores by growing id, read backwards; scores in single precision."""
    run = {"1": {"10": 2.0, "9": 2.0, "a": 1.0, "b": 1.0 + 1e-12, "z": 2.5}}
    order = ["z", "9", "10", "b", "a"]
    expected = {doc_id: worth(rank) for rank, doc_id in enumerate(order, start=1)}
    assert priors_of([run])["1"] == pytest.approx(expected)
    other = {"1": {"10": 2.0, "9": 2.0, "a": 1.0 + 1e-12, "b": 1.0, "z": 2.5}}
    assert priors_of([other]) == priors_of([run])


TOPICS = [Topic("1", "storm"), Topic("2", "nothing found"), Topic("3", "library")]
POSTS = {name: Post(name, f"text of {name}", f"http://{name}.example.org") for name in "cab"}
RUN: Run = {"3": {"b": 0.0}, "1": {"a": 0.5, "b": 0.75}}


@pytest.mark.parametrize(
    ("priors", "expected"),
    [
        (None, [worth(2), worth(1), worth(1)]),
        ({}, [0.0, 0.0, 0.0]),
        ({"1": {"b": 0.25, "other": 9.0}, "4": {"a": 1.0}}, [0.0, 0.25, 0.0]),
    ],
)
def test_pairs_of_candidates(priors: Run | None, expected: list[float]) -> None:
    """In the order of the topics, with given priors or those of the run's ranks."""
    candidates = Candidates(TOPICS, RUN, POSTS, priors)
    pairs = candidates.pairs()
    assert candidates.keys() == [("1", "a"), ("1", "b"), ("3", "b")]
    found = [
        (pairs.queries[query], pairs.texts[post], pairs.urls[post])
        for query, post in zip(pairs.query_index, pairs.post_index, strict=True)
    ]
    assert found == [
        ("storm", "text of a", "http://a.example.org"),
        ("storm", "text of b", "http://b.example.org"),
        ("library", "text of b", "http://b.example.org"),
    ]
    assert pairs.signals[PRIOR].dtype == pairs.signals[FIRST_STAGE].dtype == np.float32
    assert pairs.signals[PRIOR].tolist() == pytest.approx(expected)
    assert pairs.signals[FIRST_STAGE].tolist() == [0.5, 0.75, 0.0]
    assert [pairs.doc_ids[post] for post in pairs.post_index] == ["a", "b", "b"]


def test_pairs_have_the_scores_of_other_rankers() -> None:
    """NaN where a ranker lacks the post or topic; other posts and topics are ignored."""
    rm3: Run = {"1": {"b": 2.5, "c": 9.0}, "3": {"b": -1.0}, "9": {"a": 1.0}}
    candidates = Candidates(TOPICS, RUN, POSTS, {}, {"rm3": rm3, "bm25": {}})
    signals = candidates.pairs().signals
    assert set(signals) == {FIRST_STAGE, ORDER, PRIOR, "rm3", "bm25"}
    np.testing.assert_array_equal(signals["rm3"], np.array([np.nan, 2.5, -1.0], np.float32))
    assert signals["rm3"].dtype == np.float32
    assert np.isnan(signals["bm25"]).all() and len(signals["bm25"]) == 3
    assert signals[FIRST_STAGE].tolist() == [0.5, 0.75, 0.0]
    assert set(Candidates(TOPICS, RUN, POSTS).pairs().signals) == {FIRST_STAGE, ORDER, PRIOR}


def test_candidates_of_a_run_have_the_priors_of_their_ranks() -> None:
    run = {"1": {"a": 1.0, "b": 3.0, "c": 2.0}}
    found = RunRetriever(run, lambda doc_ids: {d: POSTS[d] for d in doc_ids}, "a run").search(
        TOPICS, hits=2
    )
    priors = found.pairs().signals[PRIOR]
    assert dict(zip(found.keys(), priors.tolist(), strict=True)) == pytest.approx(
        {("1", "b"): worth(1), ("1", "c"): worth(2)}
    )
