"""A learned fusion explained: what each family of features added, on a page and in a terminal."""

import base64
import hashlib
import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusion_samples import fit, pairs_that_rm3_orders
from page_samples import HOSTILE, parsed
from reranking_samples import encoder, vocabulary

from indexes.posts import Post
from pipeline import explain
from pipeline.collections.trec import Topic, read_run
from pipeline.command.options import run_command
from pipeline.explanation import contribution_page
from pipeline.explanation.contributions import (
    FEATURES,
    Fused,
    FusedPost,
    FusionExplanation,
    by_family,
    shares,
)
from pipeline.explanation.contributions import explain as explain_fusion
from pipeline.explanation.rank_changes import Place, RankChange, places, rank_changes, visible
from pipeline.fusion import MODELS
from pipeline.reranking import Candidates, NeuralReranker
from rerankers import models
from rerankers.checkpoint import TrainedReranker, idf_from, save
from rerankers.text.inputs import TextEncoder

FAMILIES = ("signal:rm3", "signal:ql", "signal:run_ql", "first_stage", "links", "overlap")


def trained(kind: str) -> NeuralReranker:
    """A fusion that was trained on made-up pairs, which rm3 orders."""
    changes = {"trees": 40, "minimum_leaf": 5} if kind == "learned" else {}
    model_type: Any = models.find(MODELS[kind])
    model = model_type(model_type.config_type(families=",".join(FAMILIES), **changes), vocabulary())
    fit(model, *pairs_that_rm3_orders())
    return NeuralReranker(TrainedReranker(MODELS[kind], model, encoder(), {}, Path("/x/made/up")))


@pytest.fixture(scope="module", params=list(MODELS))
def reranker(request: pytest.FixtureRequest) -> NeuralReranker:
    return trained(request.param)


def candidates() -> Candidates:
    """Twenty posts, the last with nothing but a rank; rm3 knows every second one."""
    doc_ids = [str(n) for n in range(1, 21)]
    random = np.random.default_rng(3)
    posts = {d: Post(d, f"storm {d} today", "http://x.org/storm" if int(d) % 3 else "")
             for d in doc_ids}  # fmt: skip
    posts["20"] = Post("20", "")
    ql, rm3 = random.random((2, 20)).tolist()
    return Candidates(
        [Topic("7", "storm warning")], {"7": dict(zip(doc_ids, ql, strict=True))}, posts, {},
        {"ql": {"7": dict(zip(doc_ids, ql, strict=True))},
         "rm3": {"7": dict(list(zip(doc_ids, rm3, strict=True))[1::2])}},
    )  # fmt: skip


def explained(reranker: NeuralReranker, chosen: Mapping[str, list[str]]) -> FusionExplanation:
    found = candidates()
    fused = Fused.of(reranker, found)
    standing = rank_changes(found.run["7"], fused.scores)
    return explain_fusion(
        "made up", found.topics[0], reranker, found, fused, standing, {"1": 2, "2": 0}, chosen
    )


def every_post(reranker: NeuralReranker) -> dict[str, FusedPost]:
    (shown,) = explained(reranker, {"all": list(candidates().posts)}).sections.values()
    return {post.post.doc_id: post for post in shown}


def test_families_add_up_to_the_scores_of_a_search(reranker: NeuralReranker) -> None:
    """But for a number that is the same for all posts of the topic."""
    found = candidates()
    scores = reranker.score(found)["7"]
    assert Fused.of(reranker, found).scores == scores
    assert len(set(scores.values())) > 5
    explanation = explained(reranker, {"all": list(found.posts)})
    for post in explanation.sections["all"]:
        assert set(post.families) == set(FAMILIES)
        total = explanation.base + sum(post.families.values())
        assert total == pytest.approx(scores[post.post.doc_id], abs=1e-4)
    assert explanation.candidates == len(scores) == 20


def test_a_family_is_the_sum_of_its_features(reranker: NeuralReranker) -> None:
    found = candidates()
    fused = Fused.of(reranker, found)
    model: Any = reranker.checkpoint.model
    added = model.contributions(fused.features)
    added = added - added.mean(dim=0)  # What all posts have in common explains no rank.
    inputs = every_post(reranker)
    for row, doc_id in enumerate(fused.doc_ids):
        for family, value in inputs[doc_id].families.items():
            columns = [n for n, name in enumerate(model.names) if name.startswith(f"{family}.")]
            assert columns
            assert value == pytest.approx(float(added[row, columns].sum()), abs=1e-5)
    assert inputs["2"].families["signal:rm3"] != inputs["1"].families["signal:rm3"]
    assert {view.families["signal:run_ql"] for view in inputs.values()} == {0.0}


