"""The queue of the service: order, bounds, deadlines, failures, health."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from helpers.service_samples import GatedScorer, run_apart

from pipeline.service import queue
from pipeline.service.errors import RequestError
from pipeline.service.queue import Queue
from rerankers.errors import RerankerError
from rerankers.pairs import Pairs


@pytest.fixture
def scorer() -> GatedScorer:
    return GatedScorer()


async def score(
    waiting: Queue, scorer: GatedScorer, *texts: str, query: str = "", seconds: float = 60
) -> list[float]:
    rows = np.arange(len(texts))
    pairs = Pairs([query], texts, [""] * len(texts), 0 * rows, rows)
    scored = await waiting.score(scorer, "name", pairs, time.perf_counter() + seconds)
    return list(scored.scores.tolist())


def run(use: Callable[[Queue], Coroutine[Any, Any, None]], threads: int = 1) -> None:
    waiting = Queue(threads, most_pairs=1000, most_requests=10)

    async def main() -> None:
        try:
            await use(waiting)
        finally:
            await asyncio.to_thread(waiting.stop)

    run_apart(main)
    assert (waiting.pairs, waiting.requests) == (0, 0)


async def blocked(waiting: Queue, scorer: GatedScorer) -> "asyncio.Task[Any]":
    """The task of a request in work, at a closed gate."""
    task = asyncio.create_task(score(waiting, scorer, "first"))
    await asyncio.to_thread(scorer.begun.wait, 10)
    return task


def test_requests_are_scored_whole_and_in_their_order(scorer: GatedScorer) -> None:
    """A failure is of one request only."""

    async def use(waiting: Queue) -> None:
        first = await blocked(waiting, scorer)
        texts = [("a",), ("fail", "b"), ("bb", "ccc")]
        tasks = [asyncio.create_task(score(waiting, scorer, *each, query="q")) for each in texts]
        await asyncio.sleep(0)
        assert waiting.queued == 3
        scorer.gate.set()
        assert await first == [5]
        assert await tasks[0] == [101]
        with pytest.raises(RerankerError, match="fail"):
            await tasks[1]
        assert await tasks[2] == [102, 103]
        assert scorer.first_texts == [["first"], ["a"], ["fail"], ["bb"]]

    run(use)


def test_what_cannot_be_in_time_is_refused_at_once(scorer: GatedScorer) -> None:
    """By the seconds of a pair until now; what is past its deadline is never scored."""

    async def use(waiting: Queue) -> None:
        first = await blocked(waiting, scorer)
        with pytest.raises(RequestError, match="deadline of the request is past"):
            await score(waiting, scorer, "late", seconds=0.05)
        waiting._seconds = 0.1
        more = asyncio.create_task(score(waiting, scorer, *["x"] * 100))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="for longer than the deadline") as raised:
            await score(waiting, scorer, "a", seconds=5)
        assert raised.value.kind == "deadline"
        with pytest.raises(RequestError, match="more than fit"):
            await score(waiting, scorer, *["x"] * 1000)
        with pytest.raises(RequestError, match="deadline of the request is past"):
            await score(waiting, scorer, "late", seconds=0)
        scorer.gate.set()
        await asyncio.gather(first, more)
        assert scorer.seen == [1, 100]

    run(use)


def test_health_is_the_age_of_the_last_score(
    scorer: GatedScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue of long work is well as long as there are scores; a probe does not wait for it."""
    monkeypatch.setattr(queue, "CHECKED", 0.3)

    async def use(waiting: Queue) -> None:
        tasks = [await blocked(waiting, scorer)]
        tasks += [asyncio.create_task(score(waiting, scorer, "x")) for _ in range(5)]
        await asyncio.sleep(0.4)
        assert not await waiting.is_well(scorer, "name")
        asyncio.get_running_loop().call_later(0.1, scorer.gate.set)
        assert await waiting.is_well(scorer, "name")
        await asyncio.gather(*tasks)

    run(use)
