"""The queue of requests, each with a deadline, for the processes that score."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from pipeline.service.errors import RequestError
from pipeline.service.worker import Scorer
from rerankers.pairs import Pairs
from rerankers.reranker import SOME

CHECKED = 5.0  # Seconds without a score after which a service with work is not well
LATE = "the deadline of the request is past"
RECENT = 0.1  # Share of the last request in the mean seconds of a pair

Result = TypeVar("Result")


class Queue:
    """A queue in the order of arrival for ``threads`` processes; its methods are of one event loop.

    Together there are ``most_pairs`` and ``most_requests`` at most, those in work among them.
    """

    def __init__(self, threads: int, most_pairs: int, most_requests: int) -> None:
        self.threads, self.most_pairs, self.most_requests = threads, most_pairs, most_requests
        self.pairs, self.requests, self.queued = 0, 0, 0
        self._numbers, self._free = [*range(threads)], asyncio.Semaphore(threads)
        self._pool = ThreadPoolExecutor(threads, "scores")
        self._seconds, self._last = 0.0, time.monotonic()  # Of a pair; time of the last score

    def stop(self) -> None:
        """End the threads after their work."""
        self._pool.shutdown()

    @property
    def is_full(self) -> bool:
        """Whether no further request is taken."""
        return self.requests >= self.most_requests or self.pairs >= self.most_pairs

    async def score(
        self, scorer: Scorer, name: str, pairs: Pairs, deadline: float | None = None
    ) -> tuple[Any, float, float]:
        """Scores [P] by a model, seconds of work and in the queue; raises as :meth:`run` does."""
        work = partial(self._score, scorer, name, pairs)
        (scores, inference), queued = await self.run(work, len(pairs), deadline)
        return scores, inference, queued

    async def run(
        self, work: Callable[[int], Result], size: int = 0, deadline: float | None = None
    ) -> tuple[Result, float]:
        """The result of ``work`` with the number of a free process, and seconds in the queue.

        ``size`` is its number of pairs, ``deadline`` on the clock of ``time.perf_counter``. Raises
        RequestError if the queue is full, or the deadline is past, or will be.
        """
        left: float | None = None
        if self.requests and (self.is_full or self.pairs + size > self.most_pairs):
            problem = f"{self.requests} requests of {self.pairs} documents are waiting"
            raise RequestError("overload", f"{problem}, more than fit; try again later", retry=1)
        if deadline is not None:
            if (left := deadline - time.perf_counter()) <= 0:
                raise RequestError("deadline", LATE)
            if self.queued and self._seconds * self.pairs / self.threads > left:
                problem = f"{self.pairs} documents are waiting, for longer than the deadline"
                raise RequestError("deadline", problem)
        self.pairs, self.requests = self.pairs + size, self.requests + 1
        try:
            async with asyncio.timeout(left):
                return await self._run(work)
        except TimeoutError:
            raise RequestError("deadline", LATE) from None
        finally:
            self.pairs, self.requests = self.pairs - size, self.requests - 1

    async def is_well(self, scorer: Scorer, name: str) -> bool:
        """Whether there are scores: of the last seconds, else of a request or of some pairs."""
        started = time.monotonic()
        if started - self._last < CHECKED:
            return True
        probe = asyncio.create_task(self._run(partial(self._score, scorer, name, SOME)))
        while self._last < started and not probe.done() and time.monotonic() < started + CHECKED:
            await asyncio.sleep(0.02)
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        return self._last >= started

    def _score(self, scorer: Scorer, name: str, pairs: Pairs, number: int) -> tuple[Any, float]:
        started = time.perf_counter()
        scores = scorer.ask(number, name, pairs)
        inference, self._last = time.perf_counter() - started, time.monotonic()
        self._seconds += RECENT * (inference / max(1, len(scores)) - self._seconds)
        return scores, inference

    async def _run(self, work: Callable[[int], Result]) -> tuple[Result, float]:
        """Wait for a free process and for its work, which goes on if the caller is cancelled."""
        started, self.queued = time.perf_counter(), self.queued + 1
        try:
            await self._free.acquire()
        finally:
            self.queued -= 1
        number, queued = self._numbers.pop(), time.perf_counter() - started

        def end(done: asyncio.Future[Result]) -> None:
            self._numbers.append(number)
            self._free.release()

        running = asyncio.get_running_loop().run_in_executor(self._pool, work, number)
        running.add_done_callback(end)
        return await asyncio.shield(running), queued
