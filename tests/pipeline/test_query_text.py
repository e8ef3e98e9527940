"""The text of a search's query, which the models read."""

import json
import time
from typing import Any

import pytest

from tweetrerank.pipeline.service.proxy.allowed import matches
from tweetrerank.pipeline.service.proxy.ask import (
    PostFields,
    SearchDefaults,
    read_search,
)
from tweetrerank.pipeline.service.proxy.query_text import plain_text

DEFAULTS = SearchDefaults(PostFields(("x",), None))

TEXTS: dict[str, tuple[Any, str]] = {
    "a text": ({"match": {"x": "a b"}}, "a b"),
    "a text with options": (
        {"match": {"x": {"query": "a b", "operator": "and"}}},
        "a b",
    ),
    "a number": ({"match": {"x": 12}}, "12"),
    "a subfield, after another field": (
        {"match_phrase": {"title": "t", "x.english": {"query": "a b"}}},
        "a b",
    ),
    "a subfield, by its first letters, in any order": (
        {"match_bool_prefix": {"title": "t", "x.english": {"query": "a b"}}},
        "a b",
    ),
    "a subfield, by its first letters": (
        {"match_phrase_prefix": {"title": "t", "x.english": {"query": "a b"}}},
        "a b",
    ),
    "the text field, after another field": (
        {
            "bool": {
                "must": [
                    {"match": {"lang": "en"}},
                    {"match": {"x.english": "trump tax"}},
                ]
            }
        },
        "trump tax",
    ),
    "the text field, after a list without it": (
        {
            "bool": {
                "must": [
                    {"multi_match": {"query": "en", "fields": ["lang"]}},
                    {"match": {"x": "s"}},
                ]
            }
        },
        "s",
    ),
    "a list without the text field, which is all there is": (
        {"multi_match": {"query": "a", "fields": ["title^2"]}},
        "a",
    ),
    "a list with the text field": (
        {"combined_fields": {"query": "a", "fields": ["x", "title"]}},
        "a",
    ),
    "a query string with syntax": (
        {"query_string": {"query": "lang:en AND (big storm*) -calm"}},
        "big storm",
    ),
    "a simple query string, which names no fields": (
        {"simple_query_string": {"query": 'a +"b c" | -d lang:e'}},
        "a b c lang:e",
    ),
    "scoring clauses before filters": (
        {"bool": {"filter": [{"match": {"x": "f"}}], "should": {"match": {"x": "s"}}}},
        "s",
    ),
    "a filter, if nothing else has a text": (
        {"bool": {"filter": [{"term": {"x": 1}}, {"match": {"x": "s"}}]}},
        "s",
    ),
    "the best of several": (
        {"dis_max": {"queries": [{"term": {}}, {"match": {"x": "s"}}]}},
        "s",
    ),
    "a hybrid query": (
        {
            "hybrid": {
                "queries": [
                    {"knn": {"v": {"vector": [1], "k": 2}}},
                    {"match": {"x": "s"}},
                ]
            }
        },
        "s",
    ),
    "two levels": (
        {"function_score": {"query": {"bool": {"must": {"match": {"x": "s"}}}}}},
        "s",
    ),
    "a nested object": (
        {"nested": {"path": "x", "query": {"match": {"x.y": "n"}}}},
        "n",
    ),
}
"""Kind of a query -> the query, and its text on the field x."""

NO_TEXTS: dict[str, Any] = {
    "another field": {"match": {"lang": "en"}},
    "another default field": {"query_string": {"query": "en", "default_field": "lang"}},
    "words that lower the score": {"boosting": {"negative": {"match": {"x": "s"}}}},
    "words that exclude": {"bool": {"must_not": {"match": {"x": "s"}}}},
    "a field called match": {"term": {"match": {"query": "no"}}},
    "a truth value": {"match": {"x": {"query": True}}},
    "a text in place of fields": {"match": "odd"},
    "a text in place of a query": "odd",
}

PATHS: dict[str, tuple[Any, str, str]] = {
    "the longest name first, after an absent value": (
        {"match": {"a": None, "a.b": "x"}},
        "query.match.a.b",
        "x",
    ),
    "an item by its place": (
        {"bool": {"filter": [{"term": {}}, {"match": {"x": "s"}}]}},
        "query.bool.filter.1.match.x",
        "s",
    ),
    "names alone": (
        {"bool": {"must": {"match": {"a": {"query": "x"}}}}},
        "query.bool.must.match.a.query",
        "x",
    ),
}
"""Kind of a path -> a query, a path in the search, and the text there."""

