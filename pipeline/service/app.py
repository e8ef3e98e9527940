"""The ASGI application: routes, lifespan, exception handlers."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any

import orjson
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from pipeline.service.errors import PlainErrors, RequestError
from pipeline.service.formats import PATHS
from pipeline.service.http.middleware import PUBLIC, ServiceMiddleware
from pipeline.service.http.requests import check_media_type
from pipeline.service.http.service import Service
from pipeline.service.log import MOST_EVENTS, SearchLog
from pipeline.service.proxy.routes import Proxy
from rerankers.text.words import MAX_CHARACTERS


def build(
    service: Service,
    keys: Sequence[str] = (),
    page: Sequence[BaseRoute] = (),
    proxy: Proxy | None = None,
    reload: Callable[[], None] | None = None,
) -> ASGIApp:
    """The application, with routes of the page and perhaps of an engine's searches.

    Requests need one of the ``keys``, if there are any; ``reload`` is called after SIGHUP (default:
    the models are loaded again).
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.scheduler.start()
        loop = asyncio.get_running_loop()
        work = partial(loop.run_in_executor, None, reload or service.models.reload)
        with suppress(RuntimeError, ValueError):  # Only the main thread has signals.
            loop.add_signal_handler(signal.SIGHUP, work)
        yield
        await asyncio.to_thread(service.scheduler.stop)
        if proxy:
            await proxy.upstream.close()

    own = [
        *(
            Route(path, service.endpoint, methods=["POST"])
            for name in PATHS
            for path in dict.fromkeys((name, f"{name.rstrip('/')}/"))
        ),
        *_information(service, bool(keys)),
        *page,
        *([_events(service, proxy.loop.log)] if proxy and proxy.loop.log else []),
    ]
    app = Starlette(
        routes=[*(proxy.routes() if proxy else ()), *own],
        exception_handlers={RequestError: _refuse, HTTPException: _refuse, Exception: _fail},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    if proxy is None:
        return ServiceMiddleware(app, service, keys)
    app.router.default = proxy.not_found
    # Calls that are the engine's, not ours, need no key of ours: they have the engine's own.
    guarded = {getattr(route, "path", "") for route in own}
    return ServiceMiddleware(app, service, keys, guarded)


def _events(service: Service, log: SearchLog) -> Route:
    """Events in the form of OpenSearch's User Behavior Insights, one or a list, for the log."""

    async def endpoint(request: Request) -> Response:
        request.state.format = PlainErrors()
        check_media_type(request)
        async with service.bodies.read(request) as body:
            try:
                content = orjson.loads(body)
            except orjson.JSONDecodeError as error:
                raise RequestError("json", f"found no JSON in the body: {error}") from None
        events = content if isinstance(content, list) else [content]
        if len(events) > MOST_EVENTS:
            raise RequestError("many", f"found {len(events):,} events, expected {MOST_EVENTS:,}")
        accepted = log.events(events)
        return JSONResponse({"accepted": accepted, "unknown": len(events) - accepted})

    service.metrics.log = log.counts
    return Route("/events", endpoint, methods=["POST"])


def _information(service: Service, needs_key: bool) -> list[Route]:
    """Routes of the service's state, models, metrics and description."""

    async def info(request: Request) -> Response:
        model, limits = service.models.default, service.limits
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
            "tokenization_workers": service.scheduler.threads,
            "version": version("tweetrerank"),
            "sha": None,
            "docker_label": None,
        }
        return JSONResponse(content)

    async def models(request: Request) -> Response:
        data = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "tweetrerank",
                "weight": model.weight,  # λ
                "reads_order": model.reads_windows,
            }
            for name, model in service.models.served.items()
        ]
        return JSONResponse({"object": "list", "data": data})

    async def health(request: Request) -> Response:
        return _status(await service.is_healthy())

    async def ready(request: Request) -> Response:
        return _status(service.is_ready)

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    endpoints = dict.fromkeys(("/health", "/ping"), health) | {"/ready": ready, "/info": info}
    endpoints |= dict.fromkeys(("/models", "/v1/models"), models) | {"/metrics": metrics}
    content = openapi(endpoints, PUBLIC if needs_key else None)

    async def description(request: Request) -> Response:
        return JSONResponse(content)

    endpoints |= {"/openapi.json": description}
    return [Route(path, endpoint) for path, endpoint in endpoints.items()]


def openapi(information: Iterable[str], public: Container[str] | None) -> dict[str, Any]:
    """The OpenAPI description, with the models of requests as schemas.

    Paths other than the ``public`` ones need a key; None is no path.
    """
    formats = [wire for wires in PATHS.values() for wire in wires]
    names, schemas = models_json_schema(
        [(wire.request, "validation") for wire in formats],
        ref_template="#/components/schemas/{model}",
    )
    responses = {"200": {"description": "The answer"}, "default": {"description": "An error"}}
    paths: dict[str, Any] = {}
    for path, wires in PATHS.items():
        if path == "/":  # As /rerank; GET is the page's there.
            continue
        schema = {"anyOf": [names[wire.request, "validation"] for wire in wires]}
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths[path] = {"post": {"requestBody": body, "responses": responses}}
    for path in information:
        is_open = public is not None and path in public
        paths[path] = {"get": {"responses": responses} | ({"security": []} if is_open else {})}
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "tweetrerank", "version": version("tweetrerank")},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }
    if public is not None:
        description["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        description["security"] = [{"key": []}]
    return description


def _status(is_well: bool) -> Response:
    content = {"status": "ok" if is_well else "unavailable", "unix": time.time()}
    return JSONResponse(content, 200 if is_well else 503)


async def _refuse(request: Request, error: Exception) -> Response:
    headers: Mapping[str, str] = {}
    if isinstance(error, HTTPException):
        kind, headers = "method" if error.status_code == 405 else "path", error.headers or {}
        problem = f"found {request.method} {request.url.path[:100]}"
        error = RequestError(kind, f"{problem}, expected a path of /openapi.json")
    assert isinstance(error, RequestError)
    response: Response = request.state.format.refuse(error, request.state.record)
    response.headers.update(headers)
    return response


async def _fail(request: Request, error: Exception) -> Response:
    """The response after a mistake of ours; the error is raised again, and logged."""
    problem = f"an internal error; see the log for {request.state.record.request_id}"
    return await _refuse(request, RequestError("internal", problem))
