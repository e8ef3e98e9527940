"""From a body to an answer: read, queue, score, write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from pipeline.service.formats import assumed
from pipeline.service.formats.base import Ask, Format, Ranking
from pipeline.service.http import requests as reading
from pipeline.service.http.errors import Fault
from pipeline.service.http.metrics import Metrics
from pipeline.service.http.models import Models, ServedModel
from pipeline.service.http.record import LOG, Record
from pipeline.service.http.scheduler import SLICE, Job, Scheduler
from pipeline.service.http.statistics import Statistics
from rerankers.base import PRIOR, prior_of_rank
from rerankers.text.words import MAX_CHARACTERS

DEADLINES = ("x-request-timeout-ms", "x-envoy-expected-rq-timeout-ms")
"""Headers with the milliseconds that the client, or a proxy before us, will wait."""

LARGE = 256 * 1024
"""Bytes of a body whose halves of surrogate pairs are mended in a thread of its own."""


@dataclass(frozen=True)
class Limits:
    """What a request, and all requests together, may cost.

    Attributes:
        documents: of a request.
        body: bytes of a request.
        waiting_documents: in the queue and in work.
        waiting_requests: the same.
        held: bytes of all bodies that are being read or answered.
        seconds: for the arrival of a body.
    """

    documents: int = 2000
    body: int = 8_000_000
    waiting_documents: int = 20_000
    waiting_requests: int = 512
    held: int = 256_000_000
    seconds: float = 30.0

    @classmethod
    def of(cls, documents: int, body: int) -> Limits:
        """Limits of all requests together that fit these limits of one."""
        return cls(documents, body, 10 * documents, held=32 * body)


class Service:
    """Answers requests for scores.

    Args:
        models: to serve.
        limits: of requests.
        threads: that score.
        log_texts: whether texts are written to the log.
        statistics: for the first stage's scores, where a request wants them computed.
    """

    def __init__(
        self,
        models: Models,
        limits: Limits,
        threads: int,
        log_texts: bool = False,
        statistics: Statistics | None = None,
    ) -> None:
        self.models, self.limits, self.log_texts = models, limits, log_texts
        self.statistics = statistics
        self.metrics = Metrics(lambda: self.scheduler.queued, lambda: models.served.values())
        self.scheduler = Scheduler(
            *(threads, limits.waiting_documents, limits.waiting_requests, self.metrics.batch),
            SLICE * threads,  # Each is divided among as many processes.
        )
        self._held = 0

    async def answer(self, request: Request) -> Response:
        """The answer to a request for scores, or its fault in the shape of its format."""
        record: Record = request.scope["state"]["record"]
        path = request.scope["path"].rstrip("/")
        wire = assumed(path)
        record.format = wire.name
        try:
            async with self.body_of(request) as body:
                content = await _content(body)
                wire = reading.format_for(path, content)
                record.format = wire.name
                if wire.needs_media_type:
                    _check_media_type(request)
                ask = reading.read(content, wire, self.limits.documents)
                return await unless_gone(self._ranked(ask, wire, request, record), request)
        except Fault as fault:
            return refusal(fault, wire, record)
        except ClientDisconnect:
            return refusal(Fault("gone", "the client has gone"), wire, record)
        except Exception:
            LOG.exception("request %s failed", record.request_id)
            problem = f"an internal error; see the log for {record.request_id}"
            return refusal(Fault("internal", problem), wire, record)

    @asynccontextmanager
    async def body_of(self, request: Request) -> AsyncIterator[bytes]:
        """A request's body, which counts among those that are held until it is left.

        Raises:
            Fault: it is too large, too slow, or too much beside those of other requests.
        """
        body = bytearray()
        try:
            await self._fill(body, request)
            yield bytes(body)
        finally:
            self._held -= len(body)

    async def _fill(self, body: bytearray, request: Request) -> None:
        limit = self.limits.body
        large = Fault("body", f"found a body of more than {limit} bytes, expected at most that")
        with suppress(ValueError):
            if int(request.headers.get("content-length", 0)) > limit:
                raise large
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for chunk in request.stream():
                    body += chunk
                    self._held += len(chunk)
                    if len(body) > limit:
                        raise large
                    if self._held > self.limits.held and self._held > len(body):
                        raise Fault("overload", "too many large requests at once", retry=1)
        except TimeoutError:
            problem = f"found no whole body after {self.limits.seconds:g} s"
            raise Fault("slow_body", problem) from None

    async def _ranked(self, ask: Ask, wire: Format, request: Request, record: Record) -> Response:
        """Score the documents and write the answer."""
        model = self.models.choose(ask.model, wire.takes_any_model)
        record.model, record.documents = model.name, len(ask.texts)
        record.characters = sum(map(len, ask.texts)) + sum(map(len, ask.queries))
        if self.log_texts:
            record.texts = [*ask.queries, *ask.texts]
        if ask.mix == "lexical":
            ask = replace(ask, first_stage=await self._lexical(ask))
        job, rows = job_of(ask, model)
        job.deadline = deadline_of(request, record.started)
        record.words = sum(text.count(" ") + 1 for text in [*job.queries, *job.texts])
        before = model.scorer.hits
        logits = await self.scheduler.score(job)
        record.queue = (job.started or job.queued) - job.queued
        record.inference = job.inference
        # Of other requests too, at the same time.
        record.cache_hits = min(model.scorer.hits - before, len(job.texts))
        finished = model.finish(ask, logits[rows], wire.later_first)
        ranking = Ranking(
            ask,
            model.name,
            finished.mix,
            finished.scores,
            finished.order,
            record.words,
            record.request_id,
            int(time.time()),
        )
        content = orjson.dumps(wire.answer(ranking))
        record.total = time.perf_counter() - record.started
        response = Response(content, media_type="application/json")
        response.raw_headers += [*record.headers(), (b"x-mix", finished.mix.encode())]
        return response

    async def _lexical(self, ask: Ask) -> Sequence[float]:
        """[D] the first stage's scores, computed here.

        Raises:
            Fault: the service has no statistics, or their index does not answer.
        """
        if self.statistics is None:
            problem = "found lexical, expected neural or interpolated, as this service was started "
            raise Fault("value", f"{problem}without --statistics", ("mix",))
        texts = [text[:MAX_CHARACTERS] for text in ask.texts]
        return await self.statistics.scores([q[:MAX_CHARACTERS] for q in ask.queries], texts)


def job_of(ask: Ask, model: ServedModel) -> tuple[Job, npt.NDArray[np.int64]]:
    """The distinct pairs of a request, cut to what models read, and the pair [D] of each document.

    Equal documents are scored once, so that they get the same score.
    """
    queries = list(dict.fromkeys(query[:MAX_CHARACTERS] for query in ask.queries))
    rows_of = {query: row for row, query in enumerate(queries)}
    owners = [rows_of[query[:MAX_CHARACTERS]] for query in ask.queries]
    if len(owners) == 1:
        owners *= len(ask.texts)
    priors = _priors(ask) if model.reads_prior else [0.0] * len(ask.texts)
    places: dict[tuple[int, str, str, float], int] = {}
    rows = [
        places.setdefault((owner, text[:MAX_CHARACTERS], url[:MAX_CHARACTERS], prior), len(places))
        for owner, text, url, prior in zip(owners, ask.texts, ask.urls, priors, strict=True)
    ]
    index, texts, urls, kept = zip(*places, strict=True)
    signals = {PRIOR: np.array(kept, dtype=np.float32)} if model.reads_prior else {}
    job = Job(model, queries, np.array(index, dtype=np.int64), texts, urls, signals)
    return job, np.array(rows, dtype=np.int64)


def _priors(ask: Ask) -> Sequence[float]:
    """[D] the prior of each document's rank by the first stage; 0 if there is none."""
    if ask.first_stage is None:
        return [0.0] * len(ask.texts)
    order = np.argsort(-np.array(ask.first_stage), kind="stable")
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(1, len(order) + 1)
    return [float(prior) for prior in prior_of_rank(ranks)]


