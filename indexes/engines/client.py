"""A search engine's server or cluster: which one it is, requests to it, and their errors.

Both engines are asked alike. Connections are kept; when a node is gone, another one is asked.
"""

import json
import os
import time
import tomllib
import weakref
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar
from urllib.parse import urlencode

from indexes.engines.address import EngineAddress
from indexes.errors import CollectionError

if TYPE_CHECKING:
    import requests

Result = TypeVar("Result")

CONNECTIONS = 4  # Requests to a node at a time
TIMEOUT = 60.0  # Seconds to wait for an answer
LARGEST = 200_000_000  # Bytes of an answer

DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0)
"""Seconds to wait before each further attempt: together a cluster's time to replace a node."""

_BUSY = (429, 502, 503, 504)

_ENVIRONMENT = "TWEETRERANK_ENGINE_"


class EngineError(CollectionError):
    """A search engine refuses, does not answer, or answers something else.

    Attributes:
        status: of the answer; None without one.
        kind: the engine's name of the error, such as ``index_not_found_exception``.
    """

    def __init__(self, message: str, status: int | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status in _BUSY or self.kind == _LOST


_LOST = "connection lost"


@dataclass(frozen=True)
class Credentials:
    """User and certificate authority of an engine."""

    user: str | None = None  # Name of a user
    password: str | None = field(default=None, repr=False)  # Of this user
    api_key: str | None = field(default=None, repr=False)
    """In place of both, as the engine gives it (base64 of ``id:key``)."""
    ca: str | None = None  # File of the authority (PEM) that has signed the engine's certificate

    @classmethod
    def read(cls, path: Path | None) -> Self:
        """Read from a file (TOML: ``user = "…"``), else from ``TWEETRERANK_ENGINE_*``.

        Raises:
            CollectionError: the file cannot be read or holds something else, or there is no such
                file of the authority. No message repeats a secret.
        """
        names = ("user", "password", "api_key", "ca")
        found = {name: os.environ.get(_ENVIRONMENT + name.upper()) or None for name in names}
        if path is not None:
            try:
                content = tomllib.loads(path.read_text(encoding="utf-8"))
            except OSError as error:
                raise CollectionError(f"{path}: cannot be read: {error.strerror}") from None
            except ValueError:
                content = {"": None}
            if not all(key in names and isinstance(v, str) for key, v in content.items()):
                raise CollectionError(
                    f'{path}: found something else than lines such as user = "reader"; expected '
                    f"texts under the keys {', '.join(names)}"
                )
            # A file with an API key is not mixed with a user of the environment.
            found = {name: content.get(name) for name in names} | (
                {} if "ca" in content else {"ca": found["ca"]}
            )
        if found["ca"] and not Path(found["ca"]).is_file():
            raise CollectionError(f"found no file {found['ca']} with the engine's authority (CA)")
        return cls(**found)

    @property
    def headers(self) -> dict[str, str]:
        """The header that names the user."""
        if self.api_key:
            return {"authorization": f"ApiKey {self.api_key}"}
        if self.user is None:
            return {}
        pair = f"{self.user}:{self.password or ''}"
        return {"authorization": f"Basic {b64encode(pair.encode()).decode()}"}


class _Answer(NamedTuple):
    """Status and content of an answer; the content is text where it is no JSON."""

    status: int
    content: Any


_Send = Callable[[str, str, bytes | None, Mapping[str, str]], _Answer]
"""Method, path, body and headers -> answer. Raises EngineError without an answer."""


@dataclass(frozen=True)
class Engine:
    """A connection to a search engine; made by :meth:`connect`, may be used by several threads."""

    address: EngineAddress  # Of an index in it, for messages
    kind: str  # ``opensearch`` or ``elasticsearch``
    version: tuple[int, ...]  # Such as (2, 19); () where the server does not tell
    send: _Send = field(repr=False)

    @classmethod
    def connect(cls, address: EngineAddress) -> Self:
        """Find out which engine it is, and connect to it.

        Raises:
            EngineError: nothing answers there, or no engine; the certificate or the user is not
                accepted.
        """
        session = _session(Credentials.read(address.auth))
        nodes = deque(address.urls)
        kind, version = _identify(address, session, nodes)
        return cls(address, kind, version, _sender(address, session, nodes))

    def request(
        self, method: str, path: str, body: Any = None, params: Mapping[str, Any] | None = None
    ) -> Any:
        """The engine's answer to one request; raises EngineError without one, or for an error.

        ``body`` is JSON, or ready lines of it as bytes; True and False in ``params`` are spelled as
        the engines do.
        """
        if params:
            spelled = {k: str(v).lower() if v in (True, False) else v for k, v in params.items()}
            path = f"{path}?{urlencode(spelled)}"
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        content = body if isinstance(body, bytes | None) else encoded(body)
        headers = {"accept": "application/json", "content-type": kind}
        status, found = self.send(method, path, content, headers)
        if 200 <= status < 300:
            if isinstance(found, dict | list):
                return found
            if not found:  # Cut within the headers.
                raise _broken_off(self.address)
        raise refusal(self.address, status, found)

    def patiently(
        self, method: str, path: str, body: Any = None, params: Mapping[str, Any] | None = None
    ) -> Any:
        """:meth:`request`, repeated for half a minute while the engine is busy or not reached."""
        return repeated(lambda: self.request(method, path, body, params))


def repeated(call: Callable[[], Result], sleep: Callable[[float], Any] = time.sleep) -> Result:
    """The result of a call, which is repeated after errors that pass."""
    for delay in DELAYS:
        try:
            return call()
        except EngineError as error:
            if not error.is_passing:
                raise
        sleep(delay)
    return call()


def encoded(body: Any) -> bytes:
    """JSON without blanks."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def refusal(address: EngineAddress, status: int, content: Any) -> EngineError:
    """The error for an answer that is none: what was found, and what to do."""
    kind, reason = reason_of(content)
    where = address.urls[0]
    message = f"{where}: the engine answers {status}: {reason}"
    if not isinstance(content, dict):
        message = (
            f"{where}: found an answer that is not a search engine's ({status}: {reason}); name "
            "the address of OpenSearch or Elasticsearch itself, such as http://localhost:9200"
        )
    if status == 401:
        message = (
            f"{where}: the engine does not accept the user and password, or got none; set "
            f"{_ENVIRONMENT}USER and {_ENVIRONMENT}PASSWORD, or {_ENVIRONMENT}API_KEY, or name a "
            "file of them by `address.auth`"
        )
    elif kind == "cluster_block_exception":
        message = (
            f"{address}: the index cannot be written to ({reason}); free space on the engine's "
            "disks if they are full, then allow writing again: PUT "
            f'/{address.index}/_settings {{"index.blocks.read_only_allow_delete": null, '
            '"index.blocks.read_only": null, "index.blocks.write": null}'
        )
    elif status == 403:
        message = (
            f"{where}: the user lacks a right ({reason}); give the user this right on the index "
            f"{address.index}, or name another user"
        )
    elif kind == "index_not_found_exception":
        message = f"{address}: there is no such index"
    return EngineError(message, status, kind)


def reason_of(content: Any) -> tuple[str, str]:
    """The engine's name of an error, and what it says about it, on one line."""
    error = content.get("error", content) if isinstance(content, dict) else content
    if not isinstance(error, dict):
        return "", _cut(error, 80)
    inner = error
    while isinstance(inner.get("caused_by"), dict):
        inner = inner["caused_by"]
    if error.get("root_cause") and inner is error:
        inner = error["root_cause"][0]
    reason = inner.get("reason") or error.get("reason") or error.get("type") or error
    return str(error.get("type", "")), _cut(reason, 300)


def _session(credentials: Credentials) -> "requests.Session":
    """Connections that name the user."""
    import requests
    from requests.adapters import HTTPAdapter

    session = requests.Session()
    known = weakref.ref(session)

    def in_fork() -> None:  # It must not share connections.
        if kept := known():
            kept.close()

    os.register_at_fork(after_in_child=in_fork)
    session.trust_env = False  # No proxy, and no other user, of the environment.
    session.verify = credentials.ca or True
    # Decompressing takes longer than a fast network.
    session.headers.update({"accept-encoding": "identity", **credentials.headers})
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))
    return session