def test_places_are_those_of_the_mean_and_of_the_fusion(reranker: NeuralReranker) -> None:
    found = candidates()
    before, after = places(found.run["7"]), places(reranker.score(found)["7"])
    inputs = every_post(reranker)
    assert {d: view.standing for d, view in inputs.items()} == {
        d: RankChange(before[d], after[d]) for d in inputs
    }
    assert [inputs[d].grade for d in ("1", "2", "3")] == [2, 0, None]


def test_features_with_the_greatest_effect(reranker: NeuralReranker) -> None:
    found = candidates()
    fused = Fused.of(reranker, found)
    parts = dict(zip(fused.doc_ids, fused.parts(fused.doc_ids), strict=True))
    sides = 0
    for doc_id, view in every_post(reranker).items():
        added = sorted((part.added for part in parts[doc_id]), reverse=True)
        most = [value for value in added[:FEATURES] if value > 0]
        least = [value for value in added[::-1][:FEATURES] if value < 0]
        assert [part.added for part in view.most] == most
        assert [part.added for part in view.least] == least
        sides += bool(most) and bool(least)
        # A value is the post's own; where rm3 has no score it is not known.
        known = {part.feature: part.value for part in parts[doc_id]}
        assert np.isnan(known["signal:rm3.z"]) == (int(doc_id) % 2 == 1)
        assert known["links.has_url"] == bool(found.posts[doc_id].url)
        for part in (*view.most, *view.least):
            np.testing.assert_equal(part.value, known[part.feature])
    assert sides


def test_importances_are_shares_of_the_families(reranker: NeuralReranker) -> None:
    explanation = explained(reranker, {"named posts": ["1"]})
    found = explanation.importances
    model: Any = reranker.checkpoint.model
    importances = model.importances()
    rm3 = sum(value for name, value in importances.items() if name.startswith("signal:rm3."))
    assert found["signal:rm3"] == pytest.approx(rm3 / sum(importances.values()))
    assert next(iter(found)) == "signal:rm3"
    assert sum(found.values()) == pytest.approx(1.0)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    (post,) = explanation.sections["named posts"]
    assert list(post.families) == list(found)


def test_sums_by_family() -> None:
    values = {"signal:a-1.z": 1.0, "signal:a-1.gap": 2.0, "links.has_url": 1.0}
    assert by_family(values.items()) == {"signal:a-1": 3.0, "links": 1.0}
    assert shares(values) == {"signal:a-1": 0.75, "links": 0.25}
    assert shares(dict.fromkeys(values, 0.0)) == {"signal:a-1": 0.0, "links": 0.0}


def test_rankers_that_do_not_know_the_topic_are_named(reranker: NeuralReranker) -> None:
    explanation = explained(reranker, {"named posts": ["1"]})
    assert explanation.rankers == "rm3, ql; not known here: run_ql"
    assert explanation.model == f"{reranker.checkpoint.name}, weights made/up"


def made_up(families: Mapping[str, float], **changes: Any) -> FusedPost:
    fields = {
        "post": Post("5", "storm today", "http://x.org"),
        "standing": RankChange(Place(9, 0.25), Place(2, -1.5)), "grade": 1, "families": families,
        "most": [], "least": [],
    }  # fmt: skip
    return FusedPost(**(fields | changes))


def topic_of(*posts: FusedPost, **changes: Any) -> FusionExplanation:
    fields = {
        "collection": "made up", "query_id": "7", "query": "storm", "model": "fusion",
        "rankers": "ql", "candidates": 20, "meaning": "numbers", "base": -0.5,
        "importances": dict.fromkeys(posts[0].families, 0.5), "sections": {"named posts": posts},
    }  # fmt: skip
    return FusionExplanation(**(fields | changes))


