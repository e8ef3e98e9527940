"""The calls, indexes and searches that may pass, by the lists in ``allowed.json``.

Its words are those of OpenSearch 2 and 3 and Elasticsearch 8 and 9 that neither write, nor read
indexes that are not checked here, nor run what an administrator has stored; others are refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from cachetools import LRUCache

from pipeline.service.errors import RequestError
from pipeline.service.record import Record

Json = dict[str, Any]

DEPTH = 100  # Levels of objects and lists in a body
ELEMENTS = 100_000  # Values in it; a `terms` query may have 65,536
_KNOWN = 100_000  # Ids that are remembered

LISTS = json.loads((Path(__file__).parent / "allowed.json").read_text(encoding="utf-8"))


def names_of(listed: str | list[str]) -> list[str]:
    """The names in a list of ``allowed.json``."""
    return (listed if isinstance(listed, str) else " ".join(listed)).split()


_CALLS: Mapping[str, Mapping[str, str]] = {
    tail: dict(method.split(":") for method in methods.split())
    for tail, methods in LISTS["calls"].items()
}
"""Path after the index -> method -> kind of work; ``*`` is an id or a list of fields."""

_FIRST = {tail.partition("/")[0] for tail in _CALLS}
_PARAMETERS = frozenset((*names_of(LISTS["parameters"]), "source", "source_content_type"))

_PARTS: Mapping[str, Mapping[str, str]] = {
    part: {key: inner for inner, keys in of_keys.items() for key in names_of(keys)}
    for part, of_keys in LISTS["parts"].items()
}
"""Part of a search -> its keys, each with the part that its value is; ``*`` is any other key.

