"""The symbols of the engines' search grammar, for :mod:`helpers.search_grammar`.

A text that begins with ``$`` is a symbol. The key ``name?6`` means that six of a
hundred objects have the key ``name``.
"""

from typing import Any


def times(count: int, *choices: Any) -> list[Any]:
    """Return choices that are each as probable as ``count`` single ones."""
    return list(choices) * count


def once(*choices: Any) -> list[Any]:
    """Choices."""
    return list(choices)


GRAMMAR: dict[str, list[Any]] = {
    # Texts of queries
    "word": [
        "storm",
        "bbc world",
        "cuts",
        "water egypt",
        "no such word",
        "st*rm~ -cuts",
    ],
    "field": [
        "contents",
        "_id",
        "url",
    ],
    # Clauses of a Boolean query
    "clause": [
        "must",
        "should",
        "filter",
        "must_not",
    ],
    # An index, in most cases the one that may be read
    "other": times(14, "$index") + once("$secret", "$secret", "$all"),
    # Names that cover the secret index, or look like it
    "all": [
        "$secre*",
        "*",
        "_all",
        "<$secret>",
        " $secret",
    ],
    # Indexes in a path
    "in path": times(32, "$index") + once("$other", "$index,$other", ""),
    # Headers among several searches
    "header": times(32, {"index": "$index"})
    + once(
        {"index": "$other"},
        {"index": ["$index", "$other"]},
        {"index": []},
        {"index": ""},
        {"index": None},
        {"index": [""]},
        {"indices": "$other"},
        {"indices": ["$index", "$other"]},
        {"indices": []},
        {"indices": "$index,$other"},
    ),
    # Documents of an index
    "document": [{"_index": "$index", "_id": "1"}, {"_index": "$other", "_id": "1"}],
    # Values of a document elsewhere
    "lookup": [
        {"index": "$other", "id": "1", "path": "contents", "query?6": {"match_all": {}}}
    ],
    # Texts and documents of more_like_this
    "like": [
        "$word",
        ["$word", "$document"],
        "$document",
    ],
    # Functions of a score
    "function": [
        {"filter": "$query", "weight": 2},
        {"gauss": {"n": {"origin": 1, "scale": 5}}},
    ],
    # Scripts: here, or stored by an administrator
    "script": times(15, {"source": "1"}) + once({"id": "stored"}),
    # Sorts, with the queries and scripts inside of them
    "sort": [
        ["_score"],
        [{"n": {"nested": {"path": "p", "filter": "$query"}}}],
        [{"_script": {"script": "$script", "type": "number"}}],
    ],
    # Fields that a search makes
    "runtime": [
        {
            "type": "lookup",
            "target_index": "$other",
            "input_field": "url",
            "target_field": "url",
            "fetch_fields": ["contents"],
        },
        {"type": "long", "script": "emit(1)"},
    ],
    # Pipelines: by name, or in the search
    "pipeline": [
        "named",
        {"request_processors": [{"filter_query": {"query": "$query"}}]},
    ],
    # Second queries
    "rescore": [{"window_size": 5, "query": {"rescore_query": "$query"}}],
    # Queries that JSON hides
    "packed": times(15, {"span_term": {"contents": "storm"}})
    + once({"wrapper": {"query": "$base64 query"}}),
    # Queries; those with other queries inside are in nesting
    "query": times(
        4,
        {"match": {"contents": "$word"}},
        {"match_phrase": {"contents": "$word"}},
        {"multi_match": {"query": "$word", "fields": ["contents", "url"]}},
        {"query_string": {"query": "$word", "default_field": "contents"}},
        {"terms": {"$field": "$lookup"}},
        {"terms": {"$field": ["1", "2"], "boost": 2}},
    )
    + once(
        {
            "more_like_this": {
                "fields": ["contents"],
                "like": "$like",
                "min_term_freq": 1,
                "min_doc_freq": 1,
            }
        },
        {"geo_shape": {"place": {"indexed_shape": "$lookup", "relation": "within"}}},
        {"percolate": {"field": "query", "index": "$other", "id": "1"}},
        {"script": {"script": "$script"}},
        {"ids": {"values": ["1", "2"]}},
        {"intervals": {"contents": {"match": {"query": "$word", "max_gaps": 2}}}},
        "$packed",
    ),
    # Queries with others inside
    "nesting": [
        {"bool": {"$clause": ["$query", "$query"]}},
        {"dis_max": {"queries": ["$query", "$query"]}},
        {"constant_score": {"filter": "$query"}},
        {
            "function_score": {
                "query": "$query",
                "functions": ["$function", "$function"],
            }
        },
        {"script_score": {"query": "$query", "script": "$script"}},
        {"nested": {"path": "p", "ignore_unmapped": True, "query": "$query"}},
        {
            "boosting": {
                "positive": "$query",
                "negative": "$query",
                "negative_boost": 0.5,
            }
        },
        {"hybrid": {"queries": ["$query"]}},
        {"has_child": {"type": "t", "ignore_unmapped": True, "query": "$query"}},
        {
            "span_near": {
                "clauses": [
                    {"span_term": {"contents": "storm"}},
                    {"span_multi": {"match": "$query"}},
                ],
                "slop": 1,
            }
        },
        {"pinned": {"docs": ["$document"], "organic": "$query"}},
        {"template": {"query": "$query"}},
        {"rule": {"query": "$query"}},
    ],
    # Aggregations
    "aggregation": [
        {"filter": "$query", "aggs?50": {"a": "$aggregation"}},
        {"wrapper": {"query": "$base64 query"}},
        {"filters": {"filters": {"a": "$query", "meta": "$query"}}},
        {"filters": {"filters": ["$query"]}},
        {"adjacency_matrix": {"filters": {"a": "$query"}}},
        {"terms": {"field": "url", "order": {"_count": "asc"}}},
        {"terms": {"script": "$script"}},
        {"significant_text": {"field": "contents", "background_filter": "$query"}},
        {"top_hits": "$search"},
        {"global": {}, "aggs": {"a": "$aggregation"}},
        {"scripted_metric": {"map_script": "$script", "reduce_script": "$script"}},
        {"composite": {"sources": [{"a": {"terms": {"field": "n"}}}]}},
        {"max": {"field": "n"}},
    ],
    # Suggesters
    "suggester": [
        {"term": {"field": "contents"}},
        {
            "phrase": {
                "field": "contents",
                "collate": {"query": {"source": "$json query"}, "prune": True},
            }
        },
        {"completion": {"field": "contents"}},
    ],
    # Retrievers
    "retriever": times(3, {"standard": {"query": "$query", "filter": "$query"}})
    + once(
        {"rrf": {"retrievers": ["$retriever", {"standard": {"query": "$query"}}]}},
        {"linear": {"retrievers": [{"retriever": "$retriever", "weight": 2}]}},
        {"rescorer": {"retriever": "$retriever", "rescore": "$rescore"}},
        {"pinned": {"docs": ["$document"], "retriever": "$retriever"}},
        {"rule": {"ruleset_ids": ["$secret"], "retriever": "$retriever"}},
    ),
    # Bodies of searches
    "search": times(16, "$usual search")
    + once({"retriever": "$retriever", "profile?40": True}),
    # Searches without a retriever
    "usual search": [
        {
            "query?90": "$query",
            "profile?40": True,
            "aggs?30": {"a": "$aggregation"},
            "suggest?20": {"text": "$word", "s": "$suggester"},
            "post_filter?6": "$query",
            "rescore?6": "$rescore",
            "sort?6": "$sort",
            "collapse?6": {
                "field": "url",
                "inner_hits": {"name": "x", "sort?50": "$sort"},
            },
            "highlight?6": {"fields": {"contents": {"highlight_query": "$query"}}},
            "script_fields?6": {"x": {"script": "$script"}},
            "runtime_mappings?6": {"x": "$runtime"},
            "knn?6": {"field": "v", "query_vector": [1], "k": 1, "filter": "$query"},
            "indices_boost?6": [{"$other": 2}],
            "pit?6": {"id": "$secret"},
            "search_pipeline?6": "$pipeline",
            "ext?6": {"rerank?50": {"model": "$secret"}, "x?50": {}},
            "fields?6": ["*"],
            "size?6": 7,
            "from?6": 3,
            "explain?6": True,
            "sub_searches?6": [{"query": "$query"}, {"query": "$query"}],
        }
    ],
    # Texts of the mutated searches: also half a character, a control character, none
    "text": times(8, "bbc world service cuts")
    + once("cuts", "bbc world", "\ud83d", " ", "é\x07", ""),
    # Numbers of the mutated searches: also such as are none
    "number": [
        -2,
        0,
        7,
        101,
        130,
        "10",
        "x",
        1.5,
        None,
        True,
        9999,
        20000,
    ],
    # Fields of the mutated searches
    "name": [
        "contents",
        "url",
        "n",
        "*",
        "con*",
        "other",
        "_id",
        "",
    ],
    # Lists of fields, and values in place of a list
    "names": [
        "$name",
        [],
        ["$name"],
        ["$name", "$name"],
        [{"field": "$name"}],
        True,
        False,
    ],
    # Queries of the mutated searches
    "changed query": times(4, {"match": {"contents": "$text"}})
    + once(
        {"match": {"url": {"query": "$text", "operator": "or"}}},
        {"multi_match": {"query": "$text", "fields": ["con*", "other"]}},
        {"query_string": {"query": "$text", "default_field": "*"}},
        {"simple_query_string": {"query": "$text", "fields": ["contents"]}},
        {"bool": {"must": ["$changed query"], "$clause": {"match": {"n": "$text"}}}},
        {
            "bool": {
                "filter": ["$changed query"],
                "must_not": [{"match": {"contents": "$text"}}],
            }
        },
        {"dis_max": {"queries": ["$changed query", "$changed query"]}},
        {"constant_score": {"filter": "$changed query"}},
        {"match": "$text"},
        {"match_all": {}},
    ),
    # Sorts of the mutated searches
    "changed sort": [
        "_score",
        ["_score"],
        ["n"],
        [{"_score": "asc"}],
        [],
        {},
        5,
        [{"_score": "desc"}, {"n": "asc"}],
    ],
    # Searches that the stub engine understands, or just does not
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
            "rescore?6": {
                "window_size": 50,
                "query": {"rescore_query": "$changed query"},
            },
            "ext?6": {},
            "unknown?3": 5,
        }
    ],
    # Templates: as an object, or as a text
    "template": [
        {"source": "$search", "params": {"a": "b"}},
        {"source": "$json search", "params": {"a": "b"}},
    ],
}
"""The choices for each symbol.

The first three choices of ``query`` contain no other queries, and deep inside a search
only these three are drawn.
"""