def _identify(
    address: EngineAddress, session: "requests.Session", nodes: deque[str]
) -> tuple[str, tuple[int, ...]]:
    """Name and version of the engine, from a node that answers, which is the first then."""
    import requests

    for left in reversed(range(len(nodes))):
        try:
            answer = session.get(nodes[0] + "/", timeout=TIMEOUT)
            break
        except requests.RequestException as error:
            if not left:
                raise unreachable(address, error) from None
            nodes.rotate(-1)
    try:
        content = answer.json()
    except ValueError:
        content = answer.text
    version = content.get("version") if isinstance(content, dict) else None
    if answer.ok and isinstance(version, dict):
        found = tuple(
            int(part) for part in str(version.get("number", "")).split(".")[:2] if part.isdigit()
        )
        is_opensearch = version.get("distribution") == "opensearch"
        return ("opensearch" if is_opensearch else "elasticsearch"), found
    if answer.status_code == 401:
        raise refusal(address, 401, content)
    # Who may not see the version may still search.
    if "x-elastic-product" in answer.headers:
        return "elasticsearch", ()
    if answer.status_code == 403 and isinstance(content, dict | str):
        return "opensearch", ()
    raise refusal(
        address, answer.status_code, content if isinstance(content, str) else json.dumps(content)
    )


