"""The models that are served: processes that score, the queue before them, reloading.

Python's lock leaves threads little to gain. One process loads the models, and each that scores is
forked from it: they share its memory, and have the same models, whatever becomes of their folders.
"""

from __future__ import annotations

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
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from multiprocessing.util import Finalize
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.ranking.build import Source, best_source, mixed
from tweetrerank.pipeline.ranking.checkpoints import check_reads_given
from tweetrerank.pipeline.ranking.interpolation import Calibration, tuning_of
from tweetrerank.pipeline.service.formats import Mix, ScoreRequest, ScoreResponse
from tweetrerank.pipeline.service.requests import LOG, RequestError, apart, log_by
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import checkpoint as checkpoints
from tweetrerank.rerankers import devices
from tweetrerank.rerankers.mixed import minmax, mix
from tweetrerank.rerankers.model import PROBE, Model
from tweetrerank.rerankers.pairs import FIRST_STAGE, Pairs, numbers_of
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.passages import best_passages

CONTEXT = multiprocessing.get_context("forkserver")
"""A process with threads, as a service is, cannot be forked safely."""

ANSWER = 20.0
"""Seconds for the scores of a request, of some milliseconds; then its process is replaced."""
LOADING = 120.0  # Seconds for loading all models
LONGEST_PAUSE = (
    30.0  # Seconds before the next start of a process that dies again and again
)
BRIEF = 1.0  # Of these, which a request waits for
TRIM = 5.0  # Seconds between two returns of free memory to the system
CHECKED = 5.0  # Seconds without a score after which a service with work is not well
LATE = "the deadline of the request is past"
RECENT = 0.1  # Share of the last request in the mean seconds of a pair
MOST_SLOWED = 10.0  # Times the mean that it counts at most
CERTAIN = 1e-9  # Least distance of a mixture from 0 and 1 where its logit is asked for
DAMAGES = RerankerError, DataError, OSError, ValueError

Scores = npt.NDArray[np.floating]
Work = Callable[[], Coroutine[Any, Any, Scores]]


@dataclass(frozen=True)
class ServedModel:
    """A model that is ready to answer. ``scorer`` scores pairs by it, under its name."""

    name: str
    source: Source
    version: str  # Of its files
    device: str
    signals: set[str]
    reads_lists: bool  # Whether each score depends on all documents
    weight: float  # λ, for /v1/models
    calibration: Calibration
    scorer: Scorer = field(default=None, compare=False)  # type: ignore[assignment]

    @cached_property
    def checkpoint(self) -> Model:
        """The model in this process, without λ, loaded when it is first needed: for the page."""
        return self.source.load(self.device)

    @cached_property
    def numbers(self) -> list[str]:
        """Names of the numbers beside the texts that it reads."""
        return numbers_of(self.signals)

    def respond(self, request: ScoreRequest, scores: Scores) -> ScoreResponse:
        """Probabilities or logits, and order of the documents, from the model's scores [D]; of
        equal ones the earlier document comes first, or, in TEI, the later one."""
        options = request.options
        is_given = options.mix != "neural" and request.first_stage is not None
        if (
            is_given and not self.reads_lists and FIRST_STAGE in self.signals
        ):  # A mixture
            keys = chances = scores.astype(np.float64).round(12)
            certain = np.clip(keys, CERTAIN, 1 - CERTAIN)
            logits = np.log(certain / (1 - certain))
        else:
            keys = scores.astype(np.float64).round(9)
            logits = self.calibration.slope * keys + self.calibration.intercept
            chances = np.exp(-np.logaddexp(0.0, -logits))
        if request.weight is not None and request.first_stage is not None:
            both = minmax(request.first_stage), minmax(logits.tolist())
            keys = chances = np.array(mix(*both, request.weight)).round(12)
        if options.raw_scores or options.use_activation is False or options.shift:
            logits -= logits.min() if options.shift else 0.0
            shown = [
                f"{key:.9f}" if abs(key) < 1e6 else f"{key:.9e}"
                for key in logits.tolist()
            ]
        else:
            shown = [*map(probability, chances.tolist())]
        order = np.argsort(keys if request.is_tei else -keys, kind="stable").tolist()
        how: Mix = "interpolated" if is_given else "neural"
        return ScoreResponse(
            request, self.name, how, shown, order[:: -1 if request.is_tei else 1]
        )


