"""Explanations: rank changes, matches, contributions; their pages, the terminal, the command."""

import base64
import hashlib
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import Capture, Command, Patch
from helpers.reranking_samples import (
    AWKWARD,
    QUERIES,
    fitted,
    pairs_that_rm3_orders,
    small,
)

from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import (
    Run,
    places,
    ranked,
    read_run,
    write_run,
)
from tweetrerank.pipeline.explanation.topic import (
    ExplainedTopic,
    choose,
    explain,
    grade_text,
)
from tweetrerank.pipeline.explanation.views import page, print_explanation
from tweetrerank.pipeline.ranking.ranker import Ranking
from tweetrerank.pipeline.ranking.retrievers import Candidates
from tweetrerank.rerankers.checkpoint import idf_from, save
from tweetrerank.rerankers.explanation import shade_words, visible
from tweetrerank.rerankers.model import Model
from tweetrerank.rerankers.trees.fusion import Config

HOSTILE = """<script>alert("1")</script> & 'water' </p>\x00\u202e Egypt"""
SAMPLE = ("--topics", "sample", "--query-id", "1")
GIVEN = (*SAMPLE, "--candidates", "small.run", "--reranker", "mp_hcnn")


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
    known: Any = {
        "collection": "<b>",
        "facts": {"Model": "<a>"},
        "grades": {post.doc_id: 2},
    }
    return replace(found, **known)


def test_ranks_follow_the_tie_rule() -> None:
    before = {"a": 3.0, "b": 2.0, "c": 2.0, "d": 0.0}
    after = {"a": 0.1, "b": 0.4, "c": 0.3, "d": 0.2}
    candidates = Candidates(
        [Topic("1", "x")], {"1": before}, {d: Post(d, "x") for d in before}
    )
    ranking = Ranking({"before": {"1": before}, "after": {"1": after}}, candidates, {})
    found = explain(small("mp_hcnn", "robust"), ranking, "before", [], "", 1)
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


@pytest.mark.parametrize(
    "text", [HOSTILE, *AWKWARD.values()], ids=["hostile", *AWKWARD]
)
def test_texts_stay_texts_on_a_page_that_needs_nothing_else(
    model: Model, text: str
) -> None:
    """No text becomes an element, an attribute or a control character."""
    post = Post('"><u>', text, 'javascript:"</p><img src=x>')
    content = page(explained(model, post, HOSTILE))
    content.encode()
    # All elements end where they should.
    root = ElementTree.fromstring(re.sub(r"<(meta|br)\b([^>]*)>", r"<\1\2/>", content))
    harmful = {"script", "img", "i", "u", "b", "a", "link", "iframe"}
    assert not {element.tag for element in root.iter()} & harmful
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not {name for name in attributes if name.startswith("on")}
    assert not attributes & {"src", "href", "style"}
    shown = "".join(root.itertext())
    for expected in (*post[:3], HOSTILE, "Topic <7>", "(<b>)", "<a>"):
        assert visible(expected) in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", content)
    policy, style = (
        root.find("head/meta[@http-equiv]"),
        root.findtext("head/style") or "",
    )
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    allowed = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src"
    assert policy.get("content") == f"{allowed} 'sha256-{digest}'"
    assert ":root" in style and "url(" not in style and "@import" not in style


def test_a_query_and_a_post_without_words() -> None:
    for query in ("!!!", QUERIES[0]):
        content = page(explained(small("mp_hcnn", "robust"), Post("1", "…"), query))
        assert ("no URL" in content, "The query has no words" in content) == (
            True,
            query == "!!!",
        )


def test_posts_cannot_steer_a_terminal(model: Model, capsys: Capture) -> None:
    print_explanation(
        explained(model, Post("5", "\x1b[2Jwater [bold]x[/bold] :smile: \u202e"))
    )
    output = capsys.readouterr().out
    assert "\x1b" not in output and "[bold]x[/bold] :smile: �" in output


def test_matches_in_a_terminal(capsys: Capture) -> None:
    post = Post("1", "no Water @water in EGYPT!", "http://x.org/water")
    print_explanation(explained(small("mp_hcnn", "robust"), post))
    lines = capsys.readouterr().out.splitlines()
    assert "no ‹Water› @water ‹in› ‹EGYPT›!" in lines
    header = next(line for line in lines if line.startswith("query "))
    assert re.split(r" {2,}", header)[:3] == ["query", "IDF", "word"]
    assert "‹1.00 water›" in next(line for line in lines if line.startswith("water "))
    assert all(line == line.rstrip() for line in lines)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: Patch) -> Run:
    """A run of the sample's first two topics, in ``small.run`` of the current folder."""
    qrels = named.find("sample").qrels or {}
    made: Run = {
        q: {d: 20 - n / 2 for n, d in enumerate(sorted(qrels[q]))} for q in ("1", "2")
    }
    write_run(tmp_path / "small.run", made, "small")
    monkeypatch.chdir(tmp_path)
    return made


