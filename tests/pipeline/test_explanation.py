"""Explanations: rank changes, matches, contributions; their pages and their terminal output."""

import base64
import hashlib
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from helpers.fusion_samples import trained_fusion
from helpers.reranking_samples import AWKWARD, POSTS, QUERIES, encoder, small_model

from indexes.posts import Post
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Place
from pipeline.explanation.pages import page
from pipeline.explanation.terminal import print_explanation
from pipeline.explanation.topic import ExplainedTopic, choose, rank_changes
from pipeline.ranking.retrievers import Candidates
from rerankers.explanation import (
    WORD_STEPS,
    Cell,
    Column,
    Explanation,
    Reasons,
    Row,
    shade_words,
    visible,
)
from rerankers.networks.models._mp_hcnn_matches import explain
from rerankers.pairs import Pairs
from rerankers.trees.boosting import Trees

HOSTILE = """<script>alert("1")</script> & 'water' </p>\x00\u202e Egypt"""
POST = Post("5", "storm today", "http://x.org")


def topic_of(
    explanation: Explanation, *posts: Post, query: str, query_id: str = "7", name: str = "made up"
) -> ExplainedTopic:
    """Posts in the order of the new ranking, which is the reverse of the old one."""
    before = {post.doc_id: float(n) for n, post in enumerate(posts)}
    after = {doc_id: 1 - score for doc_id, score in before.items()}
    return ExplainedTopic(
        name,
        Topic(query_id, query),
        {"Model": "<a>"},
        rank_changes({"before": before, "after": after}),
        {post.doc_id: 2 for post in posts[:1]},
        {"named posts": list(before)},
        {post.doc_id: post for post in posts},
        explanation,
    )


def matches(
    text: str, url: str = "", query: str = QUERIES[1], doc_id: str = "1", **changes: str
) -> ExplainedTopic:
    """Matches of one post, by a small model with random weights."""
    rows = np.array([0])
    pairs = Pairs([query], [text], [url], rows, rows)
    explanation = explain(small_model("mp_hcnn", "robust"), encoder(), pairs, [0])
    return topic_of(explanation, Post(doc_id, text, url), query=query, **changes)


def contributions(
    *families: Mapping[str, float], post: Post = POST, query: str = "storm", **changes: str
) -> ExplainedTopic:
    """Contributions by ``families``, one mapping per post; all posts have one text."""
    posts = [post._replace(doc_id=f"{post.doc_id}{'+' * n}") for n in range(len(families))]
    shaded = shade_words(query, [post[1:] for post in posts], by_meaning=False)
    found = [
        Reasons(text, url, [Row(name, None, (Cell(value),)) for name, value in added.items()])
        for added, (text, url) in zip(families, shaded, strict=True)
    ]
    importances = dict.fromkeys(families[0], 0.5)
    explanation = Explanation(
        "contributions", "<iframe>", WORD_STEPS, [Column("")], found, -0.5, importances
    )
    return topic_of(explanation, *posts, query=query, **changes)


class Page(HTMLParser):
    """Elements and texts of a page whose elements all end where they should."""

    VOID = ("meta", "br")

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(content)
        self.close()
        assert not self.open

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def count(self, tag: str) -> int:
        return [name for name, _ in self.elements].count(tag)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


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


FAMILIES = ("signal:rm3", "signal:ql", "signal:run_ql", "first_stage", "links", "overlap")


@pytest.fixture(scope="module")
def reranker() -> Trees:
    return trained_fusion(",".join(FAMILIES))


def candidates() -> Candidates:
    """Twenty posts, the last with nothing but a rank; rm3 knows every second one."""
    doc_ids = [str(n) for n in range(1, 21)]
    posts = {d: Post(d, f"storm {d} today", "http://x.org/storm" * (int(d) % 3)) for d in doc_ids}
    posts["20"] = Post("20", "")
    ql, rm3 = np.random.default_rng(3).random((2, 20)).tolist()
    run = {"7": dict(zip(doc_ids, ql, strict=True))}
    signals = {"ql": run, "rm3": {"7": dict([*zip(doc_ids, rm3, strict=True)][1::2])}}
    return Candidates([Topic("7", "storm warning")], run, posts, {}, signals)


