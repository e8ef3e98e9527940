"""The command ``python -m pipeline.evaluate``: what it prints, what it tells, how it fails."""

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Command
from scipy import stats

from pipeline.collections.trec import Run, write_run
from pipeline.evaluation.significance import holm

TOPICS = [str(number) for number in range(1, 13)]


def at_rank(ranks: dict[str, int]) -> Run:
    """A run that has the relevant document at the given rank; rank 0 leaves the topic out."""
    return {
        query_id: {f"x{n}" if n != rank else "a": 10.0 - n for n in range(1, 6)}
        for query_id, rank in ranks.items()
        if rank
    }


BASE = dict.fromkeys(TOPICS, 3)
BETTER = {query_id: 2 if int(query_id) % 4 else 4 for query_id in TOPICS}
BEST = {query_id: 1 if int(query_id) % 5 else 2 for query_id in TOPICS}

Evaluate = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture
def evaluate(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """Runs the command in a folder with qrels and runs; gives exit code, stdout, stderr."""
    (tmp_path / "qrels").write_text("".join(f"{q} 0 a 1\n{q} 0 b 0\n" for q in TOPICS))
    for name, ranks in (("base", BASE), ("better", BETTER), ("best", BEST)):
        write_run(tmp_path / name, at_rank(ranks), name)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, list[str], list[str]]:
        code, output, errors = command("evaluate", *arguments)
        return code, output.splitlines(), errors.splitlines()

    return call


def test_a_row_for_each_run(evaluate: Evaluate) -> None:
    assert evaluate("qrels", "base", "best") == (
        0,
        [
            "qrels, 12 judged topics",
            "          AP    P@30",
            "base  0.3333  0.0333",
            "best  0.9167  0.0333",
        ],
        [],
    )


def test_what_counts_as_0_is_told(evaluate: Evaluate, tmp_path: Path) -> None:
    ranks = {query_id: int(query_id not in "37") for query_id in TOPICS} | {"99": 1, "x": 1}
    write_run(tmp_path / "gaps", at_rank(ranks), "t")
    with (tmp_path / "qrels").open("a") as stream:
        stream.write("13 0 a 0\n14 0 b -1\n")
    code, output, errors = evaluate("qrels", "gaps", "base", "-m", "RR")
    assert code == 0
    assert [line.split() for line in output[2:]] == [["gaps", "0.7143"], ["base", "0.2857"]]
    assert errors == [
        "gaps: judged topics without a result, counted as 0 (4): 3, 7, 13, 14",
        "gaps: topics without judgments, left out (2): 99, x",
        "base: judged topics without a result, counted as 0 (2): 13, 14",
        "qrels: judged topics without a relevant document, always 0 (2): 13, 14",
    ]


def test_each_topic(evaluate: Evaluate) -> None:
    code, output, errors = evaluate(
        "qrels", "better", "best", "-m", "RR", "--measure", "P@1", "--per-topic"
    )
    assert (code, errors) == (0, [])
    assert output[0] == "measure\tquery_id\tbetter\tbest"
    assert output[1:14] == [
        *(f"RR\t{q}\t{1 / BETTER[q]:.4f}\t{1 / BEST[q]:.4f}" for q in TOPICS),
        "RR\tall\t0.4375\t0.9167",
    ]
    assert output[14] == "P@1\t1\t0.0000\t1.0000"
    assert len(output) == 1 + 2 * 13
    code, output, _ = evaluate("qrels", "best", "--against", "base", "-m", "RR", "--per-topic")
    assert code == 0
    assert output[13:16] == ["RR\tall\t0.3333\t0.9167", "", "qrels, 12 judged topics"]


def test_one_run_against_another(evaluate: Evaluate, tmp_path: Path) -> None:
    code, output, errors = evaluate("qrels", "best", "--against", "base", "-m", "RR")
    assert (code, errors) == (0, [])
    assert output[1].split() == ["RR", "diff", "p(rand)", "p(t)"]
    assert output[2].split() == ["base", "0.3333"]
    # Every topic has moved up: of 2^12 sign patterns only two are as extreme, 0.0005.
    assert output[3].split() == ["best", "0.9167", "+0.5833", "0.0005", "<0.0001"]
    assert output[4].startswith("diff: to base; p: two-sided, by Fisher's randomization test")
    assert "Holm" not in output[4]
    # A difference too small to print has no minus.
    write_run(tmp_path / "worse", at_rank(BASE | {"1": 0}), "t")
    _, output, _ = evaluate("qrels", "worse", "--against", "base", "-m", "P@100000")
    assert output[3].split()[:3] == ["worse", "0.0000", "+0.0000"]


def test_several_runs_against_another(evaluate: Evaluate) -> None:
    code, output, errors = evaluate("qrels", "better", "base", "best", "--against", "base")
    assert (code, errors) == (0, [])
    assert [line.split()[0] for line in output[2:5]] == ["base", "better", "best"]
    tests = [
        stats.ttest_rel([1 / ranks[q] for q in TOPICS], [1 / BASE[q] for q in TOPICS]).pvalue
        for ranks in (BETTER, BEST)
    ]
    # base itself is no comparison, so two are corrected for.
    expected = [f"{p:.4f}" if p >= 0.0001 else "<0.0001" for p in holm(tests)]
    assert [line.split()[4] for line in output[3:5]] == expected
    assert output[3].split()[2] == "+0.1042"
    # P@30 is the same everywhere.
    assert output[3].split()[5:] == ["0.0333", "+0.0000", "1.0000", "1.0000"]
    assert output[5].endswith("Holm-corrected over 2 runs")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("qrels", 2, "runs is missing"),
        ("qrels base -m foo -m P_5", 2, "did you mean 'P@5'?"),
        ("qrels base -m ndcg_cut_10", 2, "did you mean 'nDCG@10'?"),
        ("qrels base -m Rprcc", 2, "did you mean 'Rprec'?"),
        ("qrels base nope", 2, "runs: there is no file nope"),
        ("qrels base --against nope", 2, "--against: there is no file nope"),
        ("qrels base --against ./base", 2, "--against: found no other run"),
        ("nope.txt base", 2, "there is no file of judgments nope.txt"),
        ("base base", 1, "base:1: found 6 columns"),
        ("qrels qrels", 1, "qrels:1: found 4 columns"),
    ],
)
def test_bad_arguments(evaluate: Evaluate, arguments: str, code: int, message: str) -> None:
    found, output, errors = evaluate(*arguments.split())
    assert (found, output) == (code, [])
    assert message in "\n".join(errors)


def test_names_of_collections(evaluate: Evaluate) -> None:
    code, output, _ = evaluate("sample", "base")
    assert (code, output[0]) == (0, "sample, 20 judged topics")
    assert output[1].split() == ["AP", "P@30"]
    Path("mb2011").mkdir()  # a folder is no file of judgments
    code, _, errors = evaluate("mb2011", "base", "--data", "somewhere")
    assert (code, len(errors)) == (1, 1) and "mb2011 has no judgments" in errors[0]
    assert evaluate("fakee", "base")[0] == 2
    # A file of that name comes first.
    Path("sample").write_text("1 0 a 1\n")
    assert evaluate("sample", "base")[1][0] == "sample, 1 judged topic"
