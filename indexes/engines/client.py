"""A search engine: the address of an index in it, requests to it, and their errors.

OpenSearch and Elasticsearch are asked alike. Connections are kept; when a node is gone, another one
is asked.
"""

import json
import os
import re
import time
import tomllib
import weakref
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlencode, urlsplit

from tweetrerank.indexes.data_error import DataError

if TYPE_CHECKING:
    import requests

Result = TypeVar("Result")
Json = Mapping[str, Any]

CONNECTIONS = 4  # Requests to a node at a time
TIMEOUT = 60.0  # Seconds to wait for an answer
LARGEST = 200_000_000  # Bytes of an answer

DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0)
"""Seconds to wait before each further attempt: together a cluster's time to replace a node."""

_BUSY = (429, 502, 503, 504)
_LOST = "connection lost"
_ENVIRONMENT = "TWEETRERANK_ENGINE_"


@dataclass(frozen=True)
class EngineAddress:
    """An index in OpenSearch or Elasticsearch. With a ``text_field`` it is an index that somebody
    has made for other purposes; without one, an index by :func:`tweetrerank.indexes.engines.layout.build`."""

    url: str  # Addresses of the cluster's nodes, separated by commas; one is enough
    index: str  # Name of an index, or of an alias
    auth: Path | None = None  # File with user and password, see :class:`Credentials`
    text_field: str | None = None  # Field of the posts' texts
    url_field: str | None = None  # Field of their links
    time_field: str | None = None
    """Field of their times, a date or a number that a topic's time limit bounds."""
    id_field: str | None = None  # Field of their ids; None takes ``_id``
    query: Path | str | None = None
    """File of a query in the engine's language, with ``{{query}}`` for the topic's text, or the id
    of a search template with the parameter ``query``; None matches the text field."""
    signals: tuple[str, ...] = ()  # Further fields of its posts that are read

    def __post_init__(self) -> None:
        for url in self.urls:
            check_url(url)
        foreign = ("url_field", "time_field", "id_field", "query")
        if self.text_field is None and (
            given := [n for n in foreign if getattr(self, n)]
        ):
            raise DataError(
                f"{self}: found {', '.join(given)} without text_field, expected the field of the "
                "posts' texts, too"
            )

    @property
    def urls(self) -> list[str]:
        """The addresses of nodes."""
        return [url.strip().rstrip("/") for url in self.url.split(",")]

    @property
    def has_methods(self) -> bool:
        """Whether it is an index of ours, ranked by the methods of :mod:`tweetrerank.indexes.methods`."""
        return self.text_field is None

    def __str__(self) -> str:
        return f"{self.urls[0]}/{self.index}"


def check_url(url: str) -> None:
    """Raise DataError unless this is the address of a node; a password is not repeated."""
    if "@" in url:
        raise DataError(
            "found a user or password in the engine's address, expected it without: name them by "
            "TWEETRERANK_ENGINE_USER and TWEETRERANK_ENGINE_PASSWORD, or a file by `address.auth`"
        )
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        is_good = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
        )
    except ValueError:
        is_good = False
    if not is_good:
        raise DataError(
            f"found {url!r}, expected the address of a search engine, such as http://localhost:9200"
        )


def index_name(text: str) -> str:
    """A valid name of an index that resembles ``text``."""
    return "tweetrerank-" + re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-.")


def query_file(text: str, folder: Path = Path()) -> Path | str:
    """The file of a query, or the id of a search template; raises ValueError for a missing file."""
    if (folder / text).is_file():
        return folder / text
    if text.endswith(".json"):
        raise ValueError(f"found no file {text!r} of a query in {folder.resolve()}")
    return text


