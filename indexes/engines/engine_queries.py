"""Build the bodies of searches in the language of a search engine."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tweetrerank.indexes.data_error import DataError

Json = Mapping[str, Any]

PLACEHOLDER = "{{query}}"  # Stands for the topic's text in a custom query

_RANKING = ("query", "min_score", "post_filter", "runtime_mappings")
"""Keys of a custom search that decide which posts it finds."""

_IGNORED = (
    "size",
    "from",
    "_source",
    "fields",
    "track_total_hits",
    "highlight",
    "aggs",
)
"""Keys that decide on the number of hits and on their fields. They are dropped."""

_TWITTER_TIME = "%a %b %d %H:%M:%S %z %Y"


def until(field: str, time: str, query_id: str) -> dict[str, Any]:
    """Return a filter that keeps the posts up to a topic's time.

    The time is in ISO 8601, or in the form of Twitter and TREC. Without a time zone it
    is UTC. Raises DataError if it has another form.
    """
    moment = _parsed_time(time)
    if moment is None:
        raise DataError(
            f"topic {query_id}: found the time {time!r}, expected one such as "
            "2011-02-08T12:30:27Z or Tue Feb 08 12:30:27 +0000 2011"
        )
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    limit = text.replace("+00:00", "Z")
    return {"range": {field: {"lte": limit, "format": "strict_date_optional_time"}}}


def _parsed_time(text: str) -> datetime | None:
    with suppress(ValueError):
        return datetime.fromisoformat(text)
    with suppress(ValueError):
        return datetime.strptime(text, _TWITTER_TIME)
    return None


def body_of(
    query: Json, limit: Json | None, hits: int, sort: Sequence[Json]
) -> dict[str, Any]:
    """Return the body of a search whose hits have only the values they are sorted by.

    ``query`` is a query, or a whole search that has the key ``query`` and other keys.
    ``limit`` is a filter or None. The first key of ``sort`` is the score.
    """
    body = dict(query) if "query" in query else {"query": query}
    if limit is not None:
        body["query"] = {"bool": {"must": [body["query"]], "filter": [limit]}}
    return body | {
        "size": hits,
        "sort": list(sort),
        "track_total_hits": False,
        "_source": False,
    }


def read_query(path: Path) -> dict[str, Any]:
    """Return the custom query of a file as ``{"query": …}``.

    The file has a search with :data:`PLACEHOLDER`, or only the ``query`` of a search.
    Raises DataError if it has other content.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(
            f"{path}: found no JSON ({error}), expected a query such as "
            f'{{"match": {{"body": "{PLACEHOLDER}"}}}}'
        ) from None
    if not isinstance(content, dict) or PLACEHOLDER not in json.dumps(content):
        raise DataError(
            f"{path}: found no {PLACEHOLDER} in it, expected a query with the place of "
            "the topic's text"
        )
    return check_search(content, str(path))


def check_search(content: Json, origin: str) -> dict[str, Any]:
    """Return a search as ``{"query": …}``.

    Raises DataError, with a message that begins with ``origin``, if the search has a
    key that ranks in another way.
    """
    if "query" not in content:
        return {"query": dict(content)}
    unknown = [key for key in content if key not in _RANKING and key not in _IGNORED]
    if unknown:
        raise DataError(
            f"{origin}: found {', '.join(unknown)} beside the query, expected "
            f"{', '.join(_RANKING)}: posts are ranked by the query's score"
        )
    return {key: content[key] for key in _RANKING if key in content}


def filled(query: Any, text: str) -> Any:
    """Return a query with a text in place of :data:`PLACEHOLDER`."""
    escaped = json.dumps(text)[1:-1]
    return json.loads(json.dumps(query).replace(PLACEHOLDER, escaped))