def refusal(fault: Fault, wire: Format, record: Record) -> Response:
    """A fault as a response, noted in the record."""
    record.kind, record.error = fault.kind, fault.message
    response = Response(
        orjson.dumps(wire.explain(fault, record.request_id)),
        wire.status(fault),
        media_type="application/json",
    )
    if fault.retry is not None:
        response.headers["retry-after"] = str(fault.retry)
    if fault.kind == "key":
        response.headers["www-authenticate"] = "Bearer"
    if fault.kind in ("body", "slow_body"):
        # The rest of the body is not read.
        response.headers["connection"] = "close"
    return response


async def _content(body: bytes) -> dict[str, object]:
    if len(body) < LARGE or b"\\u" not in body:
        return reading.read_json(body)
    return await asyncio.to_thread(reading.read_json, body)


def _check_media_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        found = kind[:100] or "no content type"
        raise Fault("media", f"found {found}, expected application/json")


def deadline_of(request: Request, started: float) -> float | None:
    """When the client stops waiting, on the clock of ``started``; None if it does not say."""
    for name in DEADLINES:
        if (text := request.headers.get(name)) is not None:
            if not (text.isascii() and text.isdigit() and len(text) < 12):
                problem = f"{name}: found {text[:100]!r}, expected milliseconds"
                raise Fault("value", problem)
            if milliseconds := int(text):
                return started + milliseconds / 1000
    return None


async def unless_gone(work: Awaitable[Response], request: Request) -> Response:
    """The result of ``work``, which is cancelled if the client goes away.

    Raises:
        Fault: the client has gone; nobody will read it.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Fault("gone", "the client has gone")
    finally:
        for one in (task, gone):
            one.cancel()


async def _disconnected(receive: Receive) -> None:
    """Wait until the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
