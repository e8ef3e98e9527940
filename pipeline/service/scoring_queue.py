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
"""If no pair was scored for this many seconds, :meth:`Queue.is_well` tries a model."""
LATE = "the deadline of the request is past"
RECENT = 0.1  # Weight of the latest request in the running mean of seconds per pair
MOST_SLOWED = 10.0  # A request counts as at most this multiple of that mean

Work = Callable[[], Coroutine[Any, Any, Scores]]


class Scored(NamedTuple):
    """The scores of a request's pairs, and the time that they took."""

    scores: Scores  # [P]
    seconds: float  # Seconds that the work took
    queued: float  # Seconds that it waited before


@dataclass
class QueuedWork:
    """The work of a request, while it waits for a scorer."""

    work: Work
    size: int  # Pairs
    answer: asyncio.Future[Scored]
    since: float = field(default_factory=time.perf_counter)


class Queue:
    """Queue in front of ``threads`` scorers, served in the order of arrival.

    ``most_pairs`` and ``most_requests`` limit the work that waits or is in progress.
    All methods must be called in the same event loop.
    """

    def __init__(self, threads: int, most_pairs: int, most_requests: int) -> None:
        self.threads = threads
        self.most_pairs = most_pairs
        self.most_requests = most_requests
        self.pairs = 0
        self.requests = 0
        self._waiting = deque[QueuedWork]()
        self._tasks = set[asyncio.Task[None]]()
        self._pair_seconds = 0.0  # Running mean of the time per pair
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

        ``deadline`` is a time on the clock of ``time.perf_counter``. Raises
        RequestError if the queue is full, or if the deadline has passed or cannot be
        met. An error that the work raises is passed on.
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
        """Return the seconds that a request has left.

        Raises RequestError if there are none, or fewer than the waiting work will take.
        """
        seconds = deadline - time.perf_counter()
        if seconds <= 0:
            raise RequestError("deadline", LATE)
        if self.queued and self._pair_seconds * self.pairs / self.threads > seconds:
            problem = f"{self.pairs} documents are waiting"
            raise RequestError("deadline", f"{problem}, for longer than the deadline")
        return seconds

    async def is_well(self, model: ServedModel) -> bool:
        """Whether this queue still gets requests scored.

        If nothing was scored in the last :data:`CHECKED` seconds, the model has to
        score a few pairs within as many seconds.
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
        """Queue the work and return its result.

        If the caller is cancelled, work in progress still runs to its end.
        """
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
            # The task must leave the set at once, so that the next request starts
            # another.
            self._tasks -= {asyncio.current_task()}

    async def _answer(self, item: QueuedWork) -> None:
        started = time.perf_counter()
        # InvalidStateError means that the client has gone in the meantime.
        with suppress(asyncio.InvalidStateError):
            try:
                scores = await item.work()
                seconds = time.perf_counter() - started
                self._note_speed(seconds, item.size)
                item.answer.set_result(Scored(scores, seconds, started - item.since))
            except Exception as error:
                item.answer.set_exception(error)

    def _note_speed(self, seconds: float, size: int) -> None:
        """Update the mean time per pair.

        The time of one request is bounded, so that a process that hung does not distort
        the mean.
        """
        self._last_score = time.monotonic()
        bound = MOST_SLOWED * self._pair_seconds or seconds
        latest = min(seconds / size, bound)
        self._pair_seconds += RECENT * (latest - self._pair_seconds)