SYNTAX: dict[str, tuple[str, str]] = {
    "words": ("storm coast", "storm coast"),
    "a wildcard": ("who won?", "who won"),
    "fields, distances, groups, weights": (
        "x:storm~2 lang:(en de) +coast^3",
        "storm coast",
    ),
    "NOT": ("NOT x:calm storm", "storm"),
    "signs and other operators": (
        "!calm -(sea of) storm && coast || gale",
        "storm coast gale",
    ),
    "a phrase, ranges, a regular expression": (
        'x:"storm warning"~3 [1 TO 5] {a TO b} /re.*x/ n:[1 TO *]',
        "storm warning",
    ),
    "escapes, and a sign in a word": (r"C\+\+ 1\:2 covid-19", "C++ 1:2 covid-19"),
    "a phrase without its end": ('"open', "open"),
    "a text that is too long": ("a" * 5000, "a" * 2000),
}
"""Kind of syntax -> a query string, and its words."""

NO_SYNTAX = {
    "other fields": "_exists_:x lang:en",
    "brackets alone": "((((",
}


def in_query_string(text: str) -> Any:
    return {"query_string": {"query": text, "default_field": "x"}}


def both_forms(query: Any) -> list[dict[str, Any]]:
    """A search with a query, and a retriever with it."""
    return [{"query": query}, {"retriever": {"standard": {"query": query}}}]


def check_text(content: dict[str, Any], text: str) -> None:
    actual = read_search(content, {}, DEFAULTS)
    assert actual.candidates
    assert actual.candidates.query == text
    assert actual.outcome == "unchanged"


def check_no_text(content: dict[str, Any]) -> None:
    actual = read_search(content, {}, DEFAULTS)
    assert actual.candidates is None
    assert actual.outcome == "no_text"
    assert json.loads(actual.body) == content


@pytest.mark.parametrize(("query", "text"), TEXTS.values(), ids=TEXTS)
def test_the_text_of_a_query(query: Any, text: str) -> None:
    for content in both_forms(query):
        check_text(content, text)
        assert json.loads(read_search(content, {}, DEFAULTS).body) == content


@pytest.mark.parametrize("query", NO_TEXTS.values(), ids=NO_TEXTS)
def test_queries_without_a_text(query: Any) -> None:
    for content in both_forms(query):
        check_no_text(content)


@pytest.mark.parametrize(("query", "path", "text"), PATHS.values(), ids=PATHS)
def test_the_text_at_a_path(query: Any, path: str, text: str) -> None:
    context = {"query_text_path": path}
    ext = {"rerank": {"query_context": context}}
    check_text({"query": query, "ext": ext}, text)
    body = read_search({"query": query, "ext": ext}, {}, DEFAULTS).body
    assert json.loads(body) == {"query": query}


@pytest.mark.parametrize(("string", "words"), SYNTAX.values(), ids=SYNTAX)
def test_the_words_of_a_query_string(string: str, words: str) -> None:
    for content in both_forms(in_query_string(string)):
        check_text(content, words)


@pytest.mark.parametrize("string", NO_SYNTAX.values(), ids=NO_SYNTAX)
def test_query_strings_without_words(string: str) -> None:
    for content in both_forms(in_query_string(string)):
        check_no_text(content)


@pytest.mark.parametrize("fields", [None, ["x"]], ids=["simple", "with fields"])
@pytest.mark.parametrize("syntax", ["((", "[", "/", '"', "a:", "\\", "-"])
def test_syntax_is_read_in_linear_time(
    syntax: str,
    fields: list[str] | None,
) -> None:
    started = time.perf_counter()
    plain_text(syntax * 9999, fields)
    assert time.perf_counter() - started < 1


def test_patterns_are_read_in_linear_time() -> None:
    started = time.perf_counter()
    assert not matches("*a" * 2000 + "b", "a" * 4000)
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        pytest.param("posts", "posts", True, id="equal"),
        pytest.param("posts", "posts-1", False, id="longer"),
        pytest.param("posts-*", "posts-", True, id="empty text"),
        pytest.param("posts-*", "a-posts-1", False, id="another start"),
        pytest.param("*-1", "posts-12", False, id="another end"),
        pytest.param("a*a*b", "aab", True, id="an empty text between"),
        pytest.param("a*b*a", "aa", False, id="no text between"),
        pytest.param("a*a", "a", False, id="start and end overlap"),
        pytest.param("posts-*", "posts-a*", True, id="a pattern inside of a pattern"),
        pytest.param("posts-*", "posts*", False, id="a wider pattern"),
    ],
)
def test_patterns(pattern: str, name: str, is_match: bool) -> None:
    assert matches(pattern, name) is is_match
