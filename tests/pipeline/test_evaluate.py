"""The command ``python -m pipeline.evaluate``: what it prints, what it tells, how it fails."""

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Command, Patch
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

Evaluate = Callable[..., tuple[list[str], list[str]]]


@pytest.fixture
def evaluate(command: Command, tmp_path: Path, monkeypatch: Patch) -> Evaluate:
    """Runs the command in a folder with qrels and runs; gives the lines of stdout and stderr."""
    (tmp_path / "qrels").write_text("".join(f"{q} 0 a 1\n{q} 0 b 0\n" for q in TOPICS))
    for name, ranks in (("base", BASE), ("better", BETTER), ("best", BEST)):
        write_run(tmp_path / name, at_rank(ranks), name)
    monkeypatch.chdir(tmp_path)

    def call(line: str, code: int = 0) -> tuple[list[str], list[str]]:
        done = command("evaluate", *line.split(), code=code)
        return done.out.splitlines(), done.err.splitlines()

    return call


def test_a_row_for_each_run(evaluate: Evaluate) -> None:
    head = ["qrels, 12 judged topics", "          AP    P@30"]
    rows = ["base  0.3333  0.0333", "best  0.9167  0.0333"]
    assert evaluate("qrels base best") == (head + rows, [])


def test_what_counts_as_0_is_told(evaluate: Evaluate) -> None:
    ranks = {query_id: int(query_id not in "37") for query_id in TOPICS} | {"99": 1, "x": 1}
    write_run(Path("gaps"), at_rank(ranks), "t")
    with Path("qrels").open("a") as stream:
        stream.write("13 0 a 0\n14 0 b -1\n")
    output, errors = evaluate("qrels gaps base -m RR")
    assert [line.split() for line in output[2:]] == [["gaps", "0.7143"], ["base", "0.2857"]]
    assert errors == [
        "gaps: judged topics without a result, counted as 0 (4): 3, 7, 13, 14",
        "gaps: topics without judgments, left out (2): 99, x",
        "base: judged topics without a result, counted as 0 (2): 13, 14",
        "qrels: judged topics without a relevant document, always 0 (2): 13, 14",
    ]


def test_each_topic(evaluate: Evaluate) -> None:
    output, errors = evaluate("qrels better best -m RR --measure P@1 --per-topic")
    assert (output[0], errors) == ("measure\tquery_id\tbetter\tbest", [])
    assert output[1:14] == [
        *(f"RR\t{q}\t{1 / BETTER[q]:.4f}\t{1 / BEST[q]:.4f}" for q in TOPICS),
        "RR\tall\t0.4375\t0.9167",
    ]
    assert output[14] == "P@1\t1\t0.0000\t1.0000" and len(output) == 1 + 2 * 13
    output, _ = evaluate("qrels best --against base -m RR --per-topic")
    assert output[13:16] == ["RR\tall\t0.3333\t0.9167", "", "qrels, 12 judged topics"]


def test_one_run_against_another(evaluate: Evaluate) -> None:
    output, errors = evaluate("qrels best --against base -m RR")
    assert [line.split() for line in output[1:4]] == [
        ["RR", "diff", "p(rand)", "p(t)"],
        ["base", "0.3333"],
        # Every topic has moved up: of 2^12 sign patterns only two are as extreme, 0.0005.
        ["best", "0.9167", "+0.5833", "0.0005", "<0.0001"],
    ]
    assert output[4].startswith("diff: to base; p: two-sided, by Fisher's randomization test")
    assert "Holm" not in output[4] and not errors
    # A difference too small to print has no minus.
    write_run(Path("worse"), at_rank(BASE | {"1": 0}), "t")
    output, _ = evaluate("qrels worse --against base -m P@100000")
    assert output[3].split()[:3] == ["worse", "0.0000", "+0.0000"]


def test_several_runs_against_another(evaluate: Evaluate) -> None:
    output, errors = evaluate("qrels better base best --against base")
    base, *rows = (line.split() for line in output[2:5])
    assert [base[0], rows[0][0], rows[1][0], errors] == ["base", "better", "best", []]
    tests = [
        stats.ttest_rel([1 / ranks[q] for q in TOPICS], [1 / BASE[q] for q in TOPICS]).pvalue
        for ranks in (BETTER, BEST)
    ]
    # base itself is no comparison, so two are corrected for.
    expected = [f"{p:.4f}" if p >= 0.0001 else "<0.0001" for p in holm(tests)]
    assert [row[4] for row in rows] == expected and rows[0][2] == "+0.1042"
    # P@30 is the same everywhere.
    assert rows[0][5:] == ["0.0333", "+0.0000", "1.0000", "1.0000"]
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
    output, errors = evaluate(arguments, code)
    assert not output and message in "\n".join(errors)


def test_names_of_collections(evaluate: Evaluate) -> None:
    output, _ = evaluate("sample base")
    assert (output[0], output[1].split()) == ("sample, 20 judged topics", ["AP", "P@30"])
    Path("mb2011").mkdir()  # a folder is no file of judgments
    (error,) = evaluate("mb2011 base --data somewhere", 1)[1]
    assert "mb2011 has no judgments" in error
    evaluate("fakee base", 2)
    # A file of that name comes first.
    Path("sample").write_text("1 0 a 1\n")
    assert evaluate("sample base")[0][0] == "sample, 1 judged topic"
