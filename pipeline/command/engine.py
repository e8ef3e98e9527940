"""Options that name an index in OpenSearch or Elasticsearch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from indexes.engines.address import check_url
from indexes.errors import CollectionError
from pipeline.collections.own import query_file
from pipeline.command.options import existing_file, option


def addresses(text: str) -> str:
    """Addresses of nodes, separated by commas."""
    try:
        for url in text.split(","):
            check_url(url.strip())
    except CollectionError as error:
        raise ValueError(str(error)) from None
    return text


@dataclass(frozen=True)
class EngineOptions:
    """Options of an index in a search engine."""

    topic: ClassVar[str] = "search engine"

    engine: str | None = option(
        "search in OpenSearch or Elasticsearch at this address, in place of a local index; several "
        "nodes are separated by commas",
        parse=addresses,
        metavar="URL",
    )
    engine_index: str | None = option(
        "its index (default for a collection: tweetrerank-GROUP)", metavar="NAME"
    )
    engine_auth: Path | None = option(
        'file of user and password, or api_key, and ca, as lines such as user = "reader" (default: '
        "$TWEETRERANK_ENGINE_USER, _PASSWORD, _API_KEY, _CA)",
        parse=existing_file,
        metavar="FILE",
    )


@dataclass(frozen=True)
class ForeignOptions(EngineOptions):
    """The same, and of an index that pipeline.index has not made."""

    topic: ClassVar[str] = "search engine"

    text_field: str | None = option(
        "field of the texts in an index of --engine that is searched as it is", metavar="FIELD"
    )
    url_field: str | None = option("its field of links", metavar="FIELD")
    time_field: str | None = option(
        "its field of times, a date or a number, for topics with a time limit", metavar="FIELD"
    )
    id_field: str | None = option("its field of ids (default: _id)", metavar="FIELD")
    query: Path | str | None = option(
        "file of its query, JSON with {{query}} for the topic's text, or id of a search template "
        "with the parameter query (default: match on the text field)",
        parse=query_file,
        metavar="FILE|ID",
    )


def engine_of(options: EngineOptions) -> dict[str, Any]:
    """The given fields of an :class:`indexes.engines.address.EngineAddress`."""
    names = {"engine": "url", "engine_index": "index", "engine_auth": "auth"}
    fields = (*names, "text_field", "url_field", "time_field", "id_field", "query")
    found = {name: getattr(options, name, None) for name in fields}
    return {names.get(name, name): value for name, value in found.items() if value is not None}
