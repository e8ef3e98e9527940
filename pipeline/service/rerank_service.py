"""Scoring of documents, from the request to its response.

1. :func:`tweetrerank.pipeline.service.score_request.read_request` reads the body.
2. :func:`pairs_of` makes (query, document) pairs for the model.
3. The queue runs the model's scorer, usually in another process.
4. ``ServedModel.respond`` orders the documents, and the wire format writes the body
   (``formats.py``).

Options of ``serve`` arrive as arguments of :class:`Service`, as
:class:`tweetrerank.pipeline.service.limits.Limits`, or as arguments of
:class:`tweetrerank.pipeline.service.served_models.Models`; the function
``tweetrerank.pipeline.serve.serve`` creates these objects.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from cachetools import LRUCache
from starlette.requests import Request
from starlette.responses import Response

from tweetrerank.pipeline.service.formats import format_of
from tweetrerank.pipeline.service.limits import (
    BodyReader,
    Limits,
    apart,
    check_media_type,
    deadline_of,
    unless_gone,
)
from tweetrerank.pipeline.service.metrics import Metrics
from tweetrerank.pipeline.service.request_record import Record
from tweetrerank.pipeline.service.score_request import ScoreRequest, read_request
from tweetrerank.pipeline.service.score_response import ScoreResponse
from tweetrerank.pipeline.service.scorer import Scores, ServedModel
from tweetrerank.pipeline.service.scoring_queue import Queue
from tweetrerank.pipeline.service.served_models import Models
from tweetrerank.rerankers.pairs import (
    FIRST_STAGE,
    NUMBER,
    ORDER,
    PRIOR,
    Pairs,
    places_of,
    prior_of_rank,
)
from tweetrerank.rerankers.text.words import MAX_CHARACTERS

KEPT_BYTES = 8_000_000
"""Bytes that may be used to keep the scores of the latest lists.

A client that asks for the next page of a search sends the same list again.
"""
ENTRY_BYTES = 100  # Assumed overhead of an entry, added to the size of its scores

Signals = dict[str, npt.NDArray[Any]]


class Service:
    """Scores the documents of requests with the served models.

    ``in_order`` says whether the documents of a request that does not state their
    order are taken to be in a first stage's order, best first.
    """

    def __init__(
        self,
        models: Models,
        limits: Limits,
        threads: int,
        log_texts: bool = False,
        in_order: bool = True,
    ) -> None:
        self.models = models
        self.limits = limits
        self.log_texts = log_texts
        self._in_order = in_order
        self.bodies = BodyReader(limits)
        self._kept_scores = LRUCache[bytes, Scores](
            KEPT_BYTES,
            lambda scores: scores.nbytes + ENTRY_BYTES,
        )
        self.queue = Queue(threads, limits.waiting_documents, limits.waiting_requests)
        self.metrics = Metrics()

    async def endpoint(self, request: Request) -> Response:
        """Return the response to a request for scores.

        Raises RequestError if the request is refused or cannot be answered.
        """
        request.state.record.format = request.state.format.name
        async with self.bodies.read(request) as body:
            return await unless_gone(self._respond(request, body), request)

    async def _respond(self, request: Request, body: bytes) -> Response:
        state = request.state
        record: Record = state.record
        path = request.scope["path"].rstrip("/") or "/"
        # Errors are written in this format until the body is decoded.
        state.format = format_of(path, is_tei=b'"texts"' in body)
        deadline = deadline_of(request) or record.started + self.limits.answer
        most = self.limits.documents
        read = partial(read_request, body, most, self.models.numbers)
        score_request = await apart(len(body), read)
        options = score_request.options
        wire = format_of(path, options.is_tei)
        state.format = wire
        record.format = wire.name
        if options.is_tei:
            check_media_type(request)
        model = self.models.choose(options.model, takes_any=True)
        response = await self.score(score_request, model, record, deadline)
        content = orjson.dumps(wire.write(response, record))
        record.total = time.perf_counter() - record.started
        headers = record.headers()
        headers["x-mix"] = response.mix
        headers["x-model"] = model.name.encode("ascii", "backslashreplace").decode()
        return Response(content, headers=headers, media_type="application/json")

    async def score(
        self, request: ScoreRequest, model: ServedModel, record: Record, deadline: float
    ) -> ScoreResponse:
        """Score a request, and add its sizes and times to the record.

        ``deadline`` is a time on the clock of ``time.perf_counter``. Raises
        RequestError if the queue is full, or if the deadline has passed or cannot be
        met.
        """
        record.model = model.name
        record.device = model.device
        self._count_texts(request, record)
        in_order = self._in_order
        if request.options.order is not None:
            in_order = request.options.order == "first_stage"
        pairs, rows = pairs_of(request, model, in_order)
        numbers = [pairs.signals[NUMBER + name] for name in model.numbers]
        record.unknown_signals += int(np.isnan(numbers).sum())
        for text in (*pairs.queries, *pairs.texts):
            record.words += text.count(" ") + 1
        if model.reads_lists:
            scores = await self._list_scores(pairs, model, record, deadline)
        else:
            scores = await self._scores(pairs, model, record, deadline)
        return model.respond(request, scores[rows])

    def _count_texts(self, request: ScoreRequest, record: Record) -> None:
        query = request.options.query
        texts = request.texts
        record.documents += len(texts)
        record.truncated += request.truncated
        record.characters += len(query) + sum(map(len, texts))
        record.split += sum(len(text) > MAX_CHARACTERS for text in texts)
        if self.log_texts:
            record.texts = [*record.texts, query, *texts]

    async def _list_scores(
        self, pairs: Pairs, model: ServedModel, record: Record, deadline: float
    ) -> Scores:
        """Return the scores [P] by a model that reads whole lists.

        Scores kept from an earlier request by the same caller are returned again.
        """
        key = _list_key(pairs, model, record.caller)
        scores = self._kept_scores.get(key)
        if scores is not None:
            record.cache_hits += len(pairs)
            return scores
        scores = await self._scores(pairs, model, record, deadline)
        self._kept_scores[key] = scores
        return scores

    async def _scores(
        self, pairs: Pairs, model: ServedModel, record: Record, deadline: float
    ) -> Scores:
        """Wait for a turn in the queue, and return the model's scores [P]."""
        scorer = model.scorer
        hits_before = scorer.counts(model.name)["hits"]
        ask = partial(scorer.ask, model.name, pairs)
        scored = await self.queue.run(ask, len(pairs), deadline)
        self.metrics.of("te_batch_next_size").observe(len(pairs))
        record.queue = max(record.queue, scored.queued)
        record.inference += scored.seconds
        # The counter also includes the hits of other requests running at the same time.
        hits = scorer.counts(model.name)["hits"] - hits_before
        record.cache_hits += min(max(0, hits), len(pairs))
        return scored.scores


