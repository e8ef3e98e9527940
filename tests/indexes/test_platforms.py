"""Posts in the forms of platforms and in ours are read with the right text and link."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.index_samples import write_lines

from tweetrerank.indexes.posts import Post, read_posts


def entities(url: str) -> dict[str, Any]:
    return {"urls": [{"url": "http://t.co/x", "expanded_url": url}]}


# The tweet that the retweets below repeat
ORIGINAL = {
    "id": "2",
    "text": "a long text: with an end",
    "entities": entities("http://o"),
}
BLUESKY_POST = {
    "$type": "app.bsky.feed.post",
    "text": "hi o",
    "embed": {"external": {"uri": "http://o"}},
}

FORMS = [
    pytest.param(
        {
            "id": 1,
            "text": "the beginning …",
            "entities": entities("http://twitter.com/i/web/status/1"),
            "extended_tweet": {
                "full_text": "the whole",
                "entities": entities("http://e"),
            },
        },
        [Post("1", "the whole", "http://e")],
        id="Twitter 1.1: extended_tweet",
    ),
    pytest.param(
        {
            "id": "3",
            "text": "RT @ann: a long te…",
            "entities": {"urls": []},
            "retweeted_status": ORIGINAL,
        },
        [Post("3", "RT @ann: a long text: with an end", "http://o")],
        id="Twitter 1.1: retweet with the original",
    ),
    pytest.param(
        {
            "id": "3",
            "text": "RT @ann: a long text: with an end",
            "retweeted_status": ORIGINAL,
        },
        [Post("3", "RT @ann: a long text: with an end", "http://o")],
        id="Twitter 1.1: whole retweet",
    ),
    pytest.param(
        {"id": 1, "full_text": "R&amp;B &#39;n &#x27;&quot; &amp;lt; &copy &x;"},
        [Post("1", "R&B 'n '\" &lt; &copy &x;")],
        id="Twitter 1.1: escapes",
    ),
    pytest.param(
        {"statuses": [ORIGINAL], "search_metadata": {}},
        [Post("2", "a long text: with an end", "http://o")],
        id="Twitter 1.1: page of a search",
    ),
    pytest.param(
        {
            "id": "3",
            "text": "RT @ann: a long te…",
            "referenced_tweets": [
                {"type": "quoted", "id": "9", "text": "x"},
                {
                    "type": "retweeted",
                    "id": "2",
                    "text": "a long text: with an end",
                    "entities": entities("http://o"),
                },
            ],
        },
        [Post("3", "RT @ann: a long text: with an end", "http://o")],
        id="Twitter 2: retweet among references",
    ),
    pytest.param(
        {
            "id": "3",
            "text": "RT @ann: a long te…",
            "referenced_tweets": [
                {
                    "type": "retweeted",
                    "text": "cut…",
                    "note_tweet": {
                        "id": None,
                        "text": "a long text: with an end",
                        "entities": entities("http://o"),
                    },
                }
            ],
        },
        [Post("3", "RT @ann: a long text: with an end", "http://o")],
        id="Twitter 2: note_tweet of the original",
    ),
    pytest.param(
        {
            "id": "1",
            "text": "cut…",
            "note_tweet": {"text": "all", "entities": entities("http://n")},
        },
        [Post("1", "all", "http://n")],
        id="Twitter 2: note_tweet",
    ),
    pytest.param(
        {
            "id": "1",
            "text": "x",
            "entities": {"urls": [{"expanded_url": "p", "media_key": "3"}]},
        },
        [Post("1", "x")],
        id="Twitter 2: link of a medium",
    ),
    pytest.param(
        {
            "data": [
                {"id": "1", "text": "a &lt; b"},
                {
                    "id": "3",
                    "text": "RT @ann: a long te…",
                    "referenced_tweets": [{"type": "retweeted", "id": "2"}],
                },
            ],
            "includes": {"tweets": [ORIGINAL], "users": []},
            "meta": {"result_count": 2},
        },
        [
            Post("1", "a < b"),
            Post("3", "RT @ann: a long text: with an end", "http://o"),
        ],
        id="Twitter 2: page with included tweets",
    ),
    pytest.param(
        {"data": {"id": "1", "text": "a &amp; b"}, "matching_rules": []},
        [Post("1", "a & b")],
        id="Twitter 2: stream",
    ),
    pytest.param(
        {"tweet": {"id_str": "1", "full_text": "archived"}},
        [Post("1", "archived")],
        id="Twitter's archive",
    ),
    pytest.param(
        {"id": 1, "text": "write &amp; for &"},
        [Post("1", "write &amp; for &")],
        id="own form: escapes stay",
    ),
    pytest.param(
        {"id": 1, "text": "x", "data": {"id": 2}},
        [Post("1", "x")],
        id="own form with a key of a page",
    ),
    pytest.param(
        {
            "id": "1",
            "content": (
                '<p>Rock &amp; roll <a href="h" class="u-url mention">@ann</a></p><p>'
                '<a href="http://o"><span class="invisible">http://</span>o</a></p>'
            ),
            "url": "own page",
        },
        [Post("1", "Rock & roll @ann http://o", "http://o")],
        id="Mastodon: status",
    ),
    pytest.param(
        {
            "id": "1",
            "content": "",
            "reblog": {"content": "<p>x<br>y</p>", "card": {"url": "c"}},
        },
        [Post("1", "x y", "c")],
        id="Mastodon: boost",
    ),
    pytest.param(
        {
            "type": "OrderedCollection",
            "orderedItems": [
                {"type": "Announce", "object": "https://m/2"},
                {
                    "type": "Create",
                    "object": {
                        "id": "https://m/1",
                        "content": "<p>x</p>",
                        "summary": "w",
                    },
                },
            ],
        },
        [Post("https://m/1", "w x")],
        id="Mastodon: outbox.json",
    ),
    pytest.param(
        {"feed": [{"post": {"uri": "at://1", "record": BLUESKY_POST}}]},
        [Post("at://1", "hi o", "http://o")],
        id="Bluesky: feed",
    ),
    pytest.param(
        {
            "records": [
                {
                    "uri": "at://1",
                    "value": {
                        **BLUESKY_POST,
                        "facets": [
                            {
                                "features": [
                                    {
                                        "$type": "app.bsky.richtext.facet#link",
                                        "uri": "http://f",
                                    }
                                ]
                            }
                        ],
                    },
                },
                {"uri": "u", "value": {"$type": "like"}},
            ]
        },
        [Post("at://1", "hi o", "http://f")],
        id="Bluesky: records",
    ),
    pytest.param(
        {
            "did": "d",
            "kind": "commit",
            "commit": {
                "operation": "create",
                "collection": "app.bsky.feed.post",
                "rkey": "5",
                "record": BLUESKY_POST,
            },
        },
        [Post("at://d/app.bsky.feed.post/5", "hi o", "http://o")],
        id="Bluesky: Jetstream",
    ),
    pytest.param(
        {"id": 7, "contents": "hi", "url": "http://a.b"},
        [Post("7", "hi", "http://a.b")],
        id="our own form",
    ),
    pytest.param(
        {"id": "blog-1", "text": "", "url": None},
        [Post("blog-1", "")],
        id="an empty text and no URL",
    ),
    pytest.param(
        {"id": 34952194402811900, "id_str": "34952194402811904", "text": "x"},
        [Post("34952194402811904", "x")],
        id="an id that a program has rounded",
    ),
    pytest.param(
        {"id": 1, "text": "cut…", "full_text": "cut no more"},
        [Post("1", "cut no more")],
        id="full_text before text",
    ),
    pytest.param(
        {
            "id": 1,
            "text": "x",
            "entities": {
                "urls": [
                    {"url": "http://t.co/x", "expanded_url": "http://long.example/a"},
                    {"url": "http://t.co/x", "expanded_url": "http://b"},
                ]
            },
        },
        [Post("1", "x", "http://long.example/a")],
        id="the first of two links",
    ),
    pytest.param(
        {"id": 1, "text": "x", "entities": {"urls": [{"url": "http://t.co/x"}]}},
        [Post("1", "x", "http://t.co/x")],
        id="a link without its long form",
    ),
    pytest.param(
        {"id": 1, "text": "x", "entities": {}},
        [Post("1", "x")],
        id="entities without a list of links",
    ),
    pytest.param(
        {"id": 1, "text": "x", "entities": {"urls": []}},
        [Post("1", "x")],
        id="no links",
    ),
    pytest.param(
        {"id": 1, "text": "x", "entities": {"urls": None}},
        [Post("1", "x")],
        id="null for the links",
    ),
    pytest.param(
        {"id": 1, "text": "x", "entities": None},
        [Post("1", "x")],
        id="null for the entities",
    ),
]


@pytest.mark.parametrize(("record", "expected"), FORMS)
def test_forms_of_posts(
    tmp_path: Path, record: Mapping[str, Any], expected: list[Post]
) -> None:
    """On one line, and over several."""
    line = write_lines(tmp_path / "page.jsonl", [record])
    assert list(read_posts(line)) == expected
    pretty = tmp_path / "pretty.json"
    pretty.write_text(f"\n{json.dumps(record, indent=1)}\n")
    assert list(read_posts(pretty)) == expected
