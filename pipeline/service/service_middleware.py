"""Middleware around every request, for its id, access checks, log line and metrics."""

import hashlib
import hmac
import re
import time
import uuid
from collections.abc import Sequence, Set

from cachetools import LRUCache
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tweetrerank.pipeline.service.formats import assumed_format
from tweetrerank.pipeline.service.json_log import LOG
from tweetrerank.pipeline.service.request_record import Record
from tweetrerank.pipeline.service.rerank_service import Service
from tweetrerank.pipeline.service.service_errors import RequestError

MOST_HEADERS = 200
MOST_CLIENTS = 10_000  # Clients whose request rate is tracked

PROBES = frozenset(("/health", "/ping", "/ready", "/metrics"))
"""Paths of which successful requests are not logged."""
PUBLIC = PROBES | {"/", "/page.css", "/page.js", "/openapi.json"}
"""Paths that need no key."""
MODEL_PATHS = "/v1/models/"

EXPOSED_HEADERS = ("x-request-id", "x-mix", "x-model", "x-search-id", "retry-after")
"""Response headers that the pages of other sites may read."""

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_TRACE = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""Form of the header ``traceparent`` of W3C Trace Context. The proxy passes it on."""
_PORT = re.compile(r":\d*$")


class ServiceMiddleware:
    """Middleware that admits, logs and counts the requests to an application.

    ``own_paths`` are the paths of the service itself, or None if all paths are its
    own. Only these check the service's keys and let pages of other sites call them;
    all other paths belong to the engine.
    """

    def __init__(
        self, app: ASGIApp, service: Service, own_paths: Set[str] | None
    ) -> None:
        self.app = app
        self.service = service
        self._limits = service.limits
        self._own_paths = own_paths
        self._cors = CORSMiddleware(
            app,
            service.limits.origins,
            ("GET", "POST"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
        )
        self._buckets = LRUCache[str, tuple[float, float]](MOST_CLIENTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        record = _record_of(scope)
        wire = assumed_format(path.rstrip("/"))
        scope.setdefault("state", {}).update(record=record, format=wire)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = record.request_id
            await send(message)

        try:
            try:
                app = self._app_for(scope, record)
            except RequestError as error:
                app = wire.refuse(error, record)
            await app(scope, receive, send_with_id)
        except Exception:
            if not record.status:
                raise
            LOG.exception("request %s failed", record.request_id)
        finally:
            record.total = time.perf_counter() - record.started
            if path not in PROBES or record.status >= 400:
                LOG.info("%s %s", record.method, path, extra={"request": record})
            if record.format or record.engine:
                self.service.metrics.request(record)

    def _app_for(self, scope: Scope, record: Record) -> ASGIApp:
        """Return the application that handles a request.

        Raises RequestError if the request may not be admitted.
        """
        headers = Headers(scope=scope)
        is_own = self._is_own(scope["path"])
        if len(headers) > MOST_HEADERS:
            problem = f"found {len(headers)} headers, expected at most {MOST_HEADERS}"
            raise RequestError("headers", problem)
        self._check_host(headers)
        self._check_rate(record)
        if is_own and not self._is_public(record, headers):
            self._check_key(headers)
        if is_own and self._limits.origins:
            return self._cors
        return self.app

    def _is_own(self, path: str) -> bool:
        if self._own_paths is None:
            return True
        return path in self._own_paths or path.startswith(MODEL_PATHS)

    def _is_public(self, record: Record, headers: Headers) -> bool:
        """Whether a request to one of the service's own paths needs no key."""
        # The path of the page also takes requests for scores, which do need a key.
        if record.path in PUBLIC and (record.path, record.method) != ("/", "POST"):
            return True
        # Browsers send a preflight request without a key.
        asks_for_origin = "access-control-request-method" in headers
        has_origins = bool(self._limits.origins)
        return record.method == "OPTIONS" and asks_for_origin and has_origins

    def _check_host(self, headers: Headers) -> None:
        """Raise RequestError if the header Host has a name that is not allowed."""
        allowed = self._limits.hosts
        host = _PORT.sub("", headers.get("host", "").lower())
        if not host or not allowed:
            return
        domain = host.partition(".")[2]
        if host not in allowed and f"*.{domain}" not in allowed:
            problem = f"found the host {host[:100]!r}, expected {', '.join(allowed)}"
            raise RequestError("host", f"{problem}; name others by --allow-host")

    def _check_rate(self, record: Record) -> None:
        """Raise RequestError if a client exceeds its number of requests per second.

        Each request takes a token from the client's bucket. The bucket holds as many
        tokens as the rate allows in a second, and is refilled at that rate.
        """
        rate = self._limits.rate
        if not rate or record.path in PROBES:
            return
        now_seconds = time.monotonic()
        tokens, filled_at = self._buckets.get(record.client, (rate, now_seconds))
        tokens = min(rate, tokens + (now_seconds - filled_at) * rate)
        self._buckets[record.client] = (max(0.0, tokens - 1), now_seconds)
        if tokens < 1:
            problem = f"found more than {rate} requests in a second"
            raise RequestError("rate", problem)

    def _check_key(self, headers: Headers) -> None:
        if self._limits.keys and not _has_key(headers, self._limits.keys):
            problem = "found no known key, expected `Authorization: Bearer KEY`"
            raise RequestError("key", problem)


def _record_of(scope: Scope) -> Record:
    """Start the record of a request that has just arrived."""
    headers = Headers(scope=scope)
    request_id = headers.get("x-request-id", "")
    if not _REQUEST_ID.fullmatch(request_id):
        request_id = uuid.uuid4().hex
    client = (scope.get("client") or ("",))[0]
    record = Record(request_id, scope["method"], scope["path"][:200], client)
    caller = f"{client}\n{headers.get('authorization', '')}".encode()
    record.caller = hashlib.blake2b(caller, digest_size=16).digest()
    trace = headers.get("traceparent", "")
    if _TRACE.fullmatch(trace):
        _, record.trace_id, record.parent_span_id, _ = trace.split("-")
    return record


def _has_key(headers: Headers, keys: Sequence[str]) -> bool:
    """Whether a request's Authorization header holds one of the keys."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    key = credentials.strip().encode("latin-1", errors="replace")
    # Every key is compared, so that the time does not tell which one has matched.
    matches = [hmac.compare_digest(key, valid_key.encode()) for valid_key in keys]
    return scheme.lower() == "bearer" and any(matches)
