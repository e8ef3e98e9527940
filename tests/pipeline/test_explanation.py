"""Explanations: rank changes, matches, contributions; their pages and their terminal output."""

import base64
import hashlib
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import Capture
from helpers.reranking_samples import AWKWARD, QUERIES, small

from indexes.posts import Post
from pipeline.collections.topics import Topic
from pipeline.explanation.topic import ExplainedTopic, choose, explain
from pipeline.explanation.views import page, print_explanation
from pipeline.ranking.ranker import Ranking
from pipeline.ranking.retrievers import Candidates
from rerankers.explanation import shade_words, visible
from rerankers.reranker import Model

HOSTILE = """<script>alert("1")</script> & 'water' </p>\x00\u202e Egypt"""


@pytest.fixture(scope="module")
def matching() -> Model:
    """A small model whose explanations are matches."""
    return small("mp_hcnn", "robust")


@pytest.fixture(scope="module", params=[("mp_hcnn", "robust"), ("window", "general")])
def model(request: pytest.FixtureRequest) -> Model:
    """Small models: explanations of the first are matches, of the other contributions."""
    return small(*request.param)


def explained(model: Model, post: Post, query: str = QUERIES[1]) -> ExplainedTopic:
    """The explanation of one post, which is relevant and the better one of two candidates."""
    query_id, other = "<7>", Post("other", "water")
    runs = [{query_id: {post.doc_id: score, "other": 0.5}} for score in (0.0, 1.0)]
    posts = {post.doc_id: post, "other": other}
    candidates = Candidates([Topic(query_id, query)], runs[0], posts)
    ranking = Ranking({"before": runs[0], "after": runs[1]}, candidates, {})
    found = explain(model, ranking, "before", [post.doc_id], "", 1)
    known: Any = {"collection": "<b>", "facts": {"Model": "<a>"}, "grades": {post.doc_id: 2}}
    return replace(found, **known)


def parsed(content: str) -> ElementTree.Element:
    """The root of a page whose elements all end where they should."""
    return ElementTree.fromstring(re.sub(r"<(meta|br)\b([^>]*)>", r"<\1\2/>", content))


def test_ranks_follow_the_tie_rule(matching: Model) -> None:
    before = {"a": 3.0, "b": 2.0, "c": 2.0, "d": 0.0}
    after = {"a": 0.1, "b": 0.4, "c": 0.3, "d": 0.2}
    candidates = Candidates([Topic("1", "x")], {"1": before}, {d: Post(d, "x") for d in before})
    ranking = Ranking({"before": {"1": before}, "after": {"1": after}}, candidates, {})
    found = explain(matching, ranking, "before", [], "", 1)
    assert list(found.posts) == ["b", "c", "d", "a"]
    places = {"before": {"rank": 2, "score": 2.0}, "after": {"rank": 2, "score": 0.3}}
    assert found.posts["c"]["stages"] == places
    moved = [(found.posts[d]["gain"], found.posts[d]["movement"]) for d in "bca"]
    assert moved == [(2, "▲ 2 from 3"), (0, "same rank as before"), (-3, "▼ 3 from 1")]
    assert found.chosen == {
        "best of the new ranking": ["b"],
        "largest gains of the others": ["d"],
        "largest losses of the others": ["a"],
    }
    assert list(choose(found.posts, 9)) == ["best of the new ranking"]


def test_words_are_shaded_by_their_nearness_to_the_query() -> None:
    text = "The winner, marathons & a RACE in New York! Coffee @winner"
    post = (text, "http://x.org/Marathon-2012")
    ((words, link),) = shade_words("the marathon winners", [post], by_meaning=True)
    shaded = [(part.strip(), step) for part, step in words if step]
    assert shaded == [("winner", 3), ("marathons", 3), ("RACE", 1)]
    assert [part for part, step in link if step == 4] == ["Marathon"]
    assert "".join(part for part, _ in words) == text
    ((plain, _),) = shade_words("race", [post], by_meaning=False)
    assert [part for part, step in plain if step] == ["RACE"]
    ((stop, _),) = shade_words("the", [post], by_meaning=True)
    assert ("The", 4) in stop


@pytest.mark.parametrize("text", [HOSTILE, *AWKWARD.values()], ids=["hostile", *AWKWARD])
def test_texts_stay_texts_on_a_page_that_needs_nothing_else(model: Model, text: str) -> None:
    """No text becomes an element, an attribute or a control character."""
    post = Post('"><u>', text, 'javascript:"</p><img src=x>')
    content = page(explained(model, post, HOSTILE))
    content.encode()
    root = parsed(content)
    harmful = {"script", "img", "i", "u", "b", "a", "link", "iframe"}
    assert not {element.tag for element in root.iter()} & harmful
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not {name for name in attributes if name.startswith("on")}
    assert not attributes & {"src", "href", "style"}
    shown = "".join(root.itertext())
    for expected in (*post[:3], HOSTILE, "Topic <7>", "(<b>)", "<a>"):
        assert visible(expected) in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", content)
    policy, style = root.find("head/meta[@http-equiv]"), root.findtext("head/style") or ""
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    allowed = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src"
    assert policy.get("content") == f"{allowed} 'sha256-{digest}'"
    assert ":root" in style and "url(" not in style and "@import" not in style


def test_a_query_and_a_post_without_words(matching: Model) -> None:
    for query in ("!!!", QUERIES[0]):
        content = page(explained(matching, Post("1", "…"), query))
        assert ("no URL" in content, "The query has no words" in content) == (True, query == "!!!")


def test_posts_cannot_steer_a_terminal(model: Model, capsys: Capture) -> None:
    text = "\x1b[2Jwater [bold]x[/bold] :smile: \u202e"
    print_explanation(explained(model, Post("5", text)))
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "[bold]x[/bold] :smile: �" in output


def test_matches_in_a_terminal(matching: Model, capsys: Capture) -> None:
    post = Post("1", "no Water @water in EGYPT!", "http://x.org/water")
    print_explanation(explained(matching, post))
    lines = capsys.readouterr().out.splitlines()
    assert "no ‹Water› @water ‹in› ‹EGYPT›!" in lines
    header = next(line for line in lines if line.startswith("query "))
    assert re.split(r" {2,}", header)[:3] == ["query", "IDF", "word"]
    row = next(line for line in lines if line.startswith("water "))
    assert "‹1.00 water›" in row
    assert all(line == line.rstrip() for line in lines)
