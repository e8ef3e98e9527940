"""Processes that score.

Python's lock leaves threads little to gain. One process loads the models, and each
worker is forked from it. So they share its memory, and have the same models whatever
happens to the folders.
"""

import asyncio
import ctypes
import gc
import logging
import multiprocessing
import os
import signal
import socket
import struct
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from multiprocessing.util import Finalize
from threading import Lock
from typing import Any

import numpy as np

from tweetrerank.pipeline.ranking.build import Source
from tweetrerank.pipeline.service.json_log import LOG, log_by
from tweetrerank.pipeline.service.limits import apart
from tweetrerank.pipeline.service.scorer import Scorer, Scores, ServedModel
from tweetrerank.pipeline.service.service_errors import RequestError
from tweetrerank.rerankers import devices
from tweetrerank.rerankers.pairs import Pairs

CONTEXT = multiprocessing.get_context("forkserver")
"""A process with threads, such as a service, cannot be forked safely."""

ANSWER = 20.0
"""Seconds for the scores of a request, which take milliseconds. Then its worker is
replaced."""
LOADING = 120.0  # Seconds for loading all models
SHORTEST_PAUSE = 0.25  # Seconds before the second restart of a worker
LONGEST_PAUSE = 30.0  # Seconds before a restart, if a worker dies again and again
BRIEF = 1.0  # Seconds of a pause that a request waits for
TRIM = 5.0  # Seconds between two returns of free memory to the system
PR_SET_PDEATHSIG = 1  # See prctl(2)


@dataclass
class Worker:
    """A process that scores one request at a time."""

    connection: Connection
    pid: int
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """Model -> hits, misses and bytes, from the last answer."""
    pause: float = 0.0  # Seconds before the next start, if it dies again
    next_start: float = 0.0  # On the clock of time.monotonic


class Workers(Scorer):
    """Scorer in several processes, which are forked from one that loads the models.

    ``cache``: bytes of the posts that all processes keep. Raises OSError if a process
    cannot be started.
    """

    def __init__(
        self, sources: Mapping[str, Source], cache: int, processes: int
    ) -> None:
        self._sources = dict(sources)
        self._cache = cache // processes
        self._lock = Lock()
        self.loaded = {}
        self._load()
        self._workers = []
        for _ in range(processes):
            connection, pid = self.fork()
            self._workers.append(Worker(connection, pid))
        # The last one to be free, which has kept the most posts, comes first.
        self._free = asyncio.LifoQueue[Worker]()
        for worker in reversed(self._workers):
            self._free.put_nowait(worker)

    async def ask(self, name: str, pairs: Pairs) -> Scores:
        """Like :meth:`Scorer.ask`, in a worker.

        A dead or hung worker is replaced once; a second failure raises RequestError.
        """
        worker = await self._free.get()
        try:
            answer = await self._answer_of(worker, name, pairs)
        finally:
            self._free.put_nowait(worker)
        if isinstance(answer, Exception):
            try:
                raise answer
            finally:
                # Otherwise its traceback keeps this scorer, and so its processes.
                del answer
        return np.asarray(answer)

    async def _answer_of(self, worker: Worker, name: str, pairs: Pairs) -> Any:
        """Return the scores or an error of the model."""
        for _ in range(2):
            try:
                answer, counts = await _exchange(worker.connection, name, pairs)
            except (EOFError, OSError) as error:
                is_late = isinstance(error, BlockingIOError | TimeoutError)
                await asyncio.to_thread(self._replace, worker, is_late)
            except asyncio.CancelledError:
                # The answer must not become that of another request.
                worker.connection.close()
                raise
            else:
                worker.counts[name] = counts
                worker.pause = 0.0
                worker.next_start = 0.0
                return answer
        problem = "the process that scores has died twice of the same request"
        raise RequestError("unready", problem)

    def counts(self, name: str) -> Counter[str]:
        """Like :meth:`Scorer.counts`, summed over the workers."""
        counts = [worker.counts.get(name, Counter()) for worker in self._workers]
        return sum(counts, Counter())

    def fork(self) -> tuple[Connection, int]:
        """Start a process that scores; returns the connection to it, and its id.

        Raises OSError if the process with the models dies.
        """
        with self._lock:
            for _ in range(2):
                try:
                    return self._fork()
                except (EOFError, OSError):
                    LOG.error(
                        "the process that holds the models has died; "
                        "another one loads them"
                    )
                    self._end()
                    self._load()
        raise OSError("the process that holds the models dies at its start")

    def _fork(self) -> tuple[Connection, int]:
        ours, theirs = _pipe(ANSWER)
        send_handle(self._template, theirs.fileno(), None)
        theirs.close()
        return ours, self._template.recv()

    def _load(self) -> None:
        """Start the process that loads the models.

        Raises OSError, also if a model has changed since the first start.
        """
        self._template, theirs = _pipe(LOADING)
        CONTEXT.Process(
            target=hold_models,
            args=(theirs, self._sources, self._cache),
            name="models",
            daemon=True,
        ).start()
        theirs.close()
        # It ends when our end of the pipe is closed. multiprocessing waits for it when
        # this process exits, so the end must be closed before.
        self._end = Finalize(self, self._template.close, exitpriority=1)
        try:
            loaded = self._template.recv()
        except (EOFError, BlockingIOError):
            problem = "the process that loads the models has died, "
            problem += f"or takes {LOADING:g} s"
        else:
            problem = self._change_in(loaded)
        if problem:
            self._end()
            raise OSError(problem)
        self.loaded = self.loaded or loaded

    def _change_in(self, loaded: Mapping[str, ServedModel | Exception]) -> str:
        """Return the problem with models that were loaded again, if there is any."""
        for name, old in self.loaded.items():
            if isinstance(old, ServedModel) and loaded[name] != old:
                change = f"it has changed ({loaded[name]})"
                return f"{name} cannot be loaded again: {change}"
        return ""

    def _replace(self, worker: Worker, is_late: bool) -> None:
        """Start another process for a worker; raises RequestError if that fails."""
        # A late answer must not become that of another request.
        if not worker.connection.closed:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
            worker.connection.close()
        pause = worker.next_start - time.monotonic()
        if pause < BRIEF:
            time.sleep(max(0.0, pause))
            event = f"does not answer within {ANSWER:g} s" if is_late else "has died"
            LOG.error("a process that scores %s; another one starts", event)
            worker.pause = min(LONGEST_PAUSE, 2 * worker.pause or SHORTEST_PAUSE)
            worker.next_start = time.monotonic() + worker.pause
            try:
                worker.connection, worker.pid = self.fork()
                return
            except OSError as error:
                LOG.error("no process that scores can be started: %s", error)
        raise RequestError("unready", "a process that scores is being replaced")


