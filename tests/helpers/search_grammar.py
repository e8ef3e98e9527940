"""Searches made by chance of the engines' own grammar, many of which reach for another index."""

import base64
import json
from random import Random
from typing import Any, NamedTuple

Q, NO = "$query", {"match_all": {}}
LIKE = {"min_term_freq": 1, "min_doc_freq": 1}
SPAN = {"span_term": {"contents": "storm"}}
FETCHED = {"input_field": "url", "target_field": "url", "fetch_fields": ["contents"]}
FIELD = {"field": "contents"}
COLLATE = {"collate": {"query": {"source": "$json query"}, "prune": True}}

GRAMMAR: dict[str, list[Any]] = {
    "word": ["storm", "bbc world", "cuts", "water egypt", "no such word", "st*rm~ -cuts"],
    "field": ["contents", "_id", "url"],
    "clause": ["must", "should", "filter", "must_not"],
    "other": [*["$index"] * 14, "$secret", "$secret", "$all"],
    "all": ["$secre*", "*", "_all", "<$secret>", " $secret"],
    "in path": [*["$index"] * 32, "$other", "$index,$other", ""],
    "header": [
        *[{"index": "$index"}] * 32,
        *({"index": n} for n in ("$other", ["$index", "$other"], [], "", None, [""])),
        *({"indices": n} for n in ("$other", ["$index", "$other"], [], "$index,$other")),
    ],
    "document": [{"_index": n, "_id": "1"} for n in ("$index", "$other")],
    "lookup": [{"index": "$other", "id": "1", "path": "contents", "query?6": NO}],
    "like": ["$word", ["$word", "$document"], "$document"],
    "function": [{"filter": Q, "weight": 2}, {"gauss": {"n": {"origin": 1, "scale": 5}}}],
    "script": [*[{"source": "1"}] * 15, {"id": "stored"}],
    "sort": [
        ["_score"],
        [{"n": {"nested": {"path": "p", "filter": Q}}}],
        [{"_script": {"script": "$script", "type": "number"}}],
    ],
    "runtime": [
        {"type": "lookup", "target_index": "$other", **FETCHED},
        {"type": "long", "script": "emit(1)"},
    ],
    "pipeline": ["named", {"request_processors": [{"filter_query": {"query": Q}}]}],
    "rescore": [{"window_size": 5, "query": {"rescore_query": Q}}],
    "packed": [*[SPAN] * 15, {"wrapper": {"query": "$base64 query"}}],
    # Queries in which others are nested come last: they are left out in the depth.
    "query": [
        *[
            *({kind: {"contents": "$word"}} for kind in ("match", "match_phrase")),
            {"multi_match": {"query": "$word", "fields": ["contents", "url"]}},
            {"query_string": {"query": "$word", "default_field": "contents"}},
            {"terms": {"$field": "$lookup"}},
            {"terms": {"$field": ["1", "2"], "boost": 2}},
        ]
        * 4,
        {"more_like_this": {"fields": ["contents"], "like": "$like", **LIKE}},
        {"geo_shape": {"place": {"indexed_shape": "$lookup", "relation": "within"}}},
        {"percolate": {"field": "query", "index": "$other", "id": "1"}},
        {"script": {"script": "$script"}},
        {"ids": {"values": ["1", "2"]}},
        {"intervals": {"contents": {"match": {"query": "$word", "max_gaps": 2}}}},
        "$packed",
    ],
    "nesting": [
        {"bool": {"$clause": [Q, Q]}},
        {"dis_max": {"queries": [Q, Q]}},
        {"constant_score": {"filter": Q}},
        {"function_score": {"query": Q, "functions": ["$function", "$function"]}},
        {"script_score": {"query": Q, "script": "$script"}},
        {"nested": {"path": "p", "ignore_unmapped": True, "query": Q}},
        {"boosting": {"positive": Q, "negative": Q, "negative_boost": 0.5}},
        {"hybrid": {"queries": [Q]}},
        {"has_child": {"type": "t", "ignore_unmapped": True, "query": Q}},
        {"span_near": {"clauses": [SPAN, {"span_multi": {"match": Q}}], "slop": 1}},
        {"pinned": {"docs": ["$document"], "organic": Q}},
        *({kind: {"query": Q}} for kind in ("template", "rule")),
    ],
    "aggregation": [
        {"filter": Q, "aggs?50": {"a": "$aggregation"}},
        {"wrapper": {"query": "$base64 query"}},
        {"filters": {"filters": {"a": Q, "meta": Q}}},
        {"filters": {"filters": [Q]}},
        {"adjacency_matrix": {"filters": {"a": Q}}},
        {"terms": {"field": "url", "order": {"_count": "asc"}}},
        {"terms": {"script": "$script"}},
        {"significant_text": {"field": "contents", "background_filter": Q}},
        {"top_hits": "$search"},
        {"global": {}, "aggs": {"a": "$aggregation"}},
        {"scripted_metric": {"map_script": "$script", "reduce_script": "$script"}},
        {"composite": {"sources": [{"a": {"terms": {"field": "n"}}}]}},
        {"max": {"field": "n"}},
    ],
    "suggester": [{"term": FIELD}, {"phrase": {**FIELD, **COLLATE}}, {"completion": FIELD}],
    "retriever": [
        *[{"standard": {"query": Q, "filter": Q}}] * 3,
        {"rrf": {"retrievers": ["$retriever", {"standard": {"query": Q}}]}},
        {"linear": {"retrievers": [{"retriever": "$retriever", "weight": 2}]}},
        {"rescorer": {"retriever": "$retriever", "rescore": "$rescore"}},
        {"pinned": {"docs": ["$document"], "retriever": "$retriever"}},
        {"rule": {"ruleset_ids": ["$secret"], "retriever": "$retriever"}},
    ],
    "search": [*["$usual search"] * 16, {"retriever": "$retriever", "profile?40": True}],
    "usual search": [
        {
            "query?90": Q,
            "profile?40": True,
            "aggs?30": {"a": "$aggregation"},
            "suggest?20": {"text": "$word", "s": "$suggester"},
            "post_filter?6": Q,
            "rescore?6": "$rescore",
            "sort?6": "$sort",
            "collapse?6": {"field": "url", "inner_hits": {"name": "x", "sort?50": "$sort"}},
            "highlight?6": {"fields": {"contents": {"highlight_query": Q}}},
            "script_fields?6": {"x": {"script": "$script"}},
            "runtime_mappings?6": {"x": "$runtime"},
            "knn?6": {"field": "v", "query_vector": [1], "k": 1, "filter": Q},
            "indices_boost?6": [{"$other": 2}],
            "pit?6": {"id": "$secret"},
            "search_pipeline?6": "$pipeline",
            "ext?6": {"rerank?50": {"model": "$secret"}, "x?50": {}},
            "fields?6": ["*"],
            "size?6": 7,
            "from?6": 3,
            "explain?6": True,
            "sub_searches?6": [{"query": Q}, {"query": Q}],
        }
    ],
    # Of one index, with wrong and rare values.
    "text": [*["bbc world service cuts"] * 8, "cuts", "bbc world", "\ud83d", " ", "é\u0007", ""],
    "number": [-2, 0, 7, 101, 130, "10", "x", 1.5, None, True, 9999, 20_000],
    "name": ["contents", "url", "n", "*", "con*", "other", "_id", ""],
    "names": ["$name", [], ["$name"], ["$name", "$name"], [{"field": "$name"}], True, False],
    "changed query": [
        *[{"match": {"contents": "$text"}}] * 4,
        {"match": {"url": {"query": "$text", "operator": "or"}}},
        {"multi_match": {"query": "$text", "fields": ["con*", "other"]}},
        {"query_string": {"query": "$text", "default_field": "*"}},
        {"simple_query_string": {"query": "$text", "fields": ["contents"]}},
        {"bool": {"must": ["$changed query"], "$clause": {"match": {"n": "$text"}}}},
        {"bool": {"filter": ["$changed query"], "must_not": [{"match": {"contents": "$text"}}]}},
        {"dis_max": {"queries": ["$changed query", "$changed query"]}},
        {"constant_score": {"filter": "$changed query"}},
        *({"match": "$text"}, NO),
    ],
    "changed sort": [
        *("_score", ["_score"], ["n"], [{"_score": "asc"}], [], {}, 5),
        [{"_score": "desc"}, {"n": "asc"}],
    ],
    "changed search": [
        {
            "query": "$changed query",
            "size?15": "$number",
            "from?15": "$number",
            "sort?10": "$changed sort",
            "_source?10": "$names",
            "fields?10": "$names",
            "stored_fields?6": "$names",
            "docvalue_fields?6": ["$name"],
            "track_total_hits?6": "$number",
            "search_after?6": [1.0],
            "aggs?6": {"most": {"max": {"field": "n"}}},
            "highlight?6": {"fields": {"contents": {}}},
            "collapse?6": {"field": "$name"},
            "explain?6": True,
            "min_score?6": "$number",
            "post_filter?6": "$changed query",
            "rescore?6": {"window_size": 50, "query": {"rescore_query": "$changed query"}},
            "ext?6": {},
            "unknown?3": 5,
        }
    ],
    "template": [{"source": f"${kind}search", "params": {"a": "b"}} for kind in ("", "json ")],
}
"""Symbol -> what may stand for it; ``key?6`` is there in six of a hundred."""

