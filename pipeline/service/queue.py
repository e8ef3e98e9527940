"""The queue of requests, each with a deadline, and the threads that take them to the scorers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any

from pipeline.service.errors import RequestError
from pipeline.service.worker import Scorer, Scores
from rerankers.pairs import Pairs
from rerankers.reranker import SOME

CHECKED = 5.0  # Seconds without a score after which a service with work is not well
RECENT = 0.1  # Share of the last request in the mean seconds of a pair


@dataclass(eq=False)
class QueuedRequest:
    """The pairs of a request, which are scored together.

    Attributes:
        scorer, name: of the model that scores them.
        deadline: on the clock of ``time.perf_counter``; None is never.
        queued, started, inference: times of its arrival and of its beginning; seconds of work.
        dropped: nobody waits for it any more.
    """

    scorer: Scorer
    name: str
    pairs: Pairs
    deadline: float | None = None
    queued: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    inference: float = 0.0
    dropped: bool = False
    future: Future[Scores] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.future.set_running_or_notify_cancel()  # A thread may always set its result.


class Queue:
    """A bounded queue, and threads, one for each process that scores.

    Args:
        threads: their number.
        most_pairs: in the queue and in work.
        most_requests: the same for requests.
        report: called with the number of pairs of each request, in a thread.
    """

    def __init__(
        self,
        threads: int,
        most_pairs: int,
        most_requests: int,
        report: Callable[[int], Any] = lambda pairs: None,
    ) -> None:
        self.threads, self._report = threads, report
        self.most_pairs, self.most_requests = most_pairs, most_requests
        self.pairs, self.requests = 0, 0
        self._waiting: deque[QueuedRequest] = deque()
        self._changed, self._ended = Condition(), False
        self._seconds, self._last = 0.0, time.monotonic()  # Of a pair; time of the last score
        self._threads = [
            Thread(target=self._work, args=(number,), name=f"scores {number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads after the requests that wait."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def queued(self) -> int:
        """Requests that no thread has taken yet."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether no further request is taken."""
        return self.requests >= self.most_requests or self.pairs >= self.most_pairs

    async def score(self, request: QueuedRequest) -> Scores:
        """Scores [P] of a request; it is dropped if the caller is cancelled.

        Raises RequestError if the queue is full, or the deadline is past, or will be.
        """
        size, left = len(request.pairs), None
        if self.requests and (self.is_full or self.pairs + size > self.most_pairs):
            problem = f"{self.requests} requests of {self.pairs} documents are waiting"
            raise RequestError("overload", f"{problem}, more than fit; try again later", retry=1)
        if request.deadline is not None:
            left = request.deadline - time.perf_counter()
            if self._waiting and self._seconds * self.pairs / self.threads > left:
                problem = f"{self.pairs} documents are waiting, for longer than the deadline"
                raise RequestError("deadline", problem)
        self.pairs, self.requests = self.pairs + size, self.requests + 1
        self._put(request)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(request.future), left)
        except TimeoutError:
            raise RequestError("deadline", "the deadline of the request is past") from None
        finally:
            request.dropped = True
            self.pairs, self.requests = self.pairs - size, self.requests - 1

    async def is_well(self, scorer: Scorer, name: str) -> bool:
        """Whether there are scores: of the last seconds, else of some pairs before all others."""
        if time.monotonic() - self._last < CHECKED:
            return True
        started, probe = time.monotonic(), QueuedRequest(scorer, name, SOME)
        self._put(probe, is_first=True)
        while not probe.future.done() and self._last < started:
            if time.monotonic() > started + CHECKED:
                break
            await asyncio.sleep(0.02)
        probe.dropped = True
        return self._last >= started

    def _put(self, request: QueuedRequest, is_first: bool = False) -> None:
        with self._changed:
            if is_first:
                self._waiting.appendleft(request)
            else:
                self._waiting.append(request)
            self._changed.notify()

    def _next(self) -> QueuedRequest | None:
        """Wait for a request; none is the end."""
        with self._changed:
            while True:
                while self._waiting:
                    request, now = self._waiting.popleft(), time.perf_counter()
                    if not (request.dropped or (request.deadline or now) < now):
                        return request
                if self._ended:
                    return None
                self._changed.wait()

    def _work(self, number: int) -> None:
        while request := self._next():
            self._report(len(request.pairs))
            request.started = time.perf_counter()
            try:
                scores = request.scorer.score(number, request.name, request.pairs)
            except Exception as error:
                request.future.set_exception(error)
                continue
            request.inference = time.perf_counter() - request.started
            self._last = time.monotonic()
            of_pair = request.inference / max(1, len(scores))
            self._seconds += RECENT * (of_pair - self._seconds)
            request.future.set_result(scores)