def test_families_add_up_to_the_scores_of_a_search(reranker: Trees) -> None:
    found = candidates()
    scores = found.scored_by(reranker)["7"]
    assert len(set(scores.values())) > 5
    explanation: Any = reranker.explain(found.pairs(), range(len(scores)))
    for score, post in zip(scores.values(), explanation.posts, strict=True):
        families = {row.label: row.cells[0].score for row in post.rows}
        assert set(families) == set(FAMILIES)
        assert list(families) == list(explanation.importances)
        total = explanation.base + sum(families.values())
        assert total == pytest.approx(score, abs=1e-4)
    # Importances are shares of the families, the most important one first.
    importances, shares = reranker.importances(), explanation.importances
    rm3 = sum(value for name, value in importances.items() if name.startswith("signal:rm3."))
    assert shares["signal:rm3"] == pytest.approx(rm3 / sum(importances.values()))
    assert next(iter(shares)) == "signal:rm3"
    assert list(shares.values()) == sorted(shares.values(), reverse=True)


URL = 'javascript:"</p><img src=x>'
STRANGE = {"query_id": "<7>", "name": "<b>"}


def assert_texts_stay_texts(topic: ExplainedTopic) -> None:
    """No text becomes an element, an attribute or a control character."""
    content = page(topic)
    content.encode()
    found = Page(content)
    harmful = {"script", "img", "i", "u", "b", "a", "link", "iframe"}
    assert not {tag for tag, _ in found.elements} & harmful
    attributes = {name for _, attributes in found.elements for name in attributes}
    assert not {name for name in attributes if name.startswith("on")}
    assert not attributes & {"src", "href", "style"}
    (post,) = topic.posts.values()
    for text in (*post, topic.topic.text, "Topic <7>", "(<b>)", "<a>"):
        assert visible(text) in found.text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", content)


@pytest.mark.parametrize("text", [HOSTILE, *AWKWARD.values()], ids=["hostile", *AWKWARD])
def test_texts_on_a_page_of_matches(text: str) -> None:
    assert_texts_stay_texts(matches(text, URL, "<i>egypt", '"><u>', **STRANGE))


def test_texts_on_a_page_of_contributions() -> None:
    families = {"signal:<i>": 0.5, "links": -0.25}
    post = Post('"><u>', HOSTILE, URL)
    assert_texts_stay_texts(contributions(families, post=post, query=HOSTILE, **STRANGE))


def test_a_page_needs_nothing_else() -> None:
    for explanation in (matches(*POSTS[2]), contributions({"links": 1.0})):
        found = Page(page(explanation))
        (policy,) = [a["content"] or "" for _, a in found.elements if "http-equiv" in a]
        (style,) = [text for text in found.texts if ":root" in text]
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none'; ")
        assert policy.endswith(f"; style-src 'sha256-{digest}'")
        assert "url(" not in style
        assert "@import" not in style


def test_a_query_and_a_post_without_words() -> None:
    for query in ("!!!", QUERIES[0]):
        found = Page(page(matches("…", "", query)))
        assert "no URL" in found.text
        assert ("The query has no words" in found.text) == (query == "!!!")


def test_posts_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\x1b[2Jwater [bold]x[/bold] :smile: \u202e"
    for explanation in (matches(text), contributions({"links": 1.0}, post=Post("5", text))):
        print_explanation(explanation)
        output = capsys.readouterr().out
        assert "\x1b" not in output
        assert "[bold]x[/bold] :smile: �" in output


def test_matches_in_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_explanation(matches("no Water @water in EGYPT!", "http://x.org/water"))
    lines = capsys.readouterr().out.splitlines()
    assert "no ‹Water› @water ‹in› ‹EGYPT›!" in lines
    header = next(line for line in lines if line.startswith("query "))
    assert re.split(r" {2,}", header)[:3] == ["query", "IDF", "word"]
    row = next(line for line in lines if line.startswith("water "))
    assert "‹1.00 water›" in row
    assert all(line == line.rstrip() for line in lines)
