"""Finds values in JSON by paths, as the engines' mappings name fields."""

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]


def object_or_empty(value: Any) -> Json:
    """Return the value if it is an object, else {}."""
    if isinstance(value, dict):
        return value
    return {}


def as_list(value: Any) -> list[Any]:
    """Return the value if it is a list, else a list with this value."""
    if isinstance(value, list):
        return value
    return [value]


def values_at(value: Any, path: str) -> Iterator[Any]:
    """Yield the values at a path, which consists of names joined by dots.

    Names may contain dots themselves. The path may name an item of a list by its place;
    otherwise it goes into all items.
    """
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from values_at({str(place): item}, path)
            yield from values_at(item, path)
    for name in sorted(object_or_empty(value), key=len):
        if path == name:
            yield value[name]
        elif path.startswith(f"{name}."):
            yield from values_at(value[name], path[len(name) + 1 :])
