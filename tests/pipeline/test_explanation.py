"""Explanations: rank changes, matches, contributions; pages, terminal and command."""

import base64
import hashlib
import re
from dataclasses import replace
from functools import partial
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
from tweetrerank.rerankers.explanation import Segment, shade_words, visible
from tweetrerank.rerankers.model import Model
from tweetrerank.rerankers.trees.fusion import Config

HOSTILE = """<script>alert("1")</script> & 'water' </p>\x00\u202e Egypt"""


@pytest.fixture(scope="module", params=[("mp_hcnn", "robust"), ("window", "general")])
def model(request: pytest.FixtureRequest) -> Model:
    """Small models: the first explains by matches, the other by contributions."""
    name, configuration = request.param
    return small(name, configuration)


def explained(model: Model, post: Post, query: str = QUERIES[1]) -> ExplainedTopic:
    """Return the explanation of a relevant post, the better one of two candidates."""
    posts = {post.doc_id: post, "other": Post("other", "water")}
    before = {"<7>": {post.doc_id: 0.0, "other": 0.5}}
    after = {"<7>": {post.doc_id: 1.0, "other": 0.5}}
    candidates = Candidates([Topic("<7>", query)], before, posts)
    ranking = Ranking({"before": before, "after": after}, candidates, {})
    topic = explain(model, ranking, "before", [post.doc_id], "", 1)
    return replace(
        topic,
        collection="<b>",
        facts={"Model": "<a>"},
        grades={post.doc_id: 2},
    )


@pytest.fixture(scope="module")
def moved() -> ExplainedTopic:
    """Four posts, one to choose as the best."""
    before = {"1": {"a": 3.0, "b": 2.0, "c": 2.0, "d": 0.0}}
    after = {"1": {"a": 0.1, "b": 0.4, "c": 0.3, "d": 0.2}}
    posts = {doc_id: Post(doc_id, "x") for doc_id in before["1"]}
    candidates = Candidates([Topic("1", "x")], before, posts)
    ranking = Ranking({"before": before, "after": after}, candidates, {})
    return explain(small("mp_hcnn", "robust"), ranking, "before", [], "", 1)


def test_ranks_follow_the_tie_rule(moved: ExplainedTopic) -> None:
    assert list(moved.posts) == ["b", "c", "d", "a"]
    assert moved.posts["c"]["stages"] == {
        "before": {"rank": 2, "score": 2.0},
        "after": {"rank": 2, "score": 0.3},
    }


@pytest.mark.parametrize(
    ("doc_id", "gain", "movement"),
    [
        ("b", 2, "▲ 2 from 3"),
        ("c", 0, "same rank as before"),
        ("a", -3, "▼ 3 from 1"),
    ],
)
def test_movements(
    moved: ExplainedTopic, doc_id: str, gain: int, movement: str
) -> None:
    post = moved.posts[doc_id]
    assert (post["gain"], post["movement"]) == (gain, movement)


def test_the_best_posts_and_movers_are_chosen(moved: ExplainedTopic) -> None:
    assert moved.chosen == {
        "best of the new ranking": ["b"],
        "largest gains of the others": ["d"],
        "largest losses of the others": ["a"],
    }
    assert list(choose(moved.posts, 9)) == ["best of the new ranking"]


def shaded_words(segments: list[Segment]) -> list[tuple[str, int]]:
    return [(text.strip(), step) for text, step in segments if step]


TEXT = "The winner, marathons & a RACE in New York! Coffee @winner"


def test_words_are_shaded_by_their_meaning() -> None:
    post = (TEXT, "http://x.org/Marathon-2012")
    ((text, link),) = shade_words("the marathon winners", [post], by_meaning=True)
    assert shaded_words(text) == [("winner", 3), ("marathons", 3), ("RACE", 1)]
    assert ("Marathon", 4) in link
    assert [step for _, step in link].count(4) == 1
    assert "".join(part for part, _ in text) == TEXT


def test_words_are_shaded_by_their_stems() -> None:
    ((text, _),) = shade_words("race", [(TEXT, "")], by_meaning=False)
    assert [word for word, _ in shaded_words(text)] == ["RACE"]


def test_stop_words_are_shaded_if_the_query_has_no_others() -> None:
    ((text, _),) = shade_words("the", [(TEXT, "")], by_meaning=True)
    assert ("The", 4) in text


