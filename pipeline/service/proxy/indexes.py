"""The indexes that searches may read: names and patterns within those that are served."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pipeline.service.errors import RequestError

_RESERVED = tuple("._-+<")
"""First characters of system indexes, ``_all``, exclusions and names computed from a date."""

_NO_NAME = re.compile(r'[\x00-\x20\x7f"#,/<>?\\|]')

_MOST_NAMES, _LONGEST_NAME = 1000, 255


def readable(names: Iterable[str], served: Sequence[str]) -> list[str]:
    """Names and patterns as the engine is to read them; raises RequestError for others, or none."""
    wanted = [name.strip() for name in names] or [""]
    if len(wanted) > _MOST_NAMES:
        problem = f"found {len(wanted):,} indexes, expected at most {_MOST_NAMES:,}"
        raise RequestError("index", problem)
    for name in wanted:
        # Those of a remote cluster have a colon.
        inside = [p for p in served if matches(p, name) and (":" in p or ":" not in name)]
        is_name = 0 < len(name) <= _LONGEST_NAME and not _NO_NAME.search(name)
        if not is_name or name.startswith(_RESERVED) or not inside:
            problem = f"found the index {name[:100]!r}, expected one of {', '.join(served)}"
            raise RequestError("index", problem)
    # Patterns from their first character on may mean system indexes, too.
    return [*wanted, "-.*"] if any(name.startswith("*") for name in wanted) else wanted


def served_by(name: str, served: Sequence[str]) -> str:
    """The served name or pattern that a name is within: metrics have few of them."""
    return next((pattern for pattern in served if matches(pattern, name.strip())), "")


def matches(pattern: str, name: str) -> bool:
    """Whether a name has the form of a pattern, in which ``*`` is any text; in linear time.

    For a name that is a pattern itself: whether all names of its form have that of the first one.
    """
    first, *parts = pattern.split("*")
    if not parts:
        return pattern == name
    last = parts.pop()
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in parts:
        # The first place of a part leaves most of the name for the others.
        if (at := name.find(part, at, end)) < 0:
            return False
        at += len(part)
    return True
