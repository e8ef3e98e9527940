"""The ASGI application: its routes, and their description."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi_offline import FastAPIOffline
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, TypeAdapter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from pipeline.service.formats import PATHS, assumed
from pipeline.service.http.errors import Fault
from pipeline.service.http.middleware import PUBLIC, STATIC, Envelope
from pipeline.service.http.record import Record, write
from pipeline.service.http.service import Service, refusal
from pipeline.service.proxy.routes import Proxy, unknown
from rerankers.text.words import MAX_CHARACTERS


def build(
    service: Service,
    keys: Sequence[str] = (),
    page: Sequence[BaseRoute] = (),
    write: Callable[[Record], None] = write,
    proxy: Proxy | None = None,
    reload: Callable[[], None] | None = None,
) -> ASGIApp:
    """The application.

    Args:
        service: answers requests for scores.
        keys: one of them is needed, if there are any.
        page: routes of the page.
        write: writes a line of the log.
        proxy: answers the searches of an engine.
        reload: what SIGHUP does; default: the models are loaded again.
    """

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        service.scheduler.start()
        loop = asyncio.get_running_loop()
        work = partial(loop.run_in_executor, None, reload or service.models.reload)
        with suppress(RuntimeError, ValueError):  # Only the main thread has signals.
            loop.add_signal_handler(signal.SIGHUP, work)
        yield
        await asyncio.to_thread(service.scheduler.stop)
        if proxy:
            await proxy.upstream.close()

    app = FastAPIOffline(
        redoc_url=None,
        title="tweetrerank",
        version=version("tweetrerank"),
        lifespan=running,
        static_url=STATIC,
        redirect_slashes=False,
    )
    for path in PATHS:
        app.add_api_route(path, service.answer, methods=["POST"])
        app.add_api_route(f"{path}/", service.answer, methods=["POST"], include_in_schema=False)
    for path, handler in _information(service).items():
        kind = PlainTextResponse if path == "/metrics" else JSONResponse
        app.add_api_route(path, handler, methods=["GET"], response_class=kind)
    app.router.routes.extend(page)
    # Calls that are the engine's, not ours, need no key of ours: they have the engine's own.
    guarded = frozenset(getattr(route, "path", "") for route in app.routes) - {"/"}
    if proxy:
        app.router.routes[:0] = proxy.routes()
    app.add_exception_handler(HTTPException, partial(_refuse, guarded if proxy else None))
    app.add_exception_handler(Exception, _fail)
    app.openapi = partial(_description, app, bool(keys))  # type: ignore[method-assign]
    return Envelope(app, service, keys, write, guarded if proxy else None)


def _information(service: Service) -> dict[str, Any]:
    """Path -> handler of the routes that say how the service is."""

    async def health() -> Response:
        return _json({"status": "ok", "unix": time.time()})

    async def info() -> Response:
        model, limits = service.models.default, service.limits
        found = {
            "model_id": model.name,
            "model_sha": model.version,
            "model_dtype": "float32",
            "served_model_name": model.name,
            "model_type": {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}},
            "max_concurrent_requests": limits.waiting_requests,
            "max_input_length": MAX_CHARACTERS,
            "max_batch_tokens": limits.waiting_documents,
            "max_batch_requests": None,
            "max_client_batch_size": limits.documents,
            "auto_truncate": True,
            "tokenization_workers": service.scheduler.threads,
            "version": version("tweetrerank"),
            "sha": None,
            "docker_label": None,
        }
        return _json(found)

    async def models() -> Response:
        data = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "tweetrerank",
                # λ, and whether `"mix": "lexical"` is to be had: for pipeline.engine.
                "weight": model.weight,
                "lexical": service.statistics is not None,
            }
            for name, model in service.models.served.items()
        ]
        return _json({"object": "list", "data": data})

    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return {
        "/health": health,
        "/ping": health,
        "/info": info,
        "/models": models,
        "/v1/models": models,
        "/metrics": metrics,
    }


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")


async def _refuse(own: Container[str] | None, request: Request, error: Exception) -> Response:
    """An unknown path, or a method that it does not have; an engine's if there are own ones."""
    assert isinstance(error, HTTPException)
    if own is not None and request.scope["path"] not in own:
        return unknown(request)
    record, path = request.scope["state"]["record"], request.url.path
    kind = "method" if error.status_code == 405 else "path"
    found = f"found {request.method} {path[:100]}"
    fault = Fault(kind, f"{found}, expected a path of /docs")
    refused = refusal(fault, assumed(path.rstrip("/")), record)
    refused.headers.update(error.headers or {})
    return refused


async def _fail(request: Request, error: Exception) -> Response:
    """A mistake of ours outside of the requests for scores; it is raised again, and logged."""
    record = request.scope["state"]["record"]
    problem = f"an internal error; see the log for {record.request_id}"
    return refusal(Fault("internal", problem), assumed(request.scope["path"]), record)


def _description(app: FastAPI, needs_key: bool) -> dict[str, Any]:
    """The OpenAPI description, with the requests and answers of all formats."""
    if app.openapi_schema is None:
        app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemas = app.openapi_schema.setdefault("components", {}).setdefault("schemas", {})
        for path, formats in PATHS.items():
            operation = app.openapi_schema["paths"][path]["post"]
            operation["summary"] = f"Scores: {', '.join(one.name for one in formats)}"
            requests = [_schema(one.request, "validation", schemas) for one in formats]
            answers = [_schema(one.response, "serialization", schemas) for one in formats]
            errors = [_schema(one.error, "serialization", schemas) for one in formats]
            operation["requestBody"] = {"required": True, "content": _content(requests)}
            operation["responses"] = {
                "200": {"description": "Scores", "content": _content(answers)},
                "default": {"description": "No scores", "content": _content(errors)},
            }
        if needs_key:
            bearer = {"type": "http", "scheme": "bearer"}
            app.openapi_schema["components"]["securitySchemes"] = {"key": bearer}
            app.openapi_schema["security"] = [{"key": []}]
            for path in app.openapi_schema["paths"].keys() - PATHS:
                operation = app.openapi_schema["paths"][path]["get"]
                if path in PUBLIC:
                    operation["security"] = []
                else:
                    operation["responses"]["401"] = {"description": "No key"}
    return app.openapi_schema


def _content(schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    one = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return {"application/json": {"schema": one}}


def _schema(kind: Any, mode: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """A reference to the schema of a type, which is put into ``schemas`` with what it needs."""
    template = "#/components/schemas/{model}"
    found = TypeAdapter(kind).json_schema(mode=mode, ref_template=template)
    schemas.update(found.pop("$defs", {}))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        schemas[kind.__name__] = found
        return {"$ref": template.format(model=kind.__name__)}
    return found