def unreachable(address: EngineAddress, error: Exception) -> EngineError:
    """The error for a node that does not answer."""
    text = _innermost(error)
    where = ", ".join(address.urls)
    if "CERTIFICATE" in text.upper():
        advice = (
            f"the certificate is not from a known authority ({text}); name the file of the "
            f"authority by {_ENVIRONMENT}CA, or by ca in the file `address.auth`"
        )
        return EngineError(f"{where}: {advice}")
    if "WRONG_VERSION" in text or "record layer" in text:
        return EngineError(
            f"{where}: the engine speaks no TLS there; use http:// in place of https://"
        )
    return EngineError(
        f"{where}: no answer ({text}); is an engine running there, and is it http:// or https://?",
        kind=_LOST,
    )


def _innermost(error: BaseException) -> str:
    """The reason within the errors of the libraries."""
    for inner in (*error.args, *getattr(error, "errors", ()), getattr(error, "reason", None)):
        if isinstance(inner, BaseException):
            return _innermost(inner)
    text = getattr(error, "strerror", None) or getattr(error, "verify_message", None) or str(error)
    return _cut(str(text).rpartition(">: ")[2] or type(error).__name__, 160)


def _cut(text: object, most: int) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _broken_off(address: EngineAddress) -> EngineError:
    return EngineError(f"{', '.join(address.urls)}: the answer breaks off", kind=_LOST)


def _sender(address: EngineAddress, session: "requests.Session", nodes: deque[str]) -> _Send:
    """Requests to the first node; after one that it does not answer, to the next."""
    import requests

    def send(method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> _Answer:
        url, content = nodes[0], bytearray()
        try:
            with session.request(
                method,
                url + path,
                data=body,
                headers=headers,
                timeout=TIMEOUT,
                stream=True,
                allow_redirects=False,
            ) as answer:
                for part in answer.iter_content(1 << 20):
                    content += part
                    if len(content) > LARGEST:
                        raise EngineError(
                            f"found an answer of more than {LARGEST:,} bytes, expected less; name "
                            "fewer hits"
                        )
        except requests.exceptions.ChunkedEncodingError:
            raise _broken_off(address) from None
        except requests.RequestException as error:
            if nodes[0] == url:
                nodes.rotate(-1)
            raise unreachable(address, error) from None
        if "json" not in answer.headers.get("content-type", ""):
            return _Answer(answer.status_code, content.decode(errors="replace"))
        try:
            return _Answer(answer.status_code, json.loads(content))
        except ValueError:
            raise _broken_off(address) from None

    return send
