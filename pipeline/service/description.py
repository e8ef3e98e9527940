"""The OpenAPI description of the service, and its page ``/docs``."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from pydantic import BaseModel, TypeAdapter

from pipeline.service.formats import PATHS

_TEMPLATE = "#/components/schemas/{model}"


def describe(
    information: Mapping[str, str], needs_key: bool, public: Container[str]
) -> dict[str, Any]:
    """The OpenAPI description.

    Args:
        information: path -> media type of the information about the service.
        needs_key: whether requests need a key.
        public: paths that need none.
    """
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for path, formats in PATHS.items():
        request = _content([wire.request for wire in formats], "validation", schemas)
        response = _content([wire.response for wire in formats], "serialization", schemas)
        error = _content([wire.error for wire in formats], "serialization", schemas)
        operation = {
            "summary": f"Scores: {', '.join(wire.name for wire in formats)}",
            "requestBody": {"required": True, "content": request},
            "responses": {
                "200": {"description": "Scores", "content": response},
                "default": {"description": "No scores", "content": error},
            },
        }
        paths[path] = {"post": operation}
    for path, kind in information.items():
        content = {kind: {"schema": {} if "json" in kind else {"type": "string"}}}
        responses = {"200": {"description": "Information", "content": content}}
        if needs_key and path not in public:
            responses["401"] = {"description": "No key"}
        paths[path] = {"get": {"responses": responses}}
        if needs_key and path in public:
            paths[path]["get"]["security"] = []
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "tweetrerank", "version": version("tweetrerank")},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if needs_key:
        bearer = {"type": "http", "scheme": "bearer"}
        description["components"]["securitySchemes"] = {"key": bearer}
        description["security"] = [{"key": []}]
    return description


def _content(kinds: Sequence[Any], mode: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """A body of one of some types, whose schemas are put into ``schemas``."""
    choices = []
    for kind in kinds:
        schema = TypeAdapter(kind).json_schema(mode=mode, ref_template=_TEMPLATE)
        schemas.update(schema.pop("$defs", {}))
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            schemas[kind.__name__] = schema
            schema = {"$ref": _TEMPLATE.format(model=kind.__name__)}
        choices.append(schema)
    return {"application/json": {"schema": choices[0] if len(choices) == 1 else {"anyOf": choices}}}


def page(description: Mapping[str, Any]) -> str:
    """The description as HTML; it needs nothing from other hosts."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "page"), autoescape=True
    )
    return templates.get_template("docs.html").render(description)
