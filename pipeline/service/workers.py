"""Worker processes that score.

Threads would gain little because of Python's global lock. One process loads the
models, and each worker is forked from it. So the workers share its memory, and they
have the same models whatever happens to the folders of the models.
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
"""Starts processes from a server process that has no threads.

The service itself has threads, so it cannot be forked safely.
"""

ANSWER = 20.0
"""Seconds until a worker must answer; after that it is replaced.

Scores usually take milliseconds.
"""
LOADING = 120.0  # Seconds in which all models must be loaded
SHORTEST_PAUSE = 0.25  # Seconds before the second restart of a worker
LONGEST_PAUSE = 30.0  # Seconds before a restart if a worker keeps dying
BRIEF = 1.0  # Seconds left of a pause for which a request still waits
TRIM = 5.0  # Seconds between two returns of free memory to the system
PR_SET_PDEATHSIG = 1  # See prctl(2)


@dataclass
class Worker:
    """A process that scores one request at a time."""

    connection: Connection
    pid: int
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """For each model the hits, misses and bytes of its cache at the last answer."""
    pause: float = 0.0  # Seconds before the next start if it dies again
    next_start: float = 0.0  # On the clock of time.monotonic


class Workers(Scorer):
    """Scores in several processes, forked from one process that loads the models.

    ``cache`` is the number of bytes in which all processes together may keep the posts
    of a model. Raises OSError if a process cannot be started.
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
        # The worker that became free last is used first, as it has cached most posts.
        self._free = asyncio.LifoQueue[Worker]()
        for worker in reversed(self._workers):
            self._free.put_nowait(worker)

    async def ask(self, name: str, pairs: Pairs) -> Scores:
        """Score the pairs in a worker, and return the scores [P].

        Waits until a worker is free. If the worker dies or hangs, it is replaced and
        asked again. Raises RequestError if that fails too, or the error that the model
        raised.
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
                # Otherwise its traceback would keep this scorer and its processes
                # alive.
                del answer
        return np.asarray(answer)

    async def _answer_of(self, worker: Worker, name: str, pairs: Pairs) -> Any:
        """Return the scores, or an error that the model has raised.

        Raises RequestError if the worker has failed twice.
        """
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
        """Return the counts of a model's cache, summed over the workers."""
        counts = [worker.counts.get(name, Counter()) for worker in self._workers]
        return sum(counts, Counter())

    def fork(self) -> tuple[Connection, int]:
        """Start a process that scores; return the connection to it and its process id.

        If the process that holds the models has died, another one is started. Raises
        OSError if that one dies as well.
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

        Raises OSError if it dies or takes too long, or if a model has changed since the
        first start.
        """
        self._template, theirs = _pipe(LOADING)
        CONTEXT.Process(
            target=hold_models,
            args=(theirs, self._sources, self._cache),
            name="models",
            daemon=True,
        ).start()
        theirs.close()
        # The process ends when our end of the pipe is closed. When this process exits,
        # multiprocessing waits for it, so our end must be closed before.
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
        """Return the problem if a model that was loaded again has changed, else ""."""
        for name, old in self.loaded.items():
            if isinstance(old, ServedModel) and loaded[name] != old:
                change = f"it has changed ({loaded[name]})"
                return f"{name} cannot be loaded again: {change}"
        return ""

    def _replace(self, worker: Worker, is_late: bool) -> None:
        """Start another process for a worker that has died or hangs.

        Raises RequestError if no process can be started, or not soon enough.
        """
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

    The event loop waits for the answer, as a thread would also have to wait for
    Python's lock. Raises EOFError if the worker has died, or OSError if the connection
    fails or the answer is late.
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
    """Return the two ends of a new pipe.

    Reading from or writing to the first end raises OSError if a part of a message does
    not pass within ``seconds``.
    """
    ours, theirs = socket.socketpair()
    timeout = struct.pack("ll", int(seconds), 0)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        ours.setsockopt(socket.SOL_SOCKET, option, timeout)
    return Connection(ours.detach()), Connection(theirs.detach())


def return_free_memory() -> None:
    """Return free memory to the system if the C library can do that."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def hold_models(
    connection: Connection, sources: Mapping[str, Source], cache: int
) -> None:
    """Load the models, and fork a worker for each handle that arrives.

    The process that holds the models runs this function. It sends back the loaded
    models first, and then the process id of each worker.
    """
    # These signals are meant for the service, which ends this process itself.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    log_by(logging.StreamHandler())
    devices.set_threads(1)
    with suppress(EOFError, OSError):  # Raised when the service has ended
        scorer = Scorer(sources, cache)
        # Loaded models are exempt from garbage collection, which would make each worker
        # copy their pages.
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
    """Answer requests until the other end of the pipe is closed. Workers run this."""
    trimmed = time.monotonic()
    # A worker is killed when the process that it was forked from ends, even at work.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    while True:
        name, pairs = connection.recv()
        try:
            answer: Any = scorer.score(name, pairs)
        except Exception as error:
            # Pickling an error loses its traceback.
            error.add_note(traceback.format_exc())
            answer = error
        connection.send((answer, scorer.counts(name)))
        del answer, pairs
        if time.monotonic() > trimmed + TRIM and not connection.poll():
            return_free_memory()
            trimmed = time.monotonic()
