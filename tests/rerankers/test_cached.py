"""Scores of kept posts: those of the model itself, whatever was scored before or beside them."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.reranking_samples import AWKWARD, POSTS, QUERIES, all_pairs, encoder, small_model

from rerankers.base import Pairs
from rerankers.reranker import TrainedReranker
from rerankers.scoring.cached import CachedScorer

EVERY = [*POSTS, *((text, text) for text in AWKWARD.values()), ("", "")]
ASKED = [*QUERIES, *AWKWARD.values()]

FORMS: list[tuple[str, str, dict[str, Any]]] = [
    ("mp_hcnn", "robust", {}),
    ("mp_hcnn", "robust", {"depth": 0}),
    ("mp_hcnn", "robust", {"depth": 3, "trigram_width": 3}),
    ("mp_hcnn", "robust", {"use_words": False}),
    ("mp_hcnn", "robust", {"use_post_trigrams": False, "use_url_trigrams": False}),
    ("mp_hcnn", "robust", {"similarity": "dot", "normalization": "post"}),
    ("mp_hcnn", "paper", {}),
    ("mp_hcnn", "authors", {}),  # reads padding: nothing is kept
    ("knrm", "words", {}),
]


def ready(name: str = "mp_hcnn", configuration: str = "robust", **changes: Any) -> TrainedReranker:
    model = small_model(name, configuration, **changes).eval()
    return TrainedReranker(name, model, encoder(), {}, Path("nowhere"))


def cached(checkpoint: TrainedReranker, max_bytes: int) -> CachedScorer:
    return CachedScorer(checkpoint.model, checkpoint.encoder, max_bytes)


@pytest.mark.parametrize(("name", "configuration", "changes"), FORMS)
def test_scores_are_those_of_the_checkpoint(
    name: str, configuration: str, changes: dict[str, Any]
) -> None:
    checkpoint, pairs = ready(name, configuration, **changes), all_pairs(ASKED, EVERY)
    expected, scorer = checkpoint.score(pairs), cached(checkpoint, 1 << 24)
    for _ in range(2):
        np.testing.assert_allclose(scorer.score(pairs), expected, rtol=1e-6, atol=2e-6)
    keeps = name == "mp_hcnn" and configuration != "authors"
    if keeps:
        # Each query looks each post up; only the first one does not find it.
        assert scorer.misses == len({*EVERY})
        assert scorer.hits == (2 * len(ASKED) - 1) * scorer.misses
    assert (scorer.bytes > 0) == keeps


def test_known_and_new_posts_of_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerankers.scoring.cached.BLOCK", 3)
    checkpoint, pairs = ready(), all_pairs(ASKED, EVERY)
    expected, scorer = checkpoint.score(pairs), cached(checkpoint, 1 << 24)
    rows = np.random.default_rng(1).permutation(len(pairs))
    for part in np.array_split(rows, 7):
        found = scorer.score(pairs.take(np.sort(part)))
        np.testing.assert_allclose(found, expected[np.sort(part)], rtol=1e-6, atol=2e-6)
    # Pairs in any order, each query with posts of its own.
    shuffled = dataclasses.replace(
        pairs, query_index=pairs.query_index[rows], post_index=pairs.post_index[rows], memo={}
    )
    np.testing.assert_allclose(scorer.score(shuffled), expected[rows], rtol=1e-6, atol=2e-6)


def of_one_query(posts: list[tuple[str, str]]) -> Pairs:
    return all_pairs(QUERIES[:1], posts)


def test_the_posts_asked_for_longest_ago_are_dropped() -> None:
    checkpoint = ready()
    scorer, half = cached(checkpoint, 1 << 24), len(POSTS) // 2
    scorer.score(of_one_query(POSTS[:half]))
    scorer.score(of_one_query(POSTS[half:]))
    scorer.max_bytes = scorer.bytes  # Full.
    scorer.score(of_one_query(POSTS[:2]))
    assert (scorer.hits, scorer.misses) == (2, len(POSTS))
    scorer.score(of_one_query([("water water", "")]))
    assert scorer.bytes <= scorer.max_bytes
    scorer.score(of_one_query(POSTS[:half]))
    assert scorer.hits == 2 + half
    scorer.score(of_one_query(POSTS[half:]))
    assert scorer.hits == 2 + half


def test_a_cache_without_room_scores_as_well() -> None:
    checkpoint, pairs = ready(), all_pairs(QUERIES, POSTS)
    scorer = cached(checkpoint, 0)
    for _ in range(2):
        found = scorer.score(pairs)
        np.testing.assert_allclose(found, checkpoint.score(pairs), rtol=1e-6, atol=2e-6)
    assert scorer.hits == 0


def test_threads_share_the_cache() -> None:
    checkpoint, pairs = ready(), all_pairs(ASKED, EVERY)
    expected, scorer = checkpoint.score(pairs), cached(checkpoint, 1 << 24)
    for part in np.array_split(np.arange(len(EVERY)), 5)[1:]:
        scorer.score(of_one_query([EVERY[post] for post in part]))
    scorer.max_bytes = scorer.bytes  # Too few for all posts.
    rng = np.random.default_rng(2)
    parts = [np.sort(rng.choice(len(pairs), 60, replace=False)) for _ in range(20)]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda rows: scorer.score(pairs.take(rows)), parts)
        for rows, scores in zip(parts, found, strict=True):
            np.testing.assert_allclose(scores, expected[rows], rtol=1e-6, atol=2e-6)
    assert scorer.hits > 0 and scorer.misses > len(EVERY)
    assert scorer.bytes <= scorer.max_bytes


def test_predictions_are_those_of_a_service() -> None:
    """Not only nearly: both take the same way."""
    checkpoint, posts = ready(), [*POSTS, POSTS[0]]
    scorer = cached(checkpoint, 1 << 24)
    expected = scorer.score(of_one_query(POSTS))
    found = checkpoint.predict([(QUERIES[0], post) for post in posts])
    assert found.tolist() == [*expected.tolist(), expected[0]]
