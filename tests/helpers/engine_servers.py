"""Real search engines for tests, at the addresses that the environment names."""

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
"""The pytest markers, one for each server.

For the marker ``x``, the environment variable ``X_URL`` has the address of the server.
The variables ``X_USER``, ``X_PASSWORD`` and ``X_CA`` are optional.
"""

SERVERS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in NAMES]

_PREFIX = f"test-{uuid4().hex[:12]}"
"""Prefix of the indexes of this process, as others may use the same server."""

_PATIENCE = 180.0  # Seconds that a server may take to start


class Server(NamedTuple):
    name: str
    url: str
    credentials: dict[str, str]

    def address(self, index: str | None = None, **fields: str) -> EngineAddress:
        """Return the address of an index, by default one that nobody else uses."""
        name = index or f"{_PREFIX}-{uuid4().hex[:12]}"
        return EngineAddress(self.url, name, **fields)  # type: ignore[arg-type]


@contextmanager
def running(name: str) -> Iterator[Server]:
    """Wait until the server of a marker responds, and yield it.

    The test is skipped if the environment has no address, and fails if the server does
    not respond in time. The indexes of the tests are deleted at the end.
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
    """Delete the indexes one by one, as a server may forbid to delete by a pattern."""
    engine = Engine(EngineAddress(url, "test"))
    for index in engine.request("GET", f"/{_PREFIX}-*/_settings"):
        engine.request("DELETE", f"/{index}")


def _wait(url: str, verify: str | bool) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        # The file of the certificate may not exist yet either.
        with suppress(OSError):
            response = requests.get(url, verify=verify, timeout=10)
            if response.status_code < 500:
                return
        time.sleep(0.5)
    pytest.fail(f"{url}: found no server within {_PATIENCE:.0f} s")
