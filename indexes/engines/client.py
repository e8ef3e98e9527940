"""Send requests to a search engine, OpenSearch or Elasticsearch.

Connections are kept open. If a node does not respond, the next one gets the requests.
"""

import json
import os
import time
import tomllib
import weakref
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlencode

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.engines.engine_error import (
    EngineError,
    broken_off,
    refusal,
    unreachable,
)

if TYPE_CHECKING:
    import requests

Result = TypeVar("Result")
Json = Mapping[str, Any]

CONNECTIONS = 4  # Number of requests to a node at the same time
TIMEOUT = 60.0  # Seconds to wait for a response
LARGEST = 200_000_000  # Largest size of a response in bytes

DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0)
"""Seconds to wait before each further attempt.

Together they are the time that a cluster needs to replace a node.
"""

_NAMES = ("user", "password", "api_key", "ca")  # Keys of a file of credentials


@dataclass(frozen=True)
class Credentials:
    """The user of an engine, and the authority that signed the engine's certificate."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    """A key to use instead of user and password. It is base64 of ``id:key``, as the
    engine prints it."""
    ca: str | None = None
    """File (PEM) of the authority that signed the engine's certificate."""

    @classmethod
    def read(cls, path: Path | None) -> Self:
        """Return the credentials of a file or, without one, of the environment.

        The file is TOML with lines such as ``user = "…"``. The variables are named
        ``TWEETRERANK_ENGINE_USER`` and so on. Raises DataError if the file cannot be
        read or has other content, or if the file of the authority is missing. No
        message repeats a secret.
        """
        values = {
            name: os.environ.get(f"TWEETRERANK_ENGINE_{name.upper()}") or None
            for name in _NAMES
        }
        if path is not None:
            # Only the authority is also taken from the environment, so that an API key
            # in the file is not mixed with a user in the environment.
            values = {"ca": values["ca"]} | _credentials_in(path)
        authority = values["ca"]
        if authority and not Path(authority).is_file():
            raise DataError(
                f"found no file {authority} with the engine's authority (CA)"
            )
        return cls(**values)

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP header that names the user. It is absent without a user."""
        if self.api_key:
            return {"authorization": f"ApiKey {self.api_key}"}
        if self.user is None:
            return {}
        pair = f"{self.user}:{self.password or ''}"
        return {"authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _credentials_in(path: Path) -> dict[str, Any]:
    """Return the content of a file of credentials. Raises DataError if it is unfit."""
    content: dict[str, Any] | None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        content = None
    if content is None or not _are_credentials(content):
        raise DataError(
            f'{path}: found something else than lines such as user = "reader"; '
            f"expected texts under the keys {', '.join(_NAMES)}"
        )
    return content


def _are_credentials(content: Json) -> bool:
    if not content.keys() <= set(_NAMES):
        return False
    return all(isinstance(value, str) for value in content.values())


class Engine:
    """A connection to a search engine, for use by several threads."""

    def __init__(self, address: EngineAddress) -> None:
        """Identify the engine by the first node that responds.

        Raises EngineError if no node responds, if the node is not a search engine, or
        if the certificate or the user is not accepted.
        """
        self.address = address
        """Address of an index in the engine."""
        self._nodes = deque(address.urls)
        self._session = _session(Credentials.read(address.auth))
        status, headers, content = self._first_response()
        version = _version_of(content) if status == 200 else {}
        self.kind = "elasticsearch"
        if version.get("distribution") == "opensearch":
            self.kind = "opensearch"
        elif not version and "x-elastic-product" not in headers:
            if status != 403:
                raise _not_an_engine(address, status, content)
            # A user without the right to see the version may have the right to search.
            self.kind = "opensearch"
        numbers = str(version.get("number", "")).split(".")[:2]
        self.version = tuple(int(number) for number in numbers if number.isdigit())
        """The version, such as (2, 19), or () if the server hides it."""

    def _first_response(self) -> tuple[int, Mapping[str, str], Any]:
        """Return the response to ``GET /`` of the first node that responds."""
        for _ in range(len(self._nodes) - 1):
            with suppress(EngineError):
                return self._send("GET", "/")
        return self._send("GET", "/")

    def request(
        self, method: str, path: str, body: Any = None, params: Json | None = None
    ) -> Any:
        """Return the JSON of the engine's response to one request.

        ``body`` is a JSON value, or lines of JSON as bytes. Raises EngineError if there
        is no response, or if the response is an error.
        """
        if params:
            path = f"{path}?{urlencode(_spelled(params))}"
        status, _, content = self._send(method, path, body)
        if 200 <= status < 300:
            if isinstance(content, dict | list):
                return content
            if not content:
                # The response was cut within its headers.
                raise broken_off(self.address)
        raise refusal(self.address, status, content)

    def patiently(
        self, method: str, path: str, body: Any = None, params: Json | None = None
    ) -> Any:
        """Make a :meth:`request`, and repeat it after errors that may pass.

        The attempts end after about half a minute.
        """
        return repeated(lambda: self.request(method, path, body, params))

    def describe(self) -> dict[str, Any]:
        """Return the settings and fields of the index, and the number of ``indexes``.

        An alias may name several indexes. The settings and fields are those of the
        first index by name.
        """
        descriptions = self.patiently("GET", f"/{self.address.index}")
        if not descriptions:
            raise EngineError(f"{self.address}: there is no such index", 404)
        return dict(descriptions[min(descriptions)], indexes=len(descriptions))

    def count(self) -> int:
        """Return the number of posts in the index."""
        return int(self.patiently("GET", f"/{self.address.index}/_count")["count"])

    def _send(
        self, method: str, path: str, body: Any = None
    ) -> tuple[int, Mapping[str, str], Any]:
        """Return (status, headers, content) of the response of the current node.

        Content that is not JSON is returned as text. If the node does not respond,
        EngineError is raised, and the next node gets the next request.
        """
        import requests

        node = self._nodes[0]
        is_lines = isinstance(body, bytes)
        kind = "application/x-ndjson" if is_lines else "application/json"
        try:
            with self._session.request(
                method,
                node + path,
                data=body if is_lines or body is None else encoded(body),
                headers={"accept": "application/json", "content-type": kind},
                timeout=TIMEOUT,
                stream=True,
                allow_redirects=False,
            ) as response:
                raw = _read(response)
            is_json = "json" in response.headers.get("content-type", "")
            content = json.loads(raw) if is_json else raw.decode(errors="replace")
        except requests.exceptions.ChunkedEncodingError:
            raise broken_off(self.address) from None
        except requests.RequestException as error:
            if self._nodes[0] == node:
                self._nodes.rotate(-1)
            raise unreachable(self.address, error) from None
        except ValueError:
            # Half of the JSON is missing.
            raise broken_off(self.address) from None
        return response.status_code, response.headers, content


def _not_an_engine(address: EngineAddress, status: int, content: Any) -> EngineError:
    if status != 401 and not isinstance(content, str):
        content = json.dumps(content)
    return refusal(address, status, content)


def _version_of(content: Any) -> dict[str, Any]:
    """Return the object ``version`` of a response to ``GET /``, or an empty object."""
    version = content.get("version") if isinstance(content, dict) else None
    return version if isinstance(version, dict) else {}


def _spelled(params: Json) -> dict[str, Any]:
    """Return parameters with True and False spelled as the engines expect."""
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in params.items()
    }


def _read(response: "requests.Response") -> bytearray:
    """Return the content of a response. Raises EngineError if it is too large."""
    content = bytearray()
    for chunk in response.iter_content(1 << 20):
        content += chunk
        if len(content) > LARGEST:
            raise EngineError(
                f"found an answer of more than {LARGEST:,} bytes, expected less; name "
                "fewer hits"
            )
    return content


def _session(credentials: Credentials) -> "requests.Session":
    """Return a session whose requests name the user."""
    import requests
    from requests.adapters import HTTPAdapter

    session = requests.Session()
    reference = weakref.ref(session)

    def close_in_fork() -> None:
        # A fork must not share connections.
        inherited = reference()
        if inherited:
            inherited.close()

    os.register_at_fork(after_in_child=close_in_fork)
    # The environment must not set a proxy or another user.
    session.trust_env = False
    session.verify = credentials.ca or True
    # Decompressing takes longer than a fast network.
    session.headers["accept-encoding"] = "identity"
    session.headers.update(credentials.headers)
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))
    return session


def repeated(
    call: Callable[[], Result], sleep: Callable[[float], Any] = time.sleep
) -> Result:
    """Return the result of a call, which is repeated after errors that may pass.

    Raises EngineError if the error lasts, or if the last attempt fails.
    """
    for delay in DELAYS:
        try:
            return call()
        except EngineError as error:
            if not error.is_passing:
                raise
        sleep(delay)
    return call()


def encoded(body: Any) -> bytes:
    """Return a value as JSON without blanks, in UTF-8."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