DEPTH = 14  # Of symbols within each other; below, queries have no others in them


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
        name = self.made("$in path").replace(" ", "%20").replace("<", "%3C").replace(">", "%3E")
        more = f"&index={self.secret}" if self.random.random() < 0.06 else ""
        lines = "".join(self.json(f"${part}") + "\n" for part in ("header", "search") * 2)
        body, query = self.json("$search"), self.json({"query": Q})
        anywhere, post, get = self.random.choice(["", f"/{name}"]), "POST", "GET"
        source = f"source_content_type=application/json&source={body}"
        return self.random.choice(
            [
                *[Call(post, f"/{name}/_search?pretty{more}", body)] * 10,
                *[Call(post, f"{anywhere}/_msearch?pretty{more}", lines)] * 4,
                Call(post, f"/{name}/_search/template", self.json("$template")),
                Call(post, f"/{name}/_count", query),
                Call(get, f"/{name}/_validate/query?explain=true&rewrite=true", query),
                Call(post, f"{anywhere}/_mget", self.json({"docs": ["$document"] * 2})),
                Call(get, f"/{name}/_search?{source}", ""),
                Call(get, f"/{name}/_search?q={self.made('$word')}{more}", ""),
                Call(post, f"/{name}/_async_search", body),
                *(Call(get, f"/{name}/{of}", "") for of in ("_doc/1", "_source/1", "_mapping", "")),
            ]
        )

    def json(self, symbol: Any) -> str:
        """JSON of something that stands for a symbol."""
        return json.dumps(self.made(symbol))

    def made(self, symbol: Any, depth: int = 0) -> Any:
        """Something that stands for a symbol, or for each of those within a value."""
        if isinstance(symbol, list):
            return [self.made(item, depth) for item in symbol]
        if isinstance(symbol, dict):
            pairs = ((*key.partition("?")[::2], value) for key, value in symbol.items())
            return {
                self.made(key, depth): self.made(value, depth)
                for key, chance, value in pairs
                if self.random.random() * 100 < float(chance or 100)
            }
        if not isinstance(symbol, str) or "$" not in symbol:
            return symbol
        kind, _, name = symbol.removeprefix("$").partition(" ")
        if kind in ("json", "base64"):
            text = json.dumps(self.made(f"${name}", depth + 3))
            return text if kind == "json" else base64.b64encode(text.encode()).decode()
        if (choices := GRAMMAR.get(symbol[1:])) is None:  # A part of a text.
            text = symbol.replace("$index", self.index).replace("$secret", self.secret)
            text = text.replace("$secre*", f"{self.secret[:-1]}*")
            return text.replace("$other", str(self.made("$other"))) if "$other" in text else text
        if symbol == Q and depth < DEPTH and self.random.random() < 0.5:
            choices = GRAMMAR["nesting"]
        if depth > DEPTH + 4:
            choices = choices[:3]
        return self.made(self.random.choice(choices), depth + 3)
