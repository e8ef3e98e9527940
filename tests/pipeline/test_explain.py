"""The command ``python -m pipeline.explain``."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from conftest import Command
from helpers.reranking_samples import fitted, pairs_that_rm3_orders

from pipeline.collections import named
from pipeline.collections.trec import Run, places, ranked, read_run, write_run
from pipeline.explanation.topic import grade_text
from rerankers.checkpoint import idf_from, save
from rerankers.explanation import visible
from rerankers.trees.fusion import Config

SAMPLE = ("--topics", "sample", "--query-id", "1")
GIVEN = (*SAMPLE, "--candidates", "small.run", "--reranker", "mp_hcnn")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of the sample's first two topics, in ``small.run`` of the current folder."""
    qrels = named.find("sample").qrels or {}
    made: Run = {q: {d: 20 - n / 2 for n, d in enumerate(sorted(qrels[q]))} for q in ("1", "2")}
    write_run(tmp_path / "small.run", made, "small")
    monkeypatch.chdir(tmp_path)
    return made


def ranks(output: str) -> dict[str, tuple[int, int, int]]:
    """doc_id -> printed ranks: of the run, of the model, and of their mixture."""
    blocks = re.findall(r"post (\S+)\nsmall.run #(\d+) .*?, mp_hcnn #(\d+) (.*)", output)
    found = {doc_id: (int(a), int(b), *re.findall(r"#(\d+)", c)) for doc_id, a, b, c in blocks}
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


def test_a_window_is_explained_in_colours_by_what_its_features_contribute(
    command: Command, run: Run, monkeypatch: pytest.MonkeyPatch
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
def test_a_fusions_ranks_are_those_of_a_search(command: Command, tmp_path: Path) -> None:
    config = Config(families="signal:rm3,signal:ql,first_stage,links", trees=40, minimum_leaf=5)
    trained = fitted("fusion", config, *pairs_that_rm3_orders())
    save(tmp_path / "fusion", replace(trained, idf=idf_from("wordfreq")))
    reranker = ("--reranker", "fusion", "--checkpoint", tmp_path / "fusion")
    written = ("--output", tmp_path / "run", "--show", "none")
    command("search", "--topics", "sample", *reranker, *written, code=0)
    wanted = places(read_run(tmp_path / "run")["1"])
    shown = command("explain", *SAMPLE, *reranker, "--show", "3", code=0)
    printed = re.findall(r"post (\d+)\n.*mean of .*, fusion #(\d+) \((\S+)\)", shown.out)
    assert [int(rank) for _, rank, _ in printed[:3]] == [1, 2, 3]
    for doc_id, rank, score in printed:
        assert int(rank) == wanted[doc_id].rank
        assert float(score) == pytest.approx(wanted[doc_id].score, abs=1e-4)
    # A post of the result whose first stage is cut off there.
    few = command("explain", *SAMPLE, "--reranker", "fusion", "--hits", "3", code=0)
    assert "fusion #1 " in few.out