FORBIDDEN_CHARACTERS = r"[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]"
FORBIDDEN_ELEMENTS = {"script", "img", "i", "u", "b", "a", "link", "iframe"}


TEXTS = {"hostile": HOSTILE} | AWKWARD


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_texts_stay_texts_on_a_page(model: Model, text: str) -> None:
    """No text becomes an element, an attribute or a control character."""
    post = Post('"><u>', text, 'javascript:"</p><img src=x>')
    content = page(explained(model, post, HOSTILE))
    content.encode()
    # All elements end where they should.
    root = ElementTree.fromstring(re.sub(r"<(meta|br)\b([^>]*)>", r"<\1\2/>", content))
    elements = list(root.iter())
    assert FORBIDDEN_ELEMENTS.isdisjoint(element.tag for element in elements)
    attributes: set[str] = set()
    for element in elements:
        attributes.update(element.attrib)
    assert attributes.isdisjoint({"src", "href", "style"})
    assert not [name for name in attributes if name.startswith("on")]
    content_text = "".join(root.itertext())
    for expected in (*post[:3], HOSTILE, "Topic <7>", "(<b>)", "<a>"):
        assert visible(expected) in content_text
    assert not re.search(FORBIDDEN_CHARACTERS, content)


def test_a_page_needs_nothing_else(model: Model) -> None:
    content = page(explained(model, Post("1", "water")))
    root = ElementTree.fromstring(re.sub(r"<(meta|br)\b([^>]*)>", r"<\1\2/>", content))
    policy = root.find("head/meta[@http-equiv]")
    style = root.findtext("head/style") or ""
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    allowed = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src"
    assert policy.get("content") == f"{allowed} 'sha256-{digest}'"
    assert ":root" in style
    assert "url(" not in style
    assert "@import" not in style


@pytest.mark.parametrize(
    ("query", "is_without_words"), [("!!!", True), (QUERIES[0], False)]
)
def test_a_page_without_words(query: str, is_without_words: bool) -> None:
    content = page(explained(small("mp_hcnn", "robust"), Post("1", "…"), query))
    assert "no URL" in content
    assert ("The query has no words" in content) == is_without_words


def test_posts_cannot_control_a_terminal(model: Model, capsys: Capture) -> None:
    post = Post("5", "\x1b[2Jwater [bold]x[/bold] :smile: \u202e")
    print_explanation(explained(model, post))
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "[bold]x[/bold] :smile: �" in output


def test_matches_in_a_terminal(capsys: Capture) -> None:
    post = Post("1", "no Water @water in EGYPT!", "http://x.org/water")
    print_explanation(explained(small("mp_hcnn", "robust"), post))
    lines = capsys.readouterr().out.splitlines()
    assert "no ‹Water› @water ‹in› ‹EGYPT›!" in lines
    header = next(line for line in lines if line.startswith("query "))
    assert re.split(r" {2,}", header)[:3] == ["query", "IDF", "word"]
    row = next(line for line in lines if line.startswith("water "))
    assert "‹1.00 water›" in row
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.fixture
def explain_first(command: Command) -> Command:
    """Explain the sample's first topic."""
    return partial(command, "explain", "--topics", "sample", "--query-id", "1")


@pytest.fixture
def explain_run(explain_first: Command) -> Command:
    """Explain the first topic of ``small.run``, reranked by MP-HCNN."""
    return partial(explain_first, "--candidates", "small.run", "--reranker", "mp_hcnn")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: Patch) -> Run:
    """A run of the sample's first two topics: ``small.run`` in the current folder."""
    qrels = named.find("sample").qrels or {}
    run: Run = {}
    for query_id in ("1", "2"):
        doc_ids = enumerate(sorted(qrels[query_id]))
        run[query_id] = {doc_id: 20 - number / 2 for number, doc_id in doc_ids}
    write_run(tmp_path / "small.run", run, "small")
    monkeypatch.chdir(tmp_path)
    return run


