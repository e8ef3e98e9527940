"""The public functions: from a collection to a ranking, runs, measures and reasons."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ir_measures
import numpy
import pandas
import pytest
from conftest import Patch
from helpers.processes import elsewhere, run_python

import tweetrerank
from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Run, ranked
from tweetrerank.pipeline.evaluation.measures import evaluate, mean
from tweetrerank.pipeline.ranking.ranker import Ranker, Ranking
from tweetrerank.pipeline.ranking.retrievers import Candidates, retriever_for
from tweetrerank.pipeline.usage_error import UsageError

POSTS = {
    "0": "storm warning for the whole coast tonight",
    "1": "my coffee warning of the day",
    "2": "gale and storm in town, the harbour is closed",
    "3": "cats",
}
MIXTURE = "mp_hcnn + rm3 (λ = 0.4)"


def collection() -> Any:
    return tweetrerank.open_collection(
        posts=[{"id": doc_id, "text": text} for doc_id, text in POSTS.items()],
        topics={"a": "storm warning", "b": "coffee"},
        qrels={"a": {"0": 1}},
    )


def ranks(topics: Any, **options: Any) -> Any:
    """The ranking of topics by the first stage of the made-up collection."""
    return tweetrerank.ranker(collection(), "none").rank(topics, **options)


def test_public_names_load_no_java() -> None:
    code = "import sys, tweetrerank as t; [getattr(t, name) for name in t.__all__]"
    process = run_python("-c", f"{code}; print(*sys.modules)", code=0)
    assert not {"jnius", "jnius_config", "pyserini"} & set(process.stdout.split())
    assert dir(tweetrerank) == sorted(tweetrerank.__all__)


def test_a_commands_module_leaves_the_function_of_its_name() -> None:
    import tweetrerank.pipeline.evaluate

    assert callable(tweetrerank.evaluate)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A home folder for the fixtures of this module."""
    with Patch.context() as patch:
        patch.setenv("TWEETRERANK_HOME", str(tmp_path_factory.mktemp("library")))
        yield


@pytest.fixture(scope="module")
def best(home: None) -> Ranker:
    return tweetrerank.ranker(
        "sample",
        reranker="mp_hcnn",
        first_stage="rm3",
        weight=0.4,
        parameters={"mu": 50},
    )


@pytest.fixture(scope="module")
def ranking(best: Ranker) -> Ranking:
    return best.rank(hits=20)


def test_stages_of_a_ranking(ranking: Ranking) -> None:
    assert list(ranking.stages) == ["rm3", "mp_hcnn", MIXTURE]
    assert list(ranking.seconds) == list(ranking.stages)
    assert ranking.run is ranking.stages[MIXTURE]
    assert max(map(len, ranking.run.values())) == 20


def test_a_ranking_as_a_data_frame(best: Ranker) -> None:
    frame = best.rank("storm", hits=3).to_dataframe()
    columns = ["qid", "query", "docno", "text", "url", "score", "rank"]
    assert list(frame.columns) == columns
    assert list(frame["rank"]) == [0, 1, 2]
    assert frame["score"].is_monotonic_decreasing


def test_a_ranking_as_json(ranking: Ranking) -> None:
    record = json.loads(json.dumps(ranking.to_dict()))["topics"][0]
    best_post = record["posts"][0]
    doc_id, score = ranked(ranking.run[record["query_id"]])[0]
    assert best_post["doc_id"] == doc_id
    assert list(best_post["stages"]) == list(ranking.stages)
    assert best_post["stages"][MIXTURE] == {"rank": 1, "score": score}


def test_a_run_is_written_and_read(ranking: Ranking, tmp_path: Path) -> None:
    tweetrerank.write_run(tmp_path / "mine.run", ranking.run)
    assert tweetrerank.read_run(tmp_path / "mine.run").keys() == ranking.run.keys()


