"""The queue of the service: slices, order, deadlines, limits."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from helpers.service_samples import GatedScorer, run_apart, scored_by

from pipeline.service.errors import RequestError
from pipeline.service.http.models import ServedModel
from pipeline.service.http.scheduler import LEAST, SLICE, QueuedRequest, Scheduler
from rerankers.errors import RerankerError


@pytest.fixture
def scorer() -> GatedScorer:
    return GatedScorer()


@pytest.fixture
def model(scorer: GatedScorer) -> ServedModel:
    return scored_by(scorer).default


def job_of(model: ServedModel, count: int, query: str = "", **more: Any) -> QueuedRequest:
    """A job whose texts have the lengths 0, 1, 2, …"""
    texts = ["x" * n for n in range(count)]
    return QueuedRequest(
        model, [query], np.zeros(count, dtype=np.int64), texts, [""] * count, **more
    )


def run(
    use: Callable[[Scheduler], Coroutine[Any, Any, None]],
    threads: int = 1,
    pairs: int = 10_000,
    jobs: int = 100,
) -> None:
    scheduler = Scheduler(threads, pairs, jobs)

    async def main() -> None:
        scheduler.start()
        try:
            await use(scheduler)
        finally:
            await asyncio.to_thread(scheduler.stop)

    run_apart(main)
    assert (scheduler.pairs, scheduler.requests) == (0, 0)


async def started(scheduler: Scheduler, job: QueuedRequest) -> "asyncio.Task[Any]":
    """The task of a job that is in the queue."""
    task = asyncio.create_task(scheduler.score(job))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("threads", [1, 3])
def test_a_large_request_is_cut(scorer: GatedScorer, model: ServedModel, threads: int) -> None:
    async def use(scheduler: Scheduler) -> None:
        scorer.gate.set()
        scores = await scheduler.score(job_of(model, 1000))
        assert scores.tolist() == list(range(1000))
        assert sum(scorer.seen) == 1000
        assert max(scorer.seen) <= SLICE

    run(use, threads)


def test_idle_threads_share_a_request(scorer: GatedScorer, model: ServedModel) -> None:
    async def use(scheduler: Scheduler) -> None:
        while scheduler.idle < 2:
            await asyncio.sleep(0.001)
        task = await started(scheduler, job_of(model, 300))
        while len(scorer.seen) < 2:
            await asyncio.sleep(0.001)
        scorer.gate.set()
        assert (await task).tolist() == list(range(300))
        assert scorer.seen == [150, 150]
        # A small one is not worth it.
        while scheduler.idle < 2:
            await asyncio.sleep(0.001)
        await scheduler.score(job_of(model, LEAST))
        assert scorer.seen[2:] == [LEAST]

    run(use, 2)


def test_small_requests_are_scored_together(scorer: GatedScorer, model: ServedModel) -> None:
    async def use(scheduler: Scheduler) -> None:
        first = await started(scheduler, job_of(model, 1))
        await asyncio.to_thread(scorer.begun.wait, 10)
        jobs = [job_of(model, 10, "q" * n) for n in range(1, 6)]
        tasks = [await started(scheduler, job) for job in jobs]
        scorer.gate.set()
        for n, task in enumerate(tasks, start=1):
            assert (await task).tolist() == [100 * n + length for length in range(10)]
        await first
        assert scorer.seen == [1, 50]

    run(use)


def test_a_large_request_does_not_hold_up_a_small_one(
    scorer: GatedScorer, model: ServedModel
) -> None:
    async def use(scheduler: Scheduler) -> None:
        large = await started(scheduler, job_of(model, 20 * SLICE))
        await asyncio.to_thread(scorer.begun.wait, 10)
        small = await started(scheduler, job_of(model, 10))
        scorer.gate.set()
        assert (await small).tolist() == list(range(10))
        assert (await large).tolist() == list(range(20 * SLICE))
        # The first slice was scored already.
        assert scorer.first_texts[1] == ["", "x" * SLICE]

    run(use)


def test_turns_of_large_and_small_requests(model: ServedModel) -> None:
    scheduler = Scheduler(0, 10**6, 100)
    large = [job_of(model, 5 * SLICE) for _ in range(3)]
    scheduler._waiting.extend(large)
    for job in large:
        assert [one.request for one in scheduler._take()] == [job]
    taken = []
    for _ in range(8):
        scheduler._waiting.append(job_of(model, SLICE))
        taken += [one.request in large for one in scheduler._take()]
    assert taken == [True, False, False, False] * 2
    assert [job.taken for job in large] == [2 * SLICE, 2 * SLICE, SLICE]
    assert scheduler.queued == 3 + 2
    while scheduler._take():
        pass
    assert all(job.taken == 5 * SLICE for job in large)


def test_models_are_not_mixed(scorer: GatedScorer, model: ServedModel) -> None:
    other_scorer = GatedScorer()
    other = scored_by(other_scorer).default

    async def use(scheduler: Scheduler) -> None:
        first = await started(scheduler, job_of(model, 1))
        await asyncio.to_thread(scorer.begun.wait, 10)
        tasks = [await started(scheduler, job_of(m, 5)) for m in (model, other, model, other)]
        scorer.gate.set()
        other_scorer.gate.set()
        await asyncio.gather(first, *tasks)
        assert (scorer.seen, other_scorer.seen) == ([1, 10], [10])

    run(use)


def test_a_full_queue_refuses(scorer: GatedScorer, model: ServedModel) -> None:
    async def use(scheduler: Scheduler) -> None:
        # One request may be larger than the queue.
        tasks = [await started(scheduler, job_of(model, 40))]
        with pytest.raises(RequestError, match="waiting") as error:
            await scheduler.score(job_of(model, 1))
        assert (error.value.kind, error.value.retry) == ("overload", 1)
        scorer.gate.set()
        await asyncio.gather(*tasks)
        assert (await scheduler.score(job_of(model, 1))).tolist() == [0]

    run(use, pairs=20)


def test_too_many_requests_are_refused(scorer: GatedScorer, model: ServedModel) -> None:
    async def use(scheduler: Scheduler) -> None:
        tasks = [await started(scheduler, job_of(model, 1)) for _ in range(3)]
        with pytest.raises(RequestError):
            await scheduler.score(job_of(model, 1))
        scorer.gate.set()
        await asyncio.gather(*tasks)

    run(use, jobs=3)


def test_work_after_the_deadline_is_dropped(scorer: GatedScorer, model: ServedModel) -> None:
    async def use(scheduler: Scheduler) -> None:
        first = await started(scheduler, job_of(model, 1))
        await asyncio.to_thread(scorer.begun.wait, 10)
        late = job_of(model, 5, deadline=time.perf_counter() + 0.05)
        with pytest.raises(RequestError) as error:
            await scheduler.score(late)
        assert error.value.kind == "deadline"
        past = job_of(model, 5, deadline=time.perf_counter() - 1)
        with pytest.raises(RequestError):
            await scheduler.score(past)
        scorer.gate.set()
        await first
        await scheduler.score(job_of(model, 2))
        assert scorer.seen == [1, 2]

    run(use)


def test_a_cancelled_request_costs_nothing_more(scorer: GatedScorer, model: ServedModel) -> None:
    async def use(scheduler: Scheduler) -> None:
        task = await started(scheduler, job_of(model, 10 * SLICE))
        await asyncio.to_thread(scorer.begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        scorer.gate.set()
        await scheduler.score(job_of(model, 2))
        assert scorer.seen == [SLICE, 2]

    run(use)


def test_a_failure_is_of_one_request_only(scorer: GatedScorer, model: ServedModel) -> None:
    async def use(scheduler: Scheduler) -> None:
        first = await started(scheduler, job_of(model, 1))
        await asyncio.to_thread(scorer.begun.wait, 10)
        bad = QueuedRequest(model, ["q"], np.zeros(1, dtype=np.int64), ["fail"], [""])
        tasks = [await started(scheduler, job) for job in (job_of(model, 5), bad)]
        scorer.gate.set()
        await first
        assert (await tasks[0]).tolist() == list(range(5))
        with pytest.raises(RerankerError, match="fail"):
            await tasks[1]

    run(use)


def test_several_queries_and_slices(scorer: GatedScorer, model: ServedModel) -> None:
    async def use(scheduler: Scheduler) -> None:
        scorer.gate.set()
        count = 3 * SLICE
        queries = ["q" * n for n in range(count)]
        job = QueuedRequest(
            model, queries, np.arange(count), ["x" * (n % 7) for n in range(count)], [""] * count
        )
        expected = [100.0 * n + n % 7 for n in range(count)]
        assert (await scheduler.score(job)).tolist() == expected

    run(use, threads=2)
