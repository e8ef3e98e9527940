"""A call on the engine's paths, as the engine is to see it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from starlette.requests import Request

from tweetrerank.pipeline.service.limits import deadline_of
from tweetrerank.pipeline.service.proxy.allowed import (
    LISTS,
    matches,
    readable,
    refused,
)
from tweetrerank.pipeline.service.request_record import Record
from tweetrerank.pipeline.service.service_errors import RequestError

Headers = Iterable[tuple[str, str]]

_CALLS: Mapping[str, Mapping[str, str]] = LISTS["calls"]
"""Path after the index -> method -> kind of work or body.

``*`` is an id or a list of fields.
"""
_FIRST_PARTS = {path.partition("/")[0] for path in _CALLS}
"""First parts of paths without an index."""

_VENDOR = re.compile(r"(application/vnd\.elasticsearch)\+\w+( *; *compatible-with=\d+)")
"""A media type for a version of Elasticsearch."""


@dataclass(frozen=True)
class EngineRequest:
    """A call that may pass, as the engine is to see it."""

    record: Record
    method: str
    kind: str  # Kind of work, or of the body's grammar
    path: str  # In visible ASCII; for templates, that of the searches made of them
    indexes: Sequence[str]  # Names and patterns in the path
    name: str  # Id at the end of the path; "" for none
    parameters: Mapping[str, str]
    headers: Sequence[tuple[str, str]]
    body: bytes  # Without one, that of the parameter ``source``
    is_yaml: bool  # Whether the response is to be YAML
    deadline: float | None  # On the clock of ``time.perf_counter``; None is never

    @property
    def is_several(self) -> bool:
        """Whether the body has several searches."""
        return self.kind in ("searches", "templates")


class _Path(NamedTuple):
    """A path, taken apart."""

    first: str  # First part: names of indexes, or the first part of the call
    has_index: bool
    tail: list[str]  # Parts of the call


def read_call(
    request: Request,
    served: Sequence[str],
) -> EngineRequest:
    """Read a call without its body; raises RequestError if it does not pass."""
    record = request.state.record
    path = _read_path(request)
    kind, name = _kind_and_name(request, path)
    indexes: list[str] = []
    needs_index = kind in ("read", "options", "template")
    if path.has_index or (path.first and needs_index):
        indexes = readable(path.first.split(","), served)
    record.index = _served_name(indexes, served)
    parameters = _read_parameters(request)
    body = parameters.pop("source", "").encode()
    parameters.pop("source_content_type", "")
    headers: list[tuple[str, str]] = request.headers.items()
    accepted = parameters.get("format", "") + request.headers.get("accept", "")
    is_yaml = "yaml" in accepted
    if is_yaml:
        parameters.pop("format", "")
        headers = _with(headers, "accept", _json_type(request.headers))
    return EngineRequest(
        record=record,
        method=request.method,
        kind=kind,
        path=_engine_path(indexes, path.tail, kind),
        indexes=indexes,
        name=name,
        parameters=parameters,
        headers=headers,
        body=body,
        is_yaml=is_yaml,
        deadline=_deadline(request),
    )


def _raw_path(request: Request) -> str:
    scope = request.scope
    path = scope.get("raw_path") or scope["path"].encode()
    return str(path.decode("utf-8", "replace"))


def _read_path(request: Request) -> _Path:
    names = [unquote(part) for part in _raw_path(request).strip("/").split("/")]
    first = names[0]
    has_index = first not in _FIRST_PARTS
    if has_index or not first:
        return _Path(first, has_index, names[1:])
    return _Path(first, has_index, names)


def _kind_and_name(
    request: Request,
    path: _Path,
) -> tuple[str, str]:
    """Kind of a call, and the id at the end of its path; RequestError if refused."""
    pattern = "/".join([*path.tail[:-1], "*"])
    methods = _CALLS.get(pattern) or _CALLS.get("/".join(path.tail), {})
    kind = methods.get(request.method, "")
    if methods and request.method == "OPTIONS":
        kind = "read"
    name = ""
    if pattern in _CALLS:
        name = path.tail[-1]
    if not kind or name in (".", "..") or (path.has_index and kind == "known"):
        raise refused(f"{request.method} {_raw_path(request)[:100]}")
    return kind, name


def _served_name(indexes: Sequence[str], served: Sequence[str]) -> str:
    """The served pattern of the first index; metrics have these few names alone."""
    if indexes:
        for pattern in served:
            if matches(pattern, indexes[0]):
                return pattern
    return ""


def _read_parameters(request: Request) -> dict[str, str]:
    """The parameters of the path; RequestError for one that does not pass."""
    query = request.scope["query_string"].decode("utf-8", "replace")
    pairs = parse_qsl(query.replace(";", "&"), keep_blank_values=True)
    parameters = dict(pairs)
    for key in parameters.keys() - LISTS["parameters"]:
        raise refused(f"the parameter {key[:100]!r}")
    return parameters


def _engine_path(
    indexes: Sequence[str],
    tail: Sequence[str],
    kind: str,
) -> str:
    """The path for the engine, with its indexes; for a template, that of a search."""
    names: list[str] = []
    if indexes:
        names.append(quote(",".join(indexes), ",*:"))
    if kind.startswith("template"):
        tail = tail[:1]
    names += [quote(name, "*,") for name in tail]
    return f"/{'/'.join(names)}"


def _deadline(request: Request) -> float | None:
    with suppress(RequestError):  # The header may be meant for the engine.
        return deadline_of(request)
    return None


def with_body(call: EngineRequest, body: bytes) -> EngineRequest:
    """Return a call with its body.

    A missing type, or the type of an empty body, becomes that of the body which the
    call gets here. Elasticsearch wants one version, or none, in the types of body and
    response.
    """
    if not body.strip():
        body = call.body
    elif any(name == "content-type" for name, _ in call.headers):
        return replace(call, body=body)
    headers = _with(call.headers, "content-type", _json_type(dict(call.headers)))
    return replace(call, body=body, headers=headers)


def _with(
    headers: Headers,
    name: str,
    value: str,
) -> list[tuple[str, str]]:
    """Headers with another value of a name."""
    changed = [header for header in headers if header[0] != name]
    changed.append((name, value))
    return changed


def _json_type(headers: Mapping[str, str]) -> str:
    """The type of JSON, for the version of Elasticsearch that the caller accepts."""
    vendor = _VENDOR.fullmatch(headers.get("accept", "").strip())
    if vendor:
        return f"{vendor[1]}+json{vendor[2]}"
    return "application/json"