def probability(value: float) -> str:
    """A number from 0 to 1 in at most 16 characters; small ones keep ten digits."""
    return f"{value:.12f}" if value >= 1e-3 or not value else f"{value:.9e}"


def load(
    name: str, source: Source, cache: int, device: str
) -> tuple[Model, ServedModel]:
    """A model that keeps posts; RerankerError, DataError for a damaged or unsuitable one."""
    version, tuning = source.version, tuning_of(source.folder)
    plain = source.load(device)
    check_reads_given(plain)
    model = mixed(plain, has_scores=True).remembering(cache)
    if source.version != version:
        raise RerankerError(f"{source.folder}: has changed while it was read")
    model.warm_up()
    how = (
        model.device,
        model.signals,
        plain.reads == "lists",
        getattr(model, "weight", 1.0),
    )
    calibration = (tuning and tuning.calibration) or Calibration()
    return model, ServedModel(name, source, version, *how, calibration)


class Scorer:
    """Models in this process, as for a GPU. ``loaded``: name -> model, or what is wrong with it."""

    def __init__(
        self, sources: Mapping[str, Source], cache: int, device: str = "cpu"
    ) -> None:
        self._models, self.loaded = (
            dict[str, Model](),
            dict[str, ServedModel | Exception](),
        )
        for name, source in sources.items():
            try:
                self._models[name], self.loaded[name] = load(
                    name, source, cache, device
                )
            except Exception as error:
                self.loaded[name] = error

    async def ask(self, name: str, pairs: Pairs) -> Scores:
        """As :meth:`score`, while the event loop goes on."""
        return await asyncio.to_thread(self.score, name, pairs)

    def score(self, name: str, pairs: Pairs) -> Scores:
        """Scores [P] of the pairs of a query by a model, of long texts by their best passages;
        raises RerankerError."""
        texts = best_passages([*pairs.queries[:1]] * len(pairs.texts), pairs.texts)
        return self._models[name].score(replace(pairs, texts=texts))

    def counts(self, name: str) -> Counter[str]:
        """Hits, misses and bytes of a model's kept posts."""
        return self._models[name].counts


@dataclass
class Worker:
    """A process that scores, one request at a time."""

    connection: Connection
    pid: int
    counts: dict[str, Counter[str]] = field(
        default_factory=dict
    )  # As of the last answers
    pause: float = 0.0  # Seconds before the next start, if it dies again
    next_start: float = 0.0  # On the clock of time.monotonic


