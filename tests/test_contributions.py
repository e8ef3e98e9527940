"""Contributions of feature families to a fusion's scores."""

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
from explanation_samples import Page, run_explain
from fusion_samples import fit, pairs_that_rm3_orders
from reranking_samples import encoder, vocabulary

from indexes.posts import Post
from pipeline.collections.topics import Topic
from pipeline.collections.trec import read_run
from pipeline.command.ranking import FUSIONS
from pipeline.explanation.contributions import (
    FEATURES,
    FusionExplanation,
    PostContributions,
    by_family,
    shares,
)
from pipeline.explanation.contributions import explain as explain_fusion
from pipeline.explanation.rank_changes import RerankedTopic, places, rank_changes
from pipeline.reranking import Candidates, NeuralReranker
from rerankers import models
from rerankers.checkpoint import TrainedReranker, idf_from, save
from rerankers.engine.scoring import represent_tokenized
from rerankers.engine.tokenized import Tokenized
from rerankers.text.inputs import TextEncoder

FAMILIES = ("signal:rm3", "signal:ql", "signal:run_ql", "first_stage", "links", "overlap")


def trained(kind: str) -> NeuralReranker:
    """A fusion trained on made-up pairs in the order of rm3."""
    changes = {"trees": 40, "minimum_leaf": 5} if kind == "fusion" else {}
    model_type: Any = models.find(kind)
    model = model_type(model_type.config_type(families=",".join(FAMILIES), **changes), vocabulary())
    fit(model, *pairs_that_rm3_orders())
    return NeuralReranker(TrainedReranker(kind, model, encoder(), {}, Path("/x/made/up")))


@pytest.fixture(scope="module", params=FUSIONS)
def reranker(request: pytest.FixtureRequest) -> NeuralReranker:
    return trained(request.param)


def candidates() -> Candidates:
    """Twenty posts, the last with nothing but a rank; rm3 knows every second one."""
    doc_ids = [str(n) for n in range(1, 21)]
    random = np.random.default_rng(3)
    posts = {
        d: Post(d, f"storm {d} today", "http://x.org/storm" if int(d) % 3 else "") for d in doc_ids
    }
    posts["20"] = Post("20", "")
    ql, rm3 = random.random((2, 20)).tolist()
    return Candidates(
        [Topic("7", "storm warning")],
        {"7": dict(zip(doc_ids, ql, strict=True))},
        posts,
        {},
        {
            "ql": {"7": dict(zip(doc_ids, ql, strict=True))},
            "rm3": {"7": dict(list(zip(doc_ids, rm3, strict=True))[1::2])},
        },
    )


def explained(reranker: NeuralReranker, chosen: Mapping[str, list[str]]) -> FusionExplanation:
    found = candidates()
    changes = rank_changes({"before": found.run["7"], "after": reranker.score(found)["7"]})
    ranking = RerankedTopic("made up", found.topics[0], found, changes, {"1": 2}, chosen)
    return explain_fusion(ranking, reranker)


def every_post(reranker: NeuralReranker) -> Mapping[str, PostContributions]:
    return explained(reranker, {"all": list(candidates().posts)}).posts


def features_of(reranker: NeuralReranker) -> tuple[np.ndarray, np.ndarray]:
    """Values of all features, and their contributions less the topic's mean: [20, K]."""
    model: Any = reranker.checkpoint.model
    tokenized = Tokenized.of(candidates().pairs(), reranker.checkpoint.encoder, model)
    features = represent_tokenized(model, tokenized)
    added = model.contributions(features)
    return features.numpy(), (added - added.mean(dim=0)).numpy()


def test_families_add_up_to_the_scores_of_a_search(reranker: NeuralReranker) -> None:
    scores = reranker.score(candidates())["7"]
    assert len(set(scores.values())) > 5
    explanation = explained(reranker, {"all": list(scores)})
    for doc_id, post in explanation.posts.items():
        assert set(post.families) == set(FAMILIES)
        total = explanation.base + sum(post.families.values())
        assert total == pytest.approx(scores[doc_id], abs=1e-4)
    assert explanation.facts["Candidates"].startswith(f"{len(scores)}, ")


def test_a_family_is_the_sum_of_its_features(reranker: NeuralReranker) -> None:
    _, added = features_of(reranker)
    names = reranker.checkpoint.model.names  # type: ignore[union-attr]
    posts = every_post(reranker)
    for row, post in enumerate(posts.values()):
        for family, value in post.families.items():
            columns = [n for n, name in enumerate(names) if name.startswith(f"{family}.")]
            assert columns
            assert value == pytest.approx(float(added[row, columns].sum()), abs=1e-5)
    assert posts["2"].families["signal:rm3"] != posts["1"].families["signal:rm3"]
    assert {post.families["signal:run_ql"] for post in posts.values()} == {0.0}