@dataclass(frozen=True)
class Credentials:
    """User and certificate authority of an engine."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    """In place of both, as the engine gives it (base64 of ``id:key``)."""
    ca: str | None = (
        None  # File of the authority (PEM) that has signed the engine's certificate
    )

    @classmethod
    def read(cls, path: Path | None) -> Self:
        """Read from a file (TOML: ``user = "…"``), else from ``TWEETRERANK_ENGINE_*``. Raises
        DataError if the file cannot be read or holds something else, or there is no such file
        of the authority. No message repeats a secret."""
        names = ("user", "password", "api_key", "ca")
        found = {
            name: os.environ.get(_ENVIRONMENT + name.upper()) or None for name in names
        }
        if path is not None:
            try:
                content = tomllib.loads(path.read_text(encoding="utf-8"))
            except OSError as error:
                raise DataError(f"{path}: cannot be read: {error.strerror}") from None
            except ValueError:
                content = {"": None}
            if not all(
                key in names and isinstance(v, str) for key, v in content.items()
            ):
                raise DataError(
                    f'{path}: found something else than lines such as user = "reader"; expected '
                    f"texts under the keys {', '.join(names)}"
                )
            # A file with an API key is not mixed with a user of the environment.
            found = dict.fromkeys(names) | {"ca": found["ca"]} | content
        if found["ca"] and not Path(found["ca"]).is_file():
            raise DataError(
                f"found no file {found['ca']} with the engine's authority (CA)"
            )
        return cls(**found)

    @property
    def headers(self) -> dict[str, str]:
        """The header that names the user."""
        if self.api_key:
            return {"authorization": f"ApiKey {self.api_key}"}
        pair = f"{self.user}:{self.password or ''}"
        basic = f"Basic {b64encode(pair.encode()).decode()}"
        return {} if self.user is None else {"authorization": basic}


class EngineError(DataError):
    """A search engine refuses, does not answer, or answers something else. ``status`` is that of
    the answer, None without one; ``kind`` the engine's name of the error, such as
    ``index_not_found_exception``."""

    def __init__(self, message: str, status: int | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status in _BUSY or self.kind == _LOST


class Engine:
    """A connection to a search engine, which several threads may use. ``address`` is that of an
    index in it, ``kind`` is ``opensearch`` or ``elasticsearch``, ``version`` such as (2, 19), or ()
    where the server does not tell."""

    def __init__(self, address: EngineAddress) -> None:
        """Find out which engine it is, from a node that answers. Raises EngineError if nothing
        answers there, or no engine, or if the certificate or the user is not accepted."""
        self.address, self._nodes = address, deque(address.urls)
        self._session = _session(Credentials.read(address.auth))
        for left in reversed(range(len(self._nodes))):
            try:
                status, headers, content = self._send("GET", "/")
                break
            except EngineError:
                if not left:
                    raise
        version = (
            content.get("version")
            if isinstance(content, dict) and status == 200
            else None
        )
        version = version if isinstance(version, dict) else {}
        is_opensearch = version.get("distribution") == "opensearch"
        # Who may not see the version may still search.
        if not version and "x-elastic-product" not in headers:
            if status != 403:
                is_plain = status == 401 or isinstance(content, str)
                raise self.refusal(status, content if is_plain else json.dumps(content))
            is_opensearch = True
        self.kind = "opensearch" if is_opensearch else "elasticsearch"
        numbers = str(version.get("number", "")).split(".")[:2]
        self.version = tuple(int(part) for part in numbers if part.isdigit())

    def request(
        self, method: str, path: str, body: Any = None, params: Json | None = None
    ) -> Any:
        """The engine's answer to one request; raises EngineError without one, or for an error.
        ``body`` is JSON, or ready lines of it as bytes; True and False in ``params`` are spelled as
        the engines do."""
        if params:
            spelled = {
                k: str(v).lower() if v in (True, False) else v
                for k, v in params.items()
            }
            path = f"{path}?{urlencode(spelled)}"
        status, _, found = self._send(method, path, body)
        if 200 <= status < 300:
            if isinstance(found, dict | list):
                return found
            if not found:  # Cut within the headers.
                raise self._broken_off()
        raise self.refusal(status, found)

    def patiently(self, *request: Any) -> Any:
        """:meth:`request`, repeated for half a minute while the engine is busy or not reached."""
        return repeated(lambda: self.request(*request))

    def describe(self) -> dict[str, Any]:
        """Settings and fields of the index; of the first one where an alias names several."""
        if not (found := self.patiently("GET", f"/{self.address.index}")):
            raise EngineError(f"{self.address}: there is no such index", 404)
        return dict(found[min(found)], indexes=len(found))

    def count(self) -> int:
        """Number of posts in the index."""
        return int(self.patiently("GET", f"/{self.address.index}/_count")["count"])

    def _send(
        self, method: str, path: str, body: Any = None
    ) -> tuple[int, Mapping[str, str], Any]:
        """Status, headers and content (text, where it is no JSON) of the first node's answer. After
        a request that this one does not answer, the next one is the first."""
        import requests

        url, content = self._nodes[0], bytearray()
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        try:
            with self._session.request(
                method,
                url + path,
                data=body if isinstance(body, bytes | None) else encoded(body),
                headers={"accept": "application/json", "content-type": kind},
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
            is_json = "json" in answer.headers.get("content-type", "")
            found = json.loads(content) if is_json else content.decode(errors="replace")
        except requests.exceptions.ChunkedEncodingError:
            raise self._broken_off() from None
        except requests.RequestException as error:
            if self._nodes[0] == url:
                self._nodes.rotate(-1)
            raise unreachable(self.address, error) from None
        except ValueError:  # Half of its JSON.
            raise self._broken_off() from None
        return answer.status_code, answer.headers, found

    def refusal(self, status: int, content: Any) -> EngineError:
        """The error for an answer that is none: what was found, and what to do."""
        (kind, reason), address = reason_of(content), self.address
        where = address.urls[0]
        message = f"{where}: the engine answers {status}: {reason}"
        if status == 401:
            message = (
                f"{where}: the engine does not accept the user and password, or got none; set "
                f"{_ENVIRONMENT}USER and {_ENVIRONMENT}PASSWORD, or {_ENVIRONMENT}API_KEY, or name "
                "a file of them by `address.auth`"
            )
        elif not isinstance(content, dict) and status != 403:
            message = (
                f"{where}: found an answer that is not a search engine's ({status}: {reason}); "
                "name the address of OpenSearch or Elasticsearch itself, such as http://localhost:9200"
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
                f"{where}: the user lacks a right ({reason}); give the user this right on the "
                f"index {address.index}, or name another user"
            )
        elif kind == "index_not_found_exception":
            message = f"{address}: there is no such index"
        return EngineError(message, status, kind)

    def _broken_off(self) -> EngineError:
        return EngineError(
            f"{', '.join(self.address.urls)}: the answer breaks off", kind=_LOST
        )


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


def repeated(
    call: Callable[[], Result], sleep: Callable[[float], Any] = time.sleep
) -> Result:
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


def reason_of(content: Any) -> tuple[str, str]:
    """The engine's name of an error, and what it says about it, on one line."""
    error = content.get("error", content) if isinstance(content, dict) else content
    if not isinstance(error, dict):
        return "", _cut(error, 80)
    inner = error
    while isinstance(inner.get("caused_by"), dict):
        inner = inner["caused_by"]
    if inner is error and error.get("root_cause"):
        inner = error["root_cause"][0]
    reason = inner.get("reason") or error.get("reason") or error.get("type") or error
    return str(error.get("type", "")), _cut(reason, 300)


def unreachable(address: EngineAddress, error: Exception) -> EngineError:
    """The error for a node that does not answer."""
    text, kind = _innermost(error), ""
    if "CERTIFICATE" in text.upper():
        problem = (
            f"the certificate is not from a known authority ({text}); name the file of the "
            f"authority by {_ENVIRONMENT}CA, or by ca in the file `address.auth`"
        )
    elif "WRONG_VERSION" in text or "record layer" in text:
        problem = "the engine speaks no TLS there; use http:// in place of https://"
    else:
        problem = f"no answer ({text}); is an engine running there, and is it http:// or https://?"
        kind = _LOST
    return EngineError(f"{', '.join(address.urls)}: {problem}", kind=kind)


def _innermost(error: BaseException) -> str:
    """The reason within the errors of the libraries."""
    for inner in (
        *error.args,
        *getattr(error, "errors", ()),
        getattr(error, "reason", None),
    ):
        if isinstance(inner, BaseException):
            return _innermost(inner)
    text = (
        getattr(error, "strerror", None)
        or getattr(error, "verify_message", None)
        or str(error)
    )
    return _cut(str(text).rpartition(">: ")[2] or type(error).__name__, 160)


def _cut(text: object, most: int) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"
