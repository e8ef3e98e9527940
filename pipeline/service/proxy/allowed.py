"""The calls, indexes and searches that may pass, by the lists in ``allowed.json``.

Its words are those of OpenSearch 2 and 3 and Elasticsearch 8 and 9 that neither write, nor read
indexes that are not checked here, nor run what an administrator has stored; others are refused.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from cachetools import LRUCache
from starlette.requests import Request

from tweetrerank.pipeline.service.limits import deadline_of
from tweetrerank.pipeline.service.request_record import Record
from tweetrerank.pipeline.service.service_errors import RequestError

Json = dict[str, Any]

DEPTH = 100  # Levels of objects and lists in a body
ELEMENTS = 100_000  # Values in it; a `terms` query may have 65,536
_KNOWN = 100_000  # Ids that are remembered
_MOST_NAMES = 1000  # Of indexes
_VENDOR = re.compile(r"(application/vnd\.elasticsearch)\+\w+( *; *compatible-with=\d+)")
"""A media type for a version of Elasticsearch."""


def _inverted(part: Json) -> Json:
    """Key -> words, inverted to word -> key where no value is an object."""
    words = {
        key: v
        if isinstance(v, dict)
        else " ".join([v] if isinstance(v, str) else v).split()
        for key, v in part.items()
    }
    if any(isinstance(v, dict) for v in words.values()):
        return words
    return {word: key for key, listed in words.items() for word in listed}


LISTS = json.loads(
    Path(__file__).with_name("allowed.json").read_bytes(), object_hook=_inverted
)
_CALLS: Mapping[str, Mapping[str, str]] = LISTS["calls"]
"""Path after the index -> method -> kind of work or body; ``*`` is an id or a list of fields."""
_FIRST = {tail.partition("/")[0] for tail in _CALLS}
_PARTS: Mapping[str, Mapping[str, str]] = LISTS["parts"]
"""Part of a search -> its keys, each with the part that its value is; ``*`` is any other key. A
list has the part of its items, and plain values may stand everywhere."""


def refused(found: str) -> RequestError:
    """The error for a call or a search that does not pass."""
    return RequestError(
        "refused", f"found {found}, which does not pass here; ask the engine"
    )


@dataclass(frozen=True)
class EngineRequest:
    """A call that may pass, as the engine is to see it."""

    record: Record
    method: str
    kind: str
    path: str  # In visible ASCII; for templates, that of the searches made of them
    indexes: Sequence[str]  # Names and patterns in the path
    name: str  # Id at the end of the path; "" for none
    parameters: Mapping[str, str]
    headers: Sequence[tuple[str, str]]
    body: bytes  # Else that of the parameter ``source``
    is_yaml: bool  # Whether the response is to be YAML
    deadline: float | None  # On the clock of ``time.perf_counter``; None is never

    @property
    def is_several(self) -> bool:
        """Whether the body has several searches."""
        return self.kind in ("searches", "templates")


def read_call(request: Request, served: Sequence[str]) -> EngineRequest:
    """A call without its body; raises RequestError if it does not pass."""
    scope, record, method = request.scope, request.state.record, request.method
    path = (scope.get("raw_path") or scope["path"].encode()).decode("utf-8", "replace")
    first, *rest = (unquote(part) for part in path.strip("/").split("/"))
    has_index = first not in _FIRST
    tail = rest if has_index or not first else [first, *rest]
    pattern = "/".join((*tail[:-1], "*"))
    methods = _CALLS.get(pattern) or _CALLS.get("/".join(tail), {})
    kind = "read" if methods and method == "OPTIONS" else methods.get(method, "")
    name = tail[-1] if pattern in _CALLS else ""
    if not kind or name in (".", "..") or (has_index and kind == "known"):
        raise refused(f"{method} {path[:100]}")
    needs_index = kind in ("read", "options", "template")
    indexes = (
        readable(first.split(","), served)
        if has_index or (first and needs_index)
        else []
    )
    # Metrics have few names: those that are served.
    record.index = next((p for p in served if indexes and matches(p, indexes[0])), "")
    query = scope["query_string"].decode("utf-8", "replace").replace(";", "&")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    for key in parameters.keys() - LISTS["parameters"]:
        raise refused(f"the parameter {key[:100]!r}")
    body, headers = parameters.pop("source", "").encode(), request.headers.items()
    parameters.pop("source_content_type", "")
    if is_yaml := "yaml" in parameters.get("format", "") + request.headers.get(
        "accept", ""
    ):
        parameters.pop("format", "")
        headers = _with(headers, "accept", _json_type(request.headers))
    parts = [quote(",".join(indexes), ",*:")] if indexes else []
    parts += [
        quote(part, "*,")
        for part in (tail[:1] if kind.startswith("template") else tail)
    ]
    call = (
        record,
        method,
        kind,
        f"/{'/'.join(parts)}",
        indexes,
        name,
        parameters,
        headers,
    )
    deadline = None
    with suppress(RequestError):  # The header may be meant for the engine.
        deadline = deadline_of(request)
    return EngineRequest(*call, body, is_yaml, deadline)


def with_body(call: EngineRequest, body: bytes) -> EngineRequest:
    """A call with its body. A type that is missing, or of no body, is that of the body which it
    gets here: Elasticsearch wants one version, or none, in the types of body and response."""
    if not body.strip():
        body = call.body
    elif any(name == "content-type" for name, _ in call.headers):
        return replace(call, body=body)
    headers = _with(call.headers, "content-type", _json_type(dict(call.headers)))
    return replace(call, body=body, headers=headers)


def _with(
    headers: Iterable[tuple[str, str]], name: str, value: str
) -> list[tuple[str, str]]:
    """Headers with another value of one."""
    return [*((n, v) for n, v in headers if n != name), (name, value)]


def _json_type(headers: Mapping[str, str]) -> str:
    """The type of JSON, for the version of Elasticsearch that a response is accepted from."""
    vendor = _VENDOR.fullmatch(headers.get("accept", "").strip())
    return f"{vendor[1]}+json{vendor[2]}" if vendor else "application/json"


_NAME = re.compile(r'(?![._\-+])[^\x00-\x20\x7f"#,/<>?\\|]{1,255}')
"""Not those of system indexes, ``_all``, exclusions, and names computed from a date."""


def readable(names: Iterable[str], served: Sequence[str]) -> list[str]:
    """Names and patterns as the engine is to read them; raises RequestError for others, or none."""
    wanted = [name.strip() for name in names] or [""]
    if len(wanted) > _MOST_NAMES:
        problem = f"found {len(wanted):,} indexes, expected at most {_MOST_NAMES:,}"
        raise RequestError("index", problem)
    for name in wanted:
        # Those of a remote cluster have a colon.
        inside = any(matches(p, name) and (":" in p or ":" not in name) for p in served)
        if not _NAME.fullmatch(name) or not inside:
            problem = (
                f"found the index {name[:100]!r}, expected one of {', '.join(served)}"
            )
            raise RequestError("index", problem)
    # Patterns from their first character on may mean system indexes, too.
    return [*wanted, "-.*"] if any(name.startswith("*") for name in wanted) else wanted


def matches(pattern: str, name: str) -> bool:
    """Whether a name has the form of a pattern, in which ``*`` is any text; in linear time. For a
    name that is a pattern itself: whether all names of its form have that of the first one."""
    first, *parts = pattern.split("*")
    if not parts:
        return pattern == name
    at, end = len(first), len(name) - len(last := parts.pop())
    for part in parts:
        # The first place of a part leaves most of the name for the others.
        at = found + len(part) if (found := name.find(part, at, end)) >= 0 else end + 1
    return at <= end and name.startswith(first) and name.endswith(last)


def strict(body: bytes) -> Json:
    """A JSON object of a bounded size in which no key is twice; raises RequestError for others."""
    if (elements := sum(map(body.count, (b",", b"[", b"{"))) + 1) > ELEMENTS:
        problem = f"found up to {elements:,} values in the body, expected at most {ELEMENTS:,}"
        raise RequestError("many", problem)

    def unique(pairs: list[tuple[str, Any]]) -> Json:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key is there twice")
        return dict(pairs)

    try:
        # NaN and Infinity are no whole numbers, which is a ValueError, too.
        content = json.loads(
            body.decode("utf-8"), object_pairs_hook=unique, parse_constant=int
        )
        if not isinstance(content, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as error:
        problem = f"found no JSON object that can be read: {str(error)[:200]}"
        raise RequestError("json", problem) from None
    return content


def dumped(content: Any) -> bytes:
    """JSON in ASCII without blanks."""
    return json.dumps(content, separators=(",", ":")).encode()


class Grammar:
    """Decides whether a body may pass; ``served`` are names and patterns of indexes. It knows the
    ids of scrolls, points in time and asynchronous searches that went out here."""

    def __init__(self, served: Sequence[str]) -> None:
        self._served, self._known = served, LRUCache[bytes, bool](_KNOWN)

    def remember(self, members: Mapping[str, Any]) -> None:
        """Let the ids among a response's members, by which a search goes on, come back."""
        for key in ("id", "pit_id", "_scroll_id"):
            if isinstance(name := json.loads(bytes(members.get(key, b"null"))), str):
                self._known[_digest(name)] = True

    def check_ids(self, *values: Any) -> None:
        """Raise RequestError unless these are ids, or lists of ids, that went out; or for none."""
        lists = [
            value if isinstance(value, list) else [value] for value in values if value
        ]
        names = [
            part for given in lists for name in given for part in str(name).split(",")
        ]
        if not names or not all(_digest(name) in self._known for name in names):
            raise refused(
                "no id of a search that goes on, or one that did not go out here"
            )

    def check(
        self,
        value: Any,
        part: str = "options",
        inside: str = "the body",
        depth: int = 1,
    ) -> None:
        """Raise RequestError unless all of a search, or of another part, is allowed."""
        if depth > DEPTH:
            problem = (
                f"found more than {DEPTH} levels in the body, expected at most that"
            )
            raise RequestError("many", problem)
        if isinstance(value, list):
            part = "query" if part == "filters" else part
            for item in value:
                self.check(item, part, inside, depth + 1)
        elif not isinstance(value, dict):
            if part == "pit":
                self.check_ids(value)
            elif part == "index":
                if "*" in str(value) or "," in str(value):
                    raise refused(
                        f"{str(value)[:100]!r} where a look-up names an index"
                    )
                readable([str(value)], self._served)
        elif part == "indices_boost":
            readable(value, self._served)
        else:
            if part == "knn":  # Options, or options by field.
                part = "options" if isinstance(value.get("field"), str) else "names"
            if part == "lookup" and not value.get("index"):
                raise refused(f"a look-up in {inside} without an index")
            for key, item in value.items():
                if (inner := _PARTS[part].get(key) or _PARTS[part].get("*")) is None:
                    raise refused(f"the key {key[:100]!r} in {inside}")
                self.check(item, inner, key[:100], depth + 1)


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=16).digest()
