"""The queue of requests, and the threads that score them.

A worker takes a slice of some hundred pairs: a part of a large request, or several small ones of
the same model together. The rest of a large request waits in a second queue, which has every fourth
turn, and all turns while the first is empty: large requests do not hold up small ones, and are not
held up for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pipeline.service.http.errors import Fault
from pipeline.service.http.models import ServedModel
from rerankers.base import Pairs

SLICE = 256
"""Pairs that are scored at once by a core: a few milliseconds."""

BEGUN_TURN = 4
"""Every so many turns, requests that are begun come before new ones."""

LEAST = 128
"""Pairs of a part that is worth another thread: Python's lock takes much of what two gain."""


@dataclass(eq=False)
class Job:
    """The distinct pairs of a request; text i is that of pair i.

    Attributes:
        model: that scores them.
        queries: [Q].
        query_index: [P] row of ``queries``.
        texts: [P].
        urls: [P].
        signals: name -> [P].
        deadline: on the clock of ``time.perf_counter``; None is never.
        scores: [P], NaN until they are scored.
        queued, started: when it came, and when its first slice was taken.
        inference: seconds of its slices; of one that was shared, the whole.
    """

    model: ServedModel
    queries: Sequence[str]
    query_index: npt.NDArray[np.int64]
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
    end: Callable[[Exception | None], None] = lambda error: None

    def __post_init__(self) -> None:
        self.left = len(self.texts)
        self.scores = np.full(self.left, np.nan, dtype=np.float32)


class Slice(NamedTuple):
    """Pairs ``start`` to ``stop`` of a job."""

    job: Job
    start: int
    stop: int


class Scheduler:
    """A bounded queue, and threads that take slices from it.

    Args:
        threads: workers, each with one thread of PyTorch.
        most_pairs: in the queue and in work.
        most_jobs: the same for requests.
        report: called with the number of pairs of each slice, in a worker's thread.
        slice_size: pairs of a slice, at most.

    Attributes:
        idle: workers without work.
    """

    def __init__(
        self,
        threads: int,
        most_pairs: int,
        most_jobs: int,
        report: Callable[[int], None] = lambda pairs: None,
        slice_size: int = SLICE,
    ) -> None:
        self.threads, self.report, self.slice_size = threads, report, slice_size
        self.most_pairs, self.most_jobs = most_pairs, most_jobs
        self.pairs, self.jobs = 0, 0
        self._waiting: deque[Job] = deque()
        self._begun: deque[Job] = deque()
        self._turns, self.idle = 0, 0
        self._changed, self._ended = Condition(), False
        self._workers = [
            Thread(target=self._work, name=f"worker-{n}", daemon=True) for n in range(threads)
        ]

    def start(self) -> None:
        """Start the workers."""
        torch.set_num_threads(1)
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

    async def score(self, job: Job) -> npt.NDArray[np.float32]:
        """Scores [P] of a job. Work not begun is dropped if the caller is cancelled.

        Raises:
            Fault: the queue is full, or the deadline is past.
        """
        size = len(job.texts)
        if self.jobs and (self.pairs + size > self.most_pairs or self.jobs >= self.most_jobs):
            problem = f"{self.jobs} requests of {self.pairs} documents are waiting"
            raise Fault("overload", f"{problem}, more than fit; try again later", retry=1)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def finish(error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        def end(error: Exception | None) -> None:
            with suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(finish, error)

        job.end = end
        self.pairs, self.jobs = self.pairs + size, self.jobs + 1
        with self._changed:
            self._waiting.append(job)
            self._changed.notify(-(-size // LEAST))
        try:
            left = None if job.deadline is None else job.deadline - time.perf_counter()
            await asyncio.wait_for(future, left)
        except TimeoutError:
            raise Fault("deadline", "the deadline of the request is past") from None
        finally:
            job.dropped = True
            self.pairs, self.jobs = self.pairs - size, self.jobs - 1
        return job.scores

    def _work(self) -> None:
        torch.set_num_threads(1)
        while slices := self._next():
            self.report(sum(one.stop - one.start for one in slices))
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
            (job,) = (*self._waiting, *self._begun)
            share = -(-(len(job.texts) - job.taken) // (1 + self.idle))
            room = min(room, max(LEAST, share))
        for queue in queues:
            others: list[Job] = []
            while queue and room:
                job = queue.popleft()
                if job.dropped or (job.deadline is not None and job.deadline < now):
                    continue
                if slices and job.model is not slices[0].job.model:
                    others.append(job)
                    continue
                job.started = job.started or now
                start, job.taken = job.taken, min(job.taken + room, len(job.texts))
                room -= job.taken - start
                slices.append(Slice(job, start, job.taken))
            queue.extendleft(reversed(others))
        self._begun.extend(one.job for one in slices if one.job.taken < len(one.job.texts))
        return slices

    def _score(self, slices: Sequence[Slice]) -> None:
        """Score slices together; if that fails, each by itself."""
        started = time.perf_counter()
        try:
            scores = slices[0].job.model.scorer.score(joined(slices))
        except Exception as error:
            if len(slices) > 1:
                for one in slices:
                    self._score([one])
                return
            job = slices[0].job
            job.dropped = True
            job.end(error)
            return
        seconds = time.perf_counter() - started
        done = []
        with self._changed:  # Two workers may have slices of the same job.
            place = 0
            for job, start, stop in slices:
                job.scores[start:stop] = scores[place : place + stop - start]
                place += stop - start
                job.inference += seconds
                job.left -= stop - start
                if not job.left:
                    done.append(job)
        for job in done:
            job.end(None)


def joined(slices: Sequence[Slice]) -> Pairs:
    """The pairs of slices of one model."""
    queries: list[str] = []
    texts: list[str] = []
    urls: list[str] = []
    rows = []
    for job, start, stop in slices:
        used, index = np.unique(job.query_index[start:stop], return_inverse=True)
        rows.append(index + len(queries))
        queries += [job.queries[row] for row in used]
        texts += job.texts[start:stop]
        urls += job.urls[start:stop]
    signals = {
        name: np.concatenate([job.signals[name][start:stop] for job, start, stop in slices])
        for name in slices[0].job.signals
    }
    posts = np.arange(len(texts), dtype=np.int64)
    return Pairs(queries, texts, urls, np.concatenate(rows), posts, signals)
