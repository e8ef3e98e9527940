"""The command ``python -m pipeline.explain``, ranks before and after, matches of posts."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from explanation_samples import Page, match_explanation, run_explain

from pipeline.collections import named
from pipeline.collections.trec import Run, ranked, write_run
from pipeline.explanation.matches import PostMatches, Segment, shade
from pipeline.explanation.rank_changes import Place, choose, grade_text, rank_changes, visible


def test_control_characters_are_replaced() -> None:
    assert visible("a\u202eb\u200dc\r\n") == "a�b\u200dc  "


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


def test_each_character_has_the_shade_of_its_best_match() -> None:
    text = "Soo\tgood\x1b[2Jx"
    spans = [(0, 3), (4, 8), (4, 5)]
    assert shade(text, spans, [0.95, 0.75, 0.1], (0.7, 0.8, 0.9, 0.99)) == [
        Segment("Soo", 3),
        Segment(" ", 0),
        Segment("good", 1),
        Segment("�[2Jx", 0),
    ]
    assert shade("", [], [], (1.0,)) == []


def matches_of(text: str, url: str) -> PostMatches:
    (matches,) = match_explanation(text, url).posts.values()
    return matches


def test_exact_matches_have_the_darkest_shade() -> None:
    matches = matches_of("no Water @water in EGYPT!", "http://x.org/egypt-water")
    darkest = [text for text, step in matches.text if step == 4]
    assert [text.strip() for text in darkest] == ["Water", "in", "EGYPT"]
    # The trigrams of "egypt" are not all in the URL: a hyphen follows.
    assert "water" in "".join(text for text, step in matches.url if step == 4)
    assert [row.word for row in matches.rows] == ["water", "shortages", "in", "egypt"]
    assert matches.rows[0].cells[0].where == "water"
    assert "".join(text for text, _ in matches.url) == "http://x.org/egypt-water"
    assert matches_of("water", "").url == []


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs the command in an empty folder; gives exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    return partial(run_explain, capsys)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of the sample's first two topics, in ``small.run``."""
    sample = named.find("sample")
    qrels = sample.qrels
    assert qrels is not None
    made: Run = {
        query_id: {doc_id: 20 - n / 2 for n, doc_id in enumerate(sorted(qrels[query_id]))}
        for query_id in ("1", "2")
    }
    write_run(tmp_path / "small.run", made, "small")
    return made


SAMPLE = ("--topics", "sample", "--query-id", "1", "--candidates", "small.run")


def ranks(output: str) -> dict[str, tuple[int, int, int]]:
    """doc_id -> ranks before, neural, after, as printed."""
    blocks = re.findall(r"post (\S+)\nbefore #(\d+) .*?, neural #(\d+) .*?, after #(\d+)", output)
    return {doc_id: (int(a), int(b), int(c)) for doc_id, a, b, c in blocks}


def test_a_run_explained_in_the_terminal(command: Command, run: Run) -> None:
    code, output, errors = command(*SAMPLE, "--show", "3")
    assert code == 0, errors
    assert "topic 1 “Harlow Bay marathon winner”, sample" in output
    assert "\x1b" not in output
    assert "‹" in output
    shown = ranks(output)
    before = [doc_id for doc_id, _ in ranked(run["1"])]
    assert {old for doc_id, (old, _, _) in shown.items() if before[old - 1] != doc_id} == set()
    assert [new for _, _, new in shown.values()][:3] == [1, 2, 3]
    qrels = named.find("sample").qrels or {}
    for doc_id in shown:
        grade = grade_text(qrels["1"][doc_id])
        assert re.search(rf"{grade} \[{qrels['1'][doc_id]}\]  post {doc_id}\n", output)


@pytest.mark.parametrize(("weight", "column"), [("0", 0), ("1", 1)])
def test_the_weight_decides_between_the_rankings(
    weight: str, column: int, command: Command, run: Run
) -> None:
    code, output, errors = command(*SAMPLE, "--lambda", weight)
    assert code == 0, errors
    assert all(places[column] == places[2] for places in ranks(output).values())


def test_named_posts_on_a_page(command: Command, run: Run, tmp_path: Path) -> None:
    doc_ids = sorted(run["1"])[4:6]
    arguments = [part for doc_id in doc_ids for part in ("--doc-id", doc_id)]
    code, output, errors = command(*SAMPLE, *arguments, "--output", "new/page.html")
    assert (code, output) == (0, ""), errors
    assert "wrote new/page.html" in errors
    content = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    found = Page(content)
    assert found.count("article") == 2
    posts = named.find("sample").find_posts(doc_ids)
    for doc_id in doc_ids:
        assert f"post {doc_id}" in found.text
        assert visible(posts[doc_id].text) in found.text
    assert str(tmp_path) not in content


def test_colours_are_for_terminals(
    command: Command, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    _, output, _ = command(*SAMPLE, "--show", "1")
    assert "\x1b[" in output
    assert "‹" not in output


def test_a_model_of_another_kind(command: Command, run: Run, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({"model": "sm_cnn"}))
    code, _, errors = command(*SAMPLE, "--checkpoint", "other")
    assert code == 2
    assert "found a model of sm_cnn, expected mp_hcnn" in errors


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--query-id", "99"], 2, "--query-id: found '99', expected a topic of sample: 1, 2, 3"),
        (["--query-id", "3"], 1, "expected some for the topics 3"),
        (["--doc-id", "42", "--doc-id", "43"], 2, "--doc-id: found '43', expected one of the"),
        (["--reranker", "sm_cnn"], 2, "expected one of mp_hcnn, fusion, linear_fusion"),
        (["--checkpoint", "nowhere"], 1, "nowhere/config.json"),
        (["--method", "bm25"], 2, "--method, --mu and --parameter change nothing"),
        (["--doc-id", "1", "--show", "3"], 2, "--show: --doc-id says already"),
        (["--lambda", "2", "--show", "0"], 2, "--lambda: found 2"),
        (["--output", "."], 2, "found the folder"),
    ],
)
def test_mistakes(
    arguments: list[str], code: int, message: str, command: Command, run: Run
) -> None:
    found, output, errors = command(*SAMPLE, *arguments)
    assert (found, output) == (code, ""), errors
    assert message in errors


@pytest.mark.slow
def test_the_sample_from_its_index(tmp_path: Path) -> None:
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "pipeline.explain",
            "--topics",
            "sample",
            "--query-id",
            "2",
            "--show",
            "4",
            "--threads",
            "1",
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"TWEETRERANK_HOME": str(tmp_path)},
    )
    assert result.returncode == 0, result.stderr
    assert "Candidates: 31, by ql" in result.stdout
    assert [new for _, _, new in ranks(result.stdout).values()][:4] == [1, 2, 3, 4]


def test_a_topic_of_the_real_data(data_dir: Path, command: Command, tmp_path: Path) -> None:
    code, _, errors = command(
        "--topics",
        "mb2012",
        "--query-id",
        "51",
        "--candidates",
        "ql",
        "--data",
        str(data_dir),
        "--output",
        "page.html",
    )
    assert code == 0, errors
    found = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert found.count("article") == 16