def test_features_with_the_largest_contributions(reranker: NeuralReranker) -> None:
    values, added = features_of(reranker)
    names = list(reranker.checkpoint.model.names)  # type: ignore[union-attr, arg-type]
    sides = 0
    for row, post in enumerate(every_post(reranker).values()):
        order = sorted(added[row].tolist(), reverse=True)
        assert [part.added for part in post.most] == [v for v in order[:FEATURES] if v > 0]
        assert [part.added for part in post.least] == [v for v in order[::-1][:FEATURES] if v < 0]
        sides += bool(post.most) and bool(post.least)
        for part in (*post.most, *post.least):
            np.testing.assert_equal(part.value, values[row, names.index(part.feature)].item())
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
    assert list(explanation.posts["1"].families) == list(found)


def test_sums_by_family() -> None:
    values = {"signal:a-1.z": 1.0, "signal:a-1.gap": 2.0, "links.has_url": 1.0}
    assert by_family(values.items()) == {"signal:a-1": 3.0, "links": 1.0}
    assert shares(values) == {"signal:a-1": 0.75, "links": 0.25}
    assert shares(dict.fromkeys(values, 0.0)) == {"signal:a-1": 0.0, "links": 0.0}


def test_rankers_that_do_not_know_the_topic_are_named(reranker: NeuralReranker) -> None:
    explanation = explained(reranker, {"named posts": ["1"]})
    assert explanation.facts["Rankers"] == "rm3, ql; not known here: run_ql"
    assert explanation.facts["Model"] == f"{reranker.checkpoint.name}, weights made/up"


SAMPLE = ("--topics", "sample", "--query-id", "2")


@pytest.mark.parametrize("kind", FUSIONS)
def test_options_without_use_for_a_fusion(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model": "mp_hcnn"}))
    given = {
        "--candidates": "ql",
        "--method": "bm25",
        "--lambda": "0",
        "--normalize": "zscore",
    }
    arguments = [*SAMPLE, "--reranker", kind, "--checkpoint", str(tmp_path)]
    arguments += [text for pair in given.items() for text in pair]
    code, output, errors = run_explain(capsys, *arguments, "--doc-id", "1", "--show", "2")
    assert (code, output) == (2, "")
    for flag in given:
        assert f"{flag}: --reranker {kind} takes the rankers of its training" in errors
    assert f"found a model of mp_hcnn, expected {kind}" in errors
    assert "--show: --doc-id says already" in errors


def test_a_checkpoint_of_a_fusion_for_the_default_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model": "linear_fusion"}))
    code, _, errors = run_explain(capsys, *SAMPLE, "--checkpoint", str(tmp_path))
    assert code == 2
    assert "found a model of linear_fusion, expected mp_hcnn" in errors
    assert "add --reranker linear_fusion" in errors


def run(home: Path, module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments), "--threads", "1", "--device", "cpu"],
        capture_output=True,
        text=True,
        env=os.environ | {"TWEETRERANK_HOME": str(home)},
    )


@pytest.mark.slow
def test_the_sample_is_explained_as_it_is_searched(tmp_path: Path) -> None:
    """Ranks in the terminal and on the page equal those of a search's run."""
    home = tmp_path / "home"
    for kind in FUSIONS:
        checkpoint = trained(kind).checkpoint
        reader = TextEncoder(checkpoint.encoder.vocabulary, idf_from("wordfreq"))
        save(tmp_path / kind, checkpoint.name, checkpoint.model, reader, {})
    found = run(
        home,
        "pipeline.search",
        "--topics",
        "sample",
        "--reranker",
        "fusion",
        "--checkpoint",
        tmp_path / "fusion",
        "--output",
        tmp_path / "run",
    )
    assert found.returncode == 0, found.stderr
    wanted = places(read_run(tmp_path / "run")["2"])
    fused = (*SAMPLE, "--reranker", "fusion", "--checkpoint", tmp_path / "fusion")
    shown = run(home, "pipeline.explain", *fused, "--show", "3")
    assert shown.returncode == 0, shown.stderr
    printed = re.findall(r"post (\d+)\nmean of .*, fused #(\d+) \((\S+)\)", shown.stdout)
    assert [int(rank) for _, rank, _ in printed[:3]] == [1, 2, 3]
    for doc_id, rank, score in printed:
        assert int(rank) == wanted[doc_id].rank
        assert float(score) == pytest.approx(wanted[doc_id].score, abs=1e-4)
    doc_id = printed[1][0]
    page = tmp_path / "page.html"
    written = run(
        home,
        "pipeline.explain",
        *SAMPLE,
        "--reranker",
        "linear_fusion",
        "--checkpoint",
        tmp_path / "linear_fusion",
        "--doc-id",
        doc_id,
        "--output",
        page,
    )
    assert (written.returncode, written.stdout) == (0, ""), written.stderr
    content = page.read_text(encoding="utf-8")
    found = Page(content)
    assert found.count("article") == 1
    assert f"post {doc_id}" in found.text
    assert str(tmp_path) not in content
    missing = run(home, "pipeline.explain", *fused, "--doc-id", "no-such-post")
    assert missing.returncode == 2
    assert "--doc-id: found 'no-such-post', expected one of the" in missing.stderr
