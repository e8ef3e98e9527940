"""Real search engines for tests: those whose addresses are in the environment."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple
from uuid import uuid4

import pytest
import requests

from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.engines.client import Engine

NAMES = ("opensearch", "opensearch3", "elasticsearch")
"""Markers. A server's address is in ``X_URL``, X the marker in capitals. ``X_USER``,
``X_PASSWORD`` and ``X_CA`` are optional."""

SERVERS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in NAMES]

_PREFIX = f"test-{uuid4().hex[:12]}"
"""Prefix of this process's indexes: others may use the same server."""

_PATIENCE = 180.0  # Seconds that a server may need to start


class Server(NamedTuple):
    name: str
    url: str
    credentials: dict[str, str]

    def address(self, index: str | None = None, **fields: str) -> EngineAddress:
        """An index that nobody else uses."""
        name = index or f"{_PREFIX}-{uuid4().hex[:12]}"
        return EngineAddress(self.url, name, **fields)  # type: ignore[arg-type]


@contextmanager
def running(name: str) -> Iterator[Server]:
    """The server of a marker, once it responds.

    The test is skipped without an address. Indexes of the tests are deleted at the end.
    """
    prefix = name.upper()
    url = os.environ.get(f"{prefix}_URL", "")
    if not url:
        pytest.skip(f"no server (set {prefix}_URL)")
    credentials = {}
    for key in ("USER", "PASSWORD", "CA"):
        value = os.environ.get(f"{prefix}_{key}", "")
        if value:
            credentials[f"TWEETRERANK_ENGINE_{key}"] = value
    _wait(url, credentials.get("TWEETRERANK_ENGINE_CA", True))
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in credentials.items():
            patch.setenv(variable, value)
        yield Server(name, url, credentials)
        _delete_indexes(url)


def _delete_indexes(url: str) -> None:
    """Delete them one by one: deletion by a pattern may be forbidden."""
    engine = Engine(EngineAddress(url, "test"))
    for index in engine.request("GET", f"/{_PREFIX}-*/_settings"):
        engine.request("DELETE", f"/{index}")


def _wait(url: str, verify: str | bool) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        # The certificate may not exist yet, too.
        with suppress(OSError):
            response = requests.get(url, verify=verify, timeout=10)
            if response.status_code < 500:
                return
        time.sleep(0.5)
    pytest.fail(f"{url}: found no server within {_PATIENCE:.0f} s")
