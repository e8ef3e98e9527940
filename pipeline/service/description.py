"""The OpenAPI description of the service, and its page ``/docs``."""

from __future__ import annotations

from collections.abc import Container, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from orjson import Fragment, dumps, loads
from pydantic import BaseModel

from pipeline.service.errors import RequestError
from pipeline.service.formats import PATHS
from pipeline.service.formats.base import ScoreRequest, ScoreResponse
from pipeline.service.record import Record

JSON = "application/json"

_REFERENCE = "#/components/schemas/{model}"

_EXAMPLE = ScoreResponse(
    ScoreRequest(["storm warning"], ["stay inside", "gale warning for the coast"], ["", ""]),
    *("mp_hcnn", "neural", [Fragment("1.074234807e-04"), Fragment("0.058381889407")], [1, 0]),
)


def describe(
    information: Mapping[str, str], needs_key: bool, public: Container[str]
) -> dict[str, Any]:
    """The OpenAPI description: schemas of requests, examples of responses.

    Args:
        information: path -> media type of the information about the service.
        needs_key: whether requests need a key.
        public: paths that need none.
    """
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for path, formats in PATHS.items():
        record = Record("d707abd0ea0f459dbe5f514114285f52", "POST", path, words=9)
        empty = RequestError("empty", "found no documents, expected at least one", ("documents",))
        examples = {wire.name: wire.write(_EXAMPLE, record) for wire in formats}
        errors = {wire.name: wire.explain(empty, record.request_id) for wire in formats}
        schema = {"anyOf": [_reference(wire.request, schemas) for wire in formats]}
        operation = {
            "summary": f"Scores: {', '.join(examples)}",
            "requestBody": {"required": True, "content": {JSON: {"schema": schema}}},
            "responses": {"200": _shown("Scores", examples), "default": _shown("Error", errors)},
        }
        paths[path] = {"post": operation}
    for path, kind in information.items():
        content = {kind: {"schema": {} if kind == JSON else {"type": "string"}}}
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


def _reference(model: type[BaseModel], schemas: dict[str, Any]) -> dict[str, Any]:
    """A reference to the schema of a model, which is put into ``schemas`` with its parts."""
    schema = model.model_json_schema(ref_template=_REFERENCE)
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
    return {"$ref": _REFERENCE.format(model=model.__name__)}


def _shown(description: str, examples: Mapping[str, Any]) -> dict[str, Any]:
    """A response with an example for each format."""
    values = {name: {"value": loads(dumps(content))} for name, content in examples.items()}
    return {"description": description, "content": {JSON: {"examples": values}}}


def page(description: Mapping[str, Any]) -> str:
    """The description as HTML; it needs nothing from other hosts."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "page"), autoescape=True
    )
    return templates.get_template("docs.html").render(description)