async def _exchange(connection: Connection, name: str, pairs: Pairs) -> Any:
    """Return a worker's answer to a request.

    The event loop waits for it: a thread would wait for Python's lock, too. Raises
    OSError, also if the answer is late.
    """
    size = 4 * sum(map(len, pairs.texts))
    await apart(size, partial(connection.send, (name, pairs)))
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(connection, arrived.set)
    try:
        async with asyncio.timeout(ANSWER):
            await arrived.wait()
    finally:
        loop.remove_reader(connection)
    return connection.recv()


def _pipe(seconds: float) -> tuple[Connection, Connection]:
    """Return two connected ends.

    At the first one, each part of a message that does not pass in time is an OSError.
    """
    ours, theirs = socket.socketpair()
    timeout = struct.pack("ll", int(seconds), 0)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        ours.setsockopt(socket.SOL_SOCKET, option, timeout)
    return Connection(ours.detach()), Connection(theirs.detach())


def return_free_memory() -> None:
    """Return free memory to the system, if the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def hold_models(
    connection: Connection, sources: Mapping[str, Source], cache: int
) -> None:
    """Load models, and fork a worker for each handle that arrives.

    This is the work of the first process.
    """
    # These signals are for the service, which ends this process after use.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    log_by(logging.StreamHandler())
    devices.set_threads(1)
    with suppress(EOFError, OSError):  # The service has ended
        scorer = Scorer(sources, cache)
        # Garbage collection need not visit loaded models, nor copy their pages.
        gc.collect()
        gc.freeze()
        connection.send(scorer.loaded)
        while True:
            handle = recv_handle(connection)
            pid = os.fork()
            if pid:
                os.close(handle)
                connection.send(pid)
                continue
            connection.close()
            with suppress(BaseException):
                answer_requests(Connection(handle), scorer)
            os._exit(0)


def answer_requests(connection: Connection, scorer: Scorer) -> None:
    """Answer requests until the other end is closed: the work of a worker."""
    trimmed = time.monotonic()
    # A worker dies with the process that it was forked from, even during work.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    while True:
        name, pairs = connection.recv()
        try:
            answer: Any = scorer.score(name, pairs)
        except Exception as error:
            # Pickling loses the traceback.
            error.add_note(traceback.format_exc())
            answer = error
        connection.send((answer, scorer.counts(name)))
        del answer, pairs
        if time.monotonic() > trimmed + TRIM and not connection.poll():
            return_free_memory()
            trimmed = time.monotonic()
