"""The ASGI application, from a route to its answer: request, scores, response, errors."""

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
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import BoundedSemaphore, Lock, Thread
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from cachetools import LRUCache
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, request_response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tweetrerank.pipeline.service import formats
from tweetrerank.pipeline.service.formats import (
    PATHS,
    TEI,
    ScoreRequest,
    ScoreResponse,
    assumed,
)
from tweetrerank.pipeline.service.requests import (
    LOG,
    BodyReader,
    ErrorFormat,
    Limits,
    Metrics,
    Record,
    RequestError,
    apart,
    check_media_type,
    deadline_of,
    unless_gone,
)
from tweetrerank.pipeline.service.served_models import (
    Models,
    Queue,
    Scores,
    ServedModel,
    give_back,
)
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

WINDOWS = 8_000_000
"""Bytes of the scores of the last lists, kept for their caller: the next page of a search needs
them."""
HANGS = 30.0  # Seconds without a turn of the event loop after which the service ends
TRIM = 10  # Seconds between two returns of free memory to the system
MOST_HEADERS = 200
MOST_CLIENTS = 10_000  # Clients whose requests are counted
EVENT_BYTES, MOST_EVENTS = 1_000_000, 1000  # Of a request

PROBES = frozenset(("/health", "/ping", "/ready", "/metrics"))
"""Paths whose good answers are not logged."""
PUBLIC = PROBES | {"/", "/page.css", "/page.js", "/openapi.json"}
"""Paths that need no key."""

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_TRACE = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""The header ``traceparent`` of W3C Trace Context; the proxy passes it to the engine."""

# --- Routes ---------------------------------------------------------------------------------------


def build(
    service: "Service",
    page: Sequence[BaseRoute] = (),
    proxy: Any = None,  # pipeline.service.proxy.routes.Proxy, of an engine's searches
    events: Any = None,  # pipeline.service.log.SearchLog
    reload: Callable[[], None] | None = None,  # After SIGHUP
) -> ASGIApp:
    """The application, with the routes of its page. With ``reload`` it is alone in its process,
    which ends if the event loop hangs."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if reload:
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGHUP, reloading(reload)
            )
            watch = asyncio.create_task(_watch())
        yield
        if reload:
            watch.cancel()
            faulthandler.cancel_dump_traceback_later()
        if proxy:
            await proxy.upstream.close()

    paths = [
        path for name in PATHS for path in dict.fromkeys((name, f"{name.rstrip('/')}/"))
    ]
    own = [*(Route(path, service.endpoint, methods=["POST"]) for path in paths), *page]
    own += _information(service)
    if events:
        own.append(_events(service, events))
    app = Starlette(
        routes=[*([proxy.root] if proxy else ()), *own],
        exception_handlers=dict.fromkeys(
            (RequestError, HTTPException, Exception), _refuse
        ),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    if proxy:
        app.router.default = request_response(proxy.endpoint)
    # Calls that are the engine's, not ours, need no key of ours: they have the engine's own.
    paths = [getattr(route, "path", "") for route in own]
    return ServiceMiddleware(app, service, frozenset(paths) if proxy else None)


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


def _events(service: "Service", log: Any) -> Route:
    """Events in the form of OpenSearch's User Behavior Insights, one or a list, for the log."""

    async def endpoint(request: Request) -> Response:
        request.state.format = ErrorFormat()
        check_media_type(request)
        async with service.bodies.read(request, EVENT_BYTES) as body:
            content = formats.decoded(body, Any)
        events = content if isinstance(content, list) else [content]
        if len(events) > MOST_EVENTS:
            raise RequestError(
                "many", f"found {len(events):,} events, expected {MOST_EVENTS:,}"
            )
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
        self._windows = LRUCache[bytes, Scores](
            WINDOWS, lambda scores: scores.nbytes + 100
        )
        self.queue = Queue(threads, limits.waiting_documents, limits.waiting_requests)
        self.metrics = Metrics()

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
        wanted = await apart(len(body), read)
        wire = state.format = TEI if wanted.is_tei else PATHS[path]
        record.format = wire.name
        if wanted.is_tei:
            check_media_type(request)
        model = self.models.choose(wanted.options.model, True)
        response = await self.score(wanted, model, record, deadline)
        content = orjson.dumps(wire.write(response, record))
        record.total = time.perf_counter() - record.started
        named = model.name.encode("ascii", "backslashreplace").decode()
        headers = record.headers() | {"x-mix": response.mix, "x-model": named}
        return Response(content, headers=headers, media_type="application/json")

    async def score(
        self, request: ScoreRequest, model: ServedModel, record: Record, deadline: float
    ) -> ScoreResponse:
        """The scores of a request, whose sizes and times are added to the record; RequestError if
        the queue is full, or the deadline is past."""
        query, texts, order = (
            request.options.query,
            request.texts,
            request.options.order,
        )
        record.model, record.device = model.name, model.device
        record.documents += len(texts)
        record.truncated += request.truncated
        record.characters += sum(map(len, [query, *texts]))
        if self.log_texts:
            record.texts = [*record.texts, query, *texts]
        record.split += sum(len(text) > MAX_CHARACTERS for text in texts)
        in_order = self._in_order if order is None else order == "first_stage"
        pairs, rows = pairs_of(request, model, in_order)
        numbers = [pairs.signals[NUMBER + name] for name in model.numbers]
        record.unknown_signals += int(np.isnan(numbers).sum())
        record.words += sum(
            text.count(" ") + 1 for text in [*pairs.queries, *pairs.texts]
        )
        key = _key(pairs, model, record.caller) if model.reads_lists else b""
        scores = self._windows.get(key)
        hits = len(pairs)
        if scores is None:
            scorer, name = model.scorer, model.name
            hits_before, ask = (
                scorer.counts(name)["hits"],
                partial(scorer.ask, name, pairs),
            )
            scores, inference, queued = await self.queue.run(ask, len(pairs), deadline)
            self.metrics.of("te_batch_next_size").observe(len(pairs))
            record.queue, record.inference = (
                max(record.queue, queued),
                record.inference + inference,
            )
            # Of other requests too, at the same time.
            hits = min(max(0, scorer.counts(name)["hits"] - hits_before), len(pairs))
        record.cache_hits += hits
        if key:
            self._windows[key] = scores
        return model.respond(request, scores[rows])


def pairs_of(
    request: ScoreRequest, model: ServedModel, in_order: bool
) -> tuple[Pairs, npt.NDArray[np.int64]]:
    """The distinct pairs of a request, and the pair [D] of each document: equal ones are scored
    once, so that they get the same score, but by a model of lists in their places."""
    texts, urls = request.texts, [url[:MAX_CHARACTERS] for url in request.urls]
    signals, rows = dict[str, npt.NDArray[Any]](), np.arange(len(texts))
    if in_order:
        signals[ORDER] = np.arange(1, len(texts) + 1, dtype=np.float32)
    if request.first_stage is not None:
        scores = np.array(request.first_stage)
        places = places_of(np.zeros_like(rows), scores)
        signals[PRIOR] = prior_of_rank(places.astype(np.int64))
        if request.options.mix != "neural":
            signals |= {FIRST_STAGE: scores, ORDER: places}
    for name in model.numbers:
        signals[NUMBER + name] = np.array(
            request.signals.get(name, [np.nan] * len(texts))
        )
    query = request.options.query[:MAX_CHARACTERS]
    pairs = Pairs([query], texts, urls, np.zeros_like(rows), rows, signals)
    if model.reads_lists:
        return pairs, rows
    signals = {name: signals[name] for name in model.signals & signals.keys()}
    number: dict[tuple[Any, ...], int] = {}
    keys = zip(
        texts, urls, *(values.tolist() for values in signals.values()), strict=True
    )
    rows = np.array([number.setdefault(key, len(number)) for key in keys])
    first = np.unique(rows, return_index=True)[1]
    return replace(pairs, signals=signals).take(first), rows


def _key(pairs: Pairs, model: ServedModel, caller: bytes) -> bytes:
    """Hash of all that the scores of a list depend on, and of whom they are kept for."""
    texts = [model.version, *pairs.queries, *pairs.texts, *pairs.urls]
    signals = {name: values.tobytes() for name, values in pairs.signals.items()}
    content = f"{[*map(len, texts)]}{[*signals]}{''.join(texts)}".encode(
        "utf-8", "surrogatepass"
    )
    return hashlib.blake2b(b"".join([caller, content, *signals.values()])).digest()


async def _refuse(request: Request, error: Exception) -> Response:
    """The response without a result; a mistake of ours is raised again after it, and logged."""
    record, headers = request.state.record, dict[str, str]()
    if isinstance(error, HTTPException):
        kind, headers = (
            "method" if error.status_code == 405 else "path",
            {**(error.headers or {})},
        )
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

    def __init__(self, app: ASGIApp, service: Service, own: Set[str] | None) -> None:
        self.app, self.service, self._limits, self._own = (
            app,
            service,
            service.limits,
            own,
        )
        self._cors = CORSMiddleware(
            app,
            service.limits.origins,
            ("GET", "POST"),
            allow_headers=("*",),
            expose_headers=(
                "x-request-id",
                "x-mix",
                "x-model",
                "x-search-id",
                "retry-after",
            ),
        )
        self._buckets = LRUCache[str, tuple[float, float]](MOST_CLIENTS)

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
            is_own = (
                self._own is None or path in self._own or path.startswith("/v1/models/")
            )
            app = self._cors if self._limits.origins and is_own else self.app
            if error := self._refused(record, headers, is_own):
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
        self, record: Record, headers: Headers, is_own: bool
    ) -> RequestError | None:
        """Why a request is not answered."""
        path, method = record.path, record.method
        if len(headers) > MOST_HEADERS:
            problem = f"found {len(headers)} headers, expected at most {MOST_HEADERS}"
            return RequestError("headers", problem)
        host = re.sub(r":\d*$", "", headers.get("host", "").lower())
        hosts = [*self._limits.hosts] if host else []
        if hosts and host not in hosts and f"*.{host.partition('.')[2]}" not in hosts:
            problem = f"found the host {host[:100]!r}, expected {', '.join(hosts)}; name others by "
            return RequestError("host", problem + "--allow-host")
        if (
            self._limits.rate
            and path not in PROBES
            and self._is_too_often(record.client)
        ):
            return RequestError(
                "rate", f"found more than {self._limits.rate} requests in a second"
            )
        # The path of the page is that of scores, too.
        is_public = path in PUBLIC and (path, method) != ("/", "POST")
        is_preflight = (
            method == "OPTIONS" and "access-control-request-method" in headers
        )
        is_free = is_public or not is_own or (is_preflight and self._limits.origins)
        if (
            self._limits.keys
            and not is_free
            and not _is_known(headers, self._limits.keys)
        ):
            return RequestError(
                "key", "found no known key, expected `Authorization: Bearer KEY`"
            )
        return None

    def _is_too_often(self, client: str) -> bool:
        """Whether a client's bucket, which fills by the rate, is empty."""
        rate, now = self._limits.rate or 1, time.monotonic()
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


