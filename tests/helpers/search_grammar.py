"""Searches made by chance of the engines' own grammar, many of which reach for another index."""

import base64
import json
from random import Random
from typing import Any, NamedTuple

WORDS = ["storm", "bbc world", "cuts", "water egypt", "no such word", "st*rm~ -cuts"]


class Call(NamedTuple):
    """A request: path with parameters, and body."""

    method: str
    path: str
    body: str


class Searches:
    """Makes searches of an index, some of whose parts name a secret one."""

    def __init__(self, seed: int, index: str, secret: str) -> None:
        self.random, self.index, self.secret = Random(seed), index, secret

    def call(self) -> Call:
        """A search, or a call of another kind that has a query or an index."""
        body = json.dumps(self.search())
        name = self._index_in_path()
        lines = "".join(
            f"{json.dumps(self._header())}\n{json.dumps(self.search())}\n" for _ in "ab"
        )
        template = {"source": self.random.choice([body, self.search()]), "params": {"a": "b"}}
        more = f"&index={self.secret}" if self._rarely() else ""
        query, docs = (
            json.dumps({"query": self.query(3)}),
            {"docs": [self._document() for _ in "ab"]},
        )
        post, get = "POST", "GET"
        return self.random.choice(
            [
                *[Call(post, f"/{name}/_search?pretty{more}", body)] * 10,
                *[
                    Call(
                        post, f"{self.random.choice(['', f'/{name}'])}/_msearch?a{more}"[:-2], lines
                    )
                ]
                * 4,
                Call(post, f"/{name}/_search/template", json.dumps(template)),
                Call(post, f"/{name}/_count", query),
                Call(get, f"/{name}/_validate/query?explain=true&rewrite=true", query),
                Call(post, self.random.choice(["/_mget", f"/{name}/_mget"]), json.dumps(docs)),
                Call(
                    get, f"/{name}/_search?source_content_type=application/json&source={body}", ""
                ),
                Call(get, f"/{name}/_search?q={self.random.choice(WORDS)}{more}", ""),
                Call(post, f"/{name}/_async_search", body),
                Call(
                    get,
                    f"/{name}/{self.random.choice(['_doc/1', '_source/1', '_mapping', ''])}",
                    "",
                ),
            ]
        )

    def search(self) -> dict[str, Any]:
        """The body of a search."""
        chance = self.random.random
        body: dict[str, Any] = {"query": self.query(4)} if chance() < 0.9 else {}
        if chance() < 0.4:
            body["profile"] = True
        if chance() < 0.3:
            body["aggs"] = self.aggregations(3)
        if chance() < 0.2:
            body["suggest"] = self.suggesters()
        for name, part in (
            ("post_filter", lambda: self.query(3)),
            ("rescore", self._rescore),
            ("sort", self._sort),
            ("collapse", lambda: {"field": "url", "inner_hits": {"name": "x", **self.search()}}),
            ("highlight", lambda: {"fields": {"contents": {"highlight_query": self.query(2)}}}),
            ("script_fields", lambda: {"x": {"script": self._script()}}),
            ("runtime_mappings", self._runtime),
            ("retriever", lambda: self.retriever(3)),
            ("knn", lambda: {"field": "v", "query_vector": [1], "k": 1, "filter": self.query(2)}),
            ("indices_boost", lambda: [{self._other(): 2}]),
            ("pit", lambda: {"id": self.secret}),
            ("search_pipeline", self._pipeline),
            ("ext", lambda: {self.random.choice(["rerank", "x"]): {"model": self.secret}}),
            ("fields", lambda: ["*"]),
            ("size", lambda: self.random.randrange(20)),
            ("from", lambda: self.random.randrange(20)),
            ("explain", lambda: True),
            ("sub_searches", lambda: [{"query": self.query(2)}, {"query": self.query(2)}]),
        ):
            if chance() < 0.06:
                body[name] = part()
        if "retriever" in body and chance() < 0.8:
            body = {name: body[name] for name in ("retriever", "profile", "aggs") if name in body}
        return body

    def query(self, depth: int) -> Any:
        """A query, in which others are nested."""
        leaves = [
            lambda: {self.random.choice(["match", "match_phrase"]): {"contents": self._word()}},
            lambda: {"multi_match": {"query": self._word(), "fields": ["contents", "url"]}},
            lambda: {"query_string": {"query": self._word(), "default_field": "contents"}},
            lambda: {"terms": {self._field(): self._lookup()}},
            lambda: {"terms": {self._field(): ["1", "2"], "boost": 2}},
            lambda: {"more_like_this": {"fields": ["contents"], "like": self._like(), **LIKE}},
            lambda: {"wrapper": {"query": self._packed(depth)}} if self._rarely() else SPAN,
            lambda: {
                "geo_shape": {"place": {"indexed_shape": self._lookup(), "relation": "within"}}
            },
            lambda: {"percolate": {"field": "query", **self._lookup()}},
            lambda: {"script": {"script": self._script()}},
            lambda: {"pinned": {"docs": [self._document()], "organic": self.query(depth - 1)}},
            lambda: {"ids": {"values": ["1", "2"]}},
            lambda: {"intervals": {"contents": {"match": {"query": self._word(), "max_gaps": 2}}}},
            lambda: {"template": self.query(depth)} if self._rarely() else SPAN,
            lambda: {"rule": {"organic": self.query(depth)}} if self._rarely() else SPAN,
        ]
        inner = [
            lambda: {"bool": {self._clause(): [self.query(depth - 1) for _ in "ab"]}},
            lambda: {"dis_max": {"queries": [self.query(depth - 1) for _ in "ab"]}},
            lambda: {"constant_score": {"filter": self.query(depth - 1)}},
            lambda: {
                "function_score": {"query": self.query(depth - 1), "functions": self._functions()}
            },
            lambda: {"script_score": {"query": self.query(depth - 1), "script": self._script()}},
            lambda: {
                "nested": {"path": "p", "ignore_unmapped": True, "query": self.query(depth - 1)}
            },
            lambda: {"boosting": {"positive": self.query(depth - 1), **self._negative(depth - 1)}},
            lambda: {"hybrid": {"queries": [self.query(depth - 1)]}},
            lambda: {
                "has_child": {"type": "t", "ignore_unmapped": True, "query": self.query(depth - 1)}
            },
            lambda: {
                "span_near": {
                    "clauses": [SPAN, {"span_multi": {"match": self.query(0)}}],
                    "slop": 1,
                }
            },
        ]
        choices = leaves[:5] * 3 + leaves + (inner * 3 if depth > 0 else [])
        return self.random.choice(choices)()

    def aggregations(self, depth: int) -> Any:
        """Aggregations, in which queries and others are nested."""
        kinds: list[Any] = [
            {"filter": self.query(2)},
            {"filters": {"filters": {"a": self.query(2), "meta": self.query(2)}}},
            {"filters": {"filters": [self.query(2)]}},
            {"adjacency_matrix": {"filters": {"a": self.query(2)}}},
            {"terms": {"field": "url", "order": {"_count": "asc"}}},
            {"terms": {"script": self._script()}},
            {"significant_text": {"field": "contents", "background_filter": self.query(1)}},
            {"top_hits": self.search() if depth > 1 else {}},
            {"global": {}},
            {"scripted_metric": {"map_script": self._script(), "reduce_script": self._script()}},
            {"composite": {"sources": [{"a": {"terms": {"field": "n"}}}]}},
            {"wrapper": {"query": self._packed(2)}} if self._rarely() else {"max": {"field": "n"}},
        ]
        kind = self.random.choice(kinds)
        if depth and self.random.random() < 0.3:
            kind["aggs"] = self.aggregations(depth - 1)
        return {"a": kind}

    def suggesters(self) -> Any:
        """A suggester."""
        source = json.dumps(self.query(2))
        phrase = {"field": "contents", "collate": {"query": {"source": source}, "prune": True}}
        kinds = [
            {"term": {"field": "contents"}},
            {"phrase": phrase},
            {"completion": {"field": "c"}},
        ]
        return {"text": self._word(), "s": self.random.choice(kinds)}

    def retriever(self, depth: int) -> Any:
        """A retriever, in which others are nested."""
        inner = self.retriever(depth - 1) if depth else {"standard": {"query": self.query(2)}}
        return self.random.choice(
            [
                {"standard": {"query": self.query(3), "filter": self.query(1)}},
                {"rrf": {"retrievers": [inner, {"standard": {"query": self.query(2)}}]}},
                {"linear": {"retrievers": [{"retriever": inner, "weight": 2}]}},
                {"rescorer": {"retriever": inner, "rescore": self._rescore()}},
                {"pinned": {"docs": [self._document()], "retriever": inner}},
                {"rule": {"ruleset_ids": [self.secret], "retriever": inner}},
            ]
        )

    def _rarely(self) -> bool:
        return self.random.random() < 0.06

    def _word(self) -> str:
        return self.random.choice(WORDS)

    def _field(self) -> str:
        return self.random.choice(["contents", "_id", "url"])

    def _clause(self) -> str:
        return self.random.choice(["must", "should", "filter", "must_not"])

    def _other(self) -> str:
        """The own index, or the secret one, under one of its names."""
        if self.random.random() < 0.7:
            return self.index
        name = self.secret
        return self.random.choice(
            [name, name, f"{name[:-1]}*", "*", "_all", f"<{name}>", f" {name}"]
        )

    def _index_in_path(self) -> str:
        if not self._rarely():
            return self.index
        other = self.random.choice([self._other(), f"{self.index},{self._other()}", ""])
        return other.replace(" ", "%20").replace("<", "%3C").replace(">", "%3E")

    def _header(self) -> dict[str, Any]:
        if not self._rarely():
            return {"index": self.index}
        other = self._other()
        others: list[Any] = [
            other,
            [self.index, other],
            [],
            "",
            None,
            [""],
            f"{self.index},{other}",
        ]
        return {self.random.choice(["index", "indices"]): self.random.choice(others)}

    def _lookup(self) -> dict[str, Any]:
        found = {"index": self._other(), "id": "1", "path": "contents"}
        return {**found, "query": {"match_all": {}}} if self._rarely() else found

    def _document(self) -> dict[str, Any]:
        name = self.index if self.random.random() < 0.5 else self._other()
        return {"_index": name, "_id": "1"}

    def _like(self) -> Any:
        return self.random.choice(
            [self._word(), [self._word(), self._document()], self._document()]
        )

    def _packed(self, depth: int) -> str:
        return base64.b64encode(json.dumps(self.query(depth - 1)).encode()).decode()

    def _negative(self, depth: int) -> dict[str, Any]:
        return {"negative": self.query(depth), "negative_boost": 0.5}

    def _functions(self) -> Any:
        return [{"filter": self.query(1), "weight": 2}, {"gauss": {"n": {"origin": 1, "scale": 5}}}]

    def _script(self) -> Any:
        return {"id": "stored"} if self._rarely() else {"source": "1"}

    def _rescore(self) -> Any:
        return {"window_size": 5, "query": {"rescore_query": self.query(2)}}

    def _sort(self) -> Any:
        nested = {"path": "p", "filter": self.query(1)}
        script = {"script": self._script(), "type": "number"}
        return self.random.choice([["_score"], [{"n": {"nested": nested}}], [{"_script": script}]])

    def _runtime(self) -> Any:
        fetched = {"input_field": "url", "target_field": "url", "fetch_fields": ["contents"]}
        lookup = {"type": "lookup", "target_index": self._other(), **fetched}
        return {"x": self.random.choice([lookup, {"type": "long", "script": "emit(1)"}])}

    def _pipeline(self) -> Any:
        processor = {"filter_query": {"query": self.query(2)}}
        return self.random.choice(["named", {"request_processors": [processor]}])


LIKE = {"min_term_freq": 1, "min_doc_freq": 1}
SPAN = {"span_term": {"contents": "storm"}}
