"""Middleware of every request: its id, the key, the line in the log, the metrics."""

from __future__ import annotations

import hmac
import re
import time
import uuid
from collections.abc import Container, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.service.errors import RequestError
from pipeline.service.formats import assumed
from pipeline.service.http.service import Service
from pipeline.service.record import LOG, Record

PUBLIC = frozenset(
    (
        *("/", "/page.css", "/page.js", "/health", "/ping", "/ready", "/metrics"),
        "/openapi.json",
    )
)
"""Paths that need no key."""

PROBES = frozenset(("/health", "/ping", "/ready", "/metrics"))
"""Paths whose good answers are not logged."""

MOST_HEADERS = 200

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

_TRACE = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""The header ``traceparent`` of W3C Trace Context; the proxy passes it to the engine."""


class ServiceMiddleware:
    """Wraps an application.

    Requests need one of ``keys``, which may change, if there are any; ``guarded`` are the paths
    that need one, None is all but the public ones.
    """

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        keys: Sequence[str] = (),
        guarded: Container[str] | None = None,
    ) -> None:
        self.app, self.service, self._guarded = app, service, guarded
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), scope["path"]
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        record = Record(request_id, scope["method"], path, (scope.get("client") or ("",))[0])
        if _TRACE.fullmatch(trace := headers.get("traceparent", "")):
            record.trace_id, record.span_id = trace.split("-")[1:3]
        scope.setdefault("state", {}).update(record=record, format=assumed(path.rstrip("/")))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            app = self.app
            if len(headers) > MOST_HEADERS:
                problem = f"found {len(headers)} headers, expected at most {MOST_HEADERS}"
                app = scope["state"]["format"].refuse(RequestError("headers", problem), record)
            elif not self._may_pass(scope["method"], path, headers):
                problem = "found no known key, expected `Authorization: Bearer KEY`"
                app = scope["state"]["format"].refuse(RequestError("key", problem), record)
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

    def _may_pass(self, method: str, path: str, headers: Headers) -> bool:
        # The path of the page is that of scores, too.
        if not self._keys or (path in PUBLIC and (path, method) != ("/", "POST")):
            return True
        if self._guarded is not None and path not in self._guarded:
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip().encode("latin-1", errors="replace")
        # All keys are compared, whichever it is, so that the time tells nothing.
        same = [hmac.compare_digest(given, known.encode()) for known in self._keys]
        return scheme.lower() == "bearer" and any(same)
