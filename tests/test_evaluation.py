"""Measures against hand-made figures, naive formulas, the official trec_eval and official runs."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from official import trec_eval

from pipeline.collections.trec import Qrels, Run, ranked, read_qrels, read_run, write_run
from pipeline.command.errors import DataError, UsageError
from pipeline.evaluation.measures import (
    Evaluator,
    evaluate,
    mean,
    parse_measures,
    without_relevant,
    without_results,
)

QRELS: Qrels = {
    "1": {"a": 1, "b": 2, "c": 0, "d": -2, "e": 1},
    "2": {"a": 1},
    "3": {"a": 0, "b": -1},
    "4": {"a": 1},
}
# Ranking of topic 1: d c a x b (e is not found), of topic 2: z y a, as ties go to the later id.
RUN: Run = {
    "1": {"a": 3.0, "b": 1.0, "c": 4.0, "d": 5.0, "x": 2.0},
    "2": {"a": 1.0, "z": 1.0, "y": 1.0},
    "3": {"a": 1.0, "b": 2.0},
    "9": {"a": 1.0},
}


def test_by_hand() -> None:
    values = evaluate(QRELS, RUN, ["AP", "P@3", "P@30", "RR", "R@5", "P(rel=2)@5", "nDCG@5"])
    assert values["AP"] == pytest.approx({"1": (1 / 3 + 2 / 5) / 3, "2": 1 / 3, "3": 0, "4": 0})
    assert values["P@3"] == pytest.approx({"1": 1 / 3, "2": 1 / 3, "3": 0, "4": 0})
    assert values["P@30"] == pytest.approx({"1": 2 / 30, "2": 1 / 30, "3": 0, "4": 0})
    assert values["RR"] == pytest.approx({"1": 1 / 3, "2": 1 / 3, "3": 0, "4": 0})
    assert values["R@5"] == pytest.approx({"1": 2 / 3, "2": 1, "3": 0, "4": 0})
    assert values["P(rel=2)@5"] == pytest.approx({"1": 1 / 5, "2": 0, "3": 0, "4": 0})
    ideal = 2 + 1 / math.log2(3) + 1 / math.log2(4)
    assert values["nDCG@5"] == pytest.approx(
        {"1": (1 / math.log2(4) + 2 / math.log2(6)) / ideal, "2": 1 / math.log2(4), "3": 0, "4": 0}
    )


def test_every_judged_topic_is_there_in_the_order_of_the_judgments() -> None:
    for run in ({}, {"4": {}}, RUN, {"9": {"a": 1.0}}):
        assert list(evaluate(QRELS, run, ["AP"])["AP"]) == ["1", "2", "3", "4"]
    assert evaluate(QRELS, {}, ["AP", "NumRel"]) == {
        "AP": dict.fromkeys("1234", 0.0),
        "NumRel": {"1": 3.0, "2": 1.0, "3": 0.0, "4": 1.0},
    }


def test_topics_that_are_judged_negative_or_not_at_all() -> None:
    # pytrec_eval itself writes where it must not on such topics, so it takes many to be sure.
    qrels = {str(n): {} if n % 3 else {"a": -1, "b": -2} for n in range(1000)} | QRELS
    run = dict.fromkeys(qrels, RUN["1"])
    values = evaluate(qrels, run, ["AP", "P@3", "nDCG", "Bpref", "NumRel", "R@5"])
    alone = evaluate(QRELS, run, list(values))
    for measure, by_topic in values.items():
        expected = {query_id: alone[measure].get(query_id, 0.0) for query_id in qrels}
        assert by_topic == expected


def test_what_counts_as_0_is_named() -> None:
    assert without_results(QRELS, {**RUN, "2": {}}) == ["2", "4"]
    assert without_relevant({**QRELS, "5": {}}) == ["3", "5"]


def naive_average_precision(grades: dict[str, int], scores: dict[str, float]) -> float:
    relevant = {doc_id for doc_id, grade in grades.items() if grade > 0}
    ranking = [doc_id for doc_id, _ in ranked(scores)]
    precisions = [
        len(relevant & set(ranking[:rank])) / rank
        for rank, doc_id in enumerate(ranking, start=1)
        if doc_id in relevant
    ]
    return sum(precisions) / len(relevant) if relevant else 0.0


DOCS = st.sampled_from("abcdefghij")
GRADES = st.dictionaries(DOCS, st.integers(-2, 3), min_size=1)
SCORES = st.dictionaries(DOCS, st.sampled_from([0.0, 1.0, 1.0 + 2.0**-40, 2.0, -1e-46]))


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("123"), GRADES, min_size=1), st.data())
def test_average_precision_as_its_formula_says(qrels: Qrels, data: st.DataObject) -> None:
    run = data.draw(st.dictionaries(st.sampled_from("1234"), SCORES))
    values = evaluate(qrels, run, ["AP", "P@3"])
    for query_id, grades in qrels.items():
        scores = run.get(query_id, {})
        assert values["AP"][query_id] == pytest.approx(naive_average_precision(grades, scores))
        top = [doc_id for doc_id, _ in ranked(scores)[:3]]
        assert values["P@3"][query_id] == pytest.approx(sum(grades.get(d, 0) > 0 for d in top) / 3)


MEASURES = ["AP", "P@30", "RR", "Rprec", "nDCG@20", "R@1000", "Bpref", "Success@1", "nDCG"]
ASKED = ["map", "P.30", "recip_rank", "Rprec", "ndcg_cut.20", "recall.1000", "bpref", "success.1"]
MEASURES += ["NumRel", "NumRet"]
ASKED += ["ndcg", "num_rel", "num_ret"]
PRINTED = [name.replace(".", "_") for name in ASKED]


def assert_trec_eval_agrees(qrels_path: Path, run_path: Path) -> None:
    official = trec_eval(qrels_path, run_path, *ASKED)
    values = evaluate(read_qrels(qrels_path), read_run(run_path), MEASURES)
    for name, official_name in zip(MEASURES, PRINTED, strict=True):
        digits = 0 if name.startswith("Num") else 4
        ours = {query_id: f"{value:.{digits}f}" for query_id, value in values[name].items()}
        # Under -c it averages over judged topics without results, but does not print them.
        printed = {q: value for q, value in official[official_name].items() if q != "all"}
        assert printed == {query_id: ours[query_id] for query_id in printed}
        total = sum(values[name].values()) if digits == 0 else mean(values[name])
        assert official[official_name]["all"] == f"{total:.{digits}f}"


@pytest.mark.parametrize("year", [2011, 2012, 2013])
@pytest.mark.parametrize("kind", ["QL", "RM3"])
def test_trec_eval_agrees_on_official_runs(data_dir: Path, year: int, kind: str) -> None:
    folder = data_dir / "microblog"
    assert_trec_eval_agrees(
        folder / f"qrels.microblog{year}.txt", folder / f"runs/run.microblog{year}.{kind}.txt"
    )


def test_trec_eval_agrees_on_ties_negative_grades_and_empty_topics(tmp_path: Path) -> None:
    docs = [str(n * n * 37 % 1009) for n in range(200)]
    qrels = {
        str(topic): {doc: (n * topic * 7 + n // 5) % 6 - 2 for n, doc in enumerate(docs[::2])}
        for topic in range(1, 8)
    }
    qrels["8"] = dict.fromkeys(docs, 0)
    qrels["9"] = {"a": 1}
    # Scores with many ties, some only in single precision.
    run = {
        str(topic): {doc: 20.0 + (n % topic) * 1e-7 + n % 9 for n, doc in enumerate(docs)}
        for topic in (1, 2, 4, 5, 7, 8, 77)
    }
    lines = [f"{q} 0 {d} {grade}\n" for q, grades in qrels.items() for d, grade in grades.items()]
    (tmp_path / "qrels").write_text("".join(lines))
    write_run(tmp_path / "run", run, "t")
    assert_trec_eval_agrees(tmp_path / "qrels", tmp_path / "run")
    assert evaluate(qrels, run) == evaluate(qrels, read_run(tmp_path / "run"))


def test_aliases_and_repeated_measures() -> None:
    values = evaluate(QRELS, RUN, ["MAP", "AP", "P@10", "P@5", "AP"])
    assert list(values) == ["MAP", "AP", "P@10", "P@5"]
    assert values["MAP"] == values["AP"]
    assert values["P@5"]["1"] == pytest.approx(2 / 5)


SUGGESTIONS = {
    "AP": "map",
    "P@30": "P_30 P30 P",
    "P@5": "p.5",
    "nDCG@20": "ndcg@20",
    "nDCG@10": "ndcg_cut_10",
    "R@1000": "recall_1000",
    "RR": "RR@10 recip_rank",
    "Rprec": "Rprcc",
}


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [(name, suggestion) for suggestion, names in SUGGESTIONS.items() for name in names.split()],
)
def test_unknown_measures_get_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(UsageError, match=f"measure {name!r}.* did you mean {suggestion!r}"):
        evaluate(QRELS, RUN, [name])


MALFORMED = [
    "",
    "'",
    "P@0",
    "P@-1",
    "P@1.5",
    "P@True",
    "P@99999999999999999999",
    "P@30@5",
    "AP; AP",
]
UNKNOWN = ["foo", "AP(foo=3)", "AP(rel='x')", "AP(rel=0)", "ERR@20", "RBP(p=0.8)", "SetF(beta=x)"]


@pytest.mark.parametrize("name", [*MALFORMED, *UNKNOWN, "__import__('os')"])
def test_measures_that_cannot_be_computed(name: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        evaluate(QRELS, RUN, [name])


def test_all_bad_measures_are_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        parse_measures(["AP", "foo", "P@0"])
    assert [problem.split(",")[0] for problem in caught.value.problems] == [
        "found the measure 'foo'",
        "P@0: found cutoff 0",
    ]


@pytest.mark.parametrize("score", [math.nan, math.inf, -1e39])
def test_no_such_score_is_evaluated(score: float) -> None:
    with pytest.raises(DataError, match="topic 2, document b"):
        evaluate(QRELS, {"2": {"a": 1.0, "b": score}})


def test_there_must_be_judgments() -> None:
    with pytest.raises(DataError, match="no judged topic"):
        evaluate({}, RUN)


def test_an_evaluator_can_be_used_again() -> None:
    evaluator = Evaluator(QRELS, ["AP", "RR"])
    for run in (RUN, {}, {"1": {"a": 1.0}}, RUN):
        assert evaluator(run) == evaluate(QRELS, run, ["AP", "RR"])


def test_mean() -> None:
    assert mean({"1": 0.5, "2": 1.0}) == 0.75
    assert mean(value for value in (0.1,) * 10) == 0.1
    with pytest.raises(ValueError, match="no values"):
        mean([])
