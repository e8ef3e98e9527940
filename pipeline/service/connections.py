"""Connections of clients: limits of their number, their silence and request heads."""

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
"""Connections at a time. A further one replaces the one that has been idle longest."""
OTHER_FILES = 256  # Open files other than connections of clients
HEAD_BYTES = 65_536  # Limit of a request line with headers
HEAD_SECONDS = 10.0
"""Seconds until the first byte arrives, and from it to the end of the headers."""
KEEP_ALIVE = 75
"""Seconds that an idle connection stays open, longer than in clients' pools."""
GRACE = 30  # Seconds until the end of requests after a signal


class Connection(H11Protocol):
    """A connection with read and write timeouts."""

    most = MOST
    most_of_client: int | None = None
    head_seconds = HEAD_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first byte, and close a connection if there are too many."""
        super().connection_made(transport)
        self._head_end = 0.0
        self._idle_since = time.monotonic()
        self._close_at(self.loop.time() + self.head_seconds)
        connections = [c for c in self.connections if isinstance(c, Connection)]
        if self._has_too_many(connections):
            transport.abort()
        elif len(connections) > self.most:
            idle = [connection for connection in connections if connection.is_idle]
            longest = min(idle, key=lambda connection: connection._idle_since)
            longest.transport.abort()

    def _has_too_many(self, connections: "list[Connection]") -> bool:
        """Whether the client of this connection has more than it may have."""
        if not self.most_of_client or not self.client:
            return False
        address = self.client[0]
        of_client = [c for c in connections if c.client and c.client[0] == address]
        return len(of_client) > self.most_of_client

    def _close_at(self, moment: float) -> None:
        """Close the connection at a time of the loop, unless a request begins."""
        self.timeout_keep_alive_task = self.loop.call_at(
            moment, self.timeout_keep_alive_handler
        )

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Read a part of a request; the whole head has one time limit."""
        super().data_received(data)
        if not self.is_idle:
            self._head_end = 0.0
        elif self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self._head_end = self._head_end or self.loop.time() + self.head_seconds
            self._close_at(self._head_end)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._idle_since = time.monotonic()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if the client has not read the response."""
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self.transport.abort()


def tls_of(
    certificate: Path | None,
    key: Path | None = None,
    authorities: Path | None = None,
    known: ssl.SSLContext | None = None,
) -> ssl.SSLContext:
    """Return a TLS context for files in PEM.

    Args:
        certificate: the certificate, and those between it and its authority.
        key: its key, if it is in another file.
        authorities: authorities of clients, which then need a certificate.
        known: a context to change and return, for new connections.

    Raises:
        DataError: a file is not valid; the ``known`` context is unchanged.
    """
    # A new context comes first, as a check.
    contexts = [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)]
    if known:
        contexts.append(known)
    try:
        for context in contexts:
            # A key with a password is refused; without a function, OpenSSL asks for it.
            context.load_cert_chain(certificate, key, lambda: b"")  # type: ignore[arg-type]
            if authorities:
                context.load_verify_locations(authorities)
                context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        files = ", ".join(str(p) for p in (certificate, key, authorities) if p)
        problem = getattr(error, "reason", None) or error.strerror or error
        remedy = "a certificate, its key without a password, and authorities, in PEM"
        raise DataError(f"{files}: {problem}; expected {remedy}") from None
    return contexts[-1]


class Server(uvicorn.Server):
    """A server whose time limit for the head of a request holds for TLS handshakes."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        if self.config.ssl:
            loop: Any = asyncio.get_running_loop()
            loop.create_server = partial(
                loop.create_server,
                ssl_handshake_timeout=HEAD_SECONDS,
            )
        await super().startup(sockets)


def config(
    app: ASGIApp, context: ssl.SSLContext | None = None, **options: Any
) -> uvicorn.Config:
    """Return uvicorn's settings, and raise the limit of open files if necessary."""
    _raise_file_limit()
    settings = uvicorn.Config(
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
    settings.load()
    settings.ssl = context
    return settings


def _raise_file_limit() -> None:
    """Allow open files for all connections, or allow fewer connections."""
    needed = MOST + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    Connection.most = max(1, min(MOST, soft - OTHER_FILES))
