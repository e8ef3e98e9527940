"""Searches in the query language of OpenSearch and Elasticsearch."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from indexes.errors import CollectionError

PLACEHOLDER = "{{query}}"  # Stands for the topic's text in a query of one's own

_KEYS = ("query", "min_score", "post_filter", "runtime_mappings")
"""Parts of a search of one's own that decide which posts it finds."""


def match(field: str, text: str) -> dict[str, Any]:
    """Posts with any word of a text."""
    return {"match": {field: {"query": text}}}


def up_to(field: str, limit: int) -> dict[str, Any]:
    """Posts with a number of at most ``limit``."""
    return {"range": {field: {"lte": limit}}}


def until(field: str, time: str, query_id: str) -> dict[str, Any]:
    """Posts not later than a time of a topic: ISO 8601, or as Twitter and TREC write it.

    Raises:
        CollectionError: it has another form.
    """
    try:
        found = datetime.fromisoformat(time)
    except ValueError:
        try:
            found = datetime.strptime(time, "%a %b %d %H:%M:%S %z %Y")
        except ValueError:
            raise CollectionError(
                f"topic {query_id}: found the time {time!r}, expected one such as "
                "2011-02-08T12:30:27Z or Tue Feb 08 12:30:27 +0000 2011"
            ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    text = found.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"range": {field: {"lte": text, "format": "strict_date_optional_time"}}}


def search(
    query: Mapping[str, Any],
    limit: Mapping[str, Any] | None,
    hits: int,
    sort: Sequence[Mapping[str, str]],
) -> dict[str, Any]:
    """The body of a search, whose hits have the values of their sort and nothing else.

    ``query`` may be a whole search, under the key ``query`` with other keys beside it; ``limit`` is
    a filter. The score is the first key of ``sort``.
    """
    body = dict(query) if "query" in query else {"query": query}
    if limit is not None:
        body["query"] = {"bool": {"must": [body["query"]], "filter": [limit]}}
    return body | {"size": hits, "sort": list(sort), "track_total_hits": False, "_source": False}


def read_query(path: Path) -> dict[str, Any]:
    """A query of one's own: a search, or its ``query`` alone, with :data:`PLACEHOLDER` in it.

    Raises:
        CollectionError: the file holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CollectionError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CollectionError(
            f"{path}: found no JSON ({error}), expected a query such as "
            f'{{"match": {{"body": "{PLACEHOLDER}"}}}}'
        ) from None
    if not isinstance(content, dict) or PLACEHOLDER not in json.dumps(content):
        raise CollectionError(
            f"{path}: found no {PLACEHOLDER} in it, expected a query with the place of the topic's "
            "text"
        )
    return check_search(content, str(path))


def check_search(content: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """A search as ``{"query": …}``; raises CollectionError for keys that rank in another way."""
    if "query" not in content:
        return {"query": dict(content)}
    # The number of hits, their order and what is shown of them are ours.
    ours = ("size", "from", "_source", "fields", "track_total_hits", "highlight", "aggs")
    if strange := [key for key in content if key not in (*_KEYS, *ours)]:
        raise CollectionError(
            f"{origin}: found {', '.join(strange)} beside the query, expected {', '.join(_KEYS)}: "
            "posts are ranked by the query's score"
        )
    return {key: content[key] for key in _KEYS if key in content}


def filled(query: Any, text: str) -> Any:
    """A query with the topic's text in place of :data:`PLACEHOLDER`, whatever signs it has."""
    if isinstance(query, str):
        return query.replace(PLACEHOLDER, text)
    if isinstance(query, list):
        return [filled(part, text) for part in query]
    if isinstance(query, dict):
        return {key: filled(part, text) for key, part in query.items()}
    return query
