"""Measures against the official trec_eval, also where it is hard to compute them."""

import math
from pathlib import Path

import pytest
from helpers.official import trec_eval

from pipeline.collections.trec import Qrels, Run, ranked, read_qrels, read_run, write_run
from pipeline.errors import DataError, UsageError
from pipeline.evaluation.measures import evaluate, mean

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


def test_topics_that_are_judged_negative_or_not_at_all() -> None:
    # pytrec_eval itself writes where it must not on such topics, so it takes many to be sure.
    qrels = {str(n): {} if n % 3 else {"a": -1, "b": -2} for n in range(1000)} | QRELS
    run = dict.fromkeys(qrels, RUN["1"])
    values = evaluate(qrels, run, ["AP", "P@3", "nDCG", "Bpref", "NumRel", "R@5"])
    alone = evaluate(QRELS, run, list(values))
    for measure, by_topic in values.items():
        expected = {query_id: alone[measure].get(query_id, 0.0) for query_id in qrels}
        assert by_topic == expected


MEASURES = {"AP": "map", "P@30": "P.30", "RR": "recip_rank", "Rprec": "Rprec", "nDCG": "ndcg"}
MEASURES |= {"nDCG@20": "ndcg_cut.20", "R@1000": "recall.1000", "Success@1": "success.1"}
MEASURES |= {"Bpref": "bpref", "NumRel": "num_rel", "NumRet": "num_ret"}


WRONG = "' P@0 P@-1 P@1.5 P@True P@99999999999999999999 P@30@5 AP;AP foo AP(foo=3) AP(rel='x')"


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
    official = trec_eval(tmp_path / "qrels", tmp_path / "run", *MEASURES.values())
    values = evaluate(read_qrels(tmp_path / "qrels"), read_run(tmp_path / "run"), MEASURES)
    for name, official_name in MEASURES.items():
        digits = 0 if name.startswith("Num") else 4
        ours = {query_id: f"{value:.{digits}f}" for query_id, value in values[name].items()}
        # Under -c it averages over judged topics without results, but does not print them.
        printed = dict(official[official_name.replace(".", "_")])
        total = sum(values[name].values()) if digits == 0 else mean(values[name])
        assert printed.pop("all") == f"{total:.{digits}f}"
        assert printed == {query_id: ours[query_id] for query_id in printed}
    assert evaluate(qrels, run, MEASURES) == values
    for query_id in run.keys() & qrels.keys():  # Ranked as we do, ties too
        best = [qrels[query_id].get(doc_id, 0) > 0 for doc_id, _ in ranked(run[query_id])[:30]]
        assert values["P@30"][query_id] == pytest.approx(sum(best) / 30)


@pytest.mark.parametrize("name", ["", *WRONG.split()])
def test_measures_that_cannot_be_computed(name: str) -> None:
    """All bad measures are named at once."""
    with pytest.raises(UsageError, match="expected") as caught:
        evaluate(QRELS, RUN, ["AP", name, "P@0"])
    assert len(caught.value.problems) == 2


def test_wrong_judgments_and_scores_are_refused() -> None:
    with pytest.raises(DataError, match="topic 2, document b"):
        evaluate(QRELS, {"2": {"a": 1.0, "b": math.nan}})
    with pytest.raises(DataError, match="no judged topic"):
        evaluate({}, RUN)