A list has the part of its items, and plain values may stand everywhere.
"""


def refused(found: str) -> RequestError:
    """The error for a call or a search that does not pass."""
    return RequestError("refused", f"found {found}, which does not pass here; ask the engine")


# --- Calls and indexes ----------------------------------------------------------------------------


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
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    deadline: float | None = None  # On the clock of ``time.perf_counter``; None is never

    @property
    def is_several(self) -> bool:
        """Whether the body has several searches."""
        return self.kind in ("searches", "templates")


def read_call(
    record: Record, method: str, path: str, query: str, served: Sequence[str]
) -> EngineRequest:
    """A call by its path, which is still quoted; raises RequestError if it does not pass."""
    first, *rest = (unquote(part) for part in path.strip("/").split("/"))
    has_index = first not in _FIRST
    tail = rest if has_index or not first else [first, *rest]
    pattern = "/".join((*tail[:-1], "*"))
    methods = _CALLS.get(pattern) or _CALLS.get("/".join(tail), {})
    kind = "read" if methods and method == "OPTIONS" else methods.get(method, "")
    name = tail[-1] if pattern in _CALLS else ""
    if not kind or name in (".", "..") or (has_index and kind == "known"):
        raise refused(f"{method} {path[:100]}")
    needs_index = kind in ("read", "query", "template", "open")
    indexes = readable(first.split(","), served) if has_index or (first and needs_index) else []
    parameters = dict(parse_qsl(query.replace(";", "&"), keep_blank_values=True))
    for key in parameters.keys() - _PARAMETERS:
        raise refused(f"the parameter {key[:100]!r}")
    parts = [quote(",".join(indexes), ",*:")] if indexes else []
    parts += [quote(part, "*,") for part in (tail[:1] if kind.startswith("template") else tail)]
    # Metrics have few names: those that are served.
    record.index = next((p for n in indexes[:1] for p in served if matches(p, n)), "")
    return EngineRequest(record, method, kind, f"/{'/'.join(parts)}", indexes, name, parameters)


_RESERVED = tuple("._-+<")
"""First characters of system indexes, ``_all``, exclusions and names computed from a date."""

_NAME = re.compile(r'[^\x00-\x20\x7f"#,/<>?\\|]{1,255}')
_MOST_NAMES = 1000


def readable(names: Iterable[str], served: Sequence[str]) -> list[str]:
    """Names and patterns as the engine is to read them; raises RequestError for others, or none."""
    wanted = [name.strip() for name in names] or [""]
    if len(wanted) > _MOST_NAMES:
        problem = f"found {len(wanted):,} indexes, expected at most {_MOST_NAMES:,}"
        raise RequestError("index", problem)
    for name in wanted:
        # Those of a remote cluster have a colon.
        inside = [p for p in served if matches(p, name) and (":" in p or ":" not in name)]
        if not _NAME.fullmatch(name) or name.startswith(_RESERVED) or not inside:
            problem = f"found the index {name[:100]!r}, expected one of {', '.join(served)}"
            raise RequestError("index", problem)
    # Patterns from their first character on may mean system indexes, too.
    return [*wanted, "-.*"] if any(name.startswith("*") for name in wanted) else wanted


def matches(pattern: str, name: str) -> bool:
    """Whether a name has the form of a pattern, in which ``*`` is any text; in linear time.

    For a name that is a pattern itself: whether all names of its form have that of the first one.
    """
    first, *parts = pattern.split("*")
    if not parts:
        return pattern == name
    at, end = len(first), len(name) - len(parts[-1])
    if at > end or not name.startswith(first) or not name.endswith(parts.pop()):
        return False
    for part in parts:
        # The first place of a part leaves most of the name for the others.
        if (at := name.find(part, at, end)) < 0:
            return False
        at += len(part)
    return True


# --- Bodies ---------------------------------------------------------------------------------------


def strict(body: bytes) -> Json:
    """A JSON object of a bounded size in which no key is twice; raises RequestError for others."""
    if (elements := sum(map(body.count, (b",", b"[", b"{"))) + 1) > ELEMENTS:
        problem = f"found up to {elements:,} values in the body, expected at most {ELEMENTS:,}"
        raise RequestError("many", problem)

    def unique(pairs: list[tuple[str, Any]]) -> Json:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key is there twice")
        return dict(pairs)

    def refuse(constant: str) -> Any:
        raise ValueError(f"found {constant}")

    try:
        content = json.loads(body.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
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
    """Decides whether a body may pass; ``served`` are names and patterns of indexes.

    It knows the ids of scrolls, points in time and asynchronous searches that went out here.
    """

    def __init__(self, served: Sequence[str]) -> None:
        self._served, self._known = served, LRUCache[bytes, bool](_KNOWN)

    def remember(self, name: Any) -> None:
        """Let an id, by which a search goes on, come back."""
        if isinstance(name, str):
            self._known[_digest(name)] = True

    def check_ids(self, *values: Any) -> None:
        """Raise RequestError unless these are ids, or lists of ids, that went out; or for none."""
        lists = [value if isinstance(value, list) else [value] for value in values if value]
        names = [part for given in lists for name in given for part in str(name).split(",")]
        if not names or not all(_digest(name) in self._known for name in names):
            raise refused("no id of a search that goes on, or one that did not go out here")

    def check(self, content: Any, part: str = "options") -> None:
        """Raise RequestError unless all of a search, or of another body, is allowed."""
        self._walk(part, content, "the body", 1)

    def _walk(self, part: str, value: Any, inside: str, depth: int) -> None:
        if depth > DEPTH:
            problem = f"found more than {DEPTH} levels in the body, expected at most that"
            raise RequestError("many", problem)
        if isinstance(value, list):
            part = "query" if part == "filters" else part
            for item in value:
                self._walk(part, item, inside, depth + 1)
        elif not isinstance(value, dict):
            if part == "pit":
                self.check_ids(value)
            elif part == "index":
                if "*" in str(value) or "," in str(value):
                    raise refused(f"{str(value)[:100]!r} where a look-up names an index")
                readable([str(value)], self._served)
        elif part == "indices_boost":
            readable(value, self._served)
        else:
            if part == "knn":  # Options, or options by field.
                part = "options" if isinstance(value.get("field"), str) else "names"
            if part == "lookup" and not value.get("index"):
                raise refused(f"a look-up in {inside} without an index")
            keys = _PARTS[part]
            for key, item in value.items():
                if (inner := keys.get(key) or keys.get("*")) is None:
                    raise refused(f"the key {key[:100]!r} in {inside}")
                self._walk(inner, item, key[:100], depth + 1)


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=16).digest()