def ranks(output: str) -> dict[str, tuple[int, int, int]]:
    """doc_id -> printed ranks: of the run, of the model, and of their mixture."""
    blocks = re.findall(
        r"post (\S+)\nsmall.run #(\d+) .*?, mp_hcnn #(\d+) (.*)", output
    )
    found = {
        doc_id: (int(a), int(b), *re.findall(r"#(\d+)", c))
        for doc_id, a, b, c in blocks
    }
    # The mixture is no stage where λ is 1.
    return {doc_id: (a, b, int(*c) if c else b) for doc_id, (a, b, *c) in found.items()}


def test_a_run_in_the_terminal(command: Command, run: Run) -> None:
    output = command("explain", *GIVEN, "--show", "3", code=0).out
    assert "topic 1 “Harlow Bay marathon winner”, sample" in output
    assert "\x1b" not in output and "‹" in output
    shown = ranks(output)
    before = [doc_id for doc_id, _ in ranked(run["1"])]
    assert [before[old - 1] for old, _, _ in shown.values()] == list(shown)
    assert [new for _, _, new in shown.values()][:3] == [1, 2, 3]
    qrels = named.find("sample").qrels or {}
    for doc_id in shown:
        grade = qrels["1"][doc_id]
        assert f"{grade_text(grade)} [{grade}]  post {doc_id}\n" in output
    # The weight decides between the rankings.
    for weight in (0, 1):
        mixed = ranks(command("explain", *GIVEN, "--lambda", weight, code=0).out)
        assert mixed and all(found[weight] == found[2] for found in mixed.values())


def test_named_posts_on_a_page(command: Command, run: Run, tmp_path: Path) -> None:
    doc_ids = sorted(run["1"])[4:6]
    arguments = [part for doc_id in doc_ids for part in ("--doc-id", doc_id)]
    done = command("explain", *GIVEN, *arguments, "--output", "new/page.html", code=0)
    assert done.out == "" and "wrote new/page.html" in done.err
    content = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert content.count("<article>") == 2
    posts = named.find("sample").find_posts(doc_ids)
    shown = unescape(re.sub("<.*?>", "", content))
    for doc_id in doc_ids:
        assert f"post {doc_id}" in shown and visible(posts[doc_id].text) in shown
    assert str(tmp_path) not in content


def test_contributions_in_colours(
    command: Command, run: Run, monkeypatch: Patch
) -> None:
    given = (*SAMPLE, "--candidates", "small.run", "--show", "3")
    output = command("explain", *given, code=0).out
    assert f"{len(run['1'])}, by small.run" in output and "meaning:general" in output
    assert "\x1b[" not in output and "‹" in output
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": ""}.items():
        monkeypatch.setenv(name, value)
    output = command("explain", *given).out
    assert "\x1b[" in output and "‹" not in output


@pytest.mark.slow
def test_a_fusions_ranks_are_those_of_a_search(
    command: Command, tmp_path: Path
) -> None:
    config = Config(
        families="signal:rm3,signal:ql,first_stage,links", trees=40, minimum_leaf=5
    )
    trained = fitted("fusion", config, *pairs_that_rm3_orders())
    save(tmp_path / "fusion", replace(trained, idf=idf_from("wordfreq")))
    reranker = ("--reranker", "fusion", "--checkpoint", tmp_path / "fusion")
    written = ("--output", tmp_path / "run", "--show", "none")
    command("search", "--topics", "sample", *reranker, *written, code=0)
    wanted = places(read_run(tmp_path / "run")["1"])
    shown = command("explain", *SAMPLE, *reranker, "--show", "3", code=0)
    printed = re.findall(
        r"post (\d+)\n.*mean of .*, fusion #(\d+) \((\S+)\)", shown.out
    )
    assert [int(rank) for _, rank, _ in printed[:3]] == [1, 2, 3]
    for doc_id, rank, score in printed:
        assert int(rank) == wanted[doc_id].rank
        assert float(score) == pytest.approx(wanted[doc_id].score, abs=1e-4)
    # A post of the result whose first stage is cut off there.
    few = command("explain", *SAMPLE, "--reranker", "fusion", "--hits", "3", code=0)
    assert "fusion #1 " in few.out
