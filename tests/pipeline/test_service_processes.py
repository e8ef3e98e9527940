"""A model that several processes score."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.reranking_samples import AWKWARD, POSTS, QUERIES, all_pairs

from pipeline.service.http.processes import ParallelScorer
from rerankers import checkpoint as checkpoints
from rerankers.errors import RerankerError
from rerankers.reranker import TrainedReranker

EVERY = [*POSTS, *((text, text) for text in AWKWARD.values()), ("", "")]
PAIRS = all_pairs([*QUERIES, *AWKWARD.values()], EVERY)


@pytest.fixture(scope="module")
def checkpoint() -> TrainedReranker:
    multiprocessing.set_forkserver_preload(["pipeline.service.http.preload"])
    return checkpoints.load(checkpoints.find("mp_hcnn"))


@pytest.fixture(scope="module")
def scorer(checkpoint: TrainedReranker) -> Iterator[ParallelScorer]:
    scorer = ParallelScorer(checkpoint.directory, 1 << 28, 2)
    scorer.warm_up()
    yield scorer
    del scorer


def scoring_processes() -> list[int]:
    children = multiprocessing.active_children()
    return [child.pid for child in children if child.name == "scores" and child.pid]


def test_scores_are_those_of_the_checkpoint(
    checkpoint: TrainedReranker, scorer: ParallelScorer
) -> None:
    expected, distinct = checkpoint.score(PAIRS), len({*EVERY})
    hits, misses = scorer.hits, scorer.misses
    for _ in range(2):
        np.testing.assert_allclose(scorer.score(PAIRS), expected, rtol=1e-6, atol=4e-6)
    # A post is read by one process only.
    assert scorer.misses - misses == distinct
    looked_up = 2 * len(PAIRS.queries) * distinct
    assert scorer.hits - hits == looked_up - distinct
    assert 0 < scorer.bytes < 1 << 28


def test_threads_get_their_own_answers(scorer: ParallelScorer) -> None:
    expected = scorer.score(PAIRS)
    rng = np.random.default_rng(1)
    parts = [np.sort(rng.choice(len(PAIRS), 30, replace=False)) for _ in range(40)]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda rows: scorer.score(PAIRS.take(rows)), parts)
        for rows, scores in zip(parts, answers, strict=True):
            np.testing.assert_allclose(scores, expected[rows], rtol=1e-6, atol=4e-6)
    assert scorer.score(PAIRS.take(np.zeros(0, np.int64))).shape == (0,)


def test_an_error_is_of_one_request_only(scorer: ParallelScorer) -> None:
    expected = scorer.score(PAIRS)
    broken = replace(PAIRS, queries=[None] * len(PAIRS.queries), memo={})  # type: ignore[list-item]
    with pytest.raises((TypeError, AttributeError)) as raised:
        scorer.score(broken)
    # Where it happened is not lost.
    assert any("in query" in note for note in raised.value.__notes__)
    np.testing.assert_allclose(scorer.score(PAIRS), expected, rtol=1e-6, atol=4e-6)


def test_processes_end_with_their_scorer(checkpoint: TrainedReranker) -> None:
    before = {*scoring_processes()}
    scorer = ParallelScorer(checkpoint.directory, 1 << 20, 1)
    scorer.warm_up()
    (process,) = {*scoring_processes()} - before
    os.kill(process, signal.SIGTERM)  # It is for the service.
    assert scorer.score(PAIRS).shape == (len(PAIRS),)
    del scorer
    end = time.monotonic() + 10
    while process in scoring_processes() and time.monotonic() < end:
        time.sleep(0.01)
    assert {*scoring_processes()} == before


def test_a_checkpoint_that_a_process_cannot_load(tmp_path: Path) -> None:
    scorer = ParallelScorer(tmp_path, 1 << 20, 2)
    with pytest.raises(RerankerError, match="found no readable JSON"):
        scorer.warm_up()