class Workers(Scorer):
    """Models in several processes, forked from one that has loaded them; raises OSError. ``cache``:
    bytes of the kept posts of all together."""

    def __init__(
        self, sources: Mapping[str, Source], cache: int, processes: int
    ) -> None:
        self._arguments, self._lock = (dict(sources), cache // processes), Lock()
        self.loaded = {}
        self._load()
        self._workers = [Worker(*self.fork()) for _ in range(processes)]
        self._free = asyncio.LifoQueue[
            Worker
        ]()  # The last one, which has kept the most, is first.
        for worker in reversed(self._workers):
            self._free.put_nowait(worker)

    async def ask(self, name: str, pairs: Pairs) -> Scores:
        """As of a :class:`Scorer`; RequestError if no process can be started, or they die: one that
        has died, or does not answer in time, is replaced, once."""
        worker = await self._free.get()
        try:
            for _ in range(2):
                try:
                    answer, worker.counts[name] = await _exchange(
                        worker.connection, name, pairs
                    )
                except (EOFError, OSError) as error:
                    is_late = isinstance(error, BlockingIOError | TimeoutError)
                    await asyncio.to_thread(self._replace, worker, is_late)
                    continue
                except asyncio.CancelledError:
                    worker.connection.close()  # An answer must not be that of another request.
                    raise
                worker.pause = worker.next_start = 0.0
                if isinstance(answer, Exception):
                    try:
                        raise answer
                    finally:
                        del (
                            answer
                        )  # Else its traceback keeps this scorer, and so its processes.
                return np.asarray(answer)
        finally:
            self._free.put_nowait(worker)
        raise RequestError(
            "unready", "the process that scores has died twice of the same request"
        )

    def counts(self, name: str) -> Counter[str]:
        """As of a :class:`Scorer`."""
        return sum(
            (each.counts.get(name, Counter()) for each in self._workers), Counter()
        )

    def fork(self) -> tuple[Connection, int]:
        """A new process that scores, and its id; if those that hold the models die, an OSError."""
        with self._lock:
            for _ in range(2):
                try:
                    ours, theirs = _pipe(ANSWER)
                    send_handle(self._ours, theirs.fileno(), None)
                    theirs.close()
                    return ours, self._ours.recv()
                except (EOFError, OSError):
                    LOG.error(
                        "the process that holds the models has died; another one loads them"
                    )
                    self._end()
                    self._load()
        raise OSError("the process that holds the models dies at its start")

    def _load(self) -> None:
        """Start the process that loads the models; raises OSError, also where they have changed."""
        self._ours, theirs = _pipe(LOADING)
        arguments = theirs, *self._arguments
        CONTEXT.Process(target=hold, args=arguments, name="models", daemon=True).start()
        theirs.close()
        # It ends when this end is closed: at our own end before it is waited for.
        self._end = Finalize(self, self._ours.close, exitpriority=1)
        problem = f"the process that loads the models has died, or takes {LOADING:g} s"
        with suppress(EOFError, BlockingIOError):
            loaded, known = self._ours.recv(), self.loaded.items()
            changed = [
                n
                for n, old in known
                if isinstance(old, ServedModel) and loaded[n] != old
            ]
            if not changed:
                self.loaded = self.loaded or loaded
                return
            problem = f"{changed[0]} cannot be loaded again: it has changed ({loaded[changed[0]]})"
        self._end()
        raise OSError(problem)

    def _replace(self, worker: Worker, is_late: bool) -> None:
        """Start another process; raises RequestError if there is none for now."""
        if (
            not worker.connection.closed
        ):  # A late answer must not be that of another request.
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
            worker.connection.close()
        if (pause := worker.next_start - time.monotonic()) < BRIEF:
            time.sleep(max(0.0, pause))
            what = f"does not answer within {ANSWER:g} s" if is_late else "has died"
            LOG.error("a process that scores %s; another one starts", what)
            worker.pause = min(LONGEST_PAUSE, 2 * worker.pause or 0.25)
            worker.next_start = time.monotonic() + worker.pause
            try:
                worker.connection, worker.pid = self.fork()
                return
            except OSError as error:
                LOG.error("no process that scores can be started: %s", error)
        raise RequestError("unready", "a process that scores is being replaced")


async def _exchange(connection: Connection, name: str, pairs: Pairs) -> Any:
    """The answer to a request, waited for in the event loop: threads would wait for Python's lock,
    too. Raises OSError, also if the answer does not come in time."""
    await apart(4 * sum(map(len, pairs.texts)), partial(connection.send, (name, pairs)))
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, arrived.set)
    try:
        async with asyncio.timeout(ANSWER):
            await arrived.wait()
    finally:
        loop.remove_reader(connection)
    return connection.recv()


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


def hold(connection: Connection, sources: Mapping[str, Source], cache: int) -> None:
    """Load models, and fork a process for each handle that comes: the work of the first process."""
    # These signals are for the service, which ends this process when it no longer needs it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    log_by(logging.StreamHandler())
    devices.set_threads(1)
    with suppress(EOFError, OSError):  # The service has ended.
        scorer = Scorer(sources, cache)
        # Loaded models stay: garbage collection need not visit them, nor copy their pages.
        gc.collect()
        gc.freeze()
        connection.send(scorer.loaded)
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


def work(connection: Connection, scorer: Scorer) -> None:
    """Answer requests until the other end is closed: the work of a process that scores."""
    trimmed = time.monotonic()
    # PR_SET_PDEATHSIG: it ends with its template, even in work.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    while True:
        name, pairs = connection.recv()
        try:
            answer: Any = scorer.score(name, pairs)
        except Exception as error:
            error.add_note(traceback.format_exc())  # It is lost on the way.
            answer = error
        connection.send((answer, scorer.counts(name)))
        del answer, pairs
        if time.monotonic() > trimmed + TRIM and not connection.poll():
            give_back()
            trimmed = time.monotonic()


