"""Explanations: rank changes, matches, contributions; their pages and their terminal output."""

import base64
import hashlib
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import Capture
from helpers.reranking_samples import AWKWARD, QUERIES, small

from indexes.posts import Post
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Place
from pipeline.explanation.pages import page
from pipeline.explanation.terminal import print_explanation
from pipeline.explanation.topic import ExplainedTopic, choose, rank_changes
from rerankers.explanation import shade_words, visible
from rerankers.pairs import Pairs
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
    rows = np.arange(2)
    pairs = Pairs([query], [post.text, "water"], [post.url, ""], 0 * rows, rows)
    doc_id, topic, explanation = post.doc_id, Topic("<7>", query), model.explain(pairs, [0])
    assert explanation
    changes = rank_changes({"before": {doc_id: 0.0}, "after": {doc_id: 1.0}})
    known: Any = ({"Model": "<a>"}, changes, {doc_id: 2}, {"named posts": [doc_id]}, {doc_id: post})
    return ExplainedTopic("<b>", topic, *known, explanation)


def parsed(content: str) -> ElementTree.Element:
    """The root of a page whose elements all end where they should."""
    return ElementTree.fromstring(re.sub(r"<(meta|br)\b([^>]*)>", r"<\1\2/>", content))


def test_ranks_follow_the_tie_rule() -> None:
    before = {"a": 3.0, "b": 2.0, "c": 2.0, "d": 0.0}
    after = {"a": 0.1, "b": 0.4, "c": 0.3, "d": 0.2}
    changes = rank_changes({"before": before, "after": after})
    assert list(changes) == ["b", "c", "d", "a"]
    assert changes["c"].places == {"before": Place(2, 2.0), "after": Place(2, 0.3)}
    assert [changes[d].gain for d in "bcda"] == [2, 0, 1, -3]
    assert choose(changes, 1) == {
        "best of the new ranking": ["b"],
        "largest gains of the others": ["d"],
        "largest losses of the others": ["a"],
    }
    assert list(choose(changes, 9)) == ["best of the new ranking"]


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
        assert "no URL" in content
        assert ("The query has no words" in content) == (query == "!!!")


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
