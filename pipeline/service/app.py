"""The ASGI application, from a route to its answer: request, scores, response, errors."""

from __future__ import annotations

import asyncio
import faulthandler
import hashlib
import hmac
import json
import re
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import BoundedSemaphore, Lock, Thread
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
from cachetools import LRUCache
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.service import formats
from pipeline.service.formats import PATHS, TEI, ScoreRequest, ScoreResponse, assumed
from pipeline.service.models import Models, Queue, Result, ServedModel, give_back
from pipeline.service.record import LOG, Metrics, Record
from pipeline.service.requests import (
    BodyReader,
    ErrorFormat,
    Limits,
    RequestError,
    check_media_type,
    deadline_of,
    unless_gone,
)
from rerankers.pairs import FIRST_STAGE, NUMBER, ORDER, PRIOR, Pairs, places_of, prior_of_rank
from rerankers.text.passages import best_passages
from rerankers.text.words import MAX_CHARACTERS

WINDOWS = 8_000_000
"""Bytes of the scores of the last lists, kept for their caller: the next page of a search needs
them."""
HANGS = 30.0  # Seconds without a turn of the event loop after which the service ends
LARGE = 256_000  # Bytes of a body that is not read in the event loop
TRIM = 10  # Seconds between two returns of free memory to the system
MOST_HEADERS = 200
MOST_CLIENTS = 10_000  # Clients whose requests are counted
EVENT_BYTES, MOST_EVENTS = 1_000_000, 1000  # Of a request