def printed_ranks(output: str) -> dict[str, tuple[int, int, int]]:
    """Return doc_id -> ranks of the run, of the model and of their mixture.

    The mixture is no stage if λ is 1.
    """
    pattern = r"post (\S+)\nsmall.run #(\d+) .*?, mp_hcnn #(\d+) (.*)"
    ranks = {}
    for doc_id, of_run, of_model, rest_of_line in re.findall(pattern, output):
        mixture = re.search(r"#(\d+)", rest_of_line)
        of_mixture = mixture[1] if mixture else of_model
        ranks[doc_id] = (int(of_run), int(of_model), int(of_mixture))
    return ranks


def test_a_run_in_the_terminal(explain_run: Command, run: Run) -> None:
    output = explain_run("--show", "3", code=0).out
    assert "topic 1 “Harlow Bay marathon winner”, sample" in output
    assert "\x1b" not in output
    assert "‹" in output
    ranks = printed_ranks(output)
    before = [doc_id for doc_id, _ in ranked(run["1"])]
    assert [before[of_run - 1] for of_run, _, _ in ranks.values()] == list(ranks)
    assert [mixture for _, _, mixture in ranks.values()][:3] == [1, 2, 3]
    qrels = named.find("sample").qrels or {}
    for doc_id in ranks:
        grade = qrels["1"][doc_id]
        assert f"{grade_text(grade)} [{grade}]  post {doc_id}\n" in output


@pytest.mark.parametrize("weight", [0, 1])
def test_the_weight_decides_between_the_rankings(
    explain_run: Command, run: Run, weight: int
) -> None:
    output = explain_run("--lambda", weight, code=0).out
    ranks = list(printed_ranks(output).values())
    assert ranks
    # 0 is the run's ranking, 1 the model's.
    expected = [of_post[weight] for of_post in ranks]
    assert [mixture for _, _, mixture in ranks] == expected


def test_named_posts_on_a_page(explain_run: Command, run: Run, tmp_path: Path) -> None:
    first, second = sorted(run["1"])[4:6]
    result = explain_run(
        "--doc-id", first, "--doc-id", second, "--output", "new/page.html", code=0
    )
    assert result.out == ""
    assert "wrote new/page.html" in result.err
    content = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert content.count("<article>") == 2
    assert str(tmp_path) not in content
    text = unescape(re.sub("<.*?>", "", content))
    posts = named.find("sample").find_posts([first, second])
    assert posts.keys() == {first, second}
    for doc_id, post in posts.items():
        assert f"post {doc_id}" in text
        assert visible(post.text) in text


def test_contributions_without_colours(explain_first: Command, run: Run) -> None:
    output = explain_first("--candidates", "small.run", "--show", "3", code=0).out
    assert f"{len(run['1'])}, by small.run" in output
    assert "meaning:general" in output
    assert "\x1b[" not in output
    assert "‹" in output


def test_contributions_in_colours(
    explain_first: Command, run: Run, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "")
    output = explain_first("--candidates", "small.run", "--show", "3").out
    assert "\x1b[" in output
    assert "‹" not in output


@pytest.mark.slow
def test_a_fusion_s_ranks_are_those_of_a_search(
    command: Command, explain_first: Command, tmp_path: Path
) -> None:
    config = Config(
        families="signal:rm3,signal:ql,first_stage,links", trees=40, minimum_leaf=5
    )
    pairs, labels = pairs_that_rm3_orders()
    trained = fitted("fusion", config, pairs, labels)
    save(tmp_path / "fusion", replace(trained, idf=idf_from("wordfreq")))
    fusion = ("--reranker", "fusion", "--checkpoint", tmp_path / "fusion")
    output = ("--topics", "sample", "--output", tmp_path / "run", "--show", "none")
    command("search", *fusion, *output, code=0)
    expected = places(read_run(tmp_path / "run")["1"])
    result = explain_first(*fusion, "--show", "3", code=0)
    pattern = r"post (\d+)\n.*mean of .*, fusion #(\d+) \((\S+)\)"
    printed: Any = re.findall(pattern, result.out)
    assert [int(rank) for _, rank, _ in printed[:3]] == [1, 2, 3]
    for doc_id, rank, score in printed:
        assert int(rank) == expected[doc_id].rank
        assert float(score) == pytest.approx(expected[doc_id].score, abs=1e-4)


@pytest.mark.slow
def test_a_post_whose_first_stage_is_cut_off(explain_first: Command) -> None:
    output = explain_first("--reranker", "fusion", "--hits", "3", code=0).out
    assert "fusion #1 " in output
