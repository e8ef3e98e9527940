"""Many searches at a time, and one of any depth: every topic is answered, or named in the error."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from indexes.engines.client import Engine, EngineError, encoded, refusal, repeated
from indexes.records import listed

Hit = dict[str, Any]  # A post that was found, as the engine shows it

_HITS = 10_000
"""Hits of one request to the engine, about: while one answer is read, the next is made."""

_KEEP = "2m"  # How long the engine keeps a point in time, or a scroll, for the next page

_HIT = ("_id", "_score", "_source", "fields", "sort")
_SHOWN = ",".join([*(f"hits.hits.{key}" for key in _HIT), "_shards.failed", "timed_out"])


def search(
    engine: Engine,
    bodies: Mapping[str, Mapping[str, Any]],
    window: int,
    several_shards: bool,
    threads: int = 2,
) -> dict[str, list[Hit]]:
    """The hits of searches with ``size``, by their labels (of topics, for messages).

    More than ``window`` hits are read page by page. With ``several_shards``, word statistics are
    collected from all of them before. ``threads`` requests are under way at a time.

    Raises:
        EngineError: a search got no answer; no other results are given then.
    """
    if not bodies:
        return {}
    size = max(body["size"] for body in bodies.values())
    if size > window:
        with point_in_time(engine) as point:
            return {
                label: list(pages(engine, point, label, body, window, several_shards))
                for label, body in bodies.items()
            }
    header: dict[str, Any] = {"index": engine.address.index, "allow_partial_search_results": False}
    # The same copy of a shard each time, whose scores do not differ in the last digits.
    header["preference"] = "tweetrerank"
    if several_shards:
        header["search_type"] = "dfs_query_then_fetch"
    left = iter(bodies.items())
    groups = iter(lambda: dict(islice(left, max(1, _HITS // max(1, size)))), {})
    found: dict[str, list[Hit]] = {}
    pool = ThreadPoolExecutor(threads)
    try:
        for part in pool.map(lambda group: _group(engine, header, group), list(groups)):
            found |= part
    finally:
        pool.shutdown(cancel_futures=True)
    return found


def _group(
    engine: Engine, header: Mapping[str, Any], bodies: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[Hit]]:
    """The hits of searches in one request, in more for those that failed."""
    found: dict[str, list[Hit]] = {}
    shown = ",".join(f"responses.{part}" for part in (*_SHOWN.split(","), "error", "status"))

    def attempt() -> None:
        left = [label for label in bodies if label not in found]
        lines = [line for label in left for line in (header, bodies[label])]
        content = b"".join(encoded(line) + b"\n" for line in lines)
        try:
            answer = engine.request("POST", "/_msearch", content, {"filter_path": shown})
        except EngineError as error:
            raise _unanswered(left, error) from None
        problems: dict[str, EngineError] = {}
        for label, one in zip(left, answer["responses"], strict=True):
            try:
                found[label] = _hits(engine, one)
            except EngineError as error:
                problems[label] = error
        for label, problem in problems.items():
            if not problem.is_passing:
                raise _unanswered([label], problem)
        if problems:
            raise _unanswered(list(problems), next(iter(problems.values())))

    repeated(attempt)
    return {label: found[label] for label in bodies}


def _hits(engine: Engine, answer: Mapping[str, Any]) -> list[Hit]:
    """The hits of one answer; raises EngineError if a part of the index did not take part."""
    if "error" in answer:
        raise refusal(engine.address, answer.get("status", 500), answer)
    if answer.get("timed_out") or answer.get("_shards", {}).get("failed"):
        raise EngineError(f"{engine.address}: a shard of the index did not answer", 503)
    return list(answer.get("hits", {}).get("hits", []))


def single_precision(scores: Iterable[float]) -> list[float]:
    """Scores as the engine has them: its JSON shows the shortest decimals of each."""
    return array("f", scores).tolist()


def _unanswered(labels: Sequence[str], error: EngineError) -> EngineError:
    what = "topic" if len(labels) == 1 else "topics"
    return EngineError(
        f"{what} {listed(labels, 5)} without an answer: {error}", error.status, error.kind
    )


@contextmanager
def point_in_time(engine: Engine) -> Iterator[str]:
    """The index as it is now, for searches page by page."""
    index, keep = engine.address.index, {"keep_alive": _KEEP}
    if engine.kind == "opensearch":
        path, key, end = f"/{index}/_search/point_in_time", "pit_id", "/_search/point_in_time"
    else:
        path, key, end = f"/{index}/_pit", "id", "/_pit"
    point = engine.patiently("POST", path, params=keep)[key]
    try:
        yield point
    finally:
        with suppress(EngineError):  # It ends by itself.
            engine.request("DELETE", end, {key: [point] if key == "pit_id" else point})


def pages(
    engine: Engine,
    point: str,
    label: str,
    body: Mapping[str, Any],
    window: int,
    several_shards: bool = False,
) -> Iterator[Hit]:
    """The hits of one search of any depth."""
    params = {"filter_path": f"{_SHOWN},error,status"}
    if several_shards:
        params["search_type"] = "dfs_query_then_fetch"
    left, after = body["size"], None
    while left > 0:
        page = {**body, "size": min(left, window), "pit": {"id": point, "keep_alive": _KEEP}}
        if after:
            page["search_after"] = after

        def ask(page: Mapping[str, Any] = page) -> list[Hit]:
            return _hits(engine, engine.request("POST", "/_search", page, params))

        try:
            found = repeated(ask)
        except EngineError as error:
            raise _unanswered([label], error) from None
        yield from found
        if len(found) < page["size"]:
            return
        left, after = left - len(found), found[-1]["sort"]


def all_hits(engine: Engine, body: Mapping[str, Any], size: int = 5000) -> Iterator[Hit]:
    """Every post of the index, in an order of no meaning (a scroll, which any index allows)."""
    answer = engine.patiently(
        "POST",
        f"/{engine.address.index}/_search",
        {"query": {"match_all": {}}, **body, "size": size, "sort": ["_doc"]},
        {"scroll": _KEEP},
    )
    try:
        while found := _hits(engine, answer):
            yield from found
            scroll = {"scroll": _KEEP, "scroll_id": answer["_scroll_id"]}
            # Asked twice, the engine would go on with the page after a lost one: not repeated.
            answer = engine.request("POST", "/_search/scroll", scroll)
    finally:
        with suppress(EngineError):  # It ends by itself.
            engine.request("DELETE", "/_search/scroll", {"scroll_id": [answer["_scroll_id"]]})
