"""The queue of requests, and the threads that score them.

A worker takes a slice of some hundred pairs: a part of a large request, or several small ones of
the same model together; of a model that ranks a list as a whole, whole requests. The rest of a
large request waits in a second queue, which has every fourth turn, and all turns while the first is
empty: large requests do not hold up small ones, and are not held up for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.service.errors import RequestError
from pipeline.service.http.models import ServedModel
from rerankers import devices
from rerankers.pairs import Pairs

SLICE = 256  # Pairs that are scored at once by a core: a few milliseconds
BEGUN_TURN = 4  # Every so many turns, requests that are begun come before new ones

LEAST = 128
"""Pairs of a part that is worth another thread: Python's lock takes much of what two gain."""


@dataclass(eq=False)
class QueuedRequest:
    """The distinct pairs of a request: its query with each of its texts.

    Attributes:
        model: that scores them.
        texts: [P].
        urls: [P].
        signals: name -> [P].
        deadline: on the clock of ``time.perf_counter``; None is never.
        scores: [P], NaN until they are scored.
        queued, started: times of its arrival, and of its first slice.
        inference: seconds of its slices; of a shared slice, the whole.
        dropped: nobody waits for it any more.
        taken, left: pairs that a worker has taken, and that are not scored.
        future: done after the last pair, or after an error.
    """

    model: ServedModel
    query: str
    texts: Sequence[str]
    urls: Sequence[str]
    signals: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    deadline: float | None = None
    scores: npt.NDArray[np.float32] = field(init=False)
    queued: float = field(init=False, default_factory=time.perf_counter)
    started: float | None = None
    inference: float = 0.0
    dropped: bool = False
    taken: int = 0
    left: int = field(init=False)
    future: Future[None] = field(init=False, default_factory=Future)

    def __post_init__(self) -> None:
        self.left = len(self.texts)
        self.scores = np.full(self.left, np.nan, dtype=np.float32)
        self.future.set_running_or_notify_cancel()  # A worker may always set its result.


class Slice(NamedTuple):
    """Pairs ``start`` to ``stop`` of a request."""

    request: QueuedRequest
    start: int
    stop: int


