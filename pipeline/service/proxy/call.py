"""A call to one of the engine's paths, in the form that the engine gets."""

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
"""The kind of each call that may pass, by its path after the index and its method.

In a path, ``*`` stands for an id or a list of fields.
"""
_FIRST_PARTS = {path.partition("/")[0] for path in _CALLS}
"""The first parts of paths that have no index."""

_VENDOR = re.compile(r"(application/vnd\.elasticsearch)\+\w+( *; *compatible-with=\d+)")
"""A media type that names a version of Elasticsearch."""


@dataclass(frozen=True)
class EngineRequest:
    """A call that may pass, in the form that the engine gets."""

    record: Record
    method: str
    kind: str  # What the call does, or which grammar its body has
    path: str  # In visible ASCII; for a template, the path of the search made from it
    indexes: Sequence[str]  # Names and patterns of indexes in the path
    name: str  # Id at the end of the path, or ""
    parameters: Mapping[str, str]
    headers: Sequence[tuple[str, str]]
    body: bytes  # The parameter ``source`` takes the place of an empty body
    is_yaml: bool  # Whether the caller wants YAML
    deadline: float | None  # On the clock of ``time.perf_counter``; None means never

    @property
    def is_several(self) -> bool:
        """Whether the body may have several searches."""
        return self.kind in ("searches", "templates")


class _Path(NamedTuple):
    """The parts of a path."""

    first: str  # Names of indexes, or the first part of the call
    has_index: bool
    tail: list[str]  # All parts of the call


def read_call(
    request: Request,
    served: Sequence[str],
) -> EngineRequest:
    """Read a call, still without its body.

    Also notes its index in the request's record. Raises RequestError if the call may
    not pass.
    """
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
    """Return (kind of a call, id at the end of its path or "").

    Raises RequestError if the call may not pass.
    """
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
    """Return the served pattern that covers the first index, or "" without an index.

    Metrics use it as a label, which therefore has only a few values.
    """
    if indexes:
        for pattern in served:
            if matches(pattern, indexes[0]):
                return pattern
    return ""


def _read_parameters(request: Request) -> dict[str, str]:
    """Return the parameters of the URL; raises RequestError if one may not pass."""
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
    """Return the path for the engine, with the indexes.

    For a template it is the path of the search that is made from it.
    """
    names: list[str] = []
    if indexes:
        names.append(quote(",".join(indexes), ",*:"))
    if kind.startswith("template"):
        tail = tail[:1]
    names += [quote(name, "*,") for name in tail]
    return f"/{'/'.join(names)}"


def _deadline(request: Request) -> float | None:
    with suppress(RequestError):  # The header may be meant for the engine
        return deadline_of(request)
    return None


def with_body(call: EngineRequest, body: bytes) -> EngineRequest:
    """Return a call with its body.

    If the header for the type is missing, or the body comes from the URL, the type is
    set to JSON. Elasticsearch requires the types of the request body and the response
    to name the same version, or neither to name one.
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
    """Return the headers with a new value for one name."""
    changed = [header for header in headers if header[0] != name]
    changed.append((name, value))
    return changed


def _json_type(headers: Mapping[str, str]) -> str:
    """Return the JSON type for the version of Elasticsearch that the caller accepts."""
    vendor = _VENDOR.fullmatch(headers.get("accept", "").strip())
    if vendor:
        return f"{vendor[1]}+json{vendor[2]}"
    return "application/json"
