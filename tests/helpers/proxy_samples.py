"""A small search engine in this process, which writes JSON in its own way, and its posts."""

import asyncio
import fnmatch
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import request_response

from helpers.reranking_samples import POSTS
from helpers.service_samples import QUERY, listening, models
from tweetrerank.pipeline.ranking.interpolation import interpolate
from tweetrerank.rerankers.reranker import Reranker

VENDOR = "application/vnd.elasticsearch+json;compatible-with=9"
KEYS = {
    "query",
    "size",
    "from",
    "sort",
    "fields",
    "_source",
    "aggs",
    "highlight",
    "search_after",
}
KEYS |= {
    "stored_fields",
    "track_total_hits",
    "ext",
    "explain",
    "pit",
    "collapse",
    "scroll",
}


def post(row: int) -> dict[str, str]:
    """A post of the engine."""
    text, url = POSTS[row % len(POSTS)]
    return {"contents": f"{text} {'cuts ' * (row % 5)}{row}", "url": url}


class StubEngine:
    """A search engine: 120 posts, each found by every query; those with a body are ``notes``."""

    url: str

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.posts = [post(row) for row in range(120)]
        self.requests: list[tuple[Request, bytes]] = []
        self.fail, self.wait = (
            0,
            0.0,
        )  # Status in place of each answer, and seconds before it
        self.largest = 500  # Window that it takes: hits, with those before the page
        self.outside: set[str] = set()  # Fields that the sources of hits lack
        self.lost = 0  # Hits of a shard that fails where fields are asked for
        self.packed = b""  # Body that is called gzip, in place of an answer
        self.rendered = ""  # A template's search
        # A member of each source
        self.strange = '"n":123456789012345678901234567890,"x":1.0E-4,"x":2.50,"y":1e5'

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(body) for _, body in self.requests]

    def mixture(
        self, hits: Sequence[Any], weight: float | None = None
    ) -> dict[str, float]:
        """:func:`mixture` of hits."""
        texts = {
            hit["_id"]: self.posts[int(hit["_id"].partition('"')[0])] for hit in hits
        }
        return mixture(texts, hits, weight)

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        self.requests.append((request, body))
        await asyncio.sleep(self.wait)
        headers = {"x-elastic-product": "Elasticsearch", "warning": '299 "old"'}
        headers["set-cookie"] = "a=b"
        name = request.url.path.rpartition("/")[2]
        status, content = 200, '{"tagline":"You Know"}'
        if self.packed:
            return Response(
                self.packed, 200, {"content-encoding": "gzip"}, media_type=VENDOR
            )
        if self.fail:
            status, content = self.fail, '{"error":{"type":"busy"} , "status":503}'
        elif name == "_msearch":
            found = [self.search(item, {}) for item in body.split(b"\n")[1:-1:2]]
            answers = [f'{text[:-1]},"status":{code}}}' for code, text in found]
            content = f'{{"took":4,"responses":[{", ".join(answers)}]}}'
        elif name == "_search":
            status, content = self.search(body, dict(request.query_params))
        elif name == "template":
            content = self.rendered
        return Response(content, status, headers, media_type=VENDOR)

    def search(self, body: bytes, parameters: dict[str, str]) -> tuple[int, str]:
        try:
            return 200, self._found(
                json.loads(body if body.strip() else b"{}"), parameters
            )
        except (ValueError, TypeError, AttributeError) as error:
            problem = (
                f'{{"type":"parsing_exception", "reason":{json.dumps(str(error))}}}'
            )
            return 400, f'{{"error":{problem},"status":400}}'

    def _found(self, body: dict[str, Any], parameters: dict[str, str]) -> str:
        if unknown := body.keys() - KEYS:
            raise ValueError(f"unknown key {sorted(unknown)[0]}")
        if body.get("ext") not in (None, {}):
            raise ValueError("unknown ext")
        size = _number(parameters.get("size", body.get("size", 10)))
        start = _number(parameters.get("from", body.get("from", 0)))
        if start + size > self.largest:
            raise ValueError("too many hits")
        if not isinstance(body.get("query", {}), dict):
            raise ValueError("query is no object")
        fields = body.get("fields", [])
        if not isinstance(fields, list) or not all(
            isinstance(item, str) for item in fields
        ):
            raise ValueError("fields are no names")
        sort = body.get("sort", "_score")
        by_score = sort in (
            "_score",
            ["_score"],
            [{"_score": "desc"}],
            [{"_score": "desc"}, "n"],
        )
        lost = self.lost if fields else 0
        rows: Sequence[int] = range(len(self.posts) - lost)
        rows = rows if by_score else rows[::-1]
        shown = rows[start : start + size]
        hits = ",".join(self._hit(row, body, by_score, fields) for row in shown)
        is_counted = body.get("track_total_hits") is not False
        total = '"total":{"value":120,"relation":"eq"},' if is_counted else ""
        aggs = '"aggregations" : {"hits":{"hits":[1.50]}} ,' if "aggs" in body else ""
        best = "9.0" if by_score else "null"
        return (
            f'{{"took":3, "timed_out":false,"_shards":{{"total":2,"failed":{int(lost > 0)}}},{aggs}'
            f'"hits":{{{total}"max_score":{best},"hits":[{hits}]}}}}'
        )

    def _hit(
        self, row: int, body: dict[str, Any], by_score: bool, fields: list[str]
    ) -> str:
        """Numbers that no double holds, and a key that is there twice."""
        score = f"{9 - row / 20:.4f}" if by_score else "null"
        index = "notes" if "body" in self.posts[row] else "posts"
        doc_id = f'{row}"_score":1' if row % 3 else str(row)
        parts = [f'"_index":"{index}","_id":{json.dumps(doc_id)},"_score":{score}']
        if body.get("_source", True) is True and "stored_fields" not in body:
            kept = [(k, v) for k, v in self.posts[row].items() if k not in self.outside]
            members = [
                f"{json.dumps(name)}:{json.dumps(value)}" for name, value in kept
            ]
            parts.append(f'"_source":{{{",".join([self.strange, *members])}}}')
        shown = [*fields, *body.get("stored_fields", ())]
        names = [
            n
            for n in self.posts[row]
            if any(fnmatch.fnmatchcase(n, item) for item in shown)
        ]
        if names:
            parts.append(
                f'"fields":{json.dumps({n: [self.posts[row][n]] for n in names})}'
            )
        if "highlight" in body:
            parts.append('"highlight":{"contents":["<em>a</em>"]}')
        if "sort" in body:
            parts.append(f'"sort":[{score},"{row}"]')
        return f"{{{','.join(parts)}}}"


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str) or int(value) < 0:
        raise ValueError("no number")
    return int(value)