def test_measures_of_a_ranking(best: Ranker, ranking: Ranking) -> None:
    assert tweetrerank.evaluate(ranking)[MIXTURE].keys() == {"AP", "P@30"}
    evaluation = tweetrerank.evaluate(ranking, "AP", "P@5")
    assert best.collection
    values = ir_measures.calc_aggregate(
        [ir_measures.AP], best.collection.qrels, dict(ranking.run)
    )
    expected = pytest.approx(values[ir_measures.AP], abs=1e-4)
    assert evaluation[MIXTURE]["AP"] == expected
    header, *rows = str(evaluation).splitlines()
    assert " ".join(header.split()) == "sample, 20 judged topics AP P@5 ms/topic"
    assert [row.split()[0] for row in rows] == ["rm3", "mp_hcnn", "mp_hcnn"]


def test_a_run_has_no_judgments(ranking: Ranking) -> None:
    with pytest.raises(DataError, match="expected `qrels`"):
        tweetrerank.evaluate(ranking.run, "AP")


CANDIDATES: Run = {
    "a": {"3": 2.0, "0": 1.0},
    "b": {"1": 1.0},
}


def rerank(ranker: Ranker) -> Ranking:
    """The ranking of :data:`CANDIDATES`; its last stage has the posts of the first."""
    mine = collection()
    posts = dict(mine.open_index().posts.get_many(list(POSTS)))
    ranking = ranker.rerank(Candidates(mine.topics, CANDIDATES, posts))
    doc_ids = {query_id: set(scores) for query_id, scores in ranking.run.items()}
    assert doc_ids == {"a": {"0", "3"}, "b": {"1"}}
    assert next(iter(ranking.stages.values())) == CANDIDATES
    return ranking


@pytest.mark.parametrize(
    ("reranker", "weight"),
    [("mp_hcnn", 1), ("fusion", None)],
)
def test_given_candidates_are_reranked_and_explained(
    reranker: str, weight: float | None
) -> None:
    ranker = tweetrerank.ranker(collection(), reranker, weight=weight)
    ranking = rerank(ranker)
    assert ranked(ranking.run["a"])[0][0] == "0"
    assert list(ranker.explain(ranking, ["0"], query_id="a").reasons) == ["0"]


def test_a_first_stage_alone_has_no_explanation() -> None:
    ranker = tweetrerank.ranker(collection(), "none")
    ranking = rerank(ranker)
    with pytest.raises(UsageError, match="expected a model with an explanation"):
        ranker.explain(ranking, ["0"], query_id="a")


@pytest.fixture(scope="module")
def first(home: None) -> Ranking:
    """The ranking of the sample's first stage."""
    return tweetrerank.ranker("sample", "none").rank(hits=100)


def by_ranker(first: Ranking) -> Run:
    return tweetrerank.ranker("sample").rank(hits=100).run


def by_fusion_of_a_run(first: Ranking) -> Run:
    return tweetrerank.ranker("sample", "fusion").rerank(first.candidates).run


def by_texts_with_scores(first: Ranking) -> Run:
    """As behind a search engine."""
    reranker = tweetrerank.load()
    run = {}
    for topic in first.candidates.topics:
        scores = first.run[topic.query_id]
        doc_ids = list(scores)
        posts = [first.candidates.posts[doc_id] for doc_id in doc_ids]
        texts = [(post.text, post.url) for post in posts]
        best = reranker.rank(topic.text, texts, scores=list(scores.values()))
        run[topic.query_id] = {doc_ids[row]: score for row, score, _ in best}
    return run


@pytest.mark.parametrize(
    "way",
    [by_ranker, by_fusion_of_a_run, by_texts_with_scores],
    ids=lambda f: f.__name__,
)
def test_every_documented_way_is_better_than_its_first_stage(
    way: Callable[[Ranking], Run], first: Ranking
) -> None:
    assert first.collection
    qrels = first.collection.qrels or {}

    def average_precision(run: Run) -> float:
        return mean(evaluate(qrels, run, ["AP"])["AP"])

    assert average_precision(way(first)) > average_precision(first.run)


