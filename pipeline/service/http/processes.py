"""A model in several processes: Python's lock leaves threads that score together little to gain.

One process loads the model, and each that scores is forked from it: they share its memory, and all
have the same model, whatever becomes of its folder. A free process takes all pairs of a call.
"""

from __future__ import annotations

import gc
import itertools
import logging
import multiprocessing
import os
import signal
import socket
import struct
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from multiprocessing.util import Finalize
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pipeline.service.errors import RequestError
from pipeline.service.record import LOG, json_handler
from rerankers import checkpoint as checkpoints
from rerankers import devices
from rerankers.checkpoint import version_of
from rerankers.errors import RerankerError
from rerankers.reranker import SOME, Counts, Model

if TYPE_CHECKING:
    from rerankers.pairs import Pairs

Scores = npt.NDArray[np.float32]
CONTEXT = multiprocessing.get_context("forkserver")
"""A process with threads, as a service is, cannot be forked safely."""

ANSWER = 20.0
"""Seconds for the scores of a slice, of some milliseconds; then its process is replaced."""
LOADING = 120.0  # Seconds for loading a model
LONGEST_PAUSE = 30.0  # Seconds before the next start of a process that dies again and again


class Template:
    """The process that has loaded a model, to be forked.

    ``max_bytes`` of the cache are those of each process that scores; ``adapted`` is a file of
    word vectors adapted to a collection, None for the folder's own.
    """

    def __init__(
        self, folder: Path, version: str, max_bytes: int, adapted: Path | None = None
    ) -> None:
        self._arguments, self._lock = (folder, version, max_bytes, adapted), Lock()
        self._start()

    def _start(self) -> None:
        self._ours, theirs = _pipe(LOADING)
        process = CONTEXT.Process(
            target=load, args=(theirs, *self._arguments), name="model", daemon=True
        )
        process.start()
        theirs.close()
        # It ends when this end is closed: at our own end before it is waited for.
        self._end = Finalize(self, self._ours.close, exitpriority=1)
        self._is_loaded = False

    def fork(self) -> tuple[Connection, int]:
        """A new process that scores, and its id; a template that has died is replaced.

        Raises RerankerError for a model that is damaged or was changed, OSError if the template
        dies again.
        """
        with self._lock:
            try:
                return self._fork()
            except (EOFError, OSError):
                LOG.error("the process that holds the model has died; another one loads it")
                self._end()
                self._start()
            try:
                return self._fork()
            except EOFError as error:
                raise OSError("the process that holds the model dies at its start") from error

    def _fork(self) -> tuple[Connection, int]:
        if not self._is_loaded:
            if isinstance(error := self._ours.recv(), Exception):
                raise error
            self._is_loaded = True
        ours, theirs = _pipe(ANSWER)
        send_handle(self._ours, theirs.fileno(), None)
        theirs.close()
        return ours, self._ours.recv()


class Worker:
    """A process that scores.

    Attributes:
        lock: of the thread that talks to the process.
        counts: of the cache, as of its last answer; with the hits and misses of the processes
            before it that died.
    """

    def __init__(self, template: Template) -> None:
        self._template = template
        self.lock, self.counts, self._before = Lock(), Counts(), Counts()
        self._pause, self._next_start = 0.0, 0.0
        self._ours, self._pid = template.fork()

    def score(self, pairs: Pairs) -> Scores:
        """Scores of pairs; raises what :meth:`ParallelScorer.score` does.

        A process that has died, or does not answer in time, is replaced, once.
        """
        for _ in range(2):
            try:
                self._ours.send(pairs)
                answer, counts = self._ours.recv()
            except (EOFError, OSError) as error:
                self._replace(is_late=isinstance(error, BlockingIOError))
                continue
            self.counts, self._pause = self._before + counts, 0.0
            if isinstance(answer, Exception):
                raise answer
            scores: Scores = answer
            return scores
        last = "the process that scores has died twice of the same request"
        raise RequestError("unready", last, retry=1)

    def _kill(self) -> None:
        """End the process, whose late answer must not be that of another request."""
        if not self._ours.closed:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._ours.close()

    def _replace(self, is_late: bool) -> None:
        """Start another process; raises RequestError if there is none for now."""
        now = time.monotonic()
        self._kill()
        if now >= self._next_start:
            what = f"does not answer within {ANSWER:g} s" if is_late else "has died"
            LOG.error("a process that scores %s; another one starts", what)
            self._pause = min(LONGEST_PAUSE, 2 * self._pause or 0.25)
            self._next_start = now + self._pause
            self._before = self.counts._replace(bytes=0)
            try:
                self._ours, self._pid = self._template.fork()
                return
            except (RerankerError, OSError) as error:
                LOG.error("no process that scores can be started: %s", error)
        raise RequestError("unready", "a process that scores is being replaced", retry=1)