@contextmanager
def stub_engine() -> Iterator[tuple[str, StubEngine]]:
    """The engine and its address."""
    engine = StubEngine()
    with listening(request_response(engine.answer)) as url:
        engine.url = url
        yield url, engine


def mixture(
    posts: Any, hits: Sequence[Any], weight: float | None = None
) -> dict[str, float]:
    """Id -> score of the engine's hits, the best first, mixed by the model's weight or this one."""
    pairs = [(QUERY, (post["contents"], post["url"])) for post in posts.values()]
    neural = dict(
        zip(
            posts,
            map(float, Reranker(models().default.checkpoint).predict(pairs)),
            strict=True,
        )
    )
    lexical = {hit["_id"]: hit["_score"] for hit in hits}
    weight = models().default.weight if weight is None else weight
    mixed = interpolate({"": lexical}, {"": neural}, weight)[""]
    return dict(sorted(mixed.items(), key=lambda item: -item[1]))


def restored(hit: dict[str, Any]) -> dict[str, Any]:
    """A reranked hit as the engine gave it."""
    actual = dict(hit) | {"_score": hit["fields"]["_first_stage_score"][0]}
    others = {
        name: v for name, v in hit["fields"].items() if name != "_first_stage_score"
    }
    del actual["fields"]
    return actual | ({"fields": others} if others else {})


def search(query: str = QUERY, **more: Any) -> dict[str, Any]:
    """The body of a search."""
    return {"query": {"match": {"contents": query}}, **more}
