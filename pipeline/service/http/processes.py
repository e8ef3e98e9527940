"""A model in several processes: Python's lock leaves threads that score together little to gain.

Each post belongs to one process, by its hash, so that its encodings are kept once.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import traceback
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from pipeline.service.record import LOG
from rerankers import checkpoint as checkpoints
from rerankers.errors import RerankerError
from rerankers.scoring.cached import CachedScorer
from rerankers.scoring.precomputed import keys_of

if TYPE_CHECKING:
    from rerankers.base import Pairs

Scores = npt.NDArray[np.float32]
CONTEXT = multiprocessing.get_context("forkserver")
"""A process with threads, as a service is, cannot be forked safely."""


class Worker:
    """One process. It must be locked from a request to its answer.

    Args:
        folder: of the checkpoint.
        max_bytes: of its cache.

    Attributes:
        lock: of whoever talks to the process.
        counts: hits, misses and bytes of the cache, as of its last answer; with the hits and misses
            of the processes before it that died.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self.lock, self.counts, self._before = Lock(), (0, 0, 0), (0, 0)
        self._start()

    def _start(self) -> None:
        self._ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(
            target=work, args=(theirs, self.folder, self.max_bytes), name="scores", daemon=True
        )
        process.start()
        theirs.close()
        # The process ends when this end is closed: at our own end before it is waited for.
        self._end = Finalize(self, self._ours.close, exitpriority=1)

    def wait(self) -> None:
        """Wait until the model is loaded.

        Raises:
            RerankerError: it cannot be.
        """
        if isinstance(error := self._receive(), Exception):
            raise error

    def send(self, pairs: Pairs) -> None:
        """Ask for scores."""
        with suppress(OSError):  # The answer will be that it has died.
            self._ours.send(pairs)

    def answer(self, pairs: Pairs) -> Scores | Exception:
        """Scores of the pairs that were sent. A process that has died is replaced, once."""
        scores = self._receive()
        if not isinstance(scores, EOFError):
            return scores
        LOG.error("a process that scores has died; another one starts")
        self._before = self.counts[:2]
        self._end()
        self._start()
        if isinstance(error := self._receive(), Exception):
            return error
        self.send(pairs)
        scores = self._receive()
        if isinstance(scores, EOFError):
            return RerankerError("the process that scores has died twice of the same request")
        return scores

    def _receive(self) -> Scores | Exception:
        try:
            scores, (hits, misses, size) = self._ours.recv()
        except (EOFError, OSError):
            return EOFError()
        self.counts = self._before[0] + hits, self._before[1] + misses, size
        return scores


class ParallelScorer:
    """Scores pairs as :class:`rerankers.scoring.cached.CachedScorer` does.

    Args:
        folder: of a checkpoint, which each process reads.
        max_bytes: of all caches together.
        processes: number of them.
    """

    def __init__(self, folder: Path, max_bytes: int, processes: int) -> None:
        self._workers = [Worker(folder, max_bytes // processes) for _ in range(processes)]

    def warm_up(self) -> None:
        """Wait until all processes are ready; must come before the first scores.

        Raises:
            RerankerError: one cannot load the checkpoint.
        """
        for worker in self._workers:
            worker.wait()

    @property
    def hits(self) -> int:
        """Look-ups of a post that found it."""
        return sum(worker.counts[0] for worker in self._workers)

    @property
    def misses(self) -> int:
        """Look-ups of a post that did not."""
        return sum(worker.counts[1] for worker in self._workers)

    @property
    def bytes(self) -> int:
        """Size of all caches now."""
        return sum(worker.counts[2] for worker in self._workers)

    def score(self, pairs: Pairs) -> Scores:
        """Scores [P]; may be called by several threads.

        Raises:
            RerankerError: a score is not a finite number, or a process dies again and again.
        """
        scores = np.zeros(len(pairs), dtype=np.float32)
        owners = keys_of(pairs.texts, pairs.urls)[pairs.post_index, 0] % len(self._workers)
        parts = [
            (worker, rows, pairs.take(rows))
            for number, worker in enumerate(self._workers)
            if len(rows := np.flatnonzero(owners == number))
        ]
        with ExitStack() as locks:
            for worker, _, part in parts:
                locks.enter_context(worker.lock)
                worker.send(part)
            # All answers are taken before one is raised: the next request gets its own.
            answers = [worker.answer(part) for worker, _, part in parts]
        for (_, rows, _), answer in zip(parts, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            scores[rows] = answer
        return scores


def work(connection: Connection, folder: Path, max_bytes: int) -> None:
    """Answer requests until the other end is closed; what a process does."""
    # These signals are for the service, which ends this process when it no longer needs it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):  # The service has ended.
        try:
            checkpoint = checkpoints.load(folder)
            scorer = CachedScorer(checkpoint.model, checkpoint.encoder, max_bytes)
            scorer.warm_up()
            # What is loaded stays: no collection of garbage has to look at it again.
            gc.freeze()
        except Exception as error:
            connection.send((error, (0, 0, 0)))
            return
        scores: Scores | Exception = np.zeros(0, dtype=np.float32)
        while True:
            connection.send((scores, (scorer.hits, scorer.misses, scorer.bytes)))
            pairs = connection.recv()
            try:
                scores = scorer.score(pairs)
            except Exception as error:
                error.add_note(traceback.format_exc())  # It is lost on the way.
                scores = error