class ParallelScorer:
    """Scores pairs as a :class:`rerankers.reranker.Model` does.

    ``max_bytes`` are those of all caches together; the folder must have the ``version``.
    """

    def __init__(
        self,
        folder: Path,
        version: str,
        max_bytes: int,
        processes: int,
        adapted: Path | None = None,
    ) -> None:
        self._template = Template(folder, version, max_bytes // processes, adapted)
        self._processes, self._workers = processes, list[Worker]()
        self._turns = itertools.count()

    def warm_up(self) -> None:
        """Start the processes, before the first scores; raises RerankerError."""
        self._workers = [Worker(self._template) for _ in range(self._processes)]

    @property
    def counts(self) -> Counts:
        """Sums over the caches of all processes."""
        return sum((worker.counts for worker in self._workers), Counts())

    def score(self, pairs: Pairs) -> Scores:
        """Scores [P]; may be called by several threads.

        Raises RerankerError for a score that is not finite, RequestError if a process cannot be
        started, or dies again and again.
        """
        free = (each for each in self._workers if each.lock.acquire(blocking=False))
        worker = next(free, None)
        if worker is None:
            worker = self._workers[next(self._turns) % self._processes]
            worker.lock.acquire()
        try:
            return worker.score(pairs)
        finally:
            worker.lock.release()

    def check(self) -> None:
        """Score some pairs by each process; raises what :meth:`score` does."""
        for worker in self._workers:
            with worker.lock:
                worker.score(SOME)


def _pipe(seconds: float) -> tuple[Connection, Connection]:
    """Two ends; of the first, each part of a message that does not come in time is an OSError."""
    ours, theirs = socket.socketpair()
    for side in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        ours.setsockopt(socket.SOL_SOCKET, side, struct.pack("ll", int(seconds), 0))
    return Connection(ours.detach()), Connection(theirs.detach())


def load(
    connection: Connection, folder: Path, version: str, max_bytes: int, adapted: Path | None
) -> None:
    """Load a model, and fork a process for each handle that comes; what a template does."""
    # These signals are for the service, which ends this process when it no longer needs it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    logging.getLogger().handlers = [json_handler()]
    logging.captureWarnings(True)
    devices.set_threads(1)
    with suppress(EOFError, OSError):  # The service has ended.
        try:
            scorer = checkpoints.load(folder, adapted=adapted).remembering(max_bytes)
            if version_of(folder) != version:
                raise RerankerError(f"{folder}: has changed since it was read; load it again")
            scorer.warm_up()
        except Exception as error:
            connection.send(error)
            return
        # What is loaded stays: no collection of garbage has to look at it, or copies its pages.
        gc.collect()
        gc.freeze()
        connection.send(None)
        while True:
            handle = recv_handle(connection)
            if pid := os.fork():
                os.close(handle)
                connection.send(pid)
                continue
            connection.close()
            with suppress(BaseException):
                work(Connection(handle), scorer)
            os._exit(0)


def work(connection: Connection, scorer: Model) -> None:
    """Answer requests until the other end is closed; what a process does."""
    while True:
        pairs = connection.recv()
        answer: Scores | Exception
        try:
            answer = scorer.score(pairs)
        except Exception as error:
            error.add_note(traceback.format_exc())  # It is lost on the way.
            answer = error
        connection.send((answer, scorer.counts))