def _information(service: Service) -> list[Route]:
    """Routes of the service's state, models, metrics and description."""
    models, limits, queue = service.models, service.limits, service.queue

    async def health(request: Request) -> Response:
        return _status(await queue.is_well(models.default))

    def metrics(request: Request) -> Response:
        content = service.metrics.text(queue.queued, models.served.values())
        return Response(content, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def info(request: Request) -> Response:
        model = models.default
        content = {
            "model_id": model.name,
            "model_sha": model.version,
            "model_dtype": "float32",
            "served_model_name": model.name,
            "model_type": {
                "reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
            },
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

    def one_model(request: Request) -> Response:
        request.state.format = formats.RERANK
        return JSONResponse(_described(models.choose(request.path_params["id"], False)))

    def listed(request: Request) -> Response:
        return JSONResponse(
            {"object": "list", "data": [*map(_described, models.served.values())]}
        )

    return [
        *(Route(path, health) for path in ("/health", "/ping")),
        Route("/ready", lambda request: _status(not queue.is_full)),
        Route("/metrics", metrics),
        Route("/info", info),
        *(Route(path, listed) for path in ("/models", "/v1/models")),
        Route("/v1/models/{id}", one_model),
        Route(
            "/openapi.json", JSONResponse(openapi(bool(limits.keys))), methods=["GET"]
        ),
    ]


def _described(model: ServedModel) -> dict[str, Any]:
    own = {"id": model.name, "object": "model", "created": 0, "owned_by": "tweetrerank"}
    own |= {"model_type": "rerank", "weight": model.weight}
    return own | {"reads_order": model.reads_lists}


def _status(is_well: bool) -> Response:
    content = {"status": "ok" if is_well else "unavailable", "unix": time.time()}
    return JSONResponse(content, 200 if is_well else 503)


def openapi(needs_key: bool) -> dict[str, Any]:
    """The OpenAPI description, whose schemas are the structures of ``formats.py``."""
    path = Path(__file__).parent / "openapi.json"
    description: dict[str, Any] = json.loads(path.read_text("utf-8"))
    description["info"]["version"] = version("tweetrerank")
    if not needs_key:
        del description["security"], description["components"]["securitySchemes"]
    return description
