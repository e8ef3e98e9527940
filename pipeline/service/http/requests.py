"""From a request's body to what it wants: JSON, format, types, limits."""

from __future__ import annotations

import re
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from pipeline.service.formats import format_of
from pipeline.service.formats.base import Ask, Document, Format
from pipeline.service.http.errors import Fault, Place, path_of

# Escapes from left to right, so that an escaped backslash before a "u" is none of them.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_BRANCHES = {"str", Document.__name__, f"list[union[str,{Document.__name__}]]", "list[str]"}
"""Parts of a place that name the branch of a union."""


def read_json(body: bytes) -> dict[str, Any]:
    """The object of a body. Halves of surrogate pairs, which cut posts have, become U+FFFD.

    Raises:
        Fault: it is no JSON object.
    """
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        whole = _ESCAPE.sub(lambda m: rb"\ufffd" if m[1] else m[0], body)
        if whole == body:
            raise Fault("json", f"found no JSON in the body: {error}") from None
        try:
            found = orjson.loads(whole)
        except orjson.JSONDecodeError as later:
            raise Fault("json", f"found no JSON in the body: {later}") from None
    if not isinstance(found, dict):
        raise Fault("json", f"found {_named(found)} as the body, expected an object")
    return found


def read(content: dict[str, Any], wire: Format, most: int) -> Ask:
    """What a request wants, checked.

    Raises:
        Fault: a field is missing, or has a wrong type, or there are no or too many documents.
    """
    try:
        request: BaseModel = wire.request.model_validate(content)
    except ValidationError as error:
        raise _fault_of(error) from None
    ask = wire.read(request)
    name = "texts" if "texts" in wire.request.model_fields else "documents"
    if not ask.texts:
        raise Fault("empty", "found no documents, expected at least one", (name,))
    if len(ask.texts) > most:
        problem = f"found {len(ask.texts)} documents, expected at most {most}"
        raise Fault("many", problem, (name,))
    return ask


def format_for(path: str, content: dict[str, Any]) -> Format:
    """The format of a request; null fields count as missing."""
    return format_of(path, {key for key, value in content.items() if value is not None})


def _fault_of(error: ValidationError) -> Fault:
    """The first fault, and the places of a few more."""
    places: dict[Place, tuple[str, Any]] = {}
    for one in error.errors(include_url=False, include_context=False):
        place: Place = tuple(part for part in one["loc"] if part not in _BRANCHES)
        # An object that is no document fails as a string too: the deeper place says more.
        shorter = [known for known in places if place[: len(known)] == known]
        for known in shorter:
            if known != place:
                del places[known]
        if not any(known[: len(place)] == place for known in places):
            places[place] = one["msg"], one["input"]
        elif place in places and place in shorter:
            places[place] = "expected a string or an object with text", one["input"]
    (place, (message, value)), *others = places.items()
    message = message.removeprefix("Value error, ")
    expected = message if message.startswith("expected") else message[0].lower() + message[1:]
    missing = message == "Field required"
    text = "found no value, expected one" if missing else f"found {_named(value)}: {expected}"
    if others:
        text += f" (and {len(others)} more: {', '.join(path_of(p) for p, _ in others[:3])})"
    return Fault("value", text, place)


def _named(value: object) -> str:
    """The JSON type of a value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)[:30]
    names = {str: "a string", dict: "an object", list: "an array", bool: "a boolean"}
    return names.get(type(value), "null")
