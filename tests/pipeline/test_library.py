"""The public functions: from a collection to a ranking, its runs, its measures and its reasons."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ir_measures
import numpy
import pandas
import pytest
from helpers.processes import elsewhere, run_python

import tweetrerank
from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import ranked
from tweetrerank.pipeline.evaluation.measures import evaluate, mean
from tweetrerank.pipeline.ranking.ranker import Ranker
from tweetrerank.pipeline.ranking.retrievers import Candidates, retriever_for
from tweetrerank.pipeline.usage_error import UsageError

POSTS = {
    "0": "storm warning for the whole coast tonight",
    "1": "my coffee warning of the day",
    "2": "gale and storm in town, the harbour is closed",
    "3": "cats",
}


def collection() -> Any:
    posts = [{"id": doc_id, "text": text} for doc_id, text in POSTS.items()]
    topics, qrels = {"a": "storm warning", "b": "coffee"}, {"a": {"0": 1}}
    return tweetrerank.open_collection(posts=posts, topics=topics, qrels=qrels)


def test_public_names_load_no_java() -> None:
    code = "import sys, tweetrerank as t; [getattr(t, name) for name in t.__all__]"
    done = run_python("-c", f"{code}; print(*sys.modules)", code=0)
    assert not {"jnius", "jnius_config", "pyserini"} & {*done.stdout.split()}
    assert dir(tweetrerank) == sorted(tweetrerank.__all__)


def test_from_a_collection_to_a_run(tmp_path: Path) -> None:
    import tweetrerank.evaluate  # The command of the name is the function, too.

    how: Any = {"first_stage": "rm3", "weight": 0.4, "parameters": {"mu": 50}}
    best = tweetrerank.ranker("sample", reranker="mp_hcnn", **how)
    ranking, mixed = best.rank(hits=20), "mp_hcnn + rm3 (λ = 0.4)"
    assert [*ranking.stages] == [*ranking.seconds] == ["rm3", "mp_hcnn", mixed]
    assert ranking.run is ranking.stages[mixed]
    assert max(map(len, ranking.run.values())) == 20
    frame = best.rank("storm", hits=3).to_dataframe()
    assert [*frame.columns] == ["qid", "query", "docno", "text", "url", "score", "rank"]
    assert [*frame["rank"]] == [0, 1, 2] and frame["score"].is_monotonic_decreasing
    record = json.loads(json.dumps(ranking.to_dict()))["topics"][0]
    best_post = record["posts"][0]
    doc_id, score = ranked(ranking.run[record["query_id"]])[0]
    assert (best_post["doc_id"], [*best_post["stages"]]) == (doc_id, [*ranking.stages])
    assert best_post["stages"][mixed] == {"rank": 1, "score": score}
    tweetrerank.write_run(tmp_path / "mine.run", ranking.run)
    assert tweetrerank.read_run(tmp_path / "mine.run").keys() == ranking.run.keys()
    assert tweetrerank.evaluate(ranking)[mixed].keys() == {"AP", "P@30"}
    found = tweetrerank.evaluate(ranking, "AP", "P@5")
    qrels = best.collection and best.collection.qrels
    values = ir_measures.calc_aggregate([ir_measures.AP], qrels, dict(ranking.run))
    assert found[mixed]["AP"] == pytest.approx(values[ir_measures.AP], abs=1e-4)
    with pytest.raises(DataError, match="expected `qrels`"):
        tweetrerank.evaluate(ranking.run, "AP")
    lines = str(found).splitlines()
    assert lines[0].split() == [
        "sample,",
        "20",
        "judged",
        "topics",
        "AP",
        "P@5",
        "ms/topic",
    ]
    assert [line.split()[0] for line in lines[1:]] == ["rm3", "mp_hcnn", "mp_hcnn"]


@pytest.mark.parametrize("reranker", ["mp_hcnn", "fusion", "none"])
def test_given_candidates_keep_their_posts(reranker: str) -> None:
    """By every kind of ranker; the last stage has the posts of the first."""
    ranker = tweetrerank.ranker(
        collection(), reranker, weight=1 if reranker == "mp_hcnn" else None
    )
    posts = dict(ranker.collection.open_index().posts.get_many([*POSTS]))
    run = {"a": {"3": 2.0, "0": 1.0}, "b": {"1": 1.0}}
    ranking = ranker.rerank(Candidates(collection().topics, run, posts))
    assert {q: {*scores} for q, scores in ranking.run.items()} == {
        "a": {"0", "3"},
        "b": {"1"},
    }
    assert next(iter(ranking.stages.values())) == run
    if reranker != "none":
        assert ranked(ranking.run["a"])[0][0] == "0"
        assert [*ranker.explain(ranking, ["0"], query_id="a").reasons] == ["0"]
    else:
        with pytest.raises(UsageError, match="expected a model with an explanation"):
            ranker.explain(ranking, ["0"], query_id="a")


def test_every_way_that_is_shown_is_better_than_its_first_stage() -> None:
    """The ranker, a fusion of a run, and texts with scores, as behind a search engine."""
    first = tweetrerank.ranker("sample", "none").rank(hits=100)
    posts, reranker, by_texts = first.candidates.posts, tweetrerank.load(), {}
    for topic in first.candidates.topics:
        scores = first.run[topic.query_id]
        texts = [(posts[doc_id].text, posts[doc_id].url) for doc_id in scores]
        best = reranker.rank(topic.text, texts, scores=[*scores.values()])
        by_texts[topic.query_id] = {[*scores][row]: score for row, score, _ in best}
    whole = tweetrerank.ranker("sample").rank(hits=100).run
    fused = tweetrerank.ranker("sample", "fusion").rerank(first.candidates).run
    runs, qrels = (first.run, whole, fused, by_texts), first.collection.qrels
    before, *after = (mean(evaluate(qrels, run, ["AP"])["AP"]) for run in runs)
    assert min(after) > before


def test_a_collection_searches_and_measures_itself() -> None:
    mine = collection()
    ranker = tweetrerank.ranker(mine)
    hits = ranker.rank("storm").best(2)
    assert {hit.doc_id for hit in hits} == {"0", "2"}
    assert hits[0].text == POSTS[hits[0].doc_id] and hits[0].score >= hits[1].score
    assert ranker.rank("zebra").best(2) == []
    ranking = tweetrerank.ranker(mine, "none").rank()
    assert tweetrerank.evaluate(ranking, "R@3")["ql"] == {"R@3": 1.0}


def test_topics_as_people_hold_them() -> None:
    for topics in (
        {1: "storm", 2: "coffee"},
        ["storm", "coffee"],
        [{"qid": "a", "query": "storm"}, {"_id": "b", "text": "coffee"}],
        pandas.DataFrame({"qid": ["1", "2"], "query": ["storm", "coffee"]}),
        pandas.Series(["storm", "coffee"], index=[9, 8]),
        Topic("1", "storm"),
    ):
        run = ranks(topics).run
        assert [*map(set, run.values())] == [{"0", "2"}, {"1"}][
            : 2 - isinstance(topics, Topic)
        ]
        assert all(isinstance(query_id, str) for query_id in run)


def test_runs_and_grades_of_numbers(tmp_path: Path) -> None:
    tweetrerank.write_run(tmp_path / "run", {1: {10: numpy.float32(0.5)}})
    assert tweetrerank.read_run(tmp_path / "run") == {"1": {"10": 0.5}}
    grades = pandas.DataFrame({"qid": [1], "docno": [10], "label": [1.0]})
    (tmp_path / "qrels").write_text("1 0 10 1\n")
    for qrels in ({1: {10: 1}}, grades, tmp_path / "qrels"):
        found = tweetrerank.evaluate({1: {10: 1}}, ["AP"], qrels=qrels)  # type: ignore[operator]
        assert found["run"] == {"AP": 1.0}


def ranks(topics: Any, **options: Any) -> Any:
    return tweetrerank.ranker(collection(), "none").rank(topics, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tweetrerank.rank, "no attribute 'rank'"),
        (lambda: ranks([None]), r"topics\[0\]: found 'null'"),
        (lambda: ranks(5), "topics: found '5', expected rows in a list"),
        (lambda: ranks([Topic("1", "a"), Topic("1", "b")]), "found a second topic 1"),
        (
            lambda: ranks("storm", hits=0),
            "`hits`: found 0, expected a whole number of at least 1",
        ),
        (lambda: ranks("storm", hits=True), "`hits`: found True"),
        (
            lambda: tweetrerank.write_run("x", {1: {10: "a"}}),
            "`run`: .*'a' is no score",
        ),
        (
            lambda: tweetrerank.write_run("x", [1]),
            "`run`: found .*, expected query_id -> doc_id",
        ),
        (lambda: tweetrerank.ranker("sample", weight=3), "`weight`: found 3"),
        (lambda: tweetrerank.ranker(5), "`collection`: found 5"),
        (
            lambda: tweetrerank.ranker("sample", device="mps"),
            "`device`: found 'mps', expected auto",
        ),
        (
            lambda: tweetrerank.ranker("sample", "none", "bm52"),
            "`first_stage`.*mean 'bm25'",
        ),
        (lambda: tweetrerank.ranker("sample", "bm42"), "`reranker`: found 'bm42'"),
        (
            lambda: tweetrerank.ranker("sample", "fusion", "rm3"),
            "`first_stage`: fusion takes",
        ),
        (
            lambda: Ranker(retriever_for(collection()), None).rank(),
            "`topics`: found none",
        ),
        (
            lambda: Ranker(None, None).rank("storm"),
            "expected one; give candidates to rerank",
        ),
        (
            lambda: tweetrerank.open_collection(posts=POSTS, qrels={"1": 5}),
            "posts: found",
        ),
    ],
)
def test_public_calls_check_their_arguments(
    call: Callable[[], Any], message: str
) -> None:
    with pytest.raises((AttributeError, DataError, UsageError), match=message):
        call()


def test_collections_and_rankers_travel() -> None:
    rankers = [
        tweetrerank.ranker(mine := collection(), reranker)
        for reranker in ("auto", "none")
    ]
    expected = [ranker.rank("storm").run for ranker in rankers]
    assert [copy.deepcopy(ranker).rank("storm").run for ranker in rankers] == expected
    assert repr(mine) == f"<collection {mine.title}>"
    assert [elsewhere(ranker.rank, "storm").run for ranker in rankers] == expected


def test_a_fork_says_that_it_cannot_search() -> None:
    code = """if __name__ == "__main__":
        import multiprocessing, tweetrerank
        mine = tweetrerank.open_collection("sample")
        best = tweetrerank.ranker(mine)
        best.rank("storm")
        with multiprocessing.get_context("fork").Pool(1) as pool:
            for task in (best.rank, tweetrerank.ranker("sample", "none").rank):
                try:
                    pool.map_async(task, ["storm"]).get(60)
                except Exception as error:
                    print(error)"""
    assert (
        run_python("-c", code).stdout.count('multiprocessing.get_context("spawn")') == 2
    )


def test_a_ranker_in_pyterrier() -> None:
    pt = pytest.importorskip("pyterrier", reason="PyTerrier is not installed")
    from tweetrerank.pipeline.ranking.pyterrier import for_pyterrier

    searching = for_pyterrier(tweetrerank.ranker(collection(), "none"))
    found = searching.transform(
        pt.new.queries(["storm warning", "coffee"], qid=["a", "b"])
    )
    assert set(found[found["qid"] == "a"]["docno"]) == {"0", "1", "2"}
    pipe = searching >> for_pyterrier(tweetrerank.ranker(collection(), "fusion"))
    reranked = pipe.transform(pt.new.queries(["storm warning"], qid=["a"]))
    assert (
        set(reranked["docno"]) == {"0", "1", "2"} and reranked["docno"].iloc[0] == "0"
    )
