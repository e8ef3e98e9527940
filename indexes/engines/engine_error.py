"""Describe errors of search engines, with the problem and the remedy."""

from typing import Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.address import EngineAddress

_BUSY = (429, 502, 503, 504)
_LOST = "connection lost"


class EngineError(DataError):
    """Raised if a search engine refuses a request or does not respond as expected."""

    def __init__(self, message: str, status: int | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        """HTTP status of the response, None without a response."""
        self.kind = kind
        """The engine's name of the error, such as ``index_not_found_exception``."""

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status in _BUSY or self.kind == _LOST


def refusal(address: EngineAddress, status: int, content: Any) -> EngineError:
    """Return the error for a response that has no result."""
    kind, reason = reason_of(content)
    is_engine = isinstance(content, dict)
    message = _refusal_message(address, status, is_engine, kind, reason)
    return EngineError(message, status, kind)


def _refusal_message(
    address: EngineAddress, status: int, is_engine: bool, kind: str, reason: str
) -> str:
    node = address.urls[0]
    if status == 401:
        return (
            f"{node}: the engine does not accept the user and password, or got none; "
            "set TWEETRERANK_ENGINE_USER and TWEETRERANK_ENGINE_PASSWORD, or "
            "TWEETRERANK_ENGINE_API_KEY, or name a file of them by `address.auth`"
        )
    if not is_engine and status != 403:
        return (
            f"{node}: found an answer that is not a search engine's ({status}: "
            f"{reason}); name the address of OpenSearch or Elasticsearch itself, such "
            "as http://localhost:9200"
        )
    if kind == "cluster_block_exception":
        return (
            f"{address}: the index cannot be written to ({reason}); free space on the "
            "engine's disks if they are full, then allow writing again: PUT "
            f"/{address.index}/_settings "
            '{"index.blocks.read_only_allow_delete": null, '
            '"index.blocks.read_only": null, "index.blocks.write": null}'
        )
    if status == 403:
        return (
            f"{node}: the user lacks a right ({reason}); give the user this right on "
            f"the index {address.index}, or name another user"
        )
    if kind == "index_not_found_exception":
        return f"{address}: there is no such index"
    return f"{node}: the engine answers {status}: {reason}"


def reason_of(content: Any) -> tuple[str, str]:
    """Return (engine's name of an error, reason on one line) of a response.

    The name is "" if the response does not give one.
    """
    error = content.get("error", content) if isinstance(content, dict) else content
    if not isinstance(error, dict):
        return "", _cut(error, 80)
    cause = error
    while isinstance(cause.get("caused_by"), dict):
        cause = cause["caused_by"]
    if cause is error and error.get("root_cause"):
        cause = error["root_cause"][0]
    reason = cause.get("reason") or error.get("reason") or error.get("type") or error
    return str(error.get("type", "")), _cut(reason, 300)


def broken_off(address: EngineAddress) -> EngineError:
    """Return the error for a response that ends too early."""
    return EngineError(f"{', '.join(address.urls)}: the answer breaks off", kind=_LOST)


def unreachable(address: EngineAddress, error: Exception) -> EngineError:
    """Return the error for a node that does not respond."""
    text = _innermost(error)
    kind = ""
    if "CERTIFICATE" in text.upper():
        problem = (
            f"the certificate is not from a known authority ({text}); name the file of "
            "the authority by TWEETRERANK_ENGINE_CA, or by ca in the file "
            "`address.auth`"
        )
    elif "WRONG_VERSION" in text or "record layer" in text:
        problem = "the engine speaks no TLS there; use http:// in place of https://"
    else:
        problem = (
            f"no answer ({text}); is an engine running there, and is it http:// or "
            "https://?"
        )
        kind = _LOST
    return EngineError(f"{', '.join(address.urls)}: {problem}", kind=kind)


def _innermost(error: BaseException) -> str:
    """Return the reason inside the nested errors of the libraries."""
    causes = list(error.args)
    causes += getattr(error, "errors", ())
    causes.append(getattr(error, "reason", None))
    for cause in causes:
        if isinstance(cause, BaseException):
            return _innermost(cause)
    reason = getattr(error, "strerror", None) or getattr(error, "verify_message", None)
    text = str(reason or error).rpartition(">: ")[2]
    return _cut(text or type(error).__name__, 160)


def _cut(text: object, most: int) -> str:
    """Return a text on one line, cut to ``most`` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"