def test_a_collection_searches_and_measures_itself() -> None:
    mine = collection()
    ranker = tweetrerank.ranker(mine)
    hits = ranker.rank("storm").best(2)
    assert {hit.doc_id for hit in hits} == {"0", "2"}
    assert hits[0].text == POSTS[hits[0].doc_id]
    assert hits[0].score >= hits[1].score
    assert ranker.rank("zebra").best(2) == []
    ranking = tweetrerank.ranker(mine, "none").rank()
    assert tweetrerank.evaluate(ranking, "R@3")["ql"] == {"R@3": 1.0}


@pytest.mark.parametrize(
    "topics",
    [
        pytest.param({1: "storm", 2: "coffee"}, id="mapping"),
        pytest.param(["storm", "coffee"], id="texts"),
        pytest.param(
            [{"qid": "a", "query": "storm"}, {"_id": "b", "text": "coffee"}],
            id="records",
        ),
        pytest.param(
            pandas.DataFrame({"qid": ["1", "2"], "query": ["storm", "coffee"]}),
            id="data frame",
        ),
        pytest.param(pandas.Series(["storm", "coffee"], index=[9, 8]), id="series"),
    ],
)
def test_forms_of_topics(topics: Any) -> None:
    run = ranks(topics).run
    assert [set(scores) for scores in run.values()] == [{"0", "2"}, {"1"}]
    assert all(isinstance(query_id, str) for query_id in run)


def test_a_single_topic() -> None:
    run = ranks(Topic("1", "storm")).run
    assert list(run) == ["1"]
    assert set(run["1"]) == {"0", "2"}


def test_a_run_of_numbers(tmp_path: Path) -> None:
    tweetrerank.write_run(tmp_path / "run", {1: {10: numpy.float32(0.5)}})
    assert tweetrerank.read_run(tmp_path / "run") == {"1": {"10": 0.5}}


def judgments_file(folder: Path) -> Path:
    path = folder / "qrels"
    path.write_text("1 0 10 1\n")
    return path


@pytest.mark.parametrize(
    "qrels_in",
    [
        pytest.param(lambda _: {1: {10: 1}}, id="mapping"),
        pytest.param(
            lambda _: pandas.DataFrame({"qid": [1], "docno": [10], "label": [1.0]}),
            id="data frame",
        ),
        pytest.param(judgments_file, id="file"),
    ],
)
def test_grades_of_numbers(qrels_in: Callable[[Path], Any], tmp_path: Path) -> None:
    """The measures may come as a list."""
    evaluation = tweetrerank.evaluate({1: {10: 1}}, ["AP"], qrels=qrels_in(tmp_path))
    assert evaluation["run"] == {"AP": 1.0}


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
            "no retriever; give candidates to rerank",
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


@pytest.mark.parametrize("reranker", ["auto", "none"])
def test_rankers_travel(reranker: str) -> None:
    """As copies in this process, and to another one."""
    ranker = tweetrerank.ranker(collection(), reranker)
    expected = ranker.rank("storm").run
    assert copy.deepcopy(ranker).rank("storm").run == expected
    assert elsewhere(ranker.rank, "storm").run == expected


def test_a_collection_is_shown_by_its_title() -> None:
    mine = collection()
    assert repr(mine) == f"<collection {mine.title}>"


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
    printed = run_python("-c", code).stdout
    assert printed.count('multiprocessing.get_context("spawn")') == 2


def test_a_ranker_in_pyterrier() -> None:
    pt = pytest.importorskip("pyterrier", reason="PyTerrier is not installed")
    from tweetrerank.pipeline.ranking.pyterrier import for_pyterrier

    searching = for_pyterrier(tweetrerank.ranker(collection(), "none"))
    queries = pt.new.queries(["storm warning", "coffee"], qid=["a", "b"])
    results = searching.transform(queries)
    assert set(results[results["qid"] == "a"]["docno"]) == {"0", "1", "2"}
    reranking = for_pyterrier(tweetrerank.ranker(collection(), "fusion"))
    pipe = searching >> reranking
    reranked = pipe.transform(pt.new.queries(["storm warning"], qid=["a"]))
    assert set(reranked["docno"]) == {"0", "1", "2"}
    assert reranked["docno"].iloc[0] == "0"
