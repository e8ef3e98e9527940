"""A search engine that runs in this process, its posts, and the scores of its hits.

The engine writes JSON in an unusual way, with numbers that do not fit into a double
and with a repeated key.
"""

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
    "_source",
    "aggs",
    "collapse",
    "explain",
    "ext",
    "fields",
    "from",
    "highlight",
    "pit",
    "query",
    "scroll",
    "search_after",
    "size",
    "sort",
    "stored_fields",
    "track_total_hits",
}
"""The keys of a search that the engine knows."""
BY_SCORE = (
    "_score",
    ["_score"],
    [{"_score": "desc"}],
    [{"_score": "desc"}, "n"],
)
"""The sorts that put the best hits first. Any other sort reverses the order."""


def post(row: int) -> dict[str, str]:
    """Return a post of the engine."""
    text, url = POSTS[row % len(POSTS)]
    return {"contents": f"{text} {'cuts ' * (row % 5)}{row}", "url": url}


class StubEngine:
    """A search engine with 120 posts, which match every query.

    A post with a field ``body`` is in the index ``notes``, any other in ``posts``.
    """

    url: str

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the requests, and behave as at the start."""
        self.posts = [post(row) for row in range(120)]
        self.requests: list[tuple[Request, bytes]] = []
        self.fail = 0  # Status of each answer; 0 for the status of the search
        self.wait = 0.0  # Seconds before each answer
        self.largest = 500  # Most hits that a search may request
        self.outside: set[str] = set()  # Fields that the sources of hits lack
        self.lost = 0  # Number of hits on a shard that fails if fields are requested
        self.packed = b""  # Body of each answer, said to be gzip; b"" for the real one
        self.rendered = ""  # The search made from a template
        # Members that each source has
        self.strange = '"n":123456789012345678901234567890,"x":1.0E-4,"x":2.50,"y":1e5'

    @property
    def bodies(self) -> list[Any]:
        """The bodies of all requests so far."""
        return [json.loads(body) for _, body in self.requests]

    def mixture(
        self,
        hits: Sequence[Any],
        weight: float | None = None,
    ) -> dict[str, float]:
        """Return the :func:`mixture` for some hits of this engine."""
        texts: dict[str, dict[str, str]] = {}
        for hit in hits:
            row, _, _ = hit["_id"].partition('"')
            texts[hit["_id"]] = self.posts[int(row)]
        return mixture(texts, hits, weight)

    async def answer(self, request: Request) -> Response:
        """Answer any request."""
        body = await request.body()
        self.requests.append((request, body))
        await asyncio.sleep(self.wait)
        if self.packed:
            headers = {"content-encoding": "gzip"}
            return Response(self.packed, 200, headers, media_type=VENDOR)
        headers = {
            "x-elastic-product": "Elasticsearch",
            "warning": '299 "old"',
            "set-cookie": "a=b",
        }
        status = 200
        content = '{"tagline":"You Know"}'
        name = request.url.path.rpartition("/")[2]
        if self.fail:
            status = self.fail
            content = '{"error":{"type":"busy"} , "status":503}'
        elif name == "_msearch":
            content = self._several(body)
        elif name == "_search":
            status, content = self.search(body, dict(request.query_params))
        elif name == "template":
            content = self.rendered
        return Response(content, status, headers, media_type=VENDOR)

    def _several(self, body: bytes) -> str:
        """Return the answer to lines of headers and searches."""
        answers: list[str] = []
        for line in body.split(b"\n")[1:-1:2]:
            status, content = self.search(line, {})
            answers.append(f'{content[:-1]},"status":{status}}}')
        return f'{{"took":4,"responses":[{", ".join(answers)}]}}'

    def search(self, body: bytes, parameters: dict[str, str]) -> tuple[int, str]:
        """Return (status, content) of the answer to a search."""
        try:
            content = json.loads(body if body.strip() else b"{}")
            return 200, self._page(content, parameters)
        except (ValueError, TypeError, AttributeError) as error:
            reason = json.dumps(str(error))
            problem = f'{{"type":"parsing_exception", "reason":{reason}}}'
            return 400, f'{{"error":{problem},"status":400}}'

    def _page(self, body: dict[str, Any], parameters: dict[str, str]) -> str:
        """Return the hits of a search; raises ValueError if it is wrong."""
        _check_search(body)
        size = _number(parameters.get("size", body.get("size", 10)))
        start = _number(parameters.get("from", body.get("from", 0)))
        if start + size > self.largest:
            raise ValueError("too many hits")
        fields = _field_names(body)
        is_by_score = body.get("sort", "_score") in BY_SCORE
        lost = 0
        if fields:
            lost = self.lost
        rows: Sequence[int] = range(len(self.posts) - lost)
        if not is_by_score:
            rows = rows[::-1]
        page = rows[start : start + size]
        hits = ",".join(self._hit(row, body, is_by_score, fields) for row in page)
        total = ""
        if body.get("track_total_hits") is not False:
            total = '"total":{"value":120,"relation":"eq"},'
        aggregations = ""
        if "aggs" in body:
            aggregations = '"aggregations" : {"hits":{"hits":[1.50]}} ,'
        best = "9.0" if is_by_score else "null"
        shards = f'"_shards":{{"total":2,"failed":{int(lost > 0)}}}'
        return (
            f'{{"took":3, "timed_out":false,{shards},{aggregations}'
            f'"hits":{{{total}"max_score":{best},"hits":[{hits}]}}}}'
        )

    def _hit(
        self,
        row: int,
        body: dict[str, Any],
        is_by_score: bool,
        fields: list[str],
    ) -> str:
        """Return a hit, with the parts that a search requests."""
        score = f"{9 - row / 20:.4f}" if is_by_score else "null"
        index = "notes" if "body" in self.posts[row] else "posts"
        doc_id = f'{row}"_score":1' if row % 3 else str(row)
        members = [f'"_index":"{index}","_id":{json.dumps(doc_id)},"_score":{score}']
        if body.get("_source", True) is True and "stored_fields" not in body:
            members.append(f'"_source":{self._source(row)}')
        patterns = fields + list(body.get("stored_fields", ()))
        values = self._values(row, patterns)
        if values:
            members.append(f'"fields":{json.dumps(values)}')
        if "highlight" in body:
            members.append('"highlight":{"contents":["<em>a</em>"]}')
        if "sort" in body:
            members.append(f'"sort":[{score},"{row}"]')
        return f"{{{','.join(members)}}}"

    def _source(self, row: int) -> str:
        members = [self.strange]
        for name, value in self.posts[row].items():
            if name not in self.outside:
                members.append(f"{json.dumps(name)}:{json.dumps(value)}")
        return f"{{{','.join(members)}}}"

    def _values(self, row: int, patterns: Sequence[str]) -> dict[str, list[str]]:
        """Return the fields of a post whose names match one of the patterns."""
        values: dict[str, list[str]] = {}
        for name, value in self.posts[row].items():
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                values[name] = [value]
        return values


def _check_search(body: dict[str, Any]) -> None:
    unknown = sorted(body.keys() - KEYS)
    if unknown:
        raise ValueError(f"unknown key {unknown[0]}")
    if body.get("ext") not in (None, {}):
        raise ValueError("unknown ext")
    if not isinstance(body.get("query", {}), dict):
        raise ValueError("query is no object")


def _field_names(body: dict[str, Any]) -> list[str]:
    fields = body.get("fields", [])
    if not isinstance(fields, list):
        raise ValueError("fields are no list")
    if not all(isinstance(name, str) for name in fields):
        raise ValueError("fields are no names")
    return fields


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str) or int(value) < 0:
        raise ValueError("no number")
    return int(value)


@contextmanager
def stub_engine() -> Iterator[tuple[str, StubEngine]]:
    """Run an engine, and yield (its address, the engine)."""
    engine = StubEngine()
    with listening(request_response(engine.answer)) as url:
        engine.url = url
        yield url, engine


def mixture(
    posts: Any,
    hits: Sequence[Any],
    weight: float | None = None,
) -> dict[str, float]:
    """Return the engine's scores mixed with the model's, by id, with the best first.

    ``weight`` is the share of the model. With None it is the model's own λ.
    """
    pairs = [(QUERY, (post["contents"], post["url"])) for post in posts.values()]
    model = models().default
    scores = Reranker(model.checkpoint).predict(pairs)
    neural = dict(zip(posts, map(float, scores), strict=True))
    lexical = {hit["_id"]: hit["_score"] for hit in hits}
    if weight is None:
        weight = model.weight
    mixed = interpolate({"": lexical}, {"": neural}, weight)[""]
    return dict(sorted(mixed.items(), key=lambda item: -item[1]))


def restored(hit: dict[str, Any]) -> dict[str, Any]:
    """Return a reranked hit as it was when the engine returned it."""
    fields = dict(hit["fields"])
    [score] = fields.pop("_first_stage_score")
    original = dict(hit) | {"_score": score}
    del original["fields"]
    if fields:
        original["fields"] = fields
    return original


def search(query: str = QUERY, **members: Any) -> dict[str, Any]:
    """Return the body of a search."""
    return {"query": {"match": {"contents": query}}, **members}


def line_pair(header: Any, body: Any = None) -> str:
    """Return the two lines of one search in a request of several."""
    return f"{json.dumps(header)}\n{json.dumps(body or search())}\n"
