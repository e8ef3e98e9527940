"""The OpenAPI description of the service, and its page ``/docs``."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, FileSystemLoader
from orjson import Fragment, dumps, loads
from pydantic import BaseModel

from pipeline.service.errors import RequestError
from pipeline.service.formats import PATHS
from pipeline.service.formats.base import Format, ScoreRequest, ScoreResponse
from pipeline.service.record import Record

JSON = "application/json"

PROBES = ("/health", "/ping", "/ready")

_REFERENCE = "#/components/schemas/{model}"

_HEADERS = {
    "x-request-id": "of the request, or made here",
    "x-mix": "what the scores are: neural, interpolated or lexical",
    "x-truncated-documents": "cut as the request says",
    "x-split-documents": "long ones, of which the best passage was read",
    "x-total-time": "milliseconds",
    "x-queue-time": "milliseconds",
    "x-inference-time": "milliseconds",
    "x-compute-tokens": "words of query and documents",
}

_ERRORS = {
    "json": "found no JSON in the body",
    "empty": "found no documents, expected at least one",
    "many": "found 2001 documents, expected at most 2000",
    "value": "found a number, expected a list",
    "key": "found no known key, expected `Authorization: Bearer KEY`",
    "model": "found the model 'other', expected one of window",
    "slow_body": "found no whole body after 30 s",
    "body": "found a body of more than 8000000 bytes, expected at most that",
    "media": "found the encoding 'br' of the body, expected gzip or none",
    "overload": "too many requests are waiting",
    "internal": "an internal error",
    "deadline": "the deadline of the request is past",
}
"""Kind of an error of a request for scores -> an example."""

_LOCATED = ("empty", "many", "value")  # Kinds that have the place of a value

_EXAMPLE = ScoreResponse(
    ScoreRequest(["storm warning"], ["stay inside", "gale warning for the coast"], ["", ""]),
    *("window", "neural", [Fragment("0.002936716573"), Fragment("0.181576294144")], [1, 0]),
)


def describe(
    information: Mapping[str, str],
    needs_key: bool,
    public: Container[str],
    of_engine: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> dict[str, Any]:
    """The OpenAPI description: schemas of requests, and of responses by their examples.

    ``information`` has the media type of each path, ``of_engine`` the methods of the engine's.
    """
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    # POST / is the same as /rerank; the page, which answers GET there, is none of the interface.
    for path, formats in PATHS.items():
        if path == "/":
            continue
        record = Record("d707abd0ea0f459dbe5f514114285f52", "POST", path, words=9)
        examples = {wire.name: wire.write(_EXAMPLE, record) for wire in formats}
        schema = {"anyOf": [_reference(wire.request, schemas) for wire in formats]}
        operation = {
            "summary": f"Scores: {', '.join(examples)}",
            "requestBody": {"required": True, "content": {JSON: {"schema": schema}}},
            "responses": {
                "200": _shown("Scores", examples) | {"headers": _headers(record)},
                **_errors(formats, record, needs_key),
            },
        }
        paths[path] = {"post": operation}
    for path, kind in information.items():
        content = {kind: {"schema": {} if kind == JSON else {"type": "string"}}}
        responses = {"200": {"description": "Information", "content": content}}
        responses |= {"503": {"description": "Not now"}} if path in PROBES else {}
        if needs_key and path not in public:
            responses["401"] = {"description": "No key"}
        paths.setdefault(path, {})["get"] = {"responses": responses}
        if needs_key and path in public:
            paths[path]["get"]["security"] = []
    for path, methods in of_engine.items():
        own = paths.setdefault(path.replace(":path", ""), {})
        own |= {method.lower(): _of_engine(path) for method in methods}
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
    values = {name: loads(dumps(content)) for name, content in examples.items()}
    schemas: list[Any] = []
    for value in values.values():
        if (schema := _schema(value)) not in schemas:
            schemas.append(schema)
    content = {
        "schema": {"anyOf": schemas},
        "examples": {name: {"value": value} for name, value in values.items()},
    }
    return {"description": description, "content": {JSON: content}}


def _schema(value: Any) -> dict[str, Any]:
    """The schema of all values with the members and types of this one."""
    if isinstance(value, dict):
        properties = {name: _schema(inner) for name, inner in value.items()}
        return {"type": "object", "properties": properties, "required": list(value)}
    if isinstance(value, list):
        is_of_objects = bool(value) and isinstance(value[0], dict)
        return {"type": "array"} | ({"items": _schema(value[0])} if is_of_objects else {})
    kinds = {str: "string", int: "integer", float: "number", bool: "boolean"}
    return {"type": kinds[type(value)]} if value is not None else {}


def _errors(formats: Sequence[Format], record: Record, needs_key: bool) -> dict[str, Any]:
    """Status -> response, of the errors of a request for scores."""
    examples: dict[str, dict[str, Any]] = {}
    for kind, message in _ERRORS.items():
        for wire in formats if needs_key or kind != "key" else ():
            error = RequestError(kind, message, (wire.documents,) if kind in _LOCATED else ())
            content = wire.explain(error, record.request_id)
            status = str(wire.status(error))
            examples.setdefault(status, {})[f"{wire.name}: {kind}"] = content
    return {
        status: _shown(HTTPStatus(int(status)).phrase, of_status)
        for status, of_status in sorted(examples.items())
    }


def _headers(record: Record) -> dict[str, Any]:
    names = ("x-request-id", "x-mix", *record.headers())
    return {
        name: {"description": _HEADERS.get(name, ""), "schema": {"type": "string"}}
        for name in names
    }


def _of_engine(path: str) -> dict[str, Any]:
    """An operation that the search engine answers."""
    is_search = path.endswith(("_search", "_msearch"))
    summary = "The engine's search, reranked" if is_search else "The engine's own"
    marks = {"x-reranked": {"schema": {"type": "string", "enum": ["true", "false"]}}}
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": "As the engine's"} | ({"headers": marks} if is_search else {}),
            "default": {"description": "An error in the engine's form"},
        },
        "security": [],
    }
    if "{index" in path:
        schema = {"type": "string"}
        index = {"name": "index", "in": "path", "required": True, "schema": schema}
        operation["parameters"] = [index]
    return operation


def page(description: Mapping[str, Any]) -> str:
    """The description as HTML; it needs nothing from other hosts."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "page"), autoescape=True
    )
    return templates.get_template("docs.html").render(description)