# --- Pairs ----------------------------------------------------------------------------


def pairs_of(
    request: ScoreRequest, model: ServedModel, in_order: bool
) -> tuple[Pairs, npt.NDArray[np.int64]]:
    """Return the pairs [P] of a request, and the index of each document's pair [D].

    Equal documents share one pair, so that they get the same score. A model that
    reads lists is the exception: it gets a pair for every document, because each
    document's place in the list matters.
    """
    texts = request.texts
    query = request.options.query[:MAX_CHARACTERS]
    urls = [url[:MAX_CHARACTERS] for url in request.urls]
    rows = np.arange(len(texts))
    signals = _signals_of(request, model, in_order)
    pairs = Pairs([query], texts, urls, np.zeros_like(rows), rows, signals)
    if model.reads_lists:
        return pairs, rows
    return _distinct(pairs, model.signals)


def _signals_of(request: ScoreRequest, model: ServedModel, in_order: bool) -> Signals:
    """Return the values [D] of each signal by its name; unknown numbers are NaN."""
    size = len(request.texts)
    signals: Signals = {}
    if in_order:
        signals[ORDER] = np.arange(1, size + 1, dtype=np.float32)
    if request.first_stage is not None:
        scores = np.array(request.first_stage)
        places = places_of(np.zeros(size, dtype=np.int64), scores)
        signals[PRIOR] = prior_of_rank(places.astype(np.int64))
        if request.options.mix != "neural":
            signals[FIRST_STAGE] = scores
            signals[ORDER] = places
    unknown = [np.nan] * size
    for name in model.numbers:
        signals[NUMBER + name] = np.array(request.signals.get(name, unknown))
    return signals


def _distinct(
    pairs: Pairs, signal_names: set[str]
) -> tuple[Pairs, npt.NDArray[np.int64]]:
    """Return the distinct pairs, and the index of each row's pair.

    Pairs are equal if their texts, URLs and named signals are equal.
    """
    signals = {
        name: pairs.signals[name] for name in signal_names & pairs.signals.keys()
    }
    columns: list[Sequence[Any]] = [pairs.texts, pairs.urls]
    columns += [values.tolist() for values in signals.values()]
    number_of_key: dict[tuple[Any, ...], int] = {}
    numbers = []
    for key in zip(*columns, strict=True):
        numbers.append(number_of_key.setdefault(key, len(number_of_key)))
    rows = np.array(numbers)
    _, first = np.unique(rows, return_index=True)
    return replace(pairs, signals=signals).take(first), rows


def _list_key(pairs: Pairs, model: ServedModel, caller: bytes) -> bytes:
    """Return a hash of the caller and of everything that determines a list's scores."""
    texts = [model.version, *pairs.queries, *pairs.texts, *pairs.urls]
    signals = {name: values.tobytes() for name, values in pairs.signals.items()}
    lengths = list(map(len, texts))
    content = f"{lengths}{list(signals)}{''.join(texts)}"
    hashed = hashlib.blake2b(caller)
    hashed.update(content.encode("utf-8", "surrogatepass"))
    for values in signals.values():
        hashed.update(values)
    return hashed.digest()
