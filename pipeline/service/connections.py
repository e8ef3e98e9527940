"""Connections of clients, with limits on their number, idle time and request heads."""

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
"""Connections open at a time. One more replaces the connection idle for longest."""
OTHER_FILES = 256  # Open files that are not connections of clients
HEAD_BYTES = 65_536  # Largest request line together with its headers
HEAD_SECONDS = 10.0
"""Seconds until the first byte of a request, and again from it to the end of its head.
"""
KEEP_ALIVE = 75
"""Seconds that an idle connection stays open.

This is longer than the pools of clients keep one, so that the client closes it.
"""
GRACE = 30  # Seconds that running requests get to finish after a signal to stop


class Connection(H11Protocol):
    """A connection with time limits for reading and writing."""

    most = MOST
    most_of_client: int | None = None
    head_seconds = HEAD_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first byte, and close a connection if there are too many.

        If this client has too many, its new connection is closed. If there are too many
        in all, the one that has been idle for longest is closed.
        """
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
        """Whether the client of this connection has too many connections."""
        if not self.most_of_client or not self.client:
            return False
        address = self.client[0]
        of_client = [c for c in connections if c.client and c.client[0] == address]
        return len(of_client) > self.most_of_client

    def _close_at(self, moment: float) -> None:
        """Close the connection at ``moment`` unless a request begins before.

        ``moment`` is a time on the clock of the event loop, in seconds.
        """
        self.timeout_keep_alive_task = self.loop.call_at(
            moment, self.timeout_keep_alive_handler
        )

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Read a part of a request.

        One time limit holds for the whole head, however many parts it comes in.
        """
        super().data_received(data)
        if not self.is_idle:
            self._head_end = 0.0
        elif self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self._head_end = self._head_end or self.loop.time() + self.head_seconds
            self._close_at(self._head_end)

    def on_response_complete(self) -> None:
        """Note the time, and wait for the next request."""
        self._idle_since = time.monotonic()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if the client still has to read a response."""
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self.transport.abort()


def tls_of(
    certificate: Path | None,
    key: Path | None = None,
    authorities: Path | None = None,
    known: ssl.SSLContext | None = None,
) -> ssl.SSLContext:
    """Return a TLS context made from PEM files.

    Args:
        certificate: the certificate, followed by any intermediate certificates.
        key: the certificate's private key, if it is not in the same file.
        authorities: the authorities that sign the certificates of clients. If they are
            given, each client needs a certificate.
        known: a context in use, which is changed and returned. New connections then
            use the new files.

    Raises:
        DataError: a file cannot be read or is not valid. The ``known`` context stays as
            it was.
    """
    # The files are first loaded into a new context, as a check.
    contexts = [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)]
    if known:
        contexts.append(known)
    try:
        for context in contexts:
            # A key with a password is refused. Without this function, OpenSSL would ask
            # the terminal for the password.
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
    """A server that limits the time for a TLS handshake as for a request's head."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen on the sockets."""
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
    """Return uvicorn's settings.

    Also raises this process' limit of open files if the connections need more.
    """
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
    """Raise the limit of open files for all connections, or allow fewer connections."""
    needed = MOST + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    Connection.most = max(1, min(MOST, soft - OTHER_FILES))
