"""Explanations as HTML pages and as lines of a terminal."""

import base64
import hashlib
import re
from dataclasses import replace

import pytest
from explanation_samples import HOSTILE, Page, fusion_explanation, match_explanation
from reranking_samples import AWKWARD, POSTS, QUERIES

from indexes.posts import Post
from pipeline.explanation.contributions import FusionExplanation
from pipeline.explanation.matches import MatchExplanation
from pipeline.explanation.pages import page, signed
from pipeline.explanation.rank_changes import visible
from pipeline.explanation.terminal import print_explanation

URL = 'javascript:"</p><img src=x>'
STRANGE = {"query_id": "<7>", "name": "<b>"}
FAMILIES = {"signal:<i>": 0.5, "links": -0.25}


@pytest.mark.parametrize(
    "explanation",
    [
        match_explanation(HOSTILE, URL, "<i>egypt", '"><u>', **STRANGE),
        *(
            match_explanation(text, URL, "<i>egypt", '"><u>', **STRANGE)
            for text in AWKWARD.values()
        ),
        fusion_explanation(FAMILIES, post=Post('"><u>', HOSTILE, URL), query=HOSTILE, **STRANGE),
    ],
    ids=["matches", *AWKWARD, "contributions"],
)
def test_texts_stay_texts(explanation: MatchExplanation | FusionExplanation) -> None:
    """No text becomes an element, an attribute or a control character."""
    content = page(explanation)
    content.encode()
    found = Page(content)
    harmful = {"script", "img", "i", "u", "b", "a", "link", "iframe"}
    assert not {tag for tag, _ in found.elements} & harmful
    attributes = {name for _, attributes in found.elements for name in attributes}
    assert not {name for name in attributes if name.startswith("on")}
    assert not attributes & {"src", "href", "style"}
    (post,) = explanation.ranking.posts
    for text in (*post, explanation.ranking.topic.text, "Topic <7>", "(<b>)", "<a>"):
        assert visible(text) in found.text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", content)


@pytest.mark.parametrize(
    "explanation", [match_explanation(*POSTS[2]), fusion_explanation(FAMILIES)]
)
def test_a_page_needs_nothing_else(explanation: MatchExplanation | FusionExplanation) -> None:
    found = Page(page(explanation))
    (policy,) = [a["content"] or "" for _, a in found.elements if "http-equiv" in a]
    (style,) = [text for text in found.texts if ":root" in text]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none'; ")
    assert policy.endswith(f"; style-src 'sha256-{digest}'")
    assert "url(" not in style
    assert "@import" not in style


def test_a_page_of_matches_shows_the_models_values() -> None:
    explanation = match_explanation(*POSTS[2])
    found = Page(page(explanation))
    for bound in ("0.70", "0.80", "0.90", "0.99"):
        assert f"{bound} or more" in found.text
    (matches,) = explanation.posts.values()
    numbers = [n for row in matches.rows for n in (row.weight, *(c.score for c in row.cells))]
    printed = [text for text in found.texts if re.fullmatch(r"\d\.\d\d", text)]
    assert printed == [f"{number:.2f}" for number in numbers]


def test_a_query_and_a_post_without_words() -> None:
    for query in ("!!!", QUERIES[0]):
        found = Page(page(match_explanation("…", "", query)))
        assert "no URL" in found.text
        assert ("The query has no words" in found.text) == (query == "!!!")


def test_bars_have_one_scale() -> None:
    first, second = {"links": 3.0, "overlap": 0.0}, {"links": 0.5, "overlap": -1.0}
    found = Page(page(fusion_explanation(first, second)))
    bars = [
        (attributes["class"], attributes["x"], attributes["width"])
        for tag, attributes in found.elements
        if tag == "rect"
    ]
    # -1 to 3 is 100 %, so 0 is at 25 %.
    assert bars[:4] == [
        ("plus", "25.00%", "75.00%"),
        ("plus", "25.00%", "0.00%"),
        ("plus", "25.00%", "12.50%"),
        ("minus", "0.00%", "25.00%"),
    ]
    for number in ("+3.000", "0.000", "+0.500", "-1.000", "50.0%"):
        assert number in found.texts


def test_features_are_folded_away() -> None:
    assert Page(page(fusion_explanation({"links": 0.0}))).count("details") == 0
    found = Page(page(fusion_explanation({"links": 0.7}, features={"links.has_url": 0.7})))
    assert found.count("details") == 1
    assert {"links.has_url", "0.3333", "+0.700"} <= set(found.texts)


def test_a_model_without_importances() -> None:
    explanation = replace(fusion_explanation({"links": 0.0}), importances={"links": 0.0})
    assert "0.0%" in Page(page(explanation)).texts


def test_zero_has_no_sign() -> None:
    assert [signed(n) for n in (0.0004, -0.0004, -0.0006, 12.0)] == [
        "0.000",
        "0.000",
        "-0.001",
        "+12.000",
    ]


def test_posts_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\x1b[2Jwater [bold]x[/bold] :smile: \u202e"
    for explanation in (
        match_explanation(text),
        fusion_explanation({"links": 1.0}, post=Post("5", text)),
    ):
        print_explanation(explanation)
        output = capsys.readouterr().out
        assert "\x1b" not in output
        assert "[bold]x[/bold] :smile: �" in output


def test_matches_in_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_explanation(match_explanation("no Water @water in EGYPT!", "http://x.org/water"))
    lines = capsys.readouterr().out.splitlines()
    assert "no ‹Water› @water ‹in› ‹EGYPT›!" in lines
    header = next(line for line in lines if line.startswith("query "))
    assert re.split(r" {2,}", header)[:3] == ["query", "IDF", "word"]
    row = next(line for line in lines if line.startswith("water "))
    assert "‹1.00 water›" in row
    assert all(line == line.rstrip() for line in lines)


def test_small_contributions_are_left_out_of_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    families = {"links": 1.0, "overlap": -0.051, "phrases": 0.05, "quality": 0.3, "hashtags": 0.0}
    print_explanation(fusion_explanation(families, {**families, "links": 0.0}, {"links": 0.0}))
    first, second, third = re.split(r"\n#\d  ", capsys.readouterr().out)[1:]
    assert first.splitlines() == [
        "▲ 2, from #3  highly relevant [2]  post 5",
        "before #3 (0.0000), after #1 (1.0000)",
        "storm today",
        "http://x.org",
        "links    +1.000",
        "quality  +0.300",
        "overlap  -0.051",
    ]
    assert "phrases  +0.050" in second
    assert "links" not in second
    assert third.splitlines()[:4] == [
        "▼ 2, from #1  not judged  post 5++",
        "before #1 (2.0000), after #3 (-1.0000)",
        "storm today",
        "http://x.org",
    ]
