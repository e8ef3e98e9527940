"""The command ``python -m pipeline.explain``."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from conftest import Command
from helpers.fusion_samples import trained_fusion

from pipeline.collections import named
from pipeline.collections.trec import Run, places, ranked, read_run, write_run
from pipeline.explanation.topic import grade_text
from rerankers.checkpoint import idf_from, save
from rerankers.explanation import visible

SAMPLE = ("--topics", "sample", "--query-id", "1")
GIVEN = (*SAMPLE, "--candidates", "small.run", "--reranker", "mp_hcnn")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of the sample's first two topics, in ``small.run`` of the current folder."""
    qrels = named.find("sample").qrels or {}
    made: Run = {
        query_id: {doc_id: 20 - n / 2 for n, doc_id in enumerate(sorted(qrels[query_id]))}
        for query_id in ("1", "2")
    }
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
    code, output, errors = command("explain", *GIVEN, "--show", "3")
    assert code == 0, errors
    assert "topic 1 “Harlow Bay marathon winner”, sample" in output
    assert "\x1b" not in output
    assert "‹" in output
    shown = ranks(output)
    before = [doc_id for doc_id, _ in ranked(run["1"])]
    assert [before[old - 1] for old, _, _ in shown.values()] == list(shown)
    assert [new for _, _, new in shown.values()][:3] == [1, 2, 3]
    qrels = named.find("sample").qrels or {}
    for doc_id in shown:
        grade = qrels["1"][doc_id]
        assert f"{grade_text(grade)} [{grade}]  post {doc_id}\n" in output


@pytest.mark.parametrize(("weight", "column"), [("0", 0), ("1", 1)])
def test_the_weight_decides_between_the_rankings(
    weight: str, column: int, command: Command, run: Run
) -> None:
    code, output, errors = command("explain", *GIVEN, "--lambda", weight)
    assert code == 0, errors
    assert all(found[column] == found[2] for found in ranks(output).values())


def test_named_posts_on_a_page(command: Command, run: Run, tmp_path: Path) -> None:
    doc_ids = sorted(run["1"])[4:6]
    arguments = [part for doc_id in doc_ids for part in ("--doc-id", doc_id)]
    code, output, errors = command("explain", *GIVEN, *arguments, "--output", "new/page.html")
    assert (code, output) == (0, ""), errors
    assert "wrote new/page.html" in errors
    content = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert content.count("<article>") == 2
    posts = named.find("sample").find_posts(doc_ids)
    shown = unescape(re.sub("<.*?>", "", content))
    for doc_id in doc_ids:
        assert f"post {doc_id}" in shown
        assert visible(posts[doc_id].text) in shown
    assert str(tmp_path) not in content


def test_a_window_is_explained_in_colours_by_what_its_features_contribute(
    command: Command, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (*SAMPLE, "--candidates", "small.run", "--show", "3")
    code, output, errors = command("explain", *given)
    assert code == 0, errors
    assert f"{len(run['1'])}, by small.run" in output and "meaning:general" in output
    assert "\x1b[" not in output and "‹" in output
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": ""}.items():
        monkeypatch.setenv(name, value)
    output = command("explain", *given).out
    assert "\x1b[" in output and "‹" not in output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("--query-id 99", 2, "--query-id: found '99', expected a topic of sample: 10, 1, 2"),
        ("--query-id 3", 1, "expected some for the topics 3"),
        ("--doc-id 42 --doc-id 43", 2, "--doc-id: found '43', expected one of the"),
        ("--method bm25", 2, "--method, --mu and --parameter change nothing"),
        ("--doc-id 1 --show 3", 2, "--show: --doc-id says already"),
    ],
)
def test_mistakes(arguments: str, code: int, message: str, command: Command, run: Run) -> None:
    found, output, errors = command("explain", *GIVEN, *arguments.split())
    assert (found, output) == (code, ""), errors
    assert message in errors


def test_options_without_use_for_a_fusion(command: Command) -> None:
    given = {"--method": "bm25", "--lambda": "0"}
    arguments = [text for pair in given.items() for text in pair]
    code, output, errors = command("explain", *SAMPLE, "--reranker", "fusion", *arguments)
    assert (code, output) == (2, "")
    for flag in given:
        assert f"{flag}: fusion takes the rankers of its training" in errors


@pytest.mark.slow
def test_a_fusions_ranks_are_those_of_a_search(command: Command, tmp_path: Path) -> None:
    trained = trained_fusion("signal:rm3,signal:ql,first_stage,links")
    save(tmp_path / "fusion", replace(trained, idf=idf_from("wordfreq")))
    reranker = ("--reranker", "fusion", "--checkpoint", tmp_path / "fusion")
    written = ("--output", tmp_path / "run", "--show", "none")
    found = command("search", "--topics", "sample", *reranker, *written)
    assert found.code == 0, found.err
    wanted = places(read_run(tmp_path / "run")["1"])
    shown = command("explain", *SAMPLE, *reranker, "--show", "3")
    assert shown.code == 0, shown.err
    printed = re.findall(r"post (\d+)\n.*mean of .*, fusion #(\d+) \((\S+)\)", shown.out)
    assert [int(rank) for _, rank, _ in printed[:3]] == [1, 2, 3]
    for doc_id, rank, score in printed:
        assert int(rank) == wanted[doc_id].rank
        assert float(score) == pytest.approx(wanted[doc_id].score, abs=1e-4)
    page = tmp_path / "page.html"
    done = command("explain", *SAMPLE, *reranker, "--doc-id", printed[1][0], "--output", page)
    assert (done.code, done.out) == (0, ""), done.err
    content = page.read_text(encoding="utf-8")
    assert content.count("<article>") == 1 and f"post {printed[1][0]}" in content
    assert str(tmp_path) not in content