def test_the_page_is_whole_and_holds_texts_as_texts(reranker: NeuralReranker) -> None:
    post = Post('"><u>', HOSTILE, 'javascript:"</p><img src=x>')
    families = {"signal:<i>": 0.5, "links": -0.25}
    content = contribution_page.page(
        topic_of(made_up(families, post=post), collection="<b>", query_id="<7>", query=HOSTILE,
                 model="<a>", rankers="<link>", meaning="<iframe>")
    )  # fmt: skip
    content.encode()
    parser = parsed(content)
    assert not {tag for tag, _ in parser.seen} & {
        "script", "img", "i", "u", "b", "a", "link", "iframe"
    }  # fmt: skip
    assert not any(key.startswith("on") or key in ("src", "href", "style")
                   for _, attributes in parser.seen for key in attributes)  # fmt: skip
    shown = "".join(parser.texts)
    for text in (HOSTILE, post.url, post.doc_id, "signal:<i>", "<a>", "<link>", "<iframe>"):
        assert visible(text) in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", content)
    real = contribution_page.page(explained(reranker, {"all": list(candidates().posts)}))
    assert [tag for tag, _ in parsed(real).seen].count("article") == 20
    assert contribution_page.TEXTLESS in real


def test_the_page_forbids_all_but_its_own_style() -> None:
    content = contribution_page.page(topic_of(made_up({"links": 1.0})))
    (style,) = re.findall(r"<style>(.*?)</style>", content, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', content)[0])
    assert policy.startswith("default-src 'none'") and f"style-src 'sha256-{digest}'" in policy
    assert not re.search(r"url\(|@import", style)


def test_bars_have_one_scale_and_numbers_beside_them() -> None:
    first, second = {"links": 3.0, "overlap": 0.0}, {"links": 0.5, "overlap": -1.0}
    content = contribution_page.page(topic_of(made_up(first), made_up(second)))
    posts = "".join(re.findall(r"<article>.*?</article>", content, re.DOTALL))
    bars = re.findall(
        r'<th scope="row">(\S+)</th><td class="number">(\S+)</td><td><svg [^>]*aria-hidden="true">'
        r'<rect class="(\w+)" x="(\S+)%" width="(\S+)%"[^>]*><line class="zero" x1="(\S+)%"',
        posts,
    )
    # From -1 to 3 are 100 %, so 0 is at 25 %.
    assert bars == [
        ("links", "+3.000", "plus", "25.00", "75.00", "25.00"),
        ("overlap", "0.000", "plus", "25.00", "0.00", "25.00"),
        ("links", "+0.500", "plus", "25.00", "12.50", "25.00"),
        ("overlap", "-1.000", "minus", "0.00", "25.00", "25.00"),
    ]
    assert "mean of the rankers #9 (0.2500) → fused #2 (-1.5000)" in posts
    assert ">50.0%<" in content[content.index("What the model counts on") :]


def test_a_page_of_a_model_that_counts_on_nothing() -> None:
    posts = [made_up({"links": 0.0})]
    content = contribution_page.page(topic_of(*posts, importances={"links": 0.0}))
    assert 'width="0.00%"' in content and "<details>" not in content
    parsed(content)


def test_small_numbers_have_no_sign_of_nothing() -> None:
    numbers = (0.0004, -0.0004, -0.0006, 12.0)
    assert [contribution_page.signed(n) for n in numbers] == ["0.000", "0.000", "-0.001", "+12.000"]


def test_the_terminal_leaves_out_what_is_small(capsys: pytest.CaptureFixture[str]) -> None:
    families = {"links": 1.0, "overlap": -0.051, "phrases": 0.05, "quality": 0.3, "hashtags": 0.0}
    text = "\x1b[2Jstorm [bold]x[/bold] :smile: \u202e"
    contribution_page.print_explanation(
        topic_of(made_up(families, post=Post("5", text, "")), made_up({**families, "links": 0.0}))
    )
    output = capsys.readouterr().out
    assert "\x1b" not in output and "[bold]x[/bold] :smile: �" in output
    first, second = re.split(r"\n#2  ", output)[1:]
    assert first.splitlines() == [
        "▲ 7, from #9  relevant [1]  post 5",
        "mean of the rankers #9 (0.2500), fused #2 (-1.5000)",
        visible(text),
        "  added              took away",
        "  links    +1.000    overlap  -0.051",
        "  quality  +0.300",
    ]
    assert "phrases  +0.050" in second and "links" not in second.split("WHAT THE MODEL")[0]
    contribution_page.print_explanation(topic_of(made_up({"links": -1.0}), made_up({"links": 0.0})))
    first, second = re.split(r"\n#2  ", capsys.readouterr().out)[1:]
    assert first.splitlines()[-2:] == ["  took away", "  links  -1.000"]
    assert second.splitlines()[3:5] == ["http://x.org", ""]


def command(
    capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, list[str]]:  # fmt: skip
    with pytest.raises(SystemExit) as left:
        run_command(explain.Options, explain.main, "python -m pipeline.explain", None, arguments)
    output, errors = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, output, errors.splitlines()


SAMPLE = ("--topics", "sample", "--query-id", "2")


@pytest.mark.parametrize("kind", list(MODELS))
def test_what_a_fusion_has_no_use_for_is_refused_at_once(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model": "mp_hcnn"}))
    given = {"--candidates": "ql", "--method": "bm25", "--lambda": "0", "--hits": "9",
             "--normalize": "zscore", "--reranker": "sm_cnn"}  # fmt: skip
    arguments = [text for pair in given.items() for text in pair]
    code, output, errors = command(
        capsys, *SAMPLE, "--fusion", kind, *arguments, "--checkpoint", str(tmp_path),
        "--doc-id", "1", "--show", "2",
    )  # fmt: skip
    assert (code, output) == (2, "")
    told = "\n".join(errors)
    for flag in given:
        assert f"{flag}: --fusion {kind} takes the rankers that it was trained with" in told
    assert f"found a model of mp_hcnn, expected {MODELS[kind]} for --fusion {kind}" in told
    assert "--show: --doc-id says already" in told


def test_a_fusion_is_not_explained_by_matches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model": "linear_fusion"}))
    code, _, errors = command(capsys, *SAMPLE, "--checkpoint", str(tmp_path))
    assert code == 2
    assert "found a model of linear_fusion, expected mp_hcnn" in "\n".join(errors)
    assert "add --fusion linear" in "\n".join(errors)


def run(home: Path, module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments), "--threads", "1", "--device", "cpu"],
        capture_output=True, text=True, env=os.environ | {"TWEETRERANK_HOME": str(home)},
    )  # fmt: skip


