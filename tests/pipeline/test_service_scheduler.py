"""The queue of the service: slices, order, failures."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from helpers.service_samples import GatedScorer, run_apart, scored_by

from pipeline.service.http.models import ServedModel
from pipeline.service.http.scheduler import SLICE, QueuedRequest, Scheduler
from rerankers.errors import RerankerError


@pytest.fixture
def scorer() -> GatedScorer:
    return GatedScorer()


@pytest.fixture
def model(scorer: GatedScorer) -> ServedModel:
    return scored_by(scorer).default


def queued(model: ServedModel, count: int, query: str = "") -> QueuedRequest:
    """A request whose texts have the lengths 0, 1, 2, …"""
    texts = ["x" * n for n in range(count)]
    return QueuedRequest(model, query, texts, [""] * count)


def run(use: Callable[[Scheduler], Coroutine[Any, Any, None]], threads: int = 1) -> None:
    scheduler = Scheduler(threads, most_pairs=10_000, most_requests=100)

    async def main() -> None:
        scheduler.start()
        try:
            await use(scheduler)
        finally:
            await asyncio.to_thread(scheduler.stop)

    run_apart(main)
    assert (scheduler.pairs, scheduler.requests) == (0, 0)


async def started(scheduler: Scheduler, request: QueuedRequest) -> "asyncio.Task[Any]":
    """The task of a request that is in the queue."""
    task = asyncio.create_task(scheduler.score(request))
    await asyncio.sleep(0)
    return task


async def blocked(scheduler: Scheduler, scorer: GatedScorer, request: QueuedRequest) -> Any:
    """The task of a request in work, at a closed gate."""
    task = await started(scheduler, request)
    await asyncio.to_thread(scorer.begun.wait, 10)
    return task


@pytest.mark.parametrize("threads", [1, 3])
def test_a_large_request_is_cut(scorer: GatedScorer, model: ServedModel, threads: int) -> None:
    async def use(scheduler: Scheduler) -> None:
        scorer.gate.set()
        count = 3 * SLICE
        assert (await scheduler.score(queued(model, count))).tolist() == list(range(count))
        assert sum(scorer.seen) == count
        assert max(scorer.seen) <= SLICE

    run(use, threads)


def test_small_requests_of_a_model_are_scored_together(
    scorer: GatedScorer, model: ServedModel
) -> None:
    other_scorer = GatedScorer()
    other = scored_by(other_scorer).default

    async def use(scheduler: Scheduler) -> None:
        first = await blocked(scheduler, scorer, queued(model, 1))
        requests = [queued(m, 10, "q" * n) for n in range(1, 4) for m in (model, other)]
        tasks = [await started(scheduler, request) for request in requests]
        scorer.gate.set()
        other_scorer.gate.set()
        for request, task in zip(requests, tasks, strict=True):
            expected = [100 * len(request.query) + length for length in range(10)]
            assert (await task).tolist() == expected
        await first
        assert (scorer.seen, other_scorer.seen) == ([1, 30], [30])

    run(use)


def test_large_and_small_requests_take_turns(scorer: GatedScorer, model: ServedModel) -> None:
    """Small ones come first, but for every fourth turn."""

    async def use(scheduler: Scheduler) -> None:
        large = await blocked(scheduler, scorer, queued(model, 20 * SLICE))
        small = [await started(scheduler, queued(model, SLICE, "q")) for _ in range(8)]
        scorer.gate.set()
        assert (await large).tolist() == list(range(20 * SLICE))
        for task in small:
            assert (await task).tolist() == list(range(100, 100 + SLICE))
        # The first slice of the large one was in work already.
        starts = [len(texts[0]) for texts in scorer.first_texts]
        places = [place for place, start in enumerate(starts) if start == 0][1:]
        assert places[0] <= 2 and max(np.diff(places)) == 2
        assert places[-1] <= 11

    run(use)


def test_a_failure_is_of_one_request_only(scorer: GatedScorer, model: ServedModel) -> None:
    async def use(scheduler: Scheduler) -> None:
        first = await blocked(scheduler, scorer, queued(model, 1))
        bad = QueuedRequest(model, "q", ["fail"], [""])
        tasks = [await started(scheduler, request) for request in (queued(model, 5), bad)]
        scorer.gate.set()
        await first
        assert (await tasks[0]).tolist() == list(range(5))
        with pytest.raises(RerankerError, match="fail"):
            await tasks[1]

    run(use)