class Scheduler:
    """A bounded queue, and threads that take slices from it.

    Args:
        threads: workers; each computes in one thread.
        most_pairs: in the queue and in work.
        most_requests: the same for requests.
        report: called with the number of pairs of each slice, in a worker's thread.
        slice_size: pairs of a slice, at most.

    Attributes:
        idle: workers without work.
    """

    def __init__(
        self,
        threads: int,
        most_pairs: int,
        most_requests: int,
        report: Callable[[int], None] = lambda pairs: None,
        slice_size: int = SLICE,
    ) -> None:
        self.threads, self.report, self.slice_size = threads, report, slice_size
        self.most_pairs, self.most_requests = most_pairs, most_requests
        self.pairs, self.requests = 0, 0
        self._waiting: deque[QueuedRequest] = deque()
        self._begun: deque[QueuedRequest] = deque()
        self._turns, self.idle = 0, 0
        self._changed, self._ended = Condition(), False
        self._workers = [
            Thread(target=self._work, name=f"worker-{n}", daemon=True) for n in range(threads)
        ]

    def start(self) -> None:
        """Start the workers."""
        devices.set_threads(1)
        for thread in self._workers:
            thread.start()

    def stop(self) -> None:
        """End the workers after their slices."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._workers:
            thread.join()

    @property
    def queued(self) -> int:
        """Requests with documents that no worker has taken yet."""
        return len(self._waiting) + len(self._begun)

    @property
    def is_full(self) -> bool:
        """Whether no further request is taken."""
        return self.requests >= self.most_requests or self.pairs >= self.most_pairs

    async def score(self, request: QueuedRequest) -> npt.NDArray[np.float32]:
        """Scores [P] of a request. Work not begun is dropped if the caller is cancelled.

        Raises RequestError if the queue is full, or the deadline is past.
        """
        size = len(request.texts)
        if self.requests and (self.is_full or self.pairs + size > self.most_pairs):
            problem = f"{self.requests} requests of {self.pairs} documents are waiting"
            raise RequestError("overload", f"{problem}, more than fit; try again later", retry=1)
        self.pairs, self.requests = self.pairs + size, self.requests + 1
        with self._changed:
            self._waiting.append(request)
            self._changed.notify(-(-size // LEAST))
        try:
            left = None if request.deadline is None else request.deadline - time.perf_counter()
            await asyncio.wait_for(asyncio.wrap_future(request.future), left)
        except TimeoutError:
            raise RequestError("deadline", "the deadline of the request is past") from None
        finally:
            request.dropped = True
            self.pairs, self.requests = self.pairs - size, self.requests - 1
        return request.scores

    def _work(self) -> None:
        while slices := self._next():
            self.report(sum(part.stop - part.start for part in slices))
            self._score(slices)

    def _next(self) -> list[Slice]:
        """Wait for slices of one model; none is the end."""
        with self._changed:
            while True:
                slices = self._take()
                if slices or self._ended:
                    return slices
                self.idle += 1
                self._changed.wait()
                self.idle -= 1

    def _take(self) -> list[Slice]:
        """The next slices of one model, ``slice_size`` pairs at most; fewer if threads are idle."""
        self._turns += 1
        queues = [self._waiting, self._begun]
        if self._turns % BEGUN_TURN == 0:
            queues.reverse()
        slices: list[Slice] = []
        room, now = self.slice_size, time.perf_counter()
        if self.idle and self.queued == 1:
            (request,) = (*self._waiting, *self._begun)
            share = -(-(len(request.texts) - request.taken) // (1 + self.idle))
            room = min(room, max(LEAST, share))
        for queue in queues:
            others: list[QueuedRequest] = []
            while queue and room:
                request = queue.popleft()
                if request.dropped or (request.deadline is not None and request.deadline < now):
                    continue
                if slices and request.model is not slices[0].request.model:
                    others.append(request)
                    continue
                size = len(request.texts) - request.taken
                if request.model.reads_windows and slices and size > room:
                    others.append(request)
                    continue
                request.started = request.started or now
                wanted = size if request.model.reads_windows else min(room, size)
                start, request.taken = request.taken, request.taken + wanted
                room = max(0, room - wanted)
                slices.append(Slice(request, start, request.taken))
            queue.extendleft(reversed(others))
        requests = [part.request for part in slices]
        self._begun.extend(request for request in requests if request.taken < len(request.texts))
        return slices

    def _score(self, slices: Sequence[Slice]) -> None:
        """Score slices together; if that fails, each by itself."""
        started = time.perf_counter()
        try:
            scores = slices[0].request.model.scorer.score(joined(slices))
        except Exception as error:
            if len(slices) > 1:
                for part in slices:
                    self._score([part])
                return
            slices[0].request.dropped = True
            with suppress(InvalidStateError):  # Another slice has failed before.
                slices[0].request.future.set_exception(error)
            return
        seconds = time.perf_counter() - started
        done = []
        with self._changed:  # Two workers may have slices of the same request.
            place = 0
            for request, start, stop in slices:
                request.scores[start:stop] = scores[place : place + stop - start]
                place += stop - start
                request.inference += seconds
                request.left -= stop - start
                if not request.left:
                    done.append(request)
        for request in done:
            request.future.set_result(None)


def joined(slices: Sequence[Slice]) -> Pairs:
    """The pairs of slices of one model."""
    texts = [text for request, start, stop in slices for text in request.texts[start:stop]]
    urls = [url for request, start, stop in slices for url in request.urls[start:stop]]
    signals = {
        name: np.concatenate([part.signals[name][start:stop] for part, start, stop in slices])
        for name in slices[0].request.signals
    }
    query_index = np.repeat(np.arange(len(slices)), [stop - start for _, start, stop in slices])
    queries = [part.request.query for part in slices]
    return Pairs(queries, texts, urls, query_index, np.arange(len(texts)), signals)
