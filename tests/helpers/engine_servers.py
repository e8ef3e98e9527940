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
"""Markers. A server's address is in ``X_URL``, X the marker in capitals; beside it ``X_USER``,
``X_PASSWORD`` and ``X_CA`` may be set."""

SERVERS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in NAMES]

_PREFIX = f"test-{uuid4().hex[:12]}"
"""Of this process's indexes: others may be at work on the same server."""

_PATIENCE = 180.0  # Seconds that a server may need to start


class Server(NamedTuple):
    name: str
    url: str
    credentials: dict[str, str]

    def address(self, index: str | None = None, **fields: str) -> EngineAddress:
        """An index that nobody else uses."""
        return EngineAddress(
            self.url, index or f"{_PREFIX}-{uuid4().hex[:12]}", **fields
        )  # type: ignore[arg-type]


@contextmanager
def running(name: str) -> Iterator[Server]:
    """The server of a marker, once it answers; the test is skipped where no address is set. Indexes
    of the tests are deleted at the end."""
    keys = ("URL", "USER", "PASSWORD", "CA")
    url, *others = (os.environ.get(f"{name.upper()}_{key}", "") for key in keys)
    if not url:
        pytest.skip(f"no server (set {name.upper()}_URL)")
    found = dict(zip(keys[1:], others, strict=True))
    credentials = {
        f"TWEETRERANK_ENGINE_{key}": value for key, value in found.items() if value
    }
    _wait(url, found["CA"] or True)
    with pytest.MonkeyPatch.context() as patch:
        for key, value in credentials.items():
            patch.setenv(key, value)
        yield Server(name, url, credentials)
        engine = Engine(EngineAddress(url, "test"))
        # One by one: deleting by a pattern may be forbidden.
        for one in engine.request("GET", f"/{_PREFIX}-*/_settings"):
            engine.request("DELETE", f"/{one}")


def _wait(url: str, verify: str | bool) -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        with suppress(OSError):  # Also a certificate that is not there yet.
            answer = requests.get(url, verify=verify, timeout=10)
            if answer.status_code < 500:
                return
        time.sleep(0.5)
    pytest.fail(f"{url}: found no server within {_PATIENCE:.0f} s")
