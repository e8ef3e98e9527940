"""Searches in an engine's language: their bodies, many of them at a time, and one of any depth."""

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.client import (
    Engine,
    EngineError,
    Json,
    encoded,
    repeated,
)
from tweetrerank.indexes.records import listed

Hit = dict[str, Any]  # A post that was found, as the engine shows it
Bodies = Mapping[str, Json]  # Label -> search

PLACEHOLDER = "{{query}}"  # Stands for the topic's text in a query of one's own

_KEYS = ("query", "min_score", "post_filter", "runtime_mappings")
"""Parts of a search of one's own that decide which posts it finds."""

_OURS = ("size", "from", "_source", "fields", "track_total_hits", "highlight", "aggs")
"""Parts for the number of hits, their order and what is shown of them, which are left out."""

_HITS = 10_000
"""Hits of one request to the engine, about: while one answer is read, the next is made."""

_TWITTER = "%a %b %d %H:%M:%S %z %Y"  # Form of a time
_KEEP = "2m"  # How long the engine keeps a scroll for its next page

_HIT = ("_id", "_score", "_source", "fields", "sort")
_PARTS = ("_shards.failed", "timed_out", "error", "status")
_SHOWN = ",".join([*(f"hits.hits.{key}" for key in _HIT), *_PARTS])


def until(field: str, time: str, query_id: str) -> dict[str, Any]:
    """Posts not later than a time of a topic: ISO 8601, or as Twitter and TREC write it. Raises
    DataError if it has another form."""
    found: datetime | None = None
    for read in (
        datetime.fromisoformat,
        lambda text: datetime.strptime(text, _TWITTER),
    ):
        with suppress(ValueError):
            found = found or read(time)
    if found is None:
        raise DataError(
            f"topic {query_id}: found the time {time!r}, expected one such as "
            "2011-02-08T12:30:27Z or Tue Feb 08 12:30:27 +0000 2011"
        )
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    text = (
        found.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
    return {"range": {field: {"lte": text, "format": "strict_date_optional_time"}}}


def body_of(
    query: Json, limit: Json | None, hits: int, sort: Sequence[Json]
) -> dict[str, Any]:
    """The body of a search, whose hits have the values of their sort and nothing else. ``query``
    may be a whole search, under the key ``query`` with other keys beside it; ``limit`` is a filter.
    The score is the first key of ``sort``."""
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
    """A query of one's own: a search, or its ``query`` alone, with :data:`PLACEHOLDER` in it.
    Raises DataError if the file holds something else."""
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
            f"{path}: found no {PLACEHOLDER} in it, expected a query with the place of the topic's "
            "text"
        )
    return check_search(content, str(path))


def check_search(content: Json, origin: str) -> dict[str, Any]:
    """A search as ``{"query": …}``; raises DataError for keys that rank in another way."""
    if "query" not in content:
        return {"query": dict(content)}
    if strange := [key for key in content if key not in (*_KEYS, *_OURS)]:
        raise DataError(
            f"{origin}: found {', '.join(strange)} beside the query, expected {', '.join(_KEYS)}: "
            "posts are ranked by the query's score"
        )
    return {key: content[key] for key in _KEYS if key in content}


def filled(query: Any, text: str) -> Any:
    """A query with the topic's text in place of :data:`PLACEHOLDER`, whatever signs it has."""
    return json.loads(json.dumps(query).replace(PLACEHOLDER, json.dumps(text)[1:-1]))


