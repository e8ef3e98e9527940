"""The queue of requests in front of the scorers."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from tweetrerank.pipeline.service.scorer import Scores, ServedModel
from tweetrerank.pipeline.service.service_errors import RequestError
from tweetrerank.rerankers.model import PROBE

CHECKED = 5.0
"""Seconds without a score after which :meth:`Queue.is_well` checks a model."""
LATE = "the deadline of the request is past"
RECENT = 0.1  # Share of the last request in the mean seconds of a pair
MOST_SLOWED = 10.0  # Bound of a request's weight in that mean, as a multiple of it

Work = Callable[[], Coroutine[Any, Any, Scores]]


class Scored(NamedTuple):
    """Scores of a request's pairs, and the time that they took."""

    scores: Scores  # [P]
    seconds: float  # Time of the work
    queued: float  # Seconds before it


@dataclass
class QueuedWork:
    """Work of a request that waits for a scorer."""

    work: Work
    size: int  # Pairs
    answer: asyncio.Future[Scored]
    since: float = field(default_factory=time.perf_counter)


class Queue:
    """Queue for ``threads`` scorers, in the order of arrival.

    ``most_pairs`` and ``most_requests`` are limits of the work that waits or is being
    done. All methods belong to one event loop.
    """

    def __init__(self, threads: int, most_pairs: int, most_requests: int) -> None:
        self.threads = threads
        self.most_pairs = most_pairs
        self.most_requests = most_requests
        self.pairs = 0
        self.requests = 0
        self._waiting = deque[QueuedWork]()
        self._tasks = set[asyncio.Task[None]]()
        self._pair_seconds = 0.0  # Mean time of a pair
        self._last_score = time.monotonic()

    @property
    def queued(self) -> int:
        """Number of requests that wait for a scorer."""
        return sum(not item.answer.done() for item in self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether further requests are refused."""
        return self.requests >= self.most_requests or self.pairs >= self.most_pairs

    async def run(self, work: Work, size: int, deadline: float) -> Scored:
        """Return the result of ``work`` on ``size`` pairs.

        ``deadline`` is on the clock of ``time.perf_counter``. Raises RequestError if
        the queue is full, or if the deadline has passed or cannot be kept. Errors of
        the work are raised, too.
        """
        if self.requests and (self.is_full or self.pairs + size > self.most_pairs):
            problem = f"{self.requests} requests of {self.pairs} documents are waiting"
            raise RequestError("overload", f"{problem}, more than fit; try again later")
        seconds = self._seconds_until(deadline)
        self.pairs += size
        self.requests += 1
        try:
            async with asyncio.timeout(seconds):
                return await self._enqueue(work, size)
        except TimeoutError:
            raise RequestError("deadline", LATE) from None
        finally:
            self.pairs -= size
            self.requests -= 1

    def _seconds_until(self, deadline: float) -> float:
        """Return the seconds for a request; raises RequestError if they are too few."""
        seconds = deadline - time.perf_counter()
        if seconds <= 0:
            raise RequestError("deadline", LATE)
        if self.queued and self._pair_seconds * self.pairs / self.threads > seconds:
            problem = f"{self.pairs} documents are waiting"
            raise RequestError("deadline", f"{problem}, for longer than the deadline")
        return seconds

    async def is_well(self, model: ServedModel) -> bool:
        """Whether requests are scored.

        Without a score in the last seconds, the model scores some pairs as a check.
        """
        started = time.monotonic()
        if started - self._last_score < CHECKED:
            return True
        with suppress(Exception):
            async with asyncio.timeout(CHECKED):
                check = partial(model.scorer.ask, model.name, PROBE)
                await self._enqueue(check, len(PROBE))
        return self._last_score >= started

    async def _enqueue(self, work: Work, size: int) -> Scored:
        """Return the work's result; a cancellation does not stop work in progress."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(QueuedWork(work, size, answer))
        if len(self._tasks) < self.threads:
            self._tasks.add(asyncio.create_task(self._work()))
        return await answer

    async def _work(self) -> None:
        """Do the work of one request after another, until none waits."""
        try:
            while self._waiting:
                item = self._waiting.popleft()
                if not item.answer.done():  # Otherwise the client has gone
                    await self._answer(item)
        finally:
            # Without delay: the next request starts another task.
            self._tasks -= {asyncio.current_task()}

    async def _answer(self, item: QueuedWork) -> None:
        started = time.perf_counter()
        # InvalidStateError: the client has gone meanwhile.
        with suppress(asyncio.InvalidStateError):
            try:
                scores = await item.work()
                seconds = time.perf_counter() - started
                self._note_speed(seconds, item.size)
                item.answer.set_result(Scored(scores, seconds, started - item.since))
            except Exception as error:
                item.answer.set_exception(error)

    def _note_speed(self, seconds: float, size: int) -> None:
        """Update the mean time of a pair; a process that hung counts in a bound."""
        self._last_score = time.monotonic()
        bound = MOST_SLOWED * self._pair_seconds or seconds
        latest = min(seconds / size, bound)
        self._pair_seconds += RECENT * (latest - self._pair_seconds)
