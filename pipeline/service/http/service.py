"""From a request to its scores: read, queue, score, write."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import orjson
from cachetools import LRUCache
from starlette.requests import Request
from starlette.responses import Response

from pipeline.service.formats import Format, ScoreRequest, ScoreResponse, format_of
from pipeline.service.http.metrics import Metrics
from pipeline.service.http.models import Models, ServedModel
from pipeline.service.http.requests import (
    BodyReader,
    Limits,
    check_media_type,
    deadline_of,
    read_json,
    score_request,
    unless_gone,
)
from pipeline.service.http.scheduler import SLICE, QueuedRequest, Scheduler
from pipeline.service.record import Record
from rerankers.pairs import FIRST_STAGE, ORDER, PRIOR, places_of, prior_of_rank
from rerankers.text.passages import best_passages
from rerankers.text.words import MAX_CHARACTERS

WINDOWS = 2_000
"""Windows whose scores are kept, four bytes a document: the next page of a search needs them."""

CHECKED = 5.0  # Seconds for the scores of a look at the service's health, and until the next one


class Service:
    """Scores documents."""

    def __init__(
        self, models: Models, limits: Limits, threads: int, log_texts: bool = False
    ) -> None:
        self.models, self.limits, self.log_texts = models, limits, log_texts
        self.bodies = BodyReader(limits)
        self._windows: LRUCache[bytes, npt.NDArray[np.float32]] = LRUCache(WINDOWS)
        self._check: asyncio.Future[None] | None = None
        self._checked = 0.0
        self.metrics = Metrics(lambda: self.scheduler.queued, lambda: models.served.values())
        self.scheduler = Scheduler(
            *(threads, limits.waiting_documents, limits.waiting_requests, self.metrics.batch),
            SLICE * threads,  # Each is divided among as many processes.
        )

    async def endpoint(self, request: Request) -> Response:
        """The response to a request for scores; raises RequestError."""
        state, path = request.state, request.scope["path"].rstrip("/") or "/"
        state.record.format = state.format.name
        async with self.bodies.read(request) as body:
            content = await read_json(body)
            # Null is as good as no value.
            wire = format_of(path, {key for key, value in content.items() if value is not None})
            state.format, state.record.format = wire, wire.name
            if wire.needs_media_type:
                check_media_type(request)
            wanted = score_request(content, wire, self.limits.documents)
            return await unless_gone(self._respond(wanted, wire, request), request)

    async def _respond(self, wanted: ScoreRequest, wire: Format, request: Request) -> Response:
        model = self.models.choose(wanted.model, True)
        record: Record = request.state.record
        deadline = deadline_of(request) or record.started + self.limits.answer
        response = await self.score(wanted, model, record, deadline, wire.later_first)
        content = orjson.dumps(wire.write(response, record))
        record.total = time.perf_counter() - record.started
        headers = record.headers() | {"x-mix": response.mix}
        return Response(content, headers=headers, media_type="application/json")

    async def score(
        self,
        request: ScoreRequest,
        model: ServedModel,
        record: Record,
        deadline: float | None,
        later_first: bool = False,
    ) -> ScoreResponse:
        """The scores of a request, whose sizes and times are added to the record.

        Raises RequestError if the queue is full, or the deadline is past.
        """
        record.model, record.device = model.name, model.checkpoint.device
        record.documents += len(request.texts)
        record.truncated += request.truncated
        long = sum(len(text) > MAX_CHARACTERS for text in request.texts)
        record.split += long
        record.characters += sum(map(len, [request.query, *request.texts]))
        if self.log_texts:
            record.texts = [*record.texts, request.query, *request.texts]
        queued, rows = distinct_pairs(await _with_passages(request) if long else request, model)
        queued.deadline = deadline
        record.words += sum(text.count(" ") + 1 for text in [queued.query, *queued.texts])
        key = _key(queued) if model.reads_windows else b""
        if (logits := self._windows.get(key)) is None:
            hits_before = model.scorer.counts.hits
            logits = await self.scheduler.score(queued)
            record.queue = max(record.queue, (queued.started or queued.queued) - queued.queued)
            record.inference += queued.inference
            # Of other requests too, at the same time.
            found = model.scorer.counts.hits - hits_before
            record.cache_hits += min(found, len(queued.texts))
        else:
            record.cache_hits += len(queued.texts)
        if key:
            self._windows[key] = logits
        return model.respond(request, logits[rows], later_first)

    @property
    def is_ready(self) -> bool:
        """Whether a request would be taken now."""
        return not self.scheduler.is_full

    async def is_healthy(self) -> bool:
        """Whether each process of each model scores, as it was seen in the last few seconds."""
        now = time.monotonic()
        if self._check is None or (self._check.done() and now - self._checked > CHECKED):
            self._checked = now
            self._check = asyncio.ensure_future(asyncio.to_thread(self._check_scorers))
        done, _ = await asyncio.wait([self._check], timeout=CHECKED)
        return bool(done) and self._check.exception() is None

    def _check_scorers(self) -> None:
        """Score some pairs by each process, past the queue."""
        for model in self.models.served.values():
            model.scorer.check()


async def _with_passages(request: ScoreRequest) -> ScoreRequest:
    queries = [request.query] * len(request.texts)
    return replace(request, texts=await asyncio.to_thread(best_passages, queries, request.texts))


def distinct_pairs(
    request: ScoreRequest, model: ServedModel
) -> tuple[QueuedRequest, npt.NDArray[np.int64]]:
    """The distinct pairs of a request without long texts, and the pair [D] of each document.

    Equal documents are scored once, so that they get the same score; but by a model of windows each
    in its place.
    """
    query = request.query[:MAX_CHARACTERS]
    urls = [url[:MAX_CHARACTERS] for url in request.urls]
    if model.reads_windows:
        rows = np.arange(len(request.texts))
        return QueuedRequest(model, query, request.texts, urls, _first_stage(request)), rows
    priors = _priors(request) if model.reads_prior else [0.0] * len(urls)
    places: dict[tuple[str, str, float], int] = {}
    found = [
        places.setdefault(pair, len(places))
        for pair in zip(request.texts, urls, priors, strict=True)
    ]
    texts, urls, kept = map(list, zip(*places, strict=True))
    signals = {PRIOR: np.array(kept, dtype=np.float32)} if model.reads_prior else {}
    return QueuedRequest(model, query, texts, urls, signals), np.array(found, dtype=np.int64)


def _first_stage(request: ScoreRequest) -> dict[str, npt.NDArray[np.float32]]:
    """Name -> [D] score and place by the first stage, NaN where they are not known."""
    count = len(request.texts)
    first, order = np.full((2, count), np.nan, dtype=np.float32)
    if request.mix != "neural" and request.first_stage is not None:
        first = np.array(request.first_stage, dtype=np.float32)
        order = _places(request.first_stage)
    elif request.in_order:
        order = np.arange(1, count + 1, dtype=np.float32)
    return {FIRST_STAGE: first, ORDER: order}


def _key(queued: QueuedRequest) -> bytes:
    """Hash of all that the scores of a window depend on."""
    texts = [queued.model.version, queued.query, *queued.texts, *queued.urls]
    content = f"{[*map(len, texts)]}{''.join(texts)}".encode("utf-8", "surrogatepass")
    numbers = [signal.tobytes() for _, signal in sorted(queued.signals.items())]
    return hashlib.blake2b(b"".join([content, *numbers])).digest()


def _priors(request: ScoreRequest) -> Sequence[float]:
    """[D] the prior of each document's rank by the first stage; 0 if there is none."""
    if request.first_stage is None:
        return [0.0] * len(request.texts)
    priors: list[float] = prior_of_rank(_places(request.first_stage).astype(np.int64)).tolist()
    return priors


def _places(scores: Sequence[float]) -> npt.NDArray[np.float32]:
    """Place of each score, from 1 for the highest; equal ones keep their order."""
    return places_of(np.zeros(len(scores), dtype=np.int64), np.array(scores))