class Queue:
    """A queue in the order of arrival for ``threads`` processes; its methods are of one event loop.
    ``most_pairs`` and ``most_requests`` bound those in work, too."""

    def __init__(self, threads: int, most_pairs: int, most_requests: int) -> None:
        self.threads, self.most_pairs, self.most_requests = (
            threads,
            most_pairs,
            most_requests,
        )
        self.pairs, self.requests = 0, 0
        self._waiting = deque[tuple[Work, int, float, asyncio.Future[Any]]]()
        self._tasks = set[asyncio.Task[None]]()
        self._seconds, self._last = (
            0.0,
            time.monotonic(),
        )  # Of a pair; time of the last score

    @property
    def queued(self) -> int:
        """Requests that wait for a process."""
        return sum(not answer.done() for *_, answer in self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether no further request is taken."""
        return self.requests >= self.most_requests or self.pairs >= self.most_pairs

    async def run(
        self, work: Work, size: int, deadline: float
    ) -> tuple[Scores, float, float]:
        """The scores by ``work`` of ``size`` pairs, its seconds, and those in the queue.

        ``deadline`` is on the clock of ``time.perf_counter``. Raises RequestError if the queue is
        full, or the deadline is past, or will be, and what the work raises.
        """
        if self.requests and (self.is_full or self.pairs + size > self.most_pairs):
            problem = f"{self.requests} requests of {self.pairs} documents are waiting"
            raise RequestError("overload", f"{problem}, more than fit; try again later")
        if (left := deadline - time.perf_counter()) <= 0:
            raise RequestError("deadline", LATE)
        if self.queued and self._seconds * self.pairs / self.threads > left:
            problem = (
                f"{self.pairs} documents are waiting, for longer than the deadline"
            )
            raise RequestError("deadline", problem)
        self.pairs, self.requests = self.pairs + size, self.requests + 1
        try:
            async with asyncio.timeout(left):
                return await self._run(work, size)
        except TimeoutError:
            raise RequestError("deadline", LATE) from None
        finally:
            self.pairs, self.requests = self.pairs - size, self.requests - 1

    async def is_well(self, model: ServedModel) -> bool:
        """Whether there are scores: of the last seconds, else of a request or of some pairs."""
        started = time.monotonic()
        if started - self._last < CHECKED:
            return True
        with suppress(Exception):
            async with asyncio.timeout(CHECKED):
                await self._run(
                    partial(model.scorer.ask, model.name, PROBE), len(PROBE)
                )
        return self._last >= started

    async def _run(self, work: Work, size: int) -> tuple[Scores, float, float]:
        """Wait for a free process and for its work, which goes on if the caller is cancelled."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((work, size, time.perf_counter(), answer))
        if len(self._tasks) < self.threads:
            self._tasks.add(asyncio.create_task(self._work()))
        return await answer

    async def _work(self) -> None:
        """Answer one request after another: a process that is free gets the next one at once."""
        try:
            while self._waiting:
                await self._answer(*self._waiting.popleft())
        finally:
            self._tasks -= {
                asyncio.current_task()
            }  # At once: the next request starts another.

    async def _answer(self, work: Work, size: int, since: float, answer: Any) -> None:
        if answer.done():  # Its caller has gone.
            return
        started = time.perf_counter()
        with suppress(asyncio.InvalidStateError):  # The caller may have gone since.
            try:
                scores, seconds = await work(), time.perf_counter() - started
                self._last = time.monotonic()
                most = (
                    MOST_SLOWED * self._seconds or seconds
                )  # More says that a process hung.
                self._seconds += RECENT * (min(seconds / size, most) - self._seconds)
                answer.set_result((scores, seconds, started - since))
            except Exception as error:
                answer.set_exception(error)


class Models:
    """The served models by name. ``numbers``: names of the numbers beside the texts that any of
    them reads.

    Raises UsageError for two of the same name, RerankerError for one that cannot be loaded or
    served, DataError for a collection without a model.
    """

    def __init__(
        self,
        names: Sequence[str],  # Of shipped models, or folders
        cache: int,  # Bytes of the kept posts of all
        processes: int = 0,  # That score; without any this one does, as for a GPU
        collections: Sequence[Collection] = (),  # Whose best models are served besides
        device: str = "cpu",  # Of networks
        challenger: str | None = None,  # Another model, for comparisons alone
    ) -> None:
        self._find = _sources(names, collections)
        self._challenger = (
            "challenger of " + next(iter(self._find)) if challenger else ""
        )
        if challenger:
            self._find[self._challenger] = partial(Source, checkpoints.find(challenger))
        each = cache // len(self._find)
        self._load: Callable[[dict[str, Source]], Scorer]
        self._load = partial(Scorer, cache=each, device=device)
        if processes and device == "cpu":
            self._load = partial(Workers, cache=each, processes=processes)
        self._all: dict[str, ServedModel] = {}
        for outcome in self._update().values():
            if isinstance(outcome, Exception):
                raise outcome

    @property
    def served(self) -> Mapping[str, ServedModel]:
        """Name -> model; the first is the default."""
        return {name: m for name, m in self._all.items() if name != self._challenger}

    @property
    def default(self) -> ServedModel:
        """The first model."""
        return next(iter(self._all.values()))

    @property
    def challenger(self) -> ServedModel | None:
        """The model that is compared with the default one."""
        return self._all.get(self._challenger)

    def choose(self, name: str | None, takes_any: bool) -> ServedModel:
        """The model of this name, or the only one, which may answer to every name; RequestError if
        there is no such model, or several and no name."""
        served = self.served
        if name is not None and name in served:
            return served[name]
        if len(served) == 1 and (name is None or takes_any):
            return self.default
        kind, found = "value", "no model"
        if name is not None:
            kind, found = "model", f"the model {name[:100]!r}"
        raise RequestError(
            kind, f"model: found {found}, expected one of {', '.join(served)}"
        )

    def reload(self) -> None:
        """Load the models again if one has changed, or is no longer the best for its collection,
        and swap them in; a damaged one is logged, and the old one stays."""
        for name, outcome in self._update().items():
            if isinstance(outcome, Exception):
                LOG.error("%s: the old model stays: %s", name, outcome)
            else:
                LOG.info("%s: %s", name, outcome)

    def _update(self) -> dict[str, str | Exception]:
        """Load all models if one has changed; name -> outcome."""
        sources, outcomes = dict[str, Source](), dict[str, str | Exception]()
        for name, find in self._find.items():
            try:
                source, old = find(), self._all.get(name)
                is_same = old is not None and source.version == old.version
                outcomes[name] = (
                    "unchanged" if is_same else f"loaded again from {source.folder}"
                )
                sources[name] = source
            except DAMAGES as error:
                outcomes[name] = error
        if all(outcomes[name] == "unchanged" for name in sources):
            return outcomes
        try:
            scorer = self._load(sources)
        except DAMAGES as error:
            return outcomes | dict.fromkeys(sources, error)
        models = dict(self._all)
        for name, loaded in scorer.loaded.items():
            if isinstance(loaded, Exception):
                outcomes[name] = loaded
            else:
                models[name] = replace(loaded, scorer=scorer)
        self._all = models  # As a whole: a request sees all of it or nothing.
        self.numbers = tuple(
            sorted({name for each in models.values() for name in each.numbers})
        )
        return outcomes


def _sources(
    names: Sequence[str], collections: Sequence[Collection]
) -> dict[str, Callable[[], Source]]:
    """Name in requests -> a function that finds the model's files as they are now."""
    sources, problems = dict[str, Callable[[], Source]](), list[str]()
    every: list[str | Collection] = [*names, *collections]
    for given in every:
        if isinstance(given, Collection):
            option, name, find = "--collection", given.name, partial(best_source, given)
        else:
            try:
                option, folder = "--checkpoint", checkpoints.find(given)
            except RerankerError as error:
                problems.append(f"--checkpoint: {error}")
                continue
            is_shipped = folder.is_relative_to(checkpoints.SHIPPED)
            name = (
                given
                if is_shipped and given == folder.parent.name
                else folder.resolve().name
            )
            find = partial(Source, folder)
        if name in sources:
            problems.append(
                f"{option}: found two models of the name {name}, expected one"
            )
        sources[name] = find
    if problems:
        raise UsageError(problems)
    return sources
