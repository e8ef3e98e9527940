"""Processes that score: Python's lock leaves threads that score together little to gain.

One process loads the models, and each that scores is forked from it: they share its memory, and all
have the same models, whatever becomes of their folders.
"""

from __future__ import annotations

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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from multiprocessing.util import Finalize
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.service.errors import RequestError
from pipeline.service.record import LOG, json_handler
from rerankers import checkpoint as checkpoints
from rerankers import devices
from rerankers.checkpoint import version_of
from rerankers.errors import RerankerError
from rerankers.reranker import Counts, Model

if TYPE_CHECKING:
    from rerankers.pairs import Pairs

Scores = npt.NDArray[np.float32]
CONTEXT = multiprocessing.get_context("forkserver")
"""A process with threads, as a service is, cannot be forked safely."""

ANSWER = 20.0
"""Seconds for the scores of a request, of some milliseconds; then its process is replaced."""
LOADING = 120.0  # Seconds for loading all models
LONGEST_PAUSE = 30.0  # Seconds before the next start of a process that dies again and again
TRIM = 5.0  # Seconds between two returns of free memory to the system


class Source(NamedTuple):
    """Files of a model: its folder, the version of this, and adapted word vectors."""

    folder: Path
    version: str
    adapted: Path | None = None


class Loaded(NamedTuple):
    """Properties of a model that a service reads."""

    name: str  # Of its kind
    directory: Path
    reads_given: bool
    signals: set[str]
    device: str

    @classmethod
    def of(cls, model: Model) -> Loaded:
        """The properties of a model."""
        return cls(*(getattr(model, name) for name in cls._fields))


class Scorer(Protocol):
    """Scores by several models, in several processes or in this one."""

    def score(self, number: int, name: str, pairs: Pairs) -> Scores:
        """Scores [P] by process ``number``; raises RerankerError, RequestError."""

    def call(self, number: int, function: Callable[[], Any]) -> Any:
        """The result of a function by process ``number``; raises what it does."""

    def counts(self, name: str) -> Counts:
        """Hits, misses and bytes of a model's kept posts."""


class Here:
    """Models in this process, for a GPU."""

    def __init__(self, sources: Mapping[str, Source], cache: int, device: str) -> None:
        self._models, self._problems = load_all(sources, cache, device)

    def start(self) -> dict[str, Loaded | Exception]:
        """The models, or what is wrong with them."""
        return {name: Loaded.of(model) for name, model in self._models.items()} | self._problems

    def score(self, number: int, name: str, pairs: Pairs) -> Scores:
        """As :class:`Scorer` says."""
        return self._models[name].score(pairs)

    def call(self, number: int, function: Callable[[], Any]) -> Any:
        """As :class:`Scorer` says."""
        return function()

    def counts(self, name: str) -> Counts:
        """As :class:`Scorer` says."""
        return self._models[name].counts


@dataclass
class Worker:
    """A process that scores, for one thread at a time.

    Attributes:
        counts: name of a model -> those of its kept posts, as of the last answer.
        pause: seconds before the next start, if it dies again.
        next_start: on the clock of ``time.monotonic``.
    """

    connection: Connection
    pid: int
    counts: dict[str, Counts] = field(default_factory=dict)
    pause: float = 0.0
    next_start: float = 0.0


