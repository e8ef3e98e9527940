"""Connections of clients: bounds of their number, their silence, and the heads of requests."""

import asyncio
import resource
import socket
import ssl
import time
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from tweetrerank.indexes.data_error import DataError

MOST = 2000
"""Connections at a time; a further one takes the place of the one that is idle for longest."""
OTHER_FILES = 256  # Open files that are no connections of clients
HEAD_BYTES = 65_536  # Of a request line and headers
HEAD_SECONDS = (
    10.0  # For the arrival of the first byte, and from it to the end of the headers
)
KEEP_ALIVE = 75
"""Seconds that an idle connection stays open: longer than the pools of clients keep theirs."""
GRACE = 30  # Seconds that requests have for their end after a signal


class Connection(H11Protocol):
    """A connection that is closed where a request, or the reader of a response, does not come."""

    most = MOST
    most_of_client: int | None = None
    head_seconds = HEAD_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first byte; close another idle connection if there are too many."""
        super().connection_made(transport)
        self._head_end, self._idle_since = 0.0, time.monotonic()
        close = self.timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(self.head_seconds, close)
        every = [c for c in self.connections if isinstance(c, Connection)]
        of_client = [
            c
            for c in every
            if c.client and self.client and c.client[0] == self.client[0]
        ]
        if self.most_of_client and len(of_client) > self.most_of_client:
            transport.abort()
        elif len(every) > self.most:
            min(
                (c for c in every if c.is_idle), key=lambda c: c._idle_since
            ).transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Read a part of a request; a head that arrives byte by byte has one time limit."""
        super().data_received(data)
        if not self.is_idle:
            self._head_end = 0.0
        elif self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self._head_end = self._head_end or self.loop.time() + self.head_seconds
            close = self.timeout_keep_alive_handler
            self.timeout_keep_alive_task = self.loop.call_at(self._head_end, close)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._idle_since = time.monotonic()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also where the client does not read the last response."""
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self.transport.abort()


def tls_of(*files: Path | None, known: ssl.SSLContext | None = None) -> ssl.SSLContext:
    """A context of files in PEM, or the ``known`` one with them, for new connections: certificate,
    with those between it and its authority, key, if it is not in the same file, and authorities of
    clients, which need a certificate then. Raises DataError, and changes nothing then."""
    certificate, key, authorities = files
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for each in filter(None, (made, known)):  # First for a check
        try:
            # A password is not asked for, but refused.
            each.load_cert_chain(certificate, key, lambda: b"")  # type: ignore[arg-type]
            if authorities:
                each.load_verify_locations(authorities)
                each.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:
            expected = (
                "a certificate, its key without a password, and authorities, in PEM"
            )
            problem = getattr(error, "reason", None) or error.strerror or error
            named = ", ".join(str(path) for path in files if path)
            raise DataError(f"{named}: {problem}; expected {expected}") from None
    return known or made


class Server(uvicorn.Server):
    """A server that waits for the start of TLS as long as for the head of a request."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        if self.config.ssl:
            loop: Any = asyncio.get_running_loop()
            loop.create_server = partial(
                loop.create_server, ssl_handshake_timeout=HEAD_SECONDS
            )
        await super().startup(sockets)


def config(
    app: ASGIApp, context: ssl.SSLContext | None = None, **options: Any
) -> uvicorn.Config:
    """uvicorn's settings for this service; its open files are raised to what it needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < (soft_needed := MOST + OTHER_FILES):
        soft = soft_needed if hard == resource.RLIM_INFINITY else min(soft_needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        Connection.most = max(1, min(MOST, soft - OTHER_FILES))
    made = uvicorn.Config(
        app,
        http=Connection,
        h11_max_incomplete_event_size=HEAD_BYTES,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        **options,
    )
    made.load()
    made.ssl = context
    return made