DESCRIPTION = Path(__file__).parent / "openapi.json"
PROBES = frozenset(("/health", "/ping", "/ready", "/metrics"))
"""Paths whose good answers are not logged."""
PUBLIC = PROBES | {"/", "/page.css", "/page.js", "/openapi.json"}
"""Paths that need no key."""

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_TRACE = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""The header ``traceparent`` of W3C Trace Context; the proxy passes it to the engine."""

# --- Routes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Access:
    """Limits of callers."""

    keys: Sequence[str] = ()  # Of which a request needs one, if there are any; they may change
    hosts: Sequence[str] = ()  # Names in the header Host, or ``*.example.com``; none is any
    origins: Sequence[str] = ()  # Of pages in browsers, for our own paths
    rate: int | None = None  # Requests of a client in a second


def build(
    service: Service,
    access: Access = Access(),
    page: Sequence[BaseRoute] = (),
    proxy: Any = None,  # pipeline.service.proxy.routes.Proxy, of an engine's searches
    events: Any = None,  # pipeline.service.log.SearchLog
    reload: Callable[[], None] | None = None,  # After SIGHUP; else the models are loaded again
    is_watched: bool = False,  # Whether the process ends if the event loop hangs
) -> ASGIApp:
    """The application, with the routes of its page."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with suppress(RuntimeError, ValueError):  # Only the main thread has signals.
            soon = reloading(reload or service.models.reload)
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, soon)
        watch = asyncio.create_task(_watch()) if is_watched else None
        yield
        if watch:
            watch.cancel()
            faulthandler.cancel_dump_traceback_later()
        await asyncio.to_thread(service.queue.pool.shutdown)
        if proxy:
            await proxy.upstream.close()

    paths = [path for name in PATHS for path in dict.fromkeys((name, f"{name.rstrip('/')}/"))]
    own = [*(Route(path, service.endpoint, methods=["POST"]) for path in paths), *page]
    own += _information(service, bool(access.keys))
    if events:
        own.append(_events(service, events))
    app = Starlette(
        routes=[*(proxy.routes() if proxy else ()), *own],
        exception_handlers=dict.fromkeys((RequestError, HTTPException, Exception), _refuse),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    if proxy:
        app.router.default = proxy.respond
    # Calls that are the engine's, not ours, need no key of ours: they have the engine's own.
    paths = [getattr(route, "path", "") for route in own]
    return ServiceMiddleware(app, service, access, frozenset(paths) if proxy else None)


def reloading(work: Callable[[], None]) -> Callable[[], None]:
    """A function that does ``work`` soon, in a thread of its own: one at a time, one may wait."""
    waiting, lock = BoundedSemaphore(1), Lock()

    def run() -> None:
        with lock:
            waiting.release()
            work()

    def soon() -> None:
        if waiting.acquire(blocking=False):
            Thread(target=run, name="reload", daemon=True).start()

    return soon


async def _watch() -> None:
    """Tell the system that the loop runs, and give memory back to it."""
    for second in range(10**9):
        # After this time all stacks are written to stderr, and the process ends.
        faulthandler.dump_traceback_later(HANGS, exit=True)
        if second % TRIM == 0:
            await asyncio.to_thread(give_back)
        await asyncio.sleep(1)


def _events(service: Service, log: Any) -> Route:
    """Events in the form of OpenSearch's User Behavior Insights, one or a list, for the log."""

    async def endpoint(request: Request) -> Response:
        request.state.format = ErrorFormat()
        check_media_type(request)
        async with service.bodies.read(request, EVENT_BYTES) as body:
            content = formats.decoded(body, Any)
        events = content if isinstance(content, list) else [content]
        if len(events) > MOST_EVENTS:
            raise RequestError("many", f"found {len(events):,} events, expected {MOST_EVENTS:,}")
        accepted = log.events(events)
        return JSONResponse({"accepted": accepted, "unknown": len(events) - accepted})

    service.metrics.log = log.counts
    return Route("/events", endpoint, methods=["POST"])


# --- From a request to its answer -----------------------------------------------------------------


class Service:
    """Scores documents. ``in_order``: whether they stand in the order of a first stage, best first,
    where a request does not say."""

    def __init__(
        self,
        models: Models,
        limits: Limits,
        threads: int,
        log_texts: bool = False,
        in_order: bool = True,
    ) -> None:
        self.models, self.limits, self.log_texts = models, limits, log_texts
        self._in_order, self.bodies = in_order, BodyReader(limits)
        self._windows: LRUCache[bytes, npt.NDArray[np.floating]] = LRUCache(
            WINDOWS, lambda scores: scores.nbytes + 100
        )
        self.queue = Queue(threads, limits.waiting_documents, limits.waiting_requests)
        self.metrics = Metrics(lambda: self.queue.queued, lambda: models.served.values())

    async def endpoint(self, request: Request) -> Response:
        """The response to a request for scores; raises RequestError."""
        request.state.record.format = request.state.format.name
        async with self.bodies.read(request) as body:
            return await unless_gone(self._respond(request, body), request)

    async def _respond(self, request: Request, body: bytes) -> Response:
        state, path = request.state, request.scope["path"].rstrip("/") or "/"
        record: Record = state.record
        state.format = TEI if b'"texts"' in body else PATHS[path]
        deadline = deadline_of(request) or record.started + self.limits.answer
        read = partial(formats.read, body, self.limits.documents, self.models.numbers)
        wanted = await self._apart(read, deadline) if len(body) > LARGE else read()
        wire = state.format = TEI if wanted.is_tei else PATHS[path]
        record.format = wire.name
        if wire.needs_media_type:
            check_media_type(request)
        model = self.models.choose(wanted.model, True)
        response = await self.score(wanted, model, record, deadline, wire.later_first)
        content = orjson.dumps(wire.write(response, record))
        record.total = time.perf_counter() - record.started
        named = model.name.encode("ascii", "backslashreplace").decode()
        headers = record.headers() | {"x-mix": response.mix, "x-model": named}
        return Response(content, headers=headers, media_type="application/json")

    async def _apart(self, work: Callable[[], Result], deadline: float | None) -> Result:
        """The result of work that would hold Python's lock for long, by a process that scores."""
        call: Callable[[], Result] = partial(self.models.default.scorer.ask, "", work)
        return (await self.queue.run(call, deadline=deadline))[0]

    async def score(
        self,
        request: ScoreRequest,
        model: ServedModel,
        record: Record,
        deadline: float | None,
        later_first: bool = False,
    ) -> ScoreResponse:
        """The scores of a request, whose sizes and times are added to the record; RequestError if
        the queue is full, or the deadline is past."""
        texts = request.texts
        record.model, record.device = model.name, model.device
        record.documents += len(texts)
        record.truncated += request.truncated
        record.characters += sum(map(len, [request.query, *texts]))
        if self.log_texts:
            record.texts = [*record.texts, request.query, *texts]
        if long := sum(len(text) > MAX_CHARACTERS for text in texts):
            record.split += long
            passages = partial(best_passages, [request.query] * len(texts), texts)
            texts = await self._apart(passages, deadline)
        in_order = self._in_order if request.in_order is None else request.in_order
        pairs, rows = pairs_of(replace(request, texts=texts, in_order=in_order), model)
        numbers = [pairs.signals[NUMBER + name] for name in model.numbers]
        record.unknown_signals += int(np.isnan(numbers).sum())
        record.words += sum(text.count(" ") + 1 for text in [*pairs.queries, *pairs.texts])
        key = _key(pairs, model, record.caller) if model.reads_lists else b""
        scores: Any = self._windows.get(key)
        hits = len(pairs)
        if scores is None:
            scorer, name = model.scorer, model.name
            hits_before, ask = scorer.counts(name)["hits"], partial(scorer.ask, name, pairs)
            scores, inference, queued = await self.queue.run(ask, len(pairs), deadline)
            self.metrics.batches.observe(len(pairs))
            record.queue, record.inference = max(record.queue, queued), record.inference + inference
            # Of other requests too, at the same time.
            hits = min(max(0, scorer.counts(name)["hits"] - hits_before), len(pairs))
        record.cache_hits += hits
        if key:
            self._windows[key] = scores
        return model.respond(request, scores[rows], later_first)


def pairs_of(request: ScoreRequest, model: ServedModel) -> tuple[Pairs, npt.NDArray[np.int64]]:
    """The distinct pairs of a request without long texts, and the pair [D] of each document: equal
    ones are scored once, so that they get the same score, but by a model of lists in their places.
    """
    texts, urls = request.texts, [url[:MAX_CHARACTERS] for url in request.urls]
    signals, rows = dict[str, npt.NDArray[Any]](), np.arange(len(texts))
    if request.in_order:
        signals[ORDER] = np.arange(1, len(texts) + 1, dtype=np.float32)
    if request.first_stage is not None:
        scores = np.array(request.first_stage)
        places = places_of(np.zeros_like(rows), scores)
        signals[PRIOR] = prior_of_rank(places.astype(np.int64))
        if request.mix != "neural":
            signals |= {FIRST_STAGE: scores, ORDER: places}
    for name in model.numbers:
        signals[NUMBER + name] = np.array(request.signals.get(name, [np.nan] * len(texts)))
    query = request.query[:MAX_CHARACTERS]
    pairs = Pairs([query], texts, urls, np.zeros_like(rows), rows, signals)
    if model.reads_lists:
        return pairs, rows
    signals = {name: signals[name] for name in model.signals & signals.keys()}
    number: dict[tuple[Any, ...], int] = {}
    columns = texts, urls, *(values.tolist() for values in signals.values())
    keys = zip(*columns, strict=True)
    rows = np.array([number.setdefault(key, len(number)) for key in keys])
    first = np.unique(rows, return_index=True)[1]
    return replace(pairs, signals=signals).take(first), rows


def _key(pairs: Pairs, model: ServedModel, caller: bytes) -> bytes:
    """Hash of all that the scores of a list depend on, and of whom they are kept for."""
    texts = [model.version, *pairs.queries, *pairs.texts, *pairs.urls]
    signals = {name: values.tobytes() for name, values in pairs.signals.items()}
    content = f"{[*map(len, texts)]}{[*signals]}{''.join(texts)}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(b"".join([caller, content, *signals.values()])).digest()


async def _refuse(request: Request, error: Exception) -> Response:
    """The response without a result; a mistake of ours is raised again after it, and logged."""
    record, headers = request.state.record, dict[str, str]()
    if isinstance(error, HTTPException):
        kind, headers = "method" if error.status_code == 405 else "path", {**(error.headers or {})}
        problem = f"found {request.method} {request.url.path[:100]}"
        error = RequestError(kind, f"{problem}, expected a path of /openapi.json")
    elif not isinstance(error, RequestError):
        problem = f"an internal error; see the log for {record.request_id}"
        error = RequestError("internal", problem)
    response: Response = request.state.format.refuse(error, record)
    response.headers.update(headers)
    return response


# --- Around every request -------------------------------------------------------------------------


class ServiceMiddleware:
    """Wraps an application: a request's id, who may ask, the line in the log, the metrics.
    ``own``: paths that are ours, and need a key; None is all."""

    def __init__(
        self, app: ASGIApp, service: Service, access: Access, own: Set[str] | None
    ) -> None:
        self.app, self.service, self._access, self._own = app, service, access, own
        self._cors = CORSMiddleware(
            app,
            access.origins,
            ("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("x-request-id", "x-mix", "x-model", "x-search-id", "retry-after"),
        )
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(MOST_CLIENTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), scope["path"]
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        client = (scope.get("client") or ("",))[0]
        record = Record(request_id, scope["method"], path[:200], client)
        named = f"{client}\n{headers.get('authorization', '')}".encode()
        record.caller = hashlib.blake2b(named, digest_size=16).digest()
        if _TRACE.fullmatch(trace := headers.get("traceparent", "")):
            record.trace_id, record.parent_span_id = trace.split("-")[1:3]
        wire = assumed(path.rstrip("/"))
        scope.setdefault("state", {}).update(record=record, format=wire)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            own = self._own
            is_own = own is None or path in own or path.startswith("/v1/models/")
            app = self._cors if self._access.origins and is_own else self.app
            if error := self._refused(scope["method"], path, headers, is_own, client):
                app = wire.refuse(error, record)
            await app(scope, receive, send_with_id)
        except Exception:
            if not record.status:
                raise
            LOG.exception("request %s failed", request_id)
        finally:
            record.total = time.perf_counter() - record.started
            if path not in PROBES or record.status >= 400:
                LOG.info("%s %s", record.method, path, extra={"request": record})
            if record.format or record.engine:
                self.service.metrics.request(record)

    def _refused(
        self, method: str, path: str, headers: Headers, is_own: bool, client: str
    ) -> RequestError | None:
        """Why a request is not answered."""
        if len(headers) > MOST_HEADERS:
            problem = f"found {len(headers)} headers, expected at most {MOST_HEADERS}"
            return RequestError("headers", problem)
        host = re.sub(r":\d*$", "", headers.get("host", "").lower())
        hosts = [*self._access.hosts] if host else []
        if hosts and host not in hosts and f"*.{host.partition('.')[2]}" not in hosts:
            problem = f"found the host {host[:100]!r}, expected {', '.join(hosts)}; name others by "
            return RequestError("host", problem + "--allow-host")
        if self._access.rate and path not in PROBES and self._is_too_often(client):
            return RequestError("rate", f"found more than {self._access.rate} requests in a second")
        # The path of the page is that of scores, too.
        is_public = path in PUBLIC and (path, method) != ("/", "POST")
        is_preflight = method == "OPTIONS" and "access-control-request-method" in headers
        is_free = is_public or not is_own or (is_preflight and self._access.origins)
        if self._access.keys and not is_free and not _is_known(headers, self._access.keys):
            problem = "found no known key, expected `Authorization: Bearer KEY`"
            return RequestError("key", problem)
        return None

    def _is_too_often(self, client: str) -> bool:
        """Whether a client's bucket, which fills by the rate, is empty."""
        rate, now = self._access.rate or 1, time.monotonic()
        left, then = self._buckets.get(client, (rate, now))
        left = min(rate, left + (now - then) * rate)
        self._buckets[client] = max(0.0, left - 1), now
        return left < 1


def _is_known(headers: Headers, keys: Sequence[str]) -> bool:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    given = key.strip().encode("latin-1", errors="replace")
    # All keys are compared, whichever it is, so that the time tells nothing.
    same = [hmac.compare_digest(given, known.encode()) for known in keys]
    return scheme.lower() == "bearer" and any(same)


# --- The service itself ---------------------------------------------------------------------------


def _information(service: Service, needs_key: bool) -> list[Route]:
    """Routes of the service's state, models, metrics and description."""
    models, limits, queue = service.models, service.limits, service.queue
    described = openapi(needs_key)

    async def info(request: Request) -> Response:
        model = models.default
        content = {
            "model_id": model.name,
            "model_sha": model.version,
            "model_dtype": "float32",
            "served_model_name": model.name,
            "model_type": {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}},
            "max_concurrent_requests": limits.waiting_requests,
            # Tokens, by TEI; here characters of a passage.
            "max_input_length": MAX_CHARACTERS,
            "long_documents": "best passage",
            "max_batch_tokens": limits.waiting_documents,
            "max_batch_requests": None,
            "max_client_batch_size": limits.documents,
            "auto_truncate": True,
            "tokenization_workers": queue.threads,
            "version": version("tweetrerank"),
            "sha": None,
            "docker_label": None,
        }
        return JSONResponse(content)

    async def one_model(request: Request) -> Response:
        request.state.format = formats.RERANK
        return JSONResponse(_described(models.choose(request.path_params["id"], False)))

    async def listed(request: Request) -> Response:
        data = [*map(_described, models.served.values())]
        return JSONResponse({"object": "list", "data": data})

    async def health(request: Request) -> Response:
        return _status(await queue.is_well(models.default.scorer, models.default.name))

    async def ready(request: Request) -> Response:
        return _status(not queue.is_full)

    async def metrics(request: Request) -> Response:
        content = generate_latest(service.metrics.registry)
        return Response(content, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def description(request: Request) -> Response:
        return JSONResponse(described)

    endpoints = {"/health": health, "/ping": health, "/ready": ready, "/metrics": metrics}
    endpoints |= {"/info": info, "/models": listed, "/v1/models": listed}
    endpoints |= {"/v1/models/{id}": one_model, "/openapi.json": description}
    return [Route(path, endpoint) for path, endpoint in endpoints.items()]


def _described(model: ServedModel) -> dict[str, Any]:
    own = {"id": model.name, "object": "model", "created": 0, "owned_by": "tweetrerank"}
    own |= {"model_type": "rerank", "weight": model.weight}
    return own | {"reads_order": model.reads_lists}


def _status(is_well: bool) -> Response:
    content = {"status": "ok" if is_well else "unavailable", "unix": time.time()}
    return JSONResponse(content, 200 if is_well else 503)


def openapi(needs_key: bool) -> dict[str, Any]:
    """The OpenAPI description: ``openapi.json``, which has the paths, descriptions of fields, and
    the texts that are taken for a number or a flag, with the models of requests as schemas."""
    description: dict[str, Any] = json.loads(DESCRIPTION.read_text("utf-8"))
    texts, lax = description.pop("x-descriptions"), description.pop("x-lax")
    kinds = formats.Request, formats.RankFieldsRequest
    template = "#/components/schemas/{name}"
    strict = json.dumps(msgspec.json.schema_components(kinds, ref_template=template)[1])
    schemas = json.loads(strict, object_hook=lambda each: each | lax.get(each.get("type"), {}))
    some = {"type": "array", "minItems": 1}
    for kind in kinds:
        schema = schemas[kind.__name__]
        for name, text in texts.items():
            schema["properties"][name]["description"] = text
        schema["anyOf"] = [
            {"properties": {name: some}, "required": [name]} for name in ("documents", "texts")
        ]
    schemas["RankFieldsRequest"]["required"].append("rank_fields")
    schemas["RankFieldsRequest"]["properties"]["rank_fields"] |= some
    description["components"]["schemas"] = schemas
    description["info"]["version"] = version("tweetrerank")
    if not needs_key:
        del description["security"], description["components"]["securitySchemes"]
    return description