@pytest.mark.slow
def test_the_sample_is_explained_as_it_is_searched(tmp_path: Path) -> None:
    """The ranks in the terminal and on the page are those of the run that a search writes."""
    home = tmp_path / "home"
    for kind in MODELS:
        checkpoint = trained(kind).checkpoint
        reader = TextEncoder(checkpoint.encoder.vocabulary, idf_from("wordfreq"))
        save(tmp_path / kind, checkpoint.name, checkpoint.model, reader, {})
    found = run(home, "pipeline.search", "--topics", "sample", "--fusion", "learned",
                "--checkpoint", tmp_path / "learned", "--output", tmp_path / "run")  # fmt: skip
    assert found.returncode == 0, found.stderr
    wanted = places(read_run(tmp_path / "run")["2"])
    fused = (*SAMPLE, "--fusion", "learned", "--checkpoint", tmp_path / "learned")
    shown = run(home, "pipeline.explain", *fused, "--show", "3")
    assert shown.returncode == 0, shown.stderr
    printed = re.findall(r"post (\d+)\nmean of .*, fused #(\d+) \((\S+)\)", shown.stdout)
    assert [int(rank) for _, rank, _ in printed[:3]] == [1, 2, 3]
    for doc_id, rank, score in printed:
        assert int(rank) == wanted[doc_id].rank
        assert float(score) == pytest.approx(wanted[doc_id].score, abs=1e-4)
    doc_id = printed[1][0]
    page = tmp_path / "page.html"
    written = run(home, "pipeline.explain", *SAMPLE, "--fusion", "linear", "--checkpoint",
                  tmp_path / "linear", "--doc-id", doc_id, "--output", page)  # fmt: skip
    assert (written.returncode, written.stdout) == (0, ""), written.stderr
    content = page.read_text(encoding="utf-8")
    parser = parsed(content)
    assert [tag for tag, _ in parser.seen].count("article") == 1
    assert f"post {doc_id}" in "".join(parser.texts) and str(tmp_path) not in content
    missing = run(home, "pipeline.explain", *fused, "--doc-id", "no-such-post")
    assert missing.returncode == 2
    assert "--doc-id: found 'no-such-post', expected one of the" in missing.stderr
