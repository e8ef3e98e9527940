"""The ASGI application: its routes, its error responses, and its start and end."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, request_response
from starlette.types import ASGIApp

from tweetrerank.pipeline.service.formats import FORMAT_OF_PATH
from tweetrerank.pipeline.service.limits import check_media_type
from tweetrerank.pipeline.service.reloading import Reloader
from tweetrerank.pipeline.service.rerank_service import Service
from tweetrerank.pipeline.service.score_request import decoded
from tweetrerank.pipeline.service.service_errors import ErrorFormat, RequestError
from tweetrerank.pipeline.service.service_information import Information
from tweetrerank.pipeline.service.service_middleware import ServiceMiddleware
from tweetrerank.pipeline.service.workers import return_free_memory

if TYPE_CHECKING:
    from tweetrerank.pipeline.service.log import SearchLog
    from tweetrerank.pipeline.service.proxy.routes import Proxy

HANGS = 30.0  # Seconds for which the event loop may hang before the process ends
TRIM = 10  # Seconds between two returns of free memory to the system
EVENT_BYTES = 1_000_000  # Largest body of a request with events
MOST_EVENTS = 1000  # Events in one request


def build(
    service: Service,
    page: Sequence[BaseRoute] = (),
    proxy: Proxy | None = None,
    events: SearchLog | None = None,
    reload: Callable[[], None] | None = None,
) -> ASGIApp:
    """Return the application.

    Args:
        service: the service that scores documents.
        page: the routes of the search page.
        proxy: the proxy in front of an engine. With it, every path that is not one of
            the service's own belongs to the engine.
        events: the log that takes the events of searches.
        reload: called after the signal SIGHUP. If it is given, the application must be
            the only one in its process, and the process ends if the event loop hangs.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if reload:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, Reloader(reload).request)
            watchdog = asyncio.create_task(watch_event_loop())
        yield
        if reload:
            watchdog.cancel()
            faulthandler.cancel_dump_traceback_later()
        if proxy:
            await proxy.upstream.close()

    own_routes = [*_score_routes(service), *page, *Information(service).routes()]
    if events:
        own_routes.append(_events_route(service, events))
    app = Starlette(
        routes=[proxy.root, *own_routes] if proxy else own_routes,
        exception_handlers=dict.fromkeys(
            (RequestError, HTTPException, Exception), _refuse
        ),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    if not proxy:
        return ServiceMiddleware(app, service, own_paths=None)
    app.router.default = request_response(proxy.endpoint)
    # Calls to the engine need the engine's credentials, not a key of the service.
    own_paths = {getattr(route, "path", "") for route in own_routes}
    return ServiceMiddleware(app, service, own_paths)


def _score_routes(service: Service) -> list[BaseRoute]:
    """Return a route for each wire format's paths, with and without a final slash."""
    paths = set(FORMAT_OF_PATH)
    paths |= {f"{path.rstrip('/')}/" for path in FORMAT_OF_PATH}
    return [Route(path, service.endpoint, methods=["POST"]) for path in paths]


def _events_route(service: Service, log: SearchLog) -> Route:
    """Return the route that takes the events of users for the log of searches.

    A body has one event or a list of events, in the form of OpenSearch's User
    Behavior Insights.
    """

    async def endpoint(request: Request) -> Response:
        request.state.format = ErrorFormat()
        check_media_type(request)
        async with service.bodies.read(request, EVENT_BYTES) as body:
            content = decoded(body, Any)
        events = content if isinstance(content, list) else [content]
        if len(events) > MOST_EVENTS:
            problem = f"found {len(events):,} events, expected {MOST_EVENTS:,}"
            raise RequestError("many", problem)
        accepted = log.events(events)
        return JSONResponse({"accepted": accepted, "unknown": len(events) - accepted})

    service.metrics.log_lines = log.counts
    return Route("/events", endpoint, methods=["POST"])


async def _refuse(request: Request, error: Exception) -> Response:
    """Return the response to a request that failed.

    After this response, Starlette raises an unexpected error again, so that the
    middleware logs it.
    """
    record = request.state.record
    headers: dict[str, str] = {}
    if isinstance(error, RequestError):
        failure = error
    elif isinstance(error, HTTPException):
        kind = "method" if error.status_code == 405 else "path"
        problem = f"found {request.method} {request.url.path[:100]}"
        failure = RequestError(kind, f"{problem}, expected a path of /openapi.json")
        headers |= error.headers or {}
    else:
        problem = f"an internal error; see the log for {record.request_id}"
        failure = RequestError("internal", problem)
    response: Response = request.state.format.refuse(failure, record)
    response.headers.update(headers)
    return response


async def watch_event_loop() -> None:
    """Tell a watchdog every second that the event loop still runs.

    If it hears nothing for ``HANGS`` seconds, the watchdog writes the stacks of all
    threads to stderr and ends the process. This task also returns free memory to the
    system every ``TRIM`` seconds.
    """
    second = 0
    while True:
        faulthandler.dump_traceback_later(HANGS, exit=True)
        if second % TRIM == 0:
            await asyncio.to_thread(return_free_memory)
        await asyncio.sleep(1)
        second += 1
