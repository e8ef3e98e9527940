"""What surrounds every request: its id, the key, the line in the log, the metrics."""

from __future__ import annotations

import hmac
import re
import time
import uuid
from collections.abc import Callable, Container, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.service.formats import assumed
from pipeline.service.http import record as records
from pipeline.service.http.errors import Fault
from pipeline.service.http.record import LOG, Record
from pipeline.service.http.service import Service, refusal

PUBLIC = frozenset(
    ("/", "/page.css", "/page.js", "/health", "/ping", "/metrics", "/docs", "/openapi.json")
)
"""Paths that need no key."""

STATIC = "/docs-files"
"""Folder of the files of ``/docs``, which need no key either."""

PROBES = frozenset(("/health", "/ping", "/metrics"))
"""Paths whose good answers are not logged."""

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Envelope:
    """Wraps an application.

    Args:
        app: the application.
        service: its metrics count the requests for scores.
        keys: one of them is needed, if there are any.
        write: writes a line of the log.
        guarded: paths that need a key; None is all but the public ones.
    """

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        keys: Sequence[str] = (),
        write: Callable[[Record], None] = records.write,
        guarded: Container[str] | None = None,
    ) -> None:
        self.app, self.service, self.write = app, service, write
        self._guarded = guarded
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        record = Record(request_id, scope["method"], scope["path"])
        scope.setdefault("state", {})["record"] = record

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            if self._may_pass(scope["path"], headers):
                await self.app(scope, receive, send_with_id)
            else:
                fault = Fault("key", "found no known key, expected `Authorization: Bearer KEY`")
                refused = refusal(fault, assumed(scope["path"]), record)
                await refused(scope, receive, send_with_id)
        except Exception:
            if not record.status:
                raise
            LOG.exception("request %s failed", request_id)
        finally:
            record.total = time.perf_counter() - record.started
            if record.path not in PROBES or record.status >= 400:
                self.write(record)
            if record.format:
                self.service.metrics.request(record)

    def _may_pass(self, path: str, headers: Headers) -> bool:
        if not self._keys or path in PUBLIC or path.startswith(f"{STATIC}/"):
            return True
        if self._guarded is not None and path not in self._guarded:
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        found = key.strip().encode("latin-1", errors="replace")
        # All keys are compared, whichever it is, so that the time tells nothing.
        same = [hmac.compare_digest(found, known) for known in self._keys]
        return scheme.lower() == "bearer" and any(same)