class Workers:
    """Models in several processes, which are forked from one that has loaded the models.

    ``cache`` are the bytes of the kept posts of all together.
    """

    def __init__(self, sources: Mapping[str, Source], cache: int, processes: int) -> None:
        self._arguments, self._lock = (dict(sources), cache // processes), Lock()
        self._processes, self._workers = processes, list[Worker]()
        self._whole: set[str] | None = None  # Names of the models that could be loaded at first
        self._load()

    def start(self) -> dict[str, Loaded | Exception]:
        """Start the processes: the models, or what is wrong with them; raises OSError."""
        try:
            loaded = self._wait()
        except (EOFError, BlockingIOError):
            problem = f"the process that loads the models has died, or takes {LOADING:g} s"
            raise OSError(problem) from None
        self._workers = [Worker(*self.fork()) for _ in range(self._processes)]
        return loaded

    def score(self, number: int, name: str, pairs: Pairs) -> Scores:
        """As :class:`Scorer` says."""
        scores: Scores = self._ask(number, name, pairs)
        return scores

    def call(self, number: int, function: Callable[[], Any]) -> Any:
        """As :class:`Scorer` says."""
        return self._ask(number, "", function)

    def _ask(self, number: int, name: str, given: Any) -> Any:
        """The answer of a process; RequestError if none can be started, or they die.

        A process that has died, or does not answer in time, is replaced, once.
        """
        worker = self._workers[number % self._processes]
        for _ in range(2):
            try:
                worker.connection.send((name, given))
                answer, counts = worker.connection.recv()
            except (EOFError, OSError) as error:
                self._replace(worker, is_late=isinstance(error, BlockingIOError))
                continue
            worker.counts[name], worker.pause = counts, 0.0
            if isinstance(answer, Exception):
                raise answer
            return answer
        last = "the process that scores has died twice of the same request"
        raise RequestError("unready", last, retry=1)

    def counts(self, name: str) -> Counts:
        """As :class:`Scorer` says."""
        return sum((worker.counts.get(name, Counts()) for worker in self._workers), Counts())

    def fork(self) -> tuple[Connection, int]:
        """A new process that scores, and its id; if those that hold the models die, an OSError."""
        with self._lock:
            try:
                return self._fork()
            except (EOFError, OSError):
                LOG.error("the process that holds the models has died; another one loads them")
                self._end()
                self._load()
            try:
                return self._fork()
            except EOFError as error:
                raise OSError("the process that holds the models dies at its start") from error

    def _load(self) -> None:
        """Start the process that loads the models."""
        self._ours, theirs = _pipe(LOADING)
        arguments = theirs, *self._arguments
        CONTEXT.Process(target=hold, args=arguments, name="models", daemon=True).start()
        theirs.close()
        # It ends when this end is closed: at our own end before it is waited for.
        self._end = Finalize(self, self._ours.close, exitpriority=1)
        self._loaded: dict[str, Loaded | Exception] = {}

    def _wait(self) -> dict[str, Loaded | Exception]:
        """The models, or what is wrong with them, once they are loaded; raises OSError."""
        self._loaded = self._loaded or self._ours.recv()
        whole = {name for name, each in self._loaded.items() if isinstance(each, Loaded)}
        self._whole = self._whole or whole
        for name in self._whole - whole:
            raise OSError(f"{name} cannot be loaded again: {self._loaded[name]}")
        return self._loaded

    def _fork(self) -> tuple[Connection, int]:
        self._wait()
        ours, theirs = _pipe(ANSWER)
        send_handle(self._ours, theirs.fileno(), None)
        theirs.close()
        return ours, self._ours.recv()

    def _replace(self, worker: Worker, is_late: bool) -> None:
        """Start another process; raises RequestError if there is none for now."""
        now = time.monotonic()
        if not worker.connection.closed:  # A late answer must not be that of another request.
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
            worker.connection.close()
        if now >= worker.next_start:
            what = f"does not answer within {ANSWER:g} s" if is_late else "has died"
            LOG.error("a process that scores %s; another one starts", what)
            worker.pause = min(LONGEST_PAUSE, 2 * worker.pause or 0.25)
            worker.next_start = now + worker.pause
            try:
                worker.connection, worker.pid = self.fork()
                return
            except OSError as error:
                LOG.error("no process that scores can be started: %s", error)
        raise RequestError("unready", "a process that scores is being replaced", retry=1)


def _pipe(seconds: float) -> tuple[Connection, Connection]:
    """Two ends; of the first, each part of a message that does not come in time is an OSError."""
    ours, theirs = socket.socketpair()
    for side in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        ours.setsockopt(socket.SOL_SOCKET, side, struct.pack("ll", int(seconds), 0))
    return Connection(ours.detach()), Connection(theirs.detach())


def give_back() -> None:
    """Return free memory to the system, where the C library can."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def load(source: Source, cache: int, device: str = "cpu") -> Model:
    """A model that keeps posts; raises RerankerError for one that is damaged or was changed."""
    folder, version, adapted = source
    model = checkpoints.load(folder, device=device, adapted=adapted)
    if version_of(folder) != version:
        raise RerankerError(f"{folder}: has changed since it was read; load it again")
    if model.reads_given:  # Others are refused as soon as they are known.
        model = model.remembering(cache)
        model.warm_up()
    return model


def load_all(
    sources: Mapping[str, Source], cache: int, device: str = "cpu"
) -> tuple[dict[str, Model], dict[str, Exception]]:
    """The models of these files, and the problems of others."""
    models, problems = dict[str, Model](), dict[str, Exception]()
    for name, source in sources.items():
        try:
            models[name] = load(source, cache, device)
        except Exception as error:
            problems[name] = error
    return models, problems


def hold(connection: Connection, sources: Mapping[str, Source], cache: int) -> None:
    """Load models, and fork a process for each handle that comes; what a template does."""
    # These signals are for the service, which ends this process when it no longer needs it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    logging.getLogger().handlers = [json_handler()]
    logging.captureWarnings(True)
    devices.set_threads(1)
    with suppress(EOFError, OSError):  # The service has ended.
        models, problems = load_all(sources, cache)
        # What is loaded stays: no collection of garbage has to look at it, or copies its pages.
        gc.collect()
        gc.freeze()
        connection.send({name: Loaded.of(model) for name, model in models.items()} | problems)
        while True:
            handle = recv_handle(connection)
            if pid := os.fork():
                os.close(handle)
                connection.send(pid)
                continue
            connection.close()
            with suppress(BaseException):
                work(Connection(handle), models)
            os._exit(0)


def work(connection: Connection, models: Mapping[str, Model]) -> None:
    """Answer requests until the other end is closed; what a process does."""
    trimmed = time.monotonic()
    # PR_SET_PDEATHSIG: it ends with its template, even in work.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    while True:
        name, given = connection.recv()
        answer: Any
        try:
            answer = models[name].score(given) if name else given()
        except Exception as error:
            error.add_note(traceback.format_exc())  # It is lost on the way.
            answer = error
        connection.send((answer, models[name].counts if name else Counts()))
        del answer, given
        if time.monotonic() > trimmed + TRIM and not connection.poll():
            give_back()
            trimmed = time.monotonic()
