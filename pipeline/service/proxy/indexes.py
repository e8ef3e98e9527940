"""The indexes that searches may read: names and patterns within those that are served."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pipeline.service.errors import RequestError

_RESERVED = tuple("._-+<")
"""First characters of system indexes, ``_all``, exclusions and names computed from a date."""

_KEYS = ("index", "_index", "target_index")
_LOOKUP = frozenset(("id", "_id", "path", "query", "target_index"))
"""Keys beside the name of another index whose posts a query, or a runtime field, looks up."""


def readable(names: Iterable[str], served: Sequence[str]) -> list[str]:
    """Names and patterns as the engine is to read them; raises RequestError for others."""
    wanted = [name.strip() for name in names] or ["_all"]
    for name in wanted:
        # Those of a remote cluster have a colon.
        inside = [p for p in served if matches(p, name) and (":" in p or ":" not in name)]
        if not name or name.startswith(_RESERVED) or not inside:
            problem = f"found the index {name[:100]!r}, expected one of {', '.join(served)}"
            raise RequestError("index", problem)
    # Patterns from their first character on may mean system indexes, too.
    return [*wanted, "-.*"] if any(name.startswith("*") for name in wanted) else wanted


def served_by(name: str, served: Sequence[str]) -> str:
    """The served name or pattern that a name is within: metrics have few of them."""
    return next((pattern for pattern in served if matches(pattern, name.strip())), "")


def looked_up(value: Any) -> Iterator[str]:
    """Names of indexes inside a search, from which it looks up terms, shapes or fields."""
    if isinstance(value, list):
        for item in value:
            yield from looked_up(item)
    elif isinstance(value, dict):
        if _LOOKUP & value.keys():
            yield from (name for key in _KEYS if isinstance(name := value.get(key), str))
        for item in value.values():
            yield from looked_up(item)


def matches(pattern: str, name: str) -> bool:
    """Whether a name has the form of a pattern, in which ``*`` is any text.

    Of a name that is a pattern itself: whether all names of its form have that of the first one.
    """
    parts = re.split(r"\*+", pattern)
    return re.fullmatch(".*".join(map(re.escape, parts)), name, re.DOTALL) is not None