def search(
    engine: Engine,
    bodies: Bodies,
    window: int,
    threads: int = 2,
    several_shards: bool = False,
) -> dict[str, list[Hit]]:
    """The hits of searches with ``size``, by their labels (of topics, for messages). More than
    ``window`` hits are read on page by page. With ``several_shards``, word statistics are collected
    from all of them before. ``threads`` requests are under way at a time. Raises EngineError if a
    search got no answer; no other results are given then."""
    size = max((body["size"] for body in bodies.values()), default=0)
    kind = {"search_type": "dfs_query_then_fetch"} if several_shards else {}
    if size > window:
        return {
            label: _deep(engine, label, body, window, kind)
            for label, body in bodies.items()
        }
    header = {
        "index": engine.address.index,
        "allow_partial_search_results": False,
        **kind,
    }
    # The same copy of a shard each time, whose scores do not differ in the last digits.
    header["preference"] = "tweetrerank"
    left, count = iter(bodies.items()), max(1, _HITS // max(1, size))
    groups = [*iter(lambda: dict(islice(left, count)), {})]
    found: dict[str, list[Hit]] = {}
    with ThreadPoolExecutor(threads) as pool:  # Cancels what is left if one raises
        for part in pool.map(lambda group: _group(engine, header, group), groups):
            found |= part
    return found


def _group(engine: Engine, header: Json, bodies: Bodies) -> dict[str, list[Hit]]:
    """The hits of searches in one request, in more for those that failed."""
    found: dict[str, list[Hit]] = {}
    shown = ",".join(f"responses.{part}" for part in _SHOWN.split(","))

    def attempt() -> None:
        left = [label for label in bodies if label not in found]
        content = b"".join(
            encoded(part) + b"\n" for n in left for part in (header, bodies[n])
        )
        try:
            answer = engine.request(
                "POST", "/_msearch", content, {"filter_path": shown}
            )
        except EngineError as error:
            raise _unanswered(left, error) from None
        problems: dict[str, EngineError] = {}
        for label, one in zip(left, answer["responses"], strict=True):
            try:
                found[label] = _hits(engine, one)
            except EngineError as error:
                problems[label] = error
        lasting = {
            label: error for label, error in problems.items() if not error.is_passing
        }
        if problems := lasting or problems:
            raise _unanswered([*problems], next(iter(problems.values())))

    repeated(attempt)
    return {label: found[label] for label in bodies}


def _hits(engine: Engine, answer: Json) -> list[Hit]:
    """The hits of one answer; raises EngineError if a part of the index did not take part."""
    if "error" in answer:
        raise engine.refusal(answer.get("status", 500), answer)
    if answer.get("timed_out") or answer.get("_shards", {}).get("failed"):
        raise EngineError(f"{engine.address}: a shard of the index did not answer", 503)
    return list(answer.get("hits", {}).get("hits", []))


def single_precision(scores: Iterable[float]) -> list[float]:
    """Scores as the engine has them: its JSON shows the shortest decimals of each."""
    return array("f", scores).tolist()


def _unanswered(labels: Sequence[str], error: EngineError) -> EngineError:
    what = f"topic{'s' * (len(labels) != 1)} {listed(labels, 5)}"
    return EngineError(f"{what} without an answer: {error}", error.status, error.kind)


def _deep(engine: Engine, label: str, body: Json, window: int, kind: Json) -> list[Hit]:
    """The hits of one search of any depth."""
    try:
        return repeated(
            lambda: [*islice(all_hits(engine, body, window, kind), body["size"])]
        )
    except EngineError as error:
        raise _unanswered([label], error) from None


def all_hits(
    engine: Engine, body: Json, size: int = 5000, kind: Json | None = None
) -> Iterator[Hit]:
    """The hits of a search, by default every post of the index in an order of no meaning. They are
    read ``size`` at a time, by a scroll, which any index allows."""
    body = {"query": {"match_all": {}}, "sort": ["_doc"], **body, "size": size}
    path, params = f"/{engine.address.index}/_search", {"scroll": _KEEP, **(kind or {})}
    answer = engine.patiently("POST", path, body | {"track_total_hits": True}, params)
    try:
        while found := _hits(engine, answer):
            yield from found
            if len(found) < size:
                return
            scroll = {"scroll": _KEEP, "scroll_id": answer["_scroll_id"]}
            # Asked twice, the engine would go on with the page after a lost one: not repeated.
            answer = engine.request("POST", "/_search/scroll", scroll)
    finally:
        with suppress(EngineError):  # It ends by itself.
            engine.request(
                "DELETE", "/_search/scroll", {"scroll_id": [answer["_scroll_id"]]}
            )
