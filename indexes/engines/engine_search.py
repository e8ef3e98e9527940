"""Send searches to an engine: many in one request, or one of any depth."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from tweetrerank.indexes.engines.client import Engine, Json, encoded, repeated
from tweetrerank.indexes.engines.engine_error import EngineError, refusal
from tweetrerank.indexes.records import listed

Hit = dict[str, Any]  # A post in a response, as the engine represents it
Bodies = Mapping[str, Json]  # Label -> search

_HITS = 10_000
"""Approximate number of hits in one response. It is limited so that one response can be
read while the engine works on the next request."""

_SCROLL_TIME = "2m"  # How long the engine keeps a scroll for its next page

_RESPONSE_FILTER = ",".join(
    (
        "responses.hits.hits._id",
        "responses.hits.hits._score",
        "responses.hits.hits._source",
        "responses.hits.hits.fields",
        "responses.hits.hits.sort",
        "responses._shards.failed",
        "responses.timed_out",
        "responses.error",
        "responses.status",
    )
)


def search(
    engine: Engine,
    bodies: Bodies,
    page_size: int,
    threads: int = 2,
    several_shards: bool = False,
) -> dict[str, list[Hit]]:
    """Return the hits of each search by its label.

    Each of ``bodies`` has its number of hits as ``size``. If that is more than
    ``page_size``, the hits are read page by page. With ``several_shards``, word
    statistics are first collected from all shards. ``threads`` requests are sent at the
    same time. Raises EngineError if a search gets no response. The message names the
    labels of such searches as topics.
    """
    size = max((body["size"] for body in bodies.values()), default=0)
    search_type = {}
    if several_shards:
        search_type = {"search_type": "dfs_query_then_fetch"}
    if size > page_size:
        return {
            label: _deep_search(engine, label, body, page_size, search_type)
            for label, body in bodies.items()
        }
    header = {
        "index": engine.address.index,
        "allow_partial_search_results": False,
        **search_type,
        # Always the same copy of a shard: scores of copies differ in their last digits.
        "preference": "tweetrerank",
    }
    groups = _groups(bodies, max(1, _HITS // max(1, size)))
    hits: dict[str, list[Hit]] = {}
    with ThreadPoolExecutor(threads) as pool:
        # After an error, the groups that wait are cancelled.
        for group_hits in pool.map(partial(_search_group, engine, header), groups):
            hits |= group_hits
    return hits


def _groups(bodies: Bodies, count: int) -> Iterator[Bodies]:
    """Yield the searches in groups of ``count``."""
    items = list(bodies.items())
    for start in range(0, len(items), count):
        yield dict(items[start : start + count])


def _search_group(engine: Engine, header: Json, bodies: Bodies) -> dict[str, list[Hit]]:
    """Return the hits of searches that are sent in one request.

    Failed searches are sent again.
    """
    hits: dict[str, list[Hit]] = {}

    def attempt() -> None:
        missing = {label: body for label, body in bodies.items() if label not in hits}
        problems = _attempt(engine, header, missing, hits)
        lasting = {
            label: error for label, error in problems.items() if not error.is_passing
        }
        problems = lasting or problems
        if problems:
            raise _unanswered(list(problems), next(iter(problems.values())))

    repeated(attempt)
    return {label: hits[label] for label in bodies}


def _attempt(
    engine: Engine, header: Json, bodies: Bodies, hits: dict[str, list[Hit]]
) -> dict[str, EngineError]:
    """Send searches in one request, add their hits, and return the errors by label."""
    lines = []
    for body in bodies.values():
        lines += [encoded(header), encoded(body)]
    content = b"".join(line + b"\n" for line in lines)
    params = {"filter_path": _RESPONSE_FILTER}
    try:
        response = engine.request("POST", "/_msearch", content, params)
    except EngineError as error:
        raise _unanswered(list(bodies), error) from None
    problems: dict[str, EngineError] = {}
    for label, result in zip(bodies, response["responses"], strict=True):
        try:
            hits[label] = _hits_of(engine, result)
        except EngineError as error:
            problems[label] = error
    return problems


def _hits_of(engine: Engine, result: Json) -> list[Hit]:
    """Return the hits of one search. Raises EngineError if a shard did not answer."""
    if "error" in result:
        raise refusal(engine.address, result.get("status", 500), result)
    if result.get("timed_out") or result.get("_shards", {}).get("failed"):
        raise EngineError(f"{engine.address}: a shard of the index did not answer", 503)
    return list(result.get("hits", {}).get("hits", []))


def single_precision(scores: Iterable[float]) -> list[float]:
    """Return scores from JSON as the single-precision numbers that the engine has.

    JSON shows only as many decimals as identify such a number.
    """
    return array("f", scores).tolist()


def _unanswered(labels: Sequence[str], error: EngineError) -> EngineError:
    plural = "s" if len(labels) != 1 else ""
    return EngineError(
        f"topic{plural} {listed(labels, 5)} without an answer: {error}",
        error.status,
        error.kind,
    )


def _deep_search(
    engine: Engine, label: str, body: Json, page_size: int, search_type: Json
) -> list[Hit]:
    """Return the hits of one search, which may have any number of them."""

    def attempt() -> list[Hit]:
        hits = all_hits(engine, body, page_size, search_type)
        return list(islice(hits, body["size"]))

    try:
        return repeated(attempt)
    except EngineError as error:
        raise _unanswered([label], error) from None


def all_hits(
    engine: Engine, body: Json, page_size: int = 5000, search_type: Json | None = None
) -> Iterator[Hit]:
    """Yield the hits of a search, by default all posts of the index in any order.

    They are read in pages of ``page_size`` by a scroll, because any index allows it.
    """
    body = {
        "query": {"match_all": {}},
        "sort": ["_doc"],
        **body,
        "size": page_size,
        "track_total_hits": True,
    }
    path = f"/{engine.address.index}/_search"
    params = {"scroll": _SCROLL_TIME, **(search_type or {})}
    response = engine.patiently("POST", path, body, params)
    try:
        while True:
            hits = _hits_of(engine, response)
            yield from hits
            if len(hits) < page_size:
                return
            scroll = {"scroll": _SCROLL_TIME, "scroll_id": response["_scroll_id"]}
            # Not repeated: a second request would skip the page whose response was
            # lost.
            response = engine.request("POST", "/_search/scroll", scroll)
    finally:
        # If this fails, the engine ends the scroll later.
        with suppress(EngineError):
            scroll_ids = {"scroll_id": [response["_scroll_id"]]}
            engine.request("DELETE", "/_search/scroll", scroll_ids)
